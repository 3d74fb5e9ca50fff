"""A call that fails half way: what it leaves behind harms no later one, and is told of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bombus
from bombus.backbones.wide_resnet import WideResNet
from bombus.methods.bee import Bee
from tiny import make_adapter, make_tiny, noise_batches

POISON = 0.123  # of an image's first pixel


class Fails(WideResNet):
    """Raises on a poisoned image, in one forward of many or in each."""

    error: BaseException = RuntimeError("no such image")
    patience = 0  # forwards that it lets a poisoned image pass

    def forward(self, x: Tensor) -> Tensor:
        if (x[:, 0, 0, 0] == POISON).any():
            self.patience -= 1
            if self.patience < 0:
                raise self.error
        return super().forward(x)


def poisoned(x: Tensor) -> Tensor:
    x = x.clone()
    x[3, 0, 0, 0] = POISON
    return x


def failing(method: str, *, patience: int, **facts: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = Fails(10, 1, num_classes=5).eval()
    for name, value in facts.items():
        setattr(model, name, value)
    adapter: Any = make_adapter(method, model)
    adapter.model.patience = patience
    return adapter


@pytest.mark.parametrize("patience", range(3))
@pytest.mark.parametrize(
    "error", [RuntimeError("mine"), torch.OutOfMemoryError("none left"), KeyboardInterrupt()]
)
def test_images_that_the_network_fails_on_are_not_drawn_again(
    patience: int, error: BaseException
) -> None:
    adapter = failing("bee", patience=patience, error=error)
    first, bad, *batches = noise_batches(6)
    adapter(first)
    held = len(adapter.queue)
    with pytest.raises(type(error)):
        adapter(poisoned(bad))
    assert len(adapter.queue) == held
    for x in batches:
        assert adapter(x).isfinite().all()
        assert adapter.last.samples == len(x)


def test_a_dropped_step_that_then_fails_takes_no_good_images_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter: Any = make_adapter("bee", make_tiny("batchnorm"))
    first, second = noise_batches(2)
    adapter(first)
    held = len(adapter.queue)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bee, "_apply", lambda *_: False)
    monkeypatch.setattr(Bee, "_exploit", fail)
    with pytest.raises(KeyboardInterrupt):
        adapter(second)
    assert len(adapter.queue) == held


@pytest.mark.parametrize("broken", ["_inner_step", "_outer_step", "_exploit"])
def test_a_first_batch_that_fails_is_no_beginning(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = bombus.adapt(make_tiny("batchnorm"), "bee")
    bad, good = noise_batches(2)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Bee, broken, fail)
        with pytest.raises(KeyboardInterrupt):
            adapter(bad)
    assert not adapter.codebooks  # type: ignore[attr-defined]
    assert not len(adapter.queue)  # type: ignore[attr-defined]
    assert adapter(good).isfinite().all()
    assert "source-free" in [event["event"] for event in adapter.last.events]


@pytest.mark.parametrize("fails", ["step", "logits"])
def test_what_the_preparation_found_is_told_by_the_first_call_that_succeeds(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = bombus.adapt(make_tiny("batchnorm"), "cotta", augmentations=2, lr=1.0)
    (told,) = adapter.last.events
    assert told["event"] == "long steps"
    x, kind = noise_batches(1)[0], type(adapter)
    original = kind.step

    def fail(self: Any, x: Tensor) -> Tensor:
        self.event("half a step")
        if fails == "logits":
            return original(self, x)[:1]
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(kind, "step", fail)
            with pytest.raises((KeyboardInterrupt, bombus.BombusError)):
                adapter(x)
    adapter(x)
    assert adapter.last.events == (told,)
    adapter(x)
    assert told not in adapter.last.events
