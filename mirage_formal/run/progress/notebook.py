"""Progress in a notebook: the bars of a terminal as one output of the cell, redrawn in place."""

from __future__ import annotations

import time
from importlib import import_module
from io import StringIO
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console

from mirage_formal.records.answer import ProgressEvent
from mirage_formal.run.progress.bars import Bars

#: Seconds between two drawings.
_EVERY_S: Final = 0.25


class NotebookBars(Bars):
    """Progress bars in the output of a cell, which stay there at the end.

    They are values of rich that Jupyter, VS Code and Colab show as text in HTML (``rich.jupyter``); no widgets have to
    be installed.

    Args:
        command: Name of the called function.
    """

    def __init__(self, command: str) -> None:
        super().__init__(command, Console(file=StringIO(), width=100))
        self._shown: Any = None
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def show(self, event: ProgressEvent) -> None:
        """Draw the progress of a task; skip events soon after the last drawing, unless one ends a phase."""
        super().show(event)
        now = time.monotonic()
        if self._shown is None:
            self._shown = import_module("IPython.display").display(self._drawn, display_id=True)
        elif now >= self._next or 0 < event.total <= event.done:
            self._shown.update(self._drawn)
        else:
            return
        self._next = now + _EVERY_S


__all__ = ["NotebookBars"]
