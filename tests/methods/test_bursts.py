"""Labels in bursts: noticed, answered under the source's statistics, not learnt from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bombus.errors import CheckpointError, ConfigError
from bombus.methods import _bursts
from bombus.methods._bursts import concentration, take_statistics
from bombus.methods._norm import batch_norms, source_moments, source_statistics
from bombus.methods._warmup_file import DIGEST, STATISTICS, save_warmup
from bombus.methods.bee import Bee
from bombus.runs import Run
from bombus.settings import RunSettings
from tiny import make_tiny, noise_batches, tree_hash


def bee(bursts: float, *, kind: str = "batchnorm", source: Any = None, **more: Any) -> Bee:
    config = Bee.Config(codes=8, warmup_rounds=1, bursts=bursts, **more)
    return Bee(make_tiny(kind), config, source=noise_batches(3) if source is None else source)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("classes", "counts"), [(3, (9, 1, 2)), (10, (40,) * 5), (2, (30, 30))])
def test_concentration_counts_pairs(classes: int, counts: tuple[int, ...]) -> None:
    answers = [label for label, count in enumerate(counts) for _ in range(count)]
    pairs = list(itertools.combinations(answers, 2))
    alike = sum(a == b for a, b in pairs)
    expected = len(pairs) / classes
    by_hand = max(0.0, alike - 4 * expected**0.5) / expected
    assert concentration(torch.tensor(answers), classes) == pytest.approx(by_hand)


def test_one_class_is_as_many_times_too_much_as_there_are_classes() -> None:
    assert concentration(torch.zeros(2000, dtype=torch.long), 10) == pytest.approx(10, rel=0.01)
    assert concentration(torch.tensor([3]), 10) == 0.0  # of one image there are no pairs


@pytest.mark.parametrize(("size", "classes"), [(200, 10), (50, 10), (64, 1000), (200, 100)])
def test_labels_as_they_happen_to_come_are_no_burst(size: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(7)
    drawn = [
        concentration(torch.randint(classes, (size,), generator=generator), classes)
        for _ in range(1000)
    ]
    assert sum(found > 1.25 for found in drawn) <= 2
    few = torch.randint(max(1, classes // 5), (size,), generator=generator)
    assert concentration(few, classes) > 1.25 or size == 64


def test_statistics_are_the_mean_over_batches() -> None:
    norm = nn.BatchNorm2d(3, momentum=0.3)
    model = nn.Sequential(norm)
    batches = noise_batches(3)

    def passes() -> Any:
        for x in batches:
            model(x)
            yield

    take_statistics(model, passes())
    mean = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    var = torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, var)
    assert (norm.momentum, norm.track_running_stats) == (0.3, True)


@pytest.mark.parametrize("spoilt", ["nothing", "nan", "an error"])
def test_what_cannot_be_taken_leaves_the_statistics_as_they_were(spoilt: str) -> None:
    model = make_tiny("batchnorm")
    for norm in batch_norms(model):
        norm.train()
    before = tree_hash(model.state_dict())

    def passes() -> Any:
        for x in noise_batches(2) if spoilt != "nothing" else ():
            model(x * (float("nan") if spoilt == "nan" else 1))
            if spoilt == "an error":
                raise ValueError("as a network may")
            yield

    if spoilt == "an error":
        with pytest.raises(ValueError, match="as a network may"):
            take_statistics(model, passes())
    else:
        assert not take_statistics(model, passes())
    assert tree_hash(model.state_dict()) == before
    assert take_statistics(make_tiny("groupnorm"), iter(()))  # has none, and lacks none


def test_the_preparation_takes_statistics_of_the_prepared_network() -> None:
    prepared = bee(0.0)
    source = source_moments(make_tiny("batchnorm"))
    moments = source_moments(prepared.model)
    assert len(moments) == 2 * len(batch_norms(prepared.model)) > 0
    assert any(not torch.equal(t, source[name]) for name, t in moments.items())
    assert all(t.isfinite().all() for t in moments.values())
    # One image is answered with them, and goes on to be so after a reset.
    (x, *_) = noise_batches(1)
    alone = prepared.predict(x[:1])
    prepared(x)
    prepared.reset()
    torch.testing.assert_close(prepared.predict(x[:1]), alone, rtol=0, atol=0)


def alike() -> Tensor:
    """Much the same image many times, so that all are answered alike."""
    x, y = noise_batches(2)
    return (x[:1] + 0.001 * y).clamp(0, 1)


def test_a_source_that_is_read_once_gives_no_statistics_and_says_so() -> None:
    given = source_moments(make_tiny("batchnorm"))
    for bursts, events in ((1.25, 1), (0.0, 0)):
        adapter = bee(bursts, source=iter(noise_batches(3)), warmup_images=24)
        told = [event for event in adapter.last.events if event["event"] == "no statistics"]
        assert len(told) == events
        assert all(torch.equal(t, given[n]) for n, t in source_moments(adapter.model).items())


def test_a_burst_is_answered_under_the_sources_statistics_and_not_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_bursts, "EVEN", -1.0)  # no batch is, under its own statistics
    adapter = bee(1e-9)
    x = alike()
    before = tree_hash(adapter.state_dict())
    foreseen = adapter.predict(x)
    with torch.no_grad(), source_statistics(adapter.model):
        wanted = adapter.passes.mean(adapter.teach(adapter.passes.views(x)).logits)
    logits = adapter(x)
    torch.testing.assert_close(logits, wanted, rtol=0, atol=0)
    torch.testing.assert_close(foreseen, wanted, rtol=0, atol=0)
    assert [event["event"] for event in adapter.last.events if event["event"] == "burst"]
    assert adapter.last.signals["concentration"] > 1
    assert tree_hash(adapter.state_dict()) == before


def test_a_domain_in_which_the_sources_statistics_know_few_classes_is_no_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contrast and impulse noise were taken for bursts, before the batch's own were looked at."""
    monkeypatch.setattr(_bursts, "EVEN", 1e9)
    looking, other = bee(1e-9), bee(0.0)
    torch.testing.assert_close(looking(alike()), other(alike()), rtol=0, atol=0)
    assert looking.last.signals["concentration"] > 1
    assert not [event for event in looking.last.events if event["event"] == "burst"]


def test_without_a_burst_all_is_as_if_nobody_looked() -> None:
    looking, other = bee(1e9), bee(0.0)
    for x in noise_batches(3):
        torch.testing.assert_close(looking(x), other(x), rtol=0, atol=0)
        assert "concentration" in looking.last.signals
        assert "concentration" not in other.last.signals
    assert tree_hash(looking.state_dict()) == tree_hash(other.state_dict())


def test_without_batch_statistics_nobody_looks() -> None:
    adapter = bee(1e-9, kind="groupnorm")
    adapter(noise_batches(1)[0])
    assert "concentration" not in adapter.last.signals
    with pytest.raises(ConfigError, match="bursts=-1"):
        Bee.Config(bursts=-1.0)


def tensors_in(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(file, "pt") as reader:
        return {n: reader.get_tensor(n) for n in reader.keys()}, reader.metadata()  # noqa: SIM118


def test_statistics_travel_in_the_preparations_file(tmp_path: Path) -> None:
    made, file = bee(0.0), tmp_path / "prepared.safetensors"
    save_warmup(made, file)
    for bursts in (0.0, 1.25):
        read = bee(bursts, source=file)
        for name, moment in source_moments(read.model).items():
            assert torch.equal(moment, source_moments(made.model)[name])
    tensors, header = tensors_in(file)
    older = {n: t for n, t in tensors.items() if n != DIGEST and not n.startswith(STATISTICS)}
    save_file(older, file, metadata=header)
    source = source_moments(make_tiny("batchnorm"))
    read = bee(0.0, source=file)
    assert all(torch.equal(t, source[n]) for n, t in source_moments(read.model).items())
    with pytest.raises(CheckpointError, match=r"earlier version.*bursts=1.25.*bombus warmup bee"):
        bee(1.25, source=file)


def test_statistics_of_another_network_are_no_whole_file(tmp_path: Path) -> None:
    made, file = bee(0.0), tmp_path / "prepared.safetensors"
    save_warmup(made, file)
    tensors, header = tensors_in(file)
    name = next(n for n in tensors if n.startswith(STATISTICS))
    for damaged in (
        {**tensors, name: torch.zeros(99)},
        {**tensors, f"{STATISTICS}/x": torch.zeros(9)},
    ):
        save_file({n: t for n, t in damaged.items() if n != DIGEST}, file, metadata=header)
        with pytest.raises(CheckpointError, match="no whole warm-up file"):
            bee(0.0, source=file)


def test_on_the_demo_bursts_no_longer_ruin_it(tmp_path: Path) -> None:
    asked = RunSettings(
        method="bee",
        stream="correlated",
        domains=("speckle_noise", "spatter"),
        samples=300,
        batch_size=100,
    )
    without = Run(asked).execute(tmp_path / "without")
    settings = RunSettings(**{**vars(asked), "set": {"bursts": "1.25"}})
    minded = Run(settings).execute(tmp_path / "with")
    assert minded["mean_error"] < without["mean_error"] - 5
    assert {event["event"] for event in minded["events"]} >= {"burst"}
