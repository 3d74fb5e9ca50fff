"""Weights from files into networks and back: checked before a single value is copied.

Files of tensors only: safetensors (also in shards), or torch pickles read with weights_only, so
that a file can never run code. Normalisation stored in a file is compared with the model's Input;
the file wins, and the notes say so. Published weights (published.py) may be given by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from bombus.backbones import fitting
from bombus.backbones._files import State, read_weights, sha256_of_files, weight_files
from bombus.backbones.blocks import Backbone
from bombus.backbones.input import Input
from bombus.backbones.published import named_weights
from bombus.backbones.vit import VisionTransformer, resize_positions
from bombus.errors import WeightsError

PREFIXES = ("module.", "model.", "net.", "network.", "backbone.", "_orig_mod.")
METADATA = "bombus.input"


@dataclass(frozen=True)
class LoadedWeights:
    sha256: str  # of the file; of several: over their hex digests, one after the other
    notes: tuple[str, ...]  # everything done to the weights on the way, for the run's record
    says_input: bool = False  # whether mean and std came with the weights


def load_weights(model: nn.Module, paths: Sequence[Path | str] | Path | str) -> LoadedWeights:
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    published = named_weights(given)
    files = weight_files([published.require()] if published else [Path(path) for path in given])
    sha256 = sha256_of_files(files)
    label = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    notes: list[str] = []
    state: State = {}
    stored: _Normalisation | None = None
    if published is not None:
        published.check_sha256(sha256, files[0])
        notes.append(f"took {published.name} from {label}")
        stored = _normalisation(published.input.mean, published.input.std)
    for file in files:
        part, metadata = read_weights(file, notes)
        if twice := sorted(part.keys() & state.keys()):
            raise WeightsError(f"{file} holds {twice[0]!r}, which an earlier file held already.")
        state |= part
        stored = _normalisation_of(metadata) or stored

    target = model.state_dict()
    own_input = getattr(model, "input", None)
    if isinstance(own_input, Input):
        stored = _take_normalisation(state, target) or stored
    state = _strip_prefixes(state, target, notes)
    _drop_unused(model, state, target, notes)
    _fit(model, state, target, notes)
    _check(model, state, target, label)
    cast = {str(v.dtype)[6:] for k, v in state.items() if v.dtype != target[k].dtype}
    notes += [f"cast {dtype} weights to the model's own type" for dtype in sorted(cast)]
    chosen = own_input
    if isinstance(own_input, Input) and stored is not None:
        chosen = _compare(own_input, stored, label, notes)
    # From here on nothing can fail: a model is filled whole or left as it was.
    model.load_state_dict(state)
    if chosen is not own_input:
        model.input = chosen  # type: ignore[assignment]  # typed as a module or tensor
    return LoadedWeights(sha256=sha256, notes=tuple(notes), says_input=stored is not None)


def save_weights(model: nn.Module, path: Path) -> None:
    """One safetensors file, there whole or not at all, with the model's normalisation inside."""
    if path.suffix != ".safetensors":
        raise WeightsError(f"Weights are written as .safetensors, but the path is {path}.")
    state: State = {}
    storages: set[int] = set()
    for key, value in model.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory, as tied weights do.
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        state[key] = tensor
    own = getattr(model, "input", None)
    # A single entry: safetensors writes several in an order that changes from run to run.
    metadata = {METADATA: json.dumps(own.to_dict())} if isinstance(own, Input) else None
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(state, temporary, metadata=metadata)
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"The weights could not be written to {path}: {error}.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def state_sha256(model: nn.Module) -> str:
    """The same for the same values, in any process: names, types, shapes and bytes, sorted."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


# --- names -----------------------------------------------------------------------------------


def _strip_prefixes(state: State, target: Mapping[str, Tensor], notes: list[str]) -> State:
    while state:
        prefix = next((p for p in PREFIXES if all(k.startswith(p) for k in state)), None)
        # A model whose own names all begin so wants them as they are.
        if prefix is None or (target and all(k.startswith(prefix) for k in target)):
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
        notes.append(f"stripped the prefix {prefix!r}")
    return state


def _drop_unused(
    model: nn.Module, state: State, target: Mapping[str, Tensor], notes: list[str]
) -> None:
    for prefix in model.unused_weights if isinstance(model, Backbone) else ():
        unused = [key for key in state if key.startswith(prefix) and key not in target]
        for key in unused:
            del state[key]
        if unused:
            notes.append(f"left out {len(unused)} unused weights {prefix}*")


def _fit(model: nn.Module, state: State, target: Mapping[str, Tensor], notes: list[str]) -> None:
    """What can be made to fit without touching a learnt value's meaning."""
    counters = [
        f"{layer}.num_batches_tracked"
        for layer in (k.removesuffix(".running_mean") for k in state if k.endswith(".running_mean"))
        if f"{layer}.num_batches_tracked" in target.keys() - state.keys()
    ]
    if counters:
        # Old files have none, and nothing but a cumulative average ever reads them.
        state |= {key: target[key].detach().cpu() for key in counters}
        notes.append(f"kept {len(counters)} num_batches_tracked counters the file does not hold")
    given, wanted = state.get("pos_embed"), target.get("pos_embed")
    if not isinstance(model, VisionTransformer) or given is None or wanted is None:
        return
    old, new = tuple(given.shape), tuple(wanted.shape)
    if old != new and old[::2] == new[::2] and len(old) == 3:
        resized = resize_positions(given, new[1])
        if resized is not None:
            state["pos_embed"] = resized
            notes.append(f"resized position embeddings from {old[1] - 1} to {new[1] - 1} patches")


def _check(model: nn.Module, state: State, target: Mapping[str, Tensor], label: str) -> None:
    missing = [key for key in target if key not in state]
    unexpected = [key for key in state if key not in target]
    others = [
        f"{key} is {_kind(state[key])} instead of {_kind(value)}"
        for key, value in target.items()
        if key in state and _kind(state[key]) != _kind(value)
    ]
    faults = [
        f"{len(found)} {what} ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''})"
        for what, found in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", others),
        )
        if found
    ]
    if faults:
        network = getattr(model, "name", None) or type(model).__name__
        nearest = fitting({key: tuple(value.shape) for key, value in state.items()})
        raise WeightsError(
            f"{label} does not fit {network}; weights {', '.join(faults)}"
            + (f"; the file {nearest}." if nearest else ".")
        )
    for key, value in state.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise WeightsError(f"{label} holds values in {key!r} that are not finite.")


def _kind(tensor: Tensor) -> str:
    """Shape, and whether real or whole numbers: other precisions are cast, integers are not."""
    return f"{tuple(tensor.shape)}{'' if tensor.is_floating_point() else ' of integers'}"


# --- normalisation ---------------------------------------------------------------------------

_Normalisation = tuple[Tensor, Tensor]  # mean and std, one value a channel


def _normalisation_of(metadata: Mapping[str, str]) -> _Normalisation | None:
    if METADATA not in metadata:
        return None
    kept = json.loads(metadata[METADATA])
    return _normalisation(kept["mean"], kept["std"])


def _normalisation(mean: Sequence[float] | None, std: Sequence[float] | None) -> _Normalisation:
    return torch.tensor(mean or [0.0]), torch.tensor(std or [1.0])


def _take_normalisation(state: State, target: Mapping[str, Tensor]) -> _Normalisation | None:
    """Removes buffers such as RobustBench's mu and sigma (1, 3, 1, 1) from the weights."""
    for first, second in (("mu", "sigma"), ("mean", "std")):
        for key in [k for k in state if k not in target and k.split(".")[-1] == first]:
            partner = key[: len(key) - len(first)] + second
            if state[key].numel() <= 4 and partner in state and partner not in target:
                return state.pop(key).flatten() * 1.0, state.pop(partner).flatten() * 1.0
    return None


def _compare(own: Input, stored: _Normalisation, label: str, notes: list[str]) -> Input:
    """The model's Input if the file says the same, else what the file says."""
    mean, std = stored
    fits = len(mean) == len(std) and len(mean) in (1, own.channels or len(mean))
    if not fits or not bool(((mean >= own.low) & (mean <= own.high) & (std > 0)).all()):
        raise WeightsError(
            f"{label} normalises with mean {mean.tolist()} and std {std.tolist()}, which is "
            f"not for images of {own.channels} channels in [{own.low:g}, {own.high:g}]."
        )
    close = torch.finfo(mean.dtype).eps * 2  # a file in half precision says 0.485 as well as it can
    same = all(
        torch.allclose(torch.tensor(a, dtype=torch.float64), b.double(), rtol=close, atol=close)
        for a, b in ((own.mean or (0.0,), mean), (own.std or (1.0,), std))
    )
    said = f"mean {_rounded(mean)}, std {_rounded(std)}"
    if same:
        notes.append(f"the file's normalisation ({said}) is the model's own")
        return own
    notes.append(
        f"the model's input is now normalised as the file says ({said}), no longer with "
        f"mean {own.mean}, std {own.std}"
    )
    if not mean.any() and bool((std == 1).all()):
        return dataclasses.replace(own, mean=None, std=None)
    return dataclasses.replace(own, mean=_rounded(mean), std=_rounded(std))


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 7) for value in values.tolist())  # 0.485, not 0.48500001430511475
