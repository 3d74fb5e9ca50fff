"""HTML that is escaped by being made: text goes in as text, only `tag` makes markup of it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = ("br", "meta")  # elements that have no end


class Html(str):
    """Markup, as against text, which has to be escaped before it can stand in a page."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: str | float | None) -> Html:
    """An element with its children; `class_` and `data_value` are named class and data-value.

    An attribute of None is left out.
    """
    opening = [name]
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else number(value)
            opening.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    start = f"<{' '.join(opening)}>"
    return Html(start if name in VOID else f"{start}{join(inside)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Html:
    return Html(between.join(p if isinstance(p, Html) else escape(p) for p in parts))


def number(value: float) -> str:
    """To a tenth, which in a picture no eye can see."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
