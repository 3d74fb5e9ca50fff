"""bombus list: what there is."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, Any, Literal

import tyro


def list_names(
    what: tyro.conf.Positional[
        Literal["methods", "benchmarks", "backbones", "corruptions", "streams", "weights"]
    ],
    /,
    *,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Show every method, benchmark, backbone, corruption, stream or published weights by name.

    Args:
        what: which list.
        json: machine-readable, with all details.
    """
    rows = {
        "methods": _methods,
        "benchmarks": _benchmarks,
        "backbones": _backbones,
        "corruptions": _corruptions,
        "streams": _streams,
        "weights": _weights,
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


def _streams() -> list[dict[str, Any]]:
    from bombus.data.streams import STREAMS, own_options

    return [
        {
            "name": name,
            "title": (kind.__doc__ or name).splitlines()[0],
            "options": "  ".join(
                f"--{option}" if default is None else f"--{option} {default}"
                for option, default in own_options(kind).items()
            ),
        }
        for name, kind in STREAMS.items()
    ]


def _weights() -> list[dict[str, Any]]:
    from bombus.backbones.published import PUBLISHED, weights_folder

    rows = []
    for name, entry in PUBLISHED.items():
        found = entry.find()
        details = {
            "classes": entry.classes,
            "address": entry.address,
            "place": str(weights_folder() / entry.file),
            "sha256 begins with": entry.sha256 or None,
            "mean": entry.input.mean,
            "std": entry.input.std,
        }
        rows.append(
            {
                "name": name,
                "backbone": entry.backbone,
                "benchmarks": ", ".join(entry.benchmarks),
                "file": f"here: {found}" if found else f"not here; {entry.how_to_get()}",
                "details": details,
            }
        )
    return rows


def _module_doc(method: type) -> str | None:
    import sys

    return sys.modules[method.__module__].__doc__


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    width = max(18, *(len(row["name"]) for row in rows))
    for row in rows:
        rest = "  ".join(str(v) for k, v in row.items() if k != "name" and not isinstance(v, dict))
        print(f"{row['name']:<{width}} {rest}".rstrip())
        if "settings" in row:
            settings = ", ".join(f"{k}={v}" for k, v in row["settings"].items())
            print(f"{'':<18} --set {settings}")
