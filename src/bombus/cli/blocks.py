"""bombus blocks: which blocks of a network may be adapted by entropy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bombus.names import Precision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from bombus.backbones.selection import BlockScore


def blocks(
    *,
    data: Path,
    backbone: str | None = None,
    weights: tuple[Path, ...],
    num_classes: int | None = None,
    batch_size: int = 128,
    images: int = 50000,
    seed: int = 0,
    device: str = "auto",
    precision: Precision = "fp32",
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path | None = None,
) -> None:
    """Find the blocks of a network that adapt to a new domain without forgetting the classes.

    Before deployment, on clean training images: each block alone is trained by entropy on noisy
    images, and a block whose training leaves the class prototypes where they were (similarity
    near 1) is safe to adapt. Similarities are scaled to 0..1 over the blocks; those above 0.75
    are chosen. The last line is ready to paste into `bombus run`.

    It takes two passes over the images a block, one of them training: a large network wants a
    GPU. Fewer images are quicker, but then a block takes fewer steps than the published 391.

    Example: bombus blocks --data cifar10 --backbone wrn-28-10 --weights wrn.safetensors

    Args:
        data: folder of the clean CIFAR images, e.g. where `bombus data get cifar10` put them.
        backbone: the network (see `bombus list backbones`); not needed with published weights.
        weights: the trained network's file, or its shards: safetensors or .pt; or a name of
            `bombus list weights`.
        num_classes: 10 for CIFAR-10, 100 for CIFAR-100; by default 10, or the published weights'.
        batch_size: images a training step; published: 128.
        images: how many of the 50000 training images, drawn by the seed.
        seed: of the images' order and of the noise.
        device: cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.
        precision: fp32, tf32 (fp32 with fast matrix units), or bf16 autocast.
        json: machine-readable, with all details.
        out: write the details to this JSON file as well.
    """
    import numpy as np
    import torch

    from bombus.backbones import create
    from bombus.backbones.published import named_weights
    from bombus.backbones.selection import score_blocks
    from bombus.backbones.weights import load_weights
    from bombus.cli.view import CountView, say
    from bombus.data.cifar import load_cifar
    from bombus.data.images import to_tensors
    from bombus.errors import ConfigError
    from bombus.fields import Seed, check
    from bombus.online import autocast
    from bombus.report.records import write_file
    from bombus.settings import pick_device

    published = named_weights(weights)
    if published is not None:
        published.check_use(backbone, num_classes, "--num-classes")
        backbone, num_classes = published.backbone, published.classes
    if backbone is None:
        raise ConfigError("Name the network of these weights with --backbone NAME.")
    num_classes = 10 if num_classes is None else num_classes
    if num_classes not in (10, 100):
        raise ConfigError(f"Got --num-classes {num_classes}, expected 10 or 100, as CIFAR has.")
    if batch_size < 2 or images < 2:
        raise ConfigError(
            f"Got --batch-size {batch_size} and --images {images}, expected at least 2 of each."
        )
    check("--seed", seed, Seed)
    chosen_device = pick_device(device)
    model = create(backbone, num_classes=num_classes)
    loaded = load_weights(model, weights)
    pixels, labels = load_cifar(data, "train", "cifar10" if num_classes == 10 else "cifar100")
    images = min(images, len(pixels))
    order = np.random.default_rng(seed).permutation(len(pixels))[:images]

    def source() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, images, batch_size):
            index = order[start : start + batch_size]
            yield to_tensors(pixels[index], labels[index])

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    with CountView("scoring blocks", "batches") as view, autocast(chosen_device, precision):
        scores = score_blocks(model.to(chosen_device), source, seed=seed, progress=view.update)
    report = {
        "backbone": backbone,
        "weights_sha256": loaded.sha256,
        "num_classes": num_classes,
        "images": images,
        "batch_size": batch_size,
        "seed": seed,
        "precision": precision,
        "blocks": [vars(score) for score in scores],
        "chosen": [score.name for score in scores if score.chosen],
    }
    text = _to_json(report)
    if out is not None:
        write_file(out, text.encode())
    say(text.rstrip() if json else _table(scores))


def _to_json(report: dict[str, Any]) -> str:
    import json

    return json.dumps(report, indent=1) + "\n"


def _table(scores: list[BlockScore]) -> str:
    width = max(len("block"), *(len(score.name) for score in scores))
    lines = [f"{'block':<{width}}  similarity  scaled  chosen"]
    for score in scores:
        verdict = "diverged" if score.diverged else "yes" if score.chosen else ""
        lines.append(
            f"{score.name:<{width}}  {score.similarity:>10.4f}  {score.scaled:>6.3f}  {verdict}"
        )
    chosen = ",".join(score.name for score in scores if score.chosen)
    paste = f"--set shallow={chosen}" if chosen else "No block can be chosen: all diverged."
    return "\n".join([*(line.rstrip() for line in lines), "", paste])
