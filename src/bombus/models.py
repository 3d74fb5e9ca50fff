"""From settings to things: the network with its weights, and the source data a method gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from bombus.backbones import create
from bombus.backbones.weights import LoadedWeights, load_weights
from bombus.data.benchmarks import Benchmark, find_benchmark
from bombus.data.source import SourceBatches
from bombus.errors import ConfigError, WeightsError
from bombus.methods import find_method
from bombus.settings import RunSettings


def open_model(
    settings: RunSettings, benchmark: Benchmark, classes: int, device: torch.device
) -> tuple[torch.nn.Module, LoadedWeights]:
    """The source network on its device, with its weights."""
    model = create(choose_backbone(settings, benchmark), num_classes=classes)
    weights = load_weights(model, _choose_weights(settings, benchmark))
    # Channels last is how a GPU's matrix units want images; it changes no result's meaning.
    layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
    return model.to(device, memory_format=layout), weights  # type: ignore[call-overload]


def find_source(settings: RunSettings, batch_size: int) -> Any:
    """What a method gets to prepare on: nothing, a warm-up file, or batches of training images."""
    method = find_method(settings.method)
    if method.needs == "none":
        return None
    given = settings.source
    if given is None:
        embedded = find_benchmark(settings.benchmark).warmup
        own_network = settings.backbone is None and not settings.weights
        # Made for `bee`'s settings: `bee-paper` warms up differently.
        return embedded if own_network and method.name == "bee" else None
    if given.is_file():
        return given
    variant: Literal["cifar10", "cifar100"] = (
        "cifar100" if settings.benchmark == "cifar100-c" else "cifar10"
    )
    return SourceBatches(given, variant, batch_size, seed=settings.seed)


def choose_backbone(settings: RunSettings, benchmark: Benchmark) -> str:
    backbone = settings.backbone or benchmark.backbone
    if backbone is None:
        raise ConfigError(
            f"The benchmark {benchmark.name!r} has no network of its own; pass --backbone NAME "
            "(see bombus list backbones)."
        )
    return backbone


def _choose_weights(settings: RunSettings, benchmark: Benchmark) -> tuple[Path, ...]:
    own_network = settings.backbone in (None, benchmark.backbone)
    weights = settings.weights or (benchmark.weights if own_network else ())
    if not weights:
        raise WeightsError(
            f"{benchmark.name} needs the weights of a trained "
            f"{settings.backbone or benchmark.backbone}; pass --weights FILE "
            "(safetensors, or .pt; several files for shards)."
        )
    return weights
