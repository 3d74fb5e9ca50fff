"""A run on disk: killed, resumed, refused; its files are those of an uninterrupted run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bombus
from bombus.errors import BombusError, ConfigError, UnknownNameError, WeightsError
from bombus.methods import find_method
from bombus.provenance import code_sha256, command_line, versions
from bombus.runs import Run
from bombus.settings import RunSettings, make_config, parse_setting

SMALL = RunSettings(
    method="tent", domains=("gaussian_noise", "brightness"), samples=40, batch_size=20
)
COMMAND = [
    sys.executable, "-c", "from bombus.cli import main; main()",
    "run", "tent", "--domains", "gaussian_noise", "contrast", "--samples", "240",
    "--batch-size", "8", "--checkpoint-every", "3", "--device", "cpu",
]  # fmt: skip


def measured_aside(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A run's files without what a clock or the memory meter measured, and the command typed."""
    batches = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    result = json.loads((folder / "run.json").read_text())
    for record in batches:
        del record["ms"], record["phases_ms"]
    del result["cost"]["ms_per_batch"], result["cost"]["peak_memory_mb"], result["command"]
    return batches, result


def test_the_code_that_ran_is_known_by_its_hash() -> None:
    digest = hashlib.sha256()
    root = Path(bombus.__file__).parent
    for name in sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py")):
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    assert code_sha256() == digest.hexdigest()
    assert versions()["code"] == digest.hexdigest()[:16]


def test_ten_kills_and_resumes_equal_one_quiet_run(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet, torn = tmp_path / "quiet", tmp_path / "torn"
    subprocess.run([*COMMAND, "--out", str(quiet)], env=environment, check=True, timeout=120)
    total = len((quiet / "batches.jsonl").read_text().splitlines())
    assert total == 60
    chooser = random.Random(17)
    log = torn / "batches.jsonl"
    kills = 0
    for goal in sorted(chooser.sample(range(1, total - 1), 10)):
        process = subprocess.Popen(
            [*COMMAND, "--out", str(torn), "--resume"],
            env=environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_bytes().count(b"\n") > goal):
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(chooser.random() * 0.02)  # into the next batch, or a checkpoint
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += not (torn / "run.json").exists()
    assert kills >= 8  # the last kills may come a moment after the end
    subprocess.run(
        [*COMMAND, "--out", str(torn), "--resume"], env=environment, check=True, timeout=120
    )
    assert measured_aside(torn) == measured_aside(quiet)


def test_the_result_says_everything(tmp_path: Path) -> None:
    result = Run(SMALL).execute(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == result
    errors = [d["error"] for d in result["domains"]]
    assert result["mean_error"] == pytest.approx(sum(errors) / 2, abs=1e-4)
    assert [d["name"] for d in result["domains"]] == ["gaussian_noise", "brightness"]
    assert [d["samples"] for d in result["domains"]] == [40, 40]
    assert set(result) >= {
        "method", "benchmark", "backbone", "seed", "mean_error", "domains", "cost", "events",
        "config", "stream", "weights_sha256", "versions", "data", "input", "command",
    }  # fmt: skip
    assert set(result["cost"]) == {
        "ms_per_batch", "forwards_per_batch", "backwards_per_batch", "peak_memory_mb",
        "source_bytes",
    }  # fmt: skip
    assert len(result["weights_sha256"]) == 64
    assert result["config"] == {"seed": 1, "optimizer": "adam", "lr": 1e-3}
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "batches.jsonl",
        "run.json",
        "settings.json",
    ]


def test_the_recorded_command_names_no_folders_of_this_machine() -> None:
    typed = ["run", "bee", "--weights", "/home/me/wrn.pt", "--out", "runs/bee", "--set", "lr=1e-3"]
    expected = "bombus run bee --weights wrn.pt --out runs/bee --set lr=1e-3"
    assert command_line(typed) == expected


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    result = Run(SMALL).execute(tmp_path)
    log = (tmp_path / "batches.jsonl").stat().st_mtime_ns
    assert Run(SMALL).execute(tmp_path, resume=True) == result
    assert (tmp_path / "batches.jsonl").stat().st_mtime_ns == log


def test_nothing_is_written_over(tmp_path: Path) -> None:
    Run(SMALL).execute(tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        Run(SMALL).execute(tmp_path / "run")
    other = RunSettings(method="tent", domains=("fog",), samples=40, batch_size=20)
    with pytest.raises(ConfigError, match="another domains"):
        Run(other).execute(tmp_path / "run", resume=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        Run(SMALL).execute(tmp_path / "mine", resume=True)


def test_keeps_the_adapter_where_asked(tmp_path: Path) -> None:
    import bombus

    run = Run(SMALL)
    run.execute(tmp_path, keep_adapter=True)
    adapter = bombus.load(tmp_path / "checkpoint", run.model)
    assert adapter.name == "tent"


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"method": "tnt"}, UnknownNameError, "did you mean 'tent'"),
        ({"method": "tent", "benchmark": "cifar"}, UnknownNameError, "no benchmark named"),
        ({"method": "tent", "backbone": "wrn-28-11x"}, UnknownNameError, "backbone"),
        ({"method": "tent", "backbone": "wrn-16-2"}, WeightsError, "pass --weights"),
        ({"method": "tent", "domains": ("gausian_noise",)}, UnknownNameError, "gaussian_noise"),
        ({"method": "tent", "device": "cuda:99"}, ConfigError, "device 'cuda:99'"),
        ({"method": "tent", "device": "gpu"}, ConfigError, "device 'gpu'"),
        ({"method": "tent", "severity": 9}, ConfigError, "severity 9"),
        ({"method": "tent", "set": {"lrr": "1"}}, UnknownNameError, "did you mean 'lr'"),
        ({"method": "tent", "set": {"lr": "fast"}}, ConfigError, "expected a float"),
        ({"method": "tent", "set": {"optimizer": "adm"}}, UnknownNameError, "'adam'"),
    ],
)
def test_wrong_settings_get_one_sentence(
    settings: dict[str, Any], error: type[BombusError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        Run(RunSettings(**settings))
    assert "\n" not in str(caught.value)


def test_published_settings_per_benchmark() -> None:
    tent = find_method("tent")
    assert make_config(tent, "imagenet-c", RunSettings(method="tent")).lr == 2.5e-4
    vit = RunSettings(method="tent", backbone="vit-b16-224", set={"lr": "1e-5"})
    config = make_config(tent, "imagenet-c", vit)
    assert (config.optimizer, config.lr, config.seed) == ("sgd", 1e-5, 1)


def test_settings_are_read_by_their_type() -> None:
    assert parse_setting("none", int | None, "x") is None
    assert parse_setting("3", int | None, "x") == 3
    assert parse_setting("1,2.5", tuple[float, ...], "x") == (1.0, 2.5)
    assert parse_setting("", tuple[int, ...], "x") == ()
    assert parse_setting("no", bool, "x") is False
    with pytest.raises(ConfigError, match="expected a bool"):
        parse_setting("maybe", bool, "x")
