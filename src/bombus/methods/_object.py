"""An adapter as a Python object: copied, pickled, and asked for what only a network has."""

from __future__ import annotations

import threading
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn


class AdapterObject:
    # Nothing that is copied or pickled: each copy has its own.
    _lock: threading.RLock
    _own: threading.local

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_own")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if torch.is_inference_mode_enabled():  # what was unpickled in it could not learn again
            with torch.inference_mode(False):
                state = deepcopy(state, {id(self): self})
        vars(self).update(state, _lock=threading.RLock(), _own=threading.local())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = memo[id(self)] = type(self).__new__(type(self))
        with self._lock, torch.inference_mode(False):
            copy.__setstate__(deepcopy(self.__getstate__(), memo))
        return copy

    if not TYPE_CHECKING:  # or mypy would let any name pass

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(nn.Module, name):
                text = (
                    f"An adapter is no nn.Module and has no {name!r}; move and set the model "
                    "before bombus.adapt (adapter.model is the network inside)."
                )
            raise AttributeError(text, name=name, obj=self)
