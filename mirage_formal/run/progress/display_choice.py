"""Choice of a command's progress display, by its --progress option and the type of standard error."""

from __future__ import annotations

import os
import sys
from typing import Final

from mirage_formal.run.progress.progress_display import Display, JsonLines, ProgressLines
from mirage_formal.support import options

#: Values of --progress; "auto" is bars on a terminal, and nothing elsewhere.
MODES: Final = ("auto", "bars", "json", "none")


def display(mode: str, command: str) -> Display:
    """Return the display on which a command shows its progress.

    Args:
        mode: One of ``MODES``.
        command: Name of the command.

    Raises:
        SpaceError: It is none of them.
    """
    mode = options.check_value("--progress", mode, options.word_type(MODES))
    terminal = sys.stderr.isatty()
    if mode == "none" or (mode == "auto" and not terminal):
        return Display(command)
    if mode == "json":
        return JsonLines(command, sys.stderr)
    if not terminal or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return ProgressLines(command, sys.stderr)
    from mirage_formal.run.progress.bars import Bars  # rich, for terminals alone

    return Bars(command)


def in_notebook() -> bool:
    """Return whether this process runs cells of a notebook: its IPython shell has a kernel (none in a terminal)."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


__all__ = ["MODES", "display", "in_notebook"]
