"""Operators of programs that change a tensor's shape: permutations, reshapes, and repeated dims."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mirage_formal.frontend.argument_checks import (
    error_at_user_line,
    parse_dim,
    parse_dtype,
    parse_int,
    parse_ints,
    parse_shape,
)
from mirage_formal.frontend.elementwise_functions import Functions
from mirage_formal.frontend.handles import AnyTensor
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import MAX_RANK, DType, Shape
from mirage_formal.support.errors import ShapeError


class Shapes(Functions[AnyTensor]):
    """Permutations, reshapes, repeated dims and casts."""

    def transpose(
        self, A: AnyTensor, d0: int | Sequence[int] = -2, d1: int | None = None, perm: Sequence[int] | None = None
    ) -> AnyTensor:
        """Return a tensor with two dims swapped, the last two if none are named; or with all dims permuted.

        Args:
            A: The tensor.
            d0: One of the two dims; or a permutation of all dims.
            d1: The other one; the last if left out.
            perm: A permutation: dim i of the result is dim perm[i] of A.

        Returns:
            A tensor with A's elements.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or it is no permutation.
        """
        a = self._own("transpose", A)
        if not isinstance(d0, int):
            perm = d0
        if perm is not None:
            axes = tuple(parse_dim("transpose", d, a.num_dims, repr(a)) for d in perm)
        else:
            first = parse_dim("transpose", d0, a.num_dims, repr(a))
            second = parse_dim("transpose", -1 if d1 is None else d1, a.num_dims, repr(a))
            axes = tuple({first: second, second: first}.get(d, d) for d in range(a.num_dims))
        return self._one(OpKind.TRANSPOSE, (a,), Attrs(perm=axes))

    def reshape(self, A: AnyTensor, shape: Sequence[int] | int, *more: int) -> AnyTensor:
        """Return the same elements in row-major order under another shape.

        Args:
            A: The tensor.
            shape: The extents; one may be -1: what is left.
            more: Further extents, where ``shape`` is the first of them.

        Returns:
            A tensor of the shape.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: The shape has another number of elements.
        """
        a = self._own("reshape", A)
        given = (*parse_ints("reshape", "shape", shape), *parse_ints("reshape", "shape", more))
        known = prod(d for d in given if d != -1)
        if given.count(-1) == 1 and known > 0 and prod(a.shape) % known == 0:
            given = tuple(prod(a.shape) // known if d == -1 else d for d in given)
        return self._reshaped(a, parse_shape("reshape", "shape", given))

    def cast(self, A: AnyTensor, dtype: DType | str | object) -> AnyTensor:
        """Return the same numbers in another element type.

        Args:
            A: The tensor.
            dtype: float16, bfloat16 or float32, also by name.

        Returns:
            A tensor of A's shape.

        Raises:
            GraphError: A is no tensor of this graph.
            DTypeError: There is no such element type.
        """
        return self._one(OpKind.CAST, (self._own("cast", A),), Attrs(dtype=parse_dtype(dtype)))

    def permute(self, A: AnyTensor, *dims: int | Sequence[int]) -> AnyTensor:
        """Return a tensor with all dims permuted.

        Args:
            A: The tensor.
            dims: A permutation, as one sequence or one by one: dim i of the result is dim dims[i] of A.

        Returns:
            A tensor with A's elements.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: It is no permutation.
        """
        given = dims[0] if len(dims) == 1 else dims
        return self.transpose(A, perm=parse_ints("permute", "dims", given))

    def expand(self, A: AnyTensor, *shape: int | Sequence[int]) -> AnyTensor:
        """Return a tensor with dims of extent 1 repeated, and new dims in front.

        Args:
            A: The tensor.
            shape: The extents, as one sequence or one by one; -1 keeps an extent.

        Returns:
            A tensor of the shape.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: A dim of A has another extent than 1 and that of the shape.
        """
        a = self._own("expand", A)
        wanted = parse_ints("expand", "shape", shape[0] if len(shape) == 1 else shape)
        fits = len(wanted) >= a.num_dims
        old = (*(1,) * (len(wanted) - a.num_dims), *a.shape)
        wanted = tuple(
            m if n == -1 and i >= len(wanted) - a.num_dims else n
            for i, (m, n) in enumerate(zip(old, wanted, strict=False))
        )
        if not fits or any(m not in (1, n) for m, n in zip(old, wanted, strict=True)):
            text = f"expand: expected extents of {a!r}, or others where it has 1, got {list(wanted)}"
            raise error_at_user_line(ShapeError, text, "expand repeats dims of extent 1 only")
        found = self._raised(a, len(wanted))
        for axis, extent in enumerate(parse_shape("expand", "shape", wanted)):
            found = self._repeated(found, axis, extent)
        return found

    def _repeated(self, a: AnyTensor, axis: int, times: int) -> AnyTensor:
        """Return a tensor whose dim, of extent 1 or ``times``, has the extent ``times``."""
        return a if a.shape[axis] == times else self._one(OpKind.REPEAT, (a,), Attrs(dim=axis, times=times))

    def repeat_interleave(self, A: AnyTensor, repeats: int, dim: int) -> AnyTensor:
        """Return a tensor with every element along one dim repeated in place, as for keys shared by several queries.

        Args:
            A: The tensor.
            repeats: How often.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape, but for the dim, whose extent is multiplied.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or the number is not positive.
        """
        a, times = self._own("repeat_interleave", A), parse_int("repeat_interleave", "repeats", repeats)
        axis = parse_dim("repeat_interleave", dim, a.num_dims, repr(a))
        if times < 1:
            text = f"repeat_interleave: expected repeats of at least 1, got {times}"
            raise error_at_user_line(ShapeError, text, "give a positive number")
        if times == 1:
            return a
        outer, inner = a.shape[: axis + 1], a.shape[axis + 1 :]
        if a.num_dims == MAX_RANK:
            outer, inner = (prod(outer),), (prod(inner),)
        copies = self._one(OpKind.REPEAT, (self._reshaped(a, (*outer, 1, *inner)),), Attrs(dim=len(outer), times=times))
        return self._reshaped(copies, (*a.shape[:axis], a.shape[axis] * times, *a.shape[axis + 1 :]))

    def squeeze(self, A: AnyTensor, dim: int | Sequence[int] | None = None) -> AnyTensor:
        """Return a tensor without dims of extent 1; it keeps at least one dim.

        Args:
            A: The tensor.
            dim: The dims; those of another extent stay; all if left out.

        Returns:
            A tensor with A's elements.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        a = self._own("squeeze", A)
        dims = self._dims("squeeze", a, dim)
        return self._reshaped(a, tuple(n for i, n in enumerate(a.shape) if n > 1 or i not in dims) or (1,))

    def unsqueeze(self, A: AnyTensor, dim: int) -> AnyTensor:
        """Return a tensor with a new dim of extent 1.

        Args:
            A: The tensor.
            dim: Its number in the result; negative ones count from the last.

        Returns:
            A tensor with A's elements.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such place.
        """
        a = self._own("unsqueeze", A)
        axis = parse_dim("unsqueeze", dim, a.num_dims + 1, repr(a))
        return self._reshaped(a, parse_shape("unsqueeze", "shape", (*a.shape[:axis], 1, *a.shape[axis:])))

    def flatten(self, A: AnyTensor, start_dim: int = 0, end_dim: int = -1) -> AnyTensor:
        """Return a tensor with several neighbouring dims merged into one.

        Args:
            A: The tensor.
            start_dim: The first of them; negative ones count from the last.
            end_dim: The last of them.

        Returns:
            A tensor with A's elements in their order.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There are no such dims, or the first comes after the last.
        """
        a = self._own("flatten", A)
        first, last = (parse_dim("flatten", d, a.num_dims, repr(a)) for d in (start_dim, end_dim))
        if first > last:
            text = f"flatten: expected a first dim that is not behind the last, got {first} and {last}"
            raise error_at_user_line(ShapeError, text, "swap start_dim and end_dim")
        return self._reshaped(a, (*a.shape[:first], prod(a.shape[first : last + 1]), *a.shape[last + 1 :]))

    def _dims(self, operator: str, a: AnyTensor, dim: object) -> tuple[int, ...]:
        """Return distinct dims of a tensor: one, some, or all for None."""
        if dim is None:
            return tuple(range(a.num_dims))
        given = dim if isinstance(dim, Sequence) and not isinstance(dim, str) else (dim,)
        found = tuple(parse_dim(operator, d, a.num_dims, repr(a)) for d in given)
        if not found or len(set(found)) != len(found):
            text = f"{operator}: expected dims of {a!r}, each once, got {list(given)}"
            raise error_at_user_line(ShapeError, text, "name each dim once")
        return found

    def _align(self, kind: OpKind, a: AnyTensor, b: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
        rank = max(a.num_dims, b.num_dims)
        return self._raised(a, rank), self._raised(b, rank)

    def _reshaped(self, a: AnyTensor, shape: Shape) -> AnyTensor:
        return a if a.shape == shape else self._one(OpKind.RESHAPE, (a,), Attrs(shape=shape))

    def _raised(self, a: AnyTensor, rank: int) -> AnyTensor:
        """Return the tensor with dims of extent 1 in front, as numpy broadcasts; messages keep its name."""
        if a.num_dims == rank:
            return a
        raised = self._reshaped(a, (*(1,) * (rank - a.num_dims), *a.shape))
        raised.label = a.label
        return raised
