"""Progress bars on a terminal and in a notebook: one for each phase, with the counters of a search below them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from importlib import import_module
from io import StringIO
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from mirage_formal.records.answer import ProgressEvent
from mirage_formal.run.progress.progress_display import Display, facts
from mirage_formal.support.terminal import escape_line

#: Most bars shown at once; earlier phases are removed.
_BARS: Final = 6
_NAME: Final = 24
#: Characters of a terminal from which bars are named after their task as well.
_ROOM: Final = 59
#: Seconds between two drawings in a notebook.
_EVERY_S: Final = 0.25


class Bars(Display):
    """Progress bars, redrawn in place, and removed at the end.

    Args:
        command: Name of the command.
        console: Console to draw on; standard error by default.
    """

    def __init__(self, command: str, console: Console | None = None) -> None:
        super().__init__(command)
        self._drawn = _BarsWithText(console or Console(stderr=True))
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __enter__(self) -> Self:
        self._drawn.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._drawn.stop()

    def show(self, event: ProgressEvent) -> None:
        """Draw the progress of a task."""
        total = event.total or None  # None pulses: how much there is to do is not known
        self._drawn.facts = [*facts(event), event.remark]
        of = f"{event.total:,}" if event.total else "?"
        seconds = round(event.left_s or event.elapsed_s)
        clock = f"{seconds // 60}:{seconds % 60:02}" if seconds < 3600 else str(timedelta(seconds=seconds))
        text = f"{clock} left" if event.left_s else clock
        key = (event.task, event.phase)
        if key in self._tasks:
            self._drawn.update(self._tasks[key], total=total, completed=event.done, of=of, time=text)
            return
        while len(self._tasks) >= _BARS:
            self._drawn.remove_task(self._tasks.pop(next(iter(self._tasks))))
        name = escape_line(self._drawn.name(event), _NAME)
        self._tasks[key] = self._drawn.add_task(name, total=total, completed=event.done, of=of, time=text)


class _BarsWithText(Progress):
    """Progress bars with lines of text below them."""

    def __init__(self, console: Console) -> None:
        self.facts: list[str] = []
        self._wide = console.width - 1
        name = TextColumn("{task.description}", markup=False)
        done = TextColumn("{task.completed:,.0f}/{task.fields[of]}", markup=False)
        left = TextColumn("{task.fields[time]}", markup=False)
        columns = (name, BarColumn(None), done, left)
        super().__init__(*columns, console=console, transient=True, refresh_per_second=4, expand=True)

    def name(self, event: ProgressEvent) -> str:
        """Return the name of a phase's bar; on a narrow terminal it leaves the task out, for the bar to have room."""
        return f"{event.task}: {event.phase}" if event.task and self._wide >= _ROOM else event.phase

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars and the lines of text."""
        yield from super().get_renderables()
        for text in self.facts:
            if text:
                yield Text(escape_line(text, 4 * self._wide), overflow="fold")


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


__all__ = ["Bars", "NotebookBars"]
