"""A sitting on a bare machine (lab/bare.sh): what breaks it ends it, and no re-sent tree does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAB = Path(__file__).parents[1] / "lab"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with the lab's scripts, and a python3 that tells where it was called."""
    tree = tmp_path / "tree"
    shutil.copytree(LAB, tree / "lab")
    (tree / "src").mkdir()
    (tree / "pieces").mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    python = tools / "python3"
    python.write_text(f"#!/bin/sh\npwd >> {tmp_path}/places\n[ ! -e {tmp_path}/broken ]\n")
    python.chmod(0o755)
    return tree


def sh(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{tree.parent / 'tools'}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", *words],
        cwd=tree,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def watch(tree: Path) -> str:
    (tree.parent / "to").mkdir(exist_ok=True)
    return sh(tree, "lab/watch.sh", "pieces", "keep", str(tree.parent / "to"), "30").stdout


def test_it_runs_from_a_copy_and_is_seen_to_end(tree: Path) -> None:
    done = sh(tree, "lab/bare.sh", "pieces", "keep", "data", "wait")
    assert (done.returncode, done.stderr) == (0, "")
    places = {Path(line) for line in (tree.parent / "places").read_text().splitlines()}
    assert len(places) == 1
    assert tree not in places
    assert "the sitting has ended" in watch(tree)
    assert (tree.parent / "to" / "keep.tgz").exists()


def test_data_that_fail_end_it(tree: Path) -> None:
    """They once left it waiting for the half hour that the machine was lent for."""
    (tree.parent / "broken").touch()
    done = sh(tree, "lab/bare.sh", "pieces", "keep", "data", "wait", "timed:touch,through")
    assert done.returncode == 1
    assert "== data" in done.stdout
    assert "through" not in done.stdout
    assert "the sitting has ended" in watch(tree)
