"""Mutants of the fastest candidates of the examples, at the examples' own extents: wrong ones are refuted there too."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.counterexamples.refute import evaluate_counterexample
from mirage_formal.run.verify.decide import decide_equality
from mirage_formal.semantics.working_set import working_set_size
from tests.kit.graphs.mutants import single_mutants
from tests.kit.kernels.example_kernels import EXAMPLES, fastest, real
from tests.kit.sampling import number

#: Of each candidate: at least two in five of them are wrong, one in seventeen may be left open.
EACH = number(4, 8)


def wrong_or_right(name: str, batch: int) -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """(label, program, mutant): well-formed changes of a candidate, with the program's outputs."""
    program, candidate = real(name, batch), fastest()[f"{name}-b{batch}"]
    shapes = [kernel_types(program)[n].shape for n in program.outputs]
    changed = list(single_mutants(candidate))
    random.Random(f"{name} {batch}").shuffle(changed)
    made = 0
    for label, graph in changed:
        if made < EACH and graph != candidate and not faults(graph) and graph.inputs == candidate.inputs:
            types = kernel_types(graph)
            if [types[n].shape for n in graph.outputs] == shapes:
                made += 1
                yield f"{name}-b{batch}: {label}", program, graph


@cache
def judged() -> tuple[tuple[str, KernelGraph, KernelGraph, object], ...]:
    names = sorted({name.rpartition("-b")[0] for name in fastest()} & set(EXAMPLES))
    items = [item for name in names for batch in (8, 16) for item in wrong_or_right(name, batch)]
    return tuple((label, program, graph, decide_equality(program, graph)) for label, program, graph in items)


@pytest.mark.slow
def test_nearly_all_are_decided() -> None:
    kinds = Counter(type(verdict).__name__ for *_, verdict in judged())
    assert sum(kinds.values()) >= 10 * EACH
    # Before tensors were kept by classes, all wrong ones of more than 2^27 elements were Unknown.
    assert kinds["Unknown"] <= 0.06 * sum(kinds.values()), kinds
    assert kinds["Different"] >= 0.3 * sum(kinds.values()), kinds


def test_the_graphs_are_large() -> None:
    assert max(working_set_size(graph) for _, _, graph, _ in judged()) > 1 << 27


def test_the_reference_confirms_each_counterexample() -> None:
    for label, program, graph, verdict in judged():
        if isinstance(verdict, Different):
            assert verdict.counterexample is not None
            value = evaluate_counterexample(program, graph, verdict.counterexample)
            assert (value.expected, value.got) == (verdict.expected, verdict.got), label


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_candidates_themselves_are_proved(name: str) -> None:
    for batch in (8, 16):
        if (candidate := fastest().get(f"{name}-b{batch}")) is not None:
            assert isinstance(decide_equality(real(name, batch), candidate), Equivalent)
