"""Reduction of a problem's sizes: numbers at module level are divided by a power of two."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Final

_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
#: Smallest number that halving produces.
LEAST: Final = 16


def halve_numbers(source: str, largest: int) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return the text of a file with its numbers halved until the largest is at most ``largest``.

    Only numbers that the file assigns at module level are changed: whole numbers, sums and products of them, and tuples
    and lists of these. Values that are computed from their names change with them. A number is halved fewer times where
    it would fall below 16, so that most divisibility relations hold; equal numbers stay equal.

    Args:
        source: The text of the file.
        largest: The bound.

    Returns:
        The text, and the old and new value of each number, by its name.

    Raises:
        SyntaxError: The text is not Python.
    """
    found = list(_numbers(ast.parse(source)))
    most = max((number for _, _, number in found), default=0)
    times = 0
    while most >> times > largest:
        times += 1
    lines = source.encode().splitlines(keepends=True)  # columns of ast count bytes
    changed: dict[str, tuple[int, int]] = {}
    for name, node, number in sorted(found, key=lambda one: (one[1].lineno, one[1].col_offset), reverse=True):
        smaller = number >> next(n for n in range(times, -1, -1) if not n or number >> n >= LEAST)
        if smaller != number:
            changed[name] = (number, smaller)
            _replace(lines, node, str(smaller))
    return b"".join(lines).decode(), dict(reversed(changed.items()))


def _numbers(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if isinstance(value, ast.Tuple | ast.List):
                    parts = [(f"{name}[{i}]", part) for i, part in enumerate(value.elts)]
                else:
                    parts = [(name, value)]
                for label, part in parts:
                    number = _number(part)
                    if number is not None and number > 0:
                        yield label, part, number


def _number(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            pair = _number(left), _number(right)
            if pair[0] is None or pair[1] is None or (isinstance(op, ast.FloorDiv) and not pair[1]):
                return None
            return _OPERATORS[type(op)](pair[0], pair[1])
    return None


def _replace(lines: list[bytes], node: ast.expr, text: str) -> None:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    line = lines[first][: node.col_offset] + text.encode() + lines[last][node.end_col_offset :]
    lines[first : last + 1] = [line] + [b""] * (last - first)


__all__ = ["LEAST", "halve_numbers"]
