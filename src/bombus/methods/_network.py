"""A user's network as adapters take it: bare, copied, tried out, and answering with logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pickle import PicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from bombus.backbones.blocks import inner_transformer, logits_of
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
    network = model
    while (inner := _inside(network)) is not None:
        network = inner
    if isinstance(network, torch.jit.ScriptModule):
        raise ConfigError(
            "Got a TorchScript model, which cannot be copied and trained; pass the nn.Module that "
            "it was made from."
        )
    if any(map(is_lazy, network.parameters())):
        raise ConfigError(
            f"{type(network).__name__} has lazy layers that have not seen an image, expected a "
            "trained classifier; call it once, and load its weights."
        )
    if next(network.parameters(), None) is None:
        raise ConfigError(
            f"{type(network).__name__} has no parameters, expected a trained classifier; keep its "
            "weights as nn.Parameters, or pass the network that holds them."
        )
    return network


def _inside(model: nn.Module) -> nn.Module | None:
    """What a wrapper wraps; None of a network itself."""
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    original = getattr(model, "_orig_mod", None)  # torch.compile's
    return original if isinstance(original, nn.Module) else None


def require_transformer(network: nn.Module, method: str) -> None:
    """For methods that need the inside of one, by the names that its parts have there."""
    inner, given = inner_transformer(network), type(network).__name__
    if inner is None:
        raise ConfigError(
            f"{method} works inside a vision transformer (patch_embed, blocks, norm), and {given} "
            "is none; choose another method (bombus list methods)."
        )
    if inner is not network:
        raise ConfigError(
            f"{method} works inside a vision transformer, and {given} only wraps one; give the "
            f"{type(inner).__name__} itself, normalise the images before, and say with "
            "input=bombus.Input(low=..., high=...) what range they then have."
        )


def own_copy(network: nn.Module) -> nn.Module:
    """A frozen copy that answers with its logits alone, and so do all copies of it."""
    for name, module in network.named_modules():
        replaced = vars(module).get("forward")
        if replaced is not None and getattr(replaced, "__self__", None) is not module:
            if _inside(module) is not None or isinstance(module, torch.jit.ScriptModule):
                raise ConfigError(
                    f"{name} was compiled by itself, and what is adapted cannot be; give the "
                    "network before its parts were compiled, and compile nothing."
                )
            where = f"{name or type(network).__name__}.forward"
            raise ConfigError(
                f"{where} was replaced by a function, which a copy of the network would share "
                "with the original; give it as a method (a subclass, or types.MethodType)."
            )
    try:
        copy = deepcopy(network)
    except RuntimeError as error:
        raise ConfigError(
            f"{type(network).__name__} cannot be copied: it keeps tensors of an earlier forward, "
            "as modules that store their features do, and torch.nn.utils.weight_norm and "
            "spectral_norm; call it once under torch.no_grad() before, or use those of "
            "torch.nn.utils.parametrizations."
        ) from error
    except (TypeError, PicklingError) as error:
        raise ConfigError(
            f"{type(network).__name__} cannot be copied ({str(error).rstrip('.')}): it holds "
            "something that has no copy, such as a lock, an open file or a log's handler; take "
            "that out of it before bombus.adapt."
        ) from error
    copy = copy.eval().requires_grad_(False)
    copy.register_forward_hook(_give_logits)
    return copy


def try_out(network: nn.Module, x: Tensor) -> None:
    """One forward of one or two images, or one sentence that says why not; nothing else happens.

    BatchNorm keeps its statistics, no generator moves on, and no method is charged with the pass.
    """
    name, two = type(network).__name__, x.clone()
    devices = [x.device] if x.is_cuda else []
    generators, statistics = torch.random.fork_rng(devices), source_statistics(network)
    with torch.no_grad(), generators, statistics, uncounted():
        try:
            network(two)
        except (BombusError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InputError(
                f"{name} does not take images of shape {tuple(x.shape[1:])} ({reason}); give "
                "images as in its training."
            ) from error
    if not torch.equal(two, x):
        raise ConfigError(
            f"{name} changes its input in place, which would change your images, and again in "
            "every pass; write x = (x - mean) / std where it has x.sub_(mean).div_(std)."
        )


def checked(answer: Any, samples: int, method: type) -> Tensor:
    """What a method's author returns, before anybody is misled by it."""
    if not isinstance(answer, Tensor) or answer.dim() != 2 or len(answer) != samples:
        shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(
            f"{method.__name__}.step answered {samples} images with {shape}, expected their "
            "logits, (N, classes); mend the method."
        )
    return answer.detach()


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
