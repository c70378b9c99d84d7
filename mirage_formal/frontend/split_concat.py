"""Operators of programs that cut and join tensors: slices, splits, concatenations and pads."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import accumulate
from math import prod

from mirage_formal.frontend.argument_checks import (
    Number,
    Part,
    error_at_user_line,
    parse_dim,
    parse_int,
    parse_ints,
    parse_number,
)
from mirage_formal.frontend.handles import AnyTensor, Handle
from mirage_formal.frontend.shape_operators import Shapes
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.support.errors import ShapeError, UnsupportedError


class SlicingOperators(Shapes[AnyTensor]):
    """Slices, splits, concatenations and pads."""

    def concat(
        self, A: AnyTensor | Sequence[AnyTensor], B: AnyTensor | int | None = None, dim: int | None = None
    ) -> AnyTensor:
        """Return tensors concatenated along one dim: ``concat(A, B, dim)`` or ``concat([A, B, ...], dim)``.

        Args:
            A: The first tensor, or all of them.
            B: The second tensor, or the dim.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape, but for the dim: its extent is the sum.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: There is no such dim, other extents differ, or no tensor was given.
        """
        if isinstance(A, Handle):
            items: list[object] = [A, B]
            axis: object = dim
        else:
            items = list(A)
            axis = B if dim is None else dim
        if not items:
            raise error_at_user_line(ShapeError, "concat: expected at least one tensor, got none", "give tensors")
        out = self._own("concat", items[0])
        found = parse_dim("concat", axis, out.num_dims, repr(out))
        for item in items[1:]:
            out = self._one(OpKind.CONCAT, (out, self._own("concat", item)), Attrs(dim=found))
        return out

    def slice(self, A: AnyTensor, dim: int, start: int = 0, stop: int | None = None, step: int = 1) -> AnyTensor:
        """Return some elements along one dim, as ``A[start:stop:step]`` gives them for dim 0.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.
            start: The first element; negative ones count from the end.
            stop: The element before which it ends, likewise; the end if left out.
            step: How far elements are apart, at least 1.

        Returns:
            A tensor of A's shape, but for the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or nothing lies between start and stop.
            UnsupportedError: The step is below 1.
        """
        a = self._own("slice", A)
        axis, apart = parse_dim("slice", dim, a.num_dims, repr(a)), parse_int("slice", "step", step)
        if apart < 1:
            raise error_at_user_line(
                UnsupportedError, f"slice: expected a step of at least 1, got {apart}", "leave the step out"
            )
        bounds = [None if n is None else parse_int("slice", "bounds", n) for n in (start, stop)]
        first, end, _ = builtins.slice(*bounds).indices(a.shape[axis])
        if end <= first:
            text = f"slice: expected some elements along dim {axis} of {a!r}, got {first}:{end}"
            raise error_at_user_line(ShapeError, text, "give a start before the stop")
        if apart == 1:
            return self._part(a, axis, first, end)
        # Rows of ``apart`` elements, each of which gives its first element; an incomplete last row is filled up.
        rows = -(-(end - first) // apart)
        last = min(a.shape[axis], first + rows * apart)
        run = self._padded(self._part(a, axis, first, last), axis, 0, first + rows * apart - last)
        outer, inner = prod(a.shape[:axis]), prod(a.shape[axis + 1 :])
        taken = self._part(self._reshaped(run, (outer * rows, apart, inner)), 1, 0, 1)
        return self._reshaped(taken, (*a.shape[:axis], rows, *a.shape[axis + 1 :]))

    def _part(self, a: AnyTensor, axis: int, start: int, stop: int) -> AnyTensor:
        if (start, stop) == (0, a.shape[axis]):
            return a
        return self._one(OpKind.SLICE, (a,), Attrs(dim=axis, start=start, stop=stop))

    def index(self, A: AnyTensor, key: Part | tuple[Part, ...]) -> AnyTensor:
        """Return the parts along dims that ``A[key]`` selects, from the first, as numpy reads them.

        Args:
            A: The tensor.
            key: For each dim a slice, which may have a positive step, or an integer, whose dim is dropped; ``...`` for
                the dims that are not named, None for a new dim of extent 1.

        Returns:
            The part of A; of rank 1 and extent 1 where every dim is dropped.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There are too many indices, or one lies outside.
            UnsupportedError: An index is of another kind.
        """
        a = self._own("index", A)
        items = key if isinstance(key, tuple) else (key,)
        named = sum(item is not None and item is not Ellipsis for item in items)
        if named > a.num_dims or sum(item is Ellipsis for item in items) > 1:
            raise error_at_user_line(
                ShapeError, f"index: expected at most {a.num_dims} indices of {a!r}, got {key}", "index fewer dims"
            )
        axis, shape, found = 0, list[int](), a
        for item in items if Ellipsis in items else (*items, Ellipsis):
            if item is None:
                shape.append(1)
            elif item is Ellipsis:
                kept = a.num_dims - named
                shape += a.shape[axis : axis + kept]
                axis += kept
            elif isinstance(item, builtins.slice):
                step = 1 if item.step is None else item.step
                found = self.slice(found, axis, 0 if item.start is None else item.start, item.stop, step)
                shape.append(found.shape[axis])
                axis += 1
            else:
                found = self._single(found, axis, item)
                axis += 1
        return self._reshaped(found, tuple(shape) or (1,))

    def _single(self, a: AnyTensor, axis: int, item: object) -> AnyTensor:
        extent, place = a.shape[axis], parse_int("index", "indices", item)
        if not -extent <= place < extent:
            text = f"index: expected an index in {-extent}..{extent - 1} of dim {axis} of {a!r}, got {place}"
            raise error_at_user_line(ShapeError, text, "give an index inside of the dim")
        return self._part(a, axis, place % extent, place % extent + 1)

    def split(self, A: AnyTensor, size: int | Sequence[int], dim: int = 0) -> list[AnyTensor]:
        """Return the parts of a tensor that is cut along one dim.

        Args:
            A: The tensor.
            size: Extents of the parts, whose sum is the dim's; or one extent for all; the last may be shorter.
            dim: The dim; negative ones count from the last.

        Returns:
            The parts, in order.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or the extents do not add up to it.
        """
        a = self._own("split", A)
        axis = parse_dim("split", dim, a.num_dims, repr(a))
        extent, sizes = a.shape[axis], parse_ints("split", "size", size)
        if not isinstance(size, Sequence) and sizes[0] > 0:
            sizes = tuple(min(sizes[0], extent - first) for first in range(0, extent, sizes[0]))
        if any(n < 1 for n in sizes) or sum(sizes) != extent:
            text = f"split: expected positive extents that add up to {extent}, got {list(sizes)}"
            raise error_at_user_line(ShapeError, text, f"give parts of dim {axis} of {a!r}")
        ends = tuple(accumulate(sizes))
        return [self._part(a, axis, end - n, end) for n, end in zip(sizes, ends, strict=True)]

    def chunk(self, A: AnyTensor, chunks: int, dim: int = 0) -> list[AnyTensor]:
        """Return the parts of a tensor cut along one dim; their extents are equal, but the last may be shorter.

        Args:
            A: The tensor.
            chunks: The most parts.
            dim: The dim; negative ones count from the last.

        Returns:
            The parts, in order.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or no part is asked for.
        """
        a, count = self._own("chunk", A), parse_int("chunk", "chunks", chunks)
        axis = parse_dim("chunk", dim, a.num_dims, repr(a))
        if count < 1:
            raise error_at_user_line(ShapeError, f"chunk: expected at least one part, got {count}", "ask for more")
        return self.split(a, -(-a.shape[axis] // count), axis)

    def pad(self, A: AnyTensor, dim: int, before: int, after: int, value: Number = 0) -> AnyTensor:
        """Return a tensor with a constant before and behind it, along one dim.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.
            before: How many elements come before it.
            after: How many elements come behind it.
            value: The exact number that they are.

        Returns:
            A tensor of A's shape, but for the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or a number of elements is negative.
            UnsupportedError: The value is no finite number.
        """
        a, constant = self._own("pad", A), parse_number("pad", value)
        axis = parse_dim("pad", dim, a.num_dims, repr(a))
        counts = [parse_int("pad", "before and after", n) for n in (before, after)]
        if min(counts) < 0:
            raise error_at_user_line(
                ShapeError, f"pad: expected no negative number of elements, got {counts}", "use slice to cut"
            )
        if constant == 0 or not any(counts):
            return self._padded(a, axis, *counts)
        edge = self.full_like(self._part(a, axis, 0, 1), constant)
        ends = [self._repeated(edge, axis, n) if n else None for n in counts]
        return self.concat([part for part in (ends[0], a, ends[1]) if part is not None], axis)

    def _padded(self, a: AnyTensor, axis: int, before: int, after: int) -> AnyTensor:
        return self._one(OpKind.PAD, (a,), Attrs(dim=axis, before=before, after=after)) if before + after else a
