"""What watches a Program run, and says what no right program does.

Written apart from mirage_formal/claims/safety and by another method: nothing is symbolic, each access of each thread
is marked on the units of shared memory, of 16 bits or of a byte, or the elements of outputs, that it touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.kernels.program import program as p

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Instead of a thread: none, or several (of which each stands for any, as in a warp's loads of matrices).
NOBODY, ANYBODY = -1, -2


def unit_of(program: p.Program) -> int:
    """Bytes of a unit of shared memory."""
    return min(2, *(buffer.dtype.bytes for buffer in program.shared), 2)


class Fault(AssertionError):
    """The program does something that no right program does."""


class Kind(Enum):
    """What an access does; a copy writes when it is waited for."""

    READ = auto()
    WRITE = auto()
    COPY = auto()


@dataclass(frozen=True, slots=True)
class Access:
    """What the threads of a mask do at once to one buffer or parameter.

    Attributes:
        name: The buffer or parameter.
        kind: Read, write or copy.
        index, count: The first element [blocks, threads], and how many each thread touches.
        mask: Threads that do it [blocks, threads].
        block, thread: The same threads [accesses, 1].
        at: What they touch [accesses, units]: units of shared memory, or elements of a parameter.
    """

    name: str
    kind: Kind
    index: Ints
    count: int
    mask: Mask
    block: Ints
    thread: Ints
    at: Ints


@dataclass(slots=True)
class Copy:
    """A statement's asynchronous copies under way: to which units, by whom, of what, and in which group of a block."""

    number: int
    block: Ints
    thread: Ints
    at: Ints
    bits: NDArray[Any]
    group: Ints


class Observer:
    """Is told what a Program does, before it is done."""

    def statement(self, stmt: p.Stmt, mask: Mask) -> None:
        """A statement of the threads of a mask."""

    def register(self, array: str, slot: int) -> None:
        """A register is read or written."""

    def shared(self, access: Access) -> None:
        """Shared memory is accessed."""

    def device(self, access: Access) -> None:
        """Device memory is accessed."""

    def landed(self, copy: Copy) -> None:
        """Copies are complete for the threads that made them."""

    def barrier(self, blocks: Mask) -> None:
        """All threads of some blocks have met."""

    def end(self) -> None:
        """The program has ended."""


class Hazards(Observer):
    """Finds what depends on the order of threads or on what was there before, in shared memory.

    Between barriers, two threads that touch one unit with a write among the accesses; reads of what was not written
    through the same buffer last; accesses to the targets of copies that were not waited for.
    """

    def __init__(self, program: p.Program) -> None:
        gx, gy, gz = program.grid
        shape = (gx * gy * gz, program.shared_bytes // unit_of(program) + 2)
        self.numbers = {buffer.name: number for number, buffer in enumerate(program.shared, 1)}
        self.owner = np.zeros(shape, np.int64)
        self.pending = np.zeros(shape, bool)
        self.writer, self.reader = np.full(shape, NOBODY), np.full(shape, NOBODY)

    def shared(self, access: Access) -> None:
        """Marks it."""
        name, b, u, t = access.name, access.block, access.at, access.thread
        if self.pending[b, u].any():
            raise Fault(f"{name}: access to the target of a copy that was not waited for")
        w, r = self.writer[b, u], self.reader[b, u]
        if ((w != NOBODY) & (w != t)).any():
            raise Fault(f"{name}: access races with a write")
        if access.kind is Kind.READ:
            if (self.owner[b, u] != self.numbers[name]).any():
                raise Fault(f"{name}: read of what was never written through it, or written over")
            mine = np.where((r == NOBODY) | (r == t), t, ANYBODY)
            self.reader[b, u] = mine
            clash = self.reader[b, u] != mine
            self.reader[np.broadcast_to(b, u.shape)[clash], u[clash]] = ANYBODY
            return
        if ((r != NOBODY) & (r != t)).any():
            raise Fault(f"{name}: write races with a read")
        self.writer[b, u] = t
        if (self.writer[b, u] != t).any():
            raise Fault(f"{name}: two threads write one element")
        self.owner[b, u] = self.numbers[name]
        self.pending[b, u] = access.kind is Kind.COPY

    def landed(self, copy: Copy) -> None:
        """They count as written now."""
        self.pending[copy.block, copy.at] = False
        self.writer[copy.block, copy.at] = copy.thread

    def barrier(self, blocks: Mask) -> None:
        """What was done before disturbs nobody."""
        self.writer[blocks] = NOBODY
        self.reader[blocks] = NOBODY


class Writers(Observer):
    """Finds elements of outputs that two threads write, or none.

    Args:
        program: What runs.
        once: One thread may not write an element twice either.
    """

    def __init__(self, program: p.Program, *, once: bool) -> None:
        self.once, self.threads = once, program.threads
        self.owner = {item.name: np.zeros(item.elements, np.int64) for item in program.params if item.written}

    def device(self, access: Access) -> None:
        """Marks what is written."""
        if access.kind is not Kind.WRITE:
            return
        owner = self.owner[access.name]
        me = 1 + access.block * self.threads + access.thread
        before = owner[access.at]
        if ((before != 0) & (self.once | (before != me))).any():
            raise Fault(f"{access.name}: an element is written twice")
        owner[access.at] = me
        if (owner[access.at] != me).any():
            raise Fault(f"{access.name}: two threads write one element")

    def end(self) -> None:
        """Every element was written."""
        for name, owner in self.owner.items():
            if not owner.all():
                raise Fault(f"{name}: {np.count_nonzero(owner == 0)} elements never written, first {np.argmin(owner)}")


class Launches(Observer):
    """Finds what a kernel does among launches before it may.

    One that waits for the launch before touches nothing but inputs earlier, and lets the launch behind start no
    earlier.
    """

    def __init__(self, program: p.Program) -> None:
        self.early = "GridWait" in repr(program.body)
        self.given = {param.name for param in program.params if param.given and not param.written}

    def statement(self, stmt: p.Stmt, mask: Mask) -> None:
        """Marks the wait."""
        match stmt:
            case p.GridWait():
                if not self.early:
                    raise Fault("waits again for the launch before")
                self.early = False
            case p.LaunchDependents() if self.early:
                raise Fault("lets the launch behind start before it waits")

    def device(self, access: Access) -> None:
        """Nothing that is not given before the wait."""
        if self.early and access.name not in self.given:
            raise Fault(f"{access.name}: access before the wait for the launch before")
