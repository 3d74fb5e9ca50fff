"""From settings to things: the network with its weights, and the source data a method gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bombus.backbones import Backbone, create
from bombus.backbones.published import named_weights
from bombus.backbones.vit import VisionTransformer
from bombus.backbones.weights import LoadedWeights, load_weights
from bombus.data.benchmarks import EMBEDDED, Benchmark, find_benchmark
from bombus.data.cifar import load_cifar
from bombus.data.source import FolderBatches, SourceBatches
from bombus.errors import CheckpointError, ConfigError, WeightsError
from bombus.methods import find_method
from bombus.methods.base import Adapter
from bombus.settings import RunSettings


def open_model(
    settings: RunSettings, benchmark: Benchmark, classes: int, device: torch.device
) -> tuple[torch.nn.Module, LoadedWeights]:
    """The source network on its device, with its weights."""
    model = create(choose_backbone(settings, benchmark), num_classes=classes)
    weights = load_weights(model, _choose_weights(settings, benchmark))
    if settings.legacy_vida:
        weights = _feed_as_vida_did(model, weights)
    # Channels last is how a GPU's matrix units want images; it changes no result's meaning.
    layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
    return model.to(device, memory_format=layout), weights  # type: ignore[call-overload]


def _feed_as_vida_did(model: Backbone, weights: LoadedWeights) -> LoadedWeights:
    if not isinstance(model, VisionTransformer):
        raise ConfigError(
            f"--legacy-vida reproduces the published rows of vision transformers, and {model.name} "
            "is none; leave it out."
        )
    model.input = replace(model.input, mean=None, std=None)
    note = "--legacy-vida: un-normalised input, as in the published tables of ViTs"
    return replace(weights, notes=(*weights.notes, note))


def why_unusual(settings: RunSettings, weights: LoadedWeights) -> str | None:
    """What excuses an input other than is usual for the network, in words; None if nothing does."""
    if settings.legacy_vida:
        return "on purpose (--legacy-vida)"
    return "as its weights ask for" if weights.says_input else None


def runs_without_source(method: type[Adapter], benchmark: Benchmark) -> bool:
    """Whether it can do without source images, or the benchmark embeds some."""
    return method.needs == "none" or method.source_optional or benchmark.training is not None


def find_source(
    settings: RunSettings, batch_size: int, class_names: Sequence[str] | None = None
) -> Any:
    """What a method gets to prepare on: nothing, a warm-up file, or batches of training images.

    `class_names` are the test images' where they have some: training images are numbered alike.
    """
    method, benchmark = find_method(settings.method), find_benchmark(settings.benchmark)
    if method.needs == "none":
        return None
    given = settings.source
    # `bee` and `bee-paper` take long to learn from images, and do without unless they are asked.
    unasked = given is None and not (method.reads_files and method.source_optional)
    if benchmark.training is not None and (unasked or given == EMBEDDED):
        return SourceBatches(benchmark.training(), batch_size, seed=settings.seed)
    if given is None:
        own_network = settings.backbone is None and not settings.weights
        # Made for `bee`'s settings: `bee-paper` warms up differently.
        return benchmark.warmup if own_network and method.name == "bee" else None
    if given.is_file():
        return given
    if given.suffix == ".safetensors" and not given.exists():
        raise CheckpointError(
            f"There is no warm-up file {given}; make it with `bombus warmup`, or give the folder "
            "of training images."
        )
    if benchmark.source != "class folders":
        images = load_cifar(given, "train", benchmark.source)
        return SourceBatches(images, batch_size, seed=settings.seed)
    labelled = method.needs == "labels"  # else nobody reads the numbers of the classes
    return FolderBatches(
        given,
        batch_size,
        class_names=class_names if labelled else None,
        classes=benchmark.classes if labelled else None,
        size=benchmark.source_size,
        seed=settings.seed,
    )


def choose_backbone(settings: RunSettings, benchmark: Benchmark) -> str:
    published = named_weights(settings.weights)
    if published is not None:
        published.check_use(settings.backbone, benchmark.classes, benchmark.name)
        return published.backbone
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
            "(safetensors, or .pt; several files for shards) or a published name (bombus list "
            "weights)."
        )
    return weights
