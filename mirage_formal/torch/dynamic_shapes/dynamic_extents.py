"""Dynamic extents and their buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mirage_formal.support.errors import ShapeError, UnsupportedError
from mirage_formal.torch.imported_values import unsupported_error

_EXAMPLE = "write shapes={'k': {2: (1, 4096, 128)}}: lengths 1 to 4096 of dim 2 of argument k, in buckets of 128"


@dataclass(frozen=True, slots=True)
class DynamicExtent:
    """A dynamic extent, which is known when a call is made.

    Attributes:
        symbol: Torch's symbol.
        more: Offset added to it, as for a cache that grows by one position.
    """

    symbol: str
    more: int = 0

    def __str__(self) -> str:
        return f"{self.symbol} + {self.more}" if self.more else self.symbol


Extent: TypeAlias = int | DynamicExtent


@dataclass(frozen=True, slots=True)
class Buckets:
    """Supported lengths, and the number of lengths that one program serves.

    Attributes:
        lowest: The smallest length.
        highest: The largest length.
        step: Buckets end at multiples of it, the last one at ``highest``.
    """

    lowest: int
    highest: int
    step: int

    def upper(self, length: int) -> int | None:
        """Return the largest length of the bucket of a length; None if no bucket contains it.

        It is at least 2, because torch drops dims of one element.
        """
        if not self.lowest <= length <= self.highest:
            return None
        return max(min(-(-length // self.step) * self.step, self.highest), 2)

    def uppers(self) -> tuple[int, ...]:
        """Return the largest length of each bucket."""
        first = -(-self.lowest // self.step) * self.step
        found = (*range(first, self.highest, self.step), self.highest)
        return tuple(dict.fromkeys(max(upper, 2) for upper in found))

    def moved(self, more: int) -> Buckets:
        """Return the buckets of a length with an offset; they end at multiples of the step as well."""
        return Buckets(self.lowest + more, self.highest + more, self.step)

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest} in steps of {self.step}"


def buckets(given: Any, where: str) -> Buckets:
    """Parse the buckets that a user gives.

    Args:
        given: (lowest, highest, step), or buckets.
        where: Name of the argument, for the error.

    Raises:
        ShapeError: The value is neither.
    """
    found = (given.lowest, given.highest, given.step) if isinstance(given, Buckets) else given
    whole = isinstance(found, tuple | list) and len(found) == 3
    if not whole or not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise ShapeError(f"expected (lowest, highest, step), got {given!r}", where=where, hint=_EXAMPLE)
    lowest, highest, step = found
    if not 1 <= lowest <= highest or step < 1 or highest < 2:
        text = f"expected 1 <= lowest <= highest, at least 2, and a step of at least 1, got {given!r}"
        raise ShapeError(text, where=where, hint=_EXAMPLE)
    return Buckets(lowest, highest, step)


class DynamicExtents:
    """Dynamic extents of a torch graph; extents that operators require to be equal share one symbol.

    Args:
        graph: The graph, with a tensor of symbolic extents for each node.
    """

    def __init__(self, graph: Any) -> None:
        self._same: dict[str, str] = {}
        for node in graph.nodes:
            if str(node.target) == "aten.scaled_dot_product_attention.default":
                self._unify_attention(node)

    def _unify_attention(self, node: Any) -> None:
        """Unify the numbers of keys, values and mask columns of an attention node.

        Torch's shape rule of attention does not require that they are equal.
        """
        _, key, value, *more = node.args
        mask = more[0] if more else node.kwargs.get("attn_mask")
        keys = self.of(key.meta["val"])[-2]
        others = [self.of(value.meta["val"])[-2]]
        others += [self.of(mask.meta["val"])[-1]] if mask is not None else []
        for other in others:
            if (
                isinstance(keys, DynamicExtent)
                and isinstance(other, DynamicExtent)
                and keys != other
                and keys.more == other.more
            ):
                first, second = sorted((keys.symbol, other.symbol))
                self._same[second] = first
                keys = DynamicExtent(first, keys.more)

    def of(self, tensor: Any) -> tuple[Extent, ...]:
        """Return the extents of a tensor.

        Raises:
            UnsupportedError: An extent is neither known nor a length.
        """
        return tuple(self.extent(n) for n in tensor.shape)

    def extent(self, number: Any) -> Extent:
        """Return one extent of a tensor: a number, or a length.

        Raises:
            UnsupportedError: It is neither known nor a symbol plus a number.
        """
        if isinstance(number, int):
            return number
        expr = number.node.expr
        if expr.is_Integer:
            return int(expr)
        symbols = expr.free_symbols
        if len(symbols) == 1:
            (symbol,) = symbols
            rest = expr - symbol
            if rest.is_Integer:
                return DynamicExtent(self.name(str(symbol)), int(rest))
        raise unsupported_error(f"expected an extent that is known, or a length and a number, got {expr}")

    def is_length(self, number: Any, length: DynamicExtent) -> bool:
        """Return whether a number is a length."""
        try:
            return self.extent(number) == length
        except UnsupportedError:
            return False

    def name(self, symbol: str) -> str:
        """Return the representative of a symbol and those that are equal to it."""
        while symbol in self._same:
            symbol = self._same[symbol]
        return symbol


def upper_extents(extents: Iterable[Extent], uppers: Mapping[DynamicExtent, int]) -> tuple[int, ...]:
    """Return the extents of a bucket: lengths are replaced by their largest values."""
    return tuple(uppers[n] if isinstance(n, DynamicExtent) else n for n in extents)


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dims have a given memory order, the outermost first."""
    found, step = [0] * len(shape), 1
    for dim in reversed(order):
        found[dim], step = step, step * max(shape[dim], 1)
    return tuple(found)


def size_hint(number: Any) -> int:
    """Return an extent or stride as a number; a symbolic one has the value of the example."""
    return number if isinstance(number, int) else int(number.node.hint)


def stride_order(tensor: Any) -> tuple[int, ...]:
    """Return the dims of a tensor by descending stride; among equal strides, the longer dim first."""
    keys = [(-size_hint(s), -size_hint(n)) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return tuple(sorted(range(len(keys)), key=lambda d: keys[d]))


__all__ = [
    "Buckets",
    "DynamicExtent",
    "DynamicExtents",
    "Extent",
    "buckets",
    "dense_strides",
    "size_hint",
    "stride_order",
    "upper_extents",
]
