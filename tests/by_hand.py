"""A network small enough to write out, and what mean teachers do with it, in plain formulas.

Nothing of the library's is used here. Tests put `half_light` in the place of CoTTA's view.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]


class Small(nn.Module):
    """Convolution, BatchNorm, ReLU, mean over places, linear: 4 features, 3 classes; float64."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)
        self.double()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
            # So that different images are taken for different classes, some surely, some not.
            _, features = small_forward(dict(self.named_parameters()), images(32, seed=77))
            self.head.weight *= 8
            self.head.bias.copy_(-self.head.weight @ features.mean(0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
        return logits


def small_forward(p: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, 3) and features (N, 4) of `Small` under the statistics of the batch."""
    height, width = x.shape[2] - 1, x.shape[3] - 1
    maps = torch.zeros(len(x), 4, height, width, dtype=x.dtype)
    for i in range(2):
        for j in range(2):
            patch = x[:, :, i : i + height, j : j + width]
            maps = maps + torch.einsum("nchw,kc->nkhw", patch, p["conv.weight"][:, :, i, j])
    maps = maps + p["conv.bias"].view(1, 4, 1, 1)
    mean = maps.mean((0, 2, 3), keepdim=True)
    variance = ((maps - mean) ** 2).mean((0, 2, 3), keepdim=True)
    scale, shift = p["norm.weight"].view(1, 4, 1, 1), p["norm.bias"].view(1, 4, 1, 1)
    maps = scale * (maps - mean) / (variance + 1e-5).sqrt() + shift
    features = torch.where(maps > 0, maps, torch.zeros_like(maps)).mean((2, 3))
    return features @ p["head.weight"].T + p["head.bias"], features


def parameters_of(model: nn.Module) -> Params:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def images(count: int, seed: int, side: int = 5) -> Tensor:
    """Bytes over 255, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=generator).double() / 255


def labelled(batches: int, size: int, seed: int = 100) -> list[tuple[Tensor, Tensor]]:
    return [(images(size, seed + i), (torch.arange(size) + i) % 3) for i in range(batches)]


def half_light(x: Tensor, generator: torch.Generator, *, per_sample: bool = True) -> Tensor:
    """A view that draws nothing, to stand in for CoTTA's."""
    assert not per_sample, "the reference draws one view for the whole batch"
    return (x.flip(-1) * 0.5 + 0.1).clamp(0, 1)


def log_softmax(logits: Tensor) -> list[list[Tensor]]:
    rows = []
    for row in logits:
        total = sum(v.exp() for v in row)
        rows.append([v - torch.log(total) for v in row])
    return rows


def agreement(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean symmetric cross-entropy, class by class."""
    log_s, log_t = log_softmax(student), log_softmax(teacher.detach())
    total = torch.zeros((), dtype=student.dtype)
    for s, t in zip(log_s, log_t, strict=True):
        for a, b in zip(s, t, strict=True):
            total = total - 0.5 * (b.exp() * a + a.exp() * b)
    return total / len(student)


class Descent:
    """Adam, or SGD with Nesterov momentum, written out; parameters are replaced, not written to."""

    def __init__(self, kind: str, lr: float) -> None:
        self.kind, self.lr = kind, lr
        self.first: Params = {}
        self.second: Params = {}
        self.steps: dict[str, int] = {}

    def step(
        self, params: Params, loss: Callable[[Params], Tensor], lr: float | None = None
    ) -> None:
        leaves = {name: p.detach().requires_grad_(True) for name, p in params.items()}
        gradients = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
        for name, g in zip(leaves, gradients, strict=True):
            if g is not None:
                params[name] = params[name] - (lr or self.lr) * self._direction(name, g)

    def _direction(self, name: str, g: Tensor) -> Tensor:
        zero = torch.zeros_like(g)
        self.steps[name] = t = self.steps.get(name, 0) + 1
        if self.kind == "sgd":
            self.first[name] = g if t == 1 else 0.9 * self.first[name] + g
            return g + 0.9 * self.first[name]
        self.first[name] = 0.9 * self.first.get(name, zero) + 0.1 * g
        self.second[name] = 0.999 * self.second.get(name, zero) + 0.001 * g * g
        mean = self.first[name] / (1 - 0.9**t)
        return mean / ((self.second[name] / (1 - 0.999**t)).sqrt() + 1e-8)


def follow(teacher: Params, student: Params, momentum: float) -> None:
    for name in teacher:
        teacher[name] = momentum * teacher[name] + (1 - momentum) * student[name].detach()


def warm_up_by_hand(
    student: Params,
    teacher: Params,
    batches: list[Tensor],
    descent: Descent,
    momentum: float,
) -> None:
    for number, x in enumerate(batches, start=1):
        taught = small_forward(teacher, x)[0]

        def loss(p: Params, x: Tensor = x, taught: Tensor = taught) -> Tensor:
            return agreement(small_forward(p, x)[0], taught)

        descent.step(student, loss, descent.lr * number / len(batches))
        follow(teacher, student, momentum)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt()


def assert_same(params: Params, model: nn.Module, tolerance: float = 1e-9) -> None:
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), params[name], rtol=tolerance, atol=tolerance)
