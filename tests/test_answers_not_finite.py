"""Networks that answer some images with NaN: those teach nothing, and spoil nothing for later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.backbones.prototypes import class_prototypes
from bombus.backbones.selection import score_blocks
from bombus.errors import DataError
from bombus.methods.bee import Bee
from tiny import GroupNormNet, make_adapter, make_tiny, noise_batches, tree_hash


class Blinded(nn.Conv2d):
    """Bright images come out as NaN, as where a root or a division goes wrong."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.mean((1, 2, 3), keepdim=True) > 0.9
        return torch.where(bright, torch.nan, super().forward(x))


class Fragile(GroupNormNet):
    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            super().__init__()
            self.stem = Blinded(3, 8, 3, padding=1)


def blinding(x: Tensor, place: int) -> Tensor:
    x = x.clone()
    x[place] = 1.0
    return x


def events(adapter: Any) -> list[str]:
    return [event["event"] for event in adapter.last.events]


def all_finite(tree: Any) -> bool:
    if isinstance(tree, Tensor):
        return bool(tree.isfinite().all())
    if isinstance(tree, dict | list | tuple):
        return all(map(all_finite, tree.values() if isinstance(tree, dict) else tree))
    return True


@pytest.fixture(autouse=True)
def own_cache_of_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("network", [Fragile, lambda: make_tiny("batchnorm")])
def test_bee_learns_nothing_of_such_a_batch_and_goes_on(network: Any) -> None:
    model, batches = network(), noise_batches(6)
    bee = bombus.adapt(model, "bee", source=batches[:2], codes=16)
    bee(batches[2])
    images, known = len(bee.queue), tree_hash(bee.codebooks.queue)
    if isinstance(model, Fragile):
        answers = bee(blinding(batches[3], 5))
        assert answers.isfinite().all(1).tolist() == [i != 5 for i in range(8)]
    else:  # a network whose activations overflow: then so does every batch statistic
        hook = bee.model.block2.register_forward_hook(lambda _m, _i, out: out * torch.inf)
        assert not bee(batches[3]).isfinite().any()
        hook.remove()
    assert "step dropped" in events(bee)
    assert len(bee.queue) == images
    assert tree_hash(bee.codebooks.queue) == known
    assert all_finite(bee.state_dict())
    for x in batches[4:]:
        assert bee(x).isfinite().all()
        assert "step dropped" not in events(bee)


def test_bee_without_source_begins_with_the_first_batch_that_is_answered() -> None:
    patient, spared = (bombus.adapt(Fragile(), "bee", codes=16) for _ in range(2))
    before = tree_hash(patient.state_dict())
    assert not patient(torch.ones(8, 3, 16, 16)).isfinite().any()
    assert events(patient) == ["step dropped"]
    assert tree_hash(patient.state_dict()) == before
    for x in noise_batches(3):
        assert torch.equal(patient(x), spared(x))
        assert events(patient) == events(spared)


def test_bees_first_codes_are_drawn_from_images_that_are_answered() -> None:
    bee = bombus.adapt(Fragile(), "bee", codes=16)
    bee(blinding(noise_batches(1)[0], 0))
    assert events(bee)[0] == "source-free"
    assert all_finite(bee.codebooks.state_dict())


def test_no_replay_is_weighed_by_answers_that_are_not_finite() -> None:
    rhythm: dict[str, Any] = {"replay": "weighted", "replay_every": 2, "anchor_period": 1}
    bee = bombus.adapt(Fragile(), "bee", codes=16, **rhythm)
    seen = []
    for number, x in enumerate(noise_batches(5)):
        bee(blinding(x, 0) if number == 2 else x)
        seen.append("replay" in events(bee))
    assert seen == [False, False, False, False, True]
    assert all_finite(bee.state_dict())


@pytest.mark.parametrize("method", ["bee", "bee-paper", "bee-rehearsal"])
def test_preparation_passes_over_such_images(method: str) -> None:
    batches = noise_batches(5)
    source = [batches[0], blinding(batches[1], 3), batches[2]]
    small: dict[str, Any] = {"codes": 8, "warmup_images": 24, "warmup_rounds": 1}
    bee = bombus.adapt(Fragile(), method, source=source, **small)
    assert all_finite(bee.state_dict())
    if method == "bee-rehearsal":
        kept, _ = bee.rehearsal.draw(99, torch.Generator(), torch.device("cpu"))
        assert len(kept) == 23
        assert not (kept == 1).flatten(1).all(1).any()
    assert bee(batches[3]).isfinite().all()
    (told,) = (e for e in bee.last.events if e["event"] == "preparation steps dropped")
    assert told["steps"] == 1
    assert "1 of 3 steps had gradients that are not finite" in told["reason"]


def test_steps_are_counted_that_were_made_not_those_that_were_planned() -> None:
    """An iterator may end long before `warmup_images`."""
    bright = torch.ones(8, 3, 16, 16)
    few = iter([*noise_batches(1), bright])
    config = Bee.Config(codes=4, warmup_images=800)
    bee = Bee(Fragile(), config, source=few)
    dropped, short = bee.last.events
    assert "1 of 2 steps" in dropped["reason"]
    assert "2 of 100 steps" in short["reason"]


@pytest.mark.parametrize("method", ["bee", "bee-rehearsal", "rmt", "rmt-free", "dplot", "obao"])
def test_a_source_of_which_nothing_is_answered_is_refused(method: str) -> None:
    bright = torch.ones(8, 3, 16, 16)
    labels = torch.arange(8) % 5
    labelled = bombus.known_methods()[method].needs == "labels"
    with pytest.raises(DataError, match="finite") as caught:
        bombus.adapt(Fragile(), method, source=[(bright, labels) if labelled else bright] * 2)
    assert "\n" not in str(caught.value)


def test_class_prototypes_are_of_images_with_finite_features() -> None:
    (x,), y = noise_batches(1), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
    left = torch.tensor([i != 3 for i in range(8)])
    means, sizes = class_prototypes(Fragile().eval(), [(blinding(x, 3), y)])
    expected, those = class_prototypes(Fragile().eval(), [(x[left], y[left])])
    torch.testing.assert_close(means, expected)
    assert sizes.tolist() == those.tolist() == [2, 2, 2, 0, 1]


def test_a_block_whose_training_blinds_the_network_diverged() -> None:
    """Even where only some images are lost by it: the classes left are not those there were."""
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]

    class Brittle(GroupNormNet):
        """A first feature that leaves the place it had gives NaN for a class of images."""

        def __init__(self) -> None:
            with torch.random.fork_rng():
                torch.manual_seed(7)
                super().__init__()
            self.known = self.stem.bias[0].item()

        def forward(self, x: Tensor) -> Tensor:
            moved = self.stem.bias[0] != self.known
            lost = moved & (torch.arange(len(x)) < 1)
            x = self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3))
            logits: Tensor = self.head(torch.where(lost[:, None], torch.nan, x))
            return logits

    (stem, layer) = score_blocks(Brittle(), source, blocks=["stem", "layer3"], lr=0.01)
    assert stem.diverged
    assert stem.similarity == -1
    assert not layer.diverged


@pytest.mark.parametrize("method", sorted(bombus.known_methods()))
def test_one_such_batch_is_the_end_of_no_method(method: str) -> None:
    """The images are finite, so that the gate has nothing to say; what they are answered is not."""
    kind = "vit" if bombus.known_methods()[method].transformers_only else "groupnorm"
    model = Fragile() if kind == "groupnorm" else make_tiny("vit")
    if kind == "vit":
        spoil(model.patch_embed)
    adapter = make_adapter(method, model)
    batches = noise_batches(5)
    adapter(batches[0])
    adapter(blinding(batches[1], 2))
    for x in batches[2:]:
        assert adapter(x).isfinite().all()


def spoil(layer: Any) -> None:
    layer.register_forward_hook(
        lambda _layer, given, out: torch.where(
            (given[0].mean((1, 2, 3)) > 0.9).view(-1, *[1] * (out.dim() - 1)), torch.nan, out
        )
    )
