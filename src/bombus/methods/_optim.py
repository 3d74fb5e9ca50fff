"""The two optimisers of the field, one of ours, and a step that can never poison a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bombus.errors import ConfigError

OptimizerName = Literal["adam", "sgd", "relative-adam"]
# The published rates are strides of 1 to 4 on their network. Of RMT without source replay 7 ruins a
# WRN-16-1 in other numbers and 8 our WRN-28-10, where 1 and 2 do well (docs/rivals.md).
LONG_STRIDE, USUAL_STRIDE = 5.0, 2.0
SMALLEST = 1e-3  # what counts as the size of parameters that are smaller, such as a bias of zeros


def make_optimizer(
    parameters: Iterable[nn.Parameter], name: OptimizerName, lr: float, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Adam with betas (.9, .999), or SGD with Nesterov momentum .9.

    relative-adam gives every tensor a rate in proportion to its own size, as Adafactor does: lr is
    by which part of itself a tensor moves in a step. The same network in other numbers (docs/
    rivals.md) then learns the same, where Adam's one rate is a different one for every layer.
    """
    parameters = trainable(parameters)
    if name != "sgd":
        groups: list[dict[str, Any]] = [{"params": parameters}]
        if name == "relative-adam":
            groups = [{"params": [p], "lr": lr * _size(p)} for p in parameters]
        return torch.optim.Adam(groups, lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=weight_decay
    )


def _size(p: Tensor) -> float:
    return max(SMALLEST, p.detach().float().square().mean().sqrt().item())


def fitting_rate(
    parameters: Iterable[Tensor], part: float, optimizer: OptimizerName = "adam"
) -> float:
    """The rate at which the median weight tensor moves by this part of itself, to one figure."""
    if optimizer == "relative-adam":  # every tensor does
        return part
    found = list(parameters)
    sizes = [_size(p) for p in found if p.ndim > 1] or [_size(p) for p in found] or [0.0]
    return float(f"{part * median(sizes):.0e}")


def ramp(*optimizers: torch.optim.Optimizer) -> Callable[[int, int], None]:
    """A function of step and total that sets every rate to that part of what it is now."""
    peaks = [(group, group["lr"]) for o in optimizers for group in o.param_groups]

    def climb(step: int, total: int) -> None:
        for group, peak in peaks:
            group["lr"] = peak * step / total

    return climb


def trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """These, if an optimiser can make anything of them.

    In float16 it cannot: 1e-8, which keeps Adam from dividing by zero, is zero itself there, and
    so is the square of a small gradient. bfloat16 has float32's range: what is lost in it are
    steps too small for its three digits, never the network.
    """
    found = list(parameters)
    if not found:
        raise ConfigError(
            "This network has no parameters for this method to train (the classifier, or what lies "
            "outside of the chosen blocks, may not count); choose another method (bombus list "
            "methods), or name other blocks."
        )
    if any(p.dtype == torch.float16 for p in found):
        raise ConfigError(
            "Got a float16 model, and this method trains it, which float16 is too coarse for; pass "
            "model.float() and call the adapter under torch.autocast(..., dtype=torch.bfloat16)."
        )
    return found


def train_all(model: nn.Module) -> list[nn.Parameter]:
    """Make every parameter trainable, and return them."""
    return list(model.requires_grad_(True).parameters())


def stride(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> float:
    """What a step of Adam can do to a layer's output, in units of its spread; the median layer's.

    Adam moves every weight by about the learning rate, whatever the gradient. If the n weights of
    an output all move the same way, it changes by lr * n where it is as large as σ * sqrt(n): by
    lr * sqrt(n) / σ of itself. 0 where no convolution or linear layer is trained, or not by Adam.
    """
    if not isinstance(optimizer, torch.optim.Adam):
        return 0.0
    layers = (nn.Linear, nn.modules.conv._ConvNd)
    weights = {id(m.weight) for m in model.modules() if isinstance(m, layers)}
    strides = [
        group["lr"] * p[0].numel() ** 0.5 / spread
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) in weights and (spread := p.detach().float().std().item()) > 0
    ]
    return median(strides) if strides else 0.0


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> bool:
    """One step down the loss, unless the gradient is not finite: then nothing changes."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return apply_gradients(gradients, parameters, optimizer)


def are_finite(gradients: Iterable[Tensor | None]) -> bool:
    present = [gradient for gradient in gradients if gradient is not None]
    return bool(torch.isfinite(torch.nn.utils.get_total_norm(present)))


def apply_gradients(
    gradients: Sequence[Tensor | None],
    parameters: Sequence[nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> bool:
    """One step with gradients at hand; False, and no change, where one of them is not finite."""
    if not are_finite(gradients):
        return False
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return True
