"""The command line: parse, call the library, turn its errors into one sentence and an exit code."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import wraps
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tyro

from bombus.cli.blocks import blocks
from bombus.cli.compare import compare
from bombus.cli.data import data_get, data_make
from bombus.cli.demo import demo
from bombus.cli.doctor import doctor
from bombus.cli.listing import list_names
from bombus.cli.paper import paper
from bombus.cli.plot import plot
from bombus.cli.report import report
from bombus.cli.results import results
from bombus.cli.run import run
from bombus.cli.warmup import warmup
from bombus.errors import BombusError, nearest

DESCRIPTION = """Keep a vision classifier accurate while the world changes: continual test-time
adaptation, measured. Start with `bombus demo`; `bombus COMMAND --help` explains each command."""


def data(action: tyro.conf.Positional[str] = "") -> None:
    """Fetch and make data sets: `bombus data get cifar10`, `bombus data make cifar10-c`."""


COMMANDS: dict[str, Callable[..., Any]] = {
    "run": run,
    "compare": compare,
    "report": report,
    "list": list_names,
    "plot": plot,
    "results": results,
    "demo": demo,
    "paper": paper,
    "data": data,
    "warmup": warmup,
    "blocks": blocks,
    "doctor": doctor,
}
DATA_COMMANDS: dict[str, Callable[..., Any]] = {"get": data_get, "make": data_make}


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Read when torch is first imported. Threads that spin while they wait for each other made TENT
    # on the demo seven times slower on a machine with one other busy process, and no faster alone.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    log = logging.getLogger("bombus")
    log.disabled = True  # what methods find is printed with their runs
    progress, lines = logging.getLogger("bombus.progress"), logging.StreamHandler()
    progress.addHandler(lines)
    progress.setLevel(logging.INFO)
    try:
        if arguments[:1] == ["--version"]:
            from bombus import __version__

            print(f"bombus {__version__}")
        elif arguments[:1] == ["data"]:
            _dispatch(DATA_COMMANDS, "bombus data", data.__doc__ or "", arguments[1:])
        else:
            _dispatch(COMMANDS, "bombus", DESCRIPTION, arguments)
    except BombusError as error:
        _stop(str(error), error.exit_code)
    except KeyboardInterrupt:
        _stop(
            "interrupted; the same command goes on where this stopped (a run: with --resume).", 130
        )
    except BrokenPipeError:
        # The reader (head, less) has gone. Python must not try to flush into it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _stop(f"{error.strerror or error}{where}.", 2)
    finally:
        log.disabled = False
        progress.removeHandler(lines)
        progress.setLevel(logging.NOTSET)


def _dispatch(
    commands: dict[str, Callable[..., Any]], prog: str, description: str, arguments: Sequence[str]
) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        arguments, commands = ["--help"], {n: _in_brief(c) for n, c in commands.items()}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog=prog, description=description, args=arguments
        )
    except SystemExit as stopped:
        if stopped.code == 2:
            _name_choice(commands, arguments)
            _name_settings(arguments)
            _name_weights(arguments)
        raise


def _name_choice(commands: dict[str, Callable[..., Any]], arguments: Sequence[str]) -> None:
    """`--benchmark cifar10c`, which was refused: say which choice is spelt like it."""
    command = commands.get(arguments[0])
    if command is None:
        _suggest(arguments[0], commands)
        return
    kinds = {name: p.kind for name, p in inspect.signature(command).parameters.items()}
    for name, hint in get_type_hints(command).items():
        choices = _choices(hint)
        option = f"--{name.replace('_', '-')}"
        before = arguments[0] if kinds.get(name) is inspect.Parameter.POSITIONAL_ONLY else option
        for given, value in pairwise(arguments):
            if given == before and choices and value not in choices:
                _suggest(value, choices)


def _suggest(given: str, known: Iterable[str]) -> None:
    if near := nearest(given, known):
        _say(f"{given!r} is not known; did you mean {near!r}?")


def _choices(hint: Any) -> tuple[str, ...]:
    """The names a parameter takes, None among them or not; nothing where any will do."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(name for part in get_args(hint) for name in _choices(part))


def _name_settings(arguments: Sequence[str]) -> None:
    """`bombus run tent --lr 1e-4`, which was refused: say how a method's setting is given."""
    if len(arguments) < 2 or arguments[0] not in ("run", "warmup"):
        return  # before all methods are imported, and torch with them
    from bombus.methods import known_methods

    method = known_methods().get(arguments[1])
    if method is None:
        return
    options = inspect.signature(COMMANDS[arguments[0]]).parameters
    settings = {f.name for f in fields(method.Config)} - set(options)
    for given, value in pairwise([*arguments[2:], "VALUE"]):
        name = given.removeprefix("--").replace("-", "_")
        if given.startswith("--") and name in settings:
            _say(f"{name} is a setting of {method.name}: --set {name}={value}.")


def _name_weights(arguments: Sequence[str]) -> None:
    """`bombus doctor --model FILE`, which was refused: --model has no value."""
    for option, value in pairwise(arguments):
        if arguments[0] == "doctor" and option == "--model" and not value.startswith("-"):
            _say(f"a network's file goes by --weights: bombus doctor --model --weights {value}.")


def _in_brief(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same with the first paragraph of its help: the list of all commands fits a screen."""

    @wraps(command)
    def brief(*args: Any, **options: Any) -> Any:
        return command(*args, **options)

    brief.__doc__ = inspect.cleandoc(command.__doc__ or "").split("\n\n")[0]
    return brief


def _stop(message: str, code: int) -> None:
    _say(message)
    raise SystemExit(code)


def _say(message: str) -> None:
    print(f"bombus: {message}", file=sys.stderr)
