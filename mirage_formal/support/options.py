"""Validators of option values for the command line and Python: one rule for each kind, one message for each mistake."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from operator import index
from typing import Final

from mirage_formal.support.errors import SpaceError

#: Numbers of this size fit every record; a name of this length every file system.
_MOST: Final = 1 << 63
_LONGEST: Final = 100

#: The target that candidates are ranked for if nobody says otherwise.
DEFAULT_TARGET: Final = "h200"
#: How many candidates superoptimize measures: the cost model cannot tell apart what lies within a fifth.
MEASURED: Final = 16


def whole_number(where: str, value: object, least: int = 0) -> int:
    """Return ``value`` as a whole number of at least ``least``.

    Raises:
        SpaceError: It is none; names the option ``where``.
    """
    try:
        found = least - 1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        found = least - 1
    if not least <= found < _MOST:
        hint = f"give a whole number from {least} up"
        raise SpaceError(f"expected a whole number from {least} up, got {_shown(value)}", where=where, hint=hint)
    return found


def positive_number(where: str, value: object) -> float:
    """Return ``value`` as a positive finite number.

    Raises:
        SpaceError: It is none; names the option ``where``.
    """
    try:
        found = math.nan if isinstance(value, bool | str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 < found < math.inf:
        hint = "leave it out for the default"
        raise SpaceError(f"expected a positive finite number, got {_shown(value)}", where=where, hint=hint)
    return found


def allowed_word(where: str, value: object, allowed: Sequence[str], *, free: bool = False) -> str:
    """Return ``value`` if it is one of some words; with ``free``, also "module:Class".

    Raises:
        SpaceError: It is none of them; names the option ``where``.
    """
    if isinstance(value, str) and (value in allowed or (free and ":" in value)):
        return value
    hint = f"{allowed[0]} is the default"
    raise SpaceError(f"expected one of {', '.join(allowed)}, got {_shown(value)}", where=where, hint=hint)


def boolean(where: str, value: object) -> bool:
    """Return ``value`` if it is True or False.

    Raises:
        SpaceError: It is neither; names the option ``where``.
    """
    if not isinstance(value, bool):
        raise SpaceError(f"expected True or False, got {_shown(value)}", where=where, hint="leave it out for False")
    return value


def text(where: str, value: object, what: str) -> str:
    """Return a text or a path-like value as text; ``what`` says what it should name.

    Raises:
        SpaceError: It is neither, or empty; names the option ``where``.
    """
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str) or not found or "\0" in found:
        raise SpaceError(f"expected {what}, got {_shown(value)}", where=where, hint=f"give {what}")
    return found


def list_value(where: str, value: object, what: str) -> Sequence[object]:
    """Return ``value`` if it is a list or a tuple of ``what``; the elements are not checked.

    Raises:
        SpaceError: It is neither, or empty; names the option ``where``.
    """
    if not isinstance(value, list | tuple) or not value:
        hint = "leave it out for the search space's own"
        raise SpaceError(f"expected a list of {what}, got {_shown(value)}", where=where, hint=hint)
    return value


def plain_name(where: str, value: object) -> str:
    """Return ``value`` if it can name a directory: one component of a path, printable, not too long.

    Raises:
        SpaceError: It is none; names the option ``where``.
    """
    bad = not isinstance(value, str) or not value or value in (".", "..") or len(value) > _LONGEST
    if bad or not isinstance(value, str) or not value.isprintable() or set(value) & set("/\\\0"):
        hint = "a name like a Python name; out= says where the run is written"
        what = f"expected a name of at most {_LONGEST} characters without a path in it, got {_shown(value)}"
        raise SpaceError(what, where=where, hint=hint)
    return value


def optional(check: Callable[[str, object], object]) -> Callable[[str, object], object]:
    """Return a rule that accepts None and every value that ``check`` accepts."""
    return lambda where, value: None if value is None else check(where, value)


def number(given: object) -> object:
    """Convert what a user typed to int or float if it is a number; return it unchanged otherwise."""
    if isinstance(given, str):
        for kind in (int, float):
            try:
                return kind(given)
            except ValueError:
                continue
    return given


def _shown(value: object) -> str:
    return repr(value)[:80]
