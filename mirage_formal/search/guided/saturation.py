"""Saturation of a fused kernel's block graph: all tensors that block operators compute from its inputs, pruned.

A class is (normal form, dims as part lists, behind an accumulator or not); a producer is an operator with the classes
of its operands. They correspond to e-classes and e-nodes of an e-graph. Classes merge by equal normal forms only, not
by rewriting. A class is kept only if its form is part of the target, the normal form of the program's output. Extents
never occur: a reduction binds parts, and "all parts bound" stands for "lengths match".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial, reduce
from itertools import islice, product
from operator import or_
from typing import Final, NewType

from msgspec import Struct

from mirage_formal.graph.ops import COMPARISONS, EXTREMES, NO_ATTRS, SPECS, Attrs, OpKind
from mirage_formal.logic.axioms import load_axioms
from mirage_formal.logic.terms import Expr
from mirage_formal.prove.abstract.pruning_audit import DecisionSample, PruningDecision
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


class Producer(Struct, frozen=True):
    """Operator application that computes a class (an e-node): an operator kind and the classes of its operands."""

    kind: OpKind
    operands: tuple[ClassId, ...]
    attrs: Attrs = NO_ATTRS


class _Context(Struct, frozen=True):
    """Parameters of one kernel's saturation besides its inputs.

    Attributes:
        frame: The parts of each axis inside the kernel.
        loop: Masks of the loop's parts.
        same: Groups of masks; the parts in a group are one index of the kernel under several names.
        target: Normal form of the program's output.
        views: Renames axes to their twins; None where no axis has twins.
        loose: True if the loop iterates over several axes of the program, so that terms are summed over different axes.
        carried: Inputs that may be copied unchanged behind the loop.
        looped: All of the loop's parts.
        known: Whether a form is part of the target, for those that were asked about; see ``Algebra.answers``.
        own: What operators of one operand make of a form in a tile that may be copied behind the loop or not. It is the
            same for all kernels with this frame and loop.
        pairs: What operators of two operands make of forms in tiles; the same for all kernels with this frame.
    """

    frame: Frame
    loop: tuple[PartMask, ...]
    same: tuple[tuple[PartMask, ...], ...]
    target: Form
    views: IndexRenaming | None
    loose: bool
    carried: frozenset[ClassId]
    looped: PartMask
    known: Mapping[Form, bool]
    own: dict[tuple[Form, int, bool], list[_Result]]
    pairs: dict[tuple[Form, int, Form, int], list[_Result]]


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
        diagonals: Classes that were pruned because a term has one index of the kernel under two names.
    """

    inputs: int
    classes: list[BlockClass]
    index: dict[BlockClass, ClassId]
    producers: list[list[Producer]]
    branches: dict[ClassId, _Branches] = field(default_factory=dict)
    tried: int = 0
    diagonals: set[BlockClass] = field(default_factory=set)

    @property
    def dropped(self) -> dict[str, int]:
        """Return the number of pruned classes by reason; each class counts once."""
        counts = {
            "diagonal": len(self.diagonals),
            "expression": len(self.index) - len(self.classes) - len(self.diagonals),
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
#: An operator application that is tried: its kind, its operands, and its attributes.
_Application = tuple[OpKind, tuple[ClassId, ...], Attrs]
#: A class that an operator makes, the operator with its attributes, and whether it takes the second operand first.
_Result = tuple[BlockClass, OpKind, Attrs, bool]
#: The dims of a matrix product's result, and the parts that it sums over.
_Contraction = tuple[Dims, PartMask]
#: Of two tiles: the dims of an elementwise operator's result, and the product of the first with the second and of the
#: second with the first; None for what does not fit.
_Pairing = tuple[Dims | None, _Contraction | None, _Contraction | None]
#: Two tiles of which no operator takes both.
_APART: Final[_Pairing] = (None, None, None)
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
        self._exact = self._refuter.exact
        self._tiles: dict[tuple[Dims, bool], int] = {}
        self._tile_of: list[tuple[Dims, bool]] = []
        self._pairings: dict[int, _Pairings] = {}
        self._own_values: dict[Form, list[tuple[OpKind, Form, Attrs]]] = {}
        self._pair_values: dict[tuple[Form, Form, bool], list[tuple[OpKind, Form, bool]]] = {}
        self._own: dict[tuple[Frame, tuple[PartMask, ...]], dict[tuple[Form, int, bool], list[_Result]]] = {}
        self._pairs_of: dict[Frame, dict[tuple[Form, int, Form, int], list[_Result]]] = {}
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
        parts = structure.loop_parts
        looped = PartMask(reduce(or_, parts, NO_PARTS))
        known = self._algebra.answers(target, loose=several) if self._exact else {}
        own, pairs = self._own.setdefault((frame, parts), {}), self._pairs_of.setdefault(frame, {})
        context = _Context(frame, parts, structure.same, target, views, several, carried, looped, known, own, pairs)
        out = Closure(len(inputs), [], {}, [])
        for form, dims in inputs:
            out.index[form, dims, False] = ClassId(len(out.classes))
            out.classes.append((form, dims, False))
            out.producers.append([])
        done, level = 0, 0
        tiles: list[int] = []
        while done < len(out.classes) and level < depth:
            level += 1
            end = len(out.classes)
            tiles += [self._tile(dims, after) for _, dims, after in out.classes[done:end]]
            for number in range(done, end):
                self._extend(out, ClassId(number), tiles, context)
            done = end
        self._offer_decisions(out, target, frame)
        return out

    @property
    def repeatable(self) -> bool:
        """Return whether ``repeat`` can repeat the decisions of a closure: they rest on the algebra alone."""
        return self._prune and self._exact

    def copy_for(self, algebra: Algebra, sample: DecisionSample | None) -> Saturator:
        """Return a saturator for a copy of this one's algebra (``Algebra.snapshot``), with a sample of its own."""
        other = copy(self)
        other._algebra, other._sample = algebra, sample
        other._own_values, other._pair_values = dict(self._own_values), dict(self._pair_values)
        other._own = {key: dict(found) for key, found in self._own.items()}
        other._pairs_of = {key: dict(found) for key, found in self._pairs_of.items()}
        return other

    def repeat(self, closure: Closure, made_by: Saturator, target: Form, frame: Frame, *, loose: bool) -> None:
        """Count the decisions of a closure, and offer them to the sample, as if it were made here.

        Sound: the order of ``Closure.index`` is that of the decisions, and its first entries are the inputs.

        Args:
            closure: The closure.
            made_by: The saturator that has made it; this one is a copy of it.
            target: Form of the program's output.
            frame: The frame inside the kernel.
            loose: See ``Algebra.within``.
        """
        forms = (form for form, _, _ in islice(closure.index, closure.inputs, None))
        self._algebra.repeat_queries(forms, made_by._algebra, target, loose=loose)
        self._offer_decisions(closure, target, frame)

    def _offer_decisions(self, closure: Closure, target: Form, frame: Frame) -> None:
        """Offer the decisions of a closure to the sample, in the order of ``Closure.index``."""
        if self._sample is None or not self._prune:
            return
        forms: dict[bool, list[Form]] = {True: [], False: []}
        for cls, number in islice(closure.index.items(), closure.inputs, None):
            forms[number != PRUNED or cls in closure.diagonals].append(cls[0])
        for kept, decided in forms.items():
            self._sample.offer_all(kept, decided, partial(self._decision, kept, target, frame))

    def _tile(self, dims: Dims, after: bool) -> int:
        """Return the number of the dims of a tile, and of whether it is behind an accumulator."""
        key = (dims, after)
        number = self._tiles.get(key)
        if number is None:
            number = self._tiles[key] = len(self._tile_of)
            self._tile_of.append(key)
        return number

    def _extend(self, out: Closure, number: ClassId, tiles: list[int], context: _Context) -> None:
        if context.views is not None:
            for cls, made in self._unary(out, number, context):
                self._put(out, cls, made, context)
        else:
            self._extend_alone(out, number, tiles[number], context)
        if context.views is not None or self._masked:
            for other in range(number + 1):
                for cls, made in self._binary(out, number, ClassId(other), context):
                    self._put(out, cls, made, context)
        else:
            self._extend_pairs(out, number, tiles, context)
        if self._of_three:
            for cls, made in self._selection(out, number, context):
                self._put(out, cls, made, context)

    def _extend_alone(self, out: Closure, number: ClassId, tile: int, context: _Context) -> None:
        """Add what operators make of a class, where no axis has twins: kernels have most classes in common.

        What is found first is added at once: the numbers of forms follow their order.
        """
        key = (out.classes[number][0], tile, number in context.carried)
        results = context.own.get(key)
        operands = (number,)
        if results is not None:
            self._put_results(out, results, operands, context)
            return
        results = []
        for cls, (kind, _, attrs) in self._unary(out, number, context):
            result = (cls, kind, attrs, False)
            self._put_results(out, (result,), operands, context)
            results.append(result)
        context.own[key] = results

    def _extend_pairs(self, out: Closure, number: ClassId, tiles: list[int], context: _Context) -> None:
        """Add what binary operators make of a class and those before it, without masks, where no axis has twins."""
        form, mine, pairs = out.classes[number][0], tiles[number], context.pairs
        pairings = map(self._pairings_of(mine).__getitem__, tiles[: number + 1])
        for other, pairing in enumerate(pairings):
            if pairing is _APART:
                continue
            pair = (number, ClassId(other))
            key = (form, mine, out.classes[other][0], tiles[other])
            results = pairs.get(key)
            if results is None:
                pairs[key] = self._put_pair(out, pair, pairing, context)
            else:
                self._put_results(out, results, pair, context)

    def _pairings_of(self, tile: int) -> _Pairings:
        """Return what binary operators make of a tile and others, by the other's number."""
        found = self._pairings.get(tile)
        if found is None:
            found = self._pairings[tile] = _Pairings(partial(self._pairing, tile))
        return found

    def _pairing(self, one: int, other: int) -> _Pairing:
        """Return the dims of what binary operators make of two tiles; ``_APART`` if they take neither."""
        (dims, after), (dims2, after2) = self._tile_of[one], self._tile_of[other]
        if after != after2 or len(dims) != len(dims2):
            return _APART
        joined = _elementwise_dims(dims, dims2)
        left: _Contraction | None = None
        right: _Contraction | None = None
        if OpKind.MATMUL in self._ops and len(dims) >= 2 and not any(dims[:-2]) and not any(dims2[:-2]):
            left, right = _contraction(dims, dims2), _contraction(dims2, dims)
        return _APART if joined is None and left is None and right is None else (joined, left, right)

    def _put_pair(
        self, out: Closure, pair: tuple[ClassId, ClassId], pairing: _Pairing, context: _Context
    ) -> list[_Result]:
        """Add what binary operators make of two classes without masks, where no axis has twins, and return it."""
        a, b = pair
        form, _, after = out.classes[a]
        form2 = out.classes[b][0]
        joined, left, right = pairing
        found: list[_Result] = []
        if joined is not None:
            key = (form, form2, a == b)
            values = self._pair_values.get(key)
            if values is None:
                values = self._pair_values[key] = list(self._elementwise_values(*key))
            found += [((value, joined, after), kind, NO_ATTRS, swapped) for kind, value, swapped in values]
            self._put_results(out, found, pair, context)
        algebra = self._algebra
        for contraction, one, other, swapped in ((left, form, form2, False), (right, form2, form, True)):
            if contraction is None or (swapped and a == b):
                continue
            product = algebra.mul(one, other)
            total = None if product is None else algebra.sum(contraction[1], product, context.frame)
            if total is not None:
                result = ((total, contraction[0], after), OpKind.MATMUL, NO_ATTRS, swapped)
                self._put_results(out, (result,), pair, context)
                found.append(result)
        return found

    def _put(self, out: Closure, cls: BlockClass, made: _Application, context: _Context) -> None:
        """Add what an operator makes of classes."""
        if context.views is not None:
            # If a grid index has the canonical name already, the class is a diagonal and keeps its present names.
            with suppress(ValueError):
                cls = (*context.views.canonical(cls[0], cls[1]), cls[2])
        kind, operands, attrs = made
        self._put_results(out, ((cls, kind, attrs, False),), operands, context)

    def _put_results(
        self, out: Closure, results: Sequence[_Result], operands: tuple[ClassId, ...], context: _Context
    ) -> None:
        """Add what operators make of classes that have their canonical names."""
        index, known, answered = out.index, context.known, 0
        out.tried += len(results)
        for cls, kind, attrs, swapped in results:
            number = index.get(cls)
            if number is None:
                kept = known.get(cls[0])
                answered += kept is not None
                if kept is False:  # nearly all of them
                    index[cls] = PRUNED
                    continue
                number = index[cls] = self._decided(out, cls, kept, context)
            if number != PRUNED:
                out.producers[number].append(Producer(kind, operands[::-1] if swapped else operands, attrs))
        self._algebra.queries += answered

    def _decided(self, out: Closure, cls: BlockClass, kept: bool | None, context: _Context) -> ClassId:
        """Return the number of a new class, which is added, or PRUNED.

        Args:
            out: The closure.
            cls: The class.
            kept: Whether its form is part of the target, if that is known.
            context: The parameters of the closure.
        """
        if kept is None and self._prune:
            kept = self.keeps(cls[0], context.target, context.frame, loose=context.loose)
        if kept is False:
            return PRUNED
        if context.same and self._independent and self._diagonal(cls[0], context.same):
            out.diagonals.add(cls)
            return PRUNED
        out.classes.append(cls)
        out.producers.append([])
        return ClassId(len(out.classes) - 1)

    def _decision(self, kept: bool, target: Form, frame: Frame, form: Form) -> PruningDecision:
        """Return a decision as abstract expressions."""
        expression, whole = self._expressions(frame, form, target)
        return PruningDecision(kept, expression, whole, indexed=True)

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
        if self._exact:
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

    def _unary(self, out: Closure, number: ClassId, context: _Context) -> Iterator[tuple[BlockClass, _Application]]:
        form, dims, after = out.classes[number]
        if self._masked and self._algebra.is_mask(form):
            yield from self._of_mask(out, number, context)
            return
        values = self._own_values.get(form)
        if values is None:
            values = self._own_values[form] = list(self._values(form))
        operands = (number,)
        for kind, value, attrs in values:
            yield (value, dims, after), (kind, operands, attrs)
        for dim, parts in enumerate(dims):
            if parts:
                yield from self._reductions(out, number, dim, mask(parts), context.frame)
        if not after:
            yield from self._accumulators(form, dims, number, context)

    def _values(self, form: Form) -> Iterator[tuple[OpKind, Form, Attrs]]:
        """Yield what elementwise operators of one operand make of a form."""
        algebra = self._algebra
        for kind in self._functions:
            yield kind, function_form(algebra, kind, form), NO_ATTRS
        for kind, number in self._numbers:
            yield kind, valued_form(algebra, kind, form, number), Attrs(value=number)
        if OpKind.SQUARE in self._ops:
            squared = algebra.mul(form, form)
            if squared is not None:
                yield OpKind.SQUARE, squared, NO_ATTRS
        for factor in self._constants:
            scaled = algebra.mul(algebra.constant(factor), form)
            if scaled is not None:
                yield OpKind.SCALE, scaled, Attrs(factor=factor)
        for shift in self._shifts:
            yield OpKind.SHIFT, shift_form(algebra, form, shift), Attrs(shift=shift)

    def _of_mask(self, out: Closure, number: ClassId, context: _Context) -> Iterator[tuple[BlockClass, _Application]]:
        """Yield the results of one operator on a boolean mask; only ``accum_max`` carries a mask behind the loop."""
        form, dims, after = out.classes[number]
        if self._negated:
            yield (
                (function_form(self._algebra, OpKind.LOGICAL_NOT, form), dims, after),
                (OpKind.LOGICAL_NOT, (number,), NO_ATTRS),
            )
        for dtype in self._casts:
            cast = function_form(self._algebra, OpKind.CAST, form)
            yield (cast, dims, after), (OpKind.CAST, (number,), Attrs(dtype=dtype))
        loop = self._algebra.free[form] & context.looped
        if after or loop:
            return
        carries = OpKind.ACCUM_MAX in self._ops and number in context.carried
        if carries or (not context.loop and not self._ops.isdisjoint(_INTO_STORES)):
            yield (form, dims, True), (OpKind.ACCUM_MAX, (number,), NO_ATTRS)

    def _reductions(
        self, out: Closure, number: ClassId, dim: int, parts: PartMask, frame: Frame
    ) -> Iterator[tuple[BlockClass, _Application]]:
        algebra = self._algebra
        form, dims, after = out.classes[number]
        # The program's norms run over whole axes, so no other norm is part of the target.
        norms = self._norms if not self._prune or _are_all_parts(dims[dim], parts, frame) else []
        for kind, eps in norms:
            norm = rms_norm if kind is OpKind.RMS_NORM else layer_norm
            normed = norm(algebra, parts, form, eps, frame)
            if normed is not None:
                yield (normed, dims, after), (kind, (number,), _along(dim, eps))
        if OpKind.SUM in self._ops:
            total = algebra.sum(parts, form, frame)
            if total is not None:
                yield (total, _drop_dim(dims, dim), after), (OpKind.SUM, (number,), _along(dim))
        if OpKind.SUM_TO_DIMX in self._ops:
            for cut in range(1, len(dims[dim])):
                folded = algebra.sum(mask(dims[dim][:cut]), form, frame)
                if folded is not None:
                    kept = (*dims[:dim], dims[dim][cut:], *dims[dim + 1 :])
                    yield (folded, kept, after), (OpKind.SUM_TO_DIMX, (number,), _along(dim))
        if OpKind.MEAN in self._ops:
            average = self._mean(form, parts, frame)
            if average is not None:
                yield (average, _drop_dim(dims, dim), after), (OpKind.MEAN, (number,), _along(dim))

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
    ) -> Iterator[tuple[BlockClass, _Application]]:
        algebra, ops, frame, loop = self._algebra, self._ops, context.frame, context.loop
        if loop and not algebra.free[form] & context.looped:
            # A loop-invariant tensor would be multiplied by the loop range; the largest of equal values is one of them.
            if number in context.carried and OpKind.ACCUM_MAX in ops:
                yield (form, dims, True), (OpKind.ACCUM_MAX, (number,), NO_ATTRS)
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
                yield (value, new_dims, True), (kind, (number,), NO_ATTRS)

    def _binary(
        self, out: Closure, number: ClassId, other: ClassId, context: _Context
    ) -> Iterator[tuple[BlockClass, _Application]]:
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
    ) -> Iterator[tuple[BlockClass, _Application]]:
        pairs = self._pairs
        if self._masked:
            masks = [self._algebra.is_mask(one) for one in (form, form2)]
            if any(masks) and not all(masks):
                (chooses, m), (other, x) = ((form, a), (form2, b)) if masks[0] else ((form2, b), (form, a))
                for number in self._selections:
                    chosen = selection_form(self._algebra, chooses, (other,), number)
                    yield (chosen, dims, after), (OpKind.SELECT, (m, x), Attrs(value=number))
                return
            pairs = self._of_two_masks if all(masks) else pairs
        for kind, value, swapped in self._values_of_kinds(pairs, form, form2, a == b):
            yield (value, dims, after), (kind, (b, a) if swapped else (a, b), NO_ATTRS)

    def _elementwise_values(self, form: Form, form2: Form, same: bool) -> Iterator[tuple[OpKind, Form, bool]]:
        """Yield what elementwise operators make of two forms that are no masks; see ``_values_of_kinds``."""
        return self._values_of_kinds(self._pairs, form, form2, same)

    def _values_of_kinds(
        self, kinds: Sequence[OpKind], form: Form, form2: Form, same: bool
    ) -> Iterator[tuple[OpKind, Form, bool]]:
        """Yield what elementwise operators make of two forms, and whether they take the second one first.

        Args:
            kinds: The operators.
            form: One operand.
            form2: The other.
            same: Whether both are one class.
        """
        for kind in kinds:
            if same and (kind is OpKind.MUL or kind in EXTREMES):
                continue  # square is that operator, and an extreme of one value is the value
            value = binary_form(self._algebra, kind, form, form2)
            if value is not None:
                yield kind, value, False
            if not same and not SPECS[kind].commutative:
                value = binary_form(self._algebra, kind, form2, form)
                if value is not None:
                    yield kind, value, True

    def _selection(self, out: Closure, number: ClassId, context: _Context) -> Iterator[tuple[BlockClass, _Application]]:
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
    ) -> Iterator[tuple[BlockClass, _Application]]:
        chooses, dims, after = out.classes[operands[0]]
        values: list[Form] = []
        for n in operands[1:]:
            form, own, _ = out.classes[n]
            joined = _elementwise_operand(dims, form, own, context.views)
            if joined is None:
                return
            values.append(joined[0])
            dims = joined[1]
        yield (selection_form(self._algebra, chooses, values, None), dims, after), (OpKind.SELECT, operands, NO_ATTRS)

    def _matmul(
        self,
        left: tuple[Form, Dims, ClassId],
        right: tuple[Form, Dims, ClassId],
        after: bool,
        context: _Context,
    ) -> Iterator[tuple[BlockClass, _Application]]:
        a, dims_a, i = left
        b, dims_b, j = right
        if context.views is not None:
            if len(dims_a[-1]) != len(dims_b[-2]):
                return
            try:
                b, dims_b = context.views.contracted(dims_a, b, dims_b)
            except ValueError:
                return
        elif _contraction(dims_a, dims_b) is None:
            return
        product = self._algebra.mul(a, b)
        value = None if product is None else self._algebra.sum(mask(dims_a[-1]), product, context.frame)
        if value is not None:
            yield (value, (*dims_a[:-1], dims_b[-1]), after), (OpKind.MATMUL, (i, j), NO_ATTRS)


class _Pairings(dict[int, _Pairing]):
    """Pairings of a tile with others by the other's number, each made when it is first asked for."""

    def __init__(self, make: Callable[[int], _Pairing]) -> None:
        self._make = make

    def __missing__(self, other: int) -> _Pairing:
        found = self[other] = self._make(other)
        return found


@cache
def _along(dim: int, eps: Fraction | None = None) -> Attrs:
    """Return the attributes of an operator along a dim."""
    return Attrs(dim=dim, eps=eps)


def _contraction(dims: Dims, dims2: Dims) -> _Contraction | None:
    """Return the dims of the matrix product of two tiles, and the parts that it sums over; None if they do not fit."""
    if dims[-1] != dims2[-2] or _axes(dims[-2]) & _axes(dims2[-1]):
        return None
    return (*dims[:-1], dims2[-1]), mask(dims[-1])


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
