"""Operands of library matrix products as BLAS describes them: transposed or not, and the leading dimension."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_formal.graph.types import Shape
from mirage_formal.support.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class MatrixSide:
    """A row-major matrix in cuBLAS's terms: transposed or not (as column-major), and its leading dimension."""

    transposed: bool
    leading: int


def matrix_side(shape: Shape, strides: tuple[int, ...]) -> MatrixSide:
    """Return the last two dims of an operand in cuBLAS's terms.

    Raises:
        UnsupportedError: Neither of them is contiguous.
    """
    (rows, cols), (by_row, by_col) = shape[-2:], strides[-2:]
    if cols == 1 or by_col == 1:
        leading = by_row if rows > 1 else cols
        if leading >= cols:
            return MatrixSide(False, leading)
    if rows == 1 or by_row == 1:
        leading = by_col if cols > 1 else rows
        if leading >= rows:
            return MatrixSide(True, leading)
    what = f"expected an operand of matmul with rows or columns contiguous, got strides {list(strides)}"
    raise UnsupportedError(what, where="matmul", hint="make the tensor contiguous")
