from __future__ import annotations

import math

import torch

from bombus.losses.entropy import softmax_entropy


def test_against_plain_python() -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    for row, value in zip(logits.tolist(), softmax_entropy(logits).tolist(), strict=True):
        total = sum(math.exp(v) for v in row)
        p = [math.exp(v) / total for v in row]
        assert math.isclose(value, -sum(v * math.log(v) for v in p), rel_tol=1e-5)


def test_extremes_are_finite() -> None:
    entropy = softmax_entropy(torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(entropy, torch.tensor([0.0, math.log(3)]))
    assert softmax_entropy(torch.zeros(2, 3, dtype=torch.bfloat16)).dtype == torch.float32
