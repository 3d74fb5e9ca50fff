"""Run by the contract tests in a process of its own; prints one JSON object of hashes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import bombus
from tiny import kinds_of, make_adapter, make_tiny, noise_batches, tree_hash


def play(method: str, kind: str, count: int) -> str:
    adapter = make_adapter(method, make_tiny(kind))
    return tree_hash([adapter(x) for x in noise_batches(count)])


def resume(folder: Path, method: str, kind: str, count: int) -> dict[str, str]:
    """From every saved position, the hash of the logits that follow."""
    batches = noise_batches(count)
    hashes = {}
    for k in range(count):
        adapter = bombus.load(folder / method / kind / str(k), make_tiny(kind))
        hashes[str(k)] = tree_hash([adapter(x) for x in batches[k:]])
    return hashes


if __name__ == "__main__":
    torch.set_num_threads(1)
    task, method, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if task == "play":
        result = {kind: play(method, kind, count) for kind in kinds_of(method)}
    else:
        result = {kind: resume(Path(sys.argv[4]), method, kind, count) for kind in kinds_of(method)}
    print(json.dumps(result))
