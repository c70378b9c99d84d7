"""Integer expressions: simplification changes no value, and upper bounds hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.program.index import IndexBuilder
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var

Meaning = Callable[[Mapping[str, int]], int]
RANGES = {"tid": 8, "bx": 3, "i": 4}


def evaluate(e: IntExpr, at: Mapping[str, int]) -> int:
    match e:
        case Int():
            return e.value
        case Var():
            return at[e.name]
        case IntBin():
            a, b = evaluate(e.a, at), evaluate(e.b, at)
            assert a >= 0
            assert b >= 0
            return {
                IntOp.ADD: lambda: a + b,
                IntOp.SUB: lambda: a - b,
                IntOp.MUL: lambda: a * b,
                IntOp.DIV: lambda: a // b,
                IntOp.MOD: lambda: a % b,
                IntOp.XOR: lambda: a ^ b,
                IntOp.LT: lambda: int(a < b),
                IntOp.EQ: lambda: int(a == b),
                IntOp.AND: lambda: int(bool(a) and bool(b)),
            }[e.op]()


def places() -> Iterator[dict[str, int]]:
    for values in product(*(range(n) for n in RANGES.values())):
        yield dict(zip(RANGES, values, strict=True))


@st.composite
def built(draw: st.DrawFn, depth: int = 4) -> tuple[IndexBuilder, IntExpr, Meaning]:
    """(expression, what it means): built through Indices, and as a function of the variables."""
    ix = IndexBuilder(RANGES)

    def grow(level: int) -> tuple[IntExpr, Meaning]:
        if level == 0 or draw(st.booleans()):
            if draw(st.booleans()):
                n = draw(st.integers(0, 40))
                return Int(n), lambda at: n
            name = draw(st.sampled_from(sorted(RANGES)))
            return Var(name), lambda at: at[name]
        a, f = grow(level - 1)
        n = draw(st.integers(1, 12))
        kind = draw(st.sampled_from(["add", "mul", "div", "mod", "xor", "clamped", "less", "equal"]))
        if kind in ("add", "xor"):
            b, g = grow(level - 1)
            if kind == "add":
                return ix.add(a, b), lambda at: f(at) + g(at)
            return ix.xor(a, b), lambda at: f(at) ^ g(at)
        meaning = {
            "mul": lambda at: f(at) * n,
            "div": lambda at: f(at) // n,
            "mod": lambda at: f(at) % n,
            "clamped": lambda at: f(at) % n,
            "less": lambda at: int(f(at) < n),
            "equal": lambda at: int(f(at) == n),
        }[kind]
        return getattr(ix, kind)(a, n), meaning

    e, meaning = grow(depth)
    return ix, e, meaning


@settings(max_examples=300)
@given(built())
def test_simplification_keeps_values_and_bounds(item: tuple[IndexBuilder, IntExpr, Meaning]) -> None:
    ix, e, meaning = item
    for at in places():
        value = evaluate(e, at)
        assert value == meaning(at)
        assert 0 <= value <= ix.most(e)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 4, 1, 5), (2, 1, 3)])
def test_unravel_is_the_inverse_of_ravel(shape: tuple[int, ...]) -> None:
    ix = IndexBuilder({"e": 1000})
    count = 1
    strides: list[int] = []
    for extent in reversed(shape):
        strides.insert(0, count)
        count *= extent
    ix.named("e", count)
    coordinates = ix.unravel(Var("e"), shape)
    seen = set()
    for e in range(count):
        found = tuple(evaluate(c, {"e": e}) for c in coordinates)
        assert all(0 <= c < extent for c, extent in zip(found, shape, strict=True))
        assert evaluate(ix.ravel(coordinates, strides), {"e": e}) == e
        seen.add(found)
    assert len(seen) == count


def test_addresses_are_simple() -> None:
    """What is known about ranges shows in the text of a kernel: no division that does nothing."""
    ix = IndexBuilder({"tid": 128})
    tid = Var("tid")
    assert ix.div(tid, 128) == Int(0)
    assert ix.mod(tid, 128) == tid
    assert ix.div(ix.add(ix.mul(tid, 8), Int(3)), 8) == tid
    assert ix.mod(ix.add(ix.mul(tid, 8), Int(3)), 4) == Int(3)
    assert ix.div(ix.div(tid, 4), 8) == ix.div(tid, 32)
    assert ix.less(tid, 128) == Int(1)
    assert ix.less(ix.mul(tid, 2), 1) == ix.less(tid, 1)
    assert ix.less(ix.mul(tid, 3), 7) == ix.less(tid, 3)
