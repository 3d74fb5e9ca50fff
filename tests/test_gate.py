"""The gate's rules where the contract suite does not go."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bombus.backbones.input import Input
from bombus.errors import InputError
from bombus.gate import check, input_of

LIKE = torch.zeros(1)


def test_a_dark_image_does_not_excuse_a_batch_of_the_wrong_scale() -> None:
    x = torch.rand(8, 3, 4, 4) * 255
    x[0] = 0
    with pytest.raises(InputError, match="divide 8-bit values by 255"):
        check(x, Input(), like=LIKE)


def test_an_image_below_zero_was_normalised_not_left_in_8_bits() -> None:
    with pytest.raises(InputError, match="if you normalise images yourself, declare") as caught:
        check(4 * torch.rand(8, 3, 4, 4) - 2, Input(), like=LIKE)
    assert "255" not in str(caught.value)


def test_a_few_bad_samples_are_set_aside_with_their_reasons() -> None:
    x = torch.rand(8, 3, 4, 4)
    x[2, 0, 0, 0], x[5] = float("nan"), 40.0
    gated = check(x, Input(), like=LIKE)
    assert gated.kept == [0, 1, 3, 4, 6, 7]
    assert "NaN" in gated.rejected[2]
    assert "[40, 40]" in gated.rejected[5]


def test_resampling_overshoot_is_no_offence() -> None:
    x = torch.full((4, 3, 4, 4), 1.1)
    x[0] = -0.1
    assert not check(x, Input(), like=LIKE).rejected


def test_a_fixed_size_is_enforced() -> None:
    with pytest.raises(InputError, match="expects 32 x 32"):
        check(torch.rand(2, 3, 16, 16), Input(size=32), like=LIKE)


def test_channels_are_read_off_a_users_network() -> None:
    assert input_of(nn.Sequential(nn.Conv2d(1, 4, 3))).channels == 1
    assert input_of(nn.Linear(3, 3)).channels is None


def test_double_models_take_doubles() -> None:
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    assert not check(x, Input(), like=LIKE.double()).rejected


@pytest.mark.parametrize("count", [0, 2])
def test_images_without_channels_are_no_images(count: int) -> None:
    with pytest.raises(InputError, match="no channels"):
        check(torch.rand(count, 0, 4, 4), Input(channels=None), like=LIKE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_float64_is_made_where_the_images_are(dtype: torch.dtype) -> None:
    """Apple's GPUs have none."""

    class NoFloat64(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            assert getattr(out, "dtype", None) != torch.float64, func
            return out

    x = torch.rand(4, 3, 8, 8).to(dtype)
    x[2] = 40
    with NoFloat64():
        gated = check(x, Input(), like=torch.zeros(1, dtype=dtype))
    assert gated.kept == [0, 1, 3]
