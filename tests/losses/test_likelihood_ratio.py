"""The soft likelihood ratio against sums written out, its limits and its gradient."""

from __future__ import annotations

import math

import pytest
import torch

from bombus.losses.likelihood_ratio import soft_likelihood_ratio


def by_hand(logits: list[float]) -> float:
    total = sum(math.exp(v) for v in logits)
    loss = 0.0
    for v in logits:
        p = min(math.exp(v) / total, 0.99)
        loss -= p * math.log(p / (1 - p) + 1e-5)
    return loss


def test_sums_written_out() -> None:
    logits = [[0.0, 0.0, 0.0], [2.0, -1.0, 0.5], [9.0, 0.0, -3.0], [-50.0, 60.0, 0.0]]
    expected = [by_hand(row) for row in logits]
    loss = soft_likelihood_ratio(torch.tensor(logits, dtype=torch.float64))
    assert loss.tolist() == pytest.approx(expected, rel=1e-12)


def test_two_even_classes_have_even_odds() -> None:
    loss = soft_likelihood_ratio(torch.zeros(1, 2, dtype=torch.float64))
    assert loss.item() == pytest.approx(0, abs=2e-5)  # log(1 + eps)


def test_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(soft_likelihood_ratio, (logits,))


def test_pulls_on_a_sure_sample_where_the_entropy_hardly_does() -> None:
    logits = torch.tensor([[4.0, 0.0]], dtype=torch.float64, requires_grad=True)  # p = .982
    (ratio,) = torch.autograd.grad(soft_likelihood_ratio(logits).sum(), logits)
    log_p = logits.log_softmax(1)
    (entropy,) = torch.autograd.grad(-(log_p.exp() * log_p).sum(), logits)
    assert ratio[0, 0] < -0.9
    assert -0.1 < entropy[0, 0] < 0


def test_the_sure_class_is_cut_off() -> None:
    """Beyond .99 the class itself gives no gradient; without the cut it would be near -1."""
    logits = torch.tensor([[12.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(soft_likelihood_ratio(logits).sum(), logits)
    assert gradient.abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_finite_in_single_precision_at_least(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = soft_likelihood_ratio(logits)
    assert loss.dtype == torch.float32
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
