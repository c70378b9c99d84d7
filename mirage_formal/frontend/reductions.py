"""Operators of programs along dims: sums, extremes, softmax and norms, over one dim, several or all.

Reduced dims stay with extent 1 unless ``keepdim`` is False: the reference system keeps them, and so do the programs
that are written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mirage_formal.frontend.argument_checks import Dims, Number, error_at_user_line, parse_dim, parse_eps, parse_ints
from mirage_formal.frontend.handles import AnyTensor, Handle, rule_error
from mirage_formal.frontend.shared_operators import operator_method
from mirage_formal.frontend.split_concat import SlicingOperators
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.support.errors import ShapeError


class Reductions(SlicingOperators[AnyTensor]):
    """Reductions, softmax and norms."""

    def _reduction(self, kind: OpKind, A: AnyTensor, dim: Dims = None, keepdim: bool = True) -> AnyTensor:  # noqa: D417
        """Return the ... over dims.

        Args:
            A: The tensor.
            dim: The dims over which it is taken: one, several or, if left out, all; negative ones count from the last.
            keepdim: Whether the dims stay with extent 1, as they do in the reference system. Otherwise they are
                dropped; of a tensor that has no other dims one of extent 1 is left.

        Returns:
            A tensor of A's element type.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        a = self._own(kind.value, A)
        return self._reduced(kind, a, self._dims(kind.value, a, dim), keepdim)

    sum = operator_method(_reduction, OpKind.SUM, "sum")
    mean = operator_method(_reduction, OpKind.MEAN, "mean")
    max = operator_method(_reduction, OpKind.MAX, "largest element")

    def _reduced(self, kind: OpKind, a: AnyTensor, dims: tuple[int, ...], keepdim: bool = True) -> AnyTensor:
        """Reduce several dims one after another: over the reals their order does not matter."""
        found = a
        for axis in dims:
            found = self._one(kind, (found,), Attrs(dim=axis))
        return found if keepdim else self._dropped(found, dims)

    def min(self, A: AnyTensor, dim: Dims = None, keepdim: bool = True) -> AnyTensor:
        """Return the smallest element over dims: minus the largest of the negatives.

        Args:
            A: The tensor.
            dim: The dims over which it is taken: one, several or, if left out, all; negative ones count from the last.
            keepdim: Whether the dims stay with extent 1, as they do in the reference system. Otherwise they are
                dropped; of a tensor that has no other dims one of extent 1 is left.

        Returns:
            A tensor of A's element type.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        a = self._scaled("min", A, -1)
        return self._scaled("min", self._reduced(OpKind.MAX, a, self._dims("min", a, dim), keepdim), -1)

    def _dropped(self, a: AnyTensor, dims: Sequence[int]) -> AnyTensor:
        return self._reshaped(a, tuple(n for i, n in enumerate(a.shape) if i not in dims) or (1,))

    def softmax(self, A: AnyTensor, dim: int = -1) -> AnyTensor:
        """Return the softmax e^x / sum of e^x along one dim.

        Args:
            A: The tensor, x in the formula.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        return self._along(OpKind.SOFTMAX, A, dim)

    def logsumexp(self, A: AnyTensor, dim: Dims = -1, keepdim: bool = True) -> AnyTensor:
        """Return the logarithm of the sum of exponentials over dims; the largest element is subtracted first.

        Args:
            A: The tensor.
            dim: The dims: one, several or, for None, all; negative ones count from the last.
            keepdim: Whether the dims stay with extent 1; see ``sum``.

        Returns:
            A tensor of A's element type.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        a = self._own("logsumexp", A)
        dims = self._dims("logsumexp", a, dim)
        largest, logs = self._log_of_sum(a, dims)
        found = self._one(OpKind.ADD, (largest, logs))
        return found if keepdim else self._dropped(found, dims)

    def log_softmax(self, A: AnyTensor, dim: int = -1) -> AnyTensor:
        """Return the logarithm of the softmax along one dim; the largest element is subtracted first.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        a = self._own("log_softmax", A)
        largest, logs = self._log_of_sum(a, (parse_dim("log_softmax", dim, a.num_dims, repr(a)),))
        return self._one(OpKind.SUB, (self._one(OpKind.SUB, (a, largest)), logs))

    def _log_of_sum(self, a: AnyTensor, dims: tuple[int, ...]) -> tuple[AnyTensor, AnyTensor]:
        """Return the largest elements m, and log of the sum of e^(x - m)."""
        largest = self._reduced(OpKind.MAX, a, dims)
        powers = self._one(OpKind.EXP, (self._one(OpKind.SUB, (a, largest)),))
        return largest, self._one(OpKind.LOG, (self._reduced(OpKind.SUM, powers, dims),))

    def rms_norm(
        self,
        A: AnyTensor,
        normalized_shape: Sequence[int] | int | AnyTensor | None = None,
        weight: AnyTensor | None = None,
        eps: Number | None = None,
        dim: int = -1,
        *,
        bias: AnyTensor | None = None,
    ) -> AnyTensor:
        """Return A divided by the root of the mean of its squares, times a weight, plus a bias.

        Args:
            A: The tensor.
            normalized_shape: Extents of the last dims, over which is normalised, ``dim`` is then not used; or a weight.
            weight: A factor; a vector as long as the normalised dim, or anything that broadcasts to A.
            eps: An exact constant under the root; none if left out.
            dim: The dim over which is normalised.
            bias: A summand, likewise.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: ``normalized_shape``, the weight or the bias does not fit.
        """
        if isinstance(normalized_shape, Handle) and weight is None:
            normalized_shape, weight = None, normalized_shape
        axis = dim if normalized_shape is None else parse_ints("rms_norm", "normalized_shape", normalized_shape)
        return self._norm(OpKind.RMS_NORM, A, axis, (weight, bias), eps)

    def layer_norm(
        self,
        A: AnyTensor,
        dim: int | Sequence[int] = -1,
        weight: AnyTensor | None = None,
        bias: AnyTensor | None = None,
        eps: Number | None = None,
    ) -> AnyTensor:
        """Return the layer norm (x - mean) / sqrt(variance + eps) * weight + bias, along one dim or over the last dims.

        Args:
            A: The tensor, x in the formula.
            dim: The dim; negative ones count from the last. A sequence has the extents of the last dims, over all of
                which is normalised.
            weight: A factor; a vector as long as the dim, or anything that broadcasts to A.
            bias: A summand, likewise.
            eps: An exact constant under the root; none if left out.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: There is no such dim, or the extents, the weight or the bias do not fit.
        """
        axis = parse_ints("layer_norm", "normalized_shape", dim) if isinstance(dim, Sequence) else dim
        return self._norm(OpKind.LAYER_NORM, A, axis, (weight, bias), eps)

    def _norm(
        self,
        kind: OpKind,
        A: object,
        over: int | tuple[int, ...],
        extras: tuple[AnyTensor | None, AnyTensor | None],
        eps: Number | None,
    ) -> AnyTensor:
        """Return a norm along one dim, or over the last dims, which are merged for it."""
        a = self._own(kind.value, A)
        weight, bias = (None if extra is None else self._own(kind.value, extra) for extra in extras)
        trailing = self._trailing(kind.value, a, over) if isinstance(over, tuple) else 1
        if trailing > 1:
            kept = a.num_dims - trailing
            flat = self._reshaped(a, (*a.shape[:kept], prod(a.shape[kept:])))
            weight, bias = (None if extra is None else self._flat(kind, extra, a, kept) for extra in (weight, bias))
            return self._reshaped(self._norm(kind, flat, -1, (weight, bias), eps), a.shape)
        axis = parse_dim(kind.value, -1 if isinstance(over, tuple) else over, a.num_dims, repr(a))
        operands = [a] if weight is None else [a, self._beside(kind, a, weight, axis)]
        added = None if bias is None else self._beside(kind, a, bias, axis)
        if added is not None and kind is OpKind.LAYER_NORM and weight is not None:
            operands.append(added)
            added = None
        found = self._one(kind, tuple(operands), Attrs(dim=axis, eps=parse_eps(kind.value, eps)))
        return found if added is None else self._one(OpKind.ADD, (found, added))

    def _trailing(self, operator: str, a: AnyTensor, wanted: tuple[int, ...]) -> int:
        if not wanted or wanted != a.shape[-len(wanted) :]:
            text = f"{operator}: expected normalized_shape to be the last dims of {a!r}, got {list(wanted)}"
            raise error_at_user_line(
                ShapeError, text, f"for the last dim alone write normalized_shape=({a.shape[-1]},)"
            )
        return len(wanted)

    def _flat(self, kind: OpKind, extra: AnyTensor, a: AnyTensor, kept: int) -> AnyTensor:
        """Return a weight or bias of the shape of the last dims as a vector."""
        if extra.shape != a.shape[kept:]:
            text = f"{kind.value}: expected a weight or bias of shape {list(a.shape[kept:])}, got {extra!r}"
            raise error_at_user_line(ShapeError, text, "it must have the normalised shape")
        return self._reshaped(extra, (prod(extra.shape),))

    def _beside(self, kind: OpKind, a: AnyTensor, extra: AnyTensor, axis: int) -> AnyTensor:
        """Return a weight or bias in the rank of ``a``; a vector lies along the normalised dim."""
        if extra.num_dims == 1 and extra.shape[0] == a.shape[axis]:
            shape = tuple(extra.shape[0] if d == axis else 1 for d in range(a.num_dims))
            laid = self._reshaped(extra, shape)
            laid.label = extra.label
            return laid
        if extra.num_dims > a.num_dims:
            raise rule_error(kind, "expected a weight or bias of no higher rank", (a, extra))
        return self._raised(extra, a.num_dims)
