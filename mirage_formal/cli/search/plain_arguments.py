"""Reader of the search command's arguments for calls without mistakes.

The command line library reads the arguments of every command, prints their help and reports mistakes. It takes longer
to load than the package itself. So the arguments of a search are read here, from the same table of options, if each of
them is a file, or an option as the table has it with a valid value. For all others there is no result, and the library
reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirage_formal.run.progress.display_choice import MODES
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.options import (
    CallOptions,
    Settings,
    given_options,
    options_of,
    parse_value,
    word_type,
)

#: Options of the command line alone: the type of their values, or None for a switch.
_OWN: Final[dict[str, Any]] = {"--program": str, "--progress": word_type(MODES), "--json": None}


@dataclass(frozen=True, slots=True)
class SearchArguments:
    """Arguments of a search command.

    Attributes:
        files: Files of programs.
        program: Name of the only program to search.
        out: Directory to write.
        progress: How progress is shown.
        json: Whether one JSON object is printed.
        settings: Settings of the search.
    """

    files: tuple[Path, ...]
    program: str | None
    out: str | None
    progress: str
    json: bool
    settings: Settings


def read_plain_arguments(arguments: Sequence[str]) -> SearchArguments | None:
    """Return the arguments of a search; None if the command line library has to read them."""
    known = {one.flag: one for one in options_of(CallOptions, Settings) if one.flag}
    kinds = {flag: None if isinstance(one.default, bool) else one.kind for flag, one in known.items()} | _OWN
    given: dict[str, Any] = {}
    files: list[Path] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        repeated = flag in known and known[flag].repeated
        if word and not word.startswith("-"):
            files.append(Path(word))
        elif flag not in kinds or (flag in given and not repeated) or (kinds[flag] is None and equals):
            return None
        elif kinds[flag] is None:
            given[flag] = True
        else:
            typed = value if equals else next(words, "")
            if not typed or (typed.startswith("-") and not equals):
                return None
            try:
                parsed = parse_value(flag, typed, kinds[flag])
            except SpaceError:
                return None
            given[flag] = [*given.get(flag, ()), parsed] if repeated else parsed
    if not files:
        return None
    usual = {flag: False if isinstance(one.default, bool) else one.default for flag, one in known.items()}
    named = {known[flag].name: given.get(flag, default) for flag, default in usual.items()}
    return SearchArguments(
        files=tuple(files),
        program=given.get("--program"),
        out=named["out"],
        progress=given.get("--progress", "auto"),
        json=given.get("--json", False),
        settings=given_options(Settings, named),
    )
