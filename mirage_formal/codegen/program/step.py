"""Steps: the actions of a block's threads in order, before they are lowered to loops and copies.

There is one record for each kind. An operator is computed in the generic way: the elements of its result one after
another, through shared memory. Or it is computed in registers, over a distribution of its operand, by the kind for its
operator. A loop-carried tensor has a step before the loop, ``Initialize``, and one after it, ``BlockReduce``, if
threads hold partial results of it in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Elementwise,
    FlatOp,
    Product,
    Reduce,
    Repeat,
    RunningMax,
)
from mirage_formal.codegen.program.program import Barrier, Commit, WaitGroups
from mirage_formal.codegen.program.register_layout import Distribution, Fragment, ThreadDigit, Warps, inner_digits

# --- operators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GenericOperation:
    """An operator computed in the generic way; for an accumulator, its update by one iteration."""

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
        digits: The digits of the thread number in which threads hold partial results of one element.
        scratch: The buffer through which warps exchange these, or empty.
    """

    op: Reduce
    over: Distribution
    digits: tuple[ThreadDigit, ...]
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Multiplication:
    """A product on tensor cores.

    Attributes:
        op: The operator.
        over: The distribution of the registers to which it is added.
        warps: The grid of warps that computes it.
        packed: Whether its left operand is read from registers instead of shared memory.
    """

    op: Product
    over: Fragment
    warps: Warps
    packed: bool

    @property
    def digits(self) -> tuple[ThreadDigit, ...]:
        """Return the digits of the thread number in which threads hold partial sums of one element."""
        return inner_digits(self.warps)


@dataclass(frozen=True, slots=True)
class MatrixMultiply(Multiplication):
    """A product with a result of its own; ``scratch`` is the buffer for partial sums exchanged by warps, or empty."""

    scratch: str = ""


@dataclass(frozen=True, slots=True)
class MultiplyAccumulate(Multiplication):
    """A product that is added to the accumulator ``into``: the update of that accumulator by one iteration."""

    into: Accumulate


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The update of an accumulator in registers by an iteration: each thread adds the elements that it holds.

    Attributes:
        op: The accumulator.
        over: The distribution of its operand.
        digits: The digits of the thread number in which threads hold partial results of one element.
    """

    op: Accumulate
    over: Distribution
    digits: tuple[ThreadDigit, ...]


@dataclass(frozen=True, slots=True)
class RunningMaximum:
    """The update of a running maximum in registers by an iteration; ``over`` is the distribution of its operand."""

    op: RunningMax
    over: Distribution


#: The step that computes an operator; for a loop-carried operator, the step of one iteration.
Operation = GenericOperation | Map | Reduction | MatrixMultiply | MultiplyAccumulate | Accumulation | RunningMaximum


# --- what is carried through the loop --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Initialize:
    """The initialization of a loop-carried tensor with the neutral element, in registers or in shared memory."""

    op: Accumulate | RunningMax


@dataclass(frozen=True, slots=True)
class Rescale:
    """The multiplication of an accumulator by its factor, before a product is added to it."""

    op: Accumulate


@dataclass(frozen=True, slots=True)
class BlockReduce:
    """The combination of an accumulator's partial results in registers, after the loop.

    Attributes:
        op: The accumulator.
        digits: The digits of the thread number in which threads hold partial results of one element.
        scratch: The buffer through which warps exchange these, or empty.
    """

    op: Accumulate
    digits: tuple[ThreadDigit, ...]
    scratch: str


# --- copies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """A copy of an input's tile to shared memory, asynchronous in chunks of 16, 8 or 4 bytes, or element by element."""

    tensor: int
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class Load:
    """A load of a tensor into the registers of its placement, from shared or device memory."""

    tensor: int


@dataclass(frozen=True, slots=True)
class StoreResult:
    """A store of a result to device memory; ``saver`` numbers the block graph's output savers."""

    saver: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A start of the copies of an iteration (``stages - 1`` ahead, if none is named) that also closes their group."""

    iteration: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitTile:
    """A wait for a pipelined tensor's tile of an iteration, which the producer copies."""

    tensor: int


@dataclass(frozen=True, slots=True)
class ReleaseTile:
    """The return of a pipelined tensor's tile to the producer: of this iteration, or of one later by ``iterations``."""

    tensor: int
    iterations: int = 0


@dataclass(frozen=True, slots=True)
class BeginProduct:
    """The beginning of a product of the next iteration, which goes on beside the other steps of this one."""

    product: MatrixMultiply


@dataclass(frozen=True, slots=True)
class EndProduct:
    """The end of a product that was begun in this iteration: from here on its result is that of the next one."""

    product: MatrixMultiply


@dataclass(frozen=True, slots=True)
class OverlapProducts:
    """The last product of an iteration and the first one of the next, which is begun before that one is complete.

    Attributes:
        last: The product of this iteration.
        first: The product of the next one.
        awaited: The pipelined tensors whose tiles of the next iteration it is the first to read.
    """

    last: MultiplyAccumulate
    first: MatrixMultiply
    awaited: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdvanceStep:
    """A step of a later iteration, which reads only tiles that have arrived; ``iterations`` says how much later."""

    step: Map | Reduction
    iterations: int


#: All steps that belong to an operator.
Computation = Operation | Initialize | Rescale | BlockReduce
#: Steps that belong to a later iteration than the one in which they stand.
OtherIteration = BeginProduct | EndProduct | OverlapProducts | AdvanceStep
#: Barriers, and the groups of asynchronous copies, are a Program's own statements.
Step = (
    Computation
    | Fetch
    | Load
    | StoreResult
    | Prefetch
    | AwaitTile
    | ReleaseTile
    | OtherIteration
    | Barrier
    | WaitGroups
    | Commit
)
