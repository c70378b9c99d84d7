"""Straight-line code over whole arrays ("tape"), recorded from a µGraph, for evaluation in finite fields.

The interpreter runs once, over step numbers; equal steps are recorded once. The tape then serves several analyses:
evaluation (field), the parts of each value that are needed (LAX check), growth of degrees (growth), and the inputs that
an element depends on (cone).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from fractions import Fraction
from typing import Final, Literal

from msgspec import Struct, structs

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import COMPARISONS, SPECS, Lax, OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import UntiledDomain


class ResiduePart(IntEnum):
    """The two parts of a field element: P, its value in Z_p; Q, its value in Z_q, the exponent that exp reads."""

    P = 0
    Q = 1

    @property
    def letter(self) -> Literal["p", "q"]:
        """Return its name in streams and records."""
        return "p" if self is ResiduePart.P else "q"


class LoadStep(Struct, frozen=True):
    """Step that reads input number ``index``; a mask is an input of zeros and ones."""

    index: int
    shape: Shape
    mask: bool = False

    def drawn(self, part: ResiduePart) -> ResiduePart:
        """Return the field in which the input is drawn: a mask has the same numbers in both, drawn once."""
        return ResiduePart.P if self.mask else part


class UnaryStep(Struct, frozen=True):
    """Step for EXP, SQRT, SQUARE, RECIPROCAL or an opaque function."""

    kind: OpKind
    a: int
    shape: Shape


class BinaryStep(Struct, frozen=True):
    """Step for ADD, SUB, MUL, DIV, DIV_NO_NAN, SELECT or an opaque function of two operands.

    Axes of extent 1 broadcast.
    """

    kind: OpKind
    a: int
    b: int
    shape: Shape


class ConstantStep(Struct, frozen=True):
    """Step for SCALE (product with a constant) or ADD (sum with a constant)."""

    kind: OpKind
    a: int
    value: Fraction
    shape: Shape


class Matmul(Struct, frozen=True):
    """Step for a product over the last two axes, broadcasting the axes before them.

    Attributes:
        a: Left operand.
        b: Right operand.
        inner: Extent of the axis that is summed.
        shape: Shape of the result.
        summed: An axis before the last two that both operands vary along and that is summed as well, see
            ``join_sums_of_products``; None in what is recorded.
    """

    a: int
    b: int
    inner: int
    shape: Shape
    summed: int | None = None


class SumStep(Struct, frozen=True):
    """Step that folds an axis of ``extent`` to ``kept``."""

    a: int
    axis: int
    extent: int
    kept: int
    shape: Shape


class Reshape(Struct, frozen=True):
    """Step that gives the same elements other axes."""

    a: int
    shape: Shape


class Transpose(Struct, frozen=True):
    """Step that permutes axes."""

    a: int
    perm: tuple[int, ...]
    shape: Shape


class ConcatStep(Struct, frozen=True):
    """Step that gives ``a`` followed by ``b`` along an axis."""

    a: int
    b: int
    axis: int
    shape: Shape


class SliceStep(Struct, frozen=True):
    """Step that takes elements of an axis from ``start`` on; ``shape`` has their number."""

    a: int
    axis: int
    start: int
    shape: Shape


class RepeatStep(Struct, frozen=True):
    """Step that repeats an axis of extent 1."""

    a: int
    axis: int
    shape: Shape


class OrderStep(Struct, frozen=True):
    """Step for result ``number`` of an operator along ``axis`` that needs an order on the values; a field has none."""

    kind: OpKind
    operands: tuple[int, ...]
    axis: int
    number: int
    shape: Shape


Step = (
    LoadStep
    | UnaryStep
    | BinaryStep
    | ConstantStep
    | Matmul
    | SumStep
    | Reshape
    | Transpose
    | ConcatStep
    | SliceStep
    | RepeatStep
    | OrderStep
)


class Tape(Struct, frozen=True):
    """Straight-line code: step i may read steps before i only.

    Attributes:
        steps: The code.
        outputs: The steps that are the program's outputs.
    """

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def step_operands(step: Step) -> tuple[int, ...]:
    """Return the steps that a step reads."""
    match step:
        case LoadStep():
            return ()
        case BinaryStep() | Matmul() | ConcatStep():
            return (step.a, step.b)
        case OrderStep():
            return step.operands
        case _:
            return (step.a,)


def read_part(step: Step, part: ResiduePart) -> ResiduePart:
    """Return the part of its operands that a step reads for a part of its result.

    An exponential reads exponents. A comparison has one answer, a number that is the same in both fields, and reads
    values for it: values are there behind exponentials too.
    """
    match step:
        case UnaryStep(kind=OpKind.EXP):
            return ResiduePart.Q
        case BinaryStep(kind=kind) if kind in COMPARISONS:
            return ResiduePart.P
        case _:
            return part


def rename_operands(step: Step, names: Sequence[int]) -> Step:
    """Return a step with each operand replaced by its entry in ``names``."""
    match step:
        case LoadStep():
            return step
        case BinaryStep() | Matmul() | ConcatStep():
            return structs.replace(step, a=names[step.a], b=names[step.b])
        case OrderStep():
            return structs.replace(step, operands=tuple(names[operand] for operand in step.operands))
        case _:
            return structs.replace(step, a=names[step.a])


class TapeDomain(UntiledDomain[int]):
    """Domain of step numbers, which records the tape."""

    keeps: Final = frozenset[OpKind]()

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[Step, int] = {}

    def add(self, step: Step) -> int:
        """Return the number of a step, recorded if it is new."""
        number = self._numbers.setdefault(step, len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
        return number

    def shape(self, a: int) -> Shape:
        """Return the shape of a step's value."""
        return self.steps[a].shape

    def unary(self, kind: OpKind, a: int) -> int:
        """Implement ``Domain.unary``."""
        return self.add(UnaryStep(kind, a, self.shape(a)))

    def binary(self, kind: OpKind, a: int, b: int) -> int:
        """Implement ``Domain.binary``."""
        return self.add(BinaryStep(kind, a, b, _broadcast(self.shape(a), self.shape(b))))

    def matmul(self, a: int, b: int, inner: int) -> int:
        """Implement ``Domain.matmul``."""
        left, right = self.shape(a), self.shape(b)
        return self.add(Matmul(a, b, inner, (*_broadcast(left[:-2], right[:-2]), left[-2], right[-1])))

    def scale(self, a: int, factor: Fraction) -> int:
        """Implement ``Domain.scale``."""
        return a if factor == 1 else self.add(ConstantStep(OpKind.SCALE, a, factor, self.shape(a)))

    def offset(self, a: int, constant: Fraction) -> int:
        """Implement ``Domain.offset``."""
        return a if constant == 0 else self.add(ConstantStep(OpKind.ADD, a, constant, self.shape(a)))

    def sum(self, a: int, axis: int, extent: int, kept: int) -> int:
        """Implement ``Domain.sum``."""
        if extent == kept:
            return a
        shape = self.shape(a)
        return self.add(SumStep(a, axis, extent, kept, (*shape[:axis], kept, *shape[axis + 1 :])))

    def ordered(self, kind: OpKind, operands: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
        """Implement ``Domain.ordered``; only the shapes matter, since a tape that needs such a value is not LAX."""
        shape = self.shape(operands[0])
        for other in operands[1:]:
            shape = _broadcast(shape, self.shape(other))
        shape = (*shape[:axis], 1, *shape[axis + 1 :])
        results = 2 if kind is OpKind.RUNNING_MAX else 1
        return tuple(self.add(OrderStep(kind, operands, axis, number, shape)) for number in range(results))

    def softmax(self, a: int, axis: int, extent: int) -> int:
        """Raise an AssertionError: SOFTMAX is always expanded."""
        raise AssertionError("softmax is expanded")

    def reshape(self, a: int, shape: Shape) -> int:
        """Implement ``Domain.reshape``."""
        return a if shape == self.shape(a) else self.add(Reshape(a, shape))

    def transpose(self, a: int, perm: tuple[int, ...]) -> int:
        """Implement ``Domain.transpose``."""
        return self.add(Transpose(a, perm, tuple(self.shape(a)[i] for i in perm)))

    def concat(self, a: int, b: int, axis: int) -> int:
        """Implement ``Domain.concat``."""
        left, right = self.shape(a), self.shape(b)
        shape = (*left[:axis], left[axis] + right[axis], *left[axis + 1 :])
        return self.add(ConcatStep(a, b, axis, shape))

    def slice(self, a: int, axis: int, start: int, stop: int) -> int:
        """Implement ``Domain.slice``."""
        shape = self.shape(a)
        return self.add(SliceStep(a, axis, start, (*shape[:axis], stop - start, *shape[axis + 1 :])))

    def repeat(self, a: int, axis: int, times: int) -> int:
        """Implement ``Domain.repeat``."""
        shape = self.shape(a)
        return self.add(RepeatStep(a, axis, (*shape[:axis], times, *shape[axis + 1 :])))


def _broadcast(a: Shape, b: Shape) -> Shape:
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def record_tape(graph: KernelGraph) -> Tape:
    """Return the tape of a µGraph.

    Raises:
        GraphError: The graph is not well-formed.
    """
    domain = TapeDomain()
    loads = [
        domain.add(LoadStep(i, source.tensor.shape, mask=not source.tensor.dtype.floating))
        for i, source in enumerate(graph.inputs)
    ]
    outputs = evaluate(graph, loads, domain)
    return Tape(tuple(domain.steps), outputs)


def join_sums_of_products(tape: Tape) -> tuple[Step, ...]:
    """Return a tape's steps; a sum of a product along an axis that both operands vary along is one product.

    The numbers of the steps stay. The product alone is not read any more; where another step reads it, it stays.
    """
    readers = Counter(operand for step in tape.steps for operand in step_operands(step))
    readers.update(tape.outputs)

    def joined(step: Step) -> Step:
        if not isinstance(step, SumStep) or step.kept != 1 or readers[step.a] != 1:
            return step
        product, axis = tape.steps[step.a], step.axis
        if not isinstance(product, Matmul) or axis >= len(product.shape) - 2:
            return step
        varies = all(tape.steps[operand].shape[axis] == step.extent for operand in (product.a, product.b))
        return Matmul(product.a, product.b, product.inner, step.shape, axis) if varies else step

    return tuple(map(joined, tape.steps))


class NotLax(Struct, frozen=True):
    """Reason why a program has no interpretation in Z_p x Z_q."""

    reason: str


#: For each step, the parts of its value that the outputs need.
Needs = tuple[tuple[ResiduePart, ...], ...]

_PARTS: Final[Needs] = ((), (ResiduePart.P,), (ResiduePart.Q,), (ResiduePart.P, ResiduePart.Q))


def needed_parts(tape: Tape) -> Needs | NotLax:
    """Return for each step the parts that are needed so that the outputs are known in Z_p.

    exp maps a value in Z_q to one in Z_p, so the result of an exp has no Q part; a value that would need it (a second
    exp on one path) has no interpretation. A comparison in an exponent needs the P part of its operands.

    Sound: a tape with an operator that has no picture is NotLax and leads to Unknown, never to acceptance.
    """
    wanted = [0] * len(tape.steps)
    for number in tape.outputs:
        wanted[number] |= 1 << ResiduePart.P
    for number in range(len(tape.steps) - 1, -1, -1):
        step, parts = tape.steps[number], wanted[number]
        if not parts:
            continue
        if isinstance(step, OrderStep):
            return NotLax(f"{step.kind} needs an order on the values, which a finite field has not")
        if isinstance(step, UnaryStep) and step.kind is OpKind.EXP and parts & (1 << ResiduePart.Q):
            return NotLax("a second exponential on one path: the first leaves nothing in Z_q")
        read = 0
        for part in _PARTS[parts]:
            read |= 1 << read_part(step, part)
        for operand in step_operands(step):
            wanted[operand] |= read
    return tuple(_PARTS[parts] for parts in wanted)


def needed_steps(tape: Tape, wanted: Needs) -> Iterator[tuple[int, Step, tuple[ResiduePart, ...]]]:
    """Yield the needed steps, in order, each with its number and needed parts."""
    for number, step in enumerate(tape.steps):
        if wanted[number]:
            yield number, step, wanted[number]


def lax_class(tape: Tape, wanted: Needs) -> Lax:
    """Return the widest class of the needed steps: linear, division, exponential, root, opaque, in this order."""
    widest = Lax.LINEAR
    for _, step, _ in needed_steps(tape, wanted):
        found = SPECS[step.kind].lax if isinstance(step, UnaryStep | BinaryStep) else Lax.LINEAR
        widest = max(widest, found, key=list(Lax).index)
    return widest
