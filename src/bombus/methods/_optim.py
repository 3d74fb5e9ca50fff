"""The two optimisers of the field with its settings, and a step that can never poison a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["adam", "sgd"]


def make_optimizer(
    parameters: Iterable[nn.Parameter], name: OptimizerName, lr: float
) -> torch.optim.Optimizer:
    """Adam with betas (.9, .999), or SGD with Nesterov momentum .9; no weight decay in either."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.999))
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> bool:
    """One step down the loss, unless the gradient is not finite: then nothing changes."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    finite = bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return finite
