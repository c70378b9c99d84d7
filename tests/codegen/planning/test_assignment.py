"""0-1 choices against trying every choice."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.planning.binary_quadratic import minimise, total_cost

Problem = tuple[list[list[int]], dict[tuple[int, int], list[list[int]]]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    cost = st.integers(0, 20)
    costs = [draw(st.lists(cost, min_size=n, max_size=n)) for n in sizes]
    every = [(i, j) for i in range(len(sizes)) for j in range(i + 1, len(sizes))]
    pairs = {}
    for i, j in draw(st.lists(st.sampled_from(every), unique=True, max_size=4)) if every else ():
        row = st.lists(cost, min_size=sizes[j], max_size=sizes[j])
        pairs[i, j] = draw(st.lists(row, min_size=sizes[i], max_size=sizes[i]))
    return costs, pairs


@settings(max_examples=60)
@given(problems())
def test_no_choice_costs_less(problem: Problem) -> None:
    costs, pairs = problem
    chosen, proven = minimise(costs, pairs)
    least = min(total_cost(costs, pairs, c) for c in product(*(range(len(row)) for row in costs)))
    assert proven
    assert total_cost(costs, pairs, chosen) == least


def test_without_work_nothing_is_claimed() -> None:
    costs, pairs = [[0, 1], [0, 1]], {(0, 1): [[9, 9], [9, 0]]}
    chosen, proven = minimise(costs, pairs, work=1)
    assert not proven
    assert total_cost(costs, pairs, chosen) == 9  # descent changes one item at a time


def test_pairs_decide_against_the_cheapest_options() -> None:
    chosen, proven = minimise([[0, 1], [0, 1]], {(0, 1): [[9, 9], [9, 0]]})
    assert (chosen, proven) == ((1, 1), True)


def test_the_limit_is_one_of_work_so_that_equal_problems_have_equal_answers() -> None:
    costs = [[(7 * i + 3 * o) % 5 for o in range(4)] for i in range(12)]
    pairs = {(i, j): [[(i * a + j * b) % 7 for b in range(4)] for a in range(4)] for i in range(12) for j in range(i)}
    pairs = {(j, i): table for (i, j), table in pairs.items()}
    little = [minimise(costs, pairs, work=50) for _ in range(3)]
    assert len(set(little)) == 1
    assert little[0][1] is False
    assert minimise(costs[:3], {key: pairs[key] for key in [(0, 1), (1, 2)]})[1] is True
