"""bombus list: what there is."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, Any, Literal

import tyro


def list_names(
    what: tyro.conf.Positional[Literal["methods", "benchmarks", "backbones", "corruptions"]],
    /,
    *,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Show every method, benchmark, backbone or corruption by name.

    Args:
        what: which list.
        json: machine-readable, with all details.
    """
    rows = {
        "methods": _methods,
        "benchmarks": _benchmarks,
        "backbones": _backbones,
        "corruptions": _corruptions,
    }[what]()
    _print(rows, json)


def _methods() -> list[dict[str, Any]]:
    from bombus.methods import known_methods

    return [
        {
            "name": name,
            "title": (_module_doc(method) or name).splitlines()[0],
            "source access": method.needs,
            "predicts": method.predicts,
            "settings": {f.name: str(f.default) for f in fields(method.Config)},
        }
        for name, method in known_methods().items()
    ]


def _benchmarks() -> list[dict[str, Any]]:
    from bombus.data.benchmarks import BENCHMARKS

    return [
        {
            "name": b.name,
            "title": b.title,
            "classes": b.classes,
            "backbone": b.backbone,
            "batch size": b.batch_size,
        }
        for b in BENCHMARKS.values()
    ]


def _backbones() -> list[dict[str, Any]]:
    from bombus.backbones import names

    return [{"name": name} for name in names()]


def _corruptions() -> list[dict[str, Any]]:
    from bombus.data.corruptions import EXTRA, STANDARD

    return [{"name": n, "set": "standard"} for n in STANDARD] + [
        {"name": n, "set": "extra (for choosing settings)"} for n in EXTRA
    ]


def _module_doc(method: type) -> str | None:
    import sys

    return sys.modules[method.__module__].__doc__


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        rest = "  ".join(str(v) for k, v in row.items() if k not in ("name", "settings"))
        print(f"{row['name']:<18} {rest}".rstrip())
        if "settings" in row:
            settings = ", ".join(f"{k}={v}" for k, v in row["settings"].items())
            print(f"{'':<18} --set {settings}")
