"""Batched matrix products of arrays with replicated leading axes, arranged as few large products.

A block graph's product has four leading axes (grid and loop) on both operands, many of extent 1. Computed directly it
would be thousands of tiny products. If only one operand varies along an axis, that axis is merged into its rows or
columns, unless that would copy a large operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

from numpy.typing import NDArray

Array = NDArray[Any]
#: Product of stacks [..., m, k] and [..., k, n] of equal rank; a leading axis of extent 1 is broadcast.
Product = Callable[[Array, Array], Array]

#: An operand with fewer elements than this is copied rather than multiplied in many small pieces.
FREE_COPY: Final = 1 << 20


def batched_product(a: Array, b: Array, product: Product) -> Array:
    """Return the matrix product of ``a`` [..., m, k] and ``b`` [..., k, n], with broadcast leading axes of extent 1.

    Args:
        a: Left operand.
        b: Right operand, of the same rank.
        product: Multiplies stacks; gets views wherever possible.

    Returns:
        The product [..., m, n]; a view of the result of ``product``.
    """
    rank = a.ndim - 2
    left = [i for i in range(rank) if a.shape[i] != 1 and b.shape[i] == 1]
    right = [i for i in range(rank) if a.shape[i] == 1 and b.shape[i] != 1]
    left = left if _merges_cheaply(a, [*left, rank]) else []
    right = right if _merges_cheaply(b, [*right, rank + 1]) else []
    batch = [i for i in range(rank) if i not in left and i not in right]
    lead = tuple(max(a.shape[i], b.shape[i]) for i in batch)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    rows = m * prod(a.shape[i] for i in left)
    columns = n * prod(b.shape[i] for i in right)
    a_stack = a.transpose([*batch, *left, *right, rank, rank + 1]).reshape(*(a.shape[i] for i in batch), rows, k)
    b_stack = b.transpose([*batch, *left, rank, *right, rank + 1]).reshape(*(b.shape[i] for i in batch), k, columns)
    out = product(a_stack, b_stack)
    split = out.reshape(*lead, *(a.shape[i] for i in left), m, *(b.shape[i] for i in right), n)
    order = [*batch, *left, rank, *right, rank + 1]
    return split.transpose([order.index(i) for i in range(rank + 2)])


def summed_product(a: Array, b: Array, axis: int, multiply: Product) -> Array | None:
    """Return the sum of a matrix product along a leading axis that both operands vary along, kept with extent 1.

    It is one product over a longer inner axis. Where exact arithmetic sums the products of a loop's chunks, this is the
    product that other loops have, too.

    Args:
        a: Left operand [..., m, k].
        b: Right operand [..., k, n], of the same rank.
        axis: The leading axis.
        multiply: Multiplies arrays with broadcast leading axes, as ``batched_product`` does.

    Returns:
        The sum; None if a large operand would have to be copied.
    """
    rank = a.ndim - 2
    if not (_merges_cheaply(a, [axis, rank + 1]) and _merges_cheaply(b, [axis, rank])):
        return None
    rest = [i for i in range(rank) if i != axis]
    inner = a.shape[axis] * a.shape[-1]
    left = a.transpose([*rest, rank, axis, rank + 1]).reshape(*(a.shape[i] for i in [*rest, rank]), inner)
    right = b.transpose([*rest, axis, rank, rank + 1]).reshape(*(b.shape[i] for i in rest), inner, b.shape[-1])
    whole = multiply(left, right)
    return whole.reshape(*whole.shape[:axis], 1, *whole.shape[axis:])


def _merges_cheaply(array: Array, axes: Sequence[int]) -> bool:
    """Return whether the axes merge into one without a copy, or the copy costs little."""
    if array.size < FREE_COPY:
        return True
    kept = [i for i in axes if array.shape[i] != 1]
    return all(array.strides[i] == array.strides[j] * array.shape[j] for i, j in pairwise(kept))
