"""An adapter as an object: asked from threads, copied, pickled, its state taken and given back."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy
from threading import Thread
from typing import Any

import pytest
import torch

import bombus
from tiny import kinds_of, make_adapter, make_tiny, noise_batches, tree_hash

METHODS = sorted(bombus.known_methods())

every_method = pytest.mark.parametrize("method", METHODS)


def adapted(method: str) -> tuple[bombus.Adapter, list[torch.Tensor]]:
    adapter, batches = make_adapter(method, make_tiny(kinds_of(method)[0])), noise_batches(4)
    adapter(batches[0])
    return adapter, batches


# --- threads -----------------------------------------------------------------------------------


def in_a_thread(work: Any) -> Any:
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_each_thread_is_told_of_its_own_last_call() -> None:
    adapter, (x, *_) = bombus.adapt(make_tiny("batchnorm"), "tent"), noise_batches(1)
    bad = x.clone()
    bad[5] = float("nan")

    def ask() -> bombus.methods.base.Report:
        adapter(bad)
        return adapter.last

    assert list(in_a_thread(ask).rejected) == [5]
    assert list(adapter.last.rejected) == [5], "built here, asked there: the newest"
    adapter(x)
    assert list(in_a_thread(ask).rejected) == [5]
    assert not adapter.last.rejected, "what another thread gave is not told here"
    assert list(in_a_thread(lambda: adapter.last).rejected) == [5]
    for other in (copy(adapter), deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):  # noqa: S301
        assert list(other.last.rejected) == [5]
        other(x)
        assert not other.last.rejected


# --- copies ------------------------------------------------------------------------------------


@every_method
def test_copies_made_in_inference_mode_go_on_learning(method: str) -> None:
    adapter, (_, *batches) = adapted(method)
    data = pickle.dumps(adapter)
    with torch.inference_mode():
        copies = [deepcopy(adapter), pickle.loads(data), deepcopy(pickle.loads(data))]  # noqa: S301
    expected = [adapter(x) for x in batches]
    for other in copies:
        assert all(torch.equal(other(x), y) for x, y in zip(batches, expected, strict=True))
        other.reset()


def test_a_copy_knows_itself() -> None:
    """What points back at the adapter points at the copy in the copy."""
    adapter, (x, *_) = adapted("bee")
    adapter.mine = [adapter]  # type: ignore[attr-defined]
    data = pickle.dumps(adapter)
    with torch.inference_mode():
        for other in (deepcopy(adapter), pickle.loads(data)):  # noqa: S301
            assert other.mine[0] is other
            other(x)


# --- state -------------------------------------------------------------------------------------


@every_method
def test_a_state_that_was_taken_is_a_way_back(method: str) -> None:
    adapter, batches = adapted(method)
    state = adapter.state_dict()
    before = tree_hash(state)
    expected = [adapter(x) for x in batches]
    assert tree_hash(state) == before
    adapter.load_state_dict(state)
    assert tree_hash(adapter.state_dict()) == before
    assert all(torch.equal(adapter(x), y) for x, y in zip(batches, expected, strict=True))
    with torch.inference_mode():
        state = adapter.state_dict()
    assert not any(t.is_inference() for t in state.get("model", {}).values())


# --- what only a network has -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["to", "cuda", "eval", "train", "parameters", "half"])
def test_a_network_s_names_are_answered_in_a_sentence(name: str) -> None:
    adapter, _ = adapted("tent")
    with pytest.raises(
        AttributeError, match=f"^An adapter is no nn.Module and has no '{name}'; "
    ) as e:
        getattr(adapter, name)
    assert "\n" not in str(e.value)
    assert not hasattr(adapter, name)


def test_other_names_are_answered_as_ever() -> None:
    adapter, _ = adapted("tent")
    for name in ("no_such_name", "_modules", "__len__"):
        with pytest.raises(AttributeError, match=f"^'Tent' object has no attribute '{name}'$"):
            getattr(adapter, name)
