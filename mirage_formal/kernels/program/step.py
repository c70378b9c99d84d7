"""Steps: what the threads of a block do one after another, before it is written as loops and copies.

There is one record for each kind. An operator is computed the generic way, one element of its result after another
through shared memory; or in registers, over a distribution of what it reads, by the kind for its operator. What is
carried from one iteration to the next has a step before the loop, ``Initialize``, and if threads hold parts of it in
registers one after the loop, ``BlockReduce``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_formal.kernels.program.flat import Accumulate, Elementwise, FlatOp, Product, Reduce, Repeat, Running
from mirage_formal.kernels.program.program import Barrier, Commit, WaitGroups
from mirage_formal.kernels.program.register_layout import Digit, Distribution, Fragment, Warps, inner_digits

# --- operators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generic:
    """An operator the generic way; of an accumulator what an iteration does to it."""

    op: FlatOp


@dataclass(frozen=True, slots=True)
class Map:
    """An elementwise operator, or a repetition, in registers; ``over`` is the distribution of its result."""

    op: Elementwise | Repeat
    over: Distribution


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction in registers.

    Attributes:
        op: The operator.
        over: The distribution of its operand.
        digits: The threads that hold partial results of one element.
        scratch: Buffer through which warps exchange these, or empty.
    """

    op: Reduce
    over: Distribution
    digits: tuple[Digit, ...]
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Multiplication:
    """A product on tensor cores.

    Attributes:
        op: The operator.
        over: The distribution of the registers to which it is added.
        warps: How warps share it.
        packed: Its left operand is read from registers instead of shared memory.
    """

    op: Product
    over: Fragment
    warps: Warps
    packed: bool

    @property
    def digits(self) -> tuple[Digit, ...]:
        """The threads that hold partial sums of one element."""
        return inner_digits(self.warps)


@dataclass(frozen=True, slots=True)
class MatrixMultiply(Multiplication):
    """One with a result of its own; ``scratch`` is the buffer through which warps exchange partial sums, or empty."""

    scratch: str = ""


@dataclass(frozen=True, slots=True)
class MultiplyAccumulate(Multiplication):
    """One that is added to the accumulator ``into``: what an iteration does to that."""

    into: Accumulate


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Update of an accumulator in registers by an iteration: each thread adds the elements that it holds.

    Attributes:
        op: The accumulator.
        over: The distribution of its operand.
        digits: The threads that hold partial results of one element.
    """

    op: Accumulate
    over: Distribution
    digits: tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class RunningMaximum:
    """Update of a running maximum in registers by an iteration; ``over`` is the distribution of its operand."""

    op: Running
    over: Distribution


#: How an operator is computed; of one that is carried from one iteration to the next, the step of an iteration.
Operation = Generic | Map | Reduction | MatrixMultiply | MultiplyAccumulate | Accumulation | RunningMaximum


# --- what is carried through the loop --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Initialize:
    """Before the loop: the neutral element everywhere, in registers or in shared memory."""

    op: Accumulate | Running


@dataclass(frozen=True, slots=True)
class Rescale:
    """Before a product is added to an accumulator: this is multiplied by its factor."""

    op: Accumulate


@dataclass(frozen=True, slots=True)
class BlockReduce:
    """After the loop: partial results of an accumulator in registers are combined.

    Attributes:
        op: The accumulator.
        digits: The threads that hold partial results of one element.
        scratch: Buffer through which warps exchange these, or empty.
    """

    op: Accumulate
    digits: tuple[Digit, ...]
    scratch: str


# --- copies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copies an input's tile to shared memory, asynchronously in chunks of 16, 8 or 4 bytes or element by element."""

    tensor: int
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class Load:
    """Reads a tensor into the registers of its placement from shared or device memory."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Save:
    """Writes a result to device memory; ``saver`` numbers the block graph's output savers."""

    saver: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Starts the copies of an iteration (the one ``stages - 1`` ahead, if none is named) and closes the group."""

    iteration: int | None = None


#: All that belongs to an operator.
Computation = Operation | Initialize | Rescale | BlockReduce
#: Barriers, and the groups of asynchronous copies, are a Program's own statements.
Step = Computation | Fetch | Load | Save | Prefetch | Barrier | WaitGroups | Commit
