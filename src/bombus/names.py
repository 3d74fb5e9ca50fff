"""Names that both the command line and the library know; free of torch, so that help is quick."""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "tf32", "bf16"]
BenchmarkName = Literal[
    "demo", "demo-vit", "cifar10-c", "cifar100-c", "imagenet-c", "imagenet-c-resized", "folder"
]
ExperimentName = Literal[
    "imagenet",
    "cifar-cnn",
    "cifar-vit",
    "ablation",
    "ablation-car",
    "queue-on-baselines",
    "forgetting",
    "sensitivity",
    "trigger",
    "efficiency",
]
