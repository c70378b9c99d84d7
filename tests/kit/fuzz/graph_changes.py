"""Random programs of all operators, kernels and layouts, each against itself and against single changes of it.

Concatenations, reshapes, largest values, running maxima, shared parts and nested divisions occur more often than by
chance, and the programs are well-formed whether or not the exact domain has terms for them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import faults, kernel_types
from tests.kit.fuzz import rewrite_pairs
from tests.kit.graphs.mutants import single_mutants
from tests.kit.graphs.random_graphs import random_graph

K = OpKind
#: Operators that change layouts, keep an order, or carry a state.
HARD = frozenset(
    {
        K.CONCAT, K.RESHAPE, K.TRANSPOSE, K.MAX, K.RUNNING_MAX, K.ACCUM_MAX, K.ACCUM_SUM, K.ACCUM_RESCALED_SUM,
        K.ACCUM_CONCAT, K.DIV, K.EXP, K.ADD, K.SUB, K.MUL, K.SUM, K.SQRT,
    }
)  # fmt: skip
#: Changes of one program.
CHANGES = 3


def pairs(seed: int, count: int) -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """``count`` pairs as (what was changed, program, candidate); "itself" where nothing was."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        graph = program(rng)
        found = [("itself", graph, graph), *changed(rng, graph)]
        yield from found[: count - made]
        made += len(found)


def program(rng: random.Random) -> KernelGraph:
    """A well-formed program."""
    while True:
        choice = rng.random()
        if choice < 0.6:
            graph = random_graph(rng, frozenset(OpKind) if choice < 0.35 else HARD, rng.randint(1, 4))
        else:
            terms, root = rewrite_pairs.random_program(rng)
            for _ in range(rng.randint(0, 8)):
                root = _grown(terms, root, rng)
            if root < terms.inputs:
                continue
            graph = terms.graph(root)
        if not faults(graph):
            return graph


def _grown(terms: rewrite_pairs.Terms, root: int, rng: random.Random) -> int:
    """One more operator, or the same term where it does not fit."""
    other = rng.choice((root, rng.randrange(len(terms.rows))))
    dim = rng.randrange(len(terms.shapes[root]))
    try:
        match rng.randrange(12):
            case 0 | 1:
                return terms.op(K.CONCAT, root, other, dim=dim)
            case 2:
                return terms.op(K.MAX, root, dim=dim)
            case 3:
                return terms.op(K.DIV, root, other)
            case 4:
                found = rewrite_pairs._layout(terms, root, rng)
            case _:
                found = rewrite_pairs._grown(terms, root, rng)
    except rewrite_pairs.Mismatch:
        return root
    return root if found is None else found


def changed(rng: random.Random, graph: KernelGraph) -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """Well-formed single changes with outputs of the same shapes."""
    mutants = list(single_mutants(graph))
    made = 0
    for label, mutant in rng.sample(mutants, len(mutants)):
        if made < CHANGES and not faults(mutant) and _shapes(mutant) == _shapes(graph):
            made += 1
            yield label, graph, mutant


def _shapes(graph: KernelGraph) -> list[str]:
    types = kernel_types(graph)
    return [types[number].signature for number in graph.outputs]
