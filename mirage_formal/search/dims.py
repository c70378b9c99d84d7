"""Equivalence classes of dims of a program's tensors that must have one extent by the operators' shape rules."""

from __future__ import annotations

from collections.abc import Iterable

from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import SPECS, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import equal_index_dims
from mirage_formal.graph.verifier import kernel_types

#: A dim of a tensor of a program: number of the tensor, number of the dim.
Dim = tuple[int, int]


class DimClasses:
    """Union-find over the dims of a program's tensors.

    Dims with one extent by the operators' shape rules are a class.
    """

    def __init__(self, program: KernelGraph) -> None:
        self._parent: dict[Dim, Dim] = {}
        self._fixed: set[Dim] = set()
        self._shapes = [tensor.shape for tensor in kernel_types(program)]
        for first, op in enumerate_results(len(program.inputs), program.ops):
            if isinstance(op, Op):
                self._operator(op, first)

    def root(self, dim: Dim) -> Dim:
        """Return the representative of a dim's class."""
        while dim in self._parent:
            dim = self._parent[dim]
        return dim

    def of(self, tensor: int) -> tuple[Dim, ...]:
        """Return for each dim of a tensor the representative of its class."""
        return tuple(self.root((tensor, dim)) for dim in range(len(self._shapes[tensor])))

    def changeable(self) -> set[Dim]:
        """Return the representatives of the classes whose extent may change without changing any operator's meaning."""
        every = {tie for tensor in range(len(self._shapes)) for tie in self.of(tensor)}
        return every - {self.root(dim) for dim in self._fixed}

    def extent(self, dim: Dim) -> int:
        """Return the extent of a dim."""
        return self._shapes[dim[0]][dim[1]]

    def _unify(self, a: Dim, b: Dim) -> None:
        """Unify two dims of equal extent; a dim of extent 1 beside a longer one is broadcast, and stays separate."""
        if self.extent(a) != self.extent(b):
            return
        a, b = self.root(a), self.root(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)

    def _unify_other_dims(self, op: Op, first: int, but: Iterable[int] = ()) -> None:
        """Unify the dims of all operands with those of the result, except the dims in ``but``."""
        for operand in op.operands:
            for dim in range(len(self._shapes[first])):
                if dim not in but:
                    self._unify((operand, dim), (first, dim))

    def _operator(self, op: Op, first: int) -> None:
        attrs, last = op.attrs, len(self._shapes[first]) - 1
        dims = (*op.operands, first)
        match op.kind:
            case OpKind.MATMUL:
                a, b = op.operands
                self._unify((a, last), (b, last - 1))
                self._unify((a, last - 1), (first, last - 1))
                self._unify((b, last), (first, last))
                for dim in range(last - 1):
                    # A grid splits such a batch dim into single products, one for each block.
                    self._fixed.update((n, dim) for n in dims)
            case OpKind.TRANSPOSE:
                for new, old in enumerate(attrs.perm or ()):
                    self._unify((op.operands[0], old), (first, new))
            case OpKind.RESHAPE:
                pairs = equal_index_dims(self._shapes[op.operands[0]], self._shapes[first])
                for old, new in pairs:
                    self._unify((op.operands[0], old), (first, new))
                olds, news = {old for old, _ in pairs}, {new for _, new in pairs}
                self._fixed.update(
                    (op.operands[0], d) for d in range(len(self._shapes[op.operands[0]])) if d not in olds
                )
                self._fixed.update((first, d) for d in range(last + 1) if d not in news)
            case kind if SPECS[kind].elementwise or attrs.dim is not None:
                along = () if attrs.dim is None or op.kind is OpKind.RMS_NORM else (attrs.dim,)
                self._unify_other_dims(op, first, along)
                if op.kind not in (OpKind.SUM, OpKind.MEAN):
                    self._fixed.update((n, dim) for n in dims for dim in along)
            case _:
                raise AssertionError(op.kind)


__all__ = ["Dim", "DimClasses"]
