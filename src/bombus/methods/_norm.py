"""Normalisation layers: which statistics BatchNorm uses, and the affine parameters of all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bombus.errors import ConfigError

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm)]


def use_batch_statistics(model: nn.Module) -> None:
    """Let every BatchNorm normalise with the batch at hand, and track nothing.

    In training mode with tracking off a BatchNorm uses the batch and leaves its buffers alone, so
    the source statistics stay there and `source_statistics` can go back to them.
    """
    for norm in batch_norms(model):
        norm.track_running_stats = False
        norm.train()


@contextmanager
def batch_statistics(model: nn.Module, *, track: bool) -> Iterator[None]:
    """Within, BatchNorm normalises with the batch; its running statistics follow if `track`."""
    norms = batch_norms(model)
    tracked = [norm.track_running_stats for norm in norms]
    for norm in norms:
        norm.train()
        norm.track_running_stats = track
    try:
        yield
    finally:
        for norm, was in zip(norms, tracked, strict=True):
            norm.eval()
            norm.track_running_stats = was


@contextmanager
def source_statistics(model: nn.Module) -> Iterator[None]:
    """Within, BatchNorm uses the statistics of training: one image makes poor batch statistics."""
    norms = [norm for norm in batch_norms(model) if norm.training]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


def train_affine(model: nn.Module, method: str) -> list[nn.Parameter]:
    """Make the scale and shift of all normalisation layers trainable, and return them."""
    # Each once: layers may share them.
    parameters = list(
        dict.fromkeys(
            p
            for module in model.modules()
            if isinstance(module, NORMS)
            for p in module.parameters(recurse=False)
        )
    )
    if not parameters:
        raise ConfigError(
            f"{method} adapts the scale and shift of normalisation layers, and this model has "
            "none; choose a method that adapts other parameters (bombus list methods)."
        )
    for p in parameters:
        p.requires_grad_(True)
    return parameters


def batch_logits(model: nn.Module, x: Tensor) -> Tensor:
    """The logits of x under its own batch statistics; a single image gets the source's."""
    if len(x) == 1:
        with source_statistics(model):
            alone: Tensor = model(x)
            return alone
    logits: Tensor = model(x)
    return logits


def source_moments(model: nn.Module) -> dict[str, Tensor]:
    """What `source_statistics` normalises with, by name; themselves, not copies."""
    norms = {id(norm) for norm in batch_norms(model)}
    return {
        f"{name}.{moment}" if name else moment: buffer
        for name, module in model.named_modules()
        if id(module) in norms
        for moment in ("running_mean", "running_var")
        if (buffer := getattr(module, moment)) is not None
    }
