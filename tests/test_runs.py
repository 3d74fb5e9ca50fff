"""A run on disk: killed, resumed, refused; its files are those of an uninterrupted run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import bombus
from bombus.backbones import create
from bombus.backbones.weights import save_weights
from bombus.cli import main
from bombus.data.benchmarks import find_benchmark
from bombus.errors import BombusError, CheckpointError, ConfigError, UnknownNameError, WeightsError
from bombus.forgetting import clean_batches
from bombus.methods import find_method
from bombus.methods._warmup_file import save_warmup
from bombus.methods.bee import Bee
from bombus.paper import Cell
from bombus.paper.run import folder_of
from bombus.provenance import code_sha256, command_line, device_name, file_digests, versions
from bombus.run_folder import FILES
from bombus.runs import Run
from bombus.settings import RunSettings, make_config, parse_setting
from tiny import make_tiny, noise_batches

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


def test_other_weights_of_the_same_name_are_another_run(tmp_path: Path) -> None:
    def settings(folder: str, seed: int) -> RunSettings:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / "net.safetensors"
        torch.manual_seed(seed)
        save_weights(create("wrn-10-1", num_classes=10), file)
        return replace(SMALL, backbone="wrn-10-1", weights=(file,))

    first = Run(settings("a", 1)).execute(tmp_path / "run")
    with pytest.raises(ConfigError, match="another files"):
        Run(settings("b", 2)).execute(tmp_path / "run", resume=True)
    assert Run(settings("moved", 1)).execute(tmp_path / "run", resume=True) == first
    cells = [Cell("x", settings(name, seed)) for name, seed in (("a", 1), ("b", 2), ("moved", 1))]
    a, b, moved = (folder_of(cell, 1, tmp_path) for cell in cells)
    assert a == moved != b
    # A run begun by a version that went by names alone can still be finished.
    file = tmp_path / "run" / "settings.json"
    file.write_text(
        json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != FILES})
    )
    assert Run(settings("a", 1)).execute(tmp_path / "run", resume=True) == first


def test_a_version_that_chooses_otherwise_does_not_go_on_with_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(SMALL).execute(tmp_path)
    assert first["config"]["lr"] == 1e-3
    monkeypatch.setattr(find_method("tent").Config, "published", {"demo": {"lr": 1e-4}})
    with pytest.raises(ConfigError, match=r"another lr \(0.001, now 0.0001\)"):
        Run(SMALL).execute(tmp_path, resume=True)
    # Asked for what it was begun with, it does, however that is spelt.
    asked = replace(SMALL, set={"lr": "1e-3"})
    assert Run(asked).execute(tmp_path, resume=True) == first
    # A run begun by a version that kept only what was asked for can still be finished.
    file = tmp_path / "settings.json"
    kept = json.loads(file.read_text())
    del kept["config"]
    file.write_text(json.dumps(kept))
    assert Run(SMALL).execute(tmp_path, resume=True) == first
    with pytest.raises(ConfigError, match="another set"):
        Run(asked).execute(tmp_path, resume=True)


def test_a_warm_up_made_otherwise_is_another_run_made_again_it_is_not(tmp_path: Path) -> None:
    def digests(name: str, **chosen: Any) -> dict[str, str]:
        file = tmp_path / name
        save_warmup(
            Bee(make_tiny("batchnorm"), Bee.Config(**chosen), source=noise_batches(3)), file
        )
        return file_digests((), file)

    one = digests("a", seed=1)
    assert one == digests("b", seed=1)
    assert one != digests("c", seed=1, warmup_lr=1e-3)
    (tmp_path / "d").write_bytes(b"no warm-up")
    assert file_digests((), tmp_path / "d") not in (one, {})
    assert file_digests((Path("robustbench:Standard"),), tmp_path) == {}


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A run that stopped after a checkpoint."""

    def stop(progress: Any) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(SMALL).execute(tmp_path / "torn", watch=stop, checkpoint_every=1)
    return tmp_path / "torn"


def test_a_log_shorter_than_its_checkpoint_is_told_and_left(torn: Path) -> None:
    log = torn / "batches.jsonl"
    log.write_bytes(log.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"batches.jsonl is shorter .*\(100 of \d+ bytes\)"):
        Run(SMALL).execute(torn, resume=True)
    assert log.stat().st_size == 100
    log.unlink()
    with pytest.raises(CheckpointError, match=r"\(0 of"):
        Run(SMALL).execute(torn, resume=True)


def test_a_log_of_nonsense_is_told(torn: Path) -> None:
    log = torn / "batches.jsonl"
    log.write_bytes(b"x" * log.stat().st_size)
    with pytest.raises(CheckpointError, match="no records"):
        Run(SMALL).execute(torn, resume=True)


@pytest.mark.parametrize("name", ["settings.json", "run.json"])
def test_broken_files_of_a_run_are_told(name: str, torn: Path) -> None:
    (torn / name).write_text("{")
    with pytest.raises(CheckpointError, match=rf"{name} is not the file that a run wrote"):
        Run(SMALL).execute(torn, resume=True)


def test_a_kill_before_the_first_file_was_whole_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".settings.json.123.tmp").write_text('{"met')
    assert Run(SMALL).execute(tmp_path, resume=True)["method"] == "tent"


def test_what_is_not_finite_is_null_in_the_files(tmp_path: Path) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    settings = replace(SMALL, method="bee", set={"lr": "1e30"})
    Run(settings).execute(tmp_path / "quiet")
    lines = (tmp_path / "quiet" / "batches.jsonl").read_text().splitlines()
    for text in (*lines, (tmp_path / "quiet" / "run.json").read_text()):
        json.loads(text, parse_constant=no_constant)
    assert any(v is None for line in lines for v in json.loads(line)["signals"].values())

    def stop(progress: Any) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(settings).execute(tmp_path / "torn", watch=stop, checkpoint_every=1)
    Run(settings).execute(tmp_path / "torn", resume=True)
    assert measured_aside(tmp_path / "torn") == measured_aside(tmp_path / "quiet")


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
    on_imagenet = RunSettings(method="tent", benchmark="imagenet-c")
    assert make_config(tent, on_imagenet).lr == 2.5e-4
    vit = replace(on_imagenet, backbone="vit-b16-224", set={"lr": "1e-5"})
    config = make_config(tent, vit)
    assert (config.optimizer, config.lr, config.seed) == ("sgd", 1e-5, 1)


def test_settings_are_read_by_their_type() -> None:
    assert parse_setting("none", int | None, "x") is None
    assert parse_setting("3", int | None, "x") == 3
    assert parse_setting("1,2.5", tuple[float, ...], "x") == (1.0, 2.5)
    assert parse_setting("", tuple[int, ...], "x") == ()
    assert parse_setting("no", bool, "x") is False
    with pytest.raises(ConfigError, match="expected a bool"):
        parse_setting("maybe", bool, "x")


def test_a_warm_up_file_may_go_while_the_run_does(tmp_path: Path) -> None:
    """What it was made with is read at the start: hours of work must not hang on it at the end."""
    file = tmp_path / "warm.safetensors"
    shutil.copy(Path(bombus.__file__).parent / "demo" / "bee-warmup.safetensors", file)
    settings = replace(SMALL, method="bee", source=file)

    def remove(progress: Any) -> None:
        file.unlink(missing_ok=True)

    result = Run(settings).execute(tmp_path / "run", watch=remove)
    assert result["warmup"]["warmup_lr"] == 3e-4


def test_a_run_of_two_codes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, edited, resumed: the result is of neither code alone."""
    whole = Run(SMALL).execute(tmp_path / "whole")
    said = whole["notes"]

    def stop(progress: Any) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(SMALL).execute(tmp_path / "two", watch=stop, checkpoint_every=2)
    now = versions()["code"]
    monkeypatch.setattr("bombus.run_folder.versions", lambda: {**versions(), "code": "other"})
    told: list[Any] = []
    result = Run(SMALL).execute(tmp_path / "two", resume=True, tell=told.append)
    device = device_name(torch.device("cpu"))
    change = f"run by code {now} on {device}, then other on {device}: resumed after a change"
    assert result["notes"] == [*said, change]
    (finding,) = [f for f in told if "other code" in f.text]
    assert finding.state == "warn"
    assert f"({now} on {device}, now other on {device})" in finding.text
    assert result["mean_error"] == whole["mean_error"]
    told.clear()
    Run(SMALL).execute(tmp_path / "two", resume=True, tell=told.append)
    assert not told


def test_a_domain_named_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "bn", "--domains", "fog", "snow", "fog", "--out", str(tmp_path / "run")])
    assert "Got --domains with fog twice; for domains that come back" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_transformer_has_settings_of_its_own() -> None:
    """On any benchmark, unless it has its own for transformers; and without any, from Python."""
    vit, cnn = make_tiny("vit"), make_tiny("batchnorm")
    tent = find_method("tent")
    own = RunSettings(method="tent", benchmark="demo-vit")
    assert make_config(tent, own).lr == 3e-5, "the benchmark's own network is one"
    assert make_config(tent, replace(own, backbone="wrn-16-1")).lr == 1e-3
    on_vit = RunSettings(method="tent", benchmark="cifar100-c", backbone="vit-s4-32")
    assert make_config(tent, on_vit).lr == 3e-4, "published"
    for adapter in (bombus.adapt(vit, "tent"), tent(vit), bombus.adapt(vit, "tent", seed=3)):
        assert adapter.config.lr == 3e-5
    assert bombus.adapt(vit, "tent", lr=1e-4).config.lr == 1e-4
    assert bombus.adapt(vit, "tent", config=tent.Config()).config.lr == 1e-3
    assert bombus.adapt(cnn, "tent").config.lr == tent(cnn).config.lr == 1e-3
    bee = find_method("bee").Config
    assert bee.for_network(vit).student_view == "none"
    assert bee.for_benchmark("imagenet-c", "vit").sample_queue == 640
    assert bee.for_network(cnn) == bee()


def test_another_gpu_goes_on_with_a_run_and_the_result_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(progress: Any) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    whole = Run(SMALL).execute(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Run(SMALL).execute(tmp_path / "two", watch=stop, checkpoint_every=2)
    monkeypatch.setattr("bombus.runs.device_name", lambda _: "another GPU")
    result = Run(replace(SMALL, device="cpu")).execute(tmp_path / "two", resume=True)
    assert result["mean_error"] == whole["mean_error"]
    assert "then" in result["notes"][-1]
    assert "on another GPU" in result["notes"][-1]
    # Finished, it is whoever's that asks for it.
    assert Run(SMALL).execute(tmp_path / "two", resume=True) == result


def test_a_cell_is_one_run_on_whichever_device() -> None:
    names = {
        folder_of(Cell("tent", replace(SMALL, device=device)), 1, Path("runs"))
        for device in ("auto", "cpu", "cuda:0", "cuda:1")
    }
    assert len(names) == 1


def test_an_answer_from_a_window_is_charged_with_the_whole_window(tmp_path: Path) -> None:
    settings = replace(SMALL, stream="single", samples=10, batch_size=5)
    cost = Run(settings).execute(tmp_path / "run")["cost"]
    # The window fills up: 1, 2, 3, 4 images, then 5 each time; one in five is learnt from.
    assert cost["forwards_per_batch"] == pytest.approx((1 + 2 + 3 + 4 + 16 * 5) / 20)
    assert cost["backwards_per_batch"] == pytest.approx(4 * 5 / 20)


def test_clean_images_of_a_folder_are_sized_and_numbered_as_the_streams(tmp_path: Path) -> None:
    def picture(*place: str, colour: tuple[int, int, int]) -> None:
        file = tmp_path.joinpath(*place)
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), colour).save(file)

    for name, colour in (("ant", (250, 0, 0)), ("bee", (0, 250, 0)), ("cat", (0, 0, 250))):
        picture("data", "fog", name, "0.png", colour=colour)
    picture("clean", "cat", "0.png", colour=(0, 0, 250))  # one class alone, numbered by itself 0
    benchmark = find_benchmark("folder")
    images = benchmark.open(tmp_path / "data")
    names = ("ant", "bee", "cat")
    assert getattr(images, "class_names") == names  # noqa: B009 - of folders alone
    ((x, y),) = clean_batches(benchmark, tmp_path / "clean", 4, 3, names)
    assert x.shape == (1, 3, 32, 32)
    assert y.tolist() == [2]
