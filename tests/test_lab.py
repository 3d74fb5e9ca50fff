"""The variants that sweeps are made of name settings that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bombus.methods import find_method
from bombus.settings import RunSettings, make_config

VARIANTS = sorted((Path(__file__).parents[1] / "lab" / "variants").glob("*.json"))


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: path.stem)
def test_variants_are_settings_of_their_method(path: Path) -> None:
    variants = json.loads(path.read_text())
    assert variants
    for chosen in variants.values():
        values = {
            k: ",".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in chosen.items()
        }
        name = values.pop("method", "bee")
        settings = RunSettings(method=name, benchmark="cifar10-c", set=values)
        config = make_config(find_method(name), settings)
        assert all(hasattr(config, name) for name in values)
