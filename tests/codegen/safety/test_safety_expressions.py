"""Bounds, divisors, digits and texts of index expressions, against every value."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.program.integers import (
    are_contradictory,
    conjuncts,
    divisor,
    evaluate_expression,
    fold,
    implied_bounds,
    interval,
    variables,
)
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.safety.access_disjointness import simplify_divisions
from mirage_formal.codegen.safety.arith import INT_MAX, Query, SolverReplies, query_to_smt2, solve_query
from mirage_formal.codegen.safety.mixed_radix import (
    Digit,
    Xor,
    are_separate,
    determined_variables,
    have_disjoint_offsets,
    implied_facts,
    is_injective,
    to_digits,
)
from mirage_formal.logic.session import Satisfiability, SolverResult
from tests.kit.kernels.safety_programs import add, both, div, equal, expr, less, mod, mul, sub, tid, xor
from tests.kit.sampling import number

SIZES = {"tid": 8, "k": 3, "i": 5}


def points() -> list[dict[str, int]]:
    return [dict(zip(SIZES, values, strict=True)) for values in product(*(range(n) for n in SIZES.values()))]


EVERYWHERE = points()
LEAVES: st.SearchStrategy[IntExpr] = st.sampled_from([Var(name) for name in SIZES]) | st.integers(0, 9).map(Int)


def grow(inner: st.SearchStrategy[IntExpr]) -> st.SearchStrategy[IntExpr]:
    constant = st.sampled_from((1, 2, 3, 4, 6, 8, 16)).map(Int)
    return (
        st.builds(IntBin, st.sampled_from((IntOp.ADD, IntOp.XOR, IntOp.ADD)), inner, inner)
        | st.builds(IntBin, st.sampled_from((IntOp.MUL, IntOp.DIV, IntOp.MOD)), inner, constant)
        | st.builds(IntBin, st.sampled_from((IntOp.MUL, IntOp.DIV, IntOp.MOD)), inner, constant)
    )


def chained(inner: IntExpr, first: IntOp, c: int, second: IntOp, d: int) -> IntExpr:
    return IntBin(second, IntBin(first, inner, Int(c)), Int(d))


#: Two operations by constants that may or may not fit each other.
CHAINS = st.builds(
    chained,
    st.sampled_from([Var("tid"), add(tid, mul(Var("k"), 8))]),
    st.sampled_from((IntOp.MUL, IntOp.MOD, IntOp.DIV)),
    st.integers(1, 12),
    st.sampled_from((IntOp.DIV, IntOp.MOD)),
    st.integers(1, 8),
)
EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=7) | CHAINS
CONDITIONS = st.builds(IntBin, st.sampled_from((IntOp.LT, IntOp.EQ)), EXPRESSIONS, st.integers(0, 20).map(Int))
#: Thread and loop as one number, as kernels make it, cut at any number.
COUNTERS = st.builds(
    lambda c, s, x: add(mul(div(add(tid, mul(Var("k"), 8)), c), s), mul(xor(mod(add(tid, mul(Var("k"), 8)), c), x), 2)),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 3) | st.just(mod(div(tid, 2), 2)),
)


@settings(max_examples=300)
@given(EXPRESSIONS, CONDITIONS)
def test_bounds_and_divisors_hold_of_every_value(e: IntExpr, guard: IntExpr) -> None:
    ranges = {name: (0, size - 1) for name, size in SIZES.items()}
    bounds = implied_bounds((guard,), ranges)
    low, high = interval(e, ranges)
    tighter = interval(e, ranges, bounds)
    divides = divisor(e)
    for at in EVERYWHERE:
        value = evaluate_expression(e, at)
        assert value is not None
        assert low <= value <= high
        assert value % divides == 0 if divides else value == 0
        if evaluate_expression(guard, at):
            assert not are_contradictory(bounds)
            assert tighter[0] <= value <= tighter[1]


@pytest.mark.parametrize(
    ("e", "divides"),
    [
        (mul(tid, 8), 8),
        (div(mul(tid, 8), 4), 2),
        (div(mul(tid, 8), 3), 1),
        (mod(mul(tid, 12), 8), 4),
        (xor(mul(tid, 12), mul(Var("k"), 8)), 4),
        (sub(mul(tid, 12), mul(Var("k"), 6)), 6),
        (mul(xor(tid, 1), 16), 16),
        (add(mul(tid, 16), 2), 2),
    ],
)
def test_divisors_of_usual_indices(e: IntExpr, divides: int) -> None:
    assert divisor(e) == divides


@given(EXPRESSIONS, st.integers(0, 4))
def test_folding_keeps_values(e: IntExpr, i: int) -> None:
    folded = fold(e, {"i": Int(i)})
    assert "i" not in variables(folded)
    for at in EVERYWHERE:
        assert evaluate_expression(folded, at) == evaluate_expression(e, {**at, "i": i})


def digit(atom: Digit | Xor, at: dict[str, int]) -> int:
    """An atom's value, by its definition."""
    if isinstance(atom, Xor):
        one, other = (side.constant + sum(c * digit(a, at) for c, a in side.terms) for side in (atom.a, atom.b))
        return one ^ other
    value, place = 0, 1
    for name, extent in atom.string:
        value += place * at[name]
        place *= extent
    return value // atom.div % atom.mod


@settings(max_examples=300)
@given(EXPRESSIONS | COUNTERS, CONDITIONS | st.just(Int(1)), st.integers(1, 4))
def test_digits_say_what_is_determined(e: IntExpr, guard: IntExpr, width: int) -> None:
    x = to_digits(e, SIZES)
    assume(x is not None)
    assert x is not None
    values = [evaluate_expression(e, at) for at in EVERYWHERE]
    assert all(value is not None and x.constant <= value <= x.largest for value in values)
    assert values == [x.constant + sum(c * digit(atom, at) for c, atom in x.terms) for at in EVERYWHERE]
    given_facts = implied_facts(conjuncts((guard,)), SIZES)
    if not is_injective(x, width, given_facts):
        return
    names = sorted(determined_variables(x, given_facts))
    seen: dict[int, tuple[int, ...]] = {}
    for at, value in zip(EVERYWHERE, values, strict=True):
        if evaluate_expression(guard, at):
            for offset in range(width):
                who = tuple(at[name] for name in names)
                assert value is not None
                assert seen.setdefault(value + offset, who) == who


@given(EXPRESSIONS | COUNTERS, EXPRESSIONS | COUNTERS, st.integers(1, 64), st.integers(1, 4))
def test_separate_accesses_never_meet(e: IntExpr, f: IntExpr, shift: int, width: int) -> None:
    for other in (f, add(e, shift)):
        x, y = to_digits(e, SIZES), to_digits(other, SIZES)
        if x is None or y is None or not are_separate(x, y, width):
            continue
        one = {evaluate_expression(e, at) for at in EVERYWHERE}
        two = {evaluate_expression(other, at) for at in EVERYWHERE}
        assert not any((a or 0) + offset in two or (a or 0) - offset in two for a in one for offset in range(width))


@settings(max_examples=300)
@given(EXPRESSIONS | COUNTERS, CONDITIONS)
def test_an_expression_that_is_reduced_keeps_its_values(e: IntExpr, guard: IntExpr) -> None:
    ranges = {name: (0, size - 1) for name, size in SIZES.items()}
    found = simplify_divisions(e, ranges, implied_bounds((guard,), ranges))
    for at in EVERYWHERE:
        if evaluate_expression(guard, at):
            assert evaluate_expression(found, at) == evaluate_expression(e, at)


@settings(max_examples=number(200, 500))
@given(
    EXPRESSIONS | COUNTERS,
    EXPRESSIONS | COUNTERS,
    st.integers(1, 64),
    st.integers(1, 4),
    CONDITIONS | st.just(Int(1)),
    CONDITIONS | st.just(Int(1)),
)
def test_staggered_accesses_never_meet(
    e: IntExpr, f: IntExpr, shift: int, width: int, first: IntExpr, second: IntExpr
) -> None:
    for other in (f, add(e, shift), add(mul(e, 4), shift)):
        x, y = to_digits(e, SIZES), to_digits(other, SIZES)
        if x is None or y is None:
            continue
        if not have_disjoint_offsets(
            x, y, width, implied_facts(conjuncts((first,)), SIZES), implied_facts(conjuncts((second,)), SIZES)
        ):
            continue
        one = {evaluate_expression(e, at) for at in EVERYWHERE if evaluate_expression(first, at)}
        two = {evaluate_expression(other, at) for at in EVERYWHERE if evaluate_expression(second, at)}
        assert not any((a or 0) + offset in two or (a or 0) - offset in two for a in one for offset in range(width))


@pytest.mark.parametrize(("shift", "width", "apart"), [(1, 1, True), (2, 1, False), (1, 2, False), (3, 1, True)])
def test_columns_of_odd_rows_are_staggered(shift: int, width: int, apart: bool) -> None:
    """Rows of 13, of which a thread has two columns in turn: even ones by one access and odd ones by the other."""
    column = add(mul(mod(tid, 4), 2), mul(Var("k"), 8))
    e = add(mul(div(tid, 4), 13), column)
    x, y = to_digits(e, SIZES), to_digits(add(e, shift), SIZES)
    assert x is not None
    assert y is not None
    here, there = (implied_facts(conjuncts((less(at, 13),)), SIZES) for at in (column, add(column, shift)))
    assert have_disjoint_offsets(x, y, width, here, there) == apart
    assert not are_separate(x, y, width)
    assert not have_disjoint_offsets(x, y, width)


ROW, COLUMN = div(tid, 8), mod(tid, 8)
SWIZZLED = add(mul(ROW, 64), mul(xor(COLUMN, mod(ROW, 8)), 8))


@pytest.mark.parametrize(
    ("e", "width", "names"),
    [
        (tid, 1, {"tid"}),
        (mul(tid, 8), 8, {"tid"}),
        (SWIZZLED, 8, {"tid"}),
        (add(tid, mul(Var("k"), 128)), 1, {"tid", "k"}),
        # A counter of thread and loop, cut where no variable ends.
        (add(mul(div(add(tid, mul(Var("k"), 128)), 24), 32), mod(add(tid, mul(Var("k"), 128)), 24)), 1, {"tid", "k"}),
        (add(mul(div(tid, 4), 10), mul(mod(tid, 4), 2)), 2, {"tid"}),
    ],
)
def test_usual_indices_are_decided(e: IntExpr, width: int, names: set[str]) -> None:
    x = to_digits(e, {"tid": 128, "k": 6})
    assert x is not None
    assert is_injective(x, width)
    assert determined_variables(x) == names


@pytest.mark.parametrize(
    ("e", "width"),
    [
        (mul(tid, 8), 9),
        (add(tid, Var("k")), 1),
        (add(mul(ROW, 64), mul(xor(COLUMN, mod(ROW, 8)), 4)), 8),
        (add(mul(ROW, 32), mul(xor(COLUMN, mod(ROW, 8)), 8)), 8),
        (div(tid, 2), 1),
    ],
)
def test_clashing_indices_are_not(e: IntExpr, width: int) -> None:
    x = to_digits(e, {"tid": 128, "k": 6})
    assert x is None or not is_injective(x, width) or "tid" not in determined_variables(x)


def test_a_digit_that_ends_inside_a_variable_does_not_determine_it() -> None:
    """Of tid + 8 k modulo 9, 8 is (0, 1) as well as (1, 2)."""
    x = to_digits(mod(add(tid, mul(Var("k"), 8)), 9), SIZES)
    assert x is not None
    assert determined_variables(x, implied_facts(conjuncts((IntBin(IntOp.LT, tid, Int(2)),)), SIZES)) == set()


# --- queries ---------------------------------------------------------------------------------------------------------


def holds_somewhere(query: Query) -> bool:
    names = [name for name, _ in query.variables]
    for values in product(*(range(size) for _, size in query.variables)):
        at = dict(zip(names, values, strict=True))
        if all(evaluate_expression(e, at) for e in query.true):
            parts = [evaluate_expression(e, at) for e in query.broken]
            bad = any(value is None or not 0 <= value <= INT_MAX for value in parts)
            if bad or any(evaluate_expression(e, at) == 0 for e in query.zero) or not (query.broken or query.zero):
                return True
    return False


@settings(max_examples=60)
@given(EXPRESSIONS, CONDITIONS, st.integers(0, 60))
def test_solvers_answer_as_all_values_do(e: IntExpr, guard: IntExpr, most: int) -> None:
    query = Query(tuple(SIZES.items()), (guard, less(most, e)), show=(("index", e),))
    reply = solve_query(query, 10_000)
    assert reply.answer is (Satisfiability.SAT if holds_somewhere(query) else Satisfiability.UNSAT)
    if reply.answer is Satisfiability.SAT:
        at = dict(reply.model)
        assert at["index"] == evaluate_expression(e, at)
        assert at["index"] > most
        assert evaluate_expression(guard, at)


@pytest.mark.parametrize(
    ("broken", "zero", "answer"),
    [
        (sub(tid, 1), None, Satisfiability.SAT),
        (sub(7, tid), None, Satisfiability.UNSAT),
        (mul(tid, 306783378), None, Satisfiability.UNSAT),
        (mul(tid, 306783379), None, Satisfiability.SAT),
        (mul(mul(tid, 1 << 20), 1 << 20), None, Satisfiability.SAT),
        (expr(0), mod(tid, 7), Satisfiability.SAT),
        (expr(0), add(mod(tid, 7), 1), Satisfiability.UNSAT),
    ],
)
def test_overflow_and_division(broken: IntExpr, zero: IntExpr | None, answer: Satisfiability) -> None:
    reply = solve_query(Query((("tid", 8),), (), (broken,), () if zero is None else (zero,)), 10_000)
    assert reply.answer is answer
    assert len(reply.results) == (2 if answer is Satisfiability.UNSAT else 1)


def test_the_text_stands_alone() -> None:
    text = query_to_smt2(Query((("let", 3), ("tid", 128)), (both(less(tid, 5), equal(Var("let"), 2)),)))
    assert text.startswith("(set-logic QF_BV)")
    assert text.rstrip().endswith("(check-sat)")
    assert "(declare-const v!let (_ BitVec 2))" in text


def result(solver: str, answer: Satisfiability) -> SolverResult:
    return SolverResult(solver, "1", answer, 1.0)


def test_solvers_that_contradict_each_other_prove_nothing() -> None:
    unsat, sat, unknown = Satisfiability.UNSAT, Satisfiability.SAT, Satisfiability.UNKNOWN
    assert SolverReplies((result("z3", unsat), result("cvc5", sat))).answer is unknown
    assert SolverReplies((result("z3", unsat), result("cvc5", unknown))).answer is unsat
    assert SolverReplies((result("z3", unknown), result("cvc5", unsat))).answer is unknown
