"""Progress displays: bars on a terminal, lines of JSON for programs, or none.

Callers send events to a ``Display`` without knowing its kind. All displays write to standard error; standard output has
results alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TextIO

import msgspec

from mirage_formal.records.answer import ProgressEvent
from mirage_formal.run.progress import Progress, Watch
from mirage_formal.run.progress.counts import RemainingTime
from mirage_formal.support.terminal import escape_line, json_text

_LINE_EVERY_S: Final = 10.0
_JSON_EVERY_S: Final = 0.5
#: Most characters of a line.
_LONG: Final = 1200

#: Callback with a phase, its finished pieces, and all of its pieces.
Step = Callable[[str, int, int], None]


class Display:
    """Base class of progress displays; this one shows nothing.

    Args:
        command: Name of the command.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._forecast = RemainingTime()
        self._begin = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def show(self, event: ProgressEvent) -> None:
        """Show the progress of a task."""

    def step(self, phase: str, done: int, total: int, task: str = "") -> None:
        """Show the number of finished pieces of a phase."""
        left = self._forecast.left_s((task, phase), done, total)
        elapsed = round(time.monotonic() - self._begin, 3)
        self.show(
            ProgressEvent(
                command=self._command,
                task=task,
                phase=phase,
                done=done,
                total=total,
                elapsed_s=elapsed,
                left_s=None if left is None else round(left, 3),
            )
        )

    def steps(self, task: str) -> Step:
        """Return a callback that calls ``step`` for one task."""
        return lambda phase, done, total: self.step(phase, done, total, task)

    def watch(self, task: str) -> Watch:
        """Return a callback for the progress of a search."""
        return lambda progress: self.show(_event(self._command, task, progress))


def _event(command: str, task: str, progress: Progress) -> ProgressEvent:
    return ProgressEvent(
        command=command,
        task=task,
        phase=progress.phase.value,
        done=progress.done,
        total=progress.total,
        elapsed_s=round(progress.elapsed_s, 3),
        left_s=None if progress.left_s is None else round(progress.left_s, 3),
        states=progress.states,
        states_per_s=round(progress.recent_states_per_s, 1),
        pruned=dict(progress.pruned_by),
        candidates=progress.candidates,
        best_us=progress.best_us,
        proved=progress.proved,
        refused=progress.refused,
        remark=progress.remark,
    )


class JsonLines(Display):
    """Progress as JSON, one object per line: at the start and end of each phase, and twice a second in between."""

    def __init__(self, command: str, file: TextIO) -> None:
        super().__init__(command)
        self._file = file
        self._seen: tuple[str, str, bool] | None = None
        self._next = 0.0

    def show(self, event: ProgressEvent) -> None:
        """Print the progress of a task as JSON."""
        now, seen = time.monotonic(), (event.task, event.phase, 0 < event.total <= event.done)
        if seen != self._seen or now >= self._next:
            self._seen, self._next = seen, now + _JSON_EVERY_S
            print(json_text(msgspec.json.encode(event).decode()), file=self._file, flush=True)


class ProgressLines(Display):
    """Progress as text lines, one for each phase and one every ten seconds; used where no terminal can show bars."""

    def __init__(self, command: str, file: TextIO) -> None:
        super().__init__(command)
        self._file = file
        self._phase: tuple[str, str] | None = None
        self._next = 0.0

    def show(self, event: ProgressEvent) -> None:
        """Print the progress of a task, if the phase is new or ten seconds have passed."""
        now, phase = time.monotonic(), (event.task, event.phase)
        if phase != self._phase or now >= self._next:
            self._phase, self._next = phase, now + _LINE_EVERY_S
            print(progress_line(event), file=self._file, flush=True)


def progress_line(event: ProgressEvent) -> str:
    """Return the progress of a task as one line."""
    share = f" {event.done:,} of {event.total:,}" if event.total else ""
    name = f"{event.task}: " if event.task else ""
    more = [text for text in (*facts(event), event.remark) if text]
    return escape_line(" | ".join([f"{name}{event.phase}{share}", *more, f"{event.elapsed_s:.1f} s"]), _LONG)


def facts(event: ProgressEvent) -> list[str]:
    """Return a search's counters so far as three short texts; an empty list for other tasks."""
    if not (event.states or event.candidates or event.pruned):
        return []
    most = sorted(event.pruned.items(), key=lambda item: (-item[1], item[0]))[:2]
    reasons = ", ".join(f"{name} {count:,}" for name, count in most)
    best = "" if event.best_us is None else f", best est. {event.best_us:.1f} us"
    verified = f", {event.proved} proved, {event.refused} refused" if event.proved or event.refused else ""
    pruned = sum(event.pruned.values())
    return [
        f"{event.states:,} states" + (f", {event.states_per_s:,.0f}/s" if event.states_per_s >= 1 else ""),
        f"pruned {pruned:,}" + (f": {reasons}" if reasons else ""),
        f"{event.candidates:,} candidates{best}{verified}",
    ]


__all__ = ["Display", "JsonLines", "ProgressLines", "Step", "facts", "progress_line"]
