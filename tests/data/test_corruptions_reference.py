"""Our corruptions against pictures of the published generator: 1,000 CIFAR-10 images, severity 5.

The reference lies in the folder shared/ beside the repository, with two small networks trained on
clean CIFAR-10. A corruption without random numbers must give the same picture; one with random
numbers must have the same mean and spread and be as hard for the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bombus.backbones import create
from bombus.backbones.weights import load_weights
from bombus.data.corruptions import NAMES, STANDARD, corrupt

SHARED = Path(__file__).parents[2].parent / "shared"
REFERENCE = SHARED / "data" / "cifar10-c-reference"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared reference images are not here"),
]

# Without random numbers; the number is the mean absolute difference allowed, of 255. Most are equal
# but for rounding, so the limit is far below the 1.0 that would still look the same.
SAME_PICTURE = {
    "brightness": 0.1,
    "contrast": 0.1,
    "pixelate": 0.1,
    "jpeg_compression": 1.0,  # another JPEG library may differ
    "defocus_blur": 0.2,
    "gaussian_blur": 0.1,
    "zoom_blur": 0.1,
    "saturate": 0.1,
}
RANDOM = [name for name in NAMES if name not in SAME_PICTURE]
# The networks' errors on the reference pictures in %, in the order of NAMES; measured once, because
# the small computer of a test run is slow (test_the_table_is_true measures one of them again).
THEIR_ERROR = {
    "wrn-16-2": (
        *(77.3, 70.6, 72.2, 57.4, 58.4, 46.4, 49.0, 35.7, 52.6, 42.9, 13.8, 73.4, 32.4, 61.6, 30.3),
        *(64.4, 71.1, 32.2, 17.8),
    ),
    "wrn-16-1": (
        *(75.5, 67.7, 68.9, 49.1, 62.7, 43.2, 45.8, 38.1, 54.3, 44.6, 15.9, 73.6, 34.9, 65.6, 30.7),
        *(64.0, 66.4, 34.3, 18.4),
    ),
}
NETWORKS = tuple(THEIR_ERROR)
# Points of error; the draw of the noise alone moves the error of 1,000 images by 1 to 1.5 points,
# and the second network, a second opinion, gets a little more room.
ERROR_LIMIT = {"wrn-16-2": 4.0, "wrn-16-1": 5.0}
FROST_LIMIT = 6.0


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def reference(name: str) -> Tensor:
    with Image.open(REFERENCE / f"{name}.png") as sheet:
        rows = np.array(sheet.convert("RGB"))  # one image a row
    return torch.from_numpy(rows).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()


@cache
def ours(name: str) -> Tensor:
    clean = reference("clean")
    return corrupt(clean, name, 5, index=torch.arange(len(clean)))


@cache
def network(name: str) -> torch.nn.Module:
    model = create(name, num_classes=10)
    load_weights(model, [SHARED / "weights" / f"cifar10-{name}.safetensors"])
    return model.eval().to(memory_format=torch.channels_last)


@cache
def labels() -> Tensor:
    return torch.tensor(json.loads((REFERENCE / "labels.json").read_text()))


@torch.no_grad()
def error(model: str, images: Tensor) -> float:
    parts = (images.to(memory_format=torch.channels_last).float() / 255).split(50)
    predicted = torch.cat([network(model)(part).argmax(dim=1) for part in parts])
    return 100 * (predicted != labels()).double().mean().item()


@cache
def errors(model: str, name: str) -> tuple[float, float]:
    return error(model, ours(name)), THEIR_ERROR[model][NAMES.index(name)]


@pytest.mark.parametrize("name", SAME_PICTURE)
def test_corruptions_without_chance_give_the_same_picture(name: str) -> None:
    difference = (ours(name).double() - reference(name).double()).abs().mean().item()
    assert difference <= SAME_PICTURE[name]


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_have_the_same_mean_and_spread(name: str) -> None:
    mine, theirs = ours(name).double(), reference(name).double()
    assert mine.mean().item() == pytest.approx(theirs.mean().item(), rel=0.05)
    assert mine.std().item() == pytest.approx(theirs.std().item(), rel=0.05)
    for channel in range(3):
        a, b = mine[:, channel], theirs[:, channel]
        assert a.mean().item() == pytest.approx(b.mean().item(), rel=0.05)
        assert a.std().item() == pytest.approx(b.std().item(), rel=0.05)


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_vary_alike_from_image_to_image(name: str) -> None:
    # What the corruption adds to each image: its mean and its spread, over the images.
    clean = reference("clean").double()
    mine, theirs = ours(name).double() - clean, reference(name).double() - clean
    for measure in (torch.mean, torch.std):
        a, b = (measure(change, dim=(1, 2, 3)) for change in (mine, theirs))
        assert a.mean().item() == pytest.approx(b.mean().item(), rel=0.05, abs=1.0)
        assert a.std().item() == pytest.approx(b.std().item(), rel=0.15, abs=0.5)


@pytest.mark.parametrize("model", NETWORKS)
def test_the_table_is_true(model: str) -> None:
    theirs = THEIR_ERROR[model][NAMES.index("frost")]
    assert error(model, reference("frost")) == pytest.approx(theirs, abs=0.3)


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_the_network_errs_alike(name: str, model: str) -> None:
    limit = FROST_LIMIT if name == "frost" else ERROR_LIMIT[model]
    mine, theirs = errors(model, name)
    assert mine == pytest.approx(theirs, abs=limit)


@pytest.mark.parametrize("model", NETWORKS)
def test_the_mean_error_of_the_standard_fifteen_is_alike(model: str) -> None:
    pairs = [errors(model, name) for name in STANDARD]
    mine, theirs = (sum(column) / len(column) for column in zip(*pairs, strict=True))
    assert mine == pytest.approx(theirs, abs=1.5)
