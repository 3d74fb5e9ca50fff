"""What a method has forgotten: its error on clean images of the source, after each domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bombus.data.benchmarks import EMBEDDED, Benchmark
from bombus.data.cifar import load_cifar
from bombus.data.images import to_tensors
from bombus.data.source import FolderBatches, SourceBatches
from bombus.errors import DataError
from bombus.methods.base import Adapter
from bombus.metrics.error import count_errors
from bombus.names import Precision
from bombus.online import autocast

IMAGES = 5000  # as in the paper


def clean_batches(
    benchmark: Benchmark,
    folder: Path,
    batch_size: int,
    classes: int,
    class_names: Sequence[str] | None = None,
) -> Iterable[tuple[Tensor, Tensor]]:
    """Up to 5,000 labelled clean test images, drawn once and for all, numbered and sized as the
    stream's are."""
    if benchmark.weights:  # embedded, and so are the images
        if folder != EMBEDDED:
            raise DataError("The demo's clean images are embedded; say --clean embedded.")
        return _embedded(batch_size)
    if benchmark.source != "class folders":
        return SourceBatches(load_cifar(folder, "test", benchmark.source), batch_size, count=IMAGES)
    return FolderBatches(
        folder,
        batch_size,
        class_names=class_names,
        classes=classes,
        size=benchmark.source_size,
    )


def _embedded(batch_size: int) -> list[tuple[Tensor, Tensor]]:
    from bombus.data.embedded import EmbeddedImages

    images = EmbeddedImages()
    places = np.arange(len(images.clean))
    return [
        to_tensors(images.clean[part], images.labels[part])
        for part in np.array_split(places, -(-len(places) // batch_size))
    ]


def clean_error(
    adapter: Adapter,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    precision: Precision,
) -> float:
    """Per cent. The adapter only predicts, so that looking changes nothing."""
    wrong = samples = 0
    for x, y in batches:
        with autocast(device, precision):
            logits = adapter.predict(x.to(device))
        more, count = count_errors(logits.float(), y, ["clean"] * len(y))["clean"]
        wrong, samples = wrong + more, samples + count
        if samples >= IMAGES:
            break
    return round(100 * wrong / samples, 4)
