"""The stages of a network that nobody described, by what its modules are called and hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

# What stands before the first and after the last stage, by the names people give it.
_NOT_A_STAGE = re.compile(
    r"stem|conv_stem|patch_embed\w*|embed\w*|pos_\w*|tokenizer|downsample\w*|head\w*|classifier"
    r"|fc\w*|logits|pool\w*|avgpool|global_pool|proj\w*|aux\w*|norm\w*|neck"
)
_MANY = 8  # more stages than this are joined into three groups


def find_stages(model: nn.Module) -> tuple[str, ...]:
    """Names of blocks from first to last; none where nothing looks like a stage."""
    return _stages(model, "") or _small_stages(model)


def thirds(prefix: str, numbers: Sequence[int]) -> tuple[str, ...]:
    """Three runs of consecutive numbers, as even as they come: "blocks.0-3", "blocks.4-7", ..."""
    cuts = [round(i * len(numbers) / 3) for i in range(4)]
    return tuple(_run(prefix, numbers[a], numbers[b - 1]) for a, b in pairwise(cuts) if a < b)


def _run(prefix: str, first: int, last: int) -> str:
    return f"{prefix}{first}" if first == last else f"{prefix}{first}-{last}"


def _stages(module: nn.Module, prefix: str) -> tuple[str, ...]:
    """The stages of a network nobody described: down through wrappers to the first list of them."""
    own = getattr(module, "block_names", None)
    if own:
        return tuple(f"{prefix}{name}" for name in own)
    if isinstance(module, nn.Sequential) and (flat := _flat_stages(module, prefix)):
        return flat
    found = [(name, child) for name, child in module.named_children() if is_stage(name, child)]
    if len(found) == 1:
        name, child = found[0]
        return _stages(child, f"{prefix}{name}.") or (f"{prefix}{name}",)
    names = [f"{prefix}{name}" for name, _ in found]
    alike = len(found) >= 3 and len({_signature(child) for _, child in found}) == 1
    return _joined(names) if alike or len(names) > _MANY else tuple(names)


def _small_stages(model: nn.Module) -> tuple[str, ...]:
    """Piles of one weight each, as small networks have them: stages if there are several."""
    piles = [
        name
        for name, child in model.named_children()
        if isinstance(child, nn.Sequential)
        and not _NOT_A_STAGE.fullmatch(name)
        and any(p.ndim == 4 for p in child.parameters())
    ]
    return tuple(piles) if len(piles) >= 2 else ()


def is_stage(name: str, module: nn.Module) -> bool:
    if _NOT_A_STAGE.fullmatch(name) or not any(True for _ in module.children()):
        return False
    layers = list(module.children())
    if isinstance(module, nn.Sequential) and not any(
        any(True for _ in c.children()) for c in layers
    ):
        # Flat and of linear layers only: a classifier head, whatever its name.
        weighted = [c for c in layers if any(p.ndim >= 2 for p in c.parameters())]
        if all(isinstance(layer, nn.Linear) for layer in weighted):
            return False
    # One weight alone is a stem or a change of resolution.
    return sum(p.ndim >= 2 for p in module.parameters()) >= 2


def _signature(module: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(p.shape)) for name, p in module.named_parameters())


def _joined(names: Sequence[str]) -> tuple[str, ...]:
    """Many blocks as three runs, where their names are numbered without a gap."""
    split = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    matches = [match for match in split if match]
    numbers = [int(match[2]) for match in matches]
    one_prefix = len({match[1] for match in matches}) == 1 and len(matches) == len(names)
    if not one_prefix or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return tuple(names)
    return thirds(matches[0][1], numbers)


def _flat_stages(module: nn.Sequential, prefix: str) -> tuple[str, ...]:
    """A plain pile of convolutions (VGG's `features`): three runs, each begun by one."""
    names = [name for name, _ in module.named_children()]
    layers = list(module)
    if any(True for layer in layers for _ in layer.children()) or names != [
        str(i) for i in range(len(names))
    ]:
        return ()
    ends = (i for i, c in enumerate(layers) if isinstance(c, nn.Flatten | nn.Linear))
    end = next(ends, len(layers))
    starts = [i for i, c in enumerate(layers[:end]) if isinstance(c, nn.Conv1d | nn.Conv2d)]
    if len(starts) < 2:
        return ()
    cuts = [*sorted({starts[round(i * len(starts) / 3)] for i in range(3)}), end]
    return tuple(_run(prefix, a, b - 1) for a, b in pairwise(cuts))
