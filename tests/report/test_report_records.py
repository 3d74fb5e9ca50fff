from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bombus.errors import DataError
from bombus.report.records import find_runs, find_unfinished, read_batches, read_run, write_file


def test_a_run_is_read_from_its_folder_or_its_file(write_run):
    folder = write_run("a", "tent", (20.0, 30.0, 41.5))
    run = read_run(folder)
    assert run == read_run(folder / "run.json")
    assert (run.method, run.seed, run.mean_error) == ("tent", 1, 30.5)
    assert [d.error for d in run.domains] == [20.0, 30.0, 41.5]
    assert run.cost.forwards_per_batch == 1
    assert run.weights_sha256.startswith("0123")


def test_runs_and_ledgers_are_found_in_order(write_run, tmp_path):
    b, a = write_run("all/b"), write_run("all/deep/a")
    ledger = tmp_path / "results" / "cifar10-c"
    ledger.mkdir(parents=True)
    shutil.copy(a / "run.json", ledger / "tent-1.json")
    (ledger / "index.json").write_text('{"unrelated": 1}')
    (b / "checkpoint").mkdir()
    shutil.copy(a / "run.json", b / "checkpoint" / "manifest.json")  # inside a run: not a result
    found = find_runs([tmp_path / "results", tmp_path / "all", b])
    assert found == [ledger / "tent-1.json", b / "run.json", a / "run.json"]


def test_unfinished_runs_are_passed_over_below_and_named_when_given(write_run, tmp_path):
    done, stopped = write_run("all/done"), write_run("all/stopped")
    (stopped / "run.json").unlink()
    assert find_runs([tmp_path / "all"]) == [done / "run.json"]
    assert find_unfinished([tmp_path / "all"]) == [stopped]
    with pytest.raises(DataError, match=r"stopped is unfinished .*--resume"):
        find_runs([stopped])
    shutil.rmtree(done)
    with pytest.raises(DataError, match=r"only unfinished runs, e\.g\. .*stopped; .*--resume"):
        find_runs([tmp_path / "all"])


def test_each_fault_is_one_sentence(write_run, tmp_path):
    def fault(path: Path) -> str:
        with pytest.raises(DataError) as caught:
            [read_run(found) for found in find_runs([path])]
        message = str(caught.value)
        assert "\n" not in message
        assert message.endswith((".", "?"))
        return message

    assert "There is no run at" in fault(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no finished run" in fault(tmp_path / "empty")
    broken = write_run("broken") / "run.json"
    broken.write_text(broken.read_text()[:100])
    assert "not valid JSON" in fault(broken.parent)
    broken.write_bytes(b"\xff\xfe{")
    assert "not valid JSON" in fault(broken)
    broken.write_text("[1, 2]")
    assert "holds no run" in fault(broken)
    poor = write_run("poor") / "run.json"
    stored = json.loads(poor.read_text())
    for name in ("mean_error", "domains", "stream", "cost"):
        poor.write_text(json.dumps({k: v for k, v in stored.items() if k != name}))
        assert f"no field '{name}'" in fault(poor)
    for name, value in (("mean_error", float("nan")), ("domains", 3), ("seed", "x")):
        poor.write_text(json.dumps({**stored, name: value}))
        assert "not the result of a run" in fault(poor)


def test_batches_are_read_and_damage_is_named(write_run):
    folder = write_run("a", log=True, samples=400)
    records = read_batches(folder)
    assert len(records) == 3 * 2
    assert records == read_batches(folder / "run.json")
    assert records[0]["domains"] == {"gaussian_noise": {"wrong": 40, "samples": 200}}
    log = folder / "batches.jsonl"
    whole = log.read_bytes()
    for damage in (whole[:-9], whole + b"7\n", whole + b'{"domains": {}}\n'):
        log.write_bytes(damage)
        with pytest.raises(DataError, match=r"Line \d of .* is not a batch record"):
            read_batches(folder)
    log.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        read_batches(folder)
    log.unlink()
    with pytest.raises(DataError, match="There is no"):
        read_batches(folder)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "table.md"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]
