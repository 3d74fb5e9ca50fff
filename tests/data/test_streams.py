"""Every kind of stream keeps its promise: which images, how often, in what order, from where on."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from bombus.cli import main
from bombus.cli.run import run as run_command
from bombus.data.batch import Batch
from bombus.data.cifar_c import SIDECAR, CifarC
from bombus.data.embedded import EmbeddedImages
from bombus.data.folder import ImageFolder
from bombus.data.imagenet_c import ImageNetC
from bombus.data.loading import blend
from bombus.data.orders import by_class
from bombus.data.stream import Stream
from bombus.data.streams import (
    STREAMS,
    Changing,
    Correlated,
    Gradual,
    Mixed,
    Random,
    Recurring,
    Single,
    find_stream,
    take_options,
)
from bombus.errors import BombusError, ConfigError, DataError, UnknownNameError
from bombus.online import adapt_online
from bombus.report.figures import find_stretches
from bombus.report.groups import group_runs
from bombus.report.layout import make_tables
from bombus.report.records import read_run
from bombus.runs import Run
from bombus.settings import RunSettings

DOMAINS = ("a", "b", "c")
SIZE = 22
LEGS = {"gradual": 9, "recurring": 3}  # how often an image of a domain comes; once elsewhere
FIELDS: dict[str, dict[str, Any]] = {"recurring": {"visits": 3}}


class Pictures:
    """Images whose three channels say their domain, severity and number, in whole 255ths."""

    name, classes, domains, aligned = "pictures", 4, DOMAINS, True

    def __init__(self, size: int = SIZE, **changes: Any) -> None:
        self.count = size
        self.reads: Counter[tuple[str, int]] = Counter()
        self.changes = changes
        self.aligned = changes.get("aligned", True)

    def size(self, domain: str) -> int:
        return self.changes.get("sizes", {}).get(domain, self.count)

    def labels_of(self, domain: str) -> NDArray[np.int64]:
        shift = self.changes.get("shift", {}).get(domain, 0)
        return (np.arange(self.size(domain)) + shift) % self.classes

    def severities_of(self, domain: str) -> tuple[int, ...]:
        return self.changes.get("severities", (1, 2, 3, 4, 5))

    def load(self, domain: str, severity: int, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        self.reads.update((domain, int(i)) for i in index)
        x = torch.empty(len(index), 3, 1, 1)
        x[:, 0], x[:, 1] = 10.0 + 100 * DOMAINS.index(domain), severity
        x[:, 2] = torch.from_numpy(index).float().view(-1, 1, 1)
        return x / 255, torch.from_numpy(self.labels_of(domain)[index])

    def describe(self) -> dict[str, Any]:
        return {}


def make(kind: str, **fields: Any) -> Stream:
    defaults = {"domains": DOMAINS, "batch_size": 5, "seed": 3, **FIELDS.get(kind, {})}
    return STREAMS[kind](**{**defaults, **fields})


def newest(batch: Batch) -> Tensor:
    """(M, 3) the numbers written into the images that count."""
    return (batch.x[-len(batch.y) :, :, 0, 0] * 255).round().long()


def counted(batches: list[Batch]) -> Counter[tuple[str, int]]:
    return Counter((d, int(i)) for b in batches for d, i in zip(b.domains, b.index, strict=True))


every_kind = pytest.mark.parametrize("kind", STREAMS)


# What all of them promise


@every_kind
@pytest.mark.parametrize("samples", [None, 7])
def test_every_image_comes_as_often_as_promised(kind: str, samples: int | None) -> None:
    images = Pictures()
    batches = list(make(kind, samples=samples).batches(images))
    came = counted(batches)
    legs = LEGS.get(kind, 1)
    if samples is None:  # else other images may be drawn in each leg
        assert came == {(d, i): legs for d in DOMAINS for i in range(SIZE)}
    per_domain = Counter(d for b in batches for d in b.domains)
    assert per_domain == dict.fromkeys(DOMAINS, legs * (samples or SIZE))
    assert [b.position for b in batches] == list(range(len(batches)))
    for batch in batches:
        numbers = newest(batch)
        assert numbers[:, 2].tolist() == batch.index.tolist()
        assert batch.y.tolist() == (batch.index % 4).tolist()
        if kind != "changing":  # whose first channel is a blend
            assert [DOMAINS[(n - 10) // 100] for n in numbers[:, 0].tolist()] == [*batch.domains]


@every_kind
def test_from_every_batch_on_it_is_the_same_stream(kind: str) -> None:
    stream = make(kind)
    whole = list(stream.batches(Pictures()))
    for start in range(len(whole) + 2):
        images = Pictures()
        rest = stream.batches(images, start=start)
        first = list(itertools.islice(rest, 1))
        # Nothing that went before is read again, but for what a sliding window still holds.
        held = 2 * stream.batch_size if kind == "single" else 2 * 5
        assert sum(images.reads.values()) <= held
        some = [*first, *itertools.islice(rest, 12)]  # beyond all that a start could disturb
        for one, two in zip(some, whole[start : start + 13], strict=True):
            assert (one.position, one.domains, one.adapts) == (
                two.position,
                two.domains,
                two.adapts,
            )
            assert torch.equal(one.x, two.x)
            assert torch.equal(one.y, two.y)
            assert np.array_equal(one.index, two.index)


@every_kind
def test_no_image_is_read_without_need(kind: str) -> None:
    images = Pictures()
    came = counted(list(make(kind).batches(images)))
    if kind == "changing":  # two versions of a picture make one
        assert sum(images.reads.values()) <= 2 * sum(came.values())
    else:
        assert images.reads == came


def plan_hash(kind: str) -> str:
    images = Pictures()
    digest = hashlib.sha256()
    for pieces in make(kind).plan_for(images):
        for piece in pieces:
            digest.update(f"{piece.domain} {piece.severity} {piece.index.tolist()}".encode())
    return digest.hexdigest()


def test_decided_by_the_value_alone_in_any_process() -> None:
    here = [plan_hash(kind) for kind in STREAMS]
    assert len(set(here)) == len(here)
    code = "import test_streams as t; print(*map(t.plan_hash, t.STREAMS))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parent), "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == here


@every_kind
def test_another_seed_is_another_order_and_the_value_can_be_stored(kind: str) -> None:
    stream = make(kind)
    other = make(kind, seed=4)
    images = Pictures()

    def order(stream: Stream) -> list[tuple[str, int]]:
        return [
            (d, int(i))
            for b in stream.batches(images)
            for d, i in zip(b.domains, b.index, strict=True)
        ]

    assert order(stream) == order(make(kind))
    assert order(stream) != order(other)
    stored = json.loads(json.dumps(stream.to_dict()))
    assert stored["kind"] == kind
    assert Stream.from_dict(stored) == stream
    assert type(Stream.from_dict(stored)) is STREAMS[kind]
    assert stream.fingerprint() != other.fingerprint()
    assert (stream == Stream(domains=DOMAINS, batch_size=5, seed=3)) is (kind == "continual")


def test_results_of_the_continual_stream_keep_their_facts() -> None:
    ledger = sorted((Path(__file__).parents[2] / "results").rglob("*.json"))
    stored = [json.loads(path.read_text()) for path in ledger]
    facts = [s["stream"] for s in stored if isinstance(s, dict) and "stream" in s]
    assert len(facts) > 10
    for fact in facts:
        assert Stream.from_dict(fact).to_dict() == fact


# What each promises


def test_gradual_climbs_and_falls_in_each_domain() -> None:
    batches = list(make("gradual", batch_size=SIZE).batches(Pictures()))
    climbs = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert [int(newest(b)[0, 1]) for b in batches] == climbs * 3
    assert [b.domains[0] for b in batches] == ["a"] * 9 + ["b"] * 9 + ["c"] * 9
    assert all(sorted(b.index) == list(range(SIZE)) for b in batches)
    low = make("gradual", severity=2, batch_size=SIZE).batches(Pictures())
    assert [int(newest(b)[0, 1]) for b in low] == [1, 2, 1] * 3


def test_recurring_is_the_continual_stream_over_the_domains_again_and_again() -> None:
    again = make("recurring", visits=4)
    long = Stream(domains=DOMAINS * 4, batch_size=5, seed=3)
    sizes = dict.fromkeys(DOMAINS, SIZE)
    for one, two in zip(again.plan(sizes), long.plan(sizes), strict=True):
        assert one[0].domain == two[0].domain
        assert np.array_equal(one[0].index, two[0].index)
    assert [p[0].visit for p in again.plan(sizes)] == [v for v in range(4) for _ in range(15)]
    assert Recurring(domains=DOMAINS).visits == 20


def test_mixed_batches_hold_many_domains_in_shuffled_order() -> None:
    images = Pictures(400)
    batches = list(Mixed(domains=DOMAINS, batch_size=60).batches(images))
    assert [len(b.y) for b in batches] == [60] * 20
    for batch in batches:
        share = Counter(batch.domains)
        assert min(share[d] for d in DOMAINS) >= 8  # 20 expected, 3.6 a standard deviation
        # Not sorted by domain either: neighbours differ as often as chance has it.
        changes = sum(a != b for a, b in zip(batch.domains, batch.domains[1:], strict=False))
        assert 25 <= changes <= 55  # 39 expected
    early = Counter(d for b in batches[:10] for d in b.domains)
    assert max(early.values()) - min(early.values()) < 80


def test_random_draws_the_order_of_domains() -> None:
    orders = {
        tuple(
            dict.fromkeys(p[0].domain for p in make("random", seed=s).plan(dict.fromkeys("abc", 6)))
        )
        for s in range(40)
    }
    assert len(orders) == 6  # all there are
    assert make("random").domains == DOMAINS  # as asked for, so that seeds can share a table


def bursts(labels: NDArray[np.int64]) -> int:
    return 1 + int((labels[1:] != labels[:-1]).sum())


@pytest.mark.parametrize("delta", [1e-9, 0.01, 0.1, 1.0, 100.0])
def test_bursts_keep_all_images_and_one_burst_a_class_and_slot(delta: float) -> None:
    labels = np.random.default_rng(1).integers(0, 10, 500)
    order = np.random.default_rng(2).permutation(500)[:400]
    arranged = by_class(order, labels, delta, np.random.default_rng(3))
    assert sorted(arranged) == sorted(order)
    assert 10 <= bursts(labels[arranged]) <= 100


def test_small_delta_makes_few_classes_a_slot_and_large_delta_all() -> None:
    """Ten classes of 100 images, so ten slots of 100: batches of 100 are slots, if slots are full.

    Under a symmetric Dirichlet with concentration d over K slots, a share has the mean 1/K and the
    variance (1/K)(1 - 1/K) / (K d + 1).
    """
    labels = np.arange(1000) % 10
    seen: dict[float, list[float]] = {}
    for delta in (0.01, 0.1, 1e4):
        for seed in range(20):
            arranged = by_class(np.arange(1000), labels, delta, np.random.default_rng(seed))
            batches = labels[arranged].reshape(10, 100)
            seen.setdefault(delta, []).append(np.mean([len(set(b)) for b in batches]))
    few, some, all_of_them = (float(np.mean(seen[delta])) for delta in (0.01, 0.1, 1e4))
    assert few < some < all_of_them
    assert few < 2.5
    assert some < 5.5
    assert all_of_them > 9.5
    # Close to uniform at the scale of a slot: spread of the counts as the formula has it.
    arranged = by_class(np.arange(1000), labels, 1e4, np.random.default_rng(0))
    counts = np.stack([np.bincount(b, minlength=10) for b in labels[arranged].reshape(10, 100)])
    deviation = 100 * np.sqrt(0.1 * 0.9 / (10 * 1e4 + 1))  # 0.09 images, before rounding
    assert np.abs(counts - 10).max() <= 2 + 5 * deviation


def test_the_first_class_is_dealt_out_as_dirichlet_has_it() -> None:
    """No slot is full yet, so its shares are those of the plain distribution."""
    labels = np.repeat(np.arange(4), 250)
    delta, shares = 0.5, []
    for seed in range(400):
        arranged = labels[by_class(np.arange(1000), labels, delta, np.random.default_rng(seed))]
        # Its slots cannot be seen from outside, but its largest share can: one burst a slot.
        runs = np.split(arranged, np.flatnonzero(np.diff(arranged)) + 1)
        shares.append(max(len(r) for r in runs if r[0] == 0) / 250)
    draws = np.random.default_rng(9).gamma(delta, size=(200_000, 4))
    expected = (draws / draws.sum(1, keepdims=True)).max(1)
    # Two bursts of neighbouring slots may touch and count as one, which only adds.
    error = expected.std() / 20
    assert expected.mean() - 4 * error < np.mean(shares) < expected.mean() + 0.08


def test_correlated_takes_the_same_images_in_another_order() -> None:
    images = Pictures(200)
    plain = Stream(domains=DOMAINS, batch_size=50, samples=100, seed=3)
    sorted_by_class = Correlated(domains=DOMAINS, batch_size=50, samples=100, seed=3)
    assert counted(list(plain.batches(images))) == counted(list(sorted_by_class.batches(images)))

    def bursts_of(stream: Stream) -> int:
        return sum(bursts(b.y.numpy()) for b in stream.batches(images))

    assert bursts_of(plain) > 200  # of 300: three in four neighbours differ
    assert bursts_of(sorted_by_class) < 60  # at most 16 a domain, and cuts between batches
    again = Recurring(domains=DOMAINS, batch_size=50, samples=100, seed=3, visits=1, delta=0.1)
    assert counted(list(again.batches(images))) == counted(list(plain.batches(images)))
    assert bursts_of(again) == bursts_of(sorted_by_class)


@pytest.mark.parametrize("size", [1, 6, 7, 22])
def test_changing_blends_each_domain_into_the_next(size: int) -> None:
    images = Pictures(size)
    batches = list(Changing(domains=DOMAINS, batch_size=4).batches(images))
    assert [d for b in batches for d in b.domains] == [d for d in DOMAINS for _ in range(size)]
    found = [n for b in batches for n in newest(b).tolist()]
    values = {"a": 10, "b": 110, "c": 210}
    for leg, domain in enumerate(DOMAINS):
        for j in range(size):
            way = (j + 0.5) / size - 0.5
            neighbour = leg + (1 if way > 0 else -1)
            other = DOMAINS[neighbour] if 0 <= neighbour < 3 else domain
            t = abs(way)
            expected = (1 - t) * values[domain] + t * values[other]
            first, severity, _ = found[leg * size + j]
            assert abs(first - expected) <= 0.5 + 100 / 512  # rounding, and steps of 1/256
            assert severity == 5
    assert [n[0] for n in found] == sorted(n[0] for n in found)  # it never turns back
    if size == 22:
        assert {n[0] for n in found[:11]} == {10}
        assert {n[0] for n in found[-11:]} == {210}


def test_a_blend_is_rounded_to_8_bit_exactly() -> None:
    values = torch.arange(256.0)
    a = (values / 255).view(1, 1, 16, 16).expand(129, 3, 16, 16)
    b = a.flip(3)
    share = (np.arange(129) / 256).astype(np.float32)
    mixed = (blend(a, b, share) * 255).double()
    assert torch.equal(mixed, mixed.round())
    t = torch.from_numpy(share).double().view(-1, 1, 1, 1)
    exact = (1 - t) * (a * 255).round().double() + t * (b * 255).round().double()
    assert torch.equal(mixed, exact.round())
    assert torch.equal(blend(a, b, np.zeros(129, np.float32)), a)


class Listener:
    """An adapter that answers with each image's own number, and remembers what it was shown."""

    from bombus.methods.base import Report

    last = Report(signals={"loss": 1.0})
    model = torch.nn.Identity()

    def __init__(self) -> None:
        self.shown: list[tuple[str, list[int]]] = []

    def _answer(self, how: str, x: Tensor) -> Tensor:
        numbers = (x[:, 2, 0, 0] * 255).round().long()
        self.shown.append((how, numbers.tolist()))
        return torch.nn.functional.one_hot(numbers % 4, 4).float()

    def __call__(self, x: Tensor) -> Tensor:
        return self._answer("adapt", x)

    def predict(self, x: Tensor) -> Tensor:
        return self._answer("predict", x)


def test_single_slides_a_window_and_learns_when_all_of_it_is_new() -> None:
    stream = make("single")  # windows of 5 over 66 images
    images = Pictures()
    arriving = [int(b.index[0]) for b in make("continual", batch_size=1).batches(images)]
    listener: Any = Listener()
    records = list(adapt_online(listener, stream.batches(images), device=torch.device("cpu")))
    assert len(records) == 66
    for i, (how, window) in enumerate(listener.shown):
        assert window == arriving[max(0, i - 4) : i + 1]
        assert how == ("adapt" if i % 5 == 4 else "predict")
    # Only the newest answer counts, and it is right; what an earlier step said is not repeated.
    assert [r["domains"] for r in records[:1]] == [{"a": {"wrong": 0, "samples": 1}}]
    assert sum(c["samples"] for r in records for c in r["domains"].values()) == 66
    assert [bool(r["signals"]) for r in records] == [i % 5 == 4 for i in range(66)]
    assert Single.own_batch_size == 16


def test_single_counts_the_newest_answer_and_no_other() -> None:
    class Wrong(Listener):
        def _answer(self, how: str, x: Tensor) -> Tensor:
            logits = super()._answer(how, x)
            logits[-1] = logits[-1].roll(1)  # all right but the newest
            return logits

    wrong: Any = Wrong()
    batches = make("single").batches(Pictures())
    for record in adapt_online(wrong, batches, device=torch.device("cpu")):
        assert list(record["domains"].values()) == [{"wrong": 1, "samples": 1}]


# What is refused


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("recurring", {"visits": 0}, "0 visits"),
        ("recurring", {"delta": -1.0}, "delta -1"),
        ("correlated", {"delta": 0.0}, "delta 0, expected a number above 0"),
        ("correlated", {"delta": float("nan")}, "delta nan"),
        ("changing", {"domains": ("a",)}, "at least two domains"),
        ("continual", {"seed": -1}, "seed -1"),
    ],
)
def test_impossible_values(kind: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make(kind, **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("changing", {"aligned": False}, "not known to hold the same pictures"),
        ("changing", {"sizes": {"b": 9}}, "different numbers"),
        ("changing", {"shift": {"b": 1}}, "different labels"),
        ("gradual", {"severities": ()}, "has no severities"),
        ("gradual", {"severities": (5,)}, "holds only 5"),
    ],
)
def test_images_that_do_not_fit(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        list(make(kind).batches(Pictures(**changes)))
    assert "\n" not in str(caught.value)


def test_names_and_options() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gradual'"):
        find_stream("gradul")
    with pytest.raises(ConfigError, match=r"'mixed' has no --visits; .* --stream recurring"):
        take_options(Mixed, visits=3, delta=None)
    with pytest.raises(ConfigError, match="--stream recurring or correlated"):
        take_options(Random, visits=None, delta=0.1)
    assert take_options(Recurring, visits=2, delta=None) == {"visits": 2}
    with pytest.raises(ConfigError, match="depends on labels"):
        make("correlated").plan(dict.fromkeys(DOMAINS, SIZE))
    with pytest.raises(UnknownNameError, match="stream"):
        Run(RunSettings(method="source", stream="single-sample"))


def cifar_c(folder: Path, severities: list[int]) -> CifarC:
    folder.mkdir()
    rows = 4 * len(severities)
    for name in ("fog", "snow"):
        np.save(folder / f"{name}.npy", np.zeros((rows, 32, 32, 3), np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(4), len(severities)))
    sidecar = {"variant": "cifar10-c", "severities": severities}
    (folder / SIDECAR).write_text(json.dumps(sidecar))
    return CifarC(folder)


def test_gradual_says_how_to_make_the_missing_severities(tmp_path: Path) -> None:
    images = cifar_c(tmp_path / "five", [5])
    command = r"`bombus data make cifar10-c --severities 1 2 3 4 5 --out FOLDER`"
    with pytest.raises(DataError, match=command):
        Gradual(domains=("fog", "snow")).plan_for(images)
    whole = cifar_c(tmp_path / "all", [1, 2, 3, 4, 5])
    assert len(Gradual(domains=("fog", "snow")).plan_for(whole)) == 18


def test_data_sets_say_what_streams_ask(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("day/bee/0", "day/wasp/0", "night/bee/0"):
        path = tmp_path / "own" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    own, demo = ImageFolder(tmp_path / "own"), EmbeddedImages()
    assert own.labels_of("day").tolist() == [0, 1]
    assert (own.severities_of("night"), own.aligned) == ((), False)
    assert (demo.severities_of("fog"), demo.aligned) == ((1, 2, 3, 4, 5), True)
    index = np.arange(5)
    assert demo.labels_of("fog")[:5].tolist() == demo.load("fog", 5, index)[1].tolist()
    c10 = cifar_c(tmp_path / "c10", [3, 5])
    assert (c10.severities_of("fog"), c10.labels_of("fog").tolist()) == ((3, 5), [0, 1, 2, 3])
    for place in ("fog/5", "fog/2", "snow/5"):
        path = tmp_path / "in-c" / place / "n02" / "x.JPEG"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(path)
    in_c = ImageNetC(tmp_path / "in-c", classes=["n01", "n02"])
    assert (in_c.severities_of("fog"), in_c.severities_of("snow")) == ((2, 5), (5,))
    assert (in_c.labels_of("snow").tolist(), in_c.aligned) == ([1], True)
    for images in (own, demo, c10, in_c):
        for ask in (images.labels_of, images.severities_of):
            with pytest.raises(BombusError):
                ask("rain")


# From the command line to the table

FEW = ["--domains", "brightness", "contrast", "--samples", "8", "--batch-size", "4"]


def test_the_command_line_names_every_stream(capsys: pytest.CaptureFixture[str]) -> None:
    hints = typing.get_type_hints(run_command)
    assert typing.get_args(hints["stream"]) == tuple(STREAMS)
    main(["list", "streams"])
    # A long title goes on below itself.
    lines = re.sub(r"\n +", " ", capsys.readouterr().out).splitlines()
    assert [line.split()[0] for line in lines] == ["name", *STREAMS]
    assert all(len(line.split()) > 8 for line in lines[1:])
    line = lines[1 + list(STREAMS).index("recurring")]
    assert line.startswith("recurring   --visits 20  --delta  The")


@every_kind
@pytest.mark.parametrize("method", ["source", "tent"])
def test_every_stream_runs_on_the_demo(kind: str, method: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    visits = ["--visits", "2"] if kind == "recurring" else []
    main(["run", method, "--stream", kind, *visits, *FEW, "--device", "cpu", "--out", str(out)])
    result = json.loads((out / "run.json").read_text())
    legs = {"gradual": 9, "recurring": 2}.get(kind, 1)
    assert result["stream"]["kind"] == kind
    assert [d["name"] for d in result["domains"]] == ["brightness", "contrast"]
    assert [d["samples"] for d in result["domains"]] == [8 * legs] * 2
    records = [json.loads(line) for line in (out / "batches.jsonl").read_text().splitlines()]
    assert len(records) == (16 if kind == "single" else 4 * legs)
    if kind == "single":
        assert [r["backwards"] > 0 for r in records] == [
            method == "tent" and i % 4 == 3 for i in range(16)
        ]
    if kind == "recurring":
        assert result["visits"] == [by_hand(records[:4]), by_hand(records[4:])]
    elif kind == "gradual":
        climb = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1] * 2
        of = {s: [r for r, c in zip(records, climb, strict=True) if c == s] for s in range(1, 6)}
        assert result["severities"] == [by_hand(of[s]) for s in range(1, 6)]
    else:
        assert not {"visits", "severities"} & set(result)


def test_what_was_asked_for_in_vain_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["run", "source", "--domains", "brightness", "--device", "cpu", "--out"]
    main([*call, str(tmp_path / "many"), "--samples", "2000", "--batch-size", "500"])
    said = "2,000 images a domain were asked for, and brightness has 1,000; all of them come, once."
    assert said in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "many" / "run.json").read_text())["preflight"] == [said]
    few = ["--stream", "single", "--samples", "5", "--batch-size"]
    main([*call, str(tmp_path / "window"), *few, "6"])
    never = json.loads((tmp_path / "window" / "run.json").read_text())["preflight"]
    assert never == [
        "The stream has 5 images and a window of 6, so that the method never learns; choose a "
        "--batch-size of at most 5."
    ]
    main([*call, str(tmp_path / "fits"), *few, "5"])
    assert json.loads((tmp_path / "fits" / "run.json").read_text())["preflight"] == []


def by_hand(records: list[dict[str, Any]]) -> float:
    wrong: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    for record in records:
        for domain, counts in record["domains"].items():
            wrong[domain] += counts["wrong"]
            samples[domain] += counts["samples"]
    errors = [100 * wrong[d] / samples[d] for d in samples]
    return round(sum(errors) / len(errors), 4)


def test_a_mixed_stream_is_drawn_as_one_stretch() -> None:
    def record(**samples: int) -> dict[str, Any]:
        return {"domains": {d: {"wrong": 1, "samples": n} for d, n in samples.items()}}

    mixed = [record(a=3, b=1), record(a=1, b=3), record(a=2, b=2)]
    visits = [(s.visit.domain, s.visit.end) for s in find_stretches([*mixed, record(a=4)])]
    assert visits == [("mixed", 12), ("a", 16)]


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", ["mixed", "correlated", "changing", "single"])
def test_a_broken_off_run_ends_as_an_unbroken_one(kind: str, tmp_path: Path) -> None:
    images = EmbeddedImages()
    settings = RunSettings(
        method="tent", stream=kind, domains=("brightness", "contrast"), samples=9, batch_size=4,
        device="cpu",
    )  # fmt: skip
    Run(settings, images=images).execute(tmp_path / "quiet")

    def stop(progress: Any) -> None:
        if progress.done == 4:
            raise Stop

    with pytest.raises(Stop):
        Run(settings, images=images).execute(tmp_path / "torn", watch=stop, checkpoint_every=3)
    Run(settings, images=images).execute(tmp_path / "torn", resume=True)

    def scores(folder: Path) -> list[Any]:
        lines = (folder / "batches.jsonl").read_text().splitlines()
        return [(r["batch"], r["domains"], r["signals"]) for r in map(json.loads, lines)]

    assert scores(tmp_path / "torn") == scores(tmp_path / "quiet")
    assert len(scores(tmp_path / "quiet")) > 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stream", "mixed", "--visits", "3"], "'mixed' has no --visits"),
        (["--delta", "0.1"], "'continual' has no --delta"),
        (["--stream", "correlated", "--delta", "0"], "delta 0"),
        (["--stream", "changing", "--domains", "fog"], "at least two domains"),
        (["--seed", "-1"], "seed=-1"),
        (["--batch-size", "0"], "batch_size=0"),
    ],
)
def test_wrong_calls_get_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "source", *arguments, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_settings_of_the_usual_stream_are_stored_as_before() -> None:
    assert not {"stream", "visits", "delta"} & set(RunSettings(method="tent").to_dict())
    chosen = RunSettings(method="tent", stream="recurring", visits=2).to_dict()
    assert (chosen["stream"], chosen["visits"]) == ("recurring", 2)
    assert "delta" not in chosen


def test_tables_keep_streams_apart_and_average_the_seeds_of_a_random_order(tmp_path: Path) -> None:
    images = EmbeddedImages()

    def run(name: str, **settings: Any) -> Path:
        asked = {"samples": 4, "batch_size": 4, "device": "cpu", **settings}
        domains = ("brightness", "contrast", "pixelate")
        Run(RunSettings(method="source", domains=domains, **asked), images=images).execute(
            tmp_path / name
        )
        return tmp_path / name

    folders = [
        run("continual"),
        run("mixed", stream="mixed"),
        run("two", stream="recurring", visits=2),
        run("three", stream="recurring", visits=3),
        *(run(f"random-{seed}", stream="random", seed=seed) for seed in (1, 2, 3)),
    ]
    results = [read_run(folder) for folder in folders]
    tables = make_tables(results)
    start = "demo, wrn-16-1, severity 5"
    assert [table.heading for table in tables] == [
        f"{start}, 3 domains",
        f"{start}, mixed, 3 domains",
        f"{start}, recurring, visits 2, 3 domains",
        f"{start}, recurring, visits 3, 3 domains",
        f"{start}, random, 3 domains",
    ]
    came = {
        tuple(next(iter(json.loads(line)["domains"])) for line in log.read_text().splitlines())
        for log in tmp_path.glob("random-*/batches.jsonl")
    }
    assert len(came) > 1  # the seeds did differ in their order
    (seeds,) = group_runs(results[-3:])
    assert seeds.label == "source (3 seeds)"
