"""What a run is asked for, and what that means: device, and the method's settings from text."""

from __future__ import annotations

import types
import typing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from bombus.backbones.published import named_weights
from bombus.data.benchmarks import find_benchmark
from bombus.errors import ConfigError, UnknownNameError
from bombus.fields import Count, Seed, check_fields
from bombus.methods import require_settings
from bombus.methods.base import Adapter, BaseConfig
from bombus.names import Precision


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides a run's result. None means the benchmark's own choice."""

    method: str
    benchmark: str = "demo"
    backbone: str | None = None
    weights: tuple[Path, ...] = ()
    data: Path | None = None
    source: Path | None = None  # clean training images, a warm-up file, or "embedded"
    stream: str = "continual"
    visits: int | None = None  # options of some streams; None: the stream's own default
    delta: float | None = None
    domains: tuple[str, ...] = ()
    severity: int = 5
    samples: Count | None = None
    batch_size: Count | None = None
    clean: Path | None = None  # clean test images, to see what is forgotten; or "embedded"
    seed: Seed = 1
    device: str = "auto"
    precision: Precision = "fp32"
    set: dict[str, str] = field(default_factory=dict)  # the method's own settings, as text
    legacy_vida: bool = False  # feed a ViT without mean and std, as the published tables did

    def __post_init__(self) -> None:
        check_fields(self)

    def to_dict(self) -> dict[str, Any]:
        as_text = {"weights": [p.name for p in self.weights], "domains": list(self.domains)}
        # Files may be moved between a kill and a resume: their names count, not their folders.
        folders = {
            "data": self.data.name if self.data else None,
            "source": self.source.name if self.source else None,
            "clean": self.clean.name if self.clean else None,
        }
        stored = {**asdict(self), **as_text, **folders}
        # Left out at their defaults, so that a run begun before they existed can be resumed.
        defaults = {
            "stream": "continual",
            "visits": None,
            "delta": None,
            "legacy_vida": False,
            "clean": None,
        }
        return {k: v for k, v in stored.items() if k not in defaults or v != defaults[k]}


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" makes tensors, but without numbers in them
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"The device {name!r} cannot be used here ({reason}); try --device cpu."
        ) from None
    return device


def make_config(method: type[Adapter], settings: RunSettings) -> BaseConfig:
    """The published settings of a method for the run's benchmark, with the user's own on top."""
    benchmark = find_benchmark(settings.benchmark)
    config_class = method.Config
    require_settings(method, settings.set)
    types_of = typing.get_type_hints(config_class)
    values: dict[str, Any] = {"seed": settings.seed}
    for name, text in settings.set.items():
        values[name] = parse_setting(text, types_of[name], f"{method.name} setting {name}")
    published = named_weights(settings.weights)
    backbone = published.backbone if published else settings.backbone or benchmark.backbone or ""
    family = "vit" if backbone.startswith("vit") else "cnn"
    return config_class.for_benchmark(benchmark.settings_name, family, **values)


def parse_setting(text: str, kind: Any, what: str) -> Any:
    """A setting's value from the command line, by the type its field declares."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    try:
        if origin is typing.Literal:
            if text not in arguments:
                raise UnknownNameError(f"value of {what}", text, map(str, arguments))
            return text
        if origin in (typing.Union, types.UnionType):
            if text.lower() == "none" and type(None) in arguments:
                return None
            kind = next(a for a in arguments if a is not type(None))
            return parse_setting(text, kind, what)
        if origin is tuple:
            parts = text.split(",") if text else []
            return tuple(parse_setting(part, arguments[0], what) for part in parts)
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        return kind(text)
    except (KeyError, ValueError):
        expected = getattr(kind, "__name__", str(kind))
        raise ConfigError(f"Got {text!r} for {what}, expected a {expected}.") from None
