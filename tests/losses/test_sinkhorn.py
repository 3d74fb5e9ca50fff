"""Sinkhorn a second way: the paper's listing in numpy, float64, outside the log domain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bombus.losses.sinkhorn import sinkhorn


def cosines(n: int, m: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, m, generator=generator, dtype=torch.float64) * 2 - 1


def listing(scores: Tensor, tau: float, iterations: int) -> Tensor:
    plan = np.exp(scores.double().numpy().T / tau)  # (M, N)
    plan /= plan.sum()
    m, n = plan.shape
    for _ in range(iterations):
        plan /= plan.sum(axis=1, keepdims=True)
        plan /= m
        plan /= plan.sum(axis=0, keepdims=True)
        plan /= n
    return torch.from_numpy(plan.T * n)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (64, 16), (1, 4), (4, 1)])
@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("tau", [0.04, 0.1, 1.0])
def test_is_the_papers_listing(shape: tuple[int, int], iterations: int, tau: float) -> None:
    scores = cosines(*shape)
    expected = listing(scores, tau, iterations)
    assert (sinkhorn(scores, tau, iterations) - expected).abs().max() < 1e-12
    # 2e-6: float32 rounds the score over tau (up to 25) by 1e-6, and an exponential passes it on.
    assert (sinkhorn(scores.float(), tau, iterations) - expected).abs().max() < 2e-6


def test_rows_and_columns_in_the_limit() -> None:
    targets = sinkhorn(cosines(12, 5), 0.1, 2000)
    torch.testing.assert_close(targets.sum(1), torch.ones(12).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(targets.sum(0), torch.full((5,), 12 / 5).double(), atol=1e-6, rtol=0)


def test_the_limit_is_the_optimal_transport_plan() -> None:
    """The plan maximises <plan, scores> + tau * entropy: no exchange of mass improves on it."""
    scores, tau = cosines(6, 4), 0.2
    plan = sinkhorn(scores, tau, 5000)
    value = (plan * scores).sum() + tau * torch.special.entr(plan).sum()
    for i in range(5):
        for j in range(3):
            for amount in (1e-3, -1e-3):
                other = plan.clone()  # rows and columns keep their sums
                other[i, j] += amount
                other[i, j + 1] -= amount
                other[i + 1, j] -= amount
                other[i + 1, j + 1] += amount
                if (other < 0).any():
                    continue
                assert (other * scores).sum() + tau * torch.special.entr(other).sum() < value


def test_spreads_samples_that_softmax_would_give_one_code() -> None:
    scores = cosines(32, 8) * 0.1
    scores[:, 3] += 0.8  # every sample's nearest code
    assert (scores / 0.05).softmax(1).argmax(1).eq(3).all()
    columns = sinkhorn(scores, 0.05).sum(0)
    assert columns.max() < 1.5 * 32 / 8


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    tau=st.floats(1e-3, 10),
    size=st.sampled_from([1.0, 100.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 99),
)
def test_rows_are_distributions_whatever_the_input(
    n: int, m: int, tau: float, size: float, dtype: torch.dtype, seed: int
) -> None:
    targets = sinkhorn((cosines(n, m, seed) * size).to(dtype), tau)
    assert targets.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert targets.shape == (n, m)
    assert targets.isfinite().all()
    assert (targets >= 0).all()
    torch.testing.assert_close(targets.sum(1), torch.ones_like(targets[:, 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_largest_scores_at_the_smallest_temperature(dtype: torch.dtype) -> None:
    scores = torch.full((6, 4), -1e4)
    scores[:, 1] = 1e4
    assert sinkhorn(scores.to(dtype), 1e-3).isfinite().all()
    torch.testing.assert_close(sinkhorn(scores, 1e-3), torch.full((6, 4), 0.25))


def test_targets_are_constants() -> None:
    scores = cosines(4, 3).requires_grad_()
    assert not sinkhorn(scores, 0.1).requires_grad
    before = scores.detach().clone()
    sinkhorn(scores, 0.1)
    assert torch.equal(scores, before)


@pytest.mark.parametrize(("tau", "iterations"), [(0.0, 3), (-1.0, 3), (float("nan"), 3), (0.1, 0)])
def test_refuses_impossible_settings(tau: float, iterations: int) -> None:
    with pytest.raises(ValueError, match="expected tau > 0"):
        sinkhorn(cosines(3, 3), tau, iterations)
