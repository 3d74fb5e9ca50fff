"""Passes are counted as they happen: on networks of every kind, and as the papers count them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bombus
from bombus.metrics.passes import PassCounter
from tiny import kinds_of, make_adapter, make_tiny, noise_batches

# Forwards and backwards a batch where every sample is kept; two views are two.
EXPECTED = {
    "source": (1, 0),
    "bn": (1, 0),
    "tent": (1, 1),
    "eata": (1, 1),
    "rdumb": (1, 1),
    "adacontrast": (5, 1),
    "rmt": (4, 3),
    "rmt-free": (3, 2),
    "dplot": (4, 4),
    "vdp": (2, 1),
    "vida": (4, 1),  # of 2 views, where the method has 10
    "continual-mae": (4, 1),  # of 2 views, where the method has 10
    "bee-paper": (6, 4),
    "bee": (10, 6),
    "bee-rehearsal": (12, 8),
}


@pytest.mark.parametrize(
    ("method", "kind"), [(method, kind) for method in EXPECTED for kind in kinds_of(method)]
)
def test_as_the_papers_count(method: str, kind: str) -> None:
    adapter = make_adapter(method, make_tiny(kind))
    counter = PassCounter(adapter.model)
    for x in noise_batches(3):
        with counter.counting() as passes:
            adapter(x)
        assert (passes.entered / len(x), passes.returned / len(x)) == EXPECTED[method]


def test_every_method_with_a_fixed_cost_is_here() -> None:
    vary = {"sar", "cotta", "obao", "roid"}  # by what they keep, or by how sure the source is
    assert set(bombus.known_methods()) - vary == set(EXPECTED)


def test_a_graph_gone_through_twice_counts_twice_and_no_graph_not_at_all() -> None:
    model = make_tiny("batchnorm")
    x = noise_batches(1)[0]
    first = next(model.parameters())
    counter = PassCounter(model)
    with counter.counting():
        logits = model(x)
        torch.autograd.grad(logits.sum(), first, retain_graph=True)
        torch.autograd.grad(logits.square().sum(), first)
        with torch.no_grad():
            model(x[:4])
    assert (counter.entered, counter.returned) == (12, 16)
    model(x)
    assert counter.entered == 12  # the hooks are gone


def test_a_network_without_blocks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))
    counter = PassCounter(model)
    with counter.counting():
        torch.autograd.grad(model(noise_batches(1)[0]).sum(), list(model.parameters()))
    assert (counter.entered, counter.returned) == (8, 8)
