"""Storage of state: exact, crash-safe, and honest about damage."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from bombus import checkpoint
from bombus.errors import CheckpointError
from tiny import tree_hash

STATE = {
    "weights": {"conv.weight": torch.randn(4, 3, 2, 2), "steps": torch.tensor(7)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "m": torch.randn(5)}}, "lr": 1e-3},
    "queue": [torch.arange(6).byte().view(2, 3), None, True, "text", (1, 2.5)],
    "empty": torch.zeros(0, 3),
    "infinite": float("inf"),
}


def test_round_trip_keeps_types_keys_and_bits(tmp_path: Path) -> None:
    checkpoint.save_state(tmp_path, STATE, {"method": "x"})
    state, meta = checkpoint.load_state(tmp_path)
    assert meta == {"method": "x"}
    assert tree_hash(state) == tree_hash(STATE)
    assert list(state["optimizer"]["state"]) == [0]  # an integer key, not "0"
    assert isinstance(state["queue"][4], tuple)


def test_saving_again_leaves_two_files(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        checkpoint.save_state(tmp_path, {"a": torch.tensor(value)}, {})
    assert len(list(tmp_path.iterdir())) == 2
    assert checkpoint.load_state(tmp_path)[0]["a"] == 2.0


def test_a_strangers_manifest_is_not_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / "manifest.json"
    for text in ('{"name": "my app", "icons": []}', "[1, 2]"):
        theirs.write_text(text)
        with pytest.raises(
            CheckpointError, match=r"holds a manifest\.json that is no checkpoint's"
        ):
            checkpoint.save_state(tmp_path, STATE, {})
        assert theirs.read_text() == text
        assert list(tmp_path.iterdir()) == [theirs]
    theirs.write_text('{"format": 2, "meta"')  # a damaged one of ours is made whole
    checkpoint.save_state(tmp_path, STATE, {})
    assert tree_hash(checkpoint.load_state(tmp_path)[0]) == tree_hash(STATE)


def test_a_part_that_stayed_the_same_is_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"somebody else's")
    large = {"w": torch.randn(10)}
    checkpoint.save_state(tmp_path, {"once": large, "now": torch.tensor(1.0)}, {})
    (once,) = tmp_path.glob("once-*")
    inode = once.stat().st_ino
    checkpoint.save_state(tmp_path, {"once": large, "now": torch.tensor(2.0)}, {})
    assert once.stat().st_ino == inode
    once.write_bytes(once.read_bytes()[:-1] + b"?")  # damaged meanwhile: then it is
    checkpoint.save_state(tmp_path, {"once": large, "now": torch.tensor(3.0)}, {})
    state, _ = checkpoint.load_state(tmp_path)
    assert torch.equal(state["once"]["w"], large["w"])
    assert len(list(tmp_path.iterdir())) == 4
    assert (tmp_path / "mine.safetensors").read_bytes() == b"somebody else's"


def test_views_of_one_storage_are_stored_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    checkpoint.save_state(tmp_path, {"a": base[:3], "b": base, "c": base[0].expand(4)}, {})
    state, _ = checkpoint.load_state(tmp_path)
    assert torch.equal(state["b"], base)
    assert torch.equal(state["c"], torch.zeros(4))


def test_every_flipped_bit_and_cut_is_noticed(tmp_path: Path) -> None:
    checkpoint.save_state(tmp_path, STATE, {"method": "x"})
    chooser = random.Random(5)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        for _ in range(100):
            damaged = bytearray(whole)
            damaged[chooser.randrange(len(whole))] ^= 1 << chooser.randrange(8)
            file.write_bytes(damaged)
            try:
                state, meta = checkpoint.load_state(tmp_path)
            except CheckpointError:
                pass
            else:  # white space in the manifest may change without changing what it says
                assert tree_hash(state) == tree_hash(STATE)
                assert meta == {"method": "x"}
                assert file.name == checkpoint.MANIFEST
            file.write_bytes(whole[: chooser.randrange(len(whole))])
            with pytest.raises(CheckpointError):
                checkpoint.load_state(tmp_path)
        file.write_bytes(whole)
    assert tree_hash(checkpoint.load_state(tmp_path)[0]) == tree_hash(STATE)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_crash_at_any_write_point_leaves_the_old_or_the_new(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail at the n-th fsync or rename, for every n, and look at what is on the disk."""

    class PowerCut(BaseException):
        pass

    def cut_at(n: int, original: Any) -> Any:
        left = [n]

        def maybe_cut(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCut
            return original(*args, **kwargs)

        return maybe_cut

    where = {"fsync": (os, "fsync"), "replace": (Path, "replace")}[call]
    original = getattr(*where)
    checkpoint.save_state(tmp_path, {"a": torch.tensor(1.0)}, {})
    cuts = 0
    for n in range(20):
        monkeypatch.setattr(*where, cut_at(n, original))
        try:
            checkpoint.save_state(tmp_path, {"a": torch.tensor(2.0)}, {})
            done = True
        except PowerCut:
            done, cuts = False, cuts + 1
        monkeypatch.setattr(*where, original)
        value = float(checkpoint.load_state(tmp_path)[0]["a"])
        assert value == 2.0 if done else value in (1.0, 2.0)
        if done:
            break
        checkpoint.save_state(tmp_path, {"a": torch.tensor(1.0)}, {})
    assert done
    assert cuts >= 2


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        checkpoint.load_state(tmp_path)
    checkpoint.save_state(tmp_path, STATE, {})
    manifest = json.loads((tmp_path / checkpoint.MANIFEST).read_text())
    (tmp_path / manifest["parts"]["weights"]["tensors"]).unlink()
    with pytest.raises(CheckpointError, match="which is not there"):
        checkpoint.load_state(tmp_path)
    with pytest.raises(TypeError, match="/odd is a set"):
        checkpoint.save_state(tmp_path, {"odd": {1}}, {})
