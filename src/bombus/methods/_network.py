"""A user's network as adapters take it: bare, copied, tried out, and answering with logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from bombus.backbones.blocks import logits_of
from bombus.errors import ConfigError
from bombus.methods._norm import source_statistics
from bombus.metrics.passes import uncounted


def bare(model: nn.Module) -> nn.Module:
    """The network itself where torch.compile has wrapped it: there its modules have their names.

    What is adapted is compiled no longer: its code changes with the modes of its layers.
    """
    original = getattr(model, "_orig_mod", model)
    network = original if isinstance(original, nn.Module) else model
    if isinstance(network, torch.jit.ScriptModule):
        raise ConfigError(
            "Got a TorchScript model, which cannot be copied and trained; pass the nn.Module that "
            "it was made from."
        )
    if next(network.parameters(), None) is None:
        raise ConfigError(
            f"{type(network).__name__} has no parameters, expected a trained classifier; keep its "
            "weights as nn.Parameters, or pass the network that holds them."
        )
    return network


def own_copy(network: nn.Module) -> nn.Module:
    """A frozen copy that answers with its logits alone, and so do all copies of it."""
    copy = deepcopy(network).eval().requires_grad_(False)
    copy.register_forward_hook(_give_logits)
    return copy


def try_out(network: nn.Module, x: Tensor) -> None:
    """One forward of two of the images, or an error of the network itself; nothing else happens.

    BatchNorm keeps its statistics, no generator moves on, and no method is charged with the pass.
    """
    devices = [x.device] if x.is_cuda else []
    generators, statistics = torch.random.fork_rng(devices), source_statistics(network)
    with torch.no_grad(), generators, statistics, uncounted():
        network(x[:2])


@contextmanager
def uncached_autocast() -> Iterator[None]:
    """Within, autocast keeps no low copies of weights: after a step they are those of before."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _give_logits(network: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
    return logits_of(output, network, len(inputs[0]))
