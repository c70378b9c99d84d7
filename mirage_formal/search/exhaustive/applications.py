"""Operator applications of the exhaustive enumeration: the attributes to try, and the results.

The abstract expression of a result comes from the rules that every other domain uses (semantics/operator_semantics.py),
applied to the operands' own expressions, so no expression is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Final

from mirage_formal.graph.graph import KernelGraph, Op, operators
from mirage_formal.graph.ops import FUNCTIONS, NO_ATTRS, SPECS, VALUED, Attrs, BlockContext, OpKind
from mirage_formal.graph.type_rules import result_dtype
from mirage_formal.graph.types import Dim3, DimMap, DType, Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.logic.terms import Expr, var
from mirage_formal.prove.abstract.abstract_domain import Abstract
from mirage_formal.records import LevelName
from mirage_formal.search.engine_interface import SearchCounters
from mirage_formal.search.epilogue_inputs import epilogue_inputs
from mirage_formal.search.exhaustive.pruner import Pruner
from mirage_formal.semantics.operator_semantics import RULES, AxisValue, LevelOperators
from mirage_formal.semantics.value_domain import LOOP_AXIS

_LAST: Final = frozenset({OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST})


@dataclass(frozen=True, slots=True, eq=False)
class EnumeratedTensor:
    """A tensor of the enumeration; equal tensors are one object (see Tensors), so that memos are cheap.

    Attributes:
        term: Its abstract expression (one term, for nothing here concatenates).
        lead: Its extents along the grid axes and the loop, 1 where it does not depend on them; empty at kernel level.
        shape: Its shape; in a block, the shape of one block's copy in one iteration.
        mask: Whether its elements are booleans.
    """

    term: Expr
    lead: Shape
    shape: Shape
    mask: bool


class TensorTable:
    """Interning table of tensors: equal tensors are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Expr, Shape, Shape, bool], EnumeratedTensor] = {}

    def tensor(self, term: Expr, lead: Shape, shape: Shape, mask: bool) -> EnumeratedTensor:
        """Return the tensor with these fields."""
        key = (term, lead, shape, mask)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = EnumeratedTensor(*key)
        return found

    def loaded(
        self, source: EnumeratedTensor, grid: Dim3, imap: DimMap, loop: int, fmap: int | None
    ) -> EnumeratedTensor:
        """Return the result of an input iterator: the tile of one block and iteration, with the axes it depends on."""
        tile, lead = list(source.shape), [1, 1, 1, 1]
        for axis, (extent, dim) in enumerate(zip((*grid, loop), (*imap, fmap), strict=True)):
            if dim is not None:
                tile[dim] //= extent
                lead[axis] = extent
        return self.tensor(source.term, tuple(lead), tuple(tile), source.mask)

    def saved(self, source: EnumeratedTensor, grid: Dim3, omap: DimMap) -> EnumeratedTensor:
        """Return the result of an output saver: the concatenated results of all blocks; the expression stays."""
        whole = list(source.shape)
        for extent, dim in zip(grid, omap, strict=True):
            if dim is not None:
                whole[dim] *= extent
        return self.tensor(source.term, (), tuple(whole), source.mask)


#: Operators that a search tries only if the program applies them: elementwise functions of one operand (a square is a
#: product), maximum and minimum, comparisons and readers of masks, the quotient that is 0 where its divisor is 0, and
#: the layer norm.
_TRIED: Final = (
    FUNCTIONS - {OpKind.SQUARE}
    | VALUED
    | {OpKind.SHIFT, OpKind.LAYER_NORM, OpKind.LOGICAL_NOT, OpKind.DIV_NO_NAN, OpKind.CAST}
)
_NORMS: Final = (OpKind.RMS_NORM, OpKind.LAYER_NORM)


@dataclass(frozen=True, slots=True)
class ProgramAttributes:
    """Attribute values and elementwise functions that a program uses; the search tries no others.

    Attributes:
        factors: Scale factors.
        shifts: Summands of shifts.
        eps: eps of norms; None for norms without.
        functions: Optional operators that the program applies.
        late: Expressions of the inputs that are carried behind a loop.
        values: Operators of ``VALUED``, each with the number in place of its last operand, or None.
        casts: Element types that masks are cast to.
    """

    factors: tuple[Fraction, ...]
    shifts: tuple[Fraction, ...]
    eps: tuple[Fraction | None, ...]
    functions: frozenset[OpKind]
    late: frozenset[Expr]
    values: tuple[tuple[OpKind, Fraction | None], ...]
    casts: tuple[DType, ...]

    def usable(self, kinds: tuple[OpKind, ...]) -> tuple[OpKind, ...]:
        """Return the operators of a list that a search for this program tries."""
        return tuple(kind for kind in kinds if kind not in _TRIED or kind in self.functions)


def program_attributes(program: KernelGraph) -> ProgramAttributes:
    """Return the scale factors, shifts, eps and functions of a program; eps is None for a norm without eps.

    A softmax is decomposed into exp, sum and div; a norm stays one operator, so it contributes no sqrt.
    """
    ops = list(operators(program))
    factors = tuple(dict.fromkeys(op.attrs.factor for op in ops if op.attrs.factor is not None))
    eps = tuple(dict.fromkeys(op.attrs.eps for op in ops if op.kind in _NORMS))
    kinds = {op.kind for op in ops}
    functions = (kinds & _TRIED) | ({OpKind.EXP} if OpKind.SOFTMAX in kinds else set())
    shifts = tuple(dict.fromkeys(op.attrs.shift for op in ops if op.attrs.shift is not None))
    late = frozenset(var(program.inputs[number].name) for number in epilogue_inputs(program))
    values = tuple(dict.fromkeys((op.kind, op.attrs.value) for op in ops if op.kind in VALUED))
    types = kernel_types(program)
    casts = tuple(
        dict.fromkeys(
            op.attrs.dtype
            for op in program.ops
            if isinstance(op, Op) and op.attrs.dtype is not None and not types[op.operands[0]].dtype.floating
        )
    )
    return ProgramAttributes(factors, shifts, eps or (None,), frozenset(functions), late, values, casts)


class TermTable:
    """Memo of the abstract expressions of results that the ``Pruner`` keeps; it serves all configurations.

    A term depends on its operands' terms alone if the operator is elementwise, and otherwise on their shapes and on
    whether they depend on the loop; grid axes never enter it. Of terms with one normal form the first one stands for
    all: the judge decides by normal forms, which are made of the operands' normal forms, so it cannot tell them apart.
    """

    def __init__(self, judge: Pruner) -> None:
        self._judge = judge
        self._first: dict[int, Expr] = {}
        self._known: dict[tuple[object, ...], Expr | None] = {}

    def term(
        self, kind: OpKind, attrs: Attrs, operands: tuple[EnumeratedTensor, ...], context: BlockContext | None
    ) -> Expr | None:
        """Return the term of an operator's result, or None if the judge refutes it.

        Sound: None only on the judge's refutation.
        """
        terms = tuple(x.term for x in operands)
        if SPECS[kind].elementwise:
            key: tuple[object, ...] = (kind, attrs, terms)
        else:
            key = (kind, attrs, terms, context, *(x.shape for x in operands), *(x.lead[LOOP_AXIS:] for x in operands))
        if key not in self._known:
            term = self._compute(kind, attrs, operands, context)
            self._known[key] = self._representative(term) if self._judge.keeps(term) else None
        return self._known[key]

    def _representative(self, term: Expr) -> Expr:
        form = self._judge.form(term)
        return term if form is None else self._first.setdefault(form, term)

    def _compute(
        self, kind: OpKind, attrs: Attrs, operands: tuple[EnumeratedTensor, ...], context: BlockContext | None
    ) -> Expr:
        values = []
        for x in operands:
            lead = (1, 1, 1, *x.lead[LOOP_AXIS:]) if x.lead else ()
            values.append(AxisValue(Abstract((*lead, *x.shape), ((1, x.term),)), lead, x.shape))
        (result,) = RULES[kind](LevelOperators(self._judge.domain, context), attrs, tuple(values))
        term: Expr = result.value.term
        return term


class OperatorApplier:
    """Memoised application of the operators of one level, in one block context, to tensors.

    Sound: an application is refused only if its shapes or element types do not fit, a rule of every space forbids it
    (see search/bounds.py), or the judge refutes its abstract expression.
    """

    def __init__(
        self,
        kinds: tuple[OpKind, ...],
        fixed: ProgramAttributes,
        terms: TermTable,
        tensors: TensorTable,
        tally: SearchCounters,
        context: BlockContext | None = None,
    ) -> None:
        self._has_square = OpKind.SQUARE in kinds
        kinds = fixed.usable(kinds)
        plain = [kind for kind in kinds if SPECS[kind].min_arity == 1]
        self._maps = [kind for kind in plain if not SPECS[kind].accumulator]
        self._accumulators = [kind for kind in plain if SPECS[kind].accumulator and kind is not OpKind.ACCUM_MAX]
        self._carriers = [kind for kind in plain if kind is OpKind.ACCUM_MAX]
        self._valued = tuple((kind, value) for kind, value in fixed.values if kind in kinds)
        self._pairs = [(kind, NO_ATTRS) for kind in kinds if SPECS[kind].min_arity == 2 and kind not in VALUED]
        self._pairs += [
            (kind, Attrs(value=value) if value is not None else NO_ATTRS)
            for kind, value in self._valued
            if (kind is OpKind.SELECT) != (value is None)
        ]
        self._threes = (OpKind.SELECT, None) in self._valued
        self._fixed = fixed
        self._terms = terms
        self._tensors = tensors
        self._tally = tally
        self._context = context
        self._level: LevelName = "kernel" if context is None else "block"
        self._of_one: dict[tuple[EnumeratedTensor, bool, bool], list[tuple[OpKind, Attrs, EnumeratedTensor]]] = {}
        self._of_two: dict[
            tuple[EnumeratedTensor, EnumeratedTensor, bool], list[tuple[OpKind, Attrs, bool, EnumeratedTensor]]
        ] = {}

    @property
    def joins(self) -> int:
        """Return the most by which one operator can lower the number of unread tensors."""
        return 2 if self._threes else 1

    def choices(
        self, newest: int, tensors: list[EnumeratedTensor], behind: int, read: int
    ) -> Iterator[tuple[Op, EnumeratedTensor]]:
        """Yield every operator whose largest operand is the tensor numbered ``newest``, in canonical order.

        Order and completeness: choices are ordered by largest operand, then by this iterator. An operator that
        becomes possible only with a new tensor has that tensor as its largest operand, so taking choices in strictly
        increasing order reaches every graph, and in one order only. (Comparing operand tuples from their first element
        on would not: mul(0, 2) after 2 = exp(1) would be smaller than its predecessor.)

        Args:
            newest: Number of the tensor.
            tensors: All tensors so far.
            behind: Set of the tensors behind an accumulator.
            read: Number of input iterators, whose tensors come first.
        """
        a, stage = tensors[newest], behind >> newest & 1
        for kind, attrs, result in self._unary(a, not stage, newest < read):
            yield Op(kind, (newest,), attrs), result
        for other in range(newest + 1):
            if behind >> other & 1 == stage:
                for kind, attrs, swapped, result in self._binary(tensors[other], a, other == newest):
                    yield Op(kind, (newest, other) if swapped else (other, newest), attrs), result
        if self._threes:
            yield from self._selections(newest, tensors, [n for n in range(newest + 1) if behind >> n & 1 == stage])

    def _selections(
        self, newest: int, tensors: list[EnumeratedTensor], usable: list[int]
    ) -> Iterator[tuple[Op, EnumeratedTensor]]:
        """Yield selections from three tensors of one stage that include the one numbered ``newest``."""
        masks = [n for n in usable if tensors[n].mask]
        values = [n for n in usable if not tensors[n].mask]
        for numbers in product(masks, values, values):
            # A selection between a value and itself is that value.
            if newest in numbers and numbers[1] != numbers[2]:
                for result in self._apply(OpKind.SELECT, NO_ATTRS, tuple(tensors[n] for n in numbers)):
                    yield Op(OpKind.SELECT, numbers), result

    def _unary(self, a: EnumeratedTensor, inside: bool, read: bool) -> list[tuple[OpKind, Attrs, EnumeratedTensor]]:
        found = self._of_one.get((a, inside, read))
        if found is None:
            kinds = list(self._maps)
            if inside:
                # A loop-invariant input is carried behind the loop as it was read, and not summed.
                late = self._carriers if read and a.term in self._fixed.late else []
                kinds += self._accumulators if self._closes(a) else late
                if a.mask and self._context is not None and self._context.forloop_range == 1:
                    # A mask has no sum; over one iteration the maximum is the mask itself.
                    kinds += [OpKind.ACCUM_MAX] if OpKind.ACCUM_SUM in self._accumulators else self._carriers
            each = ((kind, attrs) for kind in kinds for attrs in self._attrs(kind, a.shape))
            found = [(kind, attrs, result) for kind, attrs in each for result in self._apply(kind, attrs, (a,))]
            self._of_one[a, inside, read] = found
        return found

    def _binary(
        self, low: EnumeratedTensor, high: EnumeratedTensor, same: bool
    ) -> list[tuple[OpKind, Attrs, bool, EnumeratedTensor]]:
        """Return the results of both operand orders where they matter; square stands for mul(x, x)."""
        found = self._of_two.get((low, high, same))
        if found is None:
            found = self._of_two[low, high, same] = []
            for kind, attrs in self._pairs:
                if same and kind is OpKind.MUL and self._has_square:
                    continue
                found += [(kind, attrs, False, result) for result in self._apply(kind, attrs, (low, high))]
                if not same and not SPECS[kind].commutative:
                    found += [(kind, attrs, True, result) for result in self._apply(kind, attrs, (high, low))]
        return found

    def _closes(self, a: EnumeratedTensor) -> bool:
        """Return whether an accumulator may take this tensor: it depends on the loop, or the loop runs once."""
        return self._context is not None and (self._context.forloop_range == 1 or a.lead[LOOP_AXIS] > 1)

    def _attrs(self, kind: OpKind, shape: Shape) -> Iterator[Attrs]:
        if kind is OpKind.SCALE:
            yield from (Attrs(factor=factor) for factor in self._fixed.factors)
        elif kind is OpKind.SHIFT:
            yield from (Attrs(shift=shift) for shift in self._fixed.shifts)
        elif kind is OpKind.CAST:
            yield from (Attrs(dtype=dtype) for dtype in self._fixed.casts)
        elif kind in VALUED:
            yield from (Attrs(value=value) for other, value in self._valued if other is kind and value is not None)
        elif "dim" in SPECS[kind].required:
            epsilons = self._fixed.eps if kind in _NORMS else (None,)
            yield from (Attrs(dim=dim, eps=eps) for dim, extent in enumerate(shape) if extent > 1 for eps in epsilons)
        elif kind not in _LAST or shape[-1] > 1:
            yield NO_ATTRS

    def _apply(self, kind: OpKind, attrs: Attrs, operands: tuple[EnumeratedTensor, ...]) -> Iterator[EnumeratedTensor]:
        shapes = SPECS[kind].shape(attrs, tuple(x.shape for x in operands), self._context)
        dtype = result_dtype(kind, attrs, tuple(DType.BOOL if x.mask else DType.FLOAT16 for x in operands))
        number = kind is OpKind.CAST and not operands[0].mask
        if isinstance(shapes, str) or not isinstance(dtype, DType) or number:
            self._tally.prune("shape", self._level)
            return
        term = self._terms.term(kind, attrs, operands, self._context)
        if term is None:
            self._tally.prune("expression", self._level)
            return
        lead = operands[0].lead if len(operands) == 1 else tuple(map(max, *(x.lead for x in operands)))
        if SPECS[kind].accumulator:
            lead = (*lead[:LOOP_AXIS], 1)
        yield self._tensors.tensor(term, lead, shapes[0], not dtype.floating)
