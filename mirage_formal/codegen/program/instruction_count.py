"""A count of the statements that a Program executes, for comparison of Programs."""

from __future__ import annotations

from math import prod
from typing import Final

from mirage_formal.codegen.program.program import (
    TILE_COLUMNS,
    For,
    GlobalVector,
    If,
    Mma,
    Program,
    SharedVector,
    Stmt,
    TileCopy,
    WarpgroupMma,
)

#: The cost of a product of fragments, in statements.
_MMA: Final = 64


def count_statements(program: Program) -> float:
    """Return the statements that all threads of a launch execute; vector statements count once per element."""
    return float(prod(program.grid) * (program.threads * _body(program.body) + _body(program.producer)))


def _body(body: tuple[Stmt, ...]) -> int:
    total = 0
    for stmt in body:
        match stmt:
            case For():
                total += stmt.extent * (1 + _body(stmt.body))
            case If():
                total += 1 + _body(stmt.body)
            case Mma():
                total += _MMA
            case WarpgroupMma(columns=columns, depth=depth):
                total += _MMA * (columns // 8) * (depth // 16)
            case SharedVector() | GlobalVector():
                total += stmt.count
            case TileCopy(rows=rows):
                total += rows * TILE_COLUMNS
            case _:
                total += 1
    return total


__all__ = ["count_statements"]
