"""Matrix products of programs, with broadcast of their batch dims."""

from __future__ import annotations

from math import prod

from mirage_formal.frontend.handles import AnyTensor, rule_error
from mirage_formal.frontend.reductions import Reductions
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape, broadcast


class Products(Reductions[AnyTensor]):
    """Matrix products."""

    def matmul(self, A: AnyTensor, B: AnyTensor) -> AnyTensor:
        """Return the matrix product over the last two dims; the dims before them broadcast.

        C[..., i, j] = sum over k of A[..., i, k] B[..., k, j]. Ranks may differ and leading extents may be 1; a vector
        on the left is a row, one on the right a column, and its dim is dropped from the result.

        Args:
            A: A tensor of shape [..., m, k], or a vector [k].
            B: A tensor of shape [..., k, n], or a vector [k].

        Returns:
            A tensor of shape [..., m, n]; of two vectors one of extent 1.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: The shapes do not fit.
        """
        a, b = self._own("matmul", A), self._own("matmul", B)
        left = self._reshaped(a, (1, *a.shape)) if a.num_dims == 1 else a
        right = self._reshaped(b, (*b.shape, 1)) if b.num_dims == 1 else b
        lead = self._batch(left, right)
        if left.shape[-1] != right.shape[-2] or lead is None:
            raise rule_error(OpKind.MATMUL, "expected leading dimensions that are equal or 1", (a, b))
        found = self._batched(left, right, lead)
        kept = (*lead, *(left.shape[-2:-1] if a.num_dims > 1 else ()), *(right.shape[-1:] if b.num_dims > 1 else ()))
        return self._reshaped(found, kept or (1,))

    @staticmethod
    def _batch(a: AnyTensor, b: AnyTensor) -> Shape | None:
        """Return the leading dims of a product; None if they do not broadcast."""
        rank = max(a.num_dims, b.num_dims) - 2
        left, right = ((*(1,) * (rank - x.num_dims + 2), *x.shape[:-2]) for x in (a, b))
        return broadcast(left, right)

    def _batched(self, a: AnyTensor, b: AnyTensor, lead: Shape) -> AnyTensor:
        if prod(b.shape[:-2]) == 1 and b.num_dims <= a.num_dims and a.shape[:-2] != b.shape[:-2]:
            # One right operand for all: the leading dims of the left one are rows, and nothing is copied.
            rows = self._reshaped(a, (prod(a.shape[:-1]), a.shape[-1]))
            found = self._one(OpKind.MATMUL, (rows, self._reshaped(b, b.shape[-2:])))
            return self._reshaped(found, (*a.shape[:-1], b.shape[-1]))
        both = (self.expand(x, (*lead, *x.shape[-2:])) for x in (a, b))
        return self._one(OpKind.MATMUL, tuple(both))

    def linear(self, x: AnyTensor, w: AnyTensor, b: AnyTensor | None = None) -> AnyTensor:
        """Return the linear layer x w^T + b, with the weight's layout as in other systems.

        Args:
            x: A tensor of shape [..., in].
            w: The weight, of shape [out, in].
            b: The bias, of shape [out] or anything that broadcasts to the result; none if left out.

        Returns:
            A tensor of shape [..., out].

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: The shapes do not fit.
        """
        found = self.matmul(x, self.transpose(w))
        return found if b is None else self.add(found, b)

    def addmm(self, b: AnyTensor, x: AnyTensor, w: AnyTensor) -> AnyTensor:
        """Return a product with a summand: b + x w.

        Args:
            b: The summand, which broadcasts to the product.
            x: A tensor of shape [..., m, k].
            w: A tensor of shape [..., k, n].

        Returns:
            A tensor of shape [..., m, n].

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: The shapes do not fit.
        """
        return self.add(b, self.matmul(x, w))
