from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bombus.losses.divergence import (
    pairwise_symmetric_kl,
    symmetric_cross_entropy,
    symmetric_kl,
)


def logits(n: int, c: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, c, generator=generator, dtype=torch.float64) * 2


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def cross_entropy(p: list[float], q: list[float]) -> float:
    return -sum(a * math.log(b) for a, b in zip(p, q, strict=True))


def test_symmetric_kl_by_plain_loops() -> None:
    a, b = logits(5, 4), logits(5, 4, seed=1)
    rows = list(zip(a.softmax(1).tolist(), b.softmax(1).tolist(), strict=True))
    expected = sum(0.5 * kl(p, q) + 0.5 * kl(q, p) for p, q in rows) / 5
    value = symmetric_kl(a.log_softmax(1), b.log_softmax(1))
    assert value.shape == ()
    assert value.item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(symmetric_kl(b.log_softmax(1), a.log_softmax(1)), value)


def test_nothing_is_nearer_than_itself() -> None:
    p = logits(5, 4).float().log_softmax(1)
    assert symmetric_kl(p, p).item() == 0
    for step in (1e-7, 1e-4, 1.0):
        assert symmetric_kl(p, (p + step * logits(5, 4, 1).float()).log_softmax(1)) >= 0


def test_opposite_certainties_are_finite() -> None:
    a = torch.tensor([[1e4, -1e4, 0.0]]).log_softmax(1)
    b = torch.tensor([[-1e4, 1e4, 0.0]]).log_softmax(1)
    torch.testing.assert_close(symmetric_kl(a, b), torch.tensor(2e4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    a, b = logits(3, 4).to(dtype), logits(3, 4, 1).to(dtype)
    value = symmetric_kl(a.float().log_softmax(1).to(dtype), b.float().log_softmax(1).to(dtype))
    assert value.dtype == torch.float32
    assert symmetric_cross_entropy(a, b).dtype == torch.float32
    assert torch.equal(symmetric_cross_entropy(a, b), symmetric_cross_entropy(a.float(), b.float()))


def test_pairwise_is_every_pair() -> None:
    predictions = [logits(6, 3, seed).log_softmax(1) for seed in range(4)]
    matrix = pairwise_symmetric_kl(predictions)
    assert matrix.shape == (4, 4)
    assert matrix.dtype == torch.float64
    for i in range(4):
        for j in range(4):
            expected = 0.0 if i == j else symmetric_kl(predictions[i], predictions[j]).item()
            assert matrix[i, j].item() == expected
    assert pairwise_symmetric_kl(predictions[:1]).tolist() == [[0.0]]


def test_symmetric_cross_entropy_by_plain_loops() -> None:
    s, t = logits(5, 4), logits(5, 4, seed=1)
    values = symmetric_cross_entropy(s, t).tolist()
    rows = zip(s.softmax(1).tolist(), t.softmax(1).tolist(), strict=True)
    expected = [0.5 * cross_entropy(q, p) + 0.5 * cross_entropy(p, q) for p, q in rows]
    assert values == pytest.approx(expected, abs=1e-12)


def test_gradient_enters_the_student_alone() -> None:
    s, t = logits(4, 3).requires_grad_(), logits(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: symmetric_cross_entropy(s, t.detach()), (s,))
    symmetric_cross_entropy(s, t).sum().backward()
    assert s.grad is not None
    assert s.grad.abs().sum() > 0
    assert t.grad is None
