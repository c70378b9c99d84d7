"""Exceptions for user mistakes: one class each, with location, expected and actual value, and a hint.

The command line prints such an error on one screen and exits with code 2; no other error is presented as a mistake of
the user. A search without results is no mistake: its NothingFoundError has exit code 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mirage_formal.support.terminal import escape_line, lines

_LONGEST = 4000


class MirageError(Exception):
    """A mistake in the user's input.

    Attributes:
        where: File, line or field at fault.
        what: The fault, with the expected and the actual value.
        hint: How to fix it.

    Its text is safe to print: quotations from files are escaped, and stay on one line.
    """

    #: Whether ``what`` may have several lines, none of which a file has put there.
    several_lines: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.where = where
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        what = lines(self.what, _LONGEST) if self.several_lines else escape_line(self.what, _LONGEST)
        head = f"{escape_line(self.where)}: {what}" if self.where else what
        return f"{head}\n  hint: {escape_line(self.hint, _LONGEST)}" if self.hint else head


class ShapeError(MirageError):
    """Operand shapes do not fit an operator."""


class DTypeError(MirageError):
    """An element type that is not supported, or operands of different ones."""


class GraphError(MirageError):
    """A graph that is not well-formed; ``what`` lists every fault."""

    several_lines = True


class ProgramError(MirageError):
    """A program file that cannot be used: missing, not Python, without a graph or without an output."""

    several_lines = True


class SpaceError(MirageError):
    """A search space that cannot be read or contradicts itself."""


class TargetError(MirageError):
    """An unknown or malformed target description."""


class FormatError(MirageError):
    """A file that does not follow its published schema, or is hostile."""


class RunError(MirageError):
    """A run directory that is missing, incomplete or belongs to another program."""


class UnsupportedError(MirageError):
    """A well-formed program outside what the chosen engine handles.

    Attributes:
        operator: Number of the operator at fault in its program, if it is one.
    """

    operator: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a search found nothing.

    Attributes:
        cause: Its rule, in one word: "input", "operator", "reads", "time-limit", "interrupted", "failed", "rejected",
            "extents" or "limits" (docs/errors.md).
        where: Line of the user's file at fault; empty if there is none.
        what: Description of the reason.
        hint: How to avoid it.
    """

    cause: str
    where: str
    what: str
    hint: str

    def __str__(self) -> str:
        what = escape_line(self.what, _LONGEST)
        head = f"{escape_line(self.where)}: {what}" if self.where else what
        return f"{head}\n    try: {escape_line(self.hint, _LONGEST)}" if self.hint else head


class NothingFoundError(MirageError):
    """A search that ended without a candidate to report.

    Attributes:
        reasons: Reasons, each with a hint.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", reasons: tuple[Reason, ...] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.reasons = reasons

    def __str__(self) -> str:
        return "\n  ".join((super().__str__(), *map(str, self.reasons)))


class WorkerError(MirageError):
    """Worker processes that cannot be started, die, hang, or need more memory than they may use."""


class ClusterError(MirageError):
    """A cluster that cannot be reached, has no workers, or has workers of another version."""
