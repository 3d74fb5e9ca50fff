"""Histograms of oriented gradients, pixel by pixel in Python's own numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bombus.losses.hog import BINS, cell_histograms, patch_histograms, sobel

Image = list[list[float]]


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Of 256 levels: sums are exact in any order, so that a slope of zero is zero."""
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).double() / 256


def reflected(i: int, size: int) -> int:
    return -i if i < 0 else 2 * (size - 1) - i if i >= size else i


def slope(image: Image, i: int, j: int) -> tuple[float, float]:
    """Sobel's two numbers at a pixel: along the row, along the column."""
    right = down = 0.0
    for a in (-1, 0, 1):
        for b in (-1, 0, 1):
            value = image[reflected(i + a, len(image))][reflected(j + b, len(image[0]))]
            right += value * b * (2 - abs(a))
            down += value * a * (2 - abs(b))
    return right, down


def cell_by_hand(image: Image, top: int, left: int, cell: int) -> list[float]:
    votes = [0.0] * BINS
    for i in range(top, top + cell):
        for j in range(left, left + cell):
            right, down = slope(image, i, j)
            turn = math.degrees(math.atan2(right, down)) % 180
            votes[int(turn // 20) % BINS] += math.sqrt(right * right + down * down)
    size = math.sqrt(sum(v * v for v in votes))
    return [v / size if size else 0.0 for v in votes]


@pytest.mark.parametrize(("height", "width", "cell"), [(8, 8, 4), (6, 10, 2), (4, 3, 1)])
def test_cells_by_hand(height: int, width: int, cell: int) -> None:
    x = noise(2, 3, height, width)
    found = cell_histograms(x, cell)
    assert found.shape == (2, 3, BINS, height // cell, width // cell)
    for n in range(2):
        for c in range(3):
            image = x[n, c].tolist()
            for i in range(height // cell):
                for j in range(width // cell):
                    expected = cell_by_hand(image, i * cell, j * cell, cell)
                    assert found[n, c, :, i, j].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("patch", [2, 4, 16])
def test_patches_by_hand(patch: int) -> None:
    """Every colour's every bin in each of the four cells, patches row by row."""
    rows, columns = 2, 3
    x = noise(1, 3, rows * patch, columns * patch)
    found = patch_histograms(x, patch)
    assert found.shape == (1, 6, 108)
    half = patch // 2
    for place in range(6):
        top, left = place // columns * patch, place % columns * patch
        expected = []
        for c in range(3):
            image = x[0, c].tolist()
            quarters = [
                cell_by_hand(image, top + i * half, left + j * half, half)
                for i in range(2)
                for j in range(2)
            ]
            expected += [quarter[b] for b in range(BINS) for quarter in quarters]
        assert found[0, place].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("degrees", [0.0, 10.0, 25.0, 50.0, 90.0, 130.0, 170.0, 190.0, 350.0])
def test_a_ramp_has_one_direction(degrees: float) -> None:
    """Rising at this angle from downwards, towards the right: one bin, in every inner cell."""
    angle = math.radians(degrees)
    right, down = round(math.sin(angle), 12), round(math.cos(angle), 12)
    i, j = torch.meshgrid(*[torch.arange(24.0, dtype=torch.float64)] * 2, indexing="ij")
    ramp = (right * j + down * i)[None, None]
    across, along = sobel(ramp)
    assert torch.allclose(across[..., 1:-1, 1:-1], torch.tensor(8 * right, dtype=torch.float64))
    assert torch.allclose(along[..., 1:-1, 1:-1], torch.tensor(8 * down, dtype=torch.float64))
    inner = cell_histograms(ramp, 4)[0, 0, :, 1:-1, 1:-1]
    one_bin = torch.zeros(BINS, dtype=torch.float64)
    one_bin[int(degrees % 180 // 20)] = 1
    torch.testing.assert_close(inner, one_bin.view(BINS, 1, 1).expand_as(inner))


def test_votes_weigh_by_the_length_of_the_gradient() -> None:
    """A slope to the right, below it a steeper one downwards, between them an edge."""
    x = torch.zeros(1, 1, 9, 3, dtype=torch.float64)
    x[..., :3, :] = torch.tensor([0.0, 1.0, 2.0])
    x[..., 6:, :] = torch.tensor([0.0, 3.0, 6.0])[:, None]
    cells = cell_histograms(x, 3)[0, 0]  # (B, 3, 1)
    image = x[0, 0].tolist()
    for row in range(3):
        assert cells[:, row, 0].tolist() == pytest.approx(cell_by_hand(image, 3 * row, 0, 3))
    assert cells[0, 2, 0] > 0.99


def test_neither_brightness_nor_contrast_nor_sign_is_seen() -> None:
    x = noise(2, 3, 8, 8)
    expected = patch_histograms(x, 4)
    for changed in (0.25 + 0.5 * x, 1 - x):
        torch.testing.assert_close(patch_histograms(changed, 4), expected)


def test_a_flat_image_has_no_gradient() -> None:
    assert not patch_histograms(torch.full((1, 3, 8, 8), 0.7), 4).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precisions(dtype: torch.dtype) -> None:
    x = noise(2, 3, 8, 8).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = patch_histograms(x, 4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, patch_histograms(x.double(), 4).float())


def test_an_image_does_not_depend_on_its_batch() -> None:
    x = noise(5, 3, 8, 8).float()
    alone = torch.cat([patch_histograms(image[None], 4) for image in x])
    assert torch.equal(patch_histograms(x, 4), alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_says_the_same() -> None:
    x = noise(4, 3, 32, 32).float()
    torch.testing.assert_close(patch_histograms(x.cuda(), 8).cpu(), patch_histograms(x, 8))
