"""The index-exact domain: the meaning of a µGraph as exact terms, with concatenations as block tensors.

A value is a grid of pieces (blocks): per axis the lengths of its segments, and a tensor for every combination. Without
concatenation there is one piece. Pieces are combined segment by segment after both operands are cut to common segments.

A piece without exact terms, because its indices do not nest or because it would be too large, is an atom: an opaque
tensor identified by its operator and operands, with the facts of facts.py. Equal operators on equal tensors are
computed once, so that equal parts of two programs are equal, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, reduce
from itertools import accumulate, pairwise, product
from math import prod
from typing import Final

from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import SPECS, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.prove.equality.facts import INPUT, TensorFacts, combine_facts, infer_facts
from mirage_formal.prove.equality.polynomials import FactorKind, ProofIncomplete, UnnestedDigits
from mirage_formal.prove.equality.radicals import SquareRoots
from mirage_formal.prove.equality.tensor_terms import TensorTerm, TensorTerms
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import LOOP_AXIS, UntiledDomain

#: The name of a step and its attributes.
Body = tuple[object, ...]
#: Lengths of the segments of one axis.
Lengths = tuple[int, ...]
#: The graph, the tensor in it, the axis and the lengths of its segments.
TensorCut = tuple[int, int, int, Lengths]
#: The most pieces before they are joined, the same limit as in the checker's kernel.
MAX_PIECES: Final = 2_048
#: Steps whose operators their names tell.
_NAMED: Final = ("unary", "binary", "matmul")


@dataclass(frozen=True, slots=True)
class UndefinedPiece:
    """A piece without exact terms.

    Attributes:
        fact: Its static facts.
        origin: The step that has no exact terms, and its operands, if those have; None if these have none either.
    """

    fact: TensorFacts
    origin: tuple[Body, tuple[TensorTerm, ...]] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TensorGrid:
    """A grid of tensors: ``lengths`` per axis, ``parts`` in row-major order; ``source`` is what it is a reshape of."""

    lengths: tuple[Lengths, ...]
    parts: tuple[TensorTerm | UndefinedPiece, ...]
    source: TensorGrid | None = field(default=None, compare=False)

    @property
    def shape(self) -> Shape:
        """Return the extents of all dims."""
        return tuple(sum(lengths) for lengths in self.lengths)


def single_piece(shape: Shape, tensor: TensorTerm) -> TensorGrid:
    """Return a value with one segment along each axis, and so with one tensor term."""
    return TensorGrid(tuple((n,) for n in shape), (tensor,))


def common_segments(a: Lengths, b: Lengths) -> Lengths:
    """Return the coarsest segments that refine both divisions."""
    ends = sorted({*accumulate(a), *accumulate(b)})
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


class ExactDomain(UntiledDomain[TensorGrid]):
    """The domain of exact terms for the interpreter; one instance holds the terms and steps of one proof.

    Sound: a concatenation is its operands side by side, and every operator is applied to the pieces of a common cut.

    Args:
        radicals: The normal form of roots of numbers.
        whole: Whether tensors of the kernel graphs that have several pieces are atoms, of one piece.
        cuts: Axes of tensors of the kernel graphs that are cut to segments.
        signed: Inputs without a negative element, by a side condition.
        flat: Whether elements of inputs and atoms are named by their number in row-major order, so that a reshape of
            what an elementwise operator makes is made of reshapes.
    """

    keeps: frozenset[OpKind] = frozenset()

    def __init__(
        self,
        radicals: SquareRoots | None = None,
        *,
        whole: bool = False,
        cuts: Sequence[TensorCut] = (),
        signed: Iterable[int] = (),
        flat: bool = False,
    ) -> None:
        self.tensors = TensorTerms(radicals)
        self.tensors.signed = frozenset(j for i in signed for j in (i, ~i))
        self._flat = flat
        #: Whether digits did not nest.
        self.unnested = False
        #: Tensors of the kernel graphs that have several pieces: the graph and the tensor.
        self.cut: list[tuple[int, int]] = []
        self._whole = whole
        self._cuts = cuts
        #: Names of the values of all tensors, by graph and number: equal values have equal names.
        self.value_names: dict[tuple[int, int], int] = {}
        #: For each atom the graph, the tensor of the kernel graph, and the piece that it is.
        self.atoms: list[tuple[int, int, int]] = []
        #: The reasons for pieces without exact terms.
        self.reasons: list[str] = []
        self._results: dict[Op | GraphDefined, tuple[TensorGrid, ...]] = {}
        self._several: dict[Op | GraphDefined, list[int]] = {}
        self._names: dict[object, int] = {}
        #: Operands and results of operators that have atoms, by operator and elements of the operands.
        self._opaque: dict[Op | GraphDefined, tuple[list[TensorGrid], tuple[TensorGrid, ...]]] = {}
        #: Pieces whose last step has no exact terms, and the operands of that step, by the step and their elements.
        self._opaque_steps: dict[object, tuple[TensorTerm, tuple[TensorTerm, ...]]] = {}
        #: Atoms whose elements are named by their number, with the value that they are, by the value's elements.
        self._numbered: dict[object, tuple[TensorTerm, TensorGrid]] = {}
        self._regroupings: dict[tuple[int, int, Shape], TensorGrid | None] = {}
        #: The operators of the kernel graphs, by graph and result.
        self._makers: dict[tuple[int, int], Op | GraphDefined] = {}
        self._finals: dict[int, TensorTerm] = {}
        self._inputs = 0

    def inputs(self, shapes: Sequence[Shape], masks: Iterable[int] = ()) -> list[TensorGrid]:
        """Return the inputs of the programs; the elements of ``masks`` are 0 and 1."""
        self._inputs = len(shapes)
        self.tensors.masks = frozenset(j for i in masks for j in (i, ~i))
        return [single_piece(shape, self._source(i, shape)) for i, shape in enumerate(shapes)]

    def _source(self, number: int, shape: Shape, known: TensorFacts = INPUT) -> TensorTerm:
        """Return an input or an atom."""
        if not self._flat:
            return self.tensors.input(number, shape, known)
        return self.tensors.reshape(self.tensors.input(~number, (prod(shape),), known), shape)

    def outputs(self, number: int, graph: KernelGraph, inputs: Sequence[TensorGrid]) -> tuple[TensorGrid, ...]:
        """Return the outputs of a program, the first or the second of two.

        Sound: an operator is computed once for the same values, and what it gives is used wherever it stands.
        """
        values = [self._cut(value, number, at) for at, value in enumerate(inputs)]
        for op in graph.ops:
            operands = [values[i] for i in op.operands]
            key = replace(op, operands=tuple(self._named(value) for value in operands))
            if key not in self._results:
                self._results[key], self._several[key] = self._results_of(op, values, number)
            self.cut += [(number, len(values) + result) for result in self._several[key]]
            self._makers[number, len(values)] = op
            values += [self._cut(value, number, len(values) + i) for i, value in enumerate(self._results[key])]
        self.value_names |= {(number, at): self._named(value) for at, value in enumerate(values)}
        return tuple(values[i] for i in graph.outputs)

    def _cut(self, value: TensorGrid, number: int, at: int) -> TensorGrid:
        for _, _, axis, lengths in (cut for cut in self._cuts if cut[:2] == (number, at)):
            value = self._refined(value, axis, common_segments(value.lengths[axis], lengths))
        return value

    def _named(self, value: TensorGrid) -> int:
        steps = tuple(None if isinstance(part, UndefinedPiece) else part.step for part in value.parts)
        return self._names.setdefault((value.lengths, steps), len(self._names))

    def _named_by_elements(self, value: TensorGrid) -> int:
        finals = [self._final(part) for part in value.parts]
        names = tuple((final.strings, final.element) for final in finals)
        return self._names.setdefault((value.lengths, names), len(self._names))

    def _evaluated(self, op: Op | GraphDefined, operands: list[TensorGrid]) -> tuple[TensorGrid, ...]:
        """Return the results of one operator of a kernel graph."""
        sources = tuple(Input(f"x{i}", _tensor(a.shape), row_major(a.shape)) for i, a in enumerate(operands))
        outputs = range(len(operands), len(operands) + op.results)
        alone = KernelGraph(sources, (replace(op, operands=tuple(range(len(operands)))),), tuple(outputs))
        return evaluate(alone, operands, self)

    def _results_of(
        self, op: Op | GraphDefined, values: list[TensorGrid], number: int
    ) -> tuple[tuple[TensorGrid, ...], list[int]]:
        """Return the results of an operator of the kernel graph, with an atom for each piece without exact terms.

        Returns:
            The results, and the positions of those that had several pieces.
        """
        operands, at = [values[i] for i in op.operands], len(values)
        found = self._evaluated(op, operands)
        several = [i for i, value in enumerate(found) if len(value.parts) > 1]
        if self._whole:
            found = tuple(self._joined(value, *range(len(value.lengths))) for value in found)
        if all(isinstance(part, TensorTerm) for value in found for part in value.parts):
            return found, several
        if isinstance(op, Op) and op.kind is OpKind.RESHAPE:
            regrouped = self._regrouped_in((number, values), op.operands[0], found[0].shape)
            if regrouped is not None:
                return (regrouped,), several
            operands = [a.source or a for a in operands]
        if any(isinstance(part, UndefinedPiece) for value in operands for part in value.parts):
            made = tuple(self._with_atoms(value, number, at + i, None, []) for i, value in enumerate(found))
            return made, several  # a piece that could not be cut has no elements to compare
        key = replace(op, operands=tuple(self._named_by_elements(value) for value in operands))
        fresh = (operands, (None,) * len(found))
        given, before = self._opaque.get(key, fresh)
        pairs = self._operand_pairs(given, operands)
        before = fresh[1] if pairs is None else before
        made = tuple(
            self._with_atoms(value, number, at + i, old, pairs or [])
            for i, (value, old) in enumerate(zip(found, before, strict=True))
        )
        self._opaque.setdefault(key, (operands, made))
        return made, several

    def _operand_pairs(
        self, given: list[TensorGrid], operands: list[TensorGrid]
    ) -> list[tuple[TensorTerm, TensorTerm]] | None:
        """Return the equal pieces of equal operands, and of what they are reshapes of; None if these are not alike."""
        both = list(zip(given, operands, strict=True))
        both += [(a.source or a, b.source or b) for a, b in both if a.source is not None or b.source is not None]
        found = [pair for a, b in both if a.lengths == b.lengths for pair in zip(a.parts, b.parts, strict=True)]
        alike = all(a.lengths == b.lengths for a, b in both)
        if not alike or any(isinstance(part, UndefinedPiece) for pair in found for part in pair):
            return None
        pairs = [(self._final(x), self._final(y)) for x, y in found]
        return pairs if _is_function(pairs) else None

    def _final(self, part: TensorTerm | UndefinedPiece) -> TensorTerm:
        assert isinstance(part, TensorTerm)
        if part.step not in self._finals:
            try:
                self._finals[part.step] = self.tensors.final(part)
            except (ProofIncomplete, RecursionError):
                self._finals[part.step] = part
        return self._finals[part.step]

    def _with_atoms(
        self,
        value: TensorGrid,
        number: int,
        at: int,
        before: TensorGrid | None,
        pairs: list[tuple[TensorTerm, TensorTerm]],
    ) -> TensorGrid:
        """Return a value with atoms; ``before`` is what the operator gave for equal operands, as ``pairs`` says."""
        parts: list[TensorTerm] = []
        for place, where in enumerate(self._places(value.lengths)):
            part = value.parts[place]
            if isinstance(part, UndefinedPiece):
                shape = tuple(lengths[k] for lengths, k in zip(value.lengths, where, strict=True))
                old = None if before is None or before.lengths != value.lengths else before.parts[place]
                origin = part.origin if part.origin is not None and part.origin[0][0] in _NAMED else None
                operands = () if origin is None else tuple(map(self._final, origin[1]))
                key = (None if origin is None else origin[0], *((x.strings, x.element) for x in operands))
                if isinstance(old, TensorTerm):
                    part = self.tensors.congruent(old, pairs, part.fact)
                elif key in self._opaque_steps and _is_function(
                    mapped := [*zip(self._opaque_steps[key][1], operands, strict=True)]
                ):
                    part = self.tensors.congruent(self._opaque_steps[key][0], mapped, part.fact)
                else:
                    part = self._atom((number, at, place), shape, part.fact)
                    if operands:
                        self._opaque_steps.setdefault(key, (part, operands))
            parts.append(part)
        return replace(value, parts=tuple(parts))

    def _atom(self, piece: tuple[int, int, int], shape: Shape, fact: TensorFacts, *, flat: bool = False) -> TensorTerm:
        """Return an atom: a piece of a tensor of the kernel graphs; its elements by their number if ``flat``."""
        self.atoms.append(piece)
        source = self._inputs + len(self.atoms) - 1
        self.tensors.undefined |= set() if fact.total else {source, ~source}
        return self.tensors.input(~source, (prod(shape),), fact) if flat else self._source(source, shape, fact)

    def _regrouped_in(self, graph: tuple[int, Sequence[TensorGrid]], tensor: int, shape: Shape) -> TensorGrid | None:
        """Return a reshape of a tensor of a kernel graph whose digits do not nest; None if it has several pieces.

        Its elements are named by their number, as an atom, or as those of an atom of an equal tensor. If all elements
        are named so, and an elementwise operator of tensors of its shape makes it, it is that operator of reshapes.
        """
        key = (graph[0], tensor, shape)
        if key not in self._regroupings:
            self._regroupings[key] = self._regrouped_anew(graph, tensor, shape)
        return self._regroupings[key]

    def _regrouped_anew(self, graph: tuple[int, Sequence[TensorGrid]], tensor: int, shape: Shape) -> TensorGrid | None:
        number, values = graph
        value, op = values[tensor], self._makers.get((number, tensor))
        found = self.reshape(value, shape)
        if all(isinstance(part, TensorTerm) for part in found.parts):
            return found
        alike = all(values[i].shape == value.shape for i in op.operands) if op is not None else False
        if self._flat and isinstance(op, Op) and alike and SPECS[op.kind].elementwise:
            operands = [self._regrouped_in(graph, i, shape) for i in op.operands]
            known = [operand for operand in operands if operand is not None]
            made = self._evaluated(op, known)[0] if len(known) == len(operands) else found
            return made if all(isinstance(part, TensorTerm) for part in made.parts) else None
        base = value.source or value
        part, flat = base.parts[0], self.reshape(base, (prod(shape),)).parts[0]
        if len(base.parts) > 1 or not isinstance(part, TensorTerm) or not isinstance(flat, TensorTerm):
            return None
        key = (self._final(flat).strings, self._final(flat).element)
        if key not in self._numbered:
            given = next((i for i in range(self._inputs) if values[i].parts == base.parts), None)
            atom = self.tensors.input(~given, (prod(shape),)) if given is not None else None
            self._numbered[key] = atom or self._atom((number, tensor, 0), shape, part.fact, flat=True), base
        atom, first = self._numbered[key]
        made_part = self.tensors.reshape(atom, shape)
        if first.parts != base.parts:
            again = self.reshape(base, first.shape).parts[0]
            if isinstance(again, UndefinedPiece):
                return None
            x, y = self._final(first.parts[0]), self._final(again)
            if (x.strings, x.element) != (y.strings, y.element):
                return None
            made_part = self.tensors.congruent(made_part, [(x, y)], part.fact)
        return replace(single_piece(shape, made_part), source=base)

    def _step_result(
        self, body: Body, make: Callable[..., TensorTerm], *operands: TensorTerm | UndefinedPiece
    ) -> TensorTerm | UndefinedPiece:
        """Return a step's result; Undefined where an operand is, or where the exact terms fail."""
        known = tuple(x for x in operands if isinstance(x, TensorTerm))
        if len(known) == len(operands):
            try:
                return make(*operands)
            except ProofIncomplete as reason:
                self.unnested |= isinstance(reason, UnnestedDigits)
                self.reasons.append(str(reason))
            except RecursionError:
                self.reasons.append("the terms are nested too deeply")
        origin = (body, known) if len(known) == len(operands) else None
        return UndefinedPiece(infer_facts(body, tuple(x.fact for x in operands)), origin)

    # --- the domain --------------------------------------------------------------------------------------------

    def unary(self, kind: OpKind, a: TensorGrid) -> TensorGrid:
        """Implement ``Domain.unary``; 1 / x is a quotient, and tanh(x) is 1 - 2 / (1 + exp(2 x))."""
        if kind is OpKind.RECIPROCAL:
            return self.binary(OpKind.DIV, self.offset(self.scale(a, Fraction(0)), Fraction(1)), a)
        if kind is OpKind.TANH:
            below = self.offset(self.unary(OpKind.EXP, self.scale(a, Fraction(2))), Fraction(1))
            one = self.offset(self.scale(a, Fraction(0)), Fraction(1))
            return self.offset(self.scale(self.binary(OpKind.DIV, one, below), Fraction(-2)), Fraction(1))
        return self._each(("unary", kind.value), a, lambda x: self.tensors.unary(kind, x))

    def binary(self, kind: OpKind, a: TensorGrid, b: TensorGrid) -> TensorGrid:
        """Implement ``Domain.binary``; the smaller of two values is minus the larger of their negatives."""
        if kind is OpKind.MINIMUM:
            a, b = (self.scale(x, Fraction(-1)) for x in (a, b))
            return self.scale(self.binary(OpKind.MAXIMUM, a, b), Fraction(-1))
        kind = OpKind.MAX if kind is OpKind.MAXIMUM else kind
        a, b = self._fewer(a, b)
        a, b = self._aligned(a, b, range(len(a.lengths)))
        lengths = tuple(x if sum(x) > 1 else y for x, y in zip(a.lengths, b.lengths, strict=True))
        parts = tuple(self._both(kind, self._at(a, where), self._at(b, where)) for where in self._places(lengths))
        return TensorGrid(lengths, parts)

    def matmul(self, a: TensorGrid, b: TensorGrid, inner: int) -> TensorGrid:
        """Implement ``Domain.matmul``."""
        a, b = self._fewer(a, b)
        last = len(a.lengths) - 1
        a, b = self._aligned(a, b, range(last - 1))
        shared = common_segments(a.lengths[last], b.lengths[last - 1])
        a, b = self._refined(a, last, shared), self._refined(b, last - 1, shared)
        lead = tuple(x if sum(x) > 1 else y for x, y in zip(a.lengths[: last - 1], b.lengths[: last - 1], strict=True))
        lengths = (*lead, a.lengths[last - 1], b.lengths[last])
        parts = []
        for *before, i, j in self._places(lengths):
            terms = (
                self._step_result(
                    ("matmul",), self.tensors.matmul, self._at(a, (*before, i, k)), self._at(b, (*before, k, j))
                )
                for k in range(len(shared))
            )
            parts.append(reduce(partial(self._both, OpKind.ADD), terms))
        return TensorGrid(lengths, tuple(parts))

    def scale(self, a: TensorGrid, factor: Fraction) -> TensorGrid:
        """Implement ``Domain.scale``."""
        return self._each(("scale", factor), a, lambda x: self.tensors.scale(x, factor))

    def offset(self, a: TensorGrid, constant: Fraction) -> TensorGrid:
        """Implement ``Domain.offset``."""
        return self._each(("offset", constant), a, lambda x: self.tensors.offset(x, constant))

    def sum(self, a: TensorGrid, axis: int, extent: int, kept: int) -> TensorGrid:
        """Implement ``Domain.sum``."""
        a = a if kept == 1 else self._joined(a, axis)
        return self._reduced_by_pieces(OpKind.ADD, lambda x: self.tensors.fold(x, axis, kept), a, axis, kept)

    def _reduced_by_pieces(
        self, join: OpKind, make: Callable[[TensorTerm], TensorTerm], a: TensorGrid, axis: int, kept: int
    ) -> TensorGrid:
        """Return the value reduced along an axis to ``kept`` elements.

        Args:
            join: ADD or MAX: the operator that combines the reductions of the axis's segments.
            make: The reduction of one piece along the axis.
            a: The value.
            axis: The axis, whose segments are the pieces along it.
            kept: The number of elements that remain along the axis; 1 if it has several segments.
        """
        lengths = (*a.lengths[:axis], (kept,), *a.lengths[axis + 1 :])
        parts = []
        for where in self._places(lengths):
            places = ((*where[:axis], k, *where[axis + 1 :]) for k in range(len(a.lengths[axis])))
            terms = (self._step_result(("sum",), make, self._at(a, place)) for place in places)
            parts.append(reduce(partial(self._both, join), terms))
        return TensorGrid(lengths, tuple(parts))

    def ordered(self, kind: OpKind, operands: tuple[TensorGrid, ...], axis: int, extent: int) -> tuple[TensorGrid, ...]:
        """Implement ``Domain.ordered``."""
        a = operands[0]
        match kind:
            case OpKind.MAX:
                return (self._reduced_by_pieces(OpKind.MAX, lambda x: self.tensors.largest(x, axis), a, axis, 1),)
            case OpKind.RUNNING_MAX:
                if len(a.lengths[axis]) > 1:
                    a = self.ordered(OpKind.MAX, (a,), axis, extent)[0]
                a = self._joined(a, LOOP_AXIS)
                lengths = (*a.lengths[:axis], (1,), *a.lengths[axis + 1 :])
                rows = ((FactorKind.PMAX, "running_max"), (FactorKind.CARRY, "carry"))
                made = (self._each((name,), a, partial(self.tensors.running, axis=axis, kind=k)) for k, name in rows)
                return tuple(replace(value, lengths=lengths) for value in made)
            case OpKind.ACCUM_RESCALED_SUM:
                return (self._rescaled(a, operands[1]),)
            case _:
                raise AssertionError(f"{kind} needs no order")

    def _rescaled(self, x: TensorGrid, carry: TensorGrid) -> TensorGrid:
        x, carry = self._fewer(self._joined(x, LOOP_AXIS), self._joined(carry, LOOP_AXIS))
        x, carry = self._aligned(x, carry, range(len(x.lengths)))
        lengths = [a if sum(a) > 1 else b for a, b in zip(x.lengths, carry.lengths, strict=True)]
        lengths[LOOP_AXIS] = (1,)
        parts = tuple(
            self._step_result(("rescaled",), self.tensors.rescaled, self._at(x, where), self._at(carry, where))
            for where in self._places(lengths)
        )
        return TensorGrid(tuple(lengths), parts)

    def softmax(self, a: TensorGrid, axis: int, extent: int) -> TensorGrid:
        """Implement ``Domain.softmax``."""
        raise AssertionError("softmax is expanded by the walk")

    def reshape(self, a: TensorGrid, shape: Shape) -> TensorGrid:
        """Implement ``Domain.reshape``; of two reshapes the first is left out, if the indices nest without it."""
        source = a.source or a
        found = self._reshaped(source, shape)
        if a.source is not None and len(source.parts) == 1 and isinstance(found.parts[0], UndefinedPiece):
            found = self._reshaped(a, shape)
        return found if found is source else replace(found, source=source)

    def _reshaped(self, a: TensorGrid, shape: Shape) -> TensorGrid:
        if shape == a.shape:
            return a
        a, lengths = self._regrouped(a, shape)
        parts = []
        for part, where in zip(a.parts, self._places(lengths), strict=True):
            size = tuple(lengths[axis][k] for axis, k in enumerate(where))
            parts.append(self._step_result(("reshape",), lambda x, size=size: self.tensors.reshape(x, size), part))
        return TensorGrid(lengths, tuple(parts))

    def transpose(self, a: TensorGrid, perm: tuple[int, ...]) -> TensorGrid:
        """Implement ``Domain.transpose``."""
        lengths = tuple(a.lengths[i] for i in perm)
        back = [perm.index(i) for i in range(len(perm))]
        sources = (self._at(a, tuple(where[i] for i in back)) for where in self._places(lengths))
        turned = (
            self._step_result(("transpose",), lambda x: self.tensors.transpose(x, perm), part) for part in sources
        )
        return TensorGrid(lengths, tuple(turned))

    def concat(self, a: TensorGrid, b: TensorGrid, axis: int) -> TensorGrid:
        """Implement ``Domain.concat``."""
        a, b = self._fewer(a, b)
        a, b = self._aligned(a, b, [i for i in range(len(a.lengths)) if i != axis])
        lengths = (*a.lengths[:axis], (*a.lengths[axis], *b.lengths[axis]), *a.lengths[axis + 1 :])
        first = len(a.lengths[axis])
        parts = []
        for where in self._places(lengths):
            k = where[axis]
            source, at = (a, k) if k < first else (b, k - first)
            parts.append(self._at(source, (*where[:axis], at, *where[axis + 1 :])))
        return TensorGrid(lengths, tuple(parts))

    def slice(self, a: TensorGrid, axis: int, start: int, stop: int) -> TensorGrid:
        """Implement ``Domain.slice``."""
        ends = sorted({0, start, stop, sum(a.lengths[axis])})
        a = self._refined(a, axis, common_segments(a.lengths[axis], tuple(y - x for x, y in pairwise(ends))))
        starts = [0, *accumulate(a.lengths[axis])]
        kept = [k for k in range(len(a.lengths[axis])) if start <= starts[k] < stop]
        lengths = (*a.lengths[:axis], tuple(a.lengths[axis][k] for k in kept), *a.lengths[axis + 1 :])
        sources = ((*where[:axis], kept[where[axis]], *where[axis + 1 :]) for where in self._places(lengths))
        return TensorGrid(lengths, tuple(self._at(a, where) for where in sources))

    def repeat(self, a: TensorGrid, axis: int, times: int) -> TensorGrid:
        """Implement ``Domain.repeat``."""
        lengths = (*a.lengths[:axis], (times,), *a.lengths[axis + 1 :])
        return replace(self._each(("repeat",), a, lambda x: self.tensors.repeat(x, axis, times)), lengths=lengths)

    # --- pieces ------------------------------------------------------------------------------------------------

    def _each(self, body: Body, a: TensorGrid, make: Callable[[TensorTerm], TensorTerm]) -> TensorGrid:
        return TensorGrid(a.lengths, tuple(self._step_result(body, make, part) for part in a.parts))

    def _both(
        self, kind: OpKind, a: TensorTerm | UndefinedPiece, b: TensorTerm | UndefinedPiece
    ) -> TensorTerm | UndefinedPiece:
        return self._step_result(("binary", kind.value), partial(self.tensors.binary, kind), a, b)

    def _joined(self, a: TensorGrid, *axes: int) -> TensorGrid:
        """Return the value with one segment along these axes; joined pieces have no exact terms."""
        lengths = tuple((sum(x),) if axis in axes else x for axis, x in enumerate(a.lengths))
        if lengths == a.lengths:
            return a
        groups: dict[tuple[int, ...], list[TensorFacts]] = {}
        for where, part in zip(self._places(a.lengths), a.parts, strict=True):
            place = tuple(0 if axis in axes else k for axis, k in enumerate(where))
            groups.setdefault(place, []).append(part.fact)
        return TensorGrid(
            lengths, tuple(UndefinedPiece(combine_facts(groups[place])) for place in self._places(lengths))
        )

    def _fewer(self, a: TensorGrid, b: TensorGrid) -> tuple[TensorGrid, TensorGrid]:
        """Return two operands, joined if their common cut could exceed the checker's limit of pieces."""
        if len(a.parts) * (len(b.parts) if a.lengths != b.lengths else 2) <= MAX_PIECES:
            return a, b
        return self._joined(a, *range(len(a.lengths))), self._joined(b, *range(len(b.lengths)))

    @staticmethod
    def _places(lengths: Sequence[Lengths]) -> Iterator[tuple[int, ...]]:
        return product(*(range(len(segments)) for segments in lengths))

    @staticmethod
    def _at(a: TensorGrid, where: Sequence[int]) -> TensorTerm | UndefinedPiece:
        """Return the piece at a place; an axis of one segment broadcasts."""
        number = 0
        for k, segments in zip(where, a.lengths, strict=True):
            number = number * len(segments) + (k if len(segments) > 1 else 0)
        return a.parts[number]

    def _aligned(self, a: TensorGrid, b: TensorGrid, axes: Sequence[int]) -> tuple[TensorGrid, TensorGrid]:
        """Return both operands cut to common segments along axes, except where one has extent 1."""
        for axis in axes:
            x, y = a.lengths[axis], b.lengths[axis]
            if x != y and sum(x) > 1 and sum(y) > 1:
                segments = common_segments(x, y)
                a, b = self._refined(a, axis, segments), self._refined(b, axis, segments)
        return a, b

    def _refined(self, a: TensorGrid, axis: int, segments: Lengths) -> TensorGrid:
        """Return a value with finer segments along an axis."""
        if a.lengths[axis] == segments:
            return a
        lengths = (*a.lengths[:axis], segments, *a.lengths[axis + 1 :])
        ends = list(accumulate(a.lengths[axis]))
        starts = [0, *accumulate(segments)]
        parts = []
        for where in self._places(lengths):
            start, length = starts[where[axis]], segments[where[axis]]
            source = next(i for i, end in enumerate(ends) if start < end)
            piece = self._at(a, (*where[:axis], source, *where[axis + 1 :]))
            offset = start - (ends[source - 1] if source else 0)
            cut = partial(self.tensors.slice, axis=axis, start=offset, length=length)
            parts.append(self._step_result(("slice",), cut, piece))
        return TensorGrid(lengths, tuple(parts))

    def compared(
        self, a: TensorGrid, b: TensorGrid
    ) -> list[tuple[TensorTerm | UndefinedPiece, TensorTerm | UndefinedPiece]]:
        """Return pairs of pieces of two values of one shape; unequal pieces get the digits of outputs."""
        for axis in range(len(a.lengths)):
            segments = common_segments(a.lengths[axis], b.lengths[axis])
            a, b = self._refined(a, axis, segments), self._refined(b, axis, segments)
        final = partial(self._step_result, ("rename",), self.tensors.final)
        pairs = zip(a.parts, b.parts, strict=True)
        return [(x, y) if x == y else (final(x), final(y)) for x, y in pairs]

    def _regrouped(self, a: TensorGrid, shape: Shape) -> tuple[TensorGrid, tuple[Lengths, ...]]:
        """Return a value and its segments after a reshape: a divided axis must stay the outermost one of its group.

        If it does not, or if a segment ends inside an element of the outermost new axis, the axis is joined.
        """
        lengths: list[Lengths] = [(n,) for n in shape]
        for olds, news in _groups(a.shape, shape):
            inner = [axis for axis in olds if a.shape[axis] > 1]
            for axis in inner:
                if len(a.lengths[axis]) == 1:
                    continue
                first = next(i for i in news if shape[i] > 1)
                tail, rest = prod(shape[i] for i in news if i > first), prod(a.shape[i] for i in inner[1:])
                if axis != inner[0] or any(n * rest % tail for n in a.lengths[axis]):
                    a = self._joined(a, axis)
                else:
                    lengths[first] = tuple(n * rest // tail for n in a.lengths[axis])
        return a, tuple(lengths)


def _is_function(pairs: Sequence[tuple[TensorTerm, TensorTerm]]) -> bool:
    """Return whether equal first tensors have one and the same second one, which a proof puts in wherever they are."""
    seconds: dict[object, int] = {}
    return all(seconds.setdefault((x.strings, x.element), y.step) == y.step for x, y in pairs)


def _tensor(shape: Shape) -> DTensor:
    return DTensor(shape, DType.FLOAT32)


def _groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield minimal groups of axes of two shapes that hold the same elements."""
    i = j = 0
    while i < len(old) and j < len(new):
        olds, news, left, right = [i], [j], old[i], new[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                olds.append(i)
                left, i = left * old[i], i + 1
            else:
                news.append(j)
                right, j = right * new[j], j + 1
        yield olds, news
