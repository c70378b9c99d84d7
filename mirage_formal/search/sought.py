"""What a search looks for: the program without what would only stand in its way.

Maxima that do not matter. Programs subtract the largest element of a row before they take exponentials, so that these
stay in range: softmax(x) = e^(x - m) / sum of e^(x - m), and log of the sum of e^x = m + log of the sum of e^(x - m),
for m = max x as for any other number. A search would have to find the same maximum in every candidate; without it, it
finds the kernels of the plain form, for which a running maximum is derived again when they are generated
(``kernels.stable``).

Views. A transpose, a slice or a reshape of an input is a way to read it (``graph.views``), so the search sees its
result as an input. Where views stand in between, the program is written anew first (``search.normal``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_formal.graph.check import faults, kernel_types
from mirage_formal.graph.edit import pruned, renumbered
from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op, numbered
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.tails.apart import Wrapping, between
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.views import places
from mirage_formal.search.joined import absorbed, joined
from mirage_formal.search.normal import normal

#: Operators of one operand that turn zeros into zeros.
_OF_ZERO = frozenset(
    {OpKind.MAX, OpKind.SUM, OpKind.MEAN, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SCALE, OpKind.SLICE}
)
#: Larger programs are not searched as one, and proofs about them take long: they are left as they are.
_MOST_OPERATORS = 32


@dataclass(frozen=True, slots=True)
class Sought:
    """A program as its search sees it.

    Attributes:
        program: What is searched.
        inputs: The inputs of the program as it was given.
        wrapping: The views of these that are the inputs of ``program``, and those of its results; None if there are
            none.
    """

    program: KernelGraph
    inputs: tuple[Input, ...]
    wrapping: Wrapping | None

    def wrapped(self, candidate: KernelGraph) -> KernelGraph:
        """A candidate for the program as it was given, from one for what is searched."""
        return absorbed(self.around(candidate))

    @property
    def whole(self) -> KernelGraph:
        """What is searched, on the inputs of the program as it was given."""
        return self.around(self.program)

    def around(self, graph: KernelGraph) -> KernelGraph:
        """A graph of the inputs and outputs of what is searched, on the inputs of the program as it was given."""
        return graph if self.wrapping is None else self.wrapping.around(self.inputs, graph)


@lru_cache(maxsize=4096)
def sought(program: KernelGraph) -> Sought:
    """The program without maxima that may be 0 as well, and without views of its inputs and of its results.

    Sound: nothing is accepted for it. It says where to look, and every candidate is proved equal to the program as it
    was given. What is written anew is what the prover has shown to be equal, so that the search is not in vain.
    """
    plain = program
    if len(program.ops) <= _MOST_OPERATORS:
        plain = _without_maxima(_once(program))
        anew = normal(plain)
        if anew is not None and _proved(program, anew):
            plain = anew
    return _peeled(plain) or Sought(plain, program.inputs, None)


def _once(program: KernelGraph) -> KernelGraph:
    """The program with operators that are applied to the same tensors twice applied once."""
    types = kernel_types(program)
    stands = list(range(len(types)))
    seen: dict[KernelOp, int] = {}
    for first, op in numbered(len(program.inputs), program.ops):
        stands[first] = seen.setdefault(renumbered(op, stands), first)
    outputs = tuple(stands[n] for n in program.outputs)
    if stands == list(range(len(types))) or len(set(outputs)) < len(outputs):
        return program
    return pruned(replace(program, ops=tuple(renumbered(op, stands) for op in program.ops), outputs=outputs))


def _proved(program: KernelGraph, anew: KernelGraph) -> bool:
    from mirage_formal.claims.equality.prove import prove  # most programs are sought as they are

    return isinstance(prove(program, anew), Equivalent)


# --- maxima -----------------------------------------------------------------------------------------------------------


def _without_maxima(program: KernelGraph) -> KernelGraph:
    for first, op in numbered(len(program.inputs), program.ops):
        plain = _without(program, first) if isinstance(op, Op) and op.kind is OpKind.MAX else None
        if plain is not None and _proved(program, plain):
            return _without_maxima(plain)
    return program


def _without(program: KernelGraph, tensor: int) -> KernelGraph | None:
    """The program with zeros in place of a result; None if they do not vanish by themselves."""
    types = kernel_types(program)
    stands = list(range(len(types)))  # for each tensor, the one that is read in its place
    zeros = {tensor}
    for first, op in numbered(len(program.inputs), program.ops):
        if zeros.isdisjoint(op.operands):
            continue
        if isinstance(op, Op) and op.kind in _OF_ZERO:
            zeros.add(first)
            continue
        kept = _other(op, zeros) if isinstance(op, Op) else None
        if kept is None or types[kept] != types[first]:
            return None
        stands[first] = stands[kept]
    if zeros.intersection(program.outputs):
        return None
    ops = tuple(renumbered(op, stands) for op in program.ops)
    made = replace(program, ops=ops, outputs=tuple(stands[i] for i in program.outputs))
    return None if faults(made) else pruned(made)


def _other(op: Op, zeros: set[int]) -> int | None:
    """The operand that a sum or difference with zeros is equal to; None if there is none."""
    match op.kind, op.operands:
        case OpKind.ADD | OpKind.SUB, (a, b) if b in zeros and a not in zeros:
            return a
        case OpKind.ADD, (a, b) if a in zeros and b not in zeros:
            return b
        case _:
            return None


# --- views ------------------------------------------------------------------------------------------------------------


def _peeled(program: KernelGraph) -> Sought | None:
    """The program between views and pads of its inputs and reshapes of its results; None if there are none of them."""
    count, makers = len(program.inputs), dict(numbered(len(program.inputs), program.ops))
    types, known = kernel_types(program), places(program)
    strides = {n: item.strides for n, item in enumerate(program.inputs)}
    together = joined(program)
    for first, op in makers.items():
        if known[first].base < count:
            strides[first] = known[first].strides
        elif first in together:  # a kernel reads a pad where it lies; sums of pads have no strides of their own
            pad = isinstance(op, Op) and op.kind is OpKind.PAD
            strides[first] = strides[op.operands[0]] if pad else row_major(types[first].shape)
    front = [n for n in strides if n >= count]
    back = sorted(_reshaped(program, makers))
    core = [op for first, op in makers.items() if first not in front and first not in back]
    ends = tuple(makers[n].operands[0] if n in back else n for n in program.outputs)
    if not (front or back) or not core or len(set(ends)) < len(ends) or any(n < count or n in front for n in ends):
        return None
    read = {n for op in core for n in op.operands}
    reads = [n for n in (*range(count), *front) if n in read]
    inputs = [program.inputs[n] if n < count else Input(f"view{i}", types[n], strides[n]) for i, n in enumerate(reads)]
    wrapping, inner = between(program, (front, reads), (ends, back), inputs)
    return None if faults(inner) else Sought(inner, program.inputs, wrapping)


def _reshaped(program: KernelGraph, makers: Mapping[int, KernelOp]) -> set[int]:
    """Outputs that are nothing but another shape of a result that is no output."""
    return {
        n
        for n in program.outputs
        if n in makers
        and isinstance(op := makers[n], Op)
        and op.kind is OpKind.RESHAPE
        and op.operands[0] >= len(program.inputs)
        and op.operands[0] not in program.outputs
        and not any(n in other.operands for other in makers.values())
    }


__all__ = ["Sought", "sought"]
