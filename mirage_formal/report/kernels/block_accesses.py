"""Evaluation of a Program's accesses: the elements that each thread of a block reads or writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.access import GRID, PRODUCER, Access, Mode, ProgramAccesses, list_accesses
from mirage_formal.codegen.program.program import Param, Program
from mirage_formal.codegen.translation_validation.program_evaluation import compile_index
from mirage_formal.support.errors import UnsupportedError

#: Most evaluations of one index expression at a time, and of all for one question.
_AT_ONCE: Final = 1 << 22
_MOST: Final = 1 << 26

Block = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ThreadElements:
    """Elements that threads of a block access by one statement, one entry for each execution.

    Attributes:
        access: The access.
        blocks: Position of the block in the list of evaluated ones.
        threads: Thread of each execution.
        points: Values of the loop variables around the statement, by name.
        first: Address of the first element of each execution; it accesses ``access.count`` neighbours.
    """

    access: Access
    blocks: NDArray[np.int64]
    threads: NDArray[np.int64]
    points: dict[str, NDArray[np.int64]]
    first: NDArray[np.int64]

    @property
    def addresses(self) -> NDArray[np.int64]:
        """Return the addresses of all elements, one row for each execution."""
        return self.first[:, None] + np.arange(self.access.count, dtype=np.int64)


class BlockAccesses:
    """The accesses of a Program, evaluated for blocks of its grid.

    Args:
        program: The Program.

    Raises:
        UnsupportedError: The Program is malformed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.listed: ProgramAccesses = list_accesses(program)
        if self.listed.faults:
            path, subject, what = self.listed.faults[0]
            raise UnsupportedError(f"expected a well-formed kernel, got a fault at {path}, {subject}: {what}")

    def of_memory(self, *, written: bool) -> list[Access]:
        """Return the accesses to device memory that read, or those that write."""
        return [one for one in self.listed.accesses if isinstance(one.target, Param) and one.mode.writes == written]

    def of_mode(self, mode: Mode) -> list[Access]:
        """Return the accesses to shared memory of a mode."""
        found = (one for one in self.listed.accesses if not isinstance(one.target, Param))
        return [one for one in found if one.mode is mode]

    def evaluate(
        self, access: Access, blocks: Sequence[Block], fixed: Mapping[str, int] | None = None
    ) -> ThreadElements:
        """Return the elements that the threads of some blocks access by a statement.

        Args:
            access: The access.
            blocks: The blocks.
            fixed: Values of loop variables; all values of the other variables are taken.

        Raises:
            UnsupportedError: There are too many executions to list them.
        """
        given = dict(fixed or {})
        loops = [(var, extent) for var, extent in access.context.loops if var not in given]
        producer = access.context.path.startswith(PRODUCER)  # one thread, behind those of the body
        threads = [self.program.threads] if producer else range(self.program.threads)
        shape = (len(blocks), len(threads), *(extent for _, extent in loops))
        if prod(shape) > _AT_ONCE:
            raise UnsupportedError(f"expected at most {_AT_ONCE:,} executions of a statement, got {prod(shape):,}")
        env: dict[str, Any] = dict(given)

        def along(axis: int, values: Sequence[int] | range) -> NDArray[np.int64]:
            return np.asarray(values, np.int64).reshape([-1 if at == axis else 1 for at in range(len(shape))])

        for axis, name in enumerate(GRID):
            env[name] = along(0, [block[axis] for block in blocks])
        env["tid"] = along(1, threads)
        for axis, (var, extent) in enumerate(loops, 2):
            env[var] = along(axis, range(extent))
        with np.errstate(all="ignore"):
            mask = np.ones(shape, bool)
            for guard in access.context.guards:
                mask &= np.broadcast_to(np.asarray(compile_index(guard)(env)) != 0, shape)
            index = np.broadcast_to(np.asarray(compile_index(access.index)(env), np.int64), shape)
        at = np.nonzero(mask)
        points = {var: np.asarray(at[axis], np.int64) for axis, (var, _) in enumerate(loops, 2)}
        points |= {var: np.full(len(at[0]), value, np.int64) for var, value in given.items()}
        first = self.program.threads if producer else 0
        return ThreadElements(access, np.asarray(at[0]), np.asarray(at[1]) + first, points, index[at])

    def find_store(self, param: str, address: int, first: Block) -> tuple[Block, ThreadElements, int] | None:
        """Return the block, the statement and the execution that stores an element; None if there is none.

        Args:
            param: The parameter.
            address: Address of the element.
            first: The block that is looked at first.

        Raises:
            UnsupportedError: There are too many blocks to look at all of them.
        """
        accesses = [one for one in self.of_memory(written=True) if one.target.name == param]
        x, y, z = self.program.grid
        size = self.program.threads * max((prod(n for _, n in one.context.loops) for one in accesses), default=1)
        step, left = max(1, _AT_ONCE // size), _MOST
        chunks: list[Sequence[Block]] = [[first]]
        chunks += [
            [(n % x, n // x % y, n // (x * y)) for n in range(begin, min(begin + step, x * y * z))]
            for begin in range(0, min(x * y * z, _MOST // size + 1), step)
        ]
        for blocks in chunks:
            left -= len(blocks) * size * len(accesses)
            for access in accesses:
                found = self.evaluate(access, blocks)
                hits = np.nonzero((found.first <= address) & (address < found.first + access.count))[0]
                if len(hits):
                    return blocks[int(found.blocks[hits[0]])], found, int(hits[0])
            if left < 0:
                raise UnsupportedError("there are too many blocks to look for it in all of them")
        return None


__all__ = ["Block", "BlockAccesses", "ThreadElements"]
