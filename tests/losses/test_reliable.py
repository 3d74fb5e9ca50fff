from __future__ import annotations

import math

import pytest
import torch

from bombus.losses.reliable import (
    entropy_margin,
    is_new,
    is_reliable,
    mean_prediction,
    weighted_entropy,
)


def test_the_margin_grows_with_the_number_of_classes() -> None:
    assert entropy_margin(1000, 0.4) == pytest.approx(2.763102, abs=1e-6)
    assert entropy_margin(10, 0.4) == pytest.approx(0.921034, abs=1e-6)
    assert entropy_margin(1, 0.4) == 0


def test_reliable_is_strictly_below_and_never_nan() -> None:
    entropy = torch.tensor([0.2, 0.5, 0.7, float("nan"), float("inf")], requires_grad=True)
    assert is_reliable(entropy, 0.5).tolist() == [True, False, False, False, False]


def test_new_is_a_cosine_below_the_margin() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6, 0.8, 0.0]])
    mean = torch.tensor([0.4, 0.0, 0.3])  # of length .5: the cosine must not depend on it
    # By hand: .8, 0 and .6 x .8 = .48
    assert is_new(p, mean, 0.47).tolist() == [False, True, False]
    assert is_new(p, mean, 0.49).tolist() == [False, True, True]
    assert is_new(p, None, 0.0).tolist() == [True, True, True]


def test_weighted_entropy_and_its_gradient_by_hand() -> None:
    values, margin = [0.1, 0.9, 0.4, 0.3], 1.0
    entropy = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    kept = torch.tensor([True, False, False, True])
    loss = weighted_entropy(entropy, kept, margin)
    (gradient,) = torch.autograd.grad(loss, entropy)
    # Over the two kept, not over the four; the weight is no function of the parameters.
    assert loss.item() == pytest.approx((math.exp(0.9) * 0.1 + math.exp(0.7) * 0.3) / 2)
    assert gradient.tolist() == pytest.approx([math.exp(0.9) / 2, 0, 0, math.exp(0.7) / 2])


def test_a_sample_left_out_cannot_spoil_the_loss() -> None:
    entropy = torch.tensor([0.1, float("nan")])
    kept = is_reliable(entropy, 1.0)
    assert weighted_entropy(entropy, kept, 1.0).item() == pytest.approx(math.exp(0.9) * 0.1)


def test_the_mean_starts_plain_and_then_moves_by_a_tenth() -> None:
    first = mean_prediction(None, torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 0.9)
    assert first.tolist() == pytest.approx([0.75, 0.25])
    second = mean_prediction(first, torch.tensor([[0.0, 1.0]]), 0.9)
    assert second.tolist() == pytest.approx([0.675, 0.325])
