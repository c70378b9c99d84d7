"""Hoisting of all moves of elements (reshape, transpose, slice, repeat, roll) to a program's inputs.

A program may move computed tensors: it normalises rows and cuts them into windows, or it rolls an image that it has
scaled. The result is the same if the inputs are moved first: a move of f(x, y) is f of the moved x and y. A reduction
or norm along a dim becomes one along the moved dim. Kernels read moved inputs under other strides
(``graph.storage_views``), also after several moves, so one kernel can compute the rest.

``search.preprocess`` uses this, instead of ``normalize_layout_ops``, for a program without a matrix product in which
moves remain after that pass.

A tensor is computed once for each sequence of moves that is applied to it. A move that cannot pass an operator stays
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.memory.storage_location import Move
from mirage_formal.graph.ops import SPECS, Attrs, Family, OpKind
from mirage_formal.graph.storage_views import moved_tensors, trailing_moves
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.graph_builders import KernelGraphBuilder
from mirage_formal.search.concatenated_inputs import KEEP_ZERO

_Moves = tuple[Move, ...]
#: Limit on the operators of a new graph: _MOST for each operator of the program, plus _SOME.
_MOST = 4
_SOME = 8


@none_on_match_failure
def hoist_layout_ops(program: KernelGraph, *, behind: bool = False) -> KernelGraph | None:
    """Return the program with its moves hoisted towards its inputs as far as possible; None if nothing changes.

    The result computes the same as the program; callers that rely on this prove it.

    Args:
        program: The program.
        behind: Whether reshapes, transposes and rolls that come last, behind all other operators, stay there.
    """
    made = _Hoisting(program)
    found = made.new.finish([made.ended(output) if behind else made.moved(output, ()) for output in program.outputs])
    if found == program:
        raise MatchFailure("all moves stand at inputs")
    return found


class _Hoisting:
    """The new graph, with tensors of the program under sequences of moves; equal operators are one."""

    def __init__(self, program: KernelGraph) -> None:
        self.new = KernelGraphBuilder(program.inputs)
        self._program = program
        self._shapes = [tensor.shape for tensor in kernel_types(program)]
        self._makers = dict(enumerate_results(len(program.inputs), program.ops))
        self._sources = moved_tensors(program)
        self.new.most = _SOME + _MOST * len(program.ops)
        self._made: dict[tuple[int, _Moves], int] = {}

    def moved(self, tensor: int, moves: _Moves) -> int:
        """Return a tensor of the program after its moves, in the new graph."""
        if (tensor, moves) not in self._made:
            self._made[tensor, moves] = self._moved(tensor, moves)
        return self._made[tensor, moves]

    def ended(self, output: int) -> int:
        """Return an output in the new graph; moves that come last stay last."""
        chain = trailing_moves(self._program, output)
        moves = tuple(move for _, _, move in reversed(chain))
        return self._behind(self.moved(chain[-1][1] if chain else output, ()), _simplify_moves(moves))

    def _moved(self, tensor: int, moves: _Moves) -> int:
        if tensor in self._sources:
            source, move = self._sources[tensor]
            return self.moved(source, _simplify_moves((move, *moves)))
        if tensor < len(self._program.inputs):
            return self._behind(tensor, moves)
        op = self._makers[tensor]
        if not isinstance(op, Op):
            raise MatchFailure("expected predefined operators")
        found = self._passed(op, tensor, moves) if moves else None
        if found is not None:
            ways, attrs = found
            operands = [self.moved(n, way) for n, way in zip(op.operands, ways, strict=True)]
            return self.new.emit(op.kind, *operands, attrs=attrs)
        return self._behind(self.new.copy(op, [self.moved(n, ()) for n in op.operands]), moves)

    def _passed(self, op: Op, result: int, moves: _Moves) -> tuple[list[_Moves], Attrs] | None:
        """Return the moves of each operand that give the moved result, and the attributes then.

        None if there are none.
        """
        shapes, shape, dim = [self._shapes[n] for n in op.operands], self._shapes[result], op.attrs.dim
        if any(move.kind is OpKind.PAD for move in moves) and not (op.kind in KEEP_ZERO and shapes[0] == shape):
            return None
        if SPECS[op.kind].elementwise:
            # Where no operand has the result's shape, the first is repeated to it.
            whole = shape in shapes
            ways = [
                _broadcast_moves(own, shape, moves, whole=own == shape or (not whole and i == 0))
                for i, own in enumerate(shapes)
            ]
            return ways, op.attrs
        if dim is None or SPECS[op.kind].family not in (Family.REDUCTION, Family.NORM, Family.MOVE):
            return None
        own = [one for one in shapes if len(one) == len(shape) and one[dim] > 1]
        concat = op.kind is OpKind.CONCAT
        along = [_moves_along_dim(one, moves, dim) for one in (shapes if concat else own[:1])]
        if not along or along[0] is None or (concat and along[1] is None):
            return None
        new = along[0][1]
        ways = [one[0] for one in along if one is not None]
        ways += [_broadcast_moves(one, shape, moves, whole=False) for one in shapes[len(ways) :]]
        return ways, replace(op.attrs, dim=new)

    def _behind(self, tensor: int, moves: _Moves) -> int:
        """Append the moves of a tensor to the new graph, one by one."""
        for move in moves:
            if move.kind is OpKind.CONCAT:
                dim, start = move.attrs.dim, move.attrs.start
                assert dim is not None
                ends = ((start, move.given[dim]), (0, start))
                parts = [self.new.emit(OpKind.SLICE, tensor, attrs=Attrs(dim=dim, start=a, stop=b)) for a, b in ends]
                tensor = self.new.emit(OpKind.CONCAT, *parts, attrs=Attrs(dim=dim))
            else:
                tensor = self.new.emit(move.kind, tensor, attrs=move.attrs)
        return tensor


def _simplify_moves(moves: _Moves) -> _Moves:
    """Return the moves with neighbouring reshapes and transposes merged, and without those that change nothing."""
    found: list[Move] = []
    for move in moves:
        last = found[-1] if found else None
        if last is not None and last.kind is move.kind is OpKind.RESHAPE:
            move = Move(OpKind.RESHAPE, move.attrs, last.given, move.shape)
            found.pop()
        elif last is not None and last.kind is move.kind is OpKind.TRANSPOSE:
            assert last.attrs.perm is not None
            assert move.attrs.perm is not None
            perm = tuple(last.attrs.perm[i] for i in move.attrs.perm)
            move = Move(OpKind.TRANSPOSE, Attrs(perm=perm), last.given, move.shape)
            found.pop()
        same = move.kind is OpKind.RESHAPE and move.given == move.shape
        if not same and not (move.kind is OpKind.TRANSPOSE and move.attrs.perm == tuple(range(len(move.shape)))):
            found.append(move)
    return tuple(found)


def _broadcast_moves(own: Shape, shape: Shape, moves: _Moves, *, whole: bool) -> _Moves:
    """Return the moves of an operand that is broadcast to a shape, given the moves of the whole shape.

    Args:
        own: Extents of the operand.
        shape: Extents that it is broadcast to, before the moves.
        moves: The moves.
        whole: Whether the operand is repeated to the whole shape first.
    """
    found: list[Move] = []

    def put(kind: OpKind, attrs: Attrs, new: Shape) -> None:
        nonlocal own
        found.append(Move(kind, attrs, own, new))
        own = new

    def repeated(dims: Sequence[int]) -> None:
        for dim in dims:
            if own[dim] == 1 < shape[dim]:
                put(OpKind.REPEAT, Attrs(dim=dim, times=shape[dim]), (*own[:dim], shape[dim], *own[dim + 1 :]))

    if whole:
        repeated(range(len(shape)))
    for move in moves:
        shape, dim = move.given, move.attrs.dim
        match move.kind:
            case OpKind.TRANSPOSE:
                assert move.attrs.perm is not None
                put(move.kind, move.attrs, tuple(own[i] for i in move.attrs.perm))
            case OpKind.RESHAPE:
                new = list(move.shape)
                for olds, news in _dim_groups(shape, move.shape):
                    if any(own[i] > 1 for i in olds):
                        repeated(olds)
                    else:
                        for i in news:
                            new[i] = 1
                put(move.kind, Attrs(shape=tuple(new)), tuple(new))
            case _:
                assert dim is not None, move.kind
                # A repeated dim has extent 1 in all operands; only the operand of the whole shape is repeated.
                if own == shape or (own[dim] > 1 and move.kind is not OpKind.REPEAT):
                    put(move.kind, move.attrs, (*own[:dim], move.shape[dim], *own[dim + 1 :]))
        shape = move.shape
    return _simplify_moves(tuple(found))


def _moves_along_dim(own: Shape, moves: _Moves, dim: int) -> tuple[_Moves, int] | None:
    """Return an operand's moves, and the operator's dim after them; None if the moves do not preserve that dim.

    Args:
        own: Extents of the operand, which differ from the result's along the dim only.
        moves: The moves of the result.
        dim: The dim that the operator works along.
    """
    found: list[Move] = []
    for move in moves:
        new, attrs = list(move.shape), move.attrs
        if move.kind is OpKind.TRANSPOSE:
            assert attrs.perm is not None
            after = attrs.perm.index(dim)
        elif move.kind is OpKind.RESHAPE:
            places = (i for i, extent in enumerate(new) if extent == move.given[dim])
            kept = [i for i in places if prod(new[:i]) == prod(move.given[:dim])]
            if not kept:
                return None
            after = kept[-1]
        elif attrs.dim == dim:
            return None
        else:
            after = dim
        new[after] = own[dim]
        if move.kind is OpKind.RESHAPE:
            attrs = Attrs(shape=tuple(new))
        found.append(Move(move.kind, attrs, own, tuple(new)))
        own, dim = tuple(new), after
    return _simplify_moves(tuple(found)), dim


def _dim_groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Return smallest groups of dims of two shapes with equal numbers of elements; the rest are dims of extent 1."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = list(range(i, min(i + 1, len(old)))), list(range(j, min(j + 1, len(new))))
        i, j = i + len(olds), j + len(news)
        while (left := prod(old[k] for k in olds)) != (right := prod(new[k] for k in news)):
            if left < right:
                olds.append(i)
                i += 1
            else:
                news.append(j)
                j += 1
        found.append((olds, news))
    return found


__all__ = ["hoist_layout_ops"]
