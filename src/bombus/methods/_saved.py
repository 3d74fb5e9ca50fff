"""A whole adapter as a folder: what it was prepared to, what it began with, what it is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from bombus import checkpoint, gate
from bombus.backbones.input import Input
from bombus.backbones.weights import state_sha256
from bombus.errors import CheckpointError, ConfigError
from bombus.methods import _state
from bombus.methods._network import bare

if TYPE_CHECKING:
    from bombus.methods.base import Adapter

A = TypeVar("A", bound="Adapter")


def write(
    adapter: Adapter, parts: Mapping[str, Any], folder: Path, notes: Mapping[str, int | str]
) -> None:
    """The parts of its state; in the header, with the notes, what it needs to be built again."""
    meta = {
        "method": adapter.name,
        "config": asdict(adapter.config),
        "source_sha256": adapter.source_sha256,
        "source_bytes": adapter.source_bytes,
        "input": adapter.input.to_dict(),
        "model_input": gate.input_of(adapter.model).to_dict(),
    }
    if taken := meta.keys() & notes.keys():
        raise ConfigError(
            f"Got a note named {', '.join(sorted(taken))}, which the header has already; "
            "choose another name."
        )
    checkpoint.save_state(folder, parts, {**meta, **notes})


def read(kind: type[A], folder: Path, model: nn.Module, input: Input | None) -> A:
    """The adapter that was saved there, on the model that it was made from."""
    model = bare(model)
    state, meta = checkpoint.load_state(folder)  # on the CPU, until each part finds its place
    if meta["method"] != kind.name:
        raise CheckpointError(
            f"The checkpoint {folder} is of method {meta['method']!r}, not {kind.name!r}; "
            "load it with bombus.load(folder, model)."
        )
    if meta["source_sha256"] != state_sha256(model):
        raise CheckpointError(
            f"The checkpoint {folder} was made from other weights (sha256 "
            f"{meta['source_sha256'][:12]}, this model has {state_sha256(model)[:12]}); "
            "give the source model it was adapted from."
        )
    said, says = meta.get("model_input"), gate.input_of(model).to_dict()
    if said is not None and _state.as_config(said) != says:
        changed = [name for name in says if _state.as_config(said)[name] != says[name]]
        raise CheckpointError(
            f"The checkpoint {folder} was made from a model whose input says otherwise: "
            f"{', '.join(f'{n} was {said[n]}, is {says[n]}' for n in changed)}; give it as it was."
        )
    try:
        config = kind.Config(**_state.as_config(meta["config"]))
    except TypeError as error:
        raise CheckpointError(
            f"The settings in {folder} do not fit this version's {kind.name} ({error}); "
            "load it with the version of bombus that wrote it."
        ) from None
    stored = Input(**_state.as_config(meta["input"]))
    adapter = kind(model, config, input=input or stored, state=state)
    adapter.source_bytes = meta["source_bytes"]
    return adapter
