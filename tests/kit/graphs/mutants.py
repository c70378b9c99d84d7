"""Mutants of found candidates: many wrong graphs, some right ones, each decided in float64.

The candidates come from the guided search on small versions of the seven examples, and from the hand-written ones of
``workloads``; the changes from ``mutations``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from mirage_formal.graph.check import faults, kernel_types
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.search.engine import SearchOptions
from mirage_formal.search.guided.engine import GuidedEngine
from mirage_formal.search.space import load_space
from tests.kit.graphs import workloads as w
from tests.kit.graphs.decisions import Decision, differs
from tests.kit.graphs.mutations import double_mutants, single_mutants


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed candidate.

    Attributes:
        name: The example and what was changed.
        program: The program that the candidate was found for.
        candidate: What was changed.
        graph: The result: well-formed, with the program's inputs and output shapes.
    """

    name: str
    program: KernelGraph
    candidate: KernelGraph
    graph: KernelGraph


#: The examples at small extents, the preset that finds kernels for them there, and how many candidates are changed.
#: Extents that coincide leave more changes well-formed, distinct ones make them show; hence several versions.
SEARCHED = {
    "attn": ("attention", w.attention(b=2, m=4, d=2, n=8, e=4), 10),
    "decode": ("attention", w.attention(b=4, m=1, d=4, n=8, e=4), 10),
    "lora": ("lora", w.lora(b=4, k=4, n=8, r=2), 10),
    "lora, equal extents": ("tiny", w.lora(b=4, k=4, n=4, r=4), 8),
    "gated_mlp": ("mlp", w.gated_mlp(b=4, k=4, n=8), 10),
    "gated_mlp, equal extents": ("tiny", w.gated_mlp(b=4, k=4, n=4), 8),
    "qknorm": ("attention", w.qk_norm(b=1, m=2, d=2, n=4, e=2), 10),
    "ntrans": ("norm", w.ntrans(b=4, n=8), 10),
    "rmsnorm": ("norm", w.rmsnorm(b=4, k=8, n=4), 10),
    "rmsnorm, equal extents": ("tiny", w.rmsnorm(b=4, k=4, n=4), 8),
}
#: Examples whose search takes long: of these the first share is enough.
FIRST_SHARE = frozenset({"qknorm"})
#: Those that take longest of the others: the same of these, where a test asks for a sample.
LONG = frozenset({"attn", "decode"})
#: Written by hand, at extents that coincide.
WRITTEN = {
    "attn, two kernels": (
        w.attention(b=2, m=4, d=4, n=4, e=4),
        w.attention_split(b=2, m=4, d=4, n=4, e=4, split=2, loop=2, rows=2),
    ),
    "attn, one kernel": (
        w.attention(b=2, m=4, d=2, n=8, e=2),
        w.attention_one(b=2, m=4, d=2, n=8, e=2, rows=2, loop=2),
    ),
    "qknorm by hand": (w.qk_norm(b=1, m=4, d=4, n=4, e=4), w.qk_norm_one(b=1, m=4, d=4, n=4, e=4, rows=2, loop=2)),
    "rmsnorm by hand": (w.rmsnorm(b=2, k=4, n=4), w.rmsnorm_by_hand(b=2, k=4, n=4, grid=2, loop=2)),
    "ntrans by hand": (w.ntrans(b=4, n=4), w.ntrans_fused(b=4, n=4, grid=2)),
}


@cache
def found(name: str, every: bool) -> tuple[KernelGraph, ...]:
    """Candidates that the guided search finds for a small example, the same ones in every process."""
    preset, program, wanted = SEARCHED[name]
    engine, space, options = GuidedEngine(1), load_space(preset), SearchOptions()
    graphs: dict[KernelGraph, None] = {}
    first = name in FIRST_SHARE or (name in LONG and not every)
    for unit in engine.units(program, space, options)[: 1 if first else None]:
        graphs |= dict.fromkeys(item.graph for item in engine.run(program, space, options, unit).candidates)
    everything = list(graphs)
    return tuple(random.Random(11).sample(everything, min(wanted, len(everything))))


def candidates(*, every: bool = True) -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """(example, program, candidate) of all examples; of long searches every share, or the first."""
    for name, (_, program, _) in SEARCHED.items():
        for graph in found(name, every):
            yield name, program, graph
    for name, (program, graph) in WRITTEN.items():
        yield name, program, graph


def mutants(seed: int, count: int, *, every: bool = True) -> Iterator[Mutant]:
    """``count`` distinct mutants, from all candidates in turn; half of them have two changes.

    ``every``: see ``candidates``.
    """
    streams = [_stream(random.Random(f"{seed} {i}"), *item) for i, item in enumerate(candidates(every=every))]
    seen: set[tuple[KernelGraph, KernelGraph]] = set()
    made = 0
    while made < count and streams:
        for stream in tuple(streams):
            item = next(stream, None)
            if item is None:
                streams.remove(stream)
            elif (item.program, item.graph) not in seen:
                seen.add((item.program, item.graph))
                made += 1
                yield item
                if made == count:
                    return


def _stream(rng: random.Random, name: str, program: KernelGraph, candidate: KernelGraph) -> Iterator[Mutant]:
    """The mutants of one candidate in a random order, single changes and pairs of changes mixed."""
    single = list(single_mutants(candidate))
    rng.shuffle(single)
    double = double_mutants(candidate, rng, 10 * len(single))
    shapes = [kernel_types(program)[number].shape for number in program.outputs]
    for label, graph in chain.from_iterable(_interleaved(single, double)):
        if graph != candidate and not faults(graph):
            types = kernel_types(graph)
            if [types[number].shape for number in graph.outputs] == shapes:
                yield Mutant(f"{name}: {label}", program, candidate, graph)


def _interleaved(
    single: Sequence[tuple[str, KernelGraph]], double: Iterator[tuple[str, KernelGraph]]
) -> Iterator[Iterable[tuple[str, KernelGraph]]]:
    for item in single:
        yield (item,)
        yield tuple(x for _, x in zip(range(2), double, strict=False))
    yield double


def decided(items: Iterator[Mutant]) -> Iterator[tuple[Mutant, Decision]]:
    """Each mutant with what float64 says about it."""
    for item in items:
        yield item, differs(item.program, item.graph)
