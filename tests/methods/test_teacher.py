"""The teacher and RMT's warm-up, against formulas written out in float64."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bombus.checkpoint import load_state, save_state
from bombus.errors import DataError
from bombus.methods._norm import use_batch_statistics
from bombus.methods._optim import make_optimizer, train_all
from bombus.methods._teacher import Teacher, warm_up
from by_hand import (
    Descent,
    Params,
    Small,
    assert_same,
    images,
    parameters_of,
    small_forward,
    warm_up_by_hand,
)
from tiny import make_tiny, noise_batches, tree_hash


def student() -> Small:
    model = Small().eval().requires_grad_(False)
    use_batch_statistics(model)
    return model


# --- the teacher -----------------------------------------------------------------------------


def test_it_follows_every_parameter_and_no_buffer() -> None:
    model = student()
    teacher = Teacher(model)
    before, buffers = parameters_of(model), [b.clone() for b in teacher.model.buffers()]
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.add_(i + 1.0)
        model.norm.running_mean += 7
    for _ in range(3):
        teacher.follow(model, 0.9)
    kept = 0.9**3
    for name, p in teacher.model.named_parameters():
        target = dict(model.named_parameters())[name]
        expected = kept * before[name] + (1 - kept) * target
        torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(teacher.model.buffers(), buffers, strict=True))


def test_it_is_a_copy_of_its_own_that_is_never_trained() -> None:
    model = student()
    train_all(model)
    teacher = Teacher(model)
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert all(p.requires_grad for p in model.parameters())
    logits = teacher(images(4, seed=1))
    assert not logits.requires_grad
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(teacher(images(4, seed=1)), logits)


def test_it_reads_the_batch_and_for_one_image_the_source_statistics() -> None:
    model = student()
    with torch.no_grad():
        model.norm.running_mean += 0.3
    teacher = Teacher(model)
    x = images(4, seed=2)
    torch.testing.assert_close(teacher(x), small_forward(parameters_of(model), x)[0])
    plain = deepcopy(model).eval()
    assert torch.equal(teacher(x[:1]), plain(x[:1]))
    assert teacher.model.norm.training, "the batch's statistics are back"


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm", "vit"])
def test_it_is_saved_and_loaded_to_the_bit(kind: str, tmp_path: Path) -> None:
    model = make_tiny(kind)
    teacher, other = Teacher(model), Teacher(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) / 3)
    teacher.follow(model, 0.7)
    save_state(tmp_path, {"now": teacher.state_dict()}, {})
    state, _ = load_state(tmp_path)
    assert tree_hash(other.state_dict()) != tree_hash(teacher.state_dict())
    other.load_state_dict(state["now"])
    assert tree_hash(other.state_dict()) == tree_hash(teacher.state_dict())
    (x,) = noise_batches(1)
    assert torch.equal(other(x), teacher(x))
    with torch.no_grad():
        for value in state["now"].values():
            value.zero_()
    assert torch.equal(other(x), teacher(x)), "it shares tensors with what it was loaded from"


# --- the warm-up -----------------------------------------------------------------------------


class Stream:
    """Batches that can be gone over again, of a length nobody knows."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


def warmed(
    source: object, *, kind: str = "adam", images: int = 1000, momentum: float = 0.8
) -> tuple[Small, Teacher, torch.optim.Optimizer]:
    model = student()
    teacher = Teacher(model)
    optimizer = make_optimizer(train_all(model), kind, 0.02)  # type: ignore[arg-type]
    warm_up(model, teacher, source, optimizer, images=images, momentum=momentum)  # type: ignore[arg-type]
    return model, teacher, optimizer


def by_hand(batches: list[Tensor], kind: str = "adam") -> tuple[Params, Params]:
    mine = parameters_of(Small())
    teacher = dict(mine)
    warm_up_by_hand(mine, teacher, batches, Descent(kind, 0.02), 0.8)
    return mine, teacher


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("steps", [1, 3])
def test_warm_up_by_hand(kind: str, steps: int) -> None:
    batches = [images(4, seed=i) for i in range(steps)]
    model, teacher, optimizer = warmed(batches, kind=kind)
    mine, followed = by_hand(batches, kind)
    assert_same(mine, model)
    assert_same(followed, teacher.model)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02]
    if kind == "adam":  # the moments go on into the stream
        assert {float(s["step"]) for s in optimizer.state.values()} == {float(steps)}


def test_student_and_teacher_move_apart_only_after_the_first_step() -> None:
    """At first they agree, but the loss is an entropy then, not zero: the student must move."""
    model, _, _ = warmed([images(4, seed=0)])
    source = Small()
    assert not torch.equal(model.head.weight, source.head.weight)


def test_labels_are_not_read() -> None:
    batches = [images(4, seed=i) for i in range(3)]
    plain, _, _ = warmed(batches)
    labelled, _, _ = warmed([(x, torch.full((4,), -99)) for x in batches])
    assert_same(parameters_of(plain), labelled, 0)


@pytest.mark.parametrize(
    ("asked", "steps"),
    [(12, 3), (8, 2), (11, 2), (4, 1), (3, 1), (1000, 5)],
    ids=["exact", "fewer", "rest left out", "one", "less than a batch", "the source is shorter"],
)
def test_how_many_steps_and_where_the_learning_rate_ends(asked: int, steps: int) -> None:
    batches = [images(4, seed=i) for i in range(5)]
    model, teacher, _ = warmed(batches, images=asked)
    mine, followed = by_hand(batches[:steps])
    assert_same(mine, model)
    assert_same(followed, teacher.model)


def test_a_source_of_unknown_length_rises_as_if_it_were_long_enough() -> None:
    batches = [images(4, seed=i) for i in range(2)]
    model, _, optimizer = warmed(Stream(batches), images=40)
    mine = parameters_of(Small())
    teacher = dict(mine)
    descent = Descent("adam", 0.02 * 2 / 10)  # the second of ten steps is its last
    warm_up_by_hand(mine, teacher, batches, descent, 0.8)
    assert_same(mine, model)
    assert optimizer.param_groups[0]["lr"] == 0.02


def test_one_image_makes_no_batch_statistics_and_is_left_out() -> None:
    first, last = images(4, seed=0), images(4, seed=1)
    model, teacher, _ = warmed([first, images(1, seed=2), last])
    mine = parameters_of(Small())
    followed = dict(mine)
    descent = Descent("adam", 0.02 / 3)
    warm_up_by_hand(mine, followed, [first], descent, 0.8)
    descent.lr = 0.02
    warm_up_by_hand(mine, followed, [last], descent, 0.8)
    assert_same(mine, model)
    assert_same(followed, teacher.model)


def test_no_images_wanted_and_no_images_there() -> None:
    model, teacher, _ = warmed([images(4, seed=0)], images=0)
    assert_same(parameters_of(Small()), model, 0)
    assert_same(parameters_of(Small()), teacher.model, 0)
    with pytest.raises(DataError, match="no images"):
        warmed([])


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    bad, good = torch.full((4, 3, 5, 5), float("nan"), dtype=torch.float64), images(4, seed=0)
    model, teacher, _ = warmed([bad, good, bad])
    mine = parameters_of(Small())
    followed = dict(mine)
    descent = Descent("adam", 0.02 * 2 / 3)
    warm_up_by_hand(mine, followed, [good], descent, 0.8)
    assert_same(mine, model)
    for name, p in mine.items():  # the teacher goes on towards the student
        followed[name] = 0.8 * followed[name] + 0.2 * p
    assert_same(followed, teacher.model)
    with pytest.raises(DataError, match="Nothing could be learnt from the source images"):
        warmed([bad])
    with pytest.raises(DataError, match="Nothing could be learnt from the source images"):
        warmed([images(1, seed=0)])
