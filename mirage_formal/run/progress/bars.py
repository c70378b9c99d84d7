"""Progress bars on a terminal: one for each phase, with the counters of a search below them."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from mirage_formal.records.answer import ProgressEvent
from mirage_formal.run.progress.display import Display, facts
from mirage_formal.support.terminal import escape_line

#: Most bars shown at once; earlier phases are removed.
_BARS: Final = 6
_NAME: Final = 24
_WIDTH: Final = 60


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
        key = (event.task, event.phase)
        if key not in self._tasks:
            while len(self._tasks) >= _BARS:
                self._drawn.remove_task(self._tasks.pop(next(iter(self._tasks))))
            name = escape_line(event.phase if not event.task else f"{event.task}: {event.phase}", _NAME)
            self._tasks[key] = self._drawn.add_task(name, total=None, of="?", left=None)
        total = event.total or None  # None pulses: how much there is to do is not known
        self._drawn.facts = [*facts(event), event.remark]
        of = f"{event.total:,}" if event.total else "?"
        self._drawn.update(self._tasks[key], total=total, completed=event.done, of=of, left=event.left_s)


class _TimeLeftColumn(ProgressColumn):
    """Column with the time left where it is known, and the elapsed time elsewhere."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        if task.finished or left is None:
            seconds = task.finished_time if task.finished else task.elapsed
            return Text(_clock(seconds or 0.0))
        return Text(f"{_clock(left)} left")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _BarsWithText(Progress):
    """Progress bars with lines of text below them."""

    def __init__(self, console: Console) -> None:
        self.facts: list[str] = []
        self._wide = min(_WIDTH, console.width)
        name = TextColumn("{task.description}", markup=False)
        done = TextColumn("{task.completed:,.0f}/{task.fields[of]}", markup=False)
        super().__init__(
            name, BarColumn(12), done, _TimeLeftColumn(), console=console, transient=True, refresh_per_second=4
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars and the lines of text."""
        yield from super().get_renderables()
        for text in self.facts:
            if text:
                yield Text(escape_line(text, self._wide), no_wrap=True, overflow="ellipsis")


__all__ = ["Bars"]
