"""The anchor pool, and choosing and merging anchors a second way: plain loops over numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bombus.checkpoint import load_state, save_state
from bombus.errors import ConfigError
from bombus.losses.divergence import pairwise_symmetric_kl, symmetric_kl
from bombus.methods._anchors import AnchorPool, choose, flatten, merge, merge_weights, unflatten


def anchor(value: float) -> Tensor:
    return torch.full((3,), float(value))


def kept(pool: AnchorPool) -> list[float]:
    return [pool[i][0].item() for i in range(len(pool))]


def test_the_oldest_makes_room() -> None:
    pool = AnchorPool(3)
    for value in range(5):
        pool.store(anchor(value))
    assert len(pool) == 3
    assert kept(pool) == pool.numbers == [2, 3, 4]


def test_the_protected_stay() -> None:
    pool = AnchorPool(3)
    for value in range(7):
        pool.store(anchor(value), protected=value in (0, 3))
    assert kept(pool) == pool.numbers == [0, 3, 6]
    pool.store(anchor(7), protected=True)
    assert kept(pool) == [0, 3, 7]
    with pytest.raises(ConfigError, match="All 3 anchors are protected"):
        pool.store(anchor(8))
    assert kept(pool) == pool.numbers == [0, 3, 7]


def test_refuses_an_empty_pool() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        AnchorPool(0)


def test_an_anchor_is_a_copy() -> None:
    pool, theta = AnchorPool(2), anchor(1).requires_grad_()
    pool.store(theta)
    with torch.no_grad():
        theta += 1
    assert kept(pool) == [1]
    assert not pool[0].requires_grad


def test_on_the_host_anchors_are_halves_and_stay_so() -> None:
    pool = AnchorPool(2, on_host=True)
    pool.store(torch.tensor([1 / 3, -2.0, 1e-3]))
    assert pool[0].dtype == torch.float16
    other = AnchorPool(2, on_host=True)
    other.load_state_dict({**pool.state_dict(), "anchors": [pool[0].float()]})
    assert torch.equal(other[0], pool[0])
    assert other[0].dtype == torch.float16


def test_halves_merge_with_the_student_in_its_precision() -> None:
    student = torch.tensor([1.0, 2.0])
    merged = merge([student, torch.tensor([3.0, 0.5]).half()], torch.tensor([0.25, 0.75]))
    assert merged.dtype == torch.float32
    assert merged.tolist() == [2.5, 0.875]


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    pool = AnchorPool(3)
    pool.store(anchor(0), protected=True)
    for value in range(1, 5):
        pool.store(anchor(value))
    save_state(tmp_path, pool.state_dict(), {})
    other = AnchorPool(3)
    other.store(anchor(99))
    other.load_state_dict(load_state(tmp_path)[0])
    for p in (pool, other):
        p.store(anchor(5))
    assert kept(other) == kept(pool) == [0, 4, 5]
    assert other.numbers == pool.numbers == [0, 4, 5]


def test_a_saved_state_does_not_change_later() -> None:
    pool = AnchorPool(2)
    pool.store(anchor(0))
    state = pool.state_dict()
    pool.store(anchor(1))
    other = AnchorPool(2)
    other.load_state_dict(state)
    other.store(anchor(2))
    assert len(state["anchors"]) == len(state["numbers"]) == len(state["protected"]) == 1
    assert other.numbers == [0, 1]


def test_flat_and_back_are_views() -> None:
    like = {"a": torch.randn(2, 3), "b": torch.randn(()), "c": torch.randn(4, 1, 2)}
    flat = flatten(like.values())
    assert flat.shape == (6 + 1 + 8,)
    assert flat.data_ptr() != like["a"].data_ptr()
    views = unflatten(flat, like)
    assert list(views) == list(like)
    for name, view in views.items():
        assert torch.equal(view, like[name])
        assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    flat += 1
    assert torch.equal(views["c"], like["c"] + 1)


def test_an_anchor_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to the network"):
        unflatten(torch.zeros(5), {"a": torch.zeros(2, 3)})


def test_views_run_in_a_network_without_copies() -> None:
    model = nn.Linear(3, 2)
    parameters = dict(model.named_parameters())
    flat = flatten(parameters.values())
    x = torch.randn(4, 3)
    assert torch.equal(functional_call(model, unflatten(flat, parameters), (x,)), model(x))
    doubled = functional_call(model, unflatten(2 * flat, parameters), (x,))
    torch.testing.assert_close(doubled, 2 * model(x))


@pytest.mark.parametrize(
    ("divergences", "k", "expected"),
    [
        ([0.1, 0.5, 0.3], 2, [1, 2]),
        ([0.1, 0.5, 0.3], 9, [1, 2, 0]),
        ([0.2, 0.4, 0.2, 0.4], 3, [1, 3, 0]),
        ([0.0, 0.0], 1, [0]),
        ([0.1, math.nan, 0.3, math.inf], 3, [2, 0]),
        ([], 5, []),
        ([0.3], 0, []),
    ],
)
def test_chooses_the_furthest(divergences: list[float], k: int, expected: list[int]) -> None:
    assert choose(torch.tensor(divergences), k) == expected


def test_weights_by_hand_and_their_extremes() -> None:
    d = [[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 0.5, 0.0]]
    for temperature in (1.0, 4.0):
        exponentials = [math.exp(sum(row) / temperature) for row in d]
        expected = [e / sum(exponentials) for e in exponentials]
        weights = merge_weights(torch.tensor(d), temperature).tolist()
        assert weights == pytest.approx(expected, abs=1e-6)
    assert merge_weights(torch.tensor(d) * 1e4).tolist() == [1, 0, 0]
    assert merge_weights(torch.tensor(d), math.inf).tolist() == pytest.approx([1 / 3] * 3)
    assert merge_weights(torch.zeros(1, 1)).tolist() == [1.0]


def test_merge_makes_a_new_tensor() -> None:
    models = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0], dtype=torch.float64)]
    merged = merge(models, torch.tensor([0.25, 0.75]))
    assert merged.tolist() == [2.5, -1.0]
    assert merged.dtype == torch.float32
    assert models[0].tolist() == [1.0, 2.0]
    assert torch.equal(merge(models[:1], torch.ones(1)), models[0])
    with pytest.raises(ValueError):
        merge(models, torch.ones(3))


def test_a_replay_by_plain_loops() -> None:
    """Eqs. 10-13 from linear models and a batch to the merged parameters, in Python floats."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    student = torch.randn(12, generator=generator, dtype=torch.float64)
    pool = AnchorPool(6)
    for scale in (0.3, 2.0, 0.1, 1.0, 0.5, 3.0):
        pool.store(student + scale * torch.randn(12, generator=generator, dtype=torch.float64))

    def predict(flat: Tensor) -> Tensor:
        return (x @ flat.view(4, 3)).log_softmax(1)

    own = predict(student)
    log_ps = [predict(pool[i]) for i in range(len(pool))]
    chosen = choose(torch.stack([symmetric_kl(own, p) for p in log_ps]), 3)
    weights = merge_weights(pairwise_symmetric_kl([own, *(log_ps[i] for i in chosen)]))
    merged = merge([student, *(pool[i] for i in chosen)], weights)

    def probabilities(theta: list[float]) -> list[list[float]]:
        rows = []
        for sample in x.tolist():
            z = [sum(sample[d] * theta[3 * d + c] for d in range(4)) for c in range(3)]
            total = sum(math.exp(v) for v in z)
            rows.append([math.exp(v) / total for v in z])
        return rows

    def distance(a: list[list[float]], b: list[list[float]]) -> float:
        total = 0.0
        for p, q in zip(a, b, strict=True):
            for u, v in zip(p, q, strict=True):
                total += 0.5 * (u * math.log(u / v) + v * math.log(v / u))
        return total / len(a)

    thetas = [student.tolist(), *(pool[i].tolist() for i in range(6))]
    ps = [probabilities(theta) for theta in thetas]
    order = sorted(range(1, 7), key=lambda i: distance(ps[0], ps[i]), reverse=True)[:3]
    members = [0, *order]
    totals = [sum(distance(ps[i], ps[j]) for j in members if j != i) for i in members]
    exponentials = [math.exp(t) for t in totals]
    w = [e / sum(exponentials) for e in exponentials]
    expected = [sum(wi * thetas[i][n] for wi, i in zip(w, members, strict=True)) for n in range(12)]
    assert [i - 1 for i in order] == chosen
    assert weights.tolist() == pytest.approx(w, abs=1e-10)
    assert merged.tolist() == pytest.approx(expected, abs=1e-10)
