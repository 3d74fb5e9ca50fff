"""A user's network as adapters take it: bare, copied, tried out, and answering with logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bombus.backbones.blocks import logits_of
from bombus.errors import BombusError, ConfigError, InputError
from bombus.methods._norm import source_statistics
from bombus.metrics.passes import uncounted


def bare(model: nn.Module) -> nn.Module:
    """The network itself where it was wrapped to be fast: there its modules have their names.

    What is adapted is compiled no longer, its code changes with the modes of its layers, and runs
    on one device, where its state is.
    """
    if not isinstance(model, nn.Module):
        remedy = ""
        if isinstance(model, Mapping):  # its weights alone, as torch.load gives them
            remedy = "; build the network and give it these by load_state_dict"
        if isinstance(model, type):
            remedy = f"; {model.__name__} is a class: build one and load its weights"
        given = repr(model) if isinstance(model, str | None) else f"a {type(model).__name__}"
        raise ConfigError(
            f"Got {given:.60} as the model, expected a trained classifier, a torch.nn.Module"
            f"{remedy}."
        )
    original = getattr(model, "_orig_mod", model)
    network = original if isinstance(original, nn.Module) else model
    while isinstance(network, nn.DataParallel | DistributedDataParallel):
        network = network.module
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
    for name, module in network.named_modules():
        replaced = vars(module).get("forward")
        if replaced is not None and getattr(replaced, "__self__", None) is not module:
            where = f"{name or type(network).__name__}.forward"
            raise ConfigError(
                f"{where} was replaced by a function, which a copy of the network would share "
                "with the original; give it as a method (a subclass, or types.MethodType)."
            )
    copy = deepcopy(network).eval().requires_grad_(False)
    copy.register_forward_hook(_give_logits)
    return copy


def try_out(network: nn.Module, x: Tensor) -> None:
    """One forward of two of the images, or one sentence that says why not; nothing else happens.

    BatchNorm keeps its statistics, no generator moves on, and no method is charged with the pass.
    """
    name, two = type(network).__name__, x[:2].clone()
    devices = [x.device] if x.is_cuda else []
    generators, statistics = torch.random.fork_rng(devices), source_statistics(network)
    with torch.no_grad(), generators, statistics, uncounted():
        try:
            network(two)
        except (BombusError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InputError(
                f"{name} does not take images of shape {tuple(x.shape[1:])} ({reason}); give "
                "images as in its training."
            ) from error
    if not torch.equal(two, x[:2]):
        raise ConfigError(
            f"{name} changes its input in place, which would change your images, and again in "
            "every pass; write x = (x - mean) / std where it has x.sub_(mean).div_(std)."
        )


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
