"""Bounded stores of labelled images: what is put comes out, and no more than there is room for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from bombus.checkpoint import load_state, save_state
from bombus.data.labelled import LabelledImages, SureImages
from bombus.errors import InputError

CPU = torch.device("cpu")


def numbered(*numbers: int, side: int = 2) -> tuple[Tensor, Tensor]:
    """Images of one grey each, labelled by the same number."""
    y = torch.tensor(numbers)
    return (y.view(-1, 1, 1, 1).expand(-1, 3, side, side).float() / 255).contiguous(), y


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def contents(store: LabelledImages) -> list[int]:
    """The numbers in the store, after checking that every image still has its own label."""
    x, y = store.draw(10**6, generator(), CPU)
    assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), y)
    return sorted(y.tolist())


def test_what_is_put_comes_out_and_the_rest_finds_no_room() -> None:
    store = LabelledImages(5, CPU)
    assert store.append(*numbered(1, 2, 3)) == 3
    assert store.append(*numbered(4, 5, 6, 7)) == 2
    assert store.append(*numbered(8)) == 0
    assert len(store) == 5
    assert contents(store) == [1, 2, 3, 4, 5]


def test_memory_has_a_limit_too() -> None:
    """12 bytes an image of 2 x 2: as many as fit, of images that need four bytes a pixel fewer."""
    store = LabelledImages(50, CPU, megabytes=100e-6)
    assert store.cut_short is None
    assert store.append(*numbered(1, 2, 3, 4, 5, 6, 7)) == 7
    assert store.cut_short is None
    assert store.append(*numbered(8, 9)) == 1
    assert contents(store) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "8 source images are kept where 50" in str(store.cut_short)
    again = LabelledImages(50, CPU, megabytes=36e-6)
    again.load_state_dict(store.state_dict())
    assert contents(again) == [1, 2, 3]
    store.clear()
    x, y = numbered(*range(20))
    assert store.append(x + 0.001, y) == 2
    enough = LabelledImages(3, CPU, megabytes=100e-6)
    assert enough.append(*numbered(1, 2, 3, 4)) == 3
    assert enough.cut_short is None


def odd(*numbers: int) -> tuple[Tensor, Tensor]:
    """Images that are a little beside bytes, so that each takes 48 of them."""
    x, y = numbered(*numbers)
    return x + 0.001, y


@pytest.mark.parametrize(
    ("there", "kept", "found_room"),
    [(2, [0, 1, 50, 51], 2), (3, [0, 1, 2, 50], 1), (4, [0, 1, 2, 3], 0), (9, [0, 1, 2, 3], 0)],
)
def test_images_that_bytes_cannot_hold_keep_to_the_limit_too(
    there: int, kept: list[int], found_room: int, tmp_path: Path
) -> None:
    """200 bytes: sixteen images of bytes, four of floats."""
    store, resumed = (LabelledImages(50, CPU, megabytes=200e-6) for _ in range(2))
    store.append(*numbered(*range(there)))
    assert store.append(*odd(50, 51)) == found_room
    assert contents(store) == kept
    assert store.append(*odd(60)) == 0
    assert store._images is not None
    assert store._images.nbytes <= 200
    assert "4 source images are kept where 50" in str(store.cut_short)
    save_state(tmp_path, {"now": store.state_dict()}, {})
    resumed.load_state_dict(load_state(tmp_path)[0]["now"])
    assert (len(resumed), resumed.cut_short) == (4, store.cut_short)
    for a, b in zip(*(s.draw(3, generator(), CPU) for s in (store, resumed)), strict=True):
        assert torch.equal(a, b)


def test_a_store_that_turns_to_floats_is_resumed_with_the_room_it_has() -> None:
    store, resumed = (LabelledImages(50, CPU, megabytes=200e-6) for _ in range(2))
    store.append(*numbered(1))
    store.append(*odd(2))
    resumed.load_state_dict(store.state_dict())
    assert store.cut_short is resumed.cut_short is None
    for one in (store, resumed):
        assert one.append(*odd(3, 4, 5)) == 2
        assert contents(one) == [1, 2, 3, 4]
    resumed.put(torch.tensor([3, 0]), *odd(40, 10))  # places that are taken are still written over
    assert contents(resumed) == [2, 3, 10, 40]


def test_what_cannot_be_loaded_changes_nothing() -> None:
    store, other = LabelledImages(5, CPU), LabelledImages(5, CPU)
    store.append(*numbered(1, 2, 3))
    other.append(*numbered(7))
    state = store.state_dict()
    with pytest.raises(ValueError, match="3 images and 1 labels"):
        other.load_state_dict({**state, "labels": state["labels"][:1]})
    with pytest.raises(KeyError):
        other.load_state_dict({n: t for n, t in state.items() if n != "like"})
    assert contents(other) == [7]


def test_the_default_device_changes_nothing() -> None:
    drawn = []
    for device in ("cpu", "meta"):
        store, draws = LabelledImages(6, CPU), generator(5)
        images = [numbered(1, 2, 3), odd(4, 5)]
        with torch.device(device):
            for x, y in images:
                store.append(x, y)
            drawn.append(store.draw(4, draws, CPU))
    for one, other in zip(*drawn, strict=True):
        assert torch.equal(one, other)


def test_draws_are_different_images_and_repeat_with_the_generator() -> None:
    store = LabelledImages(50, CPU)
    store.append(*numbered(*range(50)))
    draws = [store.draw(20, generator(seed), CPU)[1].tolist() for seed in (1, 1, 2)]
    assert len(set(draws[0])) == 20
    assert draws[0] == draws[1] != draws[2]
    seen: set[int] = set()
    source = generator(3)
    for _ in range(30):
        seen |= set(store.draw(10, source, CPU)[1].tolist())
    assert seen == set(range(50)), "some images are never drawn"


def test_bytes_where_exact_and_the_images_own_numbers_where_not() -> None:
    store = LabelledImages(300, CPU)
    x, y = numbered(*range(256))
    store.append(x, y)
    assert store.state_dict()["images"].dtype == torch.uint8
    drawn, labels = store.draw(256, generator(), CPU)
    assert torch.equal(drawn, x[labels])
    odd = torch.rand(3, 3, 2, 2, generator=generator())
    store.append(odd, torch.tensor([256, 257, 258]))
    assert store.state_dict()["images"].dtype == torch.float32
    drawn, labels = store.draw(259, generator(), CPU)
    assert torch.equal(drawn, torch.cat([x, odd])[labels])
    store.put(torch.tensor([7]), *numbered(9))  # bytes would do for this one, but not for the rest
    assert len(store) == 259


def test_places_are_written_over() -> None:
    store = LabelledImages(4, CPU)
    store.append(*numbered(1, 2, 3, 4))
    store.put(torch.tensor([2, 0]), *numbered(30, 10))
    assert contents(store) == [2, 4, 10, 30]


def test_a_smaller_store_takes_the_first() -> None:
    store, smaller = LabelledImages(5, CPU), LabelledImages(2, CPU)
    store.append(*numbered(1, 2, 3, 4))
    smaller.load_state_dict(store.state_dict())
    assert contents(smaller) == [1, 2]


def test_images_of_another_kind_do_not_fit() -> None:
    store = LabelledImages(4, CPU)
    larger, y = numbered(1, side=3)
    assert store.fits(larger)
    store.append(*numbered(1))
    assert not store.fits(larger)
    assert not store.fits(numbered(1)[0].double())
    with pytest.raises(InputError, match="one size and dtype"):
        store.append(larger, y)
    store.clear()
    assert store.append(larger, y) == 1


@pytest.mark.parametrize("exact", [True, False])
def test_state_is_exact_and_bounded(exact: bool, tmp_path: Path) -> None:
    store = LabelledImages(6, CPU)
    x, y = numbered(3, 1, 4, 1)
    store.append(x if exact else x + 1e-3, y)
    save_state(tmp_path, {"now": store.state_dict()}, {})
    state, _ = load_state(tmp_path)
    assert len(state["now"]["images"]) == 4, "free places need no room on the disk"
    other = LabelledImages(6, CPU)
    other.append(*numbered(99, 98, 97, 96, 95))
    other.load_state_dict(state["now"])
    for a, b in zip(store.draw(3, generator(), CPU), other.draw(3, generator(), CPU), strict=True):
        assert torch.equal(a, b)
    assert other.append(*numbered(7, 8, 9)) == 2


def test_an_empty_store() -> None:
    store = LabelledImages(3, CPU)
    assert store.state_dict() == {}
    assert store.append(*(t[:0] for t in numbered(1))) == 0
    with pytest.raises(ValueError, match="empty"):
        store.draw(1, generator(), CPU)
    full = LabelledImages(3, CPU)
    full.append(*numbered(1))
    full.load_state_dict({})
    assert len(full) == 0
    with pytest.raises(ValueError, match="at least 1"):
        LabelledImages(0, CPU)


# --- OBAO's buffer ---------------------------------------------------------------------------


def keep(buffer: SureImages, entropies: dict[int, float]) -> None:
    buffer.keep(*numbered(*entropies), torch.tensor(list(entropies.values())))


def kept(buffer: SureImages) -> list[int]:
    assert len(buffer.entropies) == len(buffer)
    return contents(buffer.images)


def test_a_full_buffer_gives_the_highest_entropies_away_even_for_higher_ones() -> None:
    buffer = SureImages(4, CPU)
    keep(buffer, {1: 0.1, 2: 0.4, 3: 0.2, 4: 0.3})
    keep(buffer, {5: 0.9, 6: 0.05})
    assert kept(buffer) == [1, 3, 5, 6]
    keep(buffer, {7: 0.5})
    assert kept(buffer) == [1, 3, 6, 7], "the entropies of the new ones were not noted"


def test_the_first_of_a_batch_fill_up_and_the_others_may_replace_them() -> None:
    buffer = SureImages(3, CPU)
    keep(buffer, {1: 0.1, 2: 0.2})
    keep(buffer, {3: 0.9, 4: 0.5})
    assert kept(buffer) == [1, 2, 4]


def test_a_batch_larger_than_the_buffer() -> None:
    buffer = SureImages(2, CPU)
    keep(buffer, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5, 6: 0.6})
    assert kept(buffer) == [3, 4]  # the first two fill it, the next two take their places
    assert sorted(buffer.entropies.tolist()) == pytest.approx([0.3, 0.4])


def test_nothing_sure_changes_nothing_and_another_size_starts_anew() -> None:
    buffer = SureImages(3, CPU)
    keep(buffer, {1: 0.1})
    x, y = numbered(2)
    buffer.keep(x[:0], y[:0], torch.empty(0))
    assert kept(buffer) == [1]
    buffer.keep(*numbered(8, 9, side=5), torch.tensor([0.1, 0.2]))
    assert kept(buffer) == [8, 9]


def test_the_buffer_is_saved_and_loaded_to_the_bit(tmp_path: Path) -> None:
    buffer, other = SureImages(3, CPU), SureImages(3, CPU)
    keep(buffer, {1: 0.1, 2: 0.7, 3: 0.2})
    keep(other, {9: 0.3})
    save_state(tmp_path, {"now": buffer.state_dict()}, {})
    state, _ = load_state(tmp_path)
    other.load_state_dict(state["now"])
    for one in (buffer, other):
        keep(one, {4: 0.5})
    assert kept(buffer) == kept(other) == [1, 3, 4]
    assert torch.equal(buffer.entropies, other.entropies)
