"""Augmentations against colorsys, Pillow and scipy, and the promises of the package."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageFilter
from scipy import ndimage
from torch import Tensor

from bombus.data import augment
from bombus.data.augment import colour, geometry
from bombus.data.augment._draw import uniform
from bombus.errors import InputError

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


def whole_batch_cotta(x: Tensor, generator: torch.Generator) -> Tensor:
    return augment.cotta_view(x, generator, per_sample=False)


def zero_affine(x: Tensor, generator: torch.Generator) -> Tensor:
    return augment.random_affine(x, generator, padding="zero")


def ranged_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return augment.gaussian_noise(x, generator, sigma=(0, 0.1))


RANDOM: list[Augmentation] = [
    augment.random_flip,
    augment.colour_jitter,
    augment.random_affine,
    zero_affine,
    augment.gaussian_blur,
    augment.gaussian_noise,
    ranged_noise,
    augment.random_crop,
    augment.random_greyscale,
    augment.cotta_view,
    whole_batch_cotta,
    augment.adacontrast_weak,
    augment.adacontrast_strong,
    augment.mild_view,
    augment.strong_view,
]
every = pytest.mark.parametrize("f", RANDOM, ids=lambda f: f.__name__)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, height: int = 32, width: int = 32, seed: int = 1) -> Tensor:
    return torch.rand(n, 3, height, width, generator=seeded(seed))


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


# The promises of the package


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shape_dtype_and_range_are_kept(f: Augmentation, dtype: torch.dtype) -> None:
    x = images(height=24).to(dtype)
    before = x.clone()
    out = f(x, seeded())
    assert out.shape == x.shape
    assert out.dtype == dtype
    assert out.min() >= 0
    assert out.max() <= 1
    assert torch.equal(x, before)
    if dtype.itemsize == 2:  # computed in float32, rounded once
        assert torch.equal(out, f(x.float(), seeded()).to(dtype))


@every
def test_same_state_same_view_and_the_state_moves_on(f: Augmentation) -> None:
    x, generator = images(40), seeded()
    state = generator.get_state()
    first, second = f(x, generator), f(x, generator)
    generator.set_state(state)
    assert torch.equal(f(x, generator), first)
    assert torch.equal(f(x, generator), second)
    assert not torch.equal(first, second)


@every
def test_the_draws_do_not_depend_on_the_pixels(f: Augmentation) -> None:
    states = []
    for x in (images(), torch.zeros(6, 3, 32, 32), torch.ones(6, 3, 32, 32).double()):
        generator = seeded()
        f(x, generator)
        states.append(generator.get_state())
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


@every
def test_a_sample_does_not_depend_on_the_pixels_of_the_others(f: Augmentation) -> None:
    x = images(5)
    other = images(5, seed=2) * 0.1
    other[3] = x[3]
    assert torch.equal(f(x, seeded())[3], f(other, seeded())[3])


@every
def test_samples_get_their_own_parameters(f: Augmentation) -> None:
    same = images(1).expand(40, -1, -1, -1)
    distinct = len(f(same, seeded()).flatten(1).unique(dim=0))
    few = f in (augment.random_flip, augment.random_greyscale)  # these have two outcomes
    assert distinct == 2 if few else distinct > 20


@every
@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(0, 3),
    height=st.integers(4, 40),
    width=st.integers(4, 40),
    level=st.sampled_from([0.0, 0.5, 1.0, None]),
    seed=st.integers(0, 2**31),
)
def test_any_size_and_flat_images(
    f: Augmentation, n: int, height: int, width: int, level: float | None, seed: int
) -> None:
    x = images(n, height, width) if level is None else torch.full((n, 3, height, width), level)
    out = f(x, seeded(seed))
    assert out.shape == x.shape
    assert ((out >= 0) & (out <= 1)).all()


@pytest.mark.parametrize(
    "bad", [torch.zeros(3, 8, 8), torch.zeros(2, 1, 8, 8), torch.zeros(2, 3, 8, 8).byte()]
)
def test_what_is_not_a_batch_of_images_is_refused(bad: Tensor) -> None:
    with pytest.raises(InputError, match=r"\(N, 3, H, W\), not torch\.\w+ of shape"):
        augment.colour_jitter(bad, seeded())


# Colour


def bytes_and_images(height: int = 12, width: int = 9) -> tuple[np.ndarray, Tensor]:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return pixels, torch.from_numpy(pixels).permute(2, 0, 1)[None].double() / 255


@pytest.mark.parametrize("factor", [0.0, 0.55, 1.0, 1.4])
@pytest.mark.parametrize(
    ("ours", "oracle"),
    [
        (colour.adjust_brightness, ImageEnhance.Brightness),
        (colour.adjust_contrast, ImageEnhance.Contrast),
        (colour.adjust_saturation, ImageEnhance.Color),
    ],
)
def test_blends_equal_pillow(
    ours: Callable[[Tensor, Tensor], Tensor],
    oracle: Callable[[Image.Image], ImageEnhance.Brightness],
    factor: float,
) -> None:
    pixels, x = bytes_and_images()
    expected = np.asarray(oracle(Image.fromarray(pixels)).enhance(factor)).astype(float)
    got = ours(x, column(factor))[0].permute(1, 2, 0).numpy() * 255
    assert np.abs(got - expected).max() < 1.6  # Pillow rounds the grey to a byte, then cuts


def test_greyscale_equals_pillow() -> None:
    pixels, x = bytes_and_images()
    expected = np.asarray(Image.fromarray(pixels).convert("L")).astype(float)
    assert np.abs(colour.greyscale(x)[0, 0].numpy() * 255 - expected).max() < 0.51
    assert torch.allclose(colour.greyscale(torch.ones(1, 3, 2, 2)), torch.ones(1))


@pytest.mark.parametrize("shift", [-0.5, -0.06, 0.0, 0.1, 0.37])
def test_hue_equals_colorsys(shift: float) -> None:
    special = [(0, 0, 0), (1, 1, 1), (0.3, 0.3, 0.3), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1)]
    special += [(0, 0, 1), (1, 0, 1), (0.7, 0.7, 0.1), (0.1, 0.7, 0.7), (0.7, 0.1, 0.7)]
    pixels = np.concatenate([np.array(special, float), np.random.default_rng(4).random((40, 3))])
    expected = []
    for r, g, b in pixels:
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        expected.append(colorsys.hsv_to_rgb((h + shift) % 1, s, v))
    x = torch.from_numpy(pixels.T.copy()).view(1, 3, 4, 13)
    got = colour.adjust_hue(x, column(shift))[0].flatten(1).T.numpy()
    assert np.abs(got - np.array(expected)).max() < 1e-12
    in_float = colour.adjust_hue(x.float(), column(shift).float())[0].flatten(1).T.numpy()
    assert np.abs(in_float - np.array(expected)).max() < 2e-6


def test_gamma_is_a_power_each_sample_its_own() -> None:
    x = images(3).double()
    got = colour.adjust_gamma(x, column(0.7, 1.0, 1.3))
    for i, power in enumerate((0.7, 1.0, 1.3)):
        assert np.allclose(got[i].numpy(), x[i].numpy() ** power, atol=1e-7)


def test_contrast_is_around_the_samples_own_mean() -> None:
    x = images(4).double() * column(0.1, 0.3, 0.6, 1)
    together = colour.adjust_contrast(x, column(0.8, 1.2, 0.9, 1.1))
    for i, factor in enumerate((0.8, 1.2, 0.9, 1.1)):
        mean = (x[i] * torch.tensor([0.299, 0.587, 0.114]).double().view(3, 1, 1)).sum(0).mean()
        assert torch.allclose(together[i], (factor * x[i] + (1 - factor) * mean).clamp(0, 1))


def test_neutral_colours_change_nothing() -> None:
    x = images()
    one, zero = (1.0, 1.0), (0.0, 0.0)
    neutral = augment.colour_jitter(
        x, seeded(), brightness=one, contrast=one, saturation=one, hue=zero, gamma=one
    )
    assert torch.allclose(neutral, x, atol=1e-6)
    nothing = augment.colour_jitter(
        x, seeded(), brightness=None, contrast=None, saturation=None, hue=None, gamma=None
    )
    assert torch.equal(nothing, x)


def test_jitter_applies_the_drawn_factors_in_the_drawn_order() -> None:
    ranges = [(0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3)]
    steps = [
        colour.adjust_brightness,
        colour.adjust_contrast,
        colour.adjust_saturation,
        colour.adjust_hue,
        colour.adjust_gamma,
    ]
    x = images()
    orders = set()
    for seed in range(4):
        replay = seeded(seed)
        factors = [uniform(bounds, len(x), replay, x) for bounds in ranges]
        order = torch.randperm(5, generator=replay).tolist()
        orders.add(tuple(order))
        expected = x
        for i in order:
            expected = steps[i](expected, factors[i])
        assert torch.equal(augment.colour_jitter(x, seeded(seed)), expected)
    assert len(orders) > 1


def test_factors_fill_their_range() -> None:
    grey = torch.full((2000, 3, 1, 1), 0.5)
    got = augment.colour_jitter(
        grey, seeded(), contrast=None, saturation=None, hue=None, gamma=None
    )[:, 0, 0, 0]
    assert 0.3 <= got.min() < 0.301
    assert 0.699 < got.max() <= 0.7
    assert abs(got.mean() - 0.5) < 0.01


def test_random_greyscale_takes_a_share() -> None:
    x = images(1, 2, 2).expand(2000, -1, -1, -1)
    got = augment.random_greyscale(x, seeded(), p=0.2)
    grey = (got[:, 0] == got[:, 1]).flatten(1).all(1)
    assert abs(grey.float().mean() - 0.2) < 0.03
    assert torch.equal(got[~grey], x[~grey])
    assert torch.equal(augment.random_greyscale(x, seeded(), p=0), x)


# Geometry


def test_flips() -> None:
    x = images(2000, 2, 3)
    assert np.array_equal(augment.flip(x).numpy(), x.numpy()[..., ::-1])
    got = augment.random_flip(x, seeded())
    turned = (got != x).flatten(1).any(1)
    assert abs(turned.float().mean() - 0.5) < 0.04
    assert torch.equal(got[turned], x[turned].flip(-1))
    assert torch.equal(augment.random_flip(x, seeded(), p=1), x.flip(-1))
    assert torch.equal(augment.random_flip(x, seeded(), p=0), x)


def scipy_affine(
    image: np.ndarray, degrees: float, right: float, down: float, scale: float, mode: str
) -> np.ndarray:
    """One channel; scipy maps output (row, column) to input by matrix and offset."""
    c, s = math.cos(math.radians(degrees)) / scale, math.sin(math.radians(degrees)) / scale
    matrix = np.array([[c, -s], [s, c]])
    centre = (np.array(image.shape) - 1) / 2
    offset = centre - matrix @ (centre + np.array([down, right]))
    out: np.ndarray = ndimage.affine_transform(image, matrix, offset, order=1, mode=mode)
    return out


@pytest.mark.parametrize(
    ("padding", "mode"), [("edge", "nearest"), ("reflect", "reflect"), ("zero", "grid-constant")]
)
def test_affine_equals_scipy(padding: geometry.Padding, mode: str) -> None:
    x = images(4, 20, 27).double()
    settings_of = [(0, 0, 0, 1), (15, 1.7, -2.2, 0.9), (-40, -6, 3.3, 1.3), (7.5, 4, 9, 0.6)]
    columns = [column(*values) for values in zip(*settings_of, strict=True)]
    got = geometry.affine(x, *columns, padding=padding).numpy()
    for i, parameters in enumerate(settings_of):
        for channel in range(3):
            expected = scipy_affine(x[i, channel].numpy(), *parameters, mode)
            assert np.abs(got[i, channel] - expected).max() < 1e-9


def test_affine_turns_clockwise_and_moves_right_and_down() -> None:
    x = torch.zeros(1, 3, 9, 9).double()
    x[:, :, 4, 7] = 1  # three to the right of the centre
    turned = geometry.affine(x, column(90), column(0), column(0), column(1))
    assert torch.allclose(turned, x.transpose(2, 3), atol=1e-9)  # now three below
    moved = geometry.affine(x, column(0), column(1), column(2), column(1))
    assert torch.allclose(moved, x.roll((2, 1), (2, 3)), atol=1e-9)
    larger = geometry.affine(x, column(0), column(0), column(0), column(4 / 3))
    assert larger[0, 0].argmax() == 4 * 9 + 8  # four to the right


def test_affine_with_margin_is_the_same_image_seen_wider() -> None:
    x = images(2, 16, 20)
    columns = [column(*v).float() for v in ((10, -5), (1, 2.5), (-1, 0), (0.9, 1.1))]
    wide = geometry.affine(x, *columns, margin=2)
    assert wide.shape == (2, 3, 20, 24)
    assert torch.allclose(wide[..., 2:-2, 2:-2], geometry.affine(x, *columns), atol=1e-6)


@pytest.mark.parametrize("padding", ["edge", "reflect", "zero"])
def test_neutral_affine_changes_nothing(padding: geometry.Padding) -> None:
    x = images(3, 17, 32)
    got = augment.random_affine(x, seeded(), degrees=0, translate=0, scale=(1, 1), padding=padding)
    assert torch.allclose(got, x, atol=1e-5)  # coordinates are rounded at 2e-6 of a pixel


def test_random_affine_stays_within_its_ranges() -> None:
    ramp = torch.linspace(0, 1, 33).expand(500, 3, 33, 33)
    got = augment.random_affine(ramp, seeded(), degrees=0, translate=1 / 11, scale=(1, 1))
    moved = (0.5 - got[:, 0, 16, 16]) * 32  # pixels to the right
    assert 2.9 < moved.max() <= 3.0001
    assert -3.0001 <= moved.min() < -2.9
    turned = augment.random_affine(ramp, seeded(), degrees=15, translate=0, scale=(1, 1))
    slope = (turned[:, 0, 16, 17] - turned[:, 0, 16, 15]) * 16  # cos of the angle
    assert math.cos(math.radians(15)) - 1e-4 < slope.min() < math.cos(math.radians(14))
    zoomed = augment.random_affine(ramp, seeded(), degrees=0, translate=0)
    slope = (zoomed[:, 0, 16, 17] - zoomed[:, 0, 16, 15]) * 16  # 1 / scale
    assert 1 / 1.1 - 1e-4 < slope.min() < 1 / 1.09
    assert 1 / 0.91 < slope.max() < 1 / 0.9 + 1e-4


def test_random_crop_is_a_crop_of_the_padded_image() -> None:
    x, pixels = images(300, 6, 9), 3
    got = augment.random_crop(x, seeded(), pixels)
    replay = torch.randint(-pixels, pixels + 1, (2, len(x), 1), generator=seeded())
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)), "reflect")
    seen = set()
    for i, (down, right) in enumerate(replay[..., 0].T.tolist()):
        top, left = pixels + down, pixels + right
        assert np.array_equal(got[i].numpy(), padded[i, :, top : top + 6, left : left + 9])
        seen.add((down, right))
    assert len(seen) == 49
    assert torch.equal(augment.random_crop(x, seeded(), 0), x)
    with pytest.raises(InputError, match=r"pixels=6 must be .* 6 by 9"):
        augment.random_crop(x, seeded(), 6)


# Blur and noise


def window(sigma: float, kernel: int) -> np.ndarray:
    offsets = np.arange(kernel) - kernel // 2
    line = np.exp(-0.5 * (offsets / sigma) ** 2)
    full = np.outer(line, line)
    result: np.ndarray = full / full.sum()
    return result


@pytest.mark.parametrize("kernel", [1, 3, 5, 23])
def test_blur_equals_a_convolution(kernel: int) -> None:
    x = images(3, 16, 21).double()
    got = augment.gaussian_blur(x, seeded(), kernel=kernel, sigma=(0.1, 2)).numpy()
    sigmas = uniform((0.1, 2), 3, seeded(), x).flatten().tolist()
    for i, sigma in enumerate(sigmas):
        for channel in range(3):
            expected = ndimage.convolve(x[i, channel].numpy(), window(sigma, kernel), mode="mirror")
            assert np.abs(got[i, channel] - expected).max() < 1e-12


@pytest.mark.parametrize("sigma", [0.0, 0.001])
def test_hardly_any_blur_changes_nothing(sigma: float) -> None:
    assert torch.equal(augment.gaussian_blur(images(), seeded(), sigma=(sigma, sigma)), images())


@pytest.mark.parametrize("kernel", [0, 4, 9])
def test_impossible_windows_are_refused(kernel: int) -> None:
    with pytest.raises(InputError, match=f"kernel={kernel} must be odd"):
        augment.gaussian_blur(images(1, 4, 8), seeded(), kernel=kernel)


def test_noise_is_normal_and_a_range_draws_sigma_a_sample() -> None:
    x = torch.full((200, 3, 32, 32), 0.5)
    fixed = augment.gaussian_noise(x, seeded(), 0.05) - x
    assert abs(fixed.mean()) < 1e-3
    assert abs(fixed.std() - 0.05) < 1e-3
    assert abs((fixed.abs() < 0.05).float().mean() - 0.6827) < 0.01
    spread = (augment.gaussian_noise(x, seeded(), (0, 0.1)) - x).flatten(1).std(1)
    drawn = uniform((0, 0.1), len(x), seeded(), x).flatten()
    assert torch.allclose(spread, drawn, rtol=0.1)
    assert torch.equal(augment.gaussian_noise(x, seeded(), 0), x)


# Views


@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("side", [22, 32])
def test_cotta_view_equals_the_chain_with_the_padding_built(per_sample: bool, side: int) -> None:
    x = images(4, side, side).double()
    replay, n, half = seeded(5), 4 if per_sample else 1, side // 2
    jittered = augment.colour_jitter(x, replay, per_sample=per_sample)
    far = (side + 2 * half) / 16
    draws = [uniform(b, n, replay, x) for b in ((-15, 15), (-far, far), (-far, far), (0.9, 1.1))]
    sigma = uniform((0.001, 0.5), n, replay, x)
    heads = torch.rand(n, 1, 1, 1, generator=replay) < 0.5
    noise = 0.005 * torch.randn(x.shape, generator=replay).double()
    expected = np.empty(x.shape)
    for i in range(4):
        degrees, right, down, scale = (d.flatten()[i % n].item() for d in draws)
        for channel in range(3):
            padded = np.pad(jittered[i, channel].numpy(), half, "edge")
            turned = scipy_affine(
                padded, degrees, round(right), round(down), scale, "grid-constant"
            )
            kernel = window(sigma.flatten()[i % n].item(), 5)
            cropped = ndimage.convolve(turned, kernel)[half : half + side, half : half + side]
            expected[i, channel] = cropped[:, ::-1] if heads.flatten()[i % n] else cropped
    expected = (expected + noise.numpy()).clip(0, 1)
    got = augment.cotta_view(x, seeded(5), per_sample=per_sample)
    assert np.abs(got.numpy() - expected).max() < 1e-9


def test_cotta_view_never_reads_beyond_its_padding() -> None:
    """The inequality of its docstring; the angle of 15° is the worst, being below 45°."""
    worst = (math.cos(math.radians(15)) + math.sin(math.radians(15))) / 0.9

    def fits(side: int) -> bool:
        padded = side + 2 * (side // 2)
        return ((side + 3) / 2 + round(padded / 16)) * worst <= (padded - 1) / 2

    assert all(fits(side) for side in range(22, 1025))
    assert not fits(21)


def test_cotta_view_clips_what_it_is_given() -> None:
    x = images() * 3 - 1
    assert torch.equal(augment.cotta_view(x, seeded()), augment.cotta_view(x.clamp(0, 1), seeded()))


def test_whole_batch_cotta_view_uses_one_set_of_parameters() -> None:
    same = images(1).expand(8, -1, -1, -1)
    for seed in range(5):
        got = augment.cotta_view(same, seeded(seed), per_sample=False)
        assert (got - got[:1]).abs().max() < 0.06  # noise alone: sigma .005, twice
    assert (augment.cotta_view(same, seeded()) - augment.cotta_view(same, seeded())[:1]).std() > 0.1


def test_mild_view_only_moves_and_changes_the_light() -> None:
    red = torch.tensor([0.8, 0.2, 0.2]).view(1, 3, 1, 1).expand(200, 3, 32, 32)
    got = augment.mild_view(red, seeded())
    assert (got - got[..., :1, :1]).abs().max() < 1e-5  # a flat image stays flat: no noise, no fill
    assert torch.allclose(got[:, 1], got[:, 2], atol=1e-6)  # and red stays red: no hue
    assert not torch.allclose(got[:, 0], red[:, 0], atol=0.05)


def test_strong_view_adds_noise_of_its_own_a_sample() -> None:
    flat = torch.full((300, 3, 32, 32), 0.5)
    spread = augment.strong_view(flat, seeded()).flatten(1).std(1)
    assert spread.min() < 0.002
    assert 0.037 < spread.max() < 0.043


def test_adacontrast_weak_is_a_shifted_maybe_mirrored_copy() -> None:
    x = images(30)
    got = augment.adacontrast_weak(x, seeded())
    replay = seeded()
    shifted = augment.random_crop(x, replay, 2)
    assert torch.equal(got, augment.random_flip(shifted, replay))


@pytest.mark.parametrize(("side", "kernel"), [(4, 7), (16, 13), (32, 13), (224, 13)])
def test_adacontrast_strong_is_its_chain(side: int, kernel: int) -> None:
    x, replay = images(12, side, side), seeded()
    light = augment.colour_jitter(
        x,
        replay,
        brightness=(0.6, 1.4),
        contrast=(0.6, 1.4),
        saturation=(0.6, 1.4),
        hue=(-0.1, 0.1),
        gamma=None,
    )
    expected = torch.where(torch.rand(12, 1, 1, 1, generator=replay) < 0.8, light, x)
    expected = augment.random_greyscale(expected, replay, 0.2)
    soft = augment.gaussian_blur(expected, replay, kernel=kernel, sigma=(0.1, 2.0))
    expected = torch.where(torch.rand(12, 1, 1, 1, generator=replay) < 0.5, soft, expected)
    expected = augment.random_flip(expected, replay, 0.5)
    assert torch.equal(augment.adacontrast_strong(x, seeded()), expected)


@pytest.mark.parametrize("sigma", [1.0, 1.5, 2.0])
def test_the_blur_of_a_strong_view_is_as_wide_as_pillows(sigma: float) -> None:
    """The reference blurs with Pillow, whose filter has no window; one too narrow is no blur."""

    def width(edge: np.ndarray) -> float:
        slope = np.diff(edge.astype(float))
        where = np.arange(len(slope)) - (len(slope) - 1) / 2
        return math.sqrt((slope * where**2).sum() / slope.sum())

    half = np.zeros((32, 32), np.uint8)
    half[:, 16:] = 255
    soft = np.asarray(Image.fromarray(half).filter(ImageFilter.GaussianBlur(sigma)))
    x = torch.from_numpy(half / 255).float().expand(1, 3, 32, 32)
    ours = augment.gaussian_blur(x, seeded(), kernel=13, sigma=(sigma, sigma))
    assert width(ours[0, 0, 16].numpy()) == pytest.approx(width(soft[16]), rel=0.05)


def test_adacontrast_strong_shares() -> None:
    x = images(1, 20, 20).expand(1500, -1, -1, -1)
    got = augment.adacontrast_strong(x, seeded())
    untouched = ((got == x).flatten(1).all(1) | (got == x.flip(-1)).flatten(1).all(1)).float()
    assert abs(untouched.mean() - 0.2 * 0.8 * 0.5) < 0.02  # no jitter, no grey, no blur
    grey = (got.amax(1) - got.amin(1)).flatten(1).amax(1) < 1e-6
    assert abs(grey.float().mean() - 0.2) < 0.03


def test_views_by_name() -> None:
    assert list(augment.VIEWS) == ["none", "mild", "turned", "strong", "cotta"]
    x, generator = images(), seeded()
    assert augment.VIEWS["none"](x, generator) is x
    assert torch.equal(generator.get_state(), seeded().get_state())
    for name, f in (
        ("mild", augment.mild_view),
        ("turned", augment.turned_view),
        ("strong", augment.strong_view),
        ("cotta", augment.cotta_view),
    ):
        assert torch.equal(augment.VIEWS[name](x, seeded()), f(x, seeded()))


@pytest.mark.parametrize("augmentation", RANDOM)
def test_draws_lie_where_the_generator_is(augmentation: Augmentation) -> None:
    """And not on torch.set_default_device's, whose numbers it cannot draw."""
    x = images()
    with torch.device("meta"):
        got = augmentation(x, seeded())
    assert torch.equal(got, augmentation(x, seeded()))
