"""What every corruption promises: shapes, bytes that depend on the sample alone, clear errors."""

from __future__ import annotations

import inspect
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bombus.data import corruptions
from bombus.data.corruptions import EXTRA, NAMES, STANDARD, corrupt, ice
from bombus.data.corruptions.constants import TABLES
from bombus.errors import DataError, InputError, UnknownNameError

DETERMINISTIC = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}


def pictures(count: int, side: int = 32) -> Tensor:
    """Smooth colourful pictures with edges: what blur, shuffles and colour shifts act on."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    phase = torch.arange(count * 3).reshape(count, 3, 1, 1).double()
    waves = torch.sin((x * (1 + phase % 3) + y) * 6.28 / side + phase) * 70 + 110
    blocks = ((x // (side // 4) + y // (side // 4)) % 2) * 50
    return (waves + blocks).clamp(0, 255).to(torch.uint8)


def test_names_are_the_benchmarks_in_its_order() -> None:
    assert list(STANDARD) == [
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
        *("motion_blur", "zoom_blur", "snow", "frost", "fog"),
        *("brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ]
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert NAMES == STANDARD + EXTRA
    assert set(TABLES) == set(NAMES)
    assert all(len({len(level) for level in (*t.cifar, *t.imagenet)}) == 1 for t in TABLES.values())


def test_signature_is_pinned() -> None:
    assert list(inspect.signature(corrupt).parameters) == [
        *("images", "name", "severity", "index", "seed", "constants", "frost_photos")
    ]


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", NAMES)
def test_all_severities_keep_shape_and_type(name: str, constants: corruptions.ConstantSet) -> None:
    clean = pictures(2)
    before = clean.clone()
    for severity in range(1, 6):
        out = corrupt(clean, name, severity, index=torch.arange(2), constants=constants)
        assert out.dtype == torch.uint8
        assert out.shape == clean.shape
    assert torch.equal(clean, before), "the input must not change"


@pytest.mark.parametrize("name", NAMES)
def test_large_and_oblong_images(name: str) -> None:
    for height, width in ((224, 224), (64, 96)):
        clean = pictures(1, 224)[:, :, :height, :width].contiguous()
        out = corrupt(clean, name, 3, index=torch.tensor([5]), constants="imagenet")
        assert out.shape == clean.shape
        assert not torch.equal(out, clean)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_do_not_depend_on_the_batch(name: str) -> None:
    clean = pictures(67)
    index = torch.arange(67) * 31 + 4
    whole = corrupt(clean, name, 5, index=index, seed=3)
    order = torch.randperm(67, generator=torch.Generator().manual_seed(0))
    assert torch.equal(corrupt(clean[order], name, 5, index=index[order], seed=3), whole[order])
    for at in (0, 13, 66):
        alone = corrupt(clean[at : at + 1], name, 5, index=index[at : at + 1], seed=3)
        assert torch.equal(alone[0], whole[at])
    parts = [corrupt(clean[a : a + 5], name, 5, index=index[a : a + 5], seed=3) for a in (0, 5, 10)]
    assert torch.equal(torch.cat(parts), whole[:15])


@pytest.mark.parametrize("severity", [1, 2, 3])
@pytest.mark.parametrize("name", ["spatter", "elastic_transform", "glass_blur", "frost"])
def test_bytes_do_not_depend_on_the_batch_at_other_severities(name: str, severity: int) -> None:
    clean = pictures(12, 48)
    whole = corrupt(clean, name, severity, index=torch.arange(12), constants="imagenet")
    alone = corrupt(clean[7:8], name, severity, index=torch.tensor([7]), constants="imagenet")
    assert torch.equal(alone[0], whole[7])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_gives_the_same_bytes(name: str) -> None:
    clean = torch.cat([pictures(30), pictures(30) // 64 * 64])  # the second half has flat patches
    index = torch.arange(60)
    for severity in (1, 3, 5):
        here = corrupt(clean, name, severity, index=index)
        there = corrupt(clean.cuda(), name, severity, index=index)
        assert there.is_cuda
        assert torch.equal(there.cpu(), here)


def test_large_batches_go_in_pieces_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = pictures(10)
    whole = corrupt(clean, "snow", 4, index=torch.arange(10))
    monkeypatch.setattr(corruptions, "_PIXELS_AT_ONCE", 3 * 32 * 32)
    assert torch.equal(corrupt(clean, "snow", 4, index=torch.arange(10)), whole)


def test_empty_batch_stays_empty() -> None:
    clean = pictures(1)[:0]
    for name in NAMES:
        assert corrupt(clean, name, 1, index=torch.arange(0)).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", NAMES)
def test_only_random_corruptions_know_seed_and_index(name: str) -> None:
    clean = pictures(1).repeat(4, 1, 1, 1)
    first = corrupt(clean, name, 5, index=torch.arange(4))
    other_seed = corrupt(clean, name, 5, index=torch.arange(4), seed=1)
    again = corrupt(clean, name, 5, index=torch.arange(4))
    assert torch.equal(first, again)
    random = name not in DETERMINISTIC
    assert torch.equal(first, other_seed) != random
    assert torch.equal(first[0], first[1]) != random


def distances(name: str, constants: corruptions.ConstantSet) -> list[float]:
    clean = pictures(24) if constants == "cifar" else pictures(4, 128)
    index = torch.arange(len(clean))
    return [
        (corrupt(clean, name, severity, index=index, constants=constants).double() - clean.double())
        .abs()
        .mean()
        .item()
        for severity in range(1, 6)
    ]


# The published constants of these trade one quantity for another on the way (sigma against rounds,
# ice against picture, water against mud), so only the ends are in order.
ENDS_IN_ORDER = ("glass_blur", "snow", "frost", "spatter", "pixelate")
# Saturate turns round half way; elastic's slight levels move the whole picture, which is farther.
IN_NO_ORDER = ("saturate", "elastic_transform")


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ENDS_IN_ORDER + IN_NO_ORDER])
def test_each_severity_takes_the_picture_further_away(
    name: str, constants: corruptions.ConstantSet
) -> None:
    far = distances(name, constants)
    assert all(before < after for before, after in pairwise(far)), far


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", ENDS_IN_ORDER)
def test_severity_5_is_further_away_than_1(name: str, constants: corruptions.ConstantSet) -> None:
    far = distances(name, constants)
    assert far[0] < far[4], far


@pytest.mark.parametrize("name", ["defocus_blur", "gaussian_blur", "zoom_blur", "motion_blur"])
def test_flat_picture_survives_linear_filters(name: str) -> None:
    for value in (0, 1, 100, 254, 255):
        flat = torch.full((1, 3, 32, 32), value, dtype=torch.uint8)
        out = corrupt(flat, name, 5, index=torch.tensor([0]))
        assert torch.equal(out, flat)


def test_black_and_grey_are_handled_by_the_colour_corruptions() -> None:
    black = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    assert corrupt(black, "brightness", 5, index=torch.tensor([0])).unique().tolist() == [76]
    assert corrupt(black, "saturate", 5, index=torch.tensor([0])).unique().tolist() == [0]
    grey = torch.full((1, 3, 4, 4), 100, dtype=torch.uint8)
    red = corrupt(grey, "saturate", 5, index=torch.tensor([0]))  # grey counts as red of no colour
    assert red[0, :, 0, 0].tolist() == [100, 80, 80]


def test_impulse_noise_turns_the_promised_share() -> None:
    grey = torch.full((20, 3, 32, 32), 100, dtype=torch.uint8)
    out = corrupt(grey, "impulse_noise", 5, index=torch.arange(20))
    assert out.unique().tolist() == [0, 100, 255]
    assert (out == 0).double().mean().item() == pytest.approx(0.035, abs=0.003)
    assert (out == 255).double().mean().item() == pytest.approx(0.035, abs=0.003)


def test_drawn_ice_is_larger_than_any_image() -> None:
    huge = pictures(1, 400)
    out = corrupt(huge, "frost", 1, index=torch.tensor([0]))  # drawn for 140 px, laid side by side
    assert out.shape == huge.shape


def photographs(folder: Path, side: int) -> None:
    for number, name in enumerate(ice.PHOTOGRAPHS):
        picture = np.full((side, side, 3), 10 * (number + 1), dtype=np.uint8)
        Image.fromarray(picture).save(folder / name, quality=100)


def test_frost_photographs_are_used_when_given(tmp_path: Path) -> None:
    photographs(tmp_path, 400)
    black = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    out = corrupt(black, "frost", 5, index=torch.arange(64), frost_photos=tmp_path)
    expected = {int(10 * (number + 1) * 0.45) for number in range(5)}
    assert set(out.unique().tolist()) == expected


def test_missing_broken_and_small_frost_photographs_are_named(tmp_path: Path) -> None:
    clean = pictures(1)
    index = torch.tensor([0])
    empty = tmp_path / "empty"
    with pytest.raises(DataError, match=r"frost1\.png.*drawn ice"):
        corrupt(clean, "frost", 1, index=index, frost_photos=empty)
    small = tmp_path / "small"
    small.mkdir()
    photographs(small, 100)
    with pytest.raises(DataError, match=r"frost1\.png is 20 x 20 px.*32 x 32"):
        corrupt(clean, "frost", 1, index=index, frost_photos=small)
    broken = tmp_path / "broken"
    broken.mkdir()
    photographs(broken, 400)
    (broken / "frost3.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"frost3\.png.*cannot be read"):
        corrupt(clean, "frost", 1, index=index, frost_photos=broken)


def test_bad_input_is_told_in_one_sentence() -> None:
    clean = pictures(2)
    index = torch.arange(2)
    with pytest.raises(UnknownNameError, match="did you mean 'frost'"):
        corrupt(clean, "frots", 1, index=index)
    with pytest.raises(UnknownNameError, match="'cifar'"):
        corrupt(clean, "fog", 1, index=index, constants="cifra")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"torch\.uint8"):
        corrupt(clean / 255, "fog", 1, index=index)
    with pytest.raises(InputError, match=r"\(N, 3, H, W\)"):
        corrupt(clean[:, :1], "fog", 1, index=index)
    with pytest.raises(InputError, match=r"\(N, 3, H, W\)"):
        corrupt(clean[0], "fog", 1, index=index)
    with pytest.raises(InputError, match="one whole number per image"):
        corrupt(clean, "fog", 1, index=torch.arange(3))
    with pytest.raises(InputError, match="one whole number per image"):
        corrupt(clean, "fog", 1, index=torch.rand(2))
    for severity in (0, 6, 2.5, True):
        with pytest.raises(InputError, match="from 1 to 5"):
            corrupt(clean, "fog", severity, index=index)  # type: ignore[arg-type]
