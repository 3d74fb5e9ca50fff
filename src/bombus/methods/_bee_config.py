"""BEE's settings: what the paper states, what it leaves open, what we chose and why.

`BeePaperConfig` is the literal reading; `BeeConfig` is what works best here of a method that lets
go of the source images; `BeeRehearsalConfig` keeps them. All are the same algorithm. docs/bee.md
gives the evidence behind each choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from bombus.data.augment import ViewName
from bombus.errors import ConfigError
from bombus.fields import Count, CountOrZero, NonNegative, Positive, Several, Share, ShareBelowOne
from bombus.losses.multilevel import Tokens
from bombus.methods._optim import OptimizerName
from bombus.methods.base import BaseConfig

# Chosen on a ViT-S/4, four extras, two visits of 10 batches: prepared 31.1, adapted so 30.0; each
# thing changed back alone is worse (docs/bee-lab.md, sittings 10 and 11). Above all the mild view,
# 34: a transformer learns the view itself. The paper's SGD at 2e-5 does not move it.
_ON_VIT = {
    "lr": 3e-5,
    "student_view": "none",
    "prediction_weight": 0.0,
    "warmup_loss": "cross-entropy",
    "warmup_lr": 3e-4,
}


@dataclass(frozen=True, kw_only=True)
class BeeConfig(BaseConfig):
    """Ours. Fields marked "ours" do not exist in the paper; 0 or "none" switches them off.

    Figures are errors in per cent on what settings were chosen by: the four corruptions beyond the
    benchmark's 15 (extras), or two of them on one image (pairs), often gone through several times
    (visits).
    """

    # --- what is trained ---
    adapts: Literal["shallow", "all"] = "all"
    """Paper: the shallow blocks. Ours: all blocks, slowly. Pairs of extras, WRN-28-10, three visits
    of 30 batches, no replay: all blocks at 5e-5 11.0, blocks 1-2 at 1e-4 11.1, block1 at 5e-4 11.2,
    and the lead grows from visit to visit."""
    shallow: tuple[str, ...] = ()
    """The blocks that adapt, by name, whatever `adapts` says. Paper: found by DPLOT's selection,
    WRN block1, ResNet layer1, ViT blocks 0-5. Empty: `adapts` decides; shallow is the first level
    of a CNN, the first half of a transformer's blocks."""
    optimizer: OptimizerName = "adam"
    """Paper: Adam on CNNs, SGD on ViT. relative-adam, ours: `lr` is the part of itself by which a
    tensor moves. Extras and their pairs, WRN-28-10: Adam 5e-5 10.44, relative .01 10.40."""
    lr: NonNegative | None = None
    """Paper: 1e-3 on CNNs, 2e-5 on ViT, for the shallow blocks. None: what fits the network, .0083
    of its median weight tensor's size (twice that with rehearsal, which holds the student), for
    Adam's steps are as long as the rate whatever the weights (docs/rivals.md). That is 5e-5 for our
    WRN-28-10 (pairs of extras, all blocks, two visits of 25 batches: 2e-5 11.7, 5e-5 11.5, 1e-4
    11.6; for block1 alone take 5e-4) and 6e-4 for the demo's network (extras, three visits: 5e-5
    18.3, 5e-4 18.0, 1e-3 17.7, 2e-3 18.0)."""
    momentum: Share = 0.995
    """Teacher's moving average, Eq. 4, after every step. Not stated; its parents use .999. Pairs of
    extras, WRN-28-10, three visits: .999 11.5, .995 11.0. For a small network take .999: extras and
    pairs, WRN-16-1, five visits: .999 19.5, .995 20.2, worse from visit to visit."""

    # --- multi-level consistency ---
    blocks: tuple[str, ...] = ()
    """The network's levels, in order. Paper: its named stages. Empty: found by themselves."""
    levels: tuple[int, ...] = (-1,)
    """Levels summed in Eq. 9: 1 is the first, -1 the last; empty: all, in `bee-paper` the last
    three, as in the paper."""
    level_weights: tuple[NonNegative, ...] = ()
    """Weight of each summed level; empty: 1 each, as the paper."""
    last_descriptor: Literal["block", "classifier"] = "classifier"
    """What the last level describes: its block's output, or (ours) what the classifier reads."""
    tokens: Tokens = "patches"
    """What describes a transformer's block: the mean of its patches, or its class token. Not
    stated."""
    codes: Count = 256
    """M. Not stated."""
    code_start: Literal["descriptors", "random"] = "descriptors"
    """First codes: drawn from source descriptors, or from the sphere. Not stated."""
    tau_student: Positive = 0.1
    """Not stated; DINO's and SwAV's."""
    tau_teacher: tuple[Positive, ...] = (0.04,)
    """Not stated; DINO's. One for all levels, or one a summed level."""
    sinkhorn_iterations: Count = 3
    """Paper: 3."""
    feature_queue: CountOrZero = 2048
    """Paper: 2,048 teacher descriptors beside the batch; 0: the batch alone."""

    # --- recent samples ---
    inner_steps: CountOrZero = 1
    """R; 0: none. Paper: 2. Extras, WRN-28-10: R 0, 1 and 2 give 11.3, 11.2 and 11.4; pairs of
    extras, three visits: R 0 11.2, R 1 11.0."""
    inner_batch: CountOrZero = 0
    """B; 0: as large as the batch. Not stated."""
    sample_queue: Count = 2000
    """Recent images kept: ten batches, or as many as a gigabyte holds. Not stated; far fewer than
    a domain's, so that it turns over soon after a shift."""
    inner_entropy: bool = True
    """Ours: inner steps lower the entropy too, in the same step."""

    # --- views ---
    views: Literal["one", "flip"] = "flip"
    """Ours (DPLOT's): the image and its mirror image; each is the other's target, both predict."""
    student_view: ViewName = "mild"
    """Ours: what the student sees in the consistency loss; the teacher sees the image itself."""

    # --- predictions ---
    prediction_weight: NonNegative = 1.0
    """Ours: one more level, the predictions themselves (symmetric cross-entropy, as RMT)."""
    entropy_weight: NonNegative = 1.0
    """Eq. 15. Paper: 1, as a step of its own."""

    # --- labels in bursts ---
    bursts: NonNegative = 0.0
    """Ours: a batch in which two images are answered alike so many times as often as drawn labels
    would be is answered under the source images' statistics, not its own, and not learnt from.
    They are taken in the preparation; one pass more a batch. 0: not looked for. Extras and their
    pairs, WRN-16-1, batches of 200: 1.3 to 8.2 with labels in bursts, .9 to 1.17 without, so take
    1.25; in bursts 31.0, without it 56.6, and 49.6 of the frozen network."""

    # --- rehearsal ---
    rehearsal_weight: NonNegative = 0.0
    """Ours (RMT's, but without labels): at every step source images are to be answered as the
    source network answers them. 0: none are kept. They are kept with the preparation."""
    rehearsal_images: Several = 5_000
    """How many of them, at least 2: the first that the source gives. Two visits of the extras and
    their pairs, WRN-28-10: none 10.0, 5,000 9.75, 50,000 9.5."""
    rehearsal_mb: Positive = 1_000.0
    """Megabytes that they may take: 50,000 of 32 pixels take 154, of 224 pixels 6,600 fit in 1,000.
    They lie in the computer's memory, in the preparation's file and in every saved adapter."""
    rehearsal_view: ViewName = "strong"
    """What the student sees of them."""

    # --- complementary anchor replay ---
    replay: Literal["weighted", "average", "source", "off"] = "off"
    """Paper: weighted (Eqs. 10-13); the others are its ablations. Ours: off, for a student that
    learns slowly gets better from visit to visit and a merge undoes that. Pairs of extras,
    WRN-28-10, three visits: all the way 11.35, a quarter 11.10, none 11.00. For a student that
    learns fast and drifts, it helps."""
    replay_every: CountOrZero = 0
    """0: when the loss spikes. Else every so many batches (the paper's fixed interval)."""
    replay_share: Share = 0.25
    """Ours: how far the student goes to the merged parameters. Paper: all the way. (The teacher
    going along did harm: extras, 9.2 to 9.4.)"""
    anchors: Several = 50
    """C_a, at least 2. Paper: 50; the warmed-up student is the first and is never dropped."""
    anchor_storage: Literal["auto", "device", "host"] = "auto"
    """Beside the network as they are, or in the CPU's memory in half precision. Auto: on the host
    where a full pool would take more than 4 GiB (a WRN-28-10's takes 7.3 GB, its block1's .3)."""
    anchor_period: Count = 30
    """Paper: 30 batches."""
    complementary: Count = 5
    """K. Paper: 5."""
    trigger: Literal["z-score", "level"] = "level"
    """Paper: the smoothed loss against mean and deviation of a window, upwards. Ours: a change of
    the loss's level against the noise between neighbours, either way (`LevelDetector` says why)."""
    threshold: NonNegative = 6.0
    """In units of that noise. Paper: 1.5 of its own. On 60,000 batches of synthetic noise ours
    raises .12 false alarms in 1,000, and finds 97 % of jumps by 5 deviations within 8 batches."""
    window: Count = 30
    """Losses compared with. Paper: 100, which is two domains."""
    window_minimum: Count = 15
    """Losses before the trigger may fire. Not stated; 20 in `bee-paper`."""
    smoothing: ShareBelowOne = 0.9
    """Of the z-score's moving average. Paper: .9."""

    # --- warm-up ---
    warmup_images: Count = 50_000
    """Paper: 50,000 source images."""
    warmup_rounds: Count | None = None
    """Ours: how often the source images are gone through, where they can be read again. None: 3,
    and of a source too small for 300 steps up to 30. Extras, WRN-28-10, 50,000 images: 9.8 after
    three rounds, 10.6 after one. Extras, WRN-16-1, 1,000 images in batches of 100, at the rate
    that fits it: 3 rounds 22.8, 10 21.4, 30 19.9, 60 20.6, 150 24.8, learnt by heart (50,000:
    19.1). Paper: once."""
    warmup_view: ViewName = "strong"
    """Ours: the student's view in the warm-up. On the extra corruptions, one seed, the strong view
    is worth 1.0 points over none (WRN-28-10), 0.5 over the mild one (WRN-16-1), most on noise."""
    warmup_loss: Literal["symmetric", "cross-entropy"] = "symmetric"
    """What pulls the student's answers to the teacher's. Paper: RMT's, which is symmetric and makes
    both surer of themselves; ours: the teacher as a plain target, for networks that were trained to
    be unsure (smoothed labels, mixup)."""
    warmup_leaves: Literal["average", "both"] = "average"
    """What the stream begins with. Paper: RMT's warm-up, where the student keeps what it learnt and
    the teacher its average of it: both. Ours: student and teacher begin with the average. Extras,
    WRN-28-10, three rounds: the student's own 10.7, the average 9.8."""
    warmup_blocks: Literal["adapting", "all"] = "all"
    """Paper: the blocks that adapt. Ours: all blocks, whichever adapt. Extras, WRN-28-10, block1
    adapting: one round for block1 11.2, three rounds for all blocks 9.8."""
    warmup_optimizer: OptimizerName = "adam"
    """Paper: that of the stream."""
    warmup_lr: NonNegative | None = 1e-4
    """Reached at the end of the ramp. Paper: 1e-3, for the shallow blocks alone. None: what fits
    the network, .0183 of its median weight tensor's size: 1e-4 for our WRN-28-10, 1e-3 for the
    demo's (extras and pairs, not adapted: 1e-4 20.6, 3e-4 20.2, 1e-3 20.3)."""
    warmup_code_lr: NonNegative = 1e-3
    """Not stated. With a ViT's 2e-5 the codes could not move."""

    published: ClassVar = {
        "imagenet-c": {"sample_queue": 640},
        "vit": _ON_VIT,
    }

    def resolve_levels(self, blocks: Sequence[str]) -> tuple[int, ...]:
        """Level numbers from 1, whichever end the settings count from."""
        count = len(blocks)
        asked = self.levels or tuple(range(1, count + 1))
        levels = tuple(level if level > 0 else count + 1 + level for level in asked)
        if not all(1 <= level <= count for level in levels):
            raise ConfigError(
                f"Got levels {asked} for a network of {count} levels ({', '.join(blocks)}); "
                f"expected 1 to {count}, or -1 to -{count} from the last."
            )
        if self.level_weights and len(self.level_weights) != len(levels):
            raise ConfigError(
                f"Got {len(self.level_weights)} level_weights for a network of {len(levels)} "
                "levels, expected one a level."
            )
        return levels

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 in self.levels:
            raise ConfigError(f"Got levels {self.levels}; 1 is the first level, -1 the last.")
        if self.level_weights and self.levels and len(self.level_weights) != len(self.levels):
            raise ConfigError(
                f"Got {len(self.level_weights)} level_weights for {len(self.levels)} levels, "
                "expected one a level."
            )
        if not self.tau_teacher or len(self.tau_teacher) not in (1, len(self.levels)):
            raise ConfigError(
                f"Got {len(self.tau_teacher)} tau_teacher for {len(self.levels)} named levels, "
                "expected one, or one a level."
            )
        for stage in ("", "warmup_"):
            rate, optimizer = f"{stage}lr", f"{stage}optimizer"
            if getattr(self, rate) is None and getattr(self, optimizer) == "sgd":
                raise ConfigError(
                    f"Got {optimizer}='sgd' without {rate}; what fits a network is known for Adam "
                    f"alone: add {rate}=2e-5 (the paper's, on transformers) or what suits yours."
                )
        if self.replay_every and self.replay == "off":
            raise ConfigError(
                f"Got replay_every={self.replay_every} with replay='off', which would replay "
                "nothing; add replay='weighted'."
            )
        fewest = 2 if self.trigger == "level" else 1
        if not fewest <= self.window_minimum <= self.window:
            raise ConfigError(
                f"Got window_minimum={self.window_minimum} and window={self.window}, expected "
                f"{fewest} <= window_minimum <= window."
            )


_PAPER_VIT = {"optimizer": "sgd", "lr": 2e-5, "warmup_optimizer": "sgd", "warmup_lr": 2e-5}


@dataclass(frozen=True, kw_only=True)
class BeePaperConfig(BeeConfig):
    """The text read literally; every field the paper does not state carries our reading of it."""

    adapts: Literal["shallow", "all"] = "shallow"
    lr: NonNegative | None = 1e-3
    momentum: Share = 0.999
    levels: tuple[int, ...] = ()
    last_descriptor: Literal["block", "classifier"] = "block"
    inner_steps: CountOrZero = 2
    inner_entropy: bool = False
    views: Literal["one", "flip"] = "one"
    student_view: ViewName = "none"
    prediction_weight: NonNegative = 0.0
    replay: Literal["weighted", "average", "source", "off"] = "weighted"
    replay_share: Share = 1.0
    trigger: Literal["z-score", "level"] = "z-score"
    threshold: NonNegative = 1.5
    window: Count = 100
    window_minimum: Count = 20
    warmup_rounds: Count | None = 1
    warmup_view: ViewName = "none"
    warmup_leaves: Literal["average", "both"] = "both"
    warmup_blocks: Literal["adapting", "all"] = "adapting"
    warmup_lr: NonNegative | None = 1e-3
    published: ClassVar = {
        "imagenet-c": {"sample_queue": 640},
        "vit": _PAPER_VIT,
    }

    def resolve_levels(self, blocks: Sequence[str]) -> tuple[int, ...]:
        """Unless they are named, the last three: with the fourth from last the paper's error is
        1.4 points higher (Table 4)."""
        levels = super().resolve_levels(blocks)
        return levels if self.levels else levels[-3:]


@dataclass(frozen=True, kw_only=True)
class BeeRehearsalConfig(BeeConfig):
    """`bee` that goes on learning source images; its rates fit the network, whichever it is."""

    rehearsal_weight: NonNegative = 1.0
    rehearsal_images: Several = 50_000
    warmup_lr: NonNegative | None = None
