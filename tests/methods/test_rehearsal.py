"""BEE's rehearsal: source images that its preparation keeps, learnt anew at every step."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import bombus
from bombus.errors import CheckpointError, ConfigError
from bombus.methods._optim import fitting_rate
from bombus.methods._rehearsal import with_rehearsal
from bombus.methods._warmup_file import save_warmup
from bombus.methods.bee import Bee
from tiny import KINDS, make_tiny, noise_batches, tree_hash

OFF: dict[str, Any] = {"level_weights": (0,), "prediction_weight": 0, "entropy_weight": 0}
ALONE = {**OFF, "inner_steps": 0, "rehearsal_view": "none", "lr": 0.01}


def rehearsing(**changes: Any) -> Bee:
    settings = {"rehearsal_weight": 1.0, "rehearsal_images": 16, **changes}
    return Bee(make_tiny("batchnorm"), Bee.Config(**settings), source=noise_batches(3))


def answers(x: Tensor, model: nn.Module) -> Tensor:
    """Of the image and its mirror image, with the statistics of the source."""
    with torch.no_grad():
        both: Tensor = model(x) + model(x.flip(3))
    return both.argmax(1)


def test_a_step_by_hand() -> None:
    """Nothing else pulls, as many images are kept as a batch has: one step of Adam on them."""
    *source, x = [x.double() for x in noise_batches(4)]
    config = Bee.Config(**ALONE, rehearsal_weight=2.0, rehearsal_images=len(x))
    bee = Bee(make_tiny("batchnorm").double(), config, source=source)
    by_hand, labels = deepcopy(bee.model), answers(source[0], make_tiny("batchnorm").double())
    names = list(bee.adapted)
    optimizer = torch.optim.Adam([by_hand.get_parameter(n) for n in names], lr=0.01)
    (2 * F.cross_entropy(by_hand(source[0]), labels)).backward()
    optimizer.step()
    bee(x)
    for name in names:
        torch.testing.assert_close(bee.adapted[name], by_hand.get_parameter(name))


def test_of_source_images_of_several_sizes_those_like_the_first_are_kept() -> None:
    first, other, last, x = noise_batches(4)
    config = Bee.Config(rehearsal_weight=1.0, rehearsal_images=100)
    small = F.interpolate(other, scale_factor=0.5)
    bee = Bee(make_tiny("batchnorm"), config, source=[first, small, last])
    kept = bee.rehearsal.state_dict()["images"]
    assert len(kept) == len(first) + len(last)
    assert kept.shape[1:] == first.shape[1:]
    assert bee(x).isfinite().all()


def test_gradients_of_stream_and_source_are_added() -> None:
    """A step of both differs from either alone, and the sum is the sum."""
    x = noise_batches(4)[3]
    moved = {}
    for name, changes in {
        "both": {"entropy_weight": 0},
        "stream": {"entropy_weight": 0, "rehearsal_weight": 0},
        "source": ALONE,
    }.items():
        bee = rehearsing(**{"lr": 0.01, **changes})
        bee(x)
        moved[name] = torch.cat([p.detach().flatten() for p in bee.parameters])
    assert not torch.equal(moved["both"], moved["stream"])
    assert not torch.equal(moved["both"], moved["source"])
    bee = rehearsing(rehearsal_view="none")
    alone = with_rehearsal(bee, (), 16)  # all that are kept, in whatever order
    stream = tuple(torch.ones_like(p) for p in bee.parameters)
    for own, total in zip(alone, with_rehearsal(bee, stream, 16), strict=True):
        assert own is not None
        torch.testing.assert_close(total, own + 1, rtol=1e-4, atol=1e-5)


def test_what_is_rehearsed_is_not_forgotten() -> None:
    """A student that is led astray keeps the answers it rehearses."""
    known = {}
    for weight in (0.0, 10.0):
        bee = rehearsing(lr=0.01, momentum=0.9, rehearsal_weight=weight, rehearsal_view="none")
        source = noise_batches(1)[0]  # of the 16 images that are kept
        labels = answers(source, make_tiny("batchnorm"))
        for x in noise_batches(27)[3:]:
            bee(1 - x)
        known[weight] = F.cross_entropy(bee.predict(source), labels).item()
    assert known[10.0] < 0.7 * known[0.0]


def test_images_travel_with_the_preparation(tmp_path: Path) -> None:
    file, model = tmp_path / "warm.safetensors", make_tiny("batchnorm")
    made = rehearsing()
    assert len(made.rehearsal) == 16
    save_warmup(made, file)
    read, cached = Bee(model, made.config, source=file), rehearsing()
    x = noise_batches(4)[3]
    answer = made(x)
    for other in (read, cached):
        assert torch.equal(other(x), answer)
        assert tree_hash(other.rehearsal.state_dict()) == tree_hash(made.rehearsal.state_dict())
    assert not len(Bee(model, source=file).rehearsal)
    fewer = Bee(model, Bee.Config(rehearsal_weight=1, rehearsal_images=5), source=file)
    assert len(fewer.rehearsal) == 5


def test_what_is_kept_takes_no_more_memory_than_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Noise takes four bytes a value: five images of 3 x 16 x 16 fit into 16 kB."""
    bee = rehearsing(rehearsal_mb=16e-3)
    assert len(bee.rehearsal) == 5
    assert "rehearsal cut short: 5 source images are kept where 16" in caplog.text
    file = tmp_path / "warm.safetensors"
    save_warmup(rehearsing(), file)
    config = Bee.Config(rehearsal_weight=1, rehearsal_mb=10e-3)
    assert len(Bee(make_tiny("batchnorm"), config, source=file).rehearsal) == 3
    # What was prepared with less room is not taken from the cache where there is more.
    assert len(rehearsing(rehearsal_mb=20e-3).rehearsal) == 6


def test_a_saved_adapter_rehearses_on(tmp_path: Path) -> None:
    bee, batches = rehearsing(), noise_batches(7)
    for x in batches[3:5]:
        bee(x)
    bee.save(tmp_path)
    again = Bee.load(tmp_path, make_tiny("batchnorm"))
    for x in batches[5:]:
        assert torch.equal(again(x), bee(x))
    again.reset()
    assert len(again.rehearsal) == 16


def test_a_preparation_without_images_says_so(tmp_path: Path) -> None:
    file, model = tmp_path / "warm.safetensors", make_tiny("batchnorm")
    save_warmup(Bee(model, source=noise_batches(3)), file)
    bee = Bee(model, Bee.Config(rehearsal_weight=0.5), source=file)
    assert bee(noise_batches(4)[3]).isfinite().all()
    (event,) = [e for e in bee.last.events if e["event"] == "nothing to rehearse"]
    assert "rehearsal_weight=0.5" in event["reason"]
    with pytest.raises(CheckpointError, match="make it again with `bombus warmup bee-rehearsal`"):
        bombus.adapt(model, "bee-rehearsal", source=file)


@pytest.mark.parametrize("absent", ["images", "labels", "like"])
def test_a_damaged_store_is_refused(absent: str, tmp_path: Path) -> None:
    file, made = tmp_path / "warm.safetensors", rehearsing()
    save_warmup(made, file)
    with safe_open(file, "pt") as reader:
        names = [n for n in reader.keys() if n != f"rehearsal/{absent}"]  # noqa: SIM118
        save_file({n: reader.get_tensor(n) for n in names}, file, reader.metadata())
    with pytest.raises(CheckpointError, match="no whole warm-up file"):
        Bee(make_tiny("batchnorm"), made.config, source=file)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_network_rehearses(kind: str) -> None:
    bee = Bee(make_tiny(kind), Bee.Config(rehearsal_weight=1), source=noise_batches(3))
    assert len(bee.rehearsal) == sum(map(len, noise_batches(3)))
    assert all(bee(x).isfinite().all() for x in noise_batches(6)[3:])


def test_without_source_there_is_nothing_to_rehearse() -> None:
    bee = Bee(make_tiny("batchnorm"), Bee.Config(rehearsal_weight=1))
    assert bee(noise_batches(1)[0]).isfinite().all()


def test_rates_that_fit_the_network() -> None:
    """Rehearsal holds the student: it goes twice as fast. The warm-up has a part of its own."""

    def rates(method: str, **changes: Any) -> tuple[float, float]:
        small = {"rehearsal_images": 16, "warmup_rounds": 1}
        chosen = bombus.known_methods()[method]
        made = chosen(
            make_tiny("batchnorm"), chosen.Config(**small, **changes), source=noise_batches(2)
        )
        return made.config.lr, made.config.warmup_lr

    source = list(Bee(make_tiny("batchnorm")).parameters)
    slow, fast, prepared = (fitting_rate(source, part) for part in (0.0083, 0.0166, 0.0183))
    assert rates("bee") == (slow, 1e-4)
    assert rates("bee", rehearsal_weight=1.0) == (fast, 1e-4)
    assert rates("bee-rehearsal") == (fast, prepared)
    assert rates("bee-rehearsal", rehearsal_weight=0.0) == (slow, prepared)
    assert rates("bee-rehearsal", lr=1e-5, warmup_lr=2e-5) == (1e-5, 2e-5)


def test_what_fits_is_not_known_for_sgd() -> None:
    for stage in ("", "warmup_"):
        with pytest.raises(ConfigError, match=f"{stage}optimizer='sgd' without {stage}lr"):
            bombus.known_methods()["bee-rehearsal"].Config(**{f"{stage}optimizer": "sgd"})


def test_there_is_no_rehearsal_without_source_images() -> None:
    with pytest.raises(ConfigError, match="source"):
        bombus.adapt(make_tiny("batchnorm"), "bee-rehearsal")
