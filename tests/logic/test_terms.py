"""Hash-consed terms: one object per term, in any process, at any depth."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.logic.terms import (
    Expr,
    Sum,
    add,
    children,
    const,
    div,
    head,
    mul,
    order_key,
    parse_extent,
    parse_symbol,
    postorder,
    sum_,
    term_to_text,
    unary,
    var,
)
from tests.kit.processes import calls
from tests.kit.sampling import number

X, Y = var("X"), var("Y")


def test_equal_terms_are_one_object() -> None:
    assert add(X, mul(Y, X)) is add(var("X"), mul(var("Y"), var("X")))
    assert add(X, Y) is not add(Y, X)
    assert add(X, Y) is not mul(X, Y)
    assert const(2) is const(Fraction(4, 2))
    assert const(2) is not const(3)
    assert sum_(1, X) is X
    assert sum_(2, X) is not sum_(3, X)
    assert unary("exp", X) is not unary("sqrt", X)


def test_copies_are_interned_again() -> None:
    e = div(sum_(64, mul(X, Y)), unary("sqrt", add(X, const(Fraction(1, 3)))))
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.deepcopy(e) is e
    assert copy.copy(e) is e


def test_terms_are_frozen() -> None:
    with pytest.raises(AttributeError):
        X.name = "Y"  # type: ignore[misc, union-attr]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="extent of at least 1, got 0"):
        sum_(0, X)
    with pytest.raises(ValueError, match="needs a name"):
        var("")


def test_text() -> None:
    e = div(sum_(64, mul(X, Y)), unary("exp", const(Fraction(-1, 2))))
    assert term_to_text(e) == str(e) == repr(e) == "(divide (sum.64 (mul var.X var.Y)) (exp const.-1/2))"


def tower(height: int) -> Expr:
    e = X
    for _ in range(height):
        e = add(e, e)
    return e


def test_shared_towers_cost_their_nodes() -> None:
    def walk(height: int) -> None:
        e = tower(height)
        assert len(list(postorder([e]))) == height + 1
        assert hash(e) == hash(tower(height))
        assert order_key(e) == order_key(tower(height))

    small = calls(lambda: walk(300), 100_000)
    assert calls(lambda: walk(3_000), 1_000_000) < 12 * small


def test_postorder_gives_arguments_first_and_once() -> None:
    e = mul(add(X, Y), add(X, Y))
    seen: set[Expr] = set()
    for node in postorder([e, X]):
        assert set(children(node)) <= seen
        assert node not in seen
        seen.add(node)
    assert seen == {X, Y, add(X, Y), e}


def test_order_is_the_same_in_every_process() -> None:
    code = (
        "from mirage_formal.logic.terms import *;"
        "unary('exp', var('Z'));"
        "print(order_key(div(sum_(64, mul(var('X'), var('Y'))), const(3))).hex())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == order_key(div(sum_(64, mul(X, Y)), const(3))).hex()


@settings(max_examples=number(60, 200), deadline=None, derandomize=True)
@given(st.text(min_size=1).filter(lambda s: not any(0xD800 <= ord(c) < 0xE000 for c in s)))
def test_any_name_has_a_symbol(name: str) -> None:
    symbol = head(var(name))
    assert parse_symbol(symbol) is var(name)
    assert symbol.isascii()
    assert not set(symbol) & set(" ()|;\"'\\")


@given(st.fractions())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_constants_have_symbols(value: Fraction) -> None:
    assert parse_symbol(head(const(value))) is const(value)


@pytest.mark.parametrize(
    "symbol",
    ["", "X", "var.", "var.%zz", "var.a b", "const.", "const.2/4", "const.1/0", "const.1e99999999", "const.0x1", "t1"],
)
def test_no_other_symbol_is_a_leaf(symbol: str) -> None:
    assert parse_symbol(symbol) is None


def test_extents_of_sum_symbols() -> None:
    assert parse_extent("sum.64") == 64
    assert head(Sum(64, X)) == "sum.64"
    for wrong in ("sum", "sum.", "sum.0", "sum.064", "sum.-1", "sum.x", "sum.²", "add.4", "sum." + "9" * 30):
        assert parse_extent(wrong) is None
