"""Elaboration of µGraphs to operator terms: the meaning of operators, maps, loops and concatenation.

Block values have four leading axes, grid x, y, z and loop, of extent 1 where the value does not depend on them. Where a
grid axis and the loop split one dim, the block's tile is cut first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Final

from mirage_formal.check.proof.operator_terms import LOOP, UNARY, UNINTERPRETED, Terms
from mirage_formal.check.proof.parser import MAX_TABLE, parse_integer, parse_list
from mirage_formal.check.proof.ring import ProofError, require
from mirage_formal.check.proof.segmented_tensors import PieceOperators, PieceValue, align_segments, replace_item
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, BlockContext, OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import GraphError

LEADING: Final = LOOP + 1
#: A side condition: its text, whether it is on a divisor, and the terms of the divisor or radicand.
Need = tuple[str, bool, tuple[int, ...]]
#: A tensor by number, an axis and the lengths of its segments; the last two are not parsed yet.
TensorCut = tuple[int, list[object]]


class Elaboration(PieceOperators):
    """The outputs of one graph as operator terms, and its side conditions.

    Sound: the tables below are the meaning of µGraphs that every proof is about; a test compares them with the float64
    reference on random graphs. Tensors in ``whole``, by number, are joined to one term: another name of the same.
    ``cuts`` has axes of tensors that are cut to segments: a tensor is its parts side by side.
    """

    def __init__(
        self, terms: Terms, graph: KernelGraph, name: str, whole: Collection[int] = (), cuts: Sequence[TensorCut] = ()
    ) -> None:
        super().__init__(terms)
        self.needs: list[Need] = []
        self._where, self._whole, self._cuts = name, whole, cuts
        try:
            kernel_types(graph)
            self.outputs = self._kernel(graph, name)
        except (GraphError, ProofError) as error:
            raise ProofError(error.what, self._where) from error

    def piece(self, number: object, place: object) -> int:
        """Return the term of a piece of a tensor of the graph, by their numbers."""
        pieces = self.tensors[parse_integer(number, 0, len(self.tensors) - 1)].pieces()
        return pieces[parse_integer(place, 0, len(pieces) - 1)]

    def _kernel(self, graph: KernelGraph, name: str) -> list[PieceValue]:
        shapes = [x.tensor.shape for x in graph.inputs]
        tensors = self.tensors = list[PieceValue]()
        for i, shape in enumerate(shapes):
            tensors.append(self._cut(i, _whole_piece(self.terms.input(i, shape), shape)))
        for number, op in enumerate(graph.ops):
            self._where = f"{name}, kernel operator {number}"
            operands = [tensors[i] for i in op.operands]
            made = self._block(op, operands) if isinstance(op, GraphDefined) else self._apply(op, operands, None)
            for x in made:
                tensors.append(self._join_to_term(x) if len(tensors) in self._whole else self._cut(len(tensors), x))
        known = range(len(shapes), len(tensors))
        require(all(number in known for number in self._whole), "expected tensors that the graph computes, to be whole")
        require(all(number < len(tensors) for number, _ in self._cuts), "expected tensors of the graph, to be cut")
        return [tensors[i] for i in graph.outputs]

    def _cut(self, number: int, x: PieceValue) -> PieceValue:
        for axis, lengths in (cut for tensor, cut in self._cuts if tensor == number):
            at = parse_integer(axis, 0, len(x.cuts) - 1)
            x = self.refined(x, at, tuple(parse_integer(n, 1, x.shape[at]) for n in parse_list(lengths, 1)))
        return x

    def _join_to_term(self, x: PieceValue) -> PieceValue:
        require(len(x.terms) > 1, "expected a tensor of several pieces to be taken whole")
        return self.joined(x, *range(len(x.cuts)))

    def _block(self, op: GraphDefined, operands: list[PieceValue]) -> list[PieceValue]:
        graph, where = op.graph, self._where
        tensors = [self._load(x, how, graph) for x, how in zip(operands, graph.inputs, strict=True)]
        for number, inner in enumerate(graph.ops):
            self._where = f"{where}, block operator {number}"
            values = [tensors[i] for i in inner.operands]
            if isinstance(inner, Op):
                tensors += self._apply(inner, values, graph.context)
                continue
            for step in inner.graph.ops:
                values += self._apply(step, [values[i] for i in step.operands], graph.context)
            tensors += [values[i] for i in inner.graph.outputs]
        return [self._save(tensors[saver.operand], saver, graph) for saver in graph.outputs]

    def _load(self, x: PieceValue, how: InputIterator, graph: BlockGraph) -> PieceValue:
        extents, split = (*graph.grid, graph.forloop_range), list[int]()
        position: dict[int, int] = {}
        tiles: list[int] = []
        for dim, tile in enumerate(x.shape):
            for axis, target in enumerate((*how.imap, how.fmap)):
                if target == dim:
                    position[axis] = len(split)
                    split.append(extents[axis])
                    tile //= extents[axis]
            tiles.append(len(split))
            split.append(tile)
        for axis in range(LEADING):
            if axis not in position:
                position[axis] = len(split)
                split.append(1)
        perm = (*(position[axis] for axis in range(LEADING)), *tiles)
        moving = [i for i in perm if split[i] > 1]
        if moving == sorted(moving):
            return self.reshape(x, tuple(split[i] for i in perm))
        return self.transpose(self.reshape(x, tuple(split)), perm)

    def _save(self, x: PieceValue, saver: OutputSaver, graph: BlockGraph) -> PieceValue:
        require(x.shape[LOOP] == 1, "expected a tensor behind an accumulator")
        for axis, dim in enumerate(saver.omap):
            require(dim is not None or x.shape[axis] == 1, "expected blocks that write different elements")
            if dim is not None and x.shape[axis] == 1:
                x = self.repeat(x, axis, graph.grid[axis])
        perm = [axis for axis in range(LEADING) if axis == LOOP or saver.omap[axis] is None]
        shape: list[int] = []
        for dim, tile in enumerate(x.shape[LEADING:]):
            split = [axis for axis in range(LOOP) if saver.omap[axis] == dim]
            perm += [*split, LEADING + dim]
            shape.append(tile * prod(x.shape[axis] for axis in split))
        moving = [i for i in perm if x.shape[i] > 1]
        return self.reshape(x if moving == sorted(moving) else self.transpose(x, tuple(perm)), tuple(shape))

    # --- operators ---------------------------------------------------------------------------------------------

    def _apply(self, op: Op, xs: list[PieceValue], context: BlockContext | None) -> list[PieceValue]:  # noqa: C901 (one row per operator)
        attrs, x = op.attrs, xs[0]
        lead = 0 if context is None else LEADING
        times = 1 if context is None else context.forloop_range
        dim = (len(x.cuts) - 1 - lead if attrs.dim is None else attrs.dim) + lead
        last = len(x.cuts) - 1
        match op.kind:
            case OpKind.MATMUL:
                return [self.matmul(x, xs[1])]
            case OpKind.ADD | OpKind.SUB | OpKind.MUL | OpKind.DIV:
                return [self.binary(op.kind.value, x, xs[1])]
            case OpKind.RECIPROCAL:
                return [self.binary("div", self._number(x, 1), x)]
            case OpKind.TANH:
                # 1 - 2 / (1 + exp(2 x)), whose divisor is above 0: no condition
                below = self.constant("offset", self.unary("exp", self.constant("scale", x, Fraction(2))), Fraction(1))
                inverse = super().binary("div", self._number(x, 1), below)
                return [self.constant("offset", self.constant("scale", inverse, Fraction(-2)), Fraction(1))]
            case OpKind.ABS:
                return [super().unary("sqrt", self.unary("square", x))]  # a square is not negative: no condition
            case OpKind.MAXIMUM:
                return [self.binary("max", x, self._second(attrs, xs))]
            case OpKind.DIV_NO_NAN:
                return [self.binary("div_no_nan", x, xs[1])]  # 0 where the divisor is: no condition
            case OpKind.EQ | OpKind.LT | OpKind.LE | OpKind.GT | OpKind.GE:
                y = self._second(attrs, xs)
                turned = {OpKind.GT: "lt", OpKind.GE: "le"}.get(op.kind)
                return [self.binary(op.kind.value, x, y) if turned is None else self.binary(turned, y, x)]
            case OpKind.SELECT:
                first = self.binary("select", x, xs[1])
                if attrs.value == 0:
                    return [first]
                y = xs[2] if attrs.value is None else self._number(x, attrs.value)
                return [self.binary("add", first, self.binary("select", self._not(x), y))]
            case OpKind.LOGICAL_NOT:
                return [self._not(x)]
            case OpKind.MINIMUM:
                a, b = (self.constant("scale", value, Fraction(-1)) for value in (x, self._second(attrs, xs)))
                return [self.constant("scale", self.binary("max", a, b), Fraction(-1))]
            case OpKind.SILU:
                below = self.constant("offset", self.unary("exp", self.constant("scale", x, Fraction(-1))), Fraction(1))
                return [self.binary("div", x, below)]
            case OpKind.SCALE:
                return [self.constant("scale", x, attrs.factor or Fraction(0))]
            case OpKind.SHIFT:
                return [self.constant("offset", x, attrs.shift or Fraction(0))]
            case OpKind.SUM:
                return [self.sum(x, dim)]
            case OpKind.MEAN:
                return [self._mean(x, dim)]
            case OpKind.MAX:
                return [self.fold("max", x, dim)]
            case OpKind.SUM_TO_DIMX | OpKind.ACCUM_SUM_TO_DIMX:
                assert context is not None
                folded = self.sum(x, dim, context.reduction_dimx)
                return [folded if op.kind is OpKind.SUM_TO_DIMX else self._loop_sum(folded, times)]
            case OpKind.SOFTMAX:
                above = self.unary("exp", x)
                return [self.binary("div", above, self.sum(above, dim))]
            case OpKind.RMS_NORM | OpKind.LAYER_NORM:
                if op.kind is OpKind.LAYER_NORM:
                    x = self.binary("sub", x, self._mean(x, dim))
                below = self._mean(self.unary("square", x), dim)
                below = below if attrs.eps is None else self.constant("offset", below, attrs.eps)
                x = self.binary("div", x, self.unary("sqrt", below))
                x = self.binary("mul", x, xs[1]) if len(xs) > 1 else x
                return [self.binary("add", x, xs[2]) if len(xs) > 2 else x]
            case OpKind.TRANSPOSE:
                return [self.transpose(x, (*range(lead), *(lead + i for i in attrs.perm or ())))]
            case OpKind.RESHAPE:
                return [self.reshape(x, (*x.shape[:lead], *(attrs.shape or ())))]
            case OpKind.CONCAT:
                return [self._concat(x, xs[1], dim, lead)]
            case OpKind.SLICE:
                return [self.slice(x, dim, attrs.start or 0, attrs.stop or 0)]
            case OpKind.PAD:
                zero = self.constant("scale", self.slice(x, dim, 0, 1), Fraction(0))
                if attrs.before:
                    x = self._concat(self.repeat(zero, dim, attrs.before), x, dim, lead)
                return [self._concat(x, self.repeat(zero, dim, attrs.after), dim, lead) if attrs.after else x]
            case OpKind.REPEAT:
                return [self.repeat(x, dim, attrs.times or 0)]
            case OpKind.CAST:
                return [x]  # over the reals
            case OpKind.RUNNING_MAX:
                x = self._over_loop(x, times)
                return [self._reduce_so_far("running_max", x, dim), self._reduce_so_far("carry", x, dim)]
            case OpKind.ACCUM_SUM:
                return [self._loop_sum(x, times)]
            case OpKind.ACCUM_SUM_LAST:
                return [self._loop_sum(self.sum(x, last), times)]
            case OpKind.ACCUM_MEAN_LAST:
                return [self._loop_mean(x, times)]
            case OpKind.ACCUM_RMS_LAST:
                return [self.unary("sqrt", self._loop_mean(self.unary("square", x), times))]
            case OpKind.ACCUM_CONCAT:
                return [self._loop_concat(self._over_loop(x, times), dim)]
            case OpKind.ACCUM_MAX:
                return [x if x.shape[LOOP] == 1 else self.fold("max", x, LOOP)]
            case OpKind.ACCUM_RESCALED_SUM | OpKind.ACCUM_RESCALED_SUM_LAST:
                x = x if op.kind is OpKind.ACCUM_RESCALED_SUM else self.sum(x, last)
                return [self._rescaled(self._over_loop(x, times), self._over_loop(xs[1], times))]
            case kind if kind.value in UNARY:
                return [self.unary(kind.value, x)]
            case _:
                raise AssertionError(op.kind)

    def _second(self, attrs: Attrs, xs: list[PieceValue]) -> PieceValue:
        """Return the second operand; a number there is 0 times the first, plus the number.

        Sound: over the reals 0 x + c = c for every x, and it is elementwise on the first operand's shape.
        """
        return xs[1] if attrs.value is None else self._number(xs[0], attrs.value)

    def _number(self, x: PieceValue, q: Fraction | int) -> PieceValue:
        return self.constant("offset", self.constant("scale", x, Fraction(0)), Fraction(q))

    def _not(self, mask: PieceValue) -> PieceValue:
        return self.constant("offset", self.constant("scale", mask, Fraction(-1)), Fraction(1))

    def _mean(self, x: PieceValue, axis: int) -> PieceValue:
        return self.constant("scale", self.sum(x, axis), Fraction(1, x.shape[axis]))

    def _over_loop(self, x: PieceValue, times: int) -> PieceValue:
        return self.repeat(x, LOOP, times) if x.shape[LOOP] == 1 else x

    def _loop_sum(self, x: PieceValue, times: int) -> PieceValue:
        return self.sum(self._over_loop(x, times), LOOP)

    def _loop_mean(self, x: PieceValue, times: int) -> PieceValue:
        total = self._loop_sum(self.sum(x, len(x.cuts) - 1), times)
        return self.constant("scale", total, Fraction(1, x.shape[-1] * times))

    def _loop_concat(self, x: PieceValue, axis: int) -> PieceValue:
        if x.shape[LOOP] == 1:
            return x
        perm = [i for i in range(len(x.cuts)) if i != LOOP]
        perm.insert(perm.index(axis), LOOP)
        shape = replace_item(replace_item(x.shape, axis, x.shape[axis] * x.shape[LOOP]), LOOP, 1)
        return self.reshape(self.transpose(x, tuple(perm)), shape)

    def _concat(self, a: PieceValue, b: PieceValue, axis: int, lead: int) -> PieceValue:
        for i in range(lead):
            a = self.repeat(a, i, b.shape[i]) if a.shape[i] == 1 else a
            b = self.repeat(b, i, a.shape[i]) if b.shape[i] == 1 else b
        a, b = self.fewer(a, b)
        a, b = align_segments(self.terms, a, b, (i for i in range(len(a.cuts)) if i != axis))
        count = len(a.cuts[axis])
        moved = {replace_item(place, axis, place[axis] + count): term for place, term in b.terms.items()}
        cuts = (*a.cuts[:axis], a.cuts[axis] + b.cuts[axis], *a.cuts[axis + 1 :])
        return PieceValue(cuts, {**a.terms, **moved})

    def _reduce_so_far(self, kind: str, x: PieceValue, axis: int) -> PieceValue:
        x = self.joined(x if len(x.cuts[axis]) == 1 else self.fold("max", x, axis), LOOP)
        return self.each(x, axis, (1,), lambda term: self.terms.reduce(kind, term, axis))

    def _rescaled(self, x: PieceValue, f: PieceValue) -> PieceValue:
        found = self.paired(self.joined(x, LOOP), self.joined(f, LOOP), self.terms.rescaled)
        return PieceValue((*found.cuts[:LOOP], (1,), *found.cuts[LOOP + 1 :]), found.terms)

    def unary(self, kind: str, x: PieceValue) -> PieceValue:
        """Return an elementwise operator, with side conditions for a root and a function such as the logarithm.

        Sound: what is not 0 and not negative is above 0, as the argument of a function with a positive domain must be.
        """
        if kind == "sqrt":
            self.needs.append((f"{self._where}: radicand nonnegative", False, tuple(x.pieces())))
        if kind in UNINTERPRETED and UNINTERPRETED[kind].positive_domain:
            self.needs.append((f"{self._where}: argument of {kind} nonzero", True, tuple(x.pieces())))
            self.needs.append((f"{self._where}: argument of {kind} nonnegative", False, tuple(x.pieces())))
        return super().unary(kind, x)

    def binary(self, kind: str, a: PieceValue, b: PieceValue) -> PieceValue:
        """Return an operator of two tensors, with a side condition for a division."""
        if kind == "div":
            self.needs.append((f"{self._where}: divisor nonzero", True, tuple(b.pieces())))
        return super().binary(kind, a, b)

    @property
    def conditions(self) -> list[str]:
        """Return the graph's definedness conditions, in the order of its operators."""
        return [text for text, _, _ in self.needs]


def _whole_piece(term: int, shape: Shape) -> PieceValue:
    return PieceValue(tuple((extent,) for extent in shape), {(0,) * len(shape): term})


def elaborate(
    terms: Terms, graphs: Sequence[KernelGraph], raw: Iterable[object]
) -> tuple[list[Elaboration], list[list[object]], list[int]]:
    """Return program and candidate as terms, with the atoms of a proof, and the inputs that are not negative.

    Sound: a row of one is the number of such an input, and side conditions of the graphs say so of all its pieces.
    An atom without a piece is a whole tensor. A row of four says that an axis of a tensor is cut to segments.
    """
    rows = [parse_list(row, 1, 4) for row in raw]
    whole = [(parse_integer(row[0], 0, 1), parse_integer(row[1], 0, MAX_TABLE)) for row in rows if len(row) == 2]
    require(len(set(whole)) == len(whole), "expected a tensor to be taken whole once")
    found = [row for row in rows if len(row) == 4]
    cuts = [(parse_integer(row[0], 0, 1), parse_integer(row[1], 0, MAX_TABLE), row[2:]) for row in found]
    made = [
        Elaboration(terms, graph, name, {n for of, n in whole if of == i}, [(n, cut) for of, n, cut in cuts if of == i])
        for i, (graph, name) in enumerate(zip(graphs, ("program", "candidate"), strict=True))
    ]
    nonnegative = {term for graph in made for _, divisor, found in graph.needs if not divisor for term in found}
    signed = [parse_integer(row[0], 0, len(graphs[0].inputs) - 1) for row in rows if len(row) == 1]
    good = all(nonnegative.issuperset(made[0].tensors[number].pieces()) for number in signed)
    require(good, "expected inputs of which a side condition says that they are not negative")
    return made, [row for row in rows if len(row) == 3], signed
