"""What every command is made of: kinds of options, and how a user's mistake is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import typer

from mirage_formal import options
from mirage_formal.errors import MirageError
from mirage_formal.guard import guarded
from mirage_formal.terminal import plain

_MAX_LINES: Final = 20
#: How every command of typer is set up.
STYLE: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # brackets in texts are brackets
}


def whole(where: str, least: int = 0) -> Callable[[Any], int]:
    """Reads an option that is a whole number from ``least`` up."""
    return lambda given: options.whole(where, options.number(given), least)


def amount(where: str) -> Callable[[Any], float]:
    """Reads an option that is a positive number."""
    return lambda given: options.amount(where, options.number(given))


def option(name: str, metavar: str, help: str, default: str | None = None, **more: Any) -> Any:
    """An option whose values ``metavar`` and ``help`` name; ``default`` is said where there is no default value."""
    return typer.Option(name, metavar=metavar, help=help, show_default=default or True, **more)


def counted(name: str, help: str, default: str) -> Any:
    """An option that takes a whole number from 1 up."""
    return option(name, "N", f"{help}; 1 or more.", default, parser=whole(name, 1))


def measured(name: str, metavar: str, help: str, default: str) -> Any:
    """An option that takes a positive number."""
    return option(name, metavar, f"{help}; above 0.", default, parser=amount(name))


def seeded(help: str) -> Any:
    """The option --seed."""
    return option("--seed", "N", f"{help}; 0 or more.", parser=whole("--seed"))


def switch(name: str, help: str) -> Any:
    """A flag, which is off by default."""
    return typer.Option(name, help=help, show_default="off")


def run_command(command: Callable[..., Any]) -> NoReturn:
    """Run a command of this process under the guard; a user's mistake is printed and ends it with 2."""

    def run() -> int:
        try:
            command()
        except MirageError as error:
            print_error(error)
        return 2

    guarded(run)


def print_error(error: MirageError) -> None:
    """Print a user's mistake to standard error, on one screen."""
    hint = "" if error.hint else "\n  hint: --help lists every option and its values"
    lines = f"error: {error}{hint}".splitlines()
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 2], f"  ... {len(lines) - _MAX_LINES + 1} lines more", lines[-1]]
    print("\n".join(plain(text) for text in lines), file=sys.stderr)
