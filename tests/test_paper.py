"""The paper's experiments: their settings exist, their cells run once, and they are shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import bombus
from bombus.cli import main
from bombus.data.corruptions import STANDARD
from bombus.lock import locked
from bombus.methods import find_method, known_methods
from bombus.paper import NAMES, Cell, Finished, Place, find_experiment, queue_on_baselines
from bombus.paper.ladder import draw_ladder
from bombus.paper.layout import write_variants
from bombus.paper.run import folder_of, for_seed, run_cells, time_left
from bombus.report.layout import Table
from bombus.report.records import read_run
from bombus.report.table import to_latex
from bombus.report.triggers import judge, judge_alarms
from bombus.settings import make_config
from tiny import make_adapter, make_tiny, noise_batches, tree_hash, write_cifar10

FULL = Place(full=True, source=Path("cifar10"), clean=Path("cifar10"), weights=(Path("w.pt"),))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [Place(), FULL], ids=["demo", "full"])
def test_every_cell_is_a_run_that_can_be_asked_for(name: str, place: Place) -> None:
    experiment = find_experiment(name)
    assert experiment.TITLE
    assert experiment.CLAIM
    cells = experiment.cells(place)
    assert len({cell.name for cell in cells}) == len(cells) >= 2
    for cell in cells:
        method = find_method(cell.settings.method)
        config = make_config(method, cell.settings)
        assert all(hasattr(config, setting) for setting in cell.settings.set)
        embedded = "demo-vit" if name == "cifar-vit" else "demo"
        assert place.full or cell.settings.benchmark == embedded


@pytest.mark.parametrize("name", ["cifar-cnn", "efficiency", "queue-on-baselines"])
def test_without_source_images_what_cannot_do_without_is_left_out(name: str) -> None:
    cells = find_experiment(name).cells
    everything = {cell.name for cell in cells(FULL)}
    needy = {"eata", "rmt", "rmt-free", "dplot", "obao", "eata-queue", "rmt-queue"} & everything
    full = {cell.name for cell in cells(replace(FULL, source=None))}
    assert full == everything - needy - {"bee-rehearsal"}
    assert {cell.name for cell in cells(Place())} == everything  # the demo has source images


@pytest.mark.parametrize(
    "name",
    [
        *("trigger", "queue-on-baselines", "forgetting", "efficiency"),
        *("ablation", "ablation-car", "sensitivity"),
    ],
)
def test_an_experiment_from_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = find_experiment(name)
    cells = experiment.cells

    def few(place: Place) -> list[Cell]:
        domains = ("fog", "contrast")
        return [replace(c, settings=replace(c.settings, domains=domains)) for c in cells(place)[:2]]

    monkeypatch.setattr(experiment, "cells", few)
    monkeypatch.setattr("bombus.forgetting.IMAGES", 8)
    command = ["paper", name, "--samples", "8", "--batch-size", "4", "--out", str(tmp_path)]
    main(command)
    printed = capsys.readouterr().out
    assert experiment.CLAIM in printed
    results = json.loads((tmp_path / "results.json").read_text())
    for cell in results["cells"]:
        (error,) = cell["by_seed"].values()
        assert cell["mean_error"] == error
        assert cell["interval"] is None
    tables = {(tmp_path / f"table.{kind}").read_text() for kind in ("txt", "md", "tex")}
    assert len(tables) == 3
    main(["compare", str(tmp_path / "results.json"), "--format", "markdown"])
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text()
    pictures = list(tmp_path.glob("*.svg"))
    assert pictures
    assert all(p.with_suffix(".png").exists() for p in pictures)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    main(command)  # nothing is run again, and the same comes out
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("spent", "left", "said"),
    [
        ({}, ["tent"], ""),  # nothing is known yet
        ({"bee": [100.0, 140.0]}, ["bee", "bee"], " (4 min left)"),
        ({"source": [6.0], "bee": [120.0]}, ["source", "bee"], " (2 min left)"),
        ({"source": [6.0]}, ["source"] * 2, " (< 1 min left)"),
        # What is new may be dearer than all that was seen.
        ({"source": [6.0], "bn": [60.0]}, ["source", "tent", "bee"], " (at least 2 min left)"),
        ({"source": [6.0]}, ["tent"], ""),
    ],
)
def test_the_time_left(spent: dict[str, list[float]], left: list[str], said: str) -> None:
    assert time_left(spent, left) == said


def test_an_ablations_figure_does_not_make_much_of_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Place().settings("bn", "cifar10-c")
    rows = [("none", {}, 11.5), ("both", {"queue": True, "next": False, "replay": True}, 11.6)]
    finished = [
        Finished(Cell(name, settings, facts), (), (SimpleNamespace(mean_error=error),))  # type: ignore[arg-type]
        for name, facts, error in rows
    ]
    drawn: list[Figure] = []

    def kept(figure: Figure, out: Path) -> list[Path]:
        drawn.append(figure)
        return [out]

    monkeypatch.setattr("bombus.paper.ladder.save_pictures", kept)
    assert draw_ladder(finished, tmp_path) == [tmp_path / "figure"]
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "queue + replay"]
    assert {text.get_text() for text in axes.texts} == {"11.50", "11.60"}
    low, high = axes.get_xlim()
    assert high - low == pytest.approx(1.0)
    assert low < 11.5
    assert high > 11.6


def test_a_ledger_of_an_experiment_is_read_and_its_faults_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(samples=4, batch_size=2)
    settings = replace(place.settings("bn", "cifar10-c"), domains=("fog",))
    finished = run_cells([Cell("a", settings, {"kind": "plain"}, 58.3)], (1, 2), tmp_path / "x")
    path = write_variants("Some title", "A claim.", finished, tmp_path, ["A note."])[0]
    (tmp_path / "runs").mkdir()
    for folder in finished[0].folders:  # as a ledger keeps them: a file a run
        (folder / "run.json").rename(tmp_path / "runs" / f"{folder.name}.json")
    main(["compare", str(path)])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Some title", "plain", "58.3", "A note.", "±"))
    named = json.loads(path.read_text())
    named["cells"][0]["runs"] = [f"../runs/{folder.name}" for folder in finished[0].folders]
    other = tmp_path / "other" / "results.json"  # which takes another one's runs
    other.parent.mkdir()
    other.write_text(json.dumps(named))
    main(["compare", str(other)])
    assert capsys.readouterr().out == printed
    next((tmp_path / "runs").iterdir()).unlink()
    with pytest.raises(SystemExit):
        main(["compare", str(path)])
    assert "There is no run bn-" in capsys.readouterr().err
    path.write_text('{"cells": [{"name": "a"}]}')
    with pytest.raises(SystemExit):
        main(["compare", str(path)])
    assert "no whole result" in capsys.readouterr().err


def test_no_cell_is_run_twice_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(samples=6, batch_size=3)
    settings = replace(place.settings("tent", "cifar10-c"), domains=("fog",))
    cells = [Cell("a", settings), Cell("b", replace(settings, method="bn"))]
    from bombus.runs import Run

    begun: list[str] = []
    execute = Run.execute

    def interrupted(self: Run, out: Path, **options: Any) -> dict[str, Any]:
        begun.append(self.settings.method + str(self.settings.seed))
        if len(begun) == 3:
            raise KeyboardInterrupt
        return execute(self, out, **options)

    monkeypatch.setattr(Run, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, (1, 2), tmp_path)
    finished = run_cells(cells, (1, 2), tmp_path)
    assert begun == ["tent1", "bn1", "tent2", "tent2", "bn2"]
    assert [len(f.runs) for f in finished] == [2, 2]
    assert {run.seed for f in finished for run in f.runs} == {1, 2}


def test_processes_that_share_a_folder_share_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell is run by one of them, and both lay out all; threads here, as locks go by file."""
    place = Place(samples=6, batch_size=3)
    settings = replace(place.settings("bn", "cifar10-c"), domains=("fog",))
    cells = [Cell(f"{n}", replace(settings, samples=n)) for n in (3, 6, 9, 12)]
    from bombus.runs import Run

    begun: list[tuple[str, int | None]] = []
    execute, both = Run.execute, threading.Barrier(2)

    def counted(self: Run, out: Path, **options: Any) -> dict[str, Any]:
        begun.append((threading.current_thread().name, self.settings.samples))
        if len(begun) <= 2:
            both.wait(20)  # neither is done before the other has begun
        return execute(self, out, **options)

    monkeypatch.setattr(Run, "execute", counted)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: run_cells(cells, (1,), tmp_path), range(2))
    assert sorted(samples for _, samples in begun) == [3, 6, 9, 12]
    assert len({thread for thread, _ in begun}) == 2
    assert [f.means for f in one] == [f.means for f in other]
    assert not list(tmp_path.glob(".*"))


def test_what_another_process_leaves_unfinished_is_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(samples=3, batch_size=3)
    cell = Cell("bn", replace(place.settings("bn", "cifar10-c"), domains=("fog",)))
    folder = folder_of(cell, 1, tmp_path)
    titles: list[str] = []

    @contextmanager
    def watching(title: str) -> Iterator[None]:
        titles.append(title)
        if "another" in title:
            died.set()
        yield

    died = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / f".{folder.name}.lock"):
            told = pool.submit(run_cells, [cell], (1,), tmp_path, watching)
            assert died.wait(20)
            assert not told.done()
        (finished,) = told.result()
    assert titles == ["bn, by another process", "1/1 bn"]
    assert finished.runs[0].method == "bn"


def test_cells_of_the_same_settings_are_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(samples=4, batch_size=2)
    plain, spelt, other = (
        replace(place.settings("tent", "cifar10-c", **chosen), domains=("fog",))
        for chosen in ({}, {"lr": "1e-3"}, {"lr": 1e-4})
    )
    finished = run_cells([Cell("a", plain), Cell("b", spelt), Cell("c", other)], (1,), tmp_path)
    folders = [f.folders for f in finished]
    assert folders[0] == folders[1] != folders[2]
    assert len(list(tmp_path.iterdir())) == 2
    # Whatever else is asked for, or the same of other files, is another run.
    for change in ({"samples": 6}, {"source": Path("a")}, {"weights": (Path("w.pt"),)}):
        cell = Cell("d", replace(plain, **change))  # type: ignore[arg-type]
        assert folder_of(cell, 1, tmp_path) not in {f for fs in folders for f in fs}
    # And so is the same of a version that chooses otherwise by itself.
    monkeypatch.setattr(find_method("tent").Config, "published", {"demo": {"lr": 1e-4}})
    assert folder_of(Cell("a", plain), 1, tmp_path) == folders[2][0]


def test_bee_itself_is_run_once_for_all_tables() -> None:
    bee = Cell("bee", FULL.settings("bee", "cifar10-c", replay="weighted"))
    shared = folder_of(bee, 1, Path())
    for name in ("ablation", "ablation-car", "sensitivity", "trigger"):
        cells = find_experiment(name).cells(FULL)
        assert shared in {folder_of(cell, 1, Path()) for cell in cells}, name


def test_each_seed_may_have_a_warm_up_of_its_own() -> None:
    place = replace(FULL, warmup=Path("warm/seed{seed}.safetensors"))
    settings = place.settings("bee", "cifar10-c")
    assert for_seed(settings, 3).source == Path("warm/seed3.safetensors")
    assert for_seed(replace(settings, source=None), 3).source is None
    for other in ("rmt", "bee-paper"):  # which is prepared otherwise
        assert place.settings(other, "cifar10-c").source == FULL.source


def test_bee_is_prepared_once_a_seed_whatever_its_cells_switch_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bombus.warmup

    made: list[int] = []
    make = bombus.warmup.make_warmup

    def counting(settings: Any, out: Path) -> None:
        made.append(settings.seed)
        make(settings, out)

    monkeypatch.setattr(bombus.warmup, "make_warmup", counting)
    place = Place(samples=4, batch_size=2, source=write_cifar10(tmp_path / "clean", 20))
    parts = ({}, {"prediction_weight": 0, "inner_steps": 0}, {"replay": "weighted"})
    cells = [
        Cell(f"c{i}", replace(place.settings("bee", "cifar10-c", **part), domains=("fog",)))
        for i, part in enumerate(parts)
    ]
    runs = tmp_path / "runs"
    finished = run_cells(cells, (1, 2), runs)
    assert made == [1, 2]
    assert len({f.folders for f in finished}) == 3
    asked = [json.loads((f / "settings.json").read_text()) for f in finished[0].folders]
    assert [a["source"] for a in asked] == sorted(p.name for p in runs.glob("*.safetensors"))
    run_cells(cells, (1, 2), runs)
    assert made == [1, 2]
    # Asked to prepare otherwise, it does.
    place = replace(place, own={"bee": {"warmup_rounds": "2"}})
    other = replace(place.settings("bee", "cifar10-c", replay="off"), domains=("fog",))
    run_cells([Cell("other", other)], (1,), runs)
    assert made == [1, 2, 1]
    # A version that prepares otherwise by itself does not take the old file.
    monkeypatch.setattr(find_method("bee").Config, "published", {"demo": {"warmup_lr": 1e-3}})
    run_cells(cells[:1], (1,), runs)
    assert made == [1, 2, 1, 1]


def test_some_methods_of_a_table_with_settings_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    little = ["--samples", "4", "--batch-size", "2", "--out", str(tmp_path)]
    asked = ["--methods", "source", "tent", "--set", "tent.lr=3e-3"]
    main(["paper", "cifar-cnn", *little, *asked])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [cell["name"] for cell in results["cells"]] == ["source", "tent"]
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("tent-*/run.json")]
    assert [run["config"]["lr"] for run in runs] == [3e-3]
    main(["paper", "cifar-cnn", *little, "--rows", "source"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [cell["name"] for cell in results["cells"]] == ["source"]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (["--methods", "tentt"], "did you mean 'tent'"),
        (["--scale", "full", "--methods", "rmt"], "not rmt; it needs --source"),
        (["--rows", "soruce"], "no row of cifar-cnn named 'soruce'; did you mean 'source'"),
        (["--rows", "source", "--methods", "tent"], "No row has both"),
        (["--set", "lr=1"], "expected METHOD.NAME=VALUE"),
        (["--scale", "full", "--set", "rmt.lr=1"], "not rmt"),
        (["--set", "tent.lrr=1"], "no tent setting named 'lrr'"),
        (["--set", "tent.lr=-1"], "lr=-1"),
        (["--source", "nowhere"], "nowhere"),
    ],
)
def test_what_a_table_cannot_be_asked_for_is_said_before_anything_runs(
    asked: list[str], answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "cifar-cnn", "--out", str(tmp_path / "out"), *asked])
    assert stopped.value.code == 2
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (["--data", "nowhere", "--weights", "w.safetensors"], "nowhere"),
        (["--data", "{data}"], "pass --weights FILE"),
        (["--data", "{data}", "--weights", "w.safetensors"], "w.safetensors"),
    ],
)
def test_a_table_in_full_that_cannot_begin_leaves_nothing_behind(
    asked: list[str], answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in STANDARD:
        np.save(data / f"{name}.npy", np.zeros((20, 32, 32, 3), np.uint8))
    np.save(data / "labels.npy", np.zeros(20, np.uint8))
    call = [word.format(data=data) for word in asked]
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "ablation", "--scale", "full", "--out", str(tmp_path / "out"), *call])
    assert stopped.value.code != 0
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [["--source", "nope"], ["--warmup", "nope.safetensors"]])
def test_source_data_that_is_not_there_is_told_before_anything_is_written(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "ablation", "--out", str(tmp_path / "out"), *asked])
    assert stopped.value.code == 2
    assert "nope" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_method_that_an_experiment_never_has_needs_no_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["paper", "ablation", "--methods", "rmt"])
    said = capsys.readouterr().err
    assert "not rmt" in said
    assert "--source" not in said


def test_the_ablation_has_the_papers_four_levels_where_the_network_has_them() -> None:
    experiment = find_experiment("ablation")
    three = {cell.name: cell for cell in experiment.cells(FULL)}
    assert "four-levels" not in three
    four = {cell.name: cell for cell in experiment.cells(replace(FULL, benchmark="imagenet-c"))}
    assert list(four)[4:7] == ["line-4", "four-levels", "line-5"]
    assert four["four-levels"].published == 60.1
    assert four["four-levels"].settings.set["levels"] == "-4,-3,-2,-1"


@pytest.mark.parametrize("name", ["ablation-car", "sensitivity"])
def test_no_two_rows_of_the_demo_are_the_same_run_by_its_shortness(name: str) -> None:
    """The demo's 60 (45) batches are too short for the paper's intervals and pools."""
    cells = find_experiment(name).cells(Place())
    facts = [(cell.facts.get("setting"), cell.facts.get("value")) for cell in cells]
    assert name == "ablation-car" or len(set(facts)) == len(facts)
    for cell in cells:
        domains, size = 15, cell.settings.batch_size
        assert cell.settings.samples is not None
        assert size is not None
        batches = domains * cell.settings.samples // size
        assert int(cell.settings.set.get("replay_every", 0)) < batches
        period = int(cell.settings.set.get("anchor_period", 30))
        if cell.facts.get("setting") == "C_a":
            assert int(cell.settings.set["anchors"]) <= batches // period


def test_imagenets_methods_go_by_the_network_not_by_where_its_file_lies() -> None:
    cells = find_experiment("imagenet").cells
    cnn = {cell.name for cell in cells(replace(FULL, weights=(Path("invitro/r50.pt"),)))}
    assert "rmt" in cnn
    vit = {cell.name for cell in cells(replace(FULL, backbone="vit-b16-224"))}
    assert "vida" in vit
    assert vit == {
        cell.name
        for cell in cells(
            replace(FULL, weights=(Path("timm:vit_base_patch16_224.augreg_in21k_ft_in1k"),))
        )
    }


def test_the_cost_of_a_method_stands_beside_its_published_error(tmp_path: Path) -> None:
    ledger = Path(__file__).parents[1] / "results" / "cifar10-c" / "wrn-28-10-rescaled"
    cells = {cell.name: cell for cell in find_experiment("efficiency").cells(FULL)}
    chosen = [
        Finished(cells[name], (tmp_path,), (read_run(ledger / f"{name}-seed1.json"),))
        for name in ("bee", "roid", "rdumb")
    ]
    find_experiment("efficiency").show(chosen, tmp_path)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [cell["published"] for cell in stored["cells"]] == [12.7, 16.2, None]
    assert len(stored["notes"]) == 2  # who says the one, and who the other
    assert "16.2" in (tmp_path / "table.md").read_text()


def test_a_mixed_stream_has_no_borders() -> None:
    def batch(*domains: str) -> dict[str, Any]:
        return {"domains": {name: {} for name in domains}, "events": []}

    mixed = [batch("fog", "snow"), batch("snow", "frost"), batch("fog", "frost")]
    judged = judge_alarms(mixed)
    assert judged.borders == 0
    assert str(judged) == "0 shifts noticed in a stream without borders between domains"


def test_what_sets_a_line_apart_goes_before_ones_own_settings() -> None:
    place = Place(own={"bee": {"inner_steps": "5", "lr": "1e-5"}})
    assert place.settings("bee", "cifar10-c", inner_steps=0).set == {
        "inner_steps": "0",
        "lr": "1e-5",
    }
    assert place.settings("tent", "cifar10-c").set == {}


def test_the_demo_scale_has_its_own_network(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "trigger", "--weights", "w.pt"])
    assert stopped.value.code == 2
    assert "add --scale full" in capsys.readouterr().err


def test_a_method_with_a_queue_is_the_method_called_more_often() -> None:
    find_experiment("queue-on-baselines").cells(Place())
    assert "tent-queue" in known_methods()
    queued = make_adapter("tent-queue", make_tiny("batchnorm"))
    plain = make_adapter("tent", make_tiny("batchnorm"))
    batches = noise_batches(3)
    for x in batches:
        drawn = queued(x)
    assert len(queued.recent) == 24
    assert tree_hash(queued.state_dict()) != tree_hash(plain.state_dict())
    # The first batch: the queue holds it alone, so every draw is the batch itself in some order.
    one, other = make_adapter("tent-queue", make_tiny("batchnorm")), plain
    first = one(batches[0])
    for _ in range(queue_on_baselines.STEPS):
        other(batches[0])
    torch.testing.assert_close(first, other(batches[0]), rtol=1e-3, atol=1e-4)
    assert drawn.isfinite().all()


def test_a_queued_method_that_starts_anew_within_a_batch_goes_on() -> None:
    find_experiment("queue-on-baselines").cells(Place())
    sure = bombus.adapt(make_tiny("batchnorm"), "sar-queue", floor=10.0, margin=10.0)
    for x in noise_batches(3):
        assert sure(x).isfinite().all()
        assert [event["event"] for event in sure.last.events] == ["recovered"] * 3


def test_alarms_are_judged_by_the_borders_before_them() -> None:
    judged = judge(borders=[50, 100, 150], alarms=[50, 59, 60, 102, 149])
    assert (judged.borders, judged.found, judged.alarms, judged.false_alarms) == (3, 2, 5, 2)
    assert (judged + judged).alarms == 10
    close = judge(borders=[4, 8, 12], alarms=[9])  # not the one of batch 4 as well
    assert (close.found, close.false_alarms) == (1, 0)
    assert "2 of 3 borders found within 10 batches" in str(judged)
    short = judge(borders=[8, 16, 24], alarms=[11, 12])  # in 8 batches not all can be soon
    assert (short.found, short.false_alarms, short.near) == (1, 1, 4)


def test_a_replay_by_the_clock_is_no_alarm() -> None:
    def record(batch: int, *events: dict[str, Any]) -> dict[str, Any]:
        return {"domains": {"fog" if batch < 3 else "snow": {}}, "events": list(events)}

    replay, shift = {"event": "replay", "anchors": [0]}, {"event": "shift", "z": 7.0}
    by_the_clock = [record(i, *([replay] if i % 2 else [])) for i in range(6)]
    assert judge_alarms(by_the_clock).alarms == 0
    noticed = [record(i, *([shift, replay] if i == 3 else [])) for i in range(6)]
    assert (judge_alarms(noticed).alarms, judge_alarms(noticed).found) == (1, 1)
    before = [record(i, *([{**replay, "z": 7.0}] if i == 3 else [])) for i in range(6)]
    assert judge_alarms(before).found == 1  # as earlier versions told it


def test_signs_of_the_paper_survive_latex() -> None:
    place = Place(samples=4, batch_size=2)
    cells = find_experiment("sensitivity").cells(place)
    assert any(cell.facts["setting"] == "ξ" for cell in cells)
    table = Table("ξ", (), ())
    assert "ξ" not in to_latex([table])
    assert "$\\xi$" in to_latex([table])
    # The point that all panels share is one run.
    shared = [c.settings for c in cells if c.name in ("complementary-5", "anchor_period-30")]
    assert folder_of(Cell("a", shared[0]), 1, Path()) == folder_of(Cell("b", shared[1]), 1, Path())
