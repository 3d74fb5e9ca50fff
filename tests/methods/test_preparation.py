"""How a preparation on source images is kept, told from others, refused, and cut short."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bombus
from bombus.errors import CheckpointError
from bombus.methods import _warmup
from bombus.methods._codebooks import draw_codes, random_codes
from bombus.methods._warmup_file import DIGEST, save_warmup
from bombus.methods.bee import Bee
from bombus.provenance import file_digests
from tiny import make_tiny, noise_batches, tree_hash

SMALL = Bee.Config(codes=8, warmup_rounds=1)
REHEARSING = Bee.Config(codes=8, warmup_rounds=1, rehearsal_weight=1.0, rehearsal_images=12)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for every preparation that was really made."""
    made: list[int] = []
    train = _warmup.train

    def counting(*args: Any) -> None:
        made.append(1)
        train(*args)

    monkeypatch.setattr(_warmup, "train", counting)
    return made


def prepared(source: Any, config: Any = SMALL) -> Bee:
    return Bee(make_tiny("batchnorm"), config, source=source)


def told(bee: Bee) -> list[str]:
    return [event["event"] for event in bee.last.events]


def everything(bee: Bee) -> str:
    return tree_hash([bee.state_dict(), bee.rehearsal.state_dict()])


def files_of(cache: Path) -> list[Path]:
    return list(cache.rglob("*.safetensors"))


def tensors_in(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(file, "pt") as reader:
        return {n: reader.get_tensor(n) for n in reader.keys()}, reader.metadata()  # noqa: SIM118


# --- the cache -------------------------------------------------------------------------------


def test_a_cache_that_is_only_to_be_read_serves(
    cache: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = noise_batches(3)
    first = prepared(source)
    (file,) = files_of(cache)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "touch", refuse)
    again = prepared(source)
    assert len(made) == 1
    assert told(again) == []
    assert everything(again) == everything(first)
    assert files_of(cache) == [file]


def test_what_comes_from_the_cache_says_so(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bombus.progress"):
        prepared(noise_batches(3))
        assert "taken from" not in caplog.text
        prepared(noise_batches(3))
    assert f"warming up: done before, taken from {files_of(cache)[0]}" in caplog.text


@pytest.mark.parametrize("damage", ["fewer labels", "one label", "a weight", "a code", "no like"])
def test_a_damaged_file_leaves_nothing_behind(damage: str, cache: Path, made: list[int]) -> None:
    """Made again, a preparation begins at the source weights, with an empty store."""
    source = noise_batches(3)
    good = prepared(source, REHEARSING)
    (file,) = files_of(cache)
    tensors, header = tensors_in(file)
    labels = tensors["rehearsal/labels"]
    if damage in ("fewer labels", "one label", "no like"):
        del tensors[DIGEST]  # as in a file of an earlier version
    if damage == "no like":
        del tensors["rehearsal/like"]
    elif damage.endswith("s") or damage == "one label":
        tensors["rehearsal/labels"] = labels[: 1 if damage == "one label" else -1].clone()
    else:
        kind = "weights/" if damage == "a weight" else "teacher codes/"
        spoilt = next(t for name, t in tensors.items() if name.startswith(kind))
        spoilt.view(-1)[-1] += 1e-3
    save_file(tensors, file, header)
    again = prepared(source, REHEARSING)
    assert told(again) == ["warm-up made again"]
    assert everything(again) == everything(good)
    assert everything(prepared(source, REHEARSING)) == everything(good)
    assert len(made) == 2


# --- the digest ------------------------------------------------------------------------------


def test_a_flipped_bit_is_seen_in_every_tensor(tmp_path: Path) -> None:
    file = tmp_path / "warm.safetensors"
    save_warmup(prepared(noise_batches(3), REHEARSING), file)
    tensors, header = tensors_in(file)
    filled = [t.view(-1).view(torch.uint8) for t in tensors.values() if t.numel()]
    for values in filled:
        values[len(values) // 2] ^= 1
        save_file(tensors, file, header)
        with pytest.raises(CheckpointError, match="no whole warm-up file"):
            prepared(file, REHEARSING)
        values[len(values) // 2] ^= 1
    save_file(tensors, file, header)
    prepared(file, REHEARSING)
    assert len(filled) > 10


def test_files_without_a_digest_still_load(tmp_path: Path) -> None:
    file, bee = tmp_path / "warm.safetensors", prepared(noise_batches(3))
    save_warmup(bee, file)
    tensors, header = tensors_in(file)
    del tensors[DIGEST]
    save_file(tensors, file, header)
    assert everything(prepared(file)) == everything(bee)


def test_a_preparation_made_again_counts_as_the_same(tmp_path: Path) -> None:
    """On a GPU it differs in rounding: the digest must not be among what tells two apart."""
    one, other, bee = tmp_path / "a", tmp_path / "b", prepared(noise_batches(3))
    save_warmup(bee, one)
    bee.codebooks.student[1] += 1e-6
    save_warmup(bee, other)
    assert one.read_bytes() != other.read_bytes()
    assert file_digests((), one) == file_digests((), other)


# --- a source that runs dry ------------------------------------------------------------------


class Stream:
    """Batches that can be gone over again, of a length nobody knows."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_a_source_without_a_length_that_runs_dry_is_told_of_and_not_kept(
    cache: Path, made: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    batches = noise_batches(9)  # of 8 images
    config = Bee.Config(codes=8, warmup_images=80)
    for source in (iter(batches[:4]), Stream(batches[:4])):
        short = prepared(source, config)
        (event,) = short.last.events
        assert event["event"] == "warm-up cut short"
        assert (event["steps"], event["planned"]) == (4, 10)
        assert "ran dry after 4 of 10 steps" in event["reason"]
        assert "40.0% of what it should; give a list" in event["reason"]
    assert "bee: warm-up cut short: the source ran dry" in caplog.text
    assert not files_of(cache)
    # Half of the steps are enough, and a list is gone over until all are made.
    for source in (iter(batches[:5]), iter(batches[:5]), batches[:1]):
        assert told(prepared(source, config)) == []
    assert len(files_of(cache)) == 2
    assert len(made) == 4


def test_what_a_short_source_teaches_stays_the_same() -> None:
    """It is told of; the steps themselves are those of the long ramp, as ever."""
    batches = noise_batches(3)
    config = Bee.Config(codes=8, warmup_images=10**6)
    bees = [prepared(source, config) for source in (iter(batches), iter(batches))]
    assert everything(bees[0]) == everything(bees[1])
    assert everything(bees[0]) != everything(prepared(batches, config))


@pytest.mark.parametrize("method", ["rmt", "dplot"])
def test_a_teachers_warm_up_that_is_cut_short_is_told_of(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    labels = torch.arange(8) % 5
    batches = [(x, labels) for x in noise_batches(5)]
    for source in (batches[:4], Stream(batches)):
        bombus.adapt(make_tiny("batchnorm"), method, source=source, warmup_images=80)
    assert "cut short" not in caplog.text
    bombus.adapt(make_tiny("batchnorm"), method, source=Stream(batches[:4]), warmup_images=80)
    assert "warm-up cut short: the source ran dry after 4 of 10 steps" in caplog.text


# --- one source told from another ------------------------------------------------------------


def test_sorted_folders_with_the_same_first_class_are_told_apart(made: list[int]) -> None:
    images = torch.cat(noise_batches(4))
    config = Bee.Config(codes=8, warmup_rounds=1, seed=91)  # a seed nobody has cached
    other = images.clone()
    other[-8:] = 1 - other[-8:]
    for x in (images, images, other):
        prepared(DataLoader(TensorDataset(x), 8), config)
    assert len(made) == 2
    # What is not read decides nothing.
    few = Bee.Config(codes=8, warmup_rounds=1, seed=91, warmup_images=16)
    for x in (images, other):
        prepared(DataLoader(TensorDataset(x), 8), few)
    assert len(made) == 3


class Augmented(Dataset[tuple[Tensor, int]]):
    """Draws from every generator that is everybody's."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        brighter = random.random() + np.random.rand() + torch.rand(()).item()
        return (self.images[place] + 0.03 * brighter).clamp(0, 1), 0


def test_looking_for_a_warm_up_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read through a loader, or from a list of what that loader gave: the images are the same."""
    # Statistics are taken of the images read once more, and augmented once more.
    monkeypatch.setattr(_warmup, "take_statistics", lambda *_: None)

    def run(make_list: bool) -> list[Any]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        loader = DataLoader(Augmented(torch.cat(noise_batches(4))), 8)
        bee = prepared([x for x, _ in loader] if make_list else loader, config)
        return [everything(bee), random.random(), np.random.rand()]

    config = Bee.Config(codes=8, warmup_rounds=1, seed=92)  # a seed nobody has cached
    assert run(make_list=False) == run(make_list=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_whose_items_are_batches(shuffle: bool, made: list[int]) -> None:
    batches = torch.stack(noise_batches(3))
    config = Bee.Config(codes=8, warmup_rounds=1, seed=93 + shuffle)
    other = batches.clone()
    other[-1] = 1 - other[-1]
    for x in (batches, batches, other):
        items = TensorDataset(x, torch.zeros(3, 8))
        prepared(DataLoader(items, batch_size=None, shuffle=shuffle), config)
    assert len(made) == 2


# --- another default device ------------------------------------------------------------------


@pytest.mark.parametrize("draw", [draw_codes, random_codes])
def test_codes_are_drawn_where_the_generator_is(draw: Any) -> None:
    descriptors = torch.rand(5, 3)

    def drawn() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        codes: Tensor = (
            draw(descriptors, 8, generator)
            if draw is draw_codes
            else draw(8, descriptors, generator)
        )
        return codes

    with torch.device("meta"):
        elsewhere = drawn()
    assert torch.equal(elsewhere, drawn())


def test_a_preparation_does_not_depend_on_the_default_device(cache: Path, made: list[int]) -> None:
    *source, x = noise_batches(4)
    model = make_tiny("batchnorm")
    here = Bee(model, REHEARSING, source=source)
    (file,) = files_of(cache)
    file.unlink()
    with torch.device("meta"):
        for _ in range(2):  # made, then read
            there = Bee(model, REHEARSING, source=source)
            assert everything(there) == everything(here)
        answer = there(x)
    assert len(made) == 2
    assert files_of(cache) == [file]
    assert torch.equal(answer, here(x))
