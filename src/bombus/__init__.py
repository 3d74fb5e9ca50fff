"""bombus: keep a vision classifier accurate while the world changes, online, without labels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bombus.backbones.input import Input
    from bombus.data.stream import Stream
    from bombus.errors import BombusError
    from bombus.methods import adapt, known_methods, load, register
    from bombus.methods.base import Adapter, BaseConfig

__version__ = "0.1.0"

# Looked up on first use, so that `bombus --help` does not wait for torch.
_HOME = {
    "Adapter": "bombus.methods.base",
    "BombusError": "bombus.errors",
    "BaseConfig": "bombus.methods.base",
    "Input": "bombus.backbones.input",
    "Stream": "bombus.data.stream",
    "adapt": "bombus.methods",
    "load": "bombus.methods",
    "known_methods": "bombus.methods",
    "register": "bombus.methods",
}

__all__ = [
    "Adapter",
    "BaseConfig",
    "BombusError",
    "Input",
    "Stream",
    "__version__",
    "adapt",
    "known_methods",
    "load",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bombus' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
