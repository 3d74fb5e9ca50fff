"""bombus list: what there is."""

from __future__ import annotations

import json
import shutil
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from bombus.methods.base import Adapter


def list_names(
    what: tyro.conf.Positional[
        Literal["methods", "benchmarks", "backbones", "corruptions", "streams", "weights"]
    ],
    name: tyro.conf.Positional[str | None] = None,
    /,
    *,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Show every method, benchmark, backbone, corruption, stream or published weights by name.

    Example: bombus list methods bee

    Args:
        what: which list.
        name: a method, to see what each of its settings means and what its authors published.
        json: machine-readable, with all details.
    """
    if name is not None:
        _show_method(what, name, json)
        return
    rows = {
        "methods": _methods,
        "benchmarks": _benchmarks,
        "backbones": _backbones,
        "corruptions": _corruptions,
        "streams": _streams,
        "weights": _weights,
    }[what]()
    _print(rows, json)
    if what == "methods" and not json:
        print("\n`bombus list methods NAME` explains a method's settings.")


def _methods() -> list[dict[str, Any]]:
    from bombus.methods import known_methods

    return [_method(method) for method in known_methods().values()]


def _method(method: type[Adapter]) -> dict[str, Any]:
    return {
        "name": method.name,
        "source access": method.needs + (" or none" if method.source_optional else ""),
        "predicts": method.predicts,
        "title": _title(method) + (" Transformers only." if method.transformers_only else ""),
        "settings": {f.name: str(f.default) for f in fields(method.Config)},
    }


def _show_method(what: str, name: str, as_json: bool) -> None:
    from bombus.errors import ConfigError
    from bombus.fields import docs_of
    from bombus.methods import find_method

    if what != "methods":
        raise ConfigError(
            f"Got a name ({name}) after {what}; only methods are shown one by one, as in "
            "`bombus list methods bee`."
        )
    method = find_method(name)
    row, docs = _method(method), docs_of(method.Config)
    published = {task: dict(own) for task, own in method.Config.published.items()}
    if as_json:
        print(json.dumps({**row, "meaning": docs, "published": published}, indent=1, default=str))
        return
    print(_wrapped(row["title"]))
    print(f"Source data: {row['source access']}. Predicts {row['predicts']}.\n\nSettings (--set):")
    own_words = method.Config.__doc__ or ""
    if not own_words.startswith(f"{method.Config.__name__}("):  # what dataclass writes by itself
        print(_wrapped(" ".join(own_words.split())))
    for setting, default in row["settings"].items():
        print(f"  {setting}={default}")
        if setting in docs:
            print(_wrapped(docs[setting], "      "))
    for task, own in published.items():
        chosen = ", ".join(f"{k}={v}" for k, v in own.items()) or "as above"
        where = "a transformer" if task == "vit" else task.replace("/vit", " with a transformer")
        print(_wrapped(f"On {where}: {chosen}."))


def _benchmarks() -> list[dict[str, Any]]:
    from bombus.data.benchmarks import BENCHMARKS

    return [
        {
            "name": b.name,
            "classes": b.classes,
            "backbone": b.backbone,
            "batch size": b.batch_size,
            "title": b.title,
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
            "options": "  ".join(
                f"--{option}" if default is None else f"--{option} {default}"
                for option, default in own_options(kind).items()
            ),
            "title": (kind.__doc__ or name).splitlines()[0],
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
                "details": details,
                "file": f"here: {found}" if found else f"not here; {entry.how_to_get()}",
            }
        )
    return rows


def _title(method: type[Adapter]) -> str:
    """A method that shares its file with another has a line of its own."""
    import sys

    text = vars(method).get("__doc__") or sys.modules[method.__module__].__doc__ or method.name
    return str(text).splitlines()[0]


def _wrapped(text: str, indent: str = "") -> str:
    width = max(len(indent) + 40, min(shutil.get_terminal_size((100, 24)).columns, 100))
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    below = "file"  # too long for a column
    columns = [n for n, value in rows[0].items() if n != below and not isinstance(value, dict)]
    cells = [["any" if row[n] is None else str(row[n]) for n in columns] for row in rows]
    heads = [name if name != "title" else "what it is" for name in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row, line in zip(({}, *rows), (heads, *cells), strict=True):
        short = "  ".join(
            cell.ljust(width) for cell, width in zip(line[:-1], widths[:-1], strict=True)
        )
        # The last column is the long one: it goes on below itself.
        indent = " " * (len(short) + 2) if len(line) > 1 else ""
        print(f"{short}  {_wrapped(line[-1], indent).lstrip()}".strip())
        if below in row:
            print(f"    {row[below]}")
