"""The command line: its options are pinned, its mistakes get one sentence and exit code 2."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

from bombus.backbones import create
from bombus.backbones.weights import save_weights
from bombus.cli import COMMANDS, DATA_COMMANDS, main
from bombus.data.benchmarks import BENCHMARKS
from bombus.methods import known_methods
from bombus.names import BenchmarkName
from tiny import write_cifar10

SHORT = ["--samples", "20", "--batch-size", "10", "--domains", "fog"]


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence a wrong call prints."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    assert stop.value.code == 2, said
    assert "Traceback" not in said.err
    (sentence,) = said.err.strip().splitlines()
    assert sentence.startswith("bombus: ")
    return sentence


def test_options_are_pinned() -> None:
    """A new option is a promise: add it here, to the help text and to the docs."""
    options = {
        name: sorted(inspect.signature(command).parameters)
        for name, command in {**COMMANDS, **DATA_COMMANDS}.items()
    }
    assert options == {
        "run": [
            "backbone", "batch_size", "benchmark", "checkpoint_every", "clean", "data", "delta",
            "device", "domains", "keep_adapter", "legacy_vida", "method", "out", "precision",
            "resume", "samples", "seed", "set", "severity", "source", "stream", "visits", "weights",
        ],
        "compare": [
            *("by", "cost", "digits", "format", "intervals", "means", "out", "published"),
            *("quality", "rows", "runs"),
        ],
        "report": ["out", "runs"],
        "list": ["json", "name", "what"],
        "plot": ["out", "runs", "what"],
        "results": ["check", "folder", "write"],
        "demo": ["out", "samples", "seed"],
        "paper": [
            "backbone", "batch_size", "benchmark", "clean", "data", "device", "first_seed",
            "methods", "name", "out", "precision", "rows", "runs", "samples", "scale", "seeds",
            "set", "source", "warmup", "weights",
        ],
        "data": ["action"],
        "warmup": [
            "backbone", "batch_size", "benchmark", "data", "device", "method", "out", "precision",
            "seed", "set", "weights",
        ],
        "blocks": [
            "backbone", "batch_size", "data", "device", "images", "json", "num_classes", "out",
            "precision", "seed", "weights",
        ],
        "doctor": [
            "backbone", "batch_size", "benchmark", "data", "device", "domains", "legacy_vida",
            "method", "model", "set", "severity", "source", "weights",
        ],
        "get": ["cache", "name"],
        "make": ["clean", "corruptions", "device", "name", "out", "seed", "severities"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("rnu tent", "run"),
        ("data gte cifar10", "get"),
        ("paper ablaton", "ablation"),
        ("paper ablation --scale ful", "full"),
        ("run tent --out x --benchmark cifar10c", "cifar10-c"),
        ("run tent --out x --benchmark nothing-like-it", None),
    ],
)
def test_a_misspelt_choice_is_told_what_was_meant(
    command: str, meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert ("did you mean" in said) == (meant is not None)
    assert meant is None or f"did you mean {meant!r}?" in said


def test_help_is_quick_and_does_not_import_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "from bombus.cli import main; main()"]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - start)
        assert done.returncode == 0
        assert "compare" in done.stdout
        assert " torch\n" not in done.stderr
    assert min(times) < 0.5


@pytest.mark.parametrize(("given", "seen"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_leave_the_processor_to_others_unless_told(
    given: str | None, seen: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    code = (
        "import os, sys, bombus.cli; assert 'torch' not in sys.modules; "
        "bombus.cli.main(['--version']); print(os.environ['OMP_WAIT_POLICY'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == seen


def test_import_adds_little_to_torch() -> None:
    code = (
        "import time, torch; start = time.perf_counter(); import bombus; bombus.adapt; "
        "print(time.perf_counter() - start)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.2


def test_the_library_needs_neither_rich_nor_tyro_nor_matplotlib(tmp_path: Path) -> None:
    code = f"""
import sys
for name in ("rich", "tyro", "matplotlib", "scipy"):
    sys.modules[name] = None
from pathlib import Path
import bombus
from bombus.runs import Run
from bombus.settings import RunSettings
settings = RunSettings(method="tent", domains=("fog",), samples=20, batch_size=10)
print(Run(settings).execute(Path({str(tmp_path / "run")!r}))["mean_error"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) <= 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "tnt"], "did you mean 'tent'?"),
        (["run", "tent", "--backbone", "wrn-28-99x"], "There is no backbone named"),
        (["run", "tent", "--domains", "rain"], "There is no domain named 'rain'"),
        (["run", "tent", "--set", "lr"], "expected NAME=VALUE"),
        (["run", "tent", "--set", "lr=quick"], "expected a float"),
        (["run", "tent", "--device", "cuda:77"], "cuda:77"),
        (["run", "tent", "--weights", "missing.pt"], "missing.pt"),
        (["run", "tent", "--benchmark", "cifar10-c", "--data", "nowhere"], "nowhere"),
        (["run", "tent", "--benchmark", "folder"], "--backbone NAME"),
        (["run", "tent", "--benchmark", "imagenet-c", "--data", "nowhere"], "nowhere"),
        (["run", "rmt", "--source", "nowhere"], "nowhere"),
        (["run", "bee", "--set", "blocks=block9"], "block9"),
    ],
)
def test_wrong_calls(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert words in fails([*arguments, "--out", str(out)], capsys)
    assert not out.exists(), "a refused run left something behind"


def test_broken_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole.safetensors"
    save_weights(create("wrn-16-1", num_classes=10), whole)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-1000])
    other = tmp_path / "other.safetensors"
    save_weights(create("wrn-10-1", num_classes=10), other)
    trap, sprung = tmp_path / "trap.pt", tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(sprung),)

    torch.save({"weights": Trap()}, trap)
    raw_trap = tmp_path / "raw.pt"
    raw_trap.write_bytes(pickle.dumps(Trap(), protocol=2))
    for file in (cut, other, trap, raw_trap):
        call = ["run", "tent", "--weights", str(file), "--out", str(tmp_path / "out")]
        assert file.name in fails(call, capsys)
    assert not sprung.exists()
    assert not (tmp_path / "out").exists()


def test_a_truncated_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    call = ["run", "tent", *SHORT, "--out", str(out), "--keep-adapter"]
    main(call)
    capsys.readouterr()
    (out / "run.json").unlink()  # as if it had been killed at the end
    (state,) = (out / "checkpoint").glob("now-*.safetensors")
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert "is damaged" in fails([*call, "--resume"], capsys)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    state.write_bytes(whole)
    main([*call, "--resume"])
    assert (out / "run.json").exists()


def test_a_run_that_cannot_begin_is_not_in_the_way_of_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    call = ["run", "rmt", *SHORT, "--source", str(tmp_path / "nowhere"), "--out", str(out)]
    assert "There is no folder" in fails(call, capsys)
    main(["run", "tent", *SHORT, "--out", str(out)])  # other settings, and no --resume
    assert (out / "run.json").exists()


def test_an_unwritable_place_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    fails(["run", "source", *SHORT, "--out", str(tmp_path / "file" / "below")], capsys)


def test_unknown_options_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run", "tent", "--sede", "1"], ["rn"], ["run", "tent"], ["list", "metods"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert "Traceback" not in capsys.readouterr().err


def test_a_setting_given_as_an_option_is_told_how(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "bee", "--seed", "3", "--student-view", "none", "--out", "x"])
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "bombus: student_view is a setting of bee: --set student_view=none."


def test_a_file_given_to_doctors_model_is_told_where_it_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--model", "mine.pt", "--method", "tent"])
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("by --weights: bombus doctor --model --weights mine.pt.")


@pytest.mark.parametrize("what", ["methods", "benchmarks", "backbones", "corruptions", "streams"])
def test_list(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", what])
    lines = capsys.readouterr().out.splitlines()
    main(["list", what, "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 3
    assert all(any(line.startswith(row["name"]) for line in lines) for row in rows)


def test_lists_for_machines_keep_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods", "--json"])
    keys = ["name", "source access", "predicts", "title", "settings"]
    assert all(list(row) == keys for row in json.loads(capsys.readouterr().out))
    main(["list", "benchmarks", "--json"])
    own = {row["name"]: row for row in json.loads(capsys.readouterr().out)}["folder"]
    assert own["classes"] is None
    assert own["backbone"] is None
    main(["list", "benchmarks"])
    assert "\nfolder              any      any " in capsys.readouterr().out


def test_a_method_explains_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """Every method; an override keeps the text of the setting it overrides."""
    for name, method in known_methods().items():
        main(["list", "methods", name])
        said = capsys.readouterr().out
        for field in fields(method.Config):
            assert f"\n  {field.name}={field.default}\n" in said
        main(["list", "methods", name, "--json"])
        row = json.loads(capsys.readouterr().out)
        assert row["name"] == name
        assert set(row["meaning"]) <= set(row["settings"])
    main(["list", "methods", "bee-paper", "--json"])
    row = json.loads(capsys.readouterr().out)
    assert row["settings"]["lr"] == "0.001"
    assert row["meaning"]["lr"].startswith("Paper: 1e-3 on CNNs, 2e-5 on ViT")
    assert row["meaning"]["lr"].endswith("5e-5 18.3, 5e-4 18.0, 1e-3 17.7, 2e-3 18.0).")
    assert row["published"]["imagenet-c"] == {"sample_queue": 640}
    said = fails(["list", "streams", "gradual"], capsys)
    assert "only methods are shown one by one" in said


def test_methods_that_share_a_file_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods", "--json"])
    titles = [row["title"] for row in json.loads(capsys.readouterr().out)]
    assert len(titles) == len(set(titles))


def test_the_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each command the first paragraph; the command's own help has the rest."""
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 48
    assert all(f"• {name} " in said for name in COMMANDS)
    assert "Example" not in said
    with pytest.raises(SystemExit):
        main(["blocks", "--help"])
    assert "Example: bombus blocks" in capsys.readouterr().out


def test_doctor_ends_well(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path))
    main(["doctor"])
    said = capsys.readouterr().out
    assert "PyTorch" in said
    assert "bombus data make cifar10-c" in said


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out.startswith("bombus 0.")
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    assert "bombus demo" in capsys.readouterr().out


def test_data_make_then_run(tmp_path: Path) -> None:
    """From clean images in a published layout to a finished run, through the files on disk."""
    chooser = np.random.default_rng(0)
    clean = tmp_path / "clean"
    clean.mkdir()
    rows = chooser.integers(0, 256, (30, 1024, 3), dtype=np.uint8)
    Image.fromarray(rows).save(clean / "test_batch.png")
    (clean / "test_lables.json").write_text(json.dumps([i % 10 for i in range(30)]))
    made = tmp_path / "made"
    names = ["brightness", "gaussian_noise"]
    main([
        "data", "make", "cifar10-c", "--clean", str(clean), "--out", str(made),
        "--corruptions", *names, "--severities", "5", "--device", "cpu",
    ])  # fmt: skip
    weights = tmp_path / "wrn.safetensors"
    save_weights(create("wrn-10-1", num_classes=10), weights)
    main([
        "run", "bn", "--benchmark", "cifar10-c", "--backbone", "wrn-10-1", "--weights",
        str(weights), "--data", str(made), "--domains", *names, "--batch-size", "16",
        "--out", str(tmp_path / "run"),
    ])  # fmt: skip
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [d["samples"] for d in result["domains"]] == [30, 30]


def test_a_folder_of_own_images(tmp_path: Path) -> None:
    chooser = np.random.default_rng(0)
    for domain in ("day", "night"):
        for label in ("bee", "wasp", "fly"):
            folder = tmp_path / "images" / domain / label
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = chooser.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    weights = tmp_path / "wrn.safetensors"
    save_weights(create("wrn-10-1", num_classes=3), weights)
    main([
        "run", "tent", "--benchmark", "folder", "--backbone", "wrn-10-1", "--weights",
        str(weights), "--data", str(tmp_path / "images"), "--out", str(tmp_path / "run"),
    ])  # fmt: skip
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [(d["name"], d["samples"]) for d in result["domains"]] == [("day", 12), ("night", 12)]


def test_warm_up_then_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From clean training images to a warm-up file to a run that needs no source images."""
    clean = write_cifar10(tmp_path / "clean", 60)
    weights, warm = tmp_path / "wrn.safetensors", tmp_path / "warm.safetensors"
    save_weights(create("wrn-10-1", num_classes=10), weights)
    network = ["--benchmark", "demo", "--backbone", "wrn-10-1", "--weights", str(weights)]
    make = ["warmup", *network, "--data", str(clean), "--batch-size", "20"]
    make += ["--set", "warmup_lr=3e-4", "--out", str(warm)]
    main(make)
    assert "already there" in fails(make, capsys)
    assert "no warm-up" in fails(["warmup", "tent", *make[1:-1], str(tmp_path / "w")], capsys)
    main(["run", "bee", *network, *SHORT, "--source", str(warm), "--out", str(tmp_path / "run")])
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert result["warmup"]["warmup_lr"] == 3e-4  # the file's
    assert result["config"]["warmup_lr"] == 1e-4  # what the run would have chosen
    record = json.loads((tmp_path / "run" / "batches.jsonl").read_text().splitlines()[-1])
    assert not record["events"]  # not source-free
    assert record["signals"]["mcr"] > 0
    assert set(record["phases_ms"]) == {"inner", "outer", "replay"}
    plot = ["plot", "loss", str(tmp_path / "run"), "--out", str(tmp_path / "loss")]
    main(plot)
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_the_benchmarks_of_the_command_line_are_those_there_are() -> None:
    assert get_args(BenchmarkName) == tuple(BENCHMARKS)
