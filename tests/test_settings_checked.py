"""Settings that cannot work are refused in one sentence, before anything is loaded or run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest
import torch

import bombus
from bombus.cli import main
from bombus.data.make import make_cifar_c
from bombus.errors import ConfigError, DataError
from bombus.fields import Count, Seed, Share, check, check_fields
from bombus.methods import find_method
from bombus.methods.base import BaseConfig
from bombus.paper import Place
from bombus.report.records import read_run
from bombus.runs import Run
from bombus.settings import RunSettings, pick_device
from tiny import LEAN, make_tiny, noise_batches, speck_of, write_cifar10

METHODS = sorted(bombus.known_methods())
every_method = pytest.mark.parametrize("method", METHODS)

# Everywhere else 0 is a legal choice: nothing is weighed, moved, kept or waited for.
ZERO_IS_REFUSED = {
    "adacontrast": {"temperature", "queue_size", "bank_size", "neighbours"},
    "bee": {
        "levels", "codes", "tau_student", "tau_teacher", "sinkhorn_iterations", "sample_queue",
        "anchors", "anchor_period", "complementary", "window", "window_minimum", "warmup_images",
        "warmup_rounds", "rehearsal_images", "rehearsal_mb",
    },
    "continual-mae": {"augmentations", "mask_ratio"},
    "cotta": {"augmentations"},
    "eata": {"fisher_images"},
    "obao": {"buffer_size", "replay_batch", "prototype_images"},
    "rdumb": {"reset_every"},
    "rmt": {"temperature", "projection", "prototype_images", "source_images", "source_mb"},
    "rmt-free": {"temperature", "projection", "prototype_images"},
    "roid": {"temperature"},
    "vdp": {"patch", "damping"},
    "vida": {"low_rank", "high_rank", "augmentations"},
}  # fmt: skip
ZERO_IS_REFUSED["bee-paper"] = ZERO_IS_REFUSED["bee-rehearsal"] = ZERO_IS_REFUSED["bee"]

# Faster still, and a network is lost: legal, but no answer can be asked of it. The others mean
# work or memory.
FAST = 10.0
LARGE = {"augmentations": 6, "inner_steps": 4, "warmup_rounds": 2, "projection": 300}


def numeric_fields(method: str) -> dict[str, Any]:
    """The default of each setting that is a number, or a tuple of them."""
    defaults = {f.name: f.default for f in fields(bombus.known_methods()[method].Config)}
    return {
        name: value
        for name, value in defaults.items()
        if (isinstance(value, float | int) and not isinstance(value, bool))
        or name in ("lr", "levels", "level_weights", "tau_teacher")
    }


def config_of(method: str, **chosen: Any) -> BaseConfig:
    """A method's settings with small stores; a number stands for a tuple of it."""
    chosen_class = bombus.known_methods()[method].Config
    defaults = {f.name: f.default for f in fields(chosen_class)}
    small = {**LEAN, "augmentations": 2, "warmup_rounds": 1}
    values = {name: value for name, value in {**small, **chosen}.items() if name in defaults}
    return chosen_class(
        **{n: (v,) if isinstance(defaults[n], tuple) else v for n, v in values.items()}
    )


def outcome(method: str, name: str, value: float) -> torch.Tensor | str:
    """What a tiny network answers with one setting changed, or why it is refused."""
    chosen, model = bombus.known_methods()[method], make_tiny(speck_of(method))
    images = noise_batches(3, side=getattr(model, "size", 16))
    labels = torch.arange(8) % 5
    source = [(x, labels) if chosen.needs == "labels" else x for x in images]
    alone = chosen.needs == "none" or (chosen.source_optional and "warmup" not in name)
    try:
        config = config_of(method, **{name: value})
        adapter = bombus.adapt(model, method, config=config, source=None if alone else source)
    except ConfigError as error:
        return str(error)
    adapter(images[0])
    return adapter(images[1])


def one_sentence(caught: pytest.ExceptionInfo[BaseException]) -> None:
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


# --- the settings of every method ------------------------------------------------------------


@every_method
def test_impossible_numbers_are_refused(method: str) -> None:
    zero = ZERO_IS_REFUSED.get(method, set())
    for name in numeric_fields(method):
        wrong = [math.nan, math.inf, -math.inf, 1e300, *([] if name == "levels" else [-1])]
        for value in [*wrong, *([0] if name in zero else [])]:
            with pytest.raises(ConfigError, match=name) as caught:
                config_of(method, **{name: value})
            one_sentence(caught)


@every_method
def test_whatever_is_accepted_works(method: str) -> None:
    """Zero, where it is legal, and far more than anybody would choose."""
    zero = ZERO_IS_REFUSED.get(method, set())
    for name, default in numeric_fields(method).items():
        fast = name == "lr" or name.endswith("_lr") or name == "weight_decay"
        large = FAST if fast else LARGE.get(name, 5000 if isinstance(default, int) else 1e5)
        for value in (0, large):
            if value == 0 and name in zero:
                continue
            got = outcome(method, name, value)
            if isinstance(got, str):  # no share is that large, nor has this network so many levels
                assert name in got
                assert value == large or name == "level_weights"
            else:
                assert got.isfinite().all(), (name, value)


@every_method
def test_settings_of_another_kind_are_refused(method: str) -> None:
    chosen_class = bombus.known_methods()[method].Config
    types = get_type_hints(chosen_class)
    for field in fields(chosen_class):
        whole = isinstance(field.default, int)
        for value in ("nope", object(), None, *([1.5] if whole else [])):
            if value == "nope" and field.name in ("shallow", "blocks"):
                continue
            if value is None and type(None) in get_args(types[field.name]):
                assert method in ("bee", "bee-paper", "bee-rehearsal")
                assert field.name in ("lr", "warmup_lr", "warmup_rounds")  # found by itself
                continue
            with pytest.raises(ConfigError, match=field.name) as caught:
                chosen_class(**{field.name: value})
            one_sentence(caught)


@every_method
def test_the_published_settings_pass(method: str) -> None:
    chosen_class = bombus.known_methods()[method].Config
    for benchmark in ("cifar10-c", "cifar100-c", "imagenet-c"):
        for family in ("cnn", "vit"):
            chosen_class.for_benchmark(benchmark, family, seed=2**64 - 1)


def test_a_share_goes_from_none_to_all() -> None:
    for method in ("cotta", "rmt", "rmt-free", "dplot", "obao", "vida", "bee", "eata", "vdp"):
        for momentum in (0, 1, 0.5):
            config_of(method, momentum=momentum)
        with pytest.raises(ConfigError, match=r"momentum=1\.01, expected 0 to 1"):
            config_of(method, momentum=1.01)


def test_names_that_do_not_exist_are_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="optimizer='adamw', expected 'adam' or 'sgd'"):
        find_method("tent").Config(optimizer="adamw")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"replay='nope', expected 'weighted' or .* or 'off'"):
        find_method("bee").Config(replay="nope")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="shallow='block1', expected a tuple"):
        find_method("bee").Config(shallow="block1")  # type: ignore[call-arg]


def test_settings_that_do_not_go_together_are_refused() -> None:
    bee = find_method("bee").Config
    with pytest.raises(ConfigError, match="window_minimum=15 and window=10"):
        bee(window=10)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="2 <= window_minimum"):
        bee(window_minimum=1)  # type: ignore[call-arg]
    bee(window_minimum=1, trigger="z-score")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="Got 0 tau_teacher"):
        bee(tau_teacher=(), levels=())  # type: ignore[call-arg]


def test_what_a_model_expects_of_its_input_is_checked() -> None:
    nan = math.nan
    for wrong in ({"low": nan}, {"high": math.inf}, {"low": 1.0}, {"channels": 0}, {"size": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            bombus.Input(**wrong)  # type: ignore[arg-type]
    for name, values in (("mean", (nan, 0.0, 0.0)), ("std", (0.0, 1.0, 1.0)), ("std", (nan,))):
        with pytest.raises(ConfigError, match=f"{name}="):
            bombus.Input(**{name: values})  # type: ignore[arg-type]
    assert bombus.Input(low=-20, high=20, channels=None).high == 20


@dataclass(frozen=True)
class Own:
    kind: Literal["a", "b"] = "a"
    share: Share = 0.5
    counts: tuple[Count, ...] = (1,)
    limit: Count | None = None
    here: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_field_says_what_it_takes() -> None:
    own = Own(kind="b", share=1, counts=(1, 2), limit=3, here=Path())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "c"}, "Got kind='c', expected 'a' or 'b'."),
        ({"share": 1.5}, "Got share=1.5, expected 0 to 1."),
        ({"share": True}, "Got share=True, expected a number."),
        ({"share": "1"}, "Got share='1', expected a number."),
        ({"counts": (1, 0)}, "Got counts=(1, 0), expected each to be at least 1."),
        ({"counts": 1}, "Got counts=1, expected a tuple."),
        ({"limit": 0}, "Got limit=0, expected at least 1."),
        ({"limit": 2.0}, "Got limit=2.0, expected a whole number."),
        ({"limit": True}, "Got limit=True, expected a whole number."),
    ]
    for wrong, sentence in cases:
        with pytest.raises(ConfigError) as caught:
            replace(own, **wrong)
        assert str(caught.value) == sentence


def test_the_largest_seed_is_the_generators() -> None:
    check("seed", 2**64 - 1, Seed)
    torch.Generator().manual_seed(2**64 - 1)
    with pytest.raises(ConfigError, match="expected 0 to"):
        check("seed", 2**64, Seed)
    with pytest.raises((ValueError, RuntimeError)):
        torch.Generator().manual_seed(2**64)


# --- the command line ------------------------------------------------------------------------


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was loaded")

    for place in ("runs.open_model", "warmup.open_model", "backbones.weights.load_weights"):
        monkeypatch.setattr(f"bombus.{place}", refuse)
    monkeypatch.setattr("bombus.data.fetch.get_cifar10", refuse)


def refused(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    """The one line on stderr with which a command is refused."""
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in command])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("bombus: ")
    return line


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run tent --set lr=-1", "Got lr=-1.0, expected at least 0"),
        ("run tent --set lr=nan", "Got lr=nan, expected a finite number"),
        ("run tent --set lr=1e39", "Got lr=1e+39, expected a finite number"),
        ("run bee --set sample_queue=0", "Got sample_queue=0, expected at least 1"),
        ("run bee --set anchor_period=0", "Got anchor_period=0"),
        ("run bee --set sinkhorn_iterations=0", "Got sinkhorn_iterations=0"),
        ("run rmt --set projection=0", "Got projection=0"),
        ("run tent --checkpoint-every 0", "Got --checkpoint-every=0, expected at least 1"),
        ("run tent --checkpoint-every -1", "Got --checkpoint-every=-1"),
        ("run tent --device meta", "The device 'meta' cannot be used here"),
        ("run tent --seed -1", "Got seed=-1, expected 0 to 2**64 - 1"),
        ("run tent --seed 99999999999999999999999", "expected 0 to 2**64 - 1"),
        ("run tent --batch-size 0", "Got batch_size=0, expected at least 1"),
        ("run tent --samples 0", "Got samples=0, expected at least 1"),
        ("warmup --data . --seed -1", "Got seed=-1"),
        ("warmup --data . --batch-size 0", "Got batch_size=0"),
        ("warmup --data . --device meta", "The device 'meta'"),
        ("warmup --data . --set codes=0", "Got codes=0"),
        ("paper trigger --batch-size 0", "Got batch_size=0"),
        ("paper trigger --samples 0", "Got samples=0"),
        ("paper ablation --first-seed -1", "Got --first-seed=-1, expected 0 to"),
        ("paper ablation --seeds 0", "Got --seeds=0"),
        ("paper ablation --seeds 2 --first-seed 18446744073709551615", "Got the last seed=184467"),
        ("data make cifar10-c --seed -1", "Got --seed=-1"),
        ("data make cifar10-c --device meta", "The device 'meta'"),
        ("demo --samples 0", "Got samples=0"),
        ("demo --seed -1", "Got seed=-1"),
    ],
)
def test_impossible_options_are_refused(
    command: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert words in refused(capsys, *command.split(), "--out", out)
    assert not out.exists()


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("blocks --data . --backbone wrn-16-1 --weights w --seed -1", "Got --seed=-1"),
        ("blocks --data . --backbone wrn-16-1 --weights w --device meta", "The device 'meta'"),
        ("doctor --model --device meta", "The device 'meta'"),
        ("doctor --model --batch-size 0", "Got batch_size=0"),
    ],
)
def test_impossible_options_without_a_folder(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *command.split())


def test_a_refused_demo_leaves_the_former_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "runs" / "tent" / "run.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    refused(capsys, "demo", "--samples", 0, "--out", tmp_path)
    assert kept.read_text() == "{}"


def test_the_library_refuses_as_the_command_line_does(tmp_path: Path) -> None:
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: RunSettings(method="tent", seed=-1), "seed=-1"),
        (lambda: RunSettings(method="tent", batch_size=0), "batch_size=0"),
        (lambda: RunSettings(method="tent", precision="fp8"), "precision='fp8'"),  # type: ignore[arg-type]
        (lambda: Place(samples=0), "samples=0"),
        (lambda: pick_device("meta"), "'meta'"),
        (lambda: make_cifar_c(tmp_path, tmp_path / "out", seed=-1), "seed=-1"),
    ]
    for call, words in refusals:
        with pytest.raises(ConfigError, match=words) as caught:
            call()
        one_sentence(caught)
    run = Run(RunSettings(method="source", domains=("fog",), samples=4, batch_size=2))
    with pytest.raises(ConfigError, match="checkpoint_every=0, expected at least 1"):
        run.execute(tmp_path / "run", checkpoint_every=0)
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_runs(tmp_path: Path) -> None:
    largest = 2**64 - 1
    chosen = RunSettings(method="cotta", domains=("fog",), samples=4, batch_size=2, seed=largest)
    settings = replace(chosen, set={"augmentations": "1"})
    assert Run(settings).execute(tmp_path / "run")["seed"] == largest
    assert read_run(tmp_path / "run").seed == largest


# --- files that are not whole ----------------------------------------------------------------


@pytest.mark.parametrize("files", [[], "fog.npy", {"fog.npy": "abc"}])
def test_a_folder_that_does_not_list_its_files(
    files: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean, out = write_cifar10(tmp_path / "clean", 20), tmp_path / "made"
    for name in ("test_batch.png", "test_lables.json"):
        source = {"test_batch.png": "data_batch_1.png"}.get(name)
        if source is not None:
            (clean / name).write_bytes((clean / source).read_bytes())
        else:
            (clean / name).write_text(json.dumps([0, 1, 2, 3]))
    command = ["data", "make", "cifar10-c", "--clean", clean, "--out", out]
    command += ["--severities", "5", "--corruptions", "contrast", "--device", "cpu"]
    main([str(word) for word in command])
    capsys.readouterr()
    sidecar = out / "bombus.json"
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "files": files}))
    assert "does not list the folder's files" in refused(capsys, *command)


@pytest.mark.parametrize("domains", [[], {}, None])
def test_a_run_without_domains_is_not_whole(
    domains: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    settings = RunSettings(method="source", domains=("fog",), samples=4, batch_size=2)
    stored = Run(settings).execute(run)
    (run / "run.json").write_text(json.dumps({**stored, "domains": domains}))
    with pytest.raises(DataError, match="is not whole: it lists no domains"):
        read_run(run)
    for command in (["compare", run], ["report", run, "--out", tmp_path / "page.html"]):
        assert "is not whole: it lists no domains" in refused(capsys, *command)
