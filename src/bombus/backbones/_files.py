"""Weight files: found, hashed and read as names with tensors; never a line of their code is run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bombus.errors import WeightsError

PICKLES = (".pt", ".pth", ".tar", ".bin", ".ckpt")
WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "weights", "params")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")

State = dict[str, Tensor]


def weight_files(paths: Sequence[Path]) -> list[Path]:
    """The paths, each shard together with its siblings; every one there and not empty.

    A sibling that was given itself is taken from where it was given, else from beside the shard.
    """
    given = {Path(path).name: Path(path) for path in paths}
    files: list[Path] = []
    for path in map(Path, paths):
        family = [path]
        if match := _SHARD.fullmatch(path.name):
            total = int(match["total"])
            names = [
                f"{match['stem']}-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)
            ]
            family = [given.get(name, path.with_name(name)) for name in names]
            missing = [shard.name for shard in family if not shard.is_file()]
            if path.is_file() and missing:
                raise WeightsError(
                    f"{path} is one of {total} shards, but beside it there is no "
                    f"{', no '.join(missing)}."
                )
        files += [file for file in family if file not in files]
    if not files:
        raise WeightsError("No weights file was given.")
    for file in files:
        if file.is_dir():
            raise WeightsError(f"{file} is a folder; give the weights file inside it.")
        if not file.is_file():
            raise WeightsError(
                f"There is no weights file {file}; give one, or a name (`bombus list weights`)."
            )
        if file.stat().st_size == 0:
            raise WeightsError(f"{file} is empty; it should hold weights.")
    return files


def sha256_of_files(files: Sequence[Path]) -> str:
    digests: list[str] = []
    for file in files:
        with file.open("rb") as handle:
            digests.append(hashlib.file_digest(handle, "sha256").hexdigest())
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def read_weights(file: Path, notes: list[str]) -> tuple[State, Mapping[str, str]]:
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, framework="pt") as reader:
                keys = reader.keys()
                return {key: reader.get_tensor(key) for key in keys}, reader.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise WeightsError(
                f"{file} is not a whole safetensors file ({error}); copy or download it again."
            ) from error
    if file.suffix not in PICKLES:
        raise WeightsError(
            f"{file} is not a weights file; expected .safetensors, {', '.join(PICKLES)}."
        )
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can fail in any way, and all of them mean this
        # torch's own text is a page of advice, some of it unsafe; one of its words is of use.
        if found := re.search(r"GLOBAL (\S+)|Trying to \w+ \w+ for unrecognized", str(error)):
            raise WeightsError(
                f"{file} holds Python objects besides tensors ({found[1] or 'a call'}) and was not "
                "opened, since reading them can run code; save its state dict as safetensors."
            ) from None
        raise WeightsError(
            f"{file} is not a weights file that torch can read; it may be cut short: save or "
            "download it again."
        ) from error
    return _unwrap(content, file, notes), {}


def _unwrap(content: Any, file: Path, notes: list[str]) -> State:
    while isinstance(content, Mapping):
        inner = [k for k in WRAPPERS if isinstance(content.get(k), Mapping) and content[k]]
        if not inner:
            break
        others = [str(k) for k, v in content.items() if k != inner[0] and isinstance(v, Mapping)]
        notes.append(
            f"took {inner[0]!r} of the file" + (f", left {', '.join(others)}" if others else "")
        )
        content = content[inner[0]]
    state = {}
    if isinstance(content, Mapping):
        state = {str(k): v.detach() for k, v in content.items() if isinstance(v, Tensor)}
    if not state:
        raise WeightsError(f"{file} holds no state dict (names with tensors).")
    if len(state) < len(content):
        notes.append(f"left out {len(content) - len(state)} entries that are not tensors")
    return state
