"""What a setting may be, said by the type of its field and checked when it is given.

    @dataclass(frozen=True, kw_only=True)
    class TentConfig(BaseConfig):
        optimizer: Literal["adam", "sgd"] = "adam"
        lr: NonNegative = 1e-3

A value that its type does not allow is refused in one sentence, before anything is loaded. Free of
torch, so that the command line can use it before it loads anything either.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from bombus.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Single precision ends at 3e38, and an optimiser multiplies its learning rate by a few more tens.
LARGEST = 1e30


@dataclass(frozen=True)
class Rule:
    words: str
    holds: Callable[[Any], bool]


NonNegative = Annotated[float, Rule("at least 0", lambda v: v >= 0)]
Positive = Annotated[float, Rule("more than 0", lambda v: v > 0)]
Share = Annotated[float, Rule("0 to 1", lambda v: 0 <= v <= 1)]
ShareBelowOne = Annotated[float, Rule("at least 0 and less than 1", lambda v: 0 <= v < 1)]
ShareAboveZero = Annotated[float, Rule("more than 0 and at most 1", lambda v: 0 < v <= 1)]
Count = Annotated[int, Rule("at least 1", lambda v: v >= 1)]
CountOrZero = Annotated[int, Rule("at least 0", lambda v: v >= 0)]
Several = Annotated[int, Rule("at least 2", lambda v: v >= 2)]
# What torch's generators take; numpy's take more.
Seed = Annotated[int, Rule("0 to 2**64 - 1", lambda v: 0 <= v < 2**64)]


def check_fields(settings: DataclassInstance) -> None:
    """Every field of a dataclass against its type."""
    kinds = _kinds(type(settings))
    for field in fields(settings):
        check(field.name, getattr(settings, field.name), kinds[field.name])


def check(name: str, value: Any, kind: Any) -> None:
    expected = _unmet(value, kind)
    if expected:
        raise ConfigError(f"Got {name}={value!r}, expected {expected}.")


def docs_of(settings: type) -> dict[str, str]:
    """What each field's text below it says, an override's own before that of its parent."""
    docs: dict[str, str] = {}
    for kind in reversed(settings.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs


@cache
def _kinds(settings: type) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


def _unmet(value: Any, kind: Any) -> str:
    """What the value should have been; nothing where it is that, or the kind says nothing of it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        plain, rule = arguments
        return _unmet(value, plain) or ("" if rule.holds(value) else rule.words)
    if origin is Literal:
        return "" if value in arguments else " or ".join(map(repr, arguments))
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return ""
        unmet = [_unmet(value, a) for a in arguments if a is not types.NoneType]
        return "" if "" in unmet else " or ".join(unmet)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return "a tuple"
        unmet = [_unmet(part, arguments[0]) for part in value]
        return next((f"each to be {words}" for words in unmet if words), "")
    if kind is bool:
        return "" if isinstance(value, bool) else "True or False"
    if kind is int:
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if kind is float:
        if not isinstance(value, float | int) or isinstance(value, bool):
            return "a number"
        return "" if abs(value) <= LARGEST else f"a finite number, of {LARGEST:g} at most"
    if kind is str:
        return "" if isinstance(value, str) else "a text"
    return ""
