"""The error bounds that fingerprints state, from the two readings: that of the search, and that of the checker."""

from __future__ import annotations

import random
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.check.abstract_interpretation import output_parts
from mirage_formal.check.fingerprint.error_bound import StatedBound, check_bound
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.prove.identity_testing.degree_bounds import Bound, bound_degrees, error_bound
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.semantics.straight_line_trace import NotLax, needed_parts, record_tape
from mirage_formal.support.errors import FormatError

PAIR = field_pair(31)


def stated(graph: KernelGraph) -> Bound | None:
    """What a search states for a graph beside itself; None where an exponential is the argument of one."""
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    if isinstance(wanted, NotLax):
        return None
    side = bound_degrees(tape, wanted)
    return error_bound(side, side, PAIR, 1)


def check(graph: KernelGraph, claim: tuple[float | None, str]) -> None:
    expressions = output_parts(graph)
    check_bound(expressions, expressions, (PAIR.p, PAIR.q), 1, StatedBound(*claim, loose=True))


def nested(rng: random.Random) -> KernelGraph:
    """Concatenations along both dims, one in the other, with what computes between them."""
    graph = mf.new_kernel_graph()
    held: list[Any] = [graph.new_input(dims=(rng.choice((2, 4)), rng.choice((2, 4))), name=f"x{i}") for i in range(4)]
    for _ in range(rng.randrange(3, 8)):
        a = held.pop(rng.randrange(len(held)))
        choice = rng.randrange(7)
        if choice < 3:
            dim = rng.randrange(2)
            shape = list(a.shape)
            shape[dim] = rng.choice((2, 4))
            b = next((x for x in held if x.shape[1 - dim] == a.shape[1 - dim]), None)
            b = graph.new_input(dims=tuple(shape)) if b is None else b
            a = graph.concat([a, b] if rng.random() < 0.5 else [b, a], dim=dim)
        elif choice == 3:
            a = graph.silu(a)
        elif choice == 4:
            a = a * a + a
        elif choice == 5:
            a = graph.sum(a, rng.randrange(2), keepdim=True) / a
        else:
            a = graph.concat([a, graph.exp(a)], dim=rng.randrange(2))
        held.append(a)
    graph.mark_output(held[-1])
    return graph.freeze()


def test_no_stated_bound_is_refused() -> None:
    """Parts along two dims cannot be told apart by the checker: it must not count them as one sum."""
    rng = random.Random(0)
    some = 0
    for _ in range(400):
        graph = nested(rng)
        if (bound := stated(graph)) is not None:
            check(graph, (bound.log2, bound.reason))
            some += bound.log2 is not None
    assert some >= 100


def test_a_bound_that_is_too_good_is_refused() -> None:
    graph = mf.new_kernel_graph()
    x, y, z = (
        graph.new_input(dims=dims, name=name) for name, dims in zip("xyz", ((4, 2), (4, 3), (2, 5)), strict=True)
    )
    graph.mark_output(graph.concat([graph.silu(graph.concat([x, y], dim=1)), z], dim=0))
    program = graph.freeze()
    bound = stated(program)
    assert bound is not None
    assert bound.log2 is not None
    check(program, (bound.log2, ""))
    with pytest.raises(FormatError, match="expected the bound"):
        check(program, (bound.log2 - 0.1, ""))
