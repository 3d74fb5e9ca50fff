"""Anything that changes over time, as a tree of dicts, lists, tensors and numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bombus.errors import CheckpointError


def pack(value: Any) -> Any:
    """The state of one attribute: a module, optimiser, generator, object with state, or plain data.

    Of a module only what can change is state: trainable parameters and buffers.
    """
    if isinstance(value, nn.Module):
        changing = {k: p.detach() for k, p in value.named_parameters() if p.requires_grad}
        # In a state dict of its own are all but the buffers that are made anew when needed.
        kept = value.state_dict(keep_vars=True)
        return {**changing, **{k: b for k, b in value.named_buffers() if k in kept}}
    if isinstance(value, torch.Generator):
        return value.get_state()
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return value


def unpack(packed: Any, target: Any, name: str) -> Any:
    """Put a packed state into the object it came from; returns what the attribute should be."""
    if isinstance(target, nn.Module):
        _fill(packed, pack(target), name)
        return target
    if isinstance(target, torch.Generator):
        target.set_state(packed.cpu())
        return target
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(packed)
        return target
    return laid_out(packed, target)


def laid_out(packed: Any, like: Any) -> Any:
    """The same tree, its tensors in memory as those of `like`: files know of no channels_last,
    and a convolution's last bits depend on it."""
    if isinstance(packed, Tensor) and isinstance(like, Tensor):
        if packed.shape == like.shape and packed.stride() != like.stride():
            return torch.empty_like(like, dtype=packed.dtype, device=packed.device).copy_(packed)
    elif isinstance(packed, dict) and isinstance(like, dict):
        return {key: laid_out(value, like.get(key)) for key, value in packed.items()}
    return packed


def placed(packed: Any, target: Any, device: torch.device) -> Any:
    """A state as read from a file, on the CPU, brought to where its target keeps it.

    Modules, generators and optimisers see to that themselves: Adam counts its steps on the CPU, and
    on a GPU would wait for each count. Another object says its `device`, or that it is `on_host`;
    all else lies on the network's.
    """
    if isinstance(target, nn.Module | torch.Generator | torch.optim.Optimizer):
        return packed
    if hasattr(target, "load_state_dict"):
        host = getattr(target, "on_host", False)
        device = torch.device("cpu") if host else getattr(target, "device", device)
    return _moved(packed, device)


def _moved(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: _moved(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_moved(value, device) for value in tree)
    return tree


class Weights:
    """Frozen parameters that a preparation has changed: state of their own, filled in place."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.changed = False  # until then they are the source model's, and no state

    def state_dict(self) -> dict[str, Tensor]:
        return {k: p.detach() for k, p in self.parameters.items()} if self.changed else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.changed = bool(state)
        if state:
            _fill(state, {k: p.detach() for k, p in self.parameters.items()}, "weights")


def clone(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {k: clone(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(clone(v) for v in tree)
    return tree


def as_config(stored: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples, frozen configs have no lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}


def _fill(packed: Mapping[str, Tensor], current: Mapping[str, Tensor], name: str) -> None:
    differing = sorted(set(packed) ^ set(current))
    shapes = [k for k in packed if k in current and packed[k].shape != current[k].shape]
    if differing or shapes:
        raise CheckpointError(
            f"The saved {name} is of another network: it differs in "
            f"{', '.join((differing + shapes)[:3])} ({len(differing) + len(shapes)} tensors)."
        )
    for key, value in packed.items():
        current[key].copy_(value)
