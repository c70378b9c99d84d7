"""Generator of the section Commands of the document cli: arguments and options of every command, from typer.

python -m mirage_formal.cli.command_reference
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from textwrap import fill
from typing import Any

import typer

from mirage_formal.cli.app import app


def document() -> str:
    """Return the text of the section."""
    lines = ["## Commands"]
    root = typer.main.get_command(app)
    for path, command in _commands(root, "mirage-formal"):
        lines += ["", f"### {path}", "", *_about(command), ""]
        rows = [row for row in map(_row, command.params) if row is not None]
        if rows:
            lines += ["| argument or option | values | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(lines).rstrip() + "\n"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below one, with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        here = f"{path} {name}"
        if hasattr(inner, "commands"):
            yield from _commands(inner, here)
        else:
            yield here, inner


def _about(command: Any) -> list[str]:
    """Return the paragraphs of a command's help."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(fill(" ".join(one.split()), 120, break_long_words=False) for one in paragraphs).splitlines()


def _row(parameter: Any) -> str | None:
    """Return an argument or an option as a table row; None for --help."""
    if parameter.name == "help" or not getattr(parameter, "help", None):
        return None
    argument = parameter.param_type_name == "argument"
    name = parameter.metavar or parameter.name.upper() if argument else "`, `".join(parameter.opts)
    flag = getattr(parameter, "is_flag", False)
    values = "" if argument or flag else parameter.metavar or ""
    return f"| `{_cell(name)}` | {_cell(values)} | {_cell(_default(parameter))} | {_cell(parameter.help)} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.default
    return f"{default:g}" if isinstance(default, float) else str(default)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


__all__ = ["document"]

if __name__ == "__main__":
    print(document(), end="")
