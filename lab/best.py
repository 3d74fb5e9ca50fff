"""The best setting of each method in sweeps, as assignments for a shell: SET_tent='lr=3e-05'.

    eval "$(python lab/best.py results/lab/2026-11-16-vit-s4-extras.jsonl runs/vit-*-seed1.jsonl)"

Where the best was prepared from a file vit-NAME-seed1.safetensors, PREPARED_method='NAME' too.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    best: dict[str, dict[str, Any]] = {}
    for file in map(Path, sys.argv[1:]):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            method = row["settings"]["method"]
            if method not in best or row["mean"] < best[method]["mean"]:
                best[method] = row
    for method, row in sorted(best.items()):
        name, settings = method.replace("-", "_"), row["settings"]
        chosen = " ".join(f"{key}={value}" for key, value in settings["set"].items())
        print(f"SET_{name}={shlex.quote(chosen)} # {row['mean']} {row['name']}")
        prepared = re.search(r"vit-(.+)-seed\d+\.safetensors$", settings["source"] or "")
        if prepared:
            print(f"PREPARED_{name}={shlex.quote(prepared[1])}")


if __name__ == "__main__":
    main()
