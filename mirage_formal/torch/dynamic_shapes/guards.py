"""Validity of a graph with symbolic extents: the lengths for which torch would trace the same graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.capture import CapturedGraph
from mirage_formal.torch.dynamic_shapes.dynamic_extents import DynamicExtents

_MOST_PAIRS: Final = 10_000


def guards(captured: CapturedGraph) -> list[Any]:
    """Return the guards on symbolic extents that torch assumed when it traced the graph, as expressions.

    torch.export keeps only the range of each length.
    """
    env = _environment(captured)
    found = [] if env is None else [env.replace(guard.expr) for guard in env.guards]
    return list(dict.fromkeys(expr for expr in found if expr.free_symbols))


def _environment(captured: CapturedGraph) -> Any:
    for node in captured.module.graph.nodes:
        value = node.meta.get("val")
        for extent in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(extent, int):
                return extent.node.shape_env
    return None


def lengths_failing_guards(
    captured: CapturedGraph, lengths: DynamicExtents, wanted: Mapping[str, Iterable[int]]
) -> dict[str, frozenset[int]]:
    """Return the lengths for which the module takes another path.

    Args:
        captured: Its graph.
        lengths: The lengths in it.
        wanted: The lengths to check, of each symbol.

    Returns:
        For each symbol, the lengths for which a guard does not hold.

    Raises:
        UnsupportedError: A guard is about two lengths, and does not hold for all of them.

    Sound: torch takes another way through the module, or records another operator, only where it has asked whether
    something holds for the extents, and each answer for the example is a guard. A length for which all guards hold gets
    the same answers.
    """
    found: dict[str, set[int]] = {symbol: set() for symbol in wanted}
    for expr in guards(captured):
        symbols = sorted(expr.free_symbols, key=str)
        names = {lengths.name(str(symbol)) for symbol in symbols}
        if not names <= found.keys():
            raise UnsupportedError(f"expected a module that asks nothing about other extents, got {expr}")
        if len(names) > 1:
            _expect_guard_for_all(expr, [wanted[lengths.name(str(symbol))] for symbol in symbols], symbols)
            continue
        (name,) = names
        for length in wanted[name]:
            if not expr.xreplace({symbol: _integer(length) for symbol in symbols}):
                found[name].add(length)
    return {symbol: frozenset(some) for symbol, some in found.items()}


def _expect_guard_for_all(expr: Any, ranges: Sequence[Iterable[int]], symbols: Sequence[Any]) -> None:
    """Refuse a guard on several lengths that fails for some of them, or that has too many combinations to check."""
    pairs = list(itertools.islice(itertools.product(*ranges), _MOST_PAIRS + 1))
    holds = (expr.xreplace(dict(zip(symbols, map(_integer, pair), strict=True))) for pair in pairs)
    if len(pairs) > _MOST_PAIRS or not all(holds):
        text = f"expected a module that does not compare two lengths, got {expr}"
        raise UnsupportedError(text, hint="let one of them vary only")


def _integer(number: int) -> Any:
    import sympy

    return sympy.Integer(number)


def add_guards(captured: CapturedGraph, symbols: Mapping[str, Any], environment: Any) -> None:
    """Add a graph's guards to those of the graph that Dynamo compiles, so that a failing guard recompiles it.

    Args:
        captured: The graph.
        symbols: Dynamo's extents by the names of the graph's symbols.
        environment: Dynamo's shape environment.
    """
    for expr in guards(captured):
        known = {symbol: symbols[str(symbol)] for symbol in expr.free_symbols}
        if not environment.evaluate_expr(expr.xreplace(known)):
            raise UnsupportedError(f"expected extents for which {expr} holds")


def is_valid_at_one(captured: CapturedGraph, static: CapturedGraph) -> bool:
    """Return whether the graph at lengths of 1 is the one that torch traces for arguments of these lengths.

    Torch takes lengths to be at least 2, because extents of 1 are broadcast where others are not.

    Args:
        captured: The graph with symbolic extents.
        static: The graph for arguments of length 1.

    Sound: equal operators with equal arguments, on tensors of equal extents, compute the same.
    """
    return _rows(captured) == _rows(static)


def _rows(captured: CapturedGraph) -> list[Any]:
    numbers: dict[str, int] = {}
    rows: list[Any] = []
    for node in captured.module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and not _of_tensors(value):
            continue
        numbers[node.name] = len(rows)
        args = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: _row(n, numbers))
        shapes = [_at_length_one(x) for x in (value if isinstance(value, tuple | list) else [value])]
        rows.append((node.op, str(node.target) if node.op == "call_function" else "", str(args), str(shapes)))
    return rows


def _of_tensors(value: Any) -> bool:
    return any(isinstance(x, torch.Tensor) for x in (value if isinstance(value, tuple | list) else [value]))


def _row(node: Any, numbers: Mapping[str, int]) -> Any:
    value = node.meta.get("val")
    return f"t{numbers[node.name]}" if node.name in numbers else _at_length_one(value)


def _at_length_one(value: Any) -> Any:
    """Return a number, or the extents of a tensor, with all lengths set to 1."""
    if isinstance(value, torch.SymInt):
        expr = value.node.expr
        return int(expr.xreplace({symbol: _integer(1) for symbol in expr.free_symbols}))
    return [_at_length_one(n) for n in value.shape] if isinstance(value, torch.Tensor) else value


__all__ = ["add_guards", "guards", "is_valid_at_one", "lengths_failing_guards"]
