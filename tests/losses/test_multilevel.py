from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bombus.losses.multilevel import consistency, describe, log_assignment, perplexity
from bombus.losses.sinkhorn import sinkhorn


def unit(values: list[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_describes_feature_maps_by_their_average() -> None:
    h = random(3, 4, 2, 5)
    for i, row in enumerate(describe(h).tolist()):
        means = [sum(v for line in channel for v in line) / 10 for channel in h[i].tolist()]
        assert row == pytest.approx(unit(means), abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "first"), [(197, 1), (196, 0), (5, 1), (4, 0), (2, 1), (1, 0), (6, 0), (145, 1)]
)
def test_describes_tokens_without_the_class_token(tokens: int, first: int) -> None:
    h = random(2, tokens, 3)
    for i, row in enumerate(describe(h).tolist()):
        patches = h[i].tolist()[first:]
        means = [sum(token[d] for token in patches) / len(patches) for d in range(3)]
        assert row == pytest.approx(unit(means), abs=1e-12)


def test_describes_tokens_by_the_class_token() -> None:
    h = random(2, 10, 3)
    for i, row in enumerate(describe(h, "class").tolist()):
        assert row == pytest.approx(unit(h[i, 0].tolist()), abs=1e-12)
    with pytest.raises(ValueError, match="no class token"):
        describe(random(2, 9, 3), "class")


def test_describes_vectors_as_they_are() -> None:
    h = random(3, 4)
    assert describe(h).tolist() == [pytest.approx(unit(row), abs=1e-12) for row in h.tolist()]


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 5, 3), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_descriptors_are_single_precision_unit_vectors(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    d = describe((random(*shape) * 100).to(dtype))
    assert d.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(d.norm(dim=1), torch.ones(2, dtype=d.dtype))


def test_half_precision_maps_are_averaged_in_single() -> None:
    h = torch.full((1, 2, 64, 64), 60.0, dtype=torch.float16)  # the sum, 245,760, is not a half
    torch.testing.assert_close(describe(h), torch.full((1, 2), math.sqrt(0.5)))


def test_a_blank_block_has_a_finite_descriptor_and_gradient() -> None:
    h = torch.zeros(2, 3, 2, 2, requires_grad=True)
    codes = torch.eye(3)
    consistency(log_assignment(describe(h), codes, 0.1), torch.full((2, 3), 1 / 3)).backward()
    assert h.grad is not None
    assert h.grad.isfinite().all()


def test_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4, 4, 4\), expected"):
        describe(torch.zeros(2, 3, 4, 4, 4))


def test_assignment_and_loss_by_plain_loops() -> None:
    descriptor, codes = describe(random(3, 4)), describe(random(5, 4, seed=1))
    target = random(3, 5, seed=2).softmax(1)
    tau, loss = 0.1, 0.0
    log_p = log_assignment(descriptor, codes, tau)
    for i, h in enumerate(descriptor.tolist()):
        scores = [sum(a * b for a, b in zip(h, q, strict=True)) / tau for q in codes.tolist()]
        total = sum(math.exp(s) for s in scores)
        expected = [math.log(math.exp(s) / total) for s in scores]
        assert log_p[i].tolist() == pytest.approx(expected, abs=1e-10)
        loss -= sum(t * v for t, v in zip(target[i].tolist(), expected, strict=True)) / 3
    assert consistency(log_p, target).item() == pytest.approx(loss, abs=1e-10)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3, 3), (4, 10, 6)])
def test_gradient_into_features_and_codes(shape: tuple[int, ...]) -> None:
    h, q = random(*shape).requires_grad_(), random(5, 6, seed=1).requires_grad_()
    target = sinkhorn(random(4, 5, seed=2), 0.5)

    def loss(h: Tensor, q: Tensor) -> Tensor:
        return consistency(log_assignment(describe(h), describe(q), 0.1), target)

    assert torch.autograd.gradcheck(loss, (h, q))


def test_the_loss_is_least_where_the_student_is_the_target() -> None:
    target = random(4, 6).softmax(1)
    least = consistency(target.log(), target)
    entropy = torch.special.entr(target).sum(1).mean()
    torch.testing.assert_close(least, entropy)
    for seed in range(5):
        assert consistency(random(4, 6, seed=seed + 1).log_softmax(1), target) > least


def test_no_gradient_enters_the_target() -> None:
    student, target = random(2, 3).requires_grad_(), random(2, 3, seed=1).softmax(1)
    target.requires_grad_()
    consistency(student.log_softmax(1), target).backward()
    assert student.grad is not None
    assert target.grad is None


def test_autocast_does_not_round_the_cosines() -> None:
    descriptor = describe(random(8, 64).float())
    codes = describe(random(5, 64, seed=1).float())
    expected = log_assignment(descriptor, codes, 0.04)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(log_assignment(descriptor, codes, 0.04), expected)


def test_perplexity_counts_codes() -> None:
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(perplexity(p), torch.tensor((4 + 1 + 2) / 3))
    skewed = 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    value = perplexity(torch.tensor([[0.9, 0.1]], dtype=torch.float64)).item()
    assert value == pytest.approx(math.exp(-skewed), abs=1e-12)
    assert perplexity(p.bfloat16()).dtype == torch.float32
