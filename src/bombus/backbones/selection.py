"""Which blocks of a network entropy may train without moving what the network knows.

Yu et al., Domain-Specific Block Selection and Paired-View Pseudo-Labeling for Online Test-Time
Adaptation (DPLOT), CVPR 2024, https://arxiv.org/abs/2404.10966.

Each block in turn, alone, is trained by entropy on noisy source images. If the class prototypes
(mean penultimate feature a class, clean images) still point where they did, the block is safe to
adapt: it answers to the domain, not to the class.
Differs from the reference in: every pass goes over all batches given (the reference stops after
501 for prototypes and 2001 for training); dropout stays off; every block sees the same noise; a
block that diverges counts -1 and stays out of the scaling, which it would otherwise stretch.

Shapes: N images, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bombus.backbones.blocks import block_parameters, find_blocks, members_of
from bombus.backbones.prototypes import class_prototypes, require_prototypes
from bombus.backbones.stages import is_stage
from bombus.errors import ConfigError
from bombus.losses.entropy import softmax_entropy
from bombus.methods._norm import batch_norms, use_batch_statistics
from bombus.methods._optim import descend, make_optimizer

Batches = Iterable[tuple[Tensor, Tensor]]
Progress = Callable[[int, int | None], None]  # batches so far, batches in all once known

KEEP_ABOVE = 0.75
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class BlockScore:
    name: str
    similarity: float  # mean cosine of the class prototypes before and after; -1 if it diverged
    scaled: float  # 0 for the worst block, 1 for the best
    chosen: bool
    diverged: bool = False


# --- candidates ------------------------------------------------------------------------------


def candidate_blocks(model: nn.Module) -> tuple[str, ...]:
    """The residual or transformer blocks inside the stages that `find_blocks` sees, in order."""
    return tuple(unit for stage in find_blocks(model) for unit in _units_of_stage(model, stage))


def _units_of_stage(model: nn.Module, stage: str) -> list[str]:
    paths = members_of(model, stage)
    modules = [model.get_submodule(path) for path in paths]
    if not all(any(True for _ in module.children()) for module in modules):
        return [stage]  # a run of plain layers, none of which is a block by itself
    return [
        unit for path, module in zip(paths, modules, strict=True) for unit in _units(module, path)
    ]


def _units(module: nn.Module, path: str) -> list[str]:
    """The repeated units in a container, or in the one container of a wrapper; else the module."""
    if not isinstance(module, CONTAINERS):
        inside = [name for name, child in module.named_children() if is_stage(name, child)]
        if len(inside) != 1:
            return [path]
        return _repeated(module.get_submodule(inside[0]), f"{path}.{inside[0]}") or [path]
    return _repeated(module, path) or [path]


def _repeated(container: nn.Module, path: str) -> list[str]:
    if not isinstance(container, CONTAINERS):
        return []
    weighted = [c for c in container.children() if any(p.ndim >= 2 for p in c.parameters())]
    units = [(name, child) for name, child in container.named_children() if is_stage(name, child)]
    # Parts of different kinds (attention and MLP; squeeze-excitation among convolutions) make up
    # one block together; a block alone in its container is one, too.
    kinds = {type(child) for _, child in units}
    if len(units) == len(kinds) and len(weighted) > 1:
        return []
    return [f"{path}.{name}" for name, _ in units]


# --- scores ----------------------------------------------------------------------------------


def score_blocks(
    model: nn.Module,
    source: Batches | Callable[[], Batches],
    *,
    blocks: Sequence[str] | None = None,
    lr: float = 1e-3,
    noise: float = 0.5,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[BlockScore]:
    """Score every block of a source-trained model on labelled source batches.

    Args:
        model: the classifier; it is copied, never changed.
        source: clean batches (images in [0, 1], labels), gone over 1 + 2 x blocks times: a list, a
            data loader, or a function that begins anew. Published: the whole training set once,
            batches of 128 (CIFAR) or 64 (ImageNet).
        blocks: which to score and scale together; by default `candidate_blocks(model)`.
        lr: of Adam, which trains one block at a time.
        noise: standard deviation of what is added to the images it trains on; nothing is clipped.
        seed: of the noise, the same for every block.
        progress: told (batches so far, batches in all) after each batch.
    """
    if not lr > 0 or not noise >= 0:
        raise ConfigError(f"Got lr={lr} and noise={noise}, expected lr > 0 and noise >= 0.")
    names = candidate_blocks(model) if blocks is None else find_blocks(model, blocks)
    open_source = _reopened(source)
    done, total = 0, None

    def count() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    similarities: list[float | None] = []
    with torch.inference_mode(False), torch.enable_grad():
        fresh = deepcopy(model).eval().requires_grad_(False)
        use_batch_statistics(fresh)
        before, sizes = class_prototypes(fresh, _batches(fresh, open_source), count)
        require_prototypes(sizes)
        a_pass = done
        total = a_pass * (1 + 2 * len(names))
        for number, name in enumerate(names):
            trained = deepcopy(fresh)
            similarity = None
            if _train_block(trained, name, open_source, count, lr=lr, noise=noise, seed=seed):
                after, left = class_prototypes(trained, _batches(trained, open_source), count)
                if torch.equal(left, sizes):  # else it has features that are no longer finite
                    similarity = _cosine(before[sizes > 0], after[sizes > 0])
            similarities.append(similarity)
            done = a_pass * (3 + 2 * number)  # a block that diverged ended early
    return _scale(names, similarities)


def _scale(names: Sequence[str], similarities: Sequence[float | None]) -> list[BlockScore]:
    finite = [s for s in similarities if s is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scores = []
    for name, similarity in zip(names, similarities, strict=True):
        if similarity is None:
            scores.append(BlockScore(name, -1.0, 0.0, chosen=False, diverged=True))
            continue
        # Where all are alike, none is worse than the best.
        scaled = (similarity - low) / (high - low) if high > low else 1.0
        scores.append(BlockScore(name, similarity, scaled, chosen=scaled > KEEP_ABOVE))
    return scores


def _reopened(source: Batches | Callable[[], Batches]) -> Callable[[], Batches]:
    if isinstance(source, Iterator):
        raise ConfigError(
            "The source batches are gone over several times, but an iterator was given, which "
            "runs dry after the first; give a list, a data loader or a function that makes one."
        )
    return source if callable(source) else lambda: source


def _batches(
    model: nn.Module, open_source: Callable[[], Batches]
) -> Iterator[tuple[Tensor, Tensor]]:
    device = next(model.parameters()).device
    alone_is_too_few = bool(batch_norms(model))
    for x, y in open_source():
        if len(x) > 1 or not alone_is_too_few:  # one image makes no batch statistics
            yield x.to(device), y


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    logits: Tensor = getattr(output, "logits", output)
    return logits


def _train_block(
    model: nn.Module,
    name: str,
    open_source: Callable[[], Batches],
    count: Callable[[], None],
    *,
    lr: float,
    noise: float,
    seed: int,
) -> bool:
    """One pass of entropy on noisy images by this block's parameters; False if it diverges."""
    parameters = list(block_parameters(model, [name]).values())
    if not parameters:
        raise ConfigError(f"The block {name!r} has no parameters to train.")
    for p in parameters:
        p.requires_grad_(True)
    optimizer = make_optimizer(parameters, "adam", lr)
    generator = torch.Generator().manual_seed(seed)
    for x, _ in _batches(model, open_source):
        drawn = torch.randn(x.shape, generator=generator, device=generator.device).to(x)
        loss = softmax_entropy(_logits(model, x + noise * drawn)).mean()
        if not loss.requires_grad:
            raise ConfigError(f"The block {name!r} took no part in the model's forward.")
        if not descend(loss, optimizer):
            return False
        count()
    return True


def _cosine(before: Tensor, after: Tensor) -> float:
    return float(F.cosine_similarity(before, after, dim=1).mean())
