"""Lines that call a command of ours, wherever documents have them, are lines that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from mirage_formal.cli.app import app
from tests.cli.test_help import COMMANDS
from tests.documents.pages import fences, pages
from tests.kit.paths import REPOSITORY

#: What a line begins with, up to the command's own arguments.
CALL: Final = re.compile(
    r"(?:^|[\s(`])(?:mirage-formal|(?:\S*/)?python3? -m (mirage_formal(?:\.[\w.]+)?))((?: [^#`]*)?)"
)
#: Modules that take options and are no part of the command line.
OTHERS: Final = frozenset({"mirage_formal.check.minimal_check", "mirage_formal.check.trusted_code"})


@cache
def root() -> Any:
    """The command line, as click has it."""
    return typer.main.get_command(app)


def calls(text: str) -> Iterator[tuple[str, str]]:
    """The module, or nothing, and the arguments of each call in a page: in fences, and in code within paragraphs."""
    blocks = [fence.code.replace("\\\n", " ") for fence in fences(text)]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", prose)]
    for line in [*(line for block in blocks for line in block.splitlines()), *spans]:
        for found in CALL.finditer(line):
            yield found[1] or "", found[2].split("&&")[0].split("|")[0].split("2>")[0].strip()


def wrong(module: str, rest: str) -> str:
    """What of a call the command does not take, or nothing."""
    words = shlex.split(rest, posix=False) if rest.count("'") % 2 == 0 else rest.split()
    words = [word.strip("'\"[],)").split("=")[0] for word in words]
    if module in OTHERS or not words:
        return ""
    if module not in ("", "mirage_formal"):
        paths = [path for path, (name, _) in COMMANDS.items() if name == module]
        if not paths:
            return ""  # tests/documents/test_references.py sees whether such a module is run at all
        words = [*(paths[0] if len(paths) == 1 else paths[0][:-1]), *words]
    command, at = root(), 0
    while at < len(words) and words[at] in getattr(command, "commands", {}):
        command, at = command.commands[words[at]], at + 1
    inner = getattr(command, "commands", None)
    taken = {name for one in every(command) for parameter in one.params for name in (*parameter.opts, "--help")}
    unknown = [word for word in words[at:] if re.fullmatch(r"--?[a-zA-Z][\w-]*", word) and word not in taken]
    if unknown:
        return f"{unknown[0]} is no option of {' '.join(words[:at]) or 'mirage-formal'}"
    named = at < len(words) and re.fullmatch(r"[a-z]+", words[at])
    return f"{words[at]} is no command" if inner is not None and named else ""


def every(command: Any) -> Iterator[Any]:
    """A command, and those below one that is a group: a document may speak of all of them at once."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from every(inner)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_call_is_one_that_the_command_takes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [(*call, found) for call in calls(text) if (found := wrong(*call))] == []


def test_calls_that_are_wrong_are_seen() -> None:
    fence = "```\nx/python -m mirage_formal.check runs --none  # so\nmirage-formal find\n```\n"
    text = f"`mirage-formal search a.py --kep 3`\n\n{fence}"
    assert [wrong(*call) for call in calls(text)] == [
        "--none is no option of check",
        "find is no command",
        "--kep is no option of search",
    ]
    good = "`mirage-formal search a.py --keep 3`, `python -m mirage_formal.reproduce table5 --ops 5,6`, `mirage-formal`"
    assert [wrong(*call) for call in calls(good)] == ["", "", ""]
