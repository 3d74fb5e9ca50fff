"""What the settings of every method share. Methods import it from `base`, with the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn

from bombus.backbones.blocks import family_of
from bombus.fields import Seed, check_fields
from bombus.methods._network import bare


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """A method's settings: the defaults are CIFAR10-C's, `published` holds the others'.

    Keys of `published` are a benchmark ("imagenet-c"), a kind of network ("vit") or both
    ("imagenet-c/vit"), each on top of the one before.
    """

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def for_benchmark(cls, benchmark: str, family: str = "cnn", **settings: Any) -> Self:
        known: dict[str, Any] = {}
        for key in (benchmark, family, f"{benchmark}/{family}"):
            known |= cls.published.get(key, {})
        return cls(**{**known, **settings})

    @classmethod
    def for_network(cls, model: nn.Module, **settings: Any) -> Self:
        """What suits a network on which no benchmark's settings are known."""
        return cls.for_benchmark("cifar10-c", family_of(bare(model)), **settings)
