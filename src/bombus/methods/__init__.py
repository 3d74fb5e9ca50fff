"""All methods, by name. To add one: write methods/x.py and add its line to INDEX.

The methods' files are imported when a method is first asked for, so that the index itself costs
nothing (tables need only the order of the names).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bombus.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from torch import nn

    from bombus.backbones.input import Input
    from bombus.methods.base import Adapter, BaseConfig, Source

# One line a method, in the order in which tables list them.
INDEX = (
    "source",
    "bn",
    "tent",
    "eata",
    "sar",
    "cotta",
    "adacontrast",
    "rmt",
    "dplot",
    "obao",
    "vdp",
    "vida",
    "continual_mae",
    "roid",
    "rdumb",
    "bee",
)

_METHODS: dict[str, type[Adapter]] = {}


def register(name: str) -> Callable[[type[Adapter]], type[Adapter]]:
    """Class decorator: make a method known under a name."""

    def enter(method: type[Adapter]) -> type[Adapter]:
        own = vars(method.Config)
        if own.get("__annotations__") and "__dataclass_fields__" not in own:
            raise ConfigError(
                f"The settings of {name} would be seen by nobody; put "
                f"@dataclass(frozen=True, kw_only=True) before {method.Config.__name__}."
            )
        taken = _METHODS.get(name)
        if taken is not None:
            raise ValueError(
                f"The method name {name!r} is taken by {taken.__module__}; "
                f"{method.__module__} needs another."
            )
        method.name = name
        _METHODS[name] = method
        return method

    return enter


def known_methods() -> dict[str, type[Adapter]]:
    """Every registered method, in the order of the index, then of registration."""
    for module in INDEX:
        name = import_module(f"bombus.methods.{module}").__name__
        if not any(method.__module__ == name for method in _METHODS.values()):
            raise ConfigError(
                f"methods/{module}.py is in the index and registers no method; put "
                '@register("name") before its class.'
            )
    return dict(sorted(_METHODS.items(), key=lambda item: place(item[0])))


def place(name: str) -> int:
    """Where tables list a method: a variant ("bee-paper") with its file, strangers last."""
    own = name.replace("-", "_")  # "continual-mae" is no variant
    file = own if own in INDEX else name.partition("-")[0]
    return INDEX.index(file) if file in INDEX else len(INDEX)


def find_method(name: str) -> type[Adapter]:
    known = known_methods()
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError("method", name, known)
    return known[name]


def require_settings(method: type[Adapter], names: Iterable[str]) -> None:
    """Refuse the first name that is none of the method's settings."""
    known = [field.name for field in dataclasses.fields(method.Config)]
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{method.name} setting", name, known)


def adapt(
    model: nn.Module,
    method: str,
    *,
    config: BaseConfig | None = None,
    source: Source | None = None,
    input: Input | None = None,
    **settings: Any,
) -> Adapter:
    """Wrap a trained classifier so that it keeps adapting while it answers.

        adapter = bombus.adapt(model, "tent", lr=1e-4)

    Args:
        model: any classifier; it is copied, never changed.
        method: a name from `bombus list methods`.
        config: the method's settings; if left out, those published for CIFAR10-C, or what suits a
            transformer.
        source: batches of source data, for methods that need them; others never see it.
        input: what the model expects (range, channels), where it does not say so itself.
        settings: some of the method's own settings, by name; they go before those of `config`.
    """
    chosen = find_method(method)
    require_settings(chosen, settings)
    if settings and (config is None or isinstance(config, chosen.Config)):
        if config is None:
            config = chosen.Config.for_network(model, **settings)
        else:
            config = dataclasses.replace(config, **settings)
    return chosen(model, config, source=source, input=input)


def load(folder: str | Path, model: nn.Module) -> Adapter:
    """Resume an adapter saved with `adapter.save(folder)`, given its source model."""
    from bombus import checkpoint

    if not isinstance(folder, str | PathLike):
        raise ConfigError(
            f"Got a {type(folder).__name__} as the folder, expected bombus.load(folder, model)."
        )
    method = checkpoint.load_meta(Path(folder))["method"]
    return find_method(method).load(folder, model)
