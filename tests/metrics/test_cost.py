"""What a run costs."""

from __future__ import annotations

import sys

import pytest
import torch

from bombus.metrics.cost import peak_memory_mb, reset_peak_memory, timed, typical_ms

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can begin anew")
def test_the_peak_is_of_what_came_since_it_was_reset() -> None:
    reset_peak_memory(CPU)
    before = peak_memory_mb(CPU)
    large = torch.ones(40 * 2**20)  # 160 MB
    del large
    many = [torch.ones(2**15) for _ in range(800)]  # 100 MB, in pieces that the C library keeps
    some = many[::40]
    del many
    assert 150 < peak_memory_mb(CPU) - before < 400
    reset_peak_memory(CPU)
    assert peak_memory_mb(CPU) - before < 50
    assert len(some) == 20


def test_times_are_of_the_wall_and_the_first_batches_do_not_count() -> None:
    with timed(CPU) as watch:
        torch.ones(10).sum()
    assert 0 < watch.ms < 10_000
    assert typical_ms([900.0, 10.0, 11.0, 12.0, 10.0]) == 11.0
    assert typical_ms([]) == 0.0
    # One call in four learns: 1, 1, 1, 9 are 3 each, whatever the first and an odd one out took.
    rounds = [50.0, 1.0, 1.0, 9.0] + [1.0, 1.0, 1.0, 9.0] * 3
    assert typical_ms(rounds, 4) == 3.0
    assert typical_ms([*rounds, 700.0], 4) == 3.0
    assert typical_ms([1.0, 3.0], 4) == 2.0
