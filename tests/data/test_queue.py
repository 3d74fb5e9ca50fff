from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bombus.checkpoint import load_state, save_state
from bombus.data.queue import SampleQueue


def eight_bit(count: int, seed: int = 0, side: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return pixels.to(torch.float32).div_(255)  # as the data sets do


def numbered(*numbers: int) -> Tensor:
    return torch.tensor(numbers).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).to(torch.float32) / 255


def numbers(x: Tensor) -> list[int]:
    return (x[:, 0, 0, 0] * 255).round().int().tolist()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def everything(queue: SampleQueue) -> set[int]:
    return set(numbers(queue.draw(10**6, generator())))


def stored(queue: SampleQueue) -> Tensor:
    images: Tensor = queue.state_dict()["images"]
    return images


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_byte_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = (torch.arange(256).to(wide) / 255).to(dtype).view(256, 1, 1, 1)
    queue = SampleQueue(256)
    queue.push(x)
    assert stored(queue).dtype == torch.uint8
    drawn = queue.draw(256, generator())
    assert drawn.dtype == dtype
    assert torch.equal(drawn.flatten().sort().values, x.flatten())


def test_numpys_division_is_the_same() -> None:
    x = torch.from_numpy((torch.arange(256).numpy() / 255).astype("float32")).view(256, 1, 1, 1)
    queue = SampleQueue(256)
    queue.push(x)
    assert stored(queue).dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("low", [0.0, -1.0, 5.0])
def test_other_images_keep_their_dtype(dtype: torch.dtype, low: float) -> None:
    x = (torch.rand(5, 3, 2, 2, generator=generator()) + low).to(dtype)
    queue = SampleQueue(8)
    queue.push(x)
    assert stored(queue).dtype == dtype
    assert torch.equal(stored(queue), x)
    assert queue.draw(5, generator()).dtype == dtype


def test_a_value_next_to_a_byte_is_not_rounded() -> None:
    x = eight_bit(4)
    x[2, 1, 0, 0] = torch.nextafter(x[2, 1, 0, 0], torch.tensor(2.0))
    queue = SampleQueue(4)
    queue.push(x)
    assert torch.equal(stored(queue), x)


def test_the_first_other_batch_turns_the_queue_to_floats() -> None:
    queue = SampleQueue(10)
    first, second, third = eight_bit(4, 1), eight_bit(3, 2) * 0.999, eight_bit(2, 3)
    queue.push(first)
    assert stored(queue).dtype == torch.uint8
    queue.push(second)
    assert torch.equal(stored(queue), torch.cat([first, second]))
    queue.push(third)  # stays: one decision, not one a batch
    assert torch.equal(stored(queue), torch.cat([first, second, third]))
    queue.push(first)
    assert torch.equal(stored(queue), torch.cat([first, second, third, first])[-10:])


@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 9), batches=st.lists(st.integers(0, 12), max_size=8))
def test_holds_the_most_recent(capacity: int, batches: list[int]) -> None:
    queue = SampleQueue(capacity)
    pushed: list[int] = []
    for size in batches:
        new = list(range(len(pushed), len(pushed) + size))
        queue.push(numbered(*(n % 256 for n in new)))
        pushed += new
        assert len(queue) == min(len(pushed), capacity)
    if pushed:
        assert numbers(stored(queue).float() / 255) == pushed[-capacity:]
        assert everything(queue) == set(pushed[-capacity:])


def test_memory_is_taken_once() -> None:
    queue = SampleQueue(20)
    queue.push(eight_bit(8))
    ring = queue._ring
    assert ring is not None
    assert ring.nbytes == 20 * 3 * 4 * 4
    for seed in range(20):
        queue.push(eight_bit(8, seed))
        assert queue._ring is ring


def test_a_limit_in_megabytes_is_kept_in_bytes_and_in_floats() -> None:
    image = 3 * 4 * 4
    queue = SampleQueue(20, megabytes=12 * image / 1e6)
    assert queue.cut_short is None
    queue.push(eight_bit(8))
    queue.push(eight_bit(8, 1))
    assert len(queue) == 12
    assert queue.cut_short is not None
    assert queue.cut_short.startswith("12 recent images are kept where 20 were asked for")
    floats = eight_bit(2, 2) * 0.7
    queue.push(floats)  # four times as large, so three of them: the newest
    assert torch.equal(stored(queue), torch.cat([eight_bit(8, 1)[-1:], floats]))
    other = SampleQueue(20, megabytes=12 * image / 1e6)
    other.load_state_dict(queue.state_dict())
    assert (other.capacity, other.cut_short) == (3, queue.cut_short)
    queue.push(eight_bit(3, side=2))  # smaller ones: all twenty find room
    assert (queue.capacity, queue.cut_short) == (20, None)
    tight = SampleQueue(20, megabytes=0)
    tight.push(eight_bit(8))
    assert len(tight) == 2, "of one image alone little is learnt"


@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(1, 9),
    pushes=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=8),
)
def test_the_newest_may_be_forgotten(capacity: int, pushes: list[tuple[int, bool]]) -> None:
    queue = SampleQueue(capacity)
    kept: list[int] = []
    next_number = 0
    for size, forgotten in pushes:
        new = list(range(next_number, next_number + size))
        next_number += size
        queue.push(numbered(*(n % 256 for n in new)))
        kept = (kept + new)[-capacity:]
        if forgotten:
            queue.forget(size)
            kept = kept[:-size]
        assert len(queue) == len(kept)
        if pushes:
            assert numbers(stored(queue).float() / 255) == kept


def test_pushing_copies() -> None:
    x = torch.rand(3, 1, 2, 2, generator=generator()).requires_grad_()
    before = x.detach().clone()
    queue = SampleQueue(3)
    queue.push(x)
    with torch.no_grad():
        x.zero_()
    drawn = queue.draw(3, generator())
    drawn.zero_()
    assert not drawn.requires_grad
    assert torch.equal(stored(queue), before)


def test_draws_without_replacement_and_at_random() -> None:
    queue = SampleQueue(50)
    queue.push(numbered(*range(70)))
    seen: set[int] = set()
    for seed in range(20):
        drawn = numbers(queue.draw(30, generator(seed)))
        assert len(set(drawn)) == len(drawn) == 30
        seen |= set(drawn)
    assert seen == set(range(20, 70))
    assert len(queue.draw(80, generator())) == 50


def test_every_image_is_drawn_equally_often() -> None:
    queue, draws = SampleQueue(10), generator(1)
    queue.push(numbered(*range(13)))
    counts = dict.fromkeys(range(3, 13), 0)
    for _ in range(1000):
        for n in numbers(queue.draw(3, draws)):
            counts[n] += 1
    # 300 expected, standard deviation 14.5: five of them
    assert all(abs(count - 300) < 73 for count in counts.values())


def test_the_generator_decides() -> None:
    queue = SampleQueue(50)
    queue.push(eight_bit(50))
    assert torch.equal(queue.draw(9, generator(3)), queue.draw(9, generator(3)))
    assert not torch.equal(queue.draw(9, generator(3)), queue.draw(9, generator(4)))


@pytest.mark.parametrize("kind", ["bytes", "floats", "turned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_goes_on_the_same_after_a_file(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    batches = [eight_bit(7, seed).to(dtype) for seed in range(6)]
    if kind != "bytes":
        batches[0 if kind == "floats" else 1] *= 0.7
    queue, resumed = SampleQueue(16), SampleQueue(16)
    for x in batches[:3]:
        queue.push(x)
    resumed.push(torch.rand(4, 1, 9, 9))  # what it held before must be gone
    save_state(tmp_path, queue.state_dict(), {})
    resumed.load_state_dict(load_state(tmp_path)[0])
    one, two = generator(7), generator(7)
    for x in batches[3:]:
        assert len(resumed) == len(queue)
        assert stored(resumed).dtype == stored(queue).dtype
        drawn = queue.draw(5, one)
        assert drawn.dtype == dtype
        assert torch.equal(drawn, resumed.draw(5, two))
        for q in (queue, resumed):
            q.push(x)
    assert torch.equal(stored(queue), stored(resumed))


def test_a_saved_state_does_not_change_later() -> None:
    queue, other = SampleQueue(4), SampleQueue(4)
    queue.push(numbered(1, 2, 3, 4))
    state = queue.state_dict()
    other.load_state_dict(state)
    for q in (queue, other):
        q.push(numbered(5, 6, 7, 8))
    assert numbers(state["images"].float() / 255) == [1, 2, 3, 4]


def test_a_smaller_queue_takes_the_newest() -> None:
    queue, smaller = SampleQueue(6), SampleQueue(4)
    queue.push(numbered(*range(6)))
    smaller.load_state_dict(queue.state_dict())
    assert everything(smaller) == {2, 3, 4, 5}
    smaller.push(numbered(6))
    assert everything(smaller) == {3, 4, 5, 6}


def test_the_state_of_an_empty_queue_empties() -> None:
    queue = SampleQueue(4)
    empty = queue.state_dict()
    queue.push(eight_bit(3))
    queue.load_state_dict(empty)
    assert len(queue) == 0
    with pytest.raises(ValueError, match="queue is empty"):
        queue.draw(1, generator())


def test_images_of_another_kind_start_it_anew() -> None:
    queue = SampleQueue(9)
    queue.push(eight_bit(5, side=4))
    for x in (eight_bit(3, side=6), eight_bit(2, side=6).double(), eight_bit(4).half()):
        queue.push(x)
        assert len(queue) == len(x)
        assert queue.draw(9, generator()).dtype == x.dtype


def test_images_that_are_bytes_already_stay() -> None:
    x = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    queue = SampleQueue(256)
    queue.push(x)
    assert torch.equal(queue.draw(256, generator()).flatten().sort().values, x.flatten())


def test_refuses_an_empty_queue() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SampleQueue(0)


def test_the_default_device_changes_nothing() -> None:
    drawn = []
    for device in ("cpu", "meta"):
        queue, other, draws = SampleQueue(6), SampleQueue(6), generator(5)
        x, y = eight_bit(5, 1), eight_bit(4, 2) * 0.7
        with torch.device(device):
            queue.push(x)
            queue.push(y)
            queue.forget(1)
            other.load_state_dict(queue.state_dict())
            drawn.append(other.draw(4, draws))
    assert torch.equal(*drawn)


def test_imports_torch_alone() -> None:
    code = (
        "import sys, bombus.data.queue\n"
        "print(sorted(m for m in sys.modules if m.startswith('bombus')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['bombus', 'bombus.data', 'bombus.data.queue']"
