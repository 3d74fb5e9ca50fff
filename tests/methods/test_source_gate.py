"""Source images pass the same gate as the stream's, whichever method reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import bombus
from bombus.errors import DataError, InputError
from bombus.methods._norm import source_moments
from bombus.methods.base import Adapter
from tiny import LEAN, make_tiny, noise_batches, speck_of, tree_hash

READERS = [name for name, method in bombus.known_methods().items() if method.needs != "none"]
WITH_LABELS = [name for name in READERS if bombus.known_methods()[name].needs == "labels"]
SIDE = 8
LABELS = torch.arange(8) % 5
Batch = tuple[Any, Any]


def batches(count: int = 3) -> list[Batch]:
    return [(x, LABELS) for x in noise_batches(count, side=SIDE)]


def adapt(method: str, source: Iterable[Any]) -> Adapter:
    chosen = bombus.known_methods()[method]
    small = {
        "warmup_images": 24,
        "warmup_rounds": 1,
        "augmentations": 2,
        **LEAN,
        "source_images": 24,
    }
    names = {f.name for f in fields(chosen.Config)}
    config = chosen.Config(seed=3, **{n: v for n, v in small.items() if n in names})
    return bombus.adapt(make_tiny(speck_of(method)), method, config=config, source=source)


def learnt(adapter: Adapter) -> str:
    return tree_hash(adapter._packed((*adapter.stateful, *adapter.prepared)))


@pytest.fixture(autouse=True)
def own_cache_of_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "cache"))


def test_the_methods_that_read_source_data_are_all_here() -> None:
    assert {"bee", "bee-paper", "rmt", "rmt-free", "dplot", "obao", "eata", "vida"} <= {*READERS}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 255.0])
@pytest.mark.parametrize("method", READERS)
def test_a_bad_image_is_set_aside_with_its_label(
    method: str, bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is learnt from as if it had never been there."""
    clean = batches()
    spoilt = []
    for number, (x, y) in enumerate(clean):
        place = 2 * number  # of a good image, pushed back by the bad one
        image = x[:1].clone()
        image[0, 1, 3, 3] = bad
        spoilt.append(
            (
                torch.cat([x[:place], image, x[place:]]),
                torch.cat([y[:place], 4 - y[place : place + 1], y[place:]]),
            )
        )
    adapter = adapt(method, spoilt)
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "another"))
    assert learnt(adapter) == learnt(adapt(method, clean))
    (x,) = noise_batches(1, side=SIDE)
    assert adapter(x).isfinite().all()
    (event,) = (e for e in adapter.last.events if e["event"] == "source images set aside")
    assert event["images"] == len(clean), "one a batch, however often they are read"
    adapter(x)
    assert "source images set aside" not in [e["event"] for e in adapter.last.events]


@pytest.mark.parametrize("method", READERS)
def test_a_source_without_a_usable_image_is_refused(method: str) -> None:
    nothing = [(x * math.nan, y) for x, y in batches(2)]
    with pytest.raises(DataError, match="None of the 16 source images can be used") as caught:
        adapt(method, nothing)
    assert "\n" not in str(caught.value)
    for empty in ([], [(torch.empty(0, 3, SIDE, SIDE), LABELS[:0])]):
        with pytest.raises(DataError) as caught:
            adapt(method, empty)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", READERS)
def test_empty_batches_are_passed_over(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = adapt(method, iter_if_once(method, batches()))
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "another"))
    empty: Batch = (torch.empty(0, 3, SIDE, SIDE), torch.empty(0))
    two = adapt(method, iter_if_once(method, [empty, *batches(), empty]))
    assert learnt(one) == learnt(two)


def iter_if_once(method: str, source: list[Batch]) -> Iterable[Batch]:
    """Without a length, which counts the empty batches too; `rmt` reads twice."""
    return source if method == "rmt" else iter(source)


def bad_sources() -> dict[str, tuple[Any, str]]:
    (x, y), *_ = batches()
    return {
        "0-255": ([(x * 255, y)], r"In batch 1 of the source: Got pixels in \[.*divide 8-bit"),
        "bytes": (
            [(x, y), ((x * 255).byte(), y)],
            r"In batch 2 of the source: .*x.float\(\) / 255",
        ),
        "grey": ([(x[:, :1], y)], "repeat a grey image"),
        "one image": ([(x[0], y[0])], "add a batch axis"),
        "double": ([(x.double(), y)], "Got float64 images for a float32 model"),
        "number": ([(torch.tensor(1.0), y)], r"batch of shape \(\)"),
        "dict": ([{"image": x, "label": y}], "Batch 1 of the source is a dict, expected a tensor"),
        "array": ([(x.numpy(), y)], "a tuple that begins with a ndarray"),
        "nothing": ([()], "is a tuple, expected a tensor"),
        "None": ([None], "is a NoneType, expected a tensor"),
        "bare tensor": (x, "Got a Tensor as source, expected batches one after the other"),
        "int": (5, "Got a int as source, expected batches one after the other"),
    }


@pytest.mark.parametrize("kind", bad_sources())
@pytest.mark.parametrize("method", READERS)
def test_a_wrong_source_is_refused_in_a_sentence(method: str, kind: str) -> None:
    source, words = bad_sources()[kind]
    with pytest.raises((DataError, InputError), match=words) as caught:
        adapt(method, source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.rand(8), r"labels of shape \(8,\) and type float32; expected a whole number"),
        (torch.eye(8)[:, :5], r"labels of shape \(8, 5\)"),
        (LABELS > 2, "type bool"),
        (LABELS[:5], r"8 images came with labels of shape \(5,\)"),
        (["cat"] * 8, "a list of no numbers as labels"),
        (LABELS - 1, "from -1 to 3"),
        (LABELS + 1, "from 1 to 5; expected one label an image, 0 to 4"),
    ],
)
@pytest.mark.parametrize("method", WITH_LABELS)
def test_wrong_labels_are_refused_in_a_sentence(method: str, labels: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        adapt(method, [(x, labels) for x, _ in batches()])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", WITH_LABELS)
def test_images_without_labels_are_refused(method: str) -> None:
    for source in ([x for x, _ in batches()], [(x,) for x, _ in batches()]):
        with pytest.raises(DataError, match="needs labelled source data"):
            adapt(method, source)


@pytest.mark.parametrize("method", WITH_LABELS)
def test_whole_numbers_of_any_kind_are_labels(method: str) -> None:
    expected = learnt(adapt(method, batches()))
    for labels in (LABELS.byte(), LABELS.int(), LABELS.tolist(), LABELS.numpy().astype(np.int16)):
        got = adapt(method, [[x, labels] for x, _ in batches()])
        assert learnt(got) == expected


def test_labels_of_methods_that_read_none_are_never_looked_at() -> None:
    for labels in (None, "cats", torch.rand(3)):
        assert adapt("bee", [(x, labels) for x, _ in batches()]).source_bytes


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    """A data set that cannot tell its length; nor can its loader."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in batches():
            yield from zip(x, y, strict=True)


@pytest.mark.parametrize("method", READERS)
def test_loaders_without_a_length_and_images_of_inference_mode(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(Endless(), batch_size=8)
    with pytest.raises(TypeError):
        len(loader)
    one = adapt(method, loader)
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "another"))
    with torch.inference_mode():
        made = [(x + 0, y) for x, y in batches()]
    assert made[0][0].is_inference()
    two = adapt(method, made)
    for name, moment in source_moments(two.model).items():
        if method.startswith("bee"):  # which takes them in a second reading
            moment.copy_(source_moments(one.model)[name])
    assert learnt(one) == learnt(two)


@pytest.mark.parametrize("method", READERS)
def test_what_the_gate_leaves_of_a_batch_may_be_one_image(method: str) -> None:
    """Which makes no batch statistics, least of all of maps of one pixel."""
    (x,) = noise_batches(1, side=3 if speck_of(method) == "speck" else SIDE)
    spoilt = x[:2].clone()
    spoilt[0] = math.nan
    adapter = adapt(method, [(x, LABELS), (spoilt, LABELS[:2]), (x, LABELS)])
    assert adapter(x).isfinite().all()
    if method in ("bee", "bee-paper", "bee-rehearsal"):
        with pytest.raises(DataError, match="of two or more where the network has BatchNorm"):
            adapt(method, [spoilt])
