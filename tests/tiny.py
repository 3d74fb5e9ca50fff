"""Tiny networks, streams of noise and hashes of state, for tests in this and in other processes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import bombus
from bombus.methods.base import Adapter

KINDS = ("batchnorm", "groupnorm", "vit")


class GroupNormNet(nn.Module):
    """A user's own small network with GroupNorm: no attribute of ours, found blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.layer2 = nn.Sequential(
            nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, stride=2)
        )
        self.layer3 = nn.Sequential(
            nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, stride=2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class Speck(nn.Module):
    """As small as a network with BatchNorm and three levels gets, for thousands of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
        return logits


def kinds_of(method: str) -> tuple[str, ...]:
    """The tiny networks a method works on."""
    return ("vit",) if bombus.known_methods()[method].transformers_only else KINDS


def speck_of(method: str) -> str:
    return "speck-vit" if bombus.known_methods()[method].transformers_only else "speck"


def make_tiny(kind: str) -> nn.Module:
    """A tiny classifier of 5 classes for 16 px images, the same weights every time."""
    from bombus.backbones.vit import VisionTransformer
    from bombus.backbones.wide_resnet import WideResNet

    with torch.random.fork_rng():
        torch.manual_seed(7)
        if kind == "batchnorm":
            return WideResNet(10, 1, num_classes=5).eval()
        if kind == "speck":
            return Speck().eval()
        if kind == "groupnorm":
            return GroupNormNet().eval()
        if kind == "speck-vit":
            return VisionTransformer(
                size=8, patch=4, width=4, depth=3, heads=1, num_classes=5
            ).eval()
        return VisionTransformer(size=16, patch=4, width=16, depth=6, heads=2, num_classes=5).eval()


def noise_batches(count: int, size: int = 8, side: int = 16) -> list[Tensor]:
    """A stream whose brightness and contrast drift, so that every method has something to do."""
    generator = torch.Generator().manual_seed(11)
    batches = []
    for i in range(count):
        shape = torch.rand(size, 3, 1, 1, generator=generator)
        texture = torch.rand(size, 3, side, side, generator=generator)
        batches.append((0.5 * shape + 0.4 * texture + 0.1 * (i % 7) / 7).clamp(0, 1))
    return batches


def tree_hash(tree: Any) -> str:
    """One hash over every tensor and number of a state, in order."""
    digest = hashlib.sha256()

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key, child in value.items():
                digest.update(str(key).encode())
                visit(child)
        elif isinstance(value, list | tuple):
            for child in value:
                visit(child)
        else:
            digest.update(repr(value).encode())

    visit(tree)
    return digest.hexdigest()


LEAN = {
    "codes": 16,
    "feature_queue": 64,
    "sample_queue": 64,
    "queue_size": 64,
    "bank_size": 64,
    "source_images": 16,
    "buffer_size": 16,
}


def make_adapter(method: str, model: nn.Module, *, seed: int = 3, lean: bool = False) -> Adapter:
    """Any registered method on a tiny network, with a little source data where it needs some.

    Lean: with small stores, where a method has such settings, so that they fill up soon.
    """
    chosen = bombus.known_methods()[method]
    names = {f.name for f in fields(chosen.Config)}
    settings = {name: value for name, value in LEAN.items() if lean and name in names}
    settings |= {"augmentations": 2} if "augmentations" in names else {}  # CoTTA's 32, twice each
    # An untrained network is sure of nothing; with the published margins nothing would be learnt.
    settings |= {name: 2.0 for name in ("margin", "redundancy") if name in names}
    labels = torch.arange(8) % 5
    images = noise_batches(4, side=getattr(model, "size", 16))  # a ViT takes its own size alone
    source = [(x, labels) if chosen.needs == "labels" else x for x in images]
    return bombus.adapt(
        model,
        method,
        config=chosen.Config(seed=seed, **settings),
        source=None if chosen.needs == "none" else source,
    )


def write_cifar10(folder: Path, images: int) -> Path:
    """Training images of noise in a published layout: five strips and a list of labels."""
    folder.mkdir()
    chooser = np.random.default_rng(1)
    for number in range(1, 6):
        rows = chooser.integers(0, 256, (images // 5, 1024, 3), dtype=np.uint8)
        Image.fromarray(rows).save(folder / f"data_batch_{number}.png")
    (folder / "train_lables.json").write_text(json.dumps([i % 10 for i in range(images)]))
    return folder
