"""Saturation of a fused kernel's block graph: all tensors that block operators compute from its inputs, pruned.

A class is (normal form, dims as part lists, behind an accumulator or not); a producer is an operator with the classes
of its operands. They correspond to e-classes and e-nodes of an e-graph. Classes merge by equal normal forms only, not
by rewriting. A class is kept only if its form is part of the target, the normal form of the program's output. Extents
never occur: a reduction binds parts, and "all parts bound" stands for "lengths match".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Final, NewType

from mirage_formal.graph.ops import COMPARISONS, EXTREMES, NO_ATTRS, SPECS, Attrs, OpKind
from mirage_formal.logic.axioms import load_axioms
from mirage_formal.logic.terms import Expr
from mirage_formal.prove.abstract.pruning_audit import PruningDecision
from mirage_formal.prove.abstract.refutation import PruningRefuter
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.algebra.abstract_expressions import FormExpressions
from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.operator_normal_forms import (
    binary_form,
    function_form,
    layer_norm,
    rms_norm,
    selection_branch_form,
    selection_form,
    shift_form,
    valued_form,
)
from mirage_formal.search.guided.algebra.part_masks import NO_PARTS, Frame, PartMask, mask
from mirage_formal.search.guided.algebra.part_numbering import Axis, Parts, part_axis
from mirage_formal.search.guided.axes import FUNCTIONS, ProgramAxes
from mirage_formal.search.guided.index_renaming import Dims, IndexRenaming
from mirage_formal.search.guided.symbolic_tiling import SymbolicTiling

#: Number of a class in a closure; those below ``Closure.inputs`` are the block's inputs, in order.
ClassId = NewType("ClassId", int)

#: (normal form, dims of a block's tile, whether behind an accumulator).
BlockClass = tuple[Form, Dims, bool]

#: Entry of ``Closure.index`` for a class that was pruned.
PRUNED: Final = ClassId(-1)


@dataclass(frozen=True, slots=True)
class Producer:
    """Operator application that computes a class (an e-node): an operator kind and the classes of its operands."""

    kind: OpKind
    operands: tuple[ClassId, ...]
    attrs: Attrs = NO_ATTRS


@dataclass(frozen=True, slots=True)
class _Context:
    """Parameters of one kernel's saturation besides its inputs.

    Attributes:
        frame: The parts of each axis inside the kernel.
        loop: Masks of the loop's parts.
        same: Groups of masks; the parts in a group are one index of the kernel under several names.
        target: Normal form of the program's output.
        views: Renames axes to their twins; None where no axis has twins.
        loose: True if the loop iterates over several axes of the program, so that terms are summed over different axes.
        carried: Inputs that may be copied unchanged behind the loop.
    """

    frame: Frame
    loop: tuple[PartMask, ...]
    same: tuple[tuple[PartMask, ...], ...]
    target: Form
    views: IndexRenaming | None
    loose: bool
    carried: frozenset[ClassId]


@dataclass(slots=True)
class Closure:
    """All classes reachable from a block's inputs within the operator limit.

    Attributes:
        inputs: Number of input classes; they come first.
        classes: The classes.
        index: Number of each class that was found; PRUNED for a pruned class.
        producers: For each class, every operator application found that computes it.
        tried: Number of operator applications tried.
        branches: For each class that is a boolean mask, the classes that a selection from two tensors may take by it.
        diagonals: Number of classes that were pruned because a term has one index of the kernel under two names.
    """

    inputs: int
    classes: list[BlockClass]
    index: dict[BlockClass, ClassId]
    producers: list[list[Producer]]
    branches: dict[ClassId, _Branches] = field(default_factory=dict)
    tried: int = 0
    diagonals: int = 0

    @property
    def dropped(self) -> dict[str, int]:
        """Return the number of pruned classes by reason; each class counts once."""
        counts = {
            "diagonal": self.diagonals,
            "expression": len(self.index) - len(self.classes) - self.diagonals,
        }
        return {reason: count for reason, count in counts.items() if count}


_COMPARED: Final = tuple(sorted(COMPARISONS))
_PAIRS: Final = (
    *(OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.DIV_NO_NAN),
    *sorted(EXTREMES),
    *_COMPARED,
)
#: Operators with two operands that are tried only if the program itself uses them.
_RARE: Final = EXTREMES | COMPARISONS | {OpKind.SUB, OpKind.DIV_NO_NAN}
#: Accumulators that can precede an output saver.
_INTO_STORES: Final = frozenset({OpKind.ACCUM_SUM, OpKind.ACCUM_MAX})
#: Operators with two operands that also take two boolean masks.
_OF_TWO_MASKS: Final = frozenset({OpKind.MUL, OpKind.MAXIMUM, OpKind.EQ})
#: Candidate classes for both branches of a selection by a mask: where the mask is 1, and where it is 0.
_Branches = tuple[list[ClassId], list[ClassId]]


class Saturator:
    """Builder of closures for one program, operator list and algebra.

    Sound: a class is dropped only if no monomial context turns it into a part of the target (Algebra.within); every
    operator's operands then satisfy the same test, so no cancellation-free candidate is lost. Under added axioms that
    are no laws, and where axioms are switched off, PruningRefuter has the last word. A class with a term that
    depends on the loop or on a grid axis through two indices is dropped as well: it is a diagonal of their product, and
    the indices of the target are independent.
    """

    def __init__(
        self, axes: ProgramAxes, algebra: Algebra, block_ops: frozenset[OpKind], options: SearchOptions
    ) -> None:
        self._axes = axes
        self._algebra = algebra
        self._ops = block_ops
        self._prune = options.prune
        self._sample = options.sample
        self._refuter = PruningRefuter(options.choice, axes.program)
        self._independent = "diagonal" not in options.off
        kinds = axes.kinds
        self._functions = sorted(k for k in FUNCTIONS & axes.functions if k in block_ops)
        self._constants = sorted(axes.constants) if OpKind.SCALE in block_ops else []
        self._shifts = sorted(axes.shifts) if OpKind.SHIFT in block_ops else []
        self._pairs = [k for k in _PAIRS if k in block_ops and (k not in _RARE or k in kinds)]
        self._masked = bool(axes.comparisons) or any(not i.tensor.dtype.floating for i in axes.program.inputs)
        self._of_two_masks = [k for k in self._pairs if k in _OF_TWO_MASKS and k in kinds]
        self._negated = OpKind.LOGICAL_NOT in block_ops & axes.functions
        self._casts = sorted(axes.casts) if OpKind.CAST in block_ops else []
        self._numbers = sorted((k, v) for k, v in axes.numbers if k in block_ops)
        self._selections = sorted(v for v in axes.selections if v is not None) if OpKind.SELECT in block_ops else []
        self._of_three = OpKind.SELECT in block_ops and None in axes.selections
        self._norms: list[tuple[OpKind, Fraction | None]] = sorted(
            ((k, e) for k, e in axes.norms if k in block_ops), key=lambda n: (n[0], n[1] is not None, n[1] or 0)
        )
        self._plain_rms = (OpKind.RMS_NORM, None) in axes.norms

    def close(
        self,
        inputs: list[tuple[Form, Dims]],
        structure: SymbolicTiling,
        frame: Frame,
        target: Form,
        depth: int,
        carried: frozenset[ClassId] = frozenset(),
    ) -> Closure:
        """Return the closure of a block's input classes under the block operators.

        Args:
            inputs: Form and block dims of each input, all different.
            structure: The kernel's split of its leaves.
            frame: The frame inside the kernel: for each axis its parts there.
            target: Form of the program's output.
            depth: Most operators between an input and a class.
            carried: Inputs that may be copied behind the loop if the loop does not change them.
        """
        names = structure.names
        views = IndexRenaming(self._algebra, names.peers) if names.twins > 1 else None
        several = len(structure.loops) > 1
        context = _Context(frame, structure.loop_parts, structure.same, target, views, several, carried)
        out = Closure(len(inputs), [], {}, [])
        for form, dims in inputs:
            out.index[form, dims, False] = ClassId(len(out.classes))
            out.classes.append((form, dims, False))
            out.producers.append([])
        done, level = 0, 0
        while done < len(out.classes) and level < depth:
            level += 1
            end = len(out.classes)
            for number in range(done, end):
                self._extend(out, ClassId(number), context)
            done = end
        return out

    def _extend(self, out: Closure, number: ClassId, context: _Context) -> None:
        for cls, producer in self._unary(out, number, context):
            self._put(out, cls, producer, context)
        for other in range(number + 1):
            for cls, producer in self._binary(out, number, ClassId(other), context):
                self._put(out, cls, producer, context)
        if self._of_three:
            for cls, producer in self._selection(out, number, context):
                self._put(out, cls, producer, context)

    def _put(self, out: Closure, cls: BlockClass, producer: Producer, context: _Context) -> None:
        out.tried += 1
        if context.views is not None:
            # If a grid index has the canonical name already, the class is a diagonal and keeps its present names.
            with suppress(ValueError):
                cls = (*context.views.canonical(cls[0], cls[1]), cls[2])
        number = out.index.get(cls)
        if number is None:
            if self._prune:
                kept = self.keeps(cls[0], context.target, context.frame, loose=context.loose)
                if self._sample is not None:
                    self._sample.offer(kept, partial(self._decision, kept, cls[0], context))
                if not kept:
                    out.index[cls] = PRUNED
                    return
            if context.same and self._independent and self._diagonal(cls[0], context.same):
                out.index[cls] = PRUNED
                out.diagonals += 1
                return
            number = out.index[cls] = ClassId(len(out.classes))
            out.classes.append(cls)
            out.producers.append([])
        if number != PRUNED:
            out.producers[number].append(producer)

    def _decision(self, kept: bool, form: Form, context: _Context) -> PruningDecision:
        """Return a decision as abstract expressions."""
        expression, target = self._expressions(context.frame, form, context.target)
        return PruningDecision(kept, expression, target, indexed=True)

    def _expressions(self, frame: Frame, *forms: Form) -> tuple[Expr, ...]:
        """Return the abstract expressions of forms in one frame; the first ones name the extents."""
        expression = FormExpressions(self._algebra, frame, load_axioms().functions).expression
        return tuple(expression(form) for form in forms)

    def keeps(self, form: Form, target: Form, frame: Frame, *, loose: bool = False) -> bool:
        """Return whether a tensor may be part of a candidate.

        Args:
            form: Its form.
            target: Form of the program's output.
            frame: The parts of each axis where the form is used.
            loose: See ``Algebra.within``.
        """
        kept = self._algebra.within(form, target, loose=loose)
        if self._refuter.exact:
            return kept

        def claim() -> tuple[Expr, tuple[Expr, ...]]:
            whole, expression = self._expressions(frame, target, form)
            return expression, (whole,)

        return self._refuter.keeps(kept, claim)

    def _diagonal(self, form: Form, same: tuple[tuple[PartMask, ...], ...]) -> bool:
        """Return whether a term depends on one index of the kernel under two names."""
        algebra = self._algebra
        frees = [algebra.monomial_free[monomial] for monomial, _ in algebra.polynomials[form]]
        return any(sum(part & free != 0 for part in group) > 1 for free in frees for group in same)

    def _unary(self, out: Closure, number: ClassId, context: _Context) -> Iterator[tuple[BlockClass, Producer]]:
        algebra, frame = self._algebra, context.frame
        form, dims, after = out.classes[number]
        if self._masked and algebra.is_mask(form):
            yield from self._of_mask(out, number, context)
            return
        for kind in self._functions:
            yield (function_form(algebra, kind, form), dims, after), Producer(kind, (number,))
        for kind, value in self._numbers:
            yield (
                (valued_form(algebra, kind, form, value), dims, after),
                Producer(kind, (number,), Attrs(value=value)),
            )
        if OpKind.SQUARE in self._ops:
            squared = algebra.mul(form, form)
            if squared is not None:
                yield (squared, dims, after), Producer(OpKind.SQUARE, (number,))
        for value in self._constants:
            scaled = algebra.mul(algebra.constant(value), form)
            if scaled is not None:
                yield (scaled, dims, after), Producer(OpKind.SCALE, (number,), Attrs(factor=value))
        for value in self._shifts:
            yield (shift_form(algebra, form, value), dims, after), Producer(OpKind.SHIFT, (number,), Attrs(shift=value))
        for dim, parts in enumerate(dims):
            if parts:
                yield from self._reductions(out, number, dim, mask(parts), frame)
        if not after:
            yield from self._accumulators(form, dims, number, context)

    def _of_mask(self, out: Closure, number: ClassId, context: _Context) -> Iterator[tuple[BlockClass, Producer]]:
        """Yield the results of one operator on a boolean mask; only ``accum_max`` carries a mask behind the loop."""
        form, dims, after = out.classes[number]
        if self._negated:
            yield (
                (function_form(self._algebra, OpKind.LOGICAL_NOT, form), dims, after),
                Producer(OpKind.LOGICAL_NOT, (number,)),
            )
        for dtype in self._casts:
            cast = function_form(self._algebra, OpKind.CAST, form)
            yield (cast, dims, after), Producer(OpKind.CAST, (number,), Attrs(dtype=dtype))
        loop = any(self._algebra.free[form] & part for part in context.loop)
        if after or loop:
            return
        carries = OpKind.ACCUM_MAX in self._ops and number in context.carried
        if carries or (not context.loop and not self._ops.isdisjoint(_INTO_STORES)):
            yield (form, dims, True), Producer(OpKind.ACCUM_MAX, (number,))

    def _reductions(
        self, out: Closure, number: ClassId, dim: int, parts: PartMask, frame: Frame
    ) -> Iterator[tuple[BlockClass, Producer]]:
        algebra = self._algebra
        form, dims, after = out.classes[number]
        # The program's norms run over whole axes, so no other norm is part of the target.
        norms = self._norms if not self._prune or _are_all_parts(dims[dim], parts, frame) else []
        for kind, eps in norms:
            norm = rms_norm if kind is OpKind.RMS_NORM else layer_norm
            normed = norm(algebra, parts, form, eps, frame)
            if normed is not None:
                yield (normed, dims, after), Producer(kind, (number,), Attrs(dim=dim, eps=eps))
        if OpKind.SUM in self._ops:
            total = algebra.sum(parts, form, frame)
            if total is not None:
                yield (total, _drop_dim(dims, dim), after), Producer(OpKind.SUM, (number,), Attrs(dim=dim))
        if OpKind.SUM_TO_DIMX in self._ops:
            for cut in range(1, len(dims[dim])):
                folded = algebra.sum(mask(dims[dim][:cut]), form, frame)
                if folded is not None:
                    kept = (*dims[:dim], dims[dim][cut:], *dims[dim + 1 :])
                    yield (folded, kept, after), Producer(OpKind.SUM_TO_DIMX, (number,), Attrs(dim=dim))
        if OpKind.MEAN in self._ops:
            average = self._mean(form, parts, frame)
            if average is not None:
                yield (average, _drop_dim(dims, dim), after), Producer(OpKind.MEAN, (number,), Attrs(dim=dim))

    def _mean(self, form: Form, parts: PartMask, frame: Frame) -> Form | None:
        """Return the form of a mean over a whole axis; None unless the program uses the axis' 1/n as a factor."""
        for axis, full in enumerate(frame):
            value = Fraction(1, self._axes.extents[axis % self._algebra.width])
            if full == parts and value in self._axes.constants:
                total = self._algebra.sum(parts, form, frame)
                return None if total is None else self._algebra.mul(self._algebra.constant(value), total)
        return None

    def _accumulators(
        self, form: Form, dims: Dims, number: ClassId, context: _Context
    ) -> Iterator[tuple[BlockClass, Producer]]:
        algebra, ops, frame, loop = self._algebra, self._ops, context.frame, context.loop
        if loop and not any(algebra.free[form] & part for part in loop):
            # A loop-invariant tensor would be multiplied by the loop range; the largest of equal values is one of them.
            if number in context.carried and OpKind.ACCUM_MAX in ops:
                yield (form, dims, True), Producer(OpKind.ACCUM_MAX, (number,))
            return
        found: list[tuple[Form | None, Dims, OpKind]] = []
        last = mask(dims[-1])
        if OpKind.ACCUM_SUM in ops:
            found.append((algebra.sum(NO_PARTS, form, frame, loop), dims, OpKind.ACCUM_SUM))
        if last:
            short = _drop_dim(dims, len(dims) - 1)
            if OpKind.ACCUM_SUM_LAST in ops:
                found.append((algebra.sum(last, form, frame, loop), short, OpKind.ACCUM_SUM_LAST))
            for parts in [PartMask(last | part) for part in loop] or [last]:
                if OpKind.ACCUM_MEAN_LAST in ops:
                    found.append((self._mean(form, parts, frame), short, OpKind.ACCUM_MEAN_LAST))
                entire = not self._prune or _are_all_parts(dims[-1], parts, frame)
                if OpKind.ACCUM_RMS_LAST in ops and self._plain_rms and entire:
                    norm = algebra.root_mean_square(parts, form, None, frame)
                    found.append((norm, short, OpKind.ACCUM_RMS_LAST))
            if OpKind.ACCUM_SUM_TO_DIMX in ops:
                for cut in range(1, len(dims[-1])):
                    folded = algebra.sum(mask(dims[-1][:cut]), form, frame, loop)
                    found.append((folded, (*dims[:-1], dims[-1][cut:]), OpKind.ACCUM_SUM_TO_DIMX))
        for value, new_dims, kind in found:
            if value is not None:
                yield (value, new_dims, True), Producer(kind, (number,))

    def _binary(
        self, out: Closure, number: ClassId, other: ClassId, context: _Context
    ) -> Iterator[tuple[BlockClass, Producer]]:
        form, dims, after = out.classes[number]
        form2, dims2, after2 = out.classes[other]
        if after != after2 or len(dims) != len(dims2):
            return
        joined = _elementwise_operand(dims, form2, dims2, context.views)
        if joined is not None:
            yield from self._elementwise(number, other, form, *joined, after)
        if OpKind.MATMUL not in self._ops or len(dims) < 2 or any(dims[:-2]) or any(dims2[:-2]):
            return
        if self._masked and (self._algebra.is_mask(form) or self._algebra.is_mask(form2)):
            return
        yield from self._matmul((form, dims, number), (form2, dims2, other), after, context)
        if number != other:
            yield from self._matmul((form2, dims2, other), (form, dims, number), after, context)

    def _elementwise(
        self, a: ClassId, b: ClassId, form: Form, form2: Form, dims: Dims, after: bool
    ) -> Iterator[tuple[BlockClass, Producer]]:
        pairs = self._pairs
        if self._masked:
            masks = [self._algebra.is_mask(one) for one in (form, form2)]
            if any(masks) and not all(masks):
                (chooses, m), (other, x) = ((form, a), (form2, b)) if masks[0] else ((form2, b), (form, a))
                for number in self._selections:
                    chosen = selection_form(self._algebra, chooses, (other,), number)
                    yield (chosen, dims, after), Producer(OpKind.SELECT, (m, x), Attrs(value=number))
                return
            pairs = self._of_two_masks if all(masks) else pairs
        for kind in pairs:
            if a == b and (kind is OpKind.MUL or kind in EXTREMES):
                continue  # square is that operator, and an extreme of one value is the value
            value = binary_form(self._algebra, kind, form, form2)
            if value is not None:
                yield (value, dims, after), Producer(kind, (a, b))
            if a != b and not SPECS[kind].commutative:
                value = binary_form(self._algebra, kind, form2, form)
                if value is not None:
                    yield (value, dims, after), Producer(kind, (b, a))

    def _selection(self, out: Closure, number: ClassId, context: _Context) -> Iterator[tuple[BlockClass, Producer]]:
        """Yield the selections from two tensors whose mask or branch is the given class.

        Sound: a tensor selected by a mask at one place is tried at the other place only where the target has a
        selection of it there, by that mask; no other selection is part of the target.
        """
        algebra = self._algebra
        mine = algebra.is_mask(out.classes[number][0])
        if mine:
            out.branches[number] = ([], [])
        others = [ClassId(n) for n in range(number) if not algebra.is_mask(out.classes[n][0])] if mine else []
        for m in [number] if mine else list(out.branches):
            for x in others if mine else [number]:
                for place, branch in enumerate(out.branches[m]):
                    if self._selects(out, (m, x), place, context):
                        branch.append(x)
            for a, b in product(*out.branches[m]):
                if a != b and number in (m, a, b):
                    yield from self._selected(out, (m, a, b), context)

    def _selects(self, out: Closure, operands: tuple[ClassId, ClassId], place: int, context: _Context) -> bool:
        """Return whether a selection by a mask may have a tensor at a place: 0 where the mask is 1, 1 elsewhere."""
        (chooses, dims, after), (form, dims2, after2) = (out.classes[n] for n in operands)
        joined = (
            _elementwise_operand(dims, form, dims2, context.views)
            if after == after2 and len(dims) == len(dims2)
            else None
        )
        if joined is None:
            return False
        part = selection_branch_form(self._algebra, chooses, joined[0], place)
        return not self._prune or self.keeps(part, context.target, context.frame, loose=context.loose)

    def _selected(
        self, out: Closure, operands: tuple[ClassId, ClassId, ClassId], context: _Context
    ) -> Iterator[tuple[BlockClass, Producer]]:
        chooses, dims, after = out.classes[operands[0]]
        values: list[Form] = []
        for n in operands[1:]:
            form, own, _ = out.classes[n]
            joined = _elementwise_operand(dims, form, own, context.views)
            if joined is None:
                return
            values.append(joined[0])
            dims = joined[1]
        yield (selection_form(self._algebra, chooses, values, None), dims, after), Producer(OpKind.SELECT, operands)

    def _matmul(
        self,
        left: tuple[Form, Dims, ClassId],
        right: tuple[Form, Dims, ClassId],
        after: bool,
        context: _Context,
    ) -> Iterator[tuple[BlockClass, Producer]]:
        a, dims_a, i = left
        b, dims_b, j = right
        if context.views is not None:
            if len(dims_a[-1]) != len(dims_b[-2]):
                return
            try:
                b, dims_b = context.views.contracted(dims_a, b, dims_b)
            except ValueError:
                return
        elif dims_a[-1] != dims_b[-2] or _axes(dims_a[-2]) & _axes(dims_b[-1]):
            return
        product = self._algebra.mul(a, b)
        value = None if product is None else self._algebra.sum(mask(dims_a[-1]), product, context.frame)
        if value is not None:
            yield (value, (*dims_a[:-1], dims_b[-1]), after), Producer(OpKind.MATMUL, (i, j))


def _drop_dim(dims: Dims, dim: int) -> Dims:
    return (*dims[:dim], (), *dims[dim + 1 :])


def _are_all_parts(dim: Parts, parts: PartMask, frame: Frame) -> bool:
    """Return whether ``parts`` are all parts of the axes of a dim."""
    full = 0
    for part in dim:
        full |= frame[part_axis(part)]
    return parts == full


def _ranks_match(a: Dims, b: Dims) -> bool:
    """Return whether the dims could be those of an elementwise operator's operands after a renaming of indices."""
    return all(not x or not y or len(x) == len(y) for x, y in zip(a, b, strict=True))


def _axes(parts: Parts) -> set[Axis]:
    return {part_axis(part) for part in parts}


def _elementwise_operand(dims: Dims, form: Form, dims2: Dims, views: IndexRenaming | None) -> tuple[Form, Dims] | None:
    """Return an elementwise operator's second form, renamed to the first's indices, and the result's dims.

    None if the dims do not fit.
    """
    if views is None:
        joined = _elementwise_dims(dims, dims2)
        return None if joined is None else (form, joined)
    if not _ranks_match(dims, dims2):
        return None
    with suppress(ValueError):
        return views.joined(dims, form, dims2)
    return None


def _elementwise_dims(a: Dims, b: Dims) -> Dims | None:
    """Return the dims of an elementwise result; None if the operands differ or one axis would index two dims."""
    out: list[Parts] = []
    for x, y in zip(a, b, strict=True):
        if x and y and x != y:
            return None
        out.append(x or y)
    joined = tuple(out)
    if joined not in (a, b):
        per_dim = [_axes(parts) for parts in joined]
        if len(set().union(*per_dim)) != sum(map(len, per_dim)):
            return None
    return joined
