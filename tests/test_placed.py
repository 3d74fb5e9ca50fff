"""Where a saved adapter's parts lie when it is read again; "meta" stands for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus import checkpoint
from bombus.methods._optim import apply_gradients, make_optimizer
from bombus.methods._state import placed
from tiny import make_tiny, noise_batches

GPU = torch.device("meta")


def devices(tree: Any) -> set[str]:
    if isinstance(tree, Tensor):
        return {tree.device.type}
    if isinstance(tree, dict):
        tree = list(tree.values())
    return set().union(*map(devices, tree)) if isinstance(tree, list | tuple) else set()


def saved(folder: Path) -> Any:
    source = noise_batches(4)
    adapter = bombus.adapt(
        make_tiny("batchnorm"), "bee-rehearsal", source=source, replay="source",
        anchor_storage="host", optimizer="adam", student_view="none", warmup_rounds=1,
    )  # fmt: skip
    for x in noise_batches(3):
        adapter(x)
    adapter.save(folder)
    return adapter


def test_each_part_goes_to_where_it_is_kept(tmp_path: Path) -> None:
    adapter = saved(tmp_path)
    state, _ = checkpoint.load_state(tmp_path)
    parts = {**state["now"], **state["prepared"]}
    found = {
        name: devices(placed(packed, getattr(adapter, name), GPU)) for name, packed in parts.items()
    }
    there = {name for name, kinds in found.items() if kinds == {GPU.type}}
    assert there == {"teacher", "codebooks", "queue"}
    # Copied into place: a network's; kept on the CPU: steps, images to rehearse, a host's anchors.
    here = {name for name, kinds in found.items() if kinds == {"cpu"}}
    assert here == {"model", "optimizer", "generator", "rehearsal", "anchors"}


def test_reading_sends_nothing_over_that_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = saved(tmp_path)
    original = checkpoint.load_state
    monkeypatch.setattr(checkpoint, "load_state", lambda folder: original(folder))
    loaded: Any = bombus.load(tmp_path, make_tiny("batchnorm"))
    (x,) = noise_batches(1)
    assert torch.equal(loaded(x), adapter(x))
    loaded.reset(), adapter.reset()
    assert torch.equal(loaded(x), adapter(x))


def test_adam_counts_on_the_cpu_what_it_has_of_a_gpu_there() -> None:
    """As in torch's own fresh optimiser: one count on the GPU is one wait a parameter."""
    here = nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer([here], "adam", 1e-3)
    apply_gradients([torch.ones(3)], [here], optimizer)
    there = nn.Parameter(torch.zeros(3, device=GPU))
    other = make_optimizer([there], "adam", 1e-3)
    other.load_state_dict(placed(optimizer.state_dict(), other, GPU))
    state = other.state[there]
    assert state["step"].device.type == "cpu"
    assert state["exp_avg"].device == state["exp_avg_sq"].device == GPU
