"""BEE: a mean teacher that follows a multi-level consistency loss, and may replay old selves.

Yang, Wen, Ma, Xu, Learn Faster and Remember More: Balancing Exploration and Exploitation for
Continual Test-time Adaptation, 2025, https://arxiv.org/abs/2508.12643; no code published.

`bee-paper` is Algorithm 1 read literally, `bee` what works best here, `bee-rehearsal` the same with
source images kept beside the stream; see docs/bee.md.
Student and teacher are one network: what does not adapt exists once, the teacher is a second set
of the parameters that do, which the network is called with, and so is every anchor.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bombus.backbones.blocks import block_parameters, find_blocks
from bombus.data.augment import VIEWS
from bombus.data.labelled import LabelledImages
from bombus.data.queue import SampleQueue
from bombus.losses.entropy import softmax_entropy
from bombus.methods import register
from bombus.methods._anchors import AnchorPool, flatten, on_host, replay
from bombus.methods._bee_config import BeeConfig, BeePaperConfig, BeeRehearsalConfig
from bombus.methods._bursts import answer_to_a_burst
from bombus.methods._codebooks import Codebooks, draw_codes, usable
from bombus.methods._consistency import multilevel_loss
from bombus.methods._mean_teacher import Gradients, require_colour
from bombus.methods._norm import source_statistics, use_batch_statistics
from bombus.methods._optim import apply_gradients, fitting_rate, make_optimizer
from bombus.methods._passes import Pass, Passes
from bombus.methods._rehearsal import with_rehearsal
from bombus.methods._shift import shift_detector
from bombus.methods._state import Weights
from bombus.methods._teacher import move_towards
from bombus.methods._warmup import look_into_the_mirror, shallow_blocks, warm_up
from bombus.methods._warmup_file import trained_parameters
from bombus.methods.base import Adapter, Source

# By which part of itself the median tensor moves in a step, where no rate is given.
FITTING = 0.0083
WARMUP_FITTING = 0.0183


@register("bee")
class Bee(Adapter):
    Config = BeeConfig
    needs = "samples"
    source_optional = True
    reads_files = True
    stateful = (
        "model", "teacher", "codebooks", "optimizer", "queue", "anchors", "shift", "batches",
    )  # fmt: skip
    prepared = ("deep", "rehearsal")

    def setup(self) -> None:
        config: BeeConfig = self.config
        views = ["student_view", "warmup_view"]
        if config.rehearsal_weight:
            views.append("rehearsal_view")
        if any(getattr(config, view) != "none" for view in views):
            remedy = " and ".join(f'{view}="none"' for view in views)
            require_colour(self.input, self.name, f"set {remedy}")
        use_batch_statistics(self.model)
        self.blocks = find_blocks(self.model, config.blocks or None)
        self.levels = config.resolve_levels(self.blocks)
        adapting = self.blocks if config.adapts == "all" else shallow_blocks(self.blocks)
        self.adapted = block_parameters(self.model, config.shallow or adapting)
        for parameter in self.adapted.values():
            parameter.requires_grad_(True)
        self.parameters = list(self.adapted.values())
        self.teacher = {name: p.detach().clone() for name, p in self.adapted.items()}
        prepared = block_parameters(
            self.model, self.blocks if config.warmup_blocks == "all" else ()
        )
        self.deep = Weights({n: p for n, p in prepared.items() if n not in self.adapted})
        lr, warmup_lr = self._rates()
        self.config = config = replace(config, lr=lr, warmup_lr=warmup_lr)
        self.optimizer = make_optimizer(self.parameters, config.optimizer, lr)
        self.codebooks = Codebooks(config.feature_queue)
        self.queue = SampleQueue(config.sample_queue)
        # In the computer's memory, not the GPU's: a batch a step comes over.
        self.rehearsal = LabelledImages(
            config.rehearsal_images, torch.device("cpu"), megabytes=config.rehearsal_mb
        )
        size = sum(p.numel() * p.element_size() for p in self.parameters)
        self.anchors = AnchorPool(config.anchors, on_host=on_host(config, size))
        self.shift = shift_detector(config)
        self.batches = 0
        self.source_answers: dict[str, Any] | None = None
        self.passes = Passes(
            self.model,
            self.blocks,
            self.levels,
            read_classifier=config.last_descriptor == "classifier",
            mirrored=config.views == "flip",
            tokens=config.tokens,
        )

    def prepare(self, source: Source | None) -> None:
        if source is not None:
            warm_up(self, source)
            if why := self.rehearsal.cut_short:
                self.event("rehearsal cut short", reason=f"{why} (rehearsal_mb)")
            # The stream's draws are the same whether the warm-up was made now or read from a file.
            self.generator.manual_seed(self.config.seed)
        if self.config.replay != "off":
            self.anchors.store(flatten(self.parameters), protected=True)

    # Algorithm 1

    def step(self, x: Tensor) -> Tensor:
        if self._minds_bursts:
            logits, found = answer_to_a_burst(self, x)
            self.signal(concentration=found)
            if logits is not None:
                self.event("burst", reason="too few classes for the batch's statistics, not learnt")
                return logits
        begun = bool(self.codebooks)
        try:
            if not begun and not self._start_without_source(x):
                self.step_dropped()
                return self.answer(x)
            return self._learn(x)
        except BaseException:
            if not begun:  # half of the codes would break the next batch; it begins anew
                self.codebooks = Codebooks(self.config.feature_queue)
            raise

    def _learn(self, x: Tensor) -> Tensor:
        before = self.queue.capacity
        self.queue.push(x)
        held = len(self.queue)
        if (why := self.queue.cut_short) and self.queue.capacity < before:
            self.event("sample queue cut short", reason=why)
        try:
            with self.phase("inner"):
                for _ in range(self.config.inner_steps):
                    self._inner_step(len(x))
            with self.phase("outer"):
                logits, views = self._outer_step(x)
            with self.phase("replay"):
                self._exploit(views)
        except BaseException:  # images that the network fails on would do so again when drawn
            if len(self.queue) == held:
                self.queue.forget(len(x))
            raise
        self.batches += 1
        return logits

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1 and self.alone_is_too_few:
            with source_statistics(self.model):
                return self._predict(x)
        logits = answer_to_a_burst(self, x)[0] if self._minds_bursts else None
        return self._predict(x) if logits is None else logits

    @property
    def _minds_bursts(self) -> bool:
        """Without BatchNorm it is no matter who else is in the batch."""
        return self.config.bursts > 0 and self.alone_is_too_few

    def _inner_step(self, count: int) -> None:
        config: BeeConfig = self.config
        x = self.queue.draw(config.inner_batch or count, self.generator)
        views = self.passes.views(x)
        teacher = self.teach(views)
        student = self.passes(self._student_view(views))
        loss, _ = multilevel_loss(self, student, teacher)
        if config.inner_entropy and config.entropy_weight:
            y = self.passes.mean((student.logits + teacher.logits) / 2)
            loss = loss + config.entropy_weight * softmax_entropy(y).mean()
        self._apply(with_rehearsal(self, self._gradients(loss), count))
        self.follow()

    def _outer_step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        config: BeeConfig = self.config
        views = self.passes.views(x)
        teacher = self.teach(views)
        same_view = config.student_view == "none"
        with torch.set_grad_enabled(same_view or config.entropy_weight > 0):
            student = self.passes(views)
        prediction = self.passes.mean((student.logits + teacher.logits) / 2)  # Eq. 14
        seen = student
        if not same_view:
            seen = self.passes(self._student_view(views))
        loss, by_level = multilevel_loss(self, seen, teacher, reporting=True)
        entropy = softmax_entropy(prediction).mean()  # Eq. 15
        # Both gradients are taken at the same parameters, from the prediction that was given.
        gradients = self._gradients(loss, keep_graph=seen is student)
        lowering = self._gradients(entropy) if config.entropy_weight else ()
        applied = self._apply(with_rehearsal(self, gradients, len(x)))
        applied &= self._apply(tuple(config.entropy_weight * g for g in lowering))
        if applied:
            self.codebooks.remember(teacher.descriptors, len(x))
        else:  # one such image in either queue would spoil every later batch's targets
            self.queue.forget(len(x))
        self.follow()
        measured = {"mcr": loss.detach(), "entropy": entropy.detach(), **by_level}
        # One transfer from the GPU for all of them.
        numbers = torch.stack([value.float() for value in measured.values()]).tolist()
        self.signal(**dict(zip(measured, numbers, strict=True)))
        return prediction.detach(), views

    # The student's steps

    def follow(self) -> None:
        """Eq. 4: the teacher goes a little of the way to the student."""
        own = {**self.adapted, **self.deep.parameters}
        fast = (own[name] for name in self.teacher)
        move_towards(self.teacher.values(), fast, self.config.momentum)

    def _gradients(self, loss: Tensor, *, keep_graph: bool = False) -> tuple[Tensor, ...]:
        if not loss.requires_grad:  # every part of it is switched off
            return ()
        # A parameter in a block need not take part: then it stays as it is.
        return torch.autograd.grad(
            loss, self.parameters, retain_graph=keep_graph, materialize_grads=True
        )

    def _apply(self, gradients: Gradients) -> bool:
        applied = not gradients or apply_gradients(gradients, self.parameters, self.optimizer)
        if not applied:
            self.step_dropped()
        return applied

    # Complementary anchor replay

    def _exploit(self, views: Tensor) -> None:
        config: BeeConfig = self.config
        shifted = self.shift.observe(self._signals["mcr"])
        self.signal(z=self.shift.z)
        if shifted:  # worth knowing, whatever is done about it
            self.event("shift", z=round(self.shift.z, 3))
        if config.replay == "off":
            return
        if self.batches and self.batches % config.anchor_period == 0:
            self.anchors.store(flatten(self.parameters))
        if config.replay_every and math.isfinite(self._signals["mcr"]):
            shifted = self.batches > 0 and self.batches % config.replay_every == 0
        if shifted:
            replay(self, views)

    # Passes

    def teach(self, views: Tensor) -> Pass:
        with torch.no_grad():
            return self.passes(views, self.teacher)

    def _student_view(self, views: Tensor) -> Tensor:
        return self.view(VIEWS[self.config.student_view], views)

    def _predict(self, x: Tensor) -> Tensor:
        views = self.passes.views(x)
        both = self.passes(views).logits + self.teach(views).logits
        return self.passes.mean(both / 2)

    # Beginnings

    def _rates(self) -> tuple[float, float]:
        """Of the stream and of the warm-up: as given, or what fits the tensors they are for."""
        config: BeeConfig = self.config
        part = FITTING * (2 if config.rehearsal_weight else 1)
        lr, warmup_lr = config.lr, config.warmup_lr
        if lr is None:
            lr = fitting_rate(self.parameters, part, config.optimizer)
        if warmup_lr is None:
            trained = trained_parameters(self).values()
            warmup_lr = fitting_rate(trained, WARMUP_FITTING, config.warmup_optimizer)
        return lr, warmup_lr

    def _start_without_source(self, x: Tensor) -> bool:
        """Codes from the frozen model's view of the first batch: weaker, and said so.

        False, and nothing begun, where it answers no image of the batch with finite numbers.
        """
        start = self.teach(self.passes.views(x))
        found = {level: usable(start.descriptors[level]) for level in self.levels}
        if not all(map(len, found.values())):
            return False
        for level, descriptors in found.items():
            codes = draw_codes(descriptors, self.config.codes, self.generator)
            self.codebooks.start(level, codes)
        look_into_the_mirror(self, start.logits, too_many=0.6)  # of corrupted images more differ
        self.event("source-free", reason="no source data: codes drawn from the first batch")
        return True


@register("bee-paper")
class BeePaper(Bee):
    """BEE, its paper read literally: the shallow blocks adapt fast, the last three levels count."""

    Config = BeePaperConfig
    cheap = False


@register("bee-rehearsal")
class BeeRehearsal(Bee):
    """BEE with source images beside the stream, as RMT has them, but without their labels."""

    Config = BeeRehearsalConfig
    source_optional = False
    cheap = False
