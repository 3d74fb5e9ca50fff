"""Any network, ours or the user's, seen as an ordered list of named blocks.

A block is a module path ("layer1", "encoder.layers.3") or a run of numbered ones ("blocks.0-3":
blocks.0 to blocks.3 one after the other, whose output is the last one's).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook

from bombus.backbones.input import Input
from bombus.backbones.stages import find_stages
from bombus.errors import ConfigError

# What layers of attention are called: by timm and torchvision, and by Hugging Face.
_ATTENTION = ({"qkv"}, {"query", "key", "value"}, {"q_proj", "k_proj", "v_proj"})
_RUN = re.compile(r"(?P<prefix>.*?)(?P<first>\d+)-(?P<last>\d+)")


class Backbone(nn.Module):
    """What our networks promise beyond nn.Module: a name, their input, their blocks."""

    unused_weights: tuple[str, ...] = ()  # key prefixes of published files nobody needs

    def __init__(
        self, *, name: str, num_classes: int, input: Input, block_names: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.name = name
        self.num_classes = num_classes
        self.input = input
        self.block_names = block_names


def is_transformer(model: nn.Module) -> bool:
    """A vision transformer of ours or one laid out like it, as timm's are."""
    return all(hasattr(model, part) for part in ("patch_embed", "pos_embed", "blocks", "norm"))


def inner_transformer(model: nn.Module) -> nn.Module | None:
    """The vision transformer that a model is, or wraps: behind a module that normalises, say."""
    return next(filter(is_transformer, model.modules()), None)


def family_of(model: nn.Module) -> Literal["cnn", "vit"]:
    """Whose settings suit a network: "vit" for transformers, whatever their modules are called.

    One attention alone may be a CNN's pooling, and with BatchNorm it is a CNN in the main.
    """
    modules = list(model.modules())
    if any(map(is_transformer, modules)):
        return "vit"
    batch_norm = any(isinstance(m, _BatchNorm) for m in modules)
    return "vit" if sum(map(_attends, modules)) > 1 and not batch_norm else "cnn"


def _attends(module: nn.Module) -> bool:
    layers = {name for name, _ in module.named_children()}
    return isinstance(module, nn.MultiheadAttention) or any(map(layers.issuperset, _ATTENTION))


def logits_of(output: Any, network: nn.Module, images: int) -> Tensor:
    """What a network answered, if that is one tensor (N, classes) of floats; else refused."""
    logits = getattr(output, "logits", output)
    if isinstance(logits, Tensor):
        if logits.is_floating_point() and logits.ndim == 2 and len(logits) == images:
            return logits
        dtype = str(logits.dtype).removeprefix("torch.")
        came = f"a tensor of shape {tuple(logits.shape)} and type {dtype}"
    else:
        came = f"a {type(logits).__name__}"
    if isinstance(logits, Mapping):
        came += f" of {', '.join(map(repr, logits)) or 'nothing'}"
    elif isinstance(logits, tuple | list):
        came += f" of {len(logits)}"
    raise ConfigError(
        f"{type(network).__name__} answered {images} images with {came}, expected one tensor of "
        "logits (N, classes); wrap the network in a module whose forward returns its logits."
    )


def find_blocks(model: nn.Module, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The given names, checked; else the network's own `block_names`; else its stages as found."""
    if names is not None:
        blocks = tuple([names] if isinstance(names, str) else names)
        if not blocks:
            raise ConfigError("An empty list of blocks was given; name at least one.")
        if twice := [name for name in blocks if blocks.count(name) > 1]:
            raise ConfigError(f"The block {twice[0]!r} was given twice.")
    else:
        blocks = find_stages(model)
    if not blocks:
        top = ", ".join(name for name, _ in model.named_children()) or "none"
        raise ConfigError(
            f"No stages were found in {type(model).__name__}; name the modules that are its blocks "
            f'in the setting blocks, such as blocks=("name", "name") (at the top there are: {top}).'
        )
    for name in blocks:
        members_of(model, name)
    return blocks


Called = tuple[nn.Linear, Tensor, Tensor]  # a linear layer, what it read and what it gave


@dataclass(frozen=True)
class Seen:
    """One forward, looked into: the logits, every block's output, what the classifier read."""

    logits: Tensor
    blocks: dict[str, Tensor]
    classifier: nn.Linear | None  # None where no linear layer gave the logits
    features: Tensor | None  # what it read


def look(
    model: nn.Module,
    x: Tensor,
    blocks: Sequence[str] = (),
    params: Mapping[str, Tensor] | None = None,
) -> Seen:
    """One forward, everything with its graph.

    `params` stand in for the model's own parameters and buffers of these names. The classifier is
    the linear layer whose very output the model returned, wherever it was defined.
    """
    watched: dict[int, list[str]] = {}
    for name in blocks:
        watched.setdefault(id(last_module(model, name)), []).append(name)
    outputs: dict[str, Tensor] = {}
    linear: list[Called] = []
    with _watching(watched, outputs, linear, len(x)):
        output = model(x) if params is None else functional_call(model, dict(params), (x,))
    logits = logits_of(output, model, len(x))
    if absent := [name for name in blocks if name not in outputs]:
        raise ConfigError(f"The block {absent[0]!r} took no part in the model's forward.")
    if last := [name for name in blocks if outputs[name] is logits]:
        raise ConfigError(
            f"The block {last[0]!r} is the classifier, whose output are the logits; name the "
            "stages before it."
        )
    classifier, features = _who_gave(logits, linear)
    return Seen(logits, {name: outputs[name] for name in blocks}, classifier, features)


def _who_gave(
    logits: Tensor, linear: Sequence[Called]
) -> tuple[nn.Linear, Tensor] | tuple[None, None]:
    for layer, read, output in reversed(linear):
        if output is logits:
            return layer, read
    for layer, read, output in reversed(linear):  # a model that returns a copy
        if output.shape == logits.shape and output.equal(logits):
            return layer, read
    return None, None


def forward_with_blocks(
    model: nn.Module,
    x: Tensor,
    blocks: Sequence[str],
    params: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits and every block's output."""
    seen = look(model, x, blocks, params)
    return seen.logits, seen.blocks


def forward_with_features(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The logits (N, C) and the penultimate features (N, D) they were made of."""
    seen = look(model, x)
    if seen.features is None or seen.features.ndim != 2:
        raise ConfigError(
            f"No nn.Linear of {type(model).__name__} gives its logits, so it has no penultimate "
            "feature; end the network with one."
        )
    return seen.logits, seen.features


def block_parameters(model: nn.Module, blocks: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters inside these blocks under their names in the model, in the model's order."""
    # With the dot: "blocks.1" must not take "blocks.10".
    inside = tuple(f"{path}." for name in blocks for path in members_of(model, name))
    return {name: p for name, p in model.named_parameters() if name.startswith(inside)}


# --- names to modules ------------------------------------------------------------------------


def members_of(model: nn.Module, name: str) -> list[str]:
    """The module paths a block name stands for, every one of them there."""
    if _has(model, name):
        return [name]
    members = [name]
    if run := _RUN.fullmatch(name):
        members = [f"{run['prefix']}{i}" for i in range(int(run["first"]), int(run["last"]) + 1)]
    missing = [path for path in members if not _has(model, path)]
    if not members or missing:
        wanted = missing[0] if missing else name
        paths = sorted(path for path, _ in model.named_modules() if path)
        near = difflib.get_close_matches(wanted, paths, n=3)
        top = ", ".join(path for path, _ in model.named_children())
        hint = f"nearest: {', '.join(near)}" if near else f"its top-level modules: {top}"
        raise ConfigError(f"{type(model).__name__} has no module {wanted!r}; {hint}.")
    return members


def _has(model: nn.Module, path: str) -> bool:
    try:
        return bool(path) and isinstance(model.get_submodule(path), nn.Module)
    except AttributeError:
        return False


def last_module(model: nn.Module, name: str) -> nn.Module:
    """The module whose output is the block's."""
    module = model.get_submodule(members_of(model, name)[-1])
    while isinstance(module, nn.ModuleList) and len(module):
        module = module[len(module) - 1]  # a list is never called itself
    return module


# --- outputs ---------------------------------------------------------------------------------

# Which call is under way in this thread, so that nested and parallel calls keep to their own.
_call: ContextVar[object | None] = ContextVar("_call", default=None)


@contextmanager
def _watching(
    watched: Mapping[int, list[str]],
    outputs: dict[str, Tensor],
    linear: list[Called],
    images: int,
) -> Iterator[None]:
    """Collects the outputs of the watched modules, and what linear layers read and gave.

    Of these only what may be logits, a row an image: kept, a transformer's tokens would stay in
    memory, with or without a graph.

    One hook for all modules rather than one on each: torch's transformer layers change to another
    kernel as soon as they carry a hook of their own, and the logits must stay the same to the bit.
    """
    this = object()

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if _call.get() is this:
            if isinstance(module, nn.Linear) and inputs and _may_be_logits(output, images):
                linear.append((module, inputs[0], output))
            for name in watched.get(id(module), ()):
                outputs[name] = _tensor(output, name)

    token = _call.set(this)
    handle = register_module_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()
        _call.reset(token)


def _may_be_logits(output: Any, images: int) -> bool:
    # By numbers, not dimensions: (N, 1, C) becomes logits where a model squeezes it in place.
    rows = isinstance(output, Tensor) and output.ndim
    return bool(rows) and output.numel() == images * output.shape[-1]


def _tensor(output: Any, name: str) -> Tensor:
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, Mapping | tuple | list):
        for part in parts:
            if isinstance(part, Tensor):
                return part
    raise ConfigError(f"The block {name!r} returned {type(output).__name__}, not a tensor.")
