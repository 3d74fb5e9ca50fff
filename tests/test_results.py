"""The ledger: what the documents show is what it holds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bombus.cli import main

ROOT = Path(__file__).parents[1]


def test_tables_in_the_documents_agree_with_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    main(["results", "--check"])
    assert capsys.readouterr().out.startswith("26 tables agree")


def test_a_typed_number_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    text = (ROOT / "README.md").read_text()
    best = re.search(r"\| \*\*\d+\.\d\*\* \|", text)
    assert best
    wrong = text.replace(best[0], "| **1.9** |", 1)
    (tmp_path / "README.md").write_text(wrong)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["results", "--check"])
    assert stop.value.code == 2
    assert "README.md differ from the ledger" in capsys.readouterr().err
    main(["results", "--write"])
    assert (tmp_path / "README.md").read_text() == text


RESCALED = "cifar10-c/wrn-28-10-rescaled"


@pytest.mark.parametrize(
    ("name", "made_of"),
    [
        ("ablation", "--runs paper/ablation/runs"),
        ("ablation-car", "--runs paper/ablation-car/runs"),
        (
            "efficiency",
            f"--without bee-rehearsal --runs {RESCALED} --costs cifar10-c/wrn-28-10",
        ),
        ("forgetting", "--runs paper/forgetting/runs"),
        ("sensitivity", "--seeds 1 --runs paper/sensitivity/runs paper/ablation/runs"),
        ("queue-on-baselines", f"--seeds 1 --runs paper/queue-on-baselines/runs {RESCALED}"),
    ],
)
def test_what_is_kept_of_an_experiment_is_what_its_runs_say(
    name: str, made_of: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "results"
    shutil.copytree(ROOT / "results", ledger)
    kept = ledger / "paper" / name / "results.json"
    before = json.loads(kept.read_text())
    kept.unlink()
    command = [sys.executable, str(ROOT / "lab" / "gather.py"), name, "--partial"]
    command += ["--out", str(kept.parent)]
    command += [str(ledger / word) if "/" in word else word for word in made_of.split()]
    subprocess.run(command, check=True, capture_output=True)
    after = json.loads(kept.read_text())
    for stored in (before, after):
        for cell in stored["cells"]:  # a run may be named with its folder, or without
            cell["runs"] = [Path(run).name for run in cell["runs"]]
    assert after == before


def test_lists_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    main(["results"])
    said = capsys.readouterr().out
    given = said.split("results/cifar10-c/wrn-28-10: cifar10-c, wrn-28-10\n")[1]
    given = given.split("results/")[0]
    other = said.split("results/cifar10-c/wrn-28-10-rescaled: cifar10-c, wrn-28-10\n")[1]
    assert re.search(r"^  bn +20\.26  3 seeds$", given, re.MULTILINE)
    assert re.search(r"^  cotta +20\.19  1 seed$", given, re.MULTILINE)
    assert re.search(r"^  cotta +17\.05  3 seeds$", other, re.MULTILINE)
    assert re.search(r"^  bee-all-of-a-replay +11\.91  3 seeds$", said, re.MULTILINE)


def test_a_folder_with_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["results", "elsewhere", "--check"])
    assert stop.value.code == 2
    assert "leave the folder out" in capsys.readouterr().err


def test_without_a_ledger_it_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["results"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "There is no ledger results here; run this from the repository's root" in said
