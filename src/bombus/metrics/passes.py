"""How often a batch goes through a network, counted while it happens, whatever the method.

A forward counts by the images that enter the network or any copy of it (a teacher, a frozen
source): two views of a batch are two. A backward counts by the images whose gradient comes back
through the last block: whatever a loss reads, logits, features or blocks, it passes there; a graph
that is gone through twice is two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from bombus.backbones.blocks import find_blocks, last_module
from bombus.errors import ConfigError

_counts: ContextVar[bool] = ContextVar("_counts", default=True)


@contextmanager
def uncounted() -> Iterator[None]:
    """Within, passes are nobody's: no part of what a method does with a batch."""
    token = _counts.set(False)
    try:
        yield
    finally:
        _counts.reset(token)


class PassCounter:
    """Images so far, in both directions."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.entered = 0
        self.returned = 0
        self._last = _last_block(model)

    @contextmanager
    def counting(self) -> Iterator[PassCounter]:
        self.entered = self.returned = 0
        # Hooks on all modules, not on these: some layers of torch change their kernel under one.
        handles = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave),
        )
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if type(module) is type(self.model) and inputs and _counts.get():
            self.entered += len(inputs[0])

    def _leave(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if module is self._last and isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._returns(len(gradient))
            )

    def _returns(self, images: int) -> None:
        self.returned += images


def _last_block(model: nn.Module) -> nn.Module:
    try:
        return last_module(model, find_blocks(model)[-1])
    except ConfigError:
        return model  # no blocks to be seen: its output is as far back as one can look
