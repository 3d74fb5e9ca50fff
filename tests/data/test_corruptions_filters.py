"""Filters, zooms, shuffles and drops against scipy, Pillow and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from bombus.data.corruptions import blur, digital, filters, spatter
from bombus.data.corruptions.random import Draws

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (2, 3, 24, 32)).astype(np.uint8)
IMAGES = torch.from_numpy(BYTES)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 6.0])
def test_gaussian_equals_scipy(sigma: float) -> None:
    ours = filters.gaussian(IMAGES, sigma).numpy()
    oracle = ndimage.gaussian_filter(
        BYTES.astype(float), (0, 0, sigma, sigma), mode="nearest", truncate=4
    )
    assert np.abs(ours - oracle).max() < 0.01  # weights are rounded to 18 bits


def test_mirrored_gaussian_equals_scipy_even_when_it_is_wider_than_the_picture() -> None:
    field = RANDOM.uniform(-1, 1, (1, 20, 20))
    ours = filters.gaussian(filters.snap(torch.from_numpy(field)), 15.0, 3.0, "mirror").numpy()
    oracle = ndimage.gaussian_filter(field, (0, 15, 15), mode="reflect", truncate=3)
    assert np.abs(ours - oracle).max() < 1e-3


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.13, 1.25, 2.25, 4.5])
def test_clipped_zoom_equals_scipy(factor: float) -> None:
    picture = BYTES[0, 0, :24, :24].astype(float)
    cropped = math.ceil(24 / factor)
    top = (24 - cropped) // 2
    zoomed = ndimage.zoom(picture[top : top + cropped, top : top + cropped], factor, order=1)
    trim = (len(zoomed) - 24) // 2
    ours = filters.clipped_zoom(torch.from_numpy(picture), factor).numpy()
    assert np.abs(ours - zoomed[trim : trim + 24, trim : trim + 24]).max() < 0.01


@pytest.mark.parametrize(("radius", "softness"), [(1.5, 0.1), (4, 0.5), (10, 0.5)])
def test_defocus_equals_scipy(radius: float, softness: float) -> None:
    kernel = blur.disk(radius, softness)
    ours = filters.correlate(IMAGES, kernel).numpy()
    oracle = ndimage.correlate(BYTES.astype(float), kernel[None, None], mode="mirror")
    assert np.abs(ours - oracle).max() < 0.01


def test_motion_blur_equals_a_walk_along_the_line() -> None:
    degrees = torch.tensor([-31.0, 100.0], dtype=torch.float64)
    ours = filters.motion_blur(IMAGES, 4, 2.0, degrees).numpy()
    for image, angle, blurred in zip(BYTES, np.deg2rad(degrees.numpy()), ours, strict=True):
        weights = np.exp(-0.5 * (np.arange(9) / 2.0) ** 2)
        for y, x in ((0, 0), (12, 20), (23, 31), (5, 30)):
            total = np.zeros(3)
            for tap, weight in enumerate(weights / weights.sum()):
                seen_x = np.clip(x + math.ceil(tap * np.cos(angle) - 0.5), 0, 31)
                seen_y = np.clip(y + math.ceil(tap * np.sin(angle) - 0.5), 0, 23)
                total += weight * image[:, seen_y, seen_x]
            assert np.abs(blurred[:, y, x] - (total - 0.5)).max() <= 0.51  # cut to whole numbers


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_shuffle_equals_the_walk_from_pixel_to_pixel(reach: int) -> None:
    height, width = 20, 24
    offsets = Draws(0, "test", torch.arange(2)).integer(-reach, reach, 2, height, width)
    ours = blur._shuffle_sources(offsets, reach)
    for sample in range(2):
        picture = np.arange(height * width).reshape(height, width)
        for y in range(height - reach, reach, -1):
            for x in range(width - reach, reach, -1):
                dx, dy = offsets[sample, :, y, x].tolist()
                picture[y, x] = picture[y + dy, x + dx]  # a copy, not a swap: as published
        assert np.array_equal(ours[sample].numpy(), picture.ravel())


@pytest.mark.parametrize("share", [0.25, 0.3, 0.65, 0.95])
def test_pixelate_equals_pillow(share: float) -> None:
    picture = Image.fromarray(BYTES[0].transpose(1, 2, 0))
    small = picture.resize((int(32 * share), int(24 * share)), Image.Resampling.BOX)
    oracle = np.asarray(small.resize((32, 24), Image.Resampling.BOX))
    ours = digital.pixelate(IMAGES, Draws(0, "test", torch.arange(2)), (share,))
    assert np.array_equal(ours[0].permute(1, 2, 0).numpy(), oracle)


def test_interpolation_equals_scipy_at_both_borders() -> None:
    places = RANDOM.uniform(-6, 40, (2, 1, 24, 32))
    y, x = torch.from_numpy(places)
    for repeat_edge, mode in ((True, "reflect"), (False, "mirror")):
        ours = digital._interpolate(IMAGES[:1].double(), y, x, repeat_edge)
        oracle = ndimage.map_coordinates(
            BYTES[0, 0].astype(float), [places[0, 0], places[1, 0]], order=1, mode=mode
        )
        assert np.abs(ours[0, 0].numpy() - oracle).max() < 1e-9


def test_elastic_without_jitter_and_displacement_is_the_identity() -> None:
    same = digital.elastic_transform(IMAGES, Draws(0, "test", torch.arange(2)), (0, 0, 0))
    assert torch.equal(same, IMAGES.double())


def test_chamfer_distance_is_close_to_the_true_one() -> None:
    edges = np.zeros((1, 40, 40), dtype=bool)
    edges[0, RANDOM.integers(0, 40, 8), RANDOM.integers(0, 40, 8)] = True
    ours = spatter._distance(torch.from_numpy(edges))[0].numpy() / 65536
    true = ndimage.distance_transform_edt(~edges[0])
    near = true < 18
    assert np.abs(ours - true)[near].max() < 0.03 * 18
    nothing = spatter._distance(torch.zeros(1, 8, 8, dtype=torch.bool))
    assert bool((nothing >= 20 << 16).all())


def test_edges_of_a_square_are_a_thin_closed_line() -> None:
    square = torch.zeros(1, 20, 20, dtype=torch.int32)
    square[0, 5:15, 5:15] = 200
    edges = spatter._edges(square)[0].numpy()
    assert 30 < edges.sum() < 60
    labels, _ = ndimage.label(~edges)
    assert labels[10, 10] != labels[0, 0], "the line must separate inside from outside"
    assert not spatter._edges(torch.full((1, 9, 9), 180, dtype=torch.int32)).any()


def test_equalised_levels_span_all_bytes() -> None:
    values = torch.from_numpy(RANDOM.integers(0, 21, (2, 30, 30)))
    values[1] = 7
    spread = spatter._equalised(values)
    assert (spread[0].min().item(), spread[0].max().item()) == (0, 255)
    assert spread[1].unique().tolist() == [7], "a single level has nothing to spread"


def test_a_lens_without_drops_leaves_the_picture() -> None:
    dry = (0.1, 0.01, 1.0, 0.9, 0.5, 0.0)
    same = spatter.spatter(IMAGES, Draws(0, "test", torch.arange(2)), dry)
    assert torch.equal(same, IMAGES.double())
