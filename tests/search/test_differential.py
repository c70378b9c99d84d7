"""Guided against exhaustive: the same candidates as sets, up to the named exceptions (see engine_comparison.py).

Some examples are compared in a part of the tiny space only; benchmarks/differential.py compares all in the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.type_rules import device_results
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.known_incompleteness import IncompletenessReason, missing_reason
from mirage_formal.search.space import SearchSpace
from tests.kit.sampling import THOROUGH, but, number
from tests.search.engine_comparison import (
    K,
    attention,
    compare,
    gated,
    lora,
    matmul,
    ntrans,
    op,
    program,
    qknorm,
    rmsnorm,
    search,
    tensor,
    tiny,
)

ROWS_AND_COLUMNS = [(-1, -1, -1), (0, -1, -1), (1, -1, -1)]
BOTH: dict[str, Any] = {"griddims": [(1, 1, 1), (2, 1, 1)]}
#: Of the largest comparisons, one grid; empty: those of the space.
GRIDS: dict[str, Any] = {} if THOROUGH else {"griddims": [(2, 1, 1)]}
#: Every input is dealt to the blocks along its first dim; no input is read in a loop.
DEALT: dict[str, Any] = {} if THOROUGH else {"imaps": [(0, -1, -1)]}
WHOLE_INPUTS: dict[str, Any] = {} if THOROUGH else {"fmaps": [-1]}
NARROW: dict[str, Any] = {"griddims": [(2, 1, 1)], "imaps": ROWS_AND_COLUMNS, "fmaps": [-1]}
#: What products, sums and norms need.
SUMS = (K.MATMUL, K.MUL, K.DIV, K.SUM, K.ACCUM_SUM, K.ACCUM_SUM_LAST)
NORMS = (*SUMS, K.SQUARE, K.SQRT, K.RMS_NORM, K.ACCUM_RMS_LAST)


def few(space: SearchSpace, *kinds: K) -> SearchSpace:
    """The space with these operators alone, because an exhaustive search tries every operator on every tensor.

    With MIRAGE_THOROUGH=1 all of them, as always in the smaller ones: test_small_programs_at_random, for one.
    """
    kernel_ops = tuple(kind for kind in space.kernel_ops if kind in kinds)
    return space if THOROUGH else replace(space, kernel_ops=kernel_ops, block_ops=kinds)


#: Small versions of the examples, each in the tiny space or a part of it: name, program, space, fewest candidates.
EXAMPLES: dict[str, tuple[Callable[[], KernelGraph], Callable[[], SearchSpace], int]] = {
    "matmul": (lambda: matmul(2, 4, 6), tiny, 10),
    "matmul-equal-extents": (lambda: matmul(4, 4, 4), tiny, 8),
    "rmsnorm": (lambda: rmsnorm(2, 4, 6), tiny, 20),
    "attention": (lambda: attention(q=2, d=4, k=6), lambda: few(tiny(), *SUMS, K.EXP), 10),
    "decode": (
        lambda: attention(2, q=1, d=2, k=4),
        lambda: tiny(griddims=[(2, 1, 1)], fmaps=[-1, 1, 2], **DEALT),
        3,
    ),
    "qknorm": (
        lambda: qknorm(2, 4, 6),
        lambda: tiny(max_block_ops=8, griddims=[(2, 1, 1)], imaps=ROWS_AND_COLUMNS, fmaps=[-1]),
        3,
    ),
    "gated-mlp": (lambda: gated(2, 4, 6), lambda: few(tiny(), *SUMS, K.SILU), 10),
    "lora-blocks": (lambda: lora(2, 4, 2, 6), lambda: tiny(max_block_ops=5, griddims=[(2, 1, 1)], fmaps=[-1]), 6),
    "lora-loop": (lambda: lora(2, 4, 2, 6), lambda: tiny(griddims=[(1, 1, 1)]), 10),
    "ntrans-blocks": (
        lambda: ntrans(2, 4),
        lambda: few(
            tiny(griddims=[(2, 1, 1)], imaps=[(0, -1, -1)], fmaps=[-1]),
            *(K.ADD, K.MUL, K.RMS_NORM, K.ACCUM_SUM, K.ACCUM_RMS_LAST),
        ),
        1,
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", but(EXAMPLES, "qknorm"))
def test_examples_in_one_kernel(name: str) -> None:
    build, space, least = EXAMPLES[name]
    found = compare(build(), space())
    assert len(found.guided) >= least
    assert not found.reasons, "in one kernel, pruned by expressions, nothing needs an excuse here"
    # The predicates are no blanket excuse: they hold for nothing that guided finds itself.
    assert all(missing_reason(build(), graph) is None for graph in found.guided.values())


#: Programs in spaces of two kernels, predefined operators included.
TWO_KERNELS: dict[str, tuple[Callable[[], KernelGraph], Callable[[], SearchSpace]]] = {
    "output-on-the-way": (
        lambda: program((tensor("X", 4, 6),), op(K.SUM, 0, dim=1), op(K.EXP, 1), op(K.MUL, 1, 2)),
        lambda: tiny(kernels=2, max_block_ops=2),
    ),
    "matmul": (
        lambda: matmul(2, 4, 6),
        lambda: tiny(kernels=2, defined=2, max_block_ops=3, **GRIDS, **WHOLE_INPUTS),
    ),
    "rmsnorm": (
        lambda: rmsnorm(2, 4, 6),
        lambda: few(tiny(kernels=2, defined=2, reread=0, max_block_ops=4, griddims=[(2, 1, 1)], fmaps=[-1]), *NORMS),
    ),
    "gated-mlp": (
        lambda: gated(2, 4, 6),
        lambda: tiny(kernels=2, max_block_ops=5, griddims=[(2, 1, 1)], imaps=ROWS_AND_COLUMNS, fmaps=[-1]),
    ),
    "partial-sums-and-a-predefined-sum": (
        lambda: program((tensor("X", 2, 4),), op(K.SUM, 0, dim=1)),
        lambda: tiny(kernels=2, max_block_ops=2, **NARROW),
    ),
    "exp-chain": (
        lambda: program((tensor("X", 2, 4), tensor("W", 4, 4)), op(K.MATMUL, 0, 1), op(K.EXP, 2), op(K.SUM, 3, dim=1)),
        lambda: tiny(kernels=2, defined=2, max_block_ops=3, fmaps=[-1, 0], **(GRIDS or BOTH)),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", but(TWO_KERNELS, "exp-chain"))
def test_two_kernels(name: str) -> None:
    build, space = TWO_KERNELS[name]
    found = compare(build(), space())
    assert any(len(graph.ops) == 2 for graph in found.guided.values())
    assert all(missing_reason(build(), graph) is None for graph in found.guided.values())
    if space().max_graph_defined > 1:
        assert found.reasons[IncompletenessReason.ONLY_COPIES] > 0, (
            "copying kernels are in this space, so the predicate must fire"
        )


@pytest.mark.slow
def test_without_pruning_every_further_candidate_has_a_reason() -> None:
    normalised = program((tensor("X", 2, 2),), op(K.RMS_NORM, 0, dim=1))
    # Three operators are one norm of another, or of a sum, and an accumulator.
    found = compare(normalised, tiny(max_block_ops=number(3, 4), griddims=[(1, 1, 1)]), prune=False)
    assert found.guided
    assert found.reasons[IncompletenessReason.CANCELS] > 0  # rms_norm(x + x)
    assert found.reasons[IncompletenessReason.RECOMPUTES] > 0  # rms_norm(rms_norm(x))


KINDS = (K.MATMUL, K.ADD, K.MUL, K.DIV, K.EXP, K.SQUARE, K.SILU, K.SUM, K.RMS_NORM)
SHAPES = ((2, 4), (4, 2), (4, 4), (2, 2), (4, 6))


@st.composite
def programs(draw: DrawFn) -> KernelGraph:
    """One to three operators on one to three inputs; every input and result is read, the last one is the output."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    inputs = tuple(tensor(f"t{i}", *shape) for i, shape in enumerate(shapes))
    types = [source.tensor for source in inputs]
    unread = set(range(len(types)))
    ops: list[Op] = []
    for _ in range(draw(st.integers(1, 3))):
        fitting = []
        for kind in KINDS:
            for a in range(len(types)):
                for b in range(len(types)) if kind in (K.MATMUL, K.ADD, K.MUL, K.DIV) else (None,):
                    made = Op(
                        kind,
                        (a,) if b is None else (a, b),
                        Attrs(dim=1) if kind in (K.SUM, K.RMS_NORM) and types[a].shape[1] > 1 else Attrs(),
                    )
                    if (a == b and kind is not K.MATMUL) or (kind in (K.SUM, K.RMS_NORM) and made.attrs.dim is None):
                        continue
                    if not isinstance(device_results(kind, made.attrs, tuple(types[n] for n in made.operands)), str):
                        fitting.append(made)
        # Reading something unread first keeps most programs whole.
        fresh = [made for made in fitting if unread & set(made.operands)]
        chosen = draw(st.sampled_from(fresh or fitting))
        results = device_results(chosen.kind, chosen.attrs, tuple(types[n] for n in chosen.operands))
        assert not isinstance(results, str)
        unread = (unread - set(chosen.operands)) | {len(types)}
        types += results
        ops.append(chosen)
    return KernelGraph(inputs, tuple(ops), (len(types) - 1,))


def whole(source: KernelGraph) -> bool:
    """Whether every tensor but the output is read, and no operator is applied twice."""
    read = {n for made in source.ops for n in made.operands}
    return read == set(range(source.outputs[0])) and len(set(source.ops)) == len(source.ops)


@pytest.mark.slow
def test_small_programs_at_random() -> None:
    compared: dict[str, int] = {}
    failures: list[str] = []

    # No shrinking: a failure is shown as it is, and the others still count.
    @settings(max_examples=number(40, 120), phases=[Phase.generate])
    @given(programs().filter(whole))
    def run(source: KernelGraph) -> None:
        key = digest(source)
        if key in compared:
            return
        try:
            found = compare(source, tiny(max_block_ops=4))
        except AssertionError as error:
            failures.append(f"{to_text(source)}\n{error}")
            return
        compared[key] = len(found.guided)

    run()
    assert not failures, "\n\n".join(failures)
    assert len(compared) >= 30
    assert sum(n > 0 for n in compared.values()) >= 25, "most programs must have candidates, or nothing is compared"


def only(space: SearchSpace, *block_ops: K, outputs: int = 1) -> SearchSpace:
    """A space of graph-defined kernels only, with few operators."""
    return replace(space, kernel_ops=(), block_ops=block_ops or space.block_ops, max_block_outputs=outputs)


#: Programs in spaces of three graph-defined kernels, with the fewest candidates that have three.
THREE_KERNELS: dict[str, tuple[KernelGraph, SearchSpace, int]] = {
    "sum-split-twice": (
        program((tensor("X", 2, 8),), op(K.SUM, 0, dim=1), op(K.EXP, 1)),
        only(tiny(kernels=3, defined=3, max_block_ops=2, **NARROW), K.EXP, K.SUM, K.ACCUM_SUM, K.ACCUM_SUM_LAST),
        15,
    ),
    "chain-of-split-products": (
        program(
            (tensor("X", 2, 4), tensor("W", 4, 2), tensor("U", 2, 2)),
            *(op(K.MATMUL, 0, 1), op(K.EXP, 3), op(K.MATMUL, 4, 2)),
        ),
        few(only(tiny(kernels=3, defined=3, reread=0, max_block_ops=2, **NARROW)), *SUMS, K.EXP),
        15,
    ),
    "function-of-a-function": (
        program((tensor("X", 2, 4),), op(K.EXP, 0), op(K.SUM, 1, dim=1), op(K.SQUARE, 2)),
        only(tiny(kernels=3, defined=3, max_block_ops=2, **NARROW)),
        200,
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", list(THREE_KERNELS)[: number(len(THREE_KERNELS) - 1, len(THREE_KERNELS))])
def test_three_kernels(name: str) -> None:
    source, space, least = THREE_KERNELS[name]
    found = compare(source, space)
    assert sum(len(graph.ops) == 3 for graph in found.guided.values()) >= least
    assert set(found.reasons) <= {IncompletenessReason.ONLY_COPIES}


def test_an_input_is_read_again_along_an_axis_that_the_first_kernel_split() -> None:
    # x / sum x: the second kernel splits x along the summed axis, alike or otherwise, and needs the sum of all blocks.
    source = program((tensor("X", 2, 4),), op(K.SUM, 0, dim=1), op(K.DIV, 0, 1))
    found = compare(source, only(tiny(kernels=2, defined=2, max_block_ops=3, fmaps=[-1, 1])))
    again = [
        graph
        for graph in found.guided.values()
        if all(isinstance(kernel, GraphDefined) and 1 in _maps(kernel)[0] for kernel in graph.ops)
        and len(graph.ops) == 2
        and 0 in graph.ops[1].operands
    ]
    assert again
    assert set(found.reasons) == {IncompletenessReason.ONLY_COPIES}


def _maps(kernel: GraphDefined) -> list[tuple[int | None, ...]]:
    return [iterator.imap for iterator in kernel.graph.inputs]


REREAD = tiny(kernels=2, defined=2, max_block_ops=4, imaps=ROWS_AND_COLUMNS, fmaps=[-1], **(GRIDS or BOTH))
#: Programs whose candidates multiply or divide by a tensor's own reduction, cancel like the program itself, or read an
#: input again along a reduction that an earlier kernel split.
SELF_REFERENCES: dict[str, tuple[KernelGraph, SearchSpace]] = {
    "reduction-times-its-tensor": (
        program((tensor("X", 4, 2),), op(K.SUM, 0, dim=1), op(K.ADD, 0, 1), op(K.MUL, 0, 2)),
        tiny(max_block_ops=4, griddims=[(1, 1, 1)], fmaps=[-1]),
    ),
    "quotient-by-a-squared-reduction": (
        program((tensor("X", 2, 4),), op(K.SUM, 0, dim=1), op(K.DIV, 0, 1), op(K.DIV, 2, 1)),
        tiny(max_block_ops=4, griddims=[(1, 1, 1)], fmaps=[-1]),
    ),
    "program-that-cancels-itself": (
        program((tensor("X", 4, 2),), op(K.EXP, 0), op(K.DIV, 0, 1), op(K.DIV, 2, 0)),
        tiny(max_block_ops=4, griddims=[(1, 1, 1)], fmaps=[-1]),
    ),
    "rereading-along-a-split-reduction": (
        rmsnorm(2, 4, 6),
        REREAD if THOROUGH else only(REREAD, *NORMS),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SELF_REFERENCES)
def test_programs_that_refer_to_themselves(name: str) -> None:
    source, space = SELF_REFERENCES[name]
    assert compare(source, space).guided


#: Programs, or candidates of theirs, in which one index runs through two dims of a tensor.
COPIES: dict[str, tuple[KernelGraph, SearchSpace]] = {
    "two-dims-of-an-intermediate": (
        program(
            (tensor("X", 2, 4), tensor("B", 2, 2), tensor("A", 2, 2)),
            op(K.MATMUL, 2, 0),
            op(K.MATMUL, 1, 3),
            op(K.MATMUL, 2, 4),
        ),
        few(tiny(max_block_ops=4), K.MATMUL, K.SUM, K.ADD, K.ACCUM_SUM),
    ),
    "square": (program((tensor("X", 4, 4),), op(K.MATMUL, 0, 0)), tiny(max_block_ops=4)),
    "cube": (program((tensor("X", 4, 4),), op(K.MATMUL, 0, 0), op(K.MATMUL, 1, 0)), tiny(max_block_ops=4)),
    "one-way-over-the-grid-and-one-whole": (
        program((tensor("A", 4, 2), tensor("B", 2, 4)), op(K.MATMUL, 0, 1), op(K.EXP, 2), op(K.MATMUL, 3, 0)),
        tiny(max_block_ops=5),
    ),
    "term-that-binds-what-another-has-free": (
        program((tensor("X", 2, 2),), op(K.MATMUL, 0, 0), op(K.SUM, 1, dim=1), op(K.ADD, 0, 2)),
        tiny(max_block_ops=4),
    ),
    "square-of-a-sum": (program((tensor("X", 4, 6),), op(K.SUM, 0, dim=1), op(K.SQUARE, 1)), tiny(max_block_ops=4)),
    "sum-over-the-summed": (
        program((tensor("X", 2, 4),), op(K.SUM, 0, dim=1), op(K.DIV, 1, 0), op(K.SUM, 2, dim=1)),
        tiny(max_block_ops=4),
    ),
    "squares-multiplied-out": (
        program((tensor("X", 2, 2),), op(K.MATMUL, 0, 0), op(K.MATMUL, 1, 1)),
        tiny(max_block_ops=5, griddims=[(1, 1, 1)], fmaps=[-1]),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", COPIES)
def test_an_index_may_run_through_two_dims(name: str) -> None:
    source, space = COPIES[name]
    assert compare(source, space).guided


#: Programs whose loop may run through two axes, in parts that meet behind accumulators or in a sum.
FUSED: dict[str, tuple[KernelGraph, SearchSpace]] = {
    "product-of-sums": (
        program((tensor("X", 2, 4), tensor("Y", 2, 6)), op(K.SUM, 0, dim=1), op(K.SUM, 1, dim=1), op(K.MUL, 2, 3)),
        tiny(max_block_ops=4, griddims=[(1, 1, 1)]),
    ),
    "sum-of-products": (
        program(
            (tensor("X", 2, 4), tensor("A", 4, 2), tensor("Y", 2, 6), tensor("B", 6, 2)),
            op(K.MATMUL, 0, 1),
            op(K.MATMUL, 2, 3),
            op(K.ADD, 4, 5),
        ),
        tiny(max_block_ops=4, griddims=[(1, 1, 1)]),
    ),
    "sums-of-equal-length": (
        program((tensor("X", 2, 4), tensor("Y", 2, 4)), op(K.SUM, 0, dim=1), op(K.SUM, 1, dim=1), op(K.ADD, 2, 3)),
        tiny(max_block_ops=4),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_the_loop_may_run_through_two_axes(name: str) -> None:
    source, space = FUSED[name]
    found = compare(source, space)
    kernels = [kernel for graph in found.guided.values() for kernel in graph.ops if isinstance(kernel, GraphDefined)]
    maps = [[iterator.fmap for iterator in kernel.graph.inputs] for kernel in kernels]
    assert any(len(maps_of) > 1 and None not in maps_of for maps_of in maps)
    assert not found.reasons


def test_without_several_axes_per_split_the_loop_stays_on_one() -> None:
    source, space = FUSED["product-of-sums"]
    narrow = replace(space, max_axes_per_split=1)
    options = SearchOptions()
    fewer = search(GuidedEngine(None), source, narrow, options)
    assert fewer
    assert fewer.keys() < search(GuidedEngine(None), source, space, options).keys()


def _two_outputs() -> SearchSpace:
    """A first kernel may write exp(x) and sums of its parts, and a second one split the two along one axis."""
    space = tiny(kernels=2, defined=2, reread=0, max_block_ops=3, griddims=[(2, 1, 1)], fmaps=[-1])
    return replace(space, kernel_ops=(), block_ops=(K.EXP, K.DIV, K.ACCUM_SUM, K.ACCUM_SUM_LAST), max_block_outputs=2)


#: One program of every kind where guided is known to lack candidates that no predicate excuses.
GAPS: dict[str, tuple[KernelGraph, SearchSpace]] = {
    "sums-of-different-lengths-folded-to-one-width": (
        program((tensor("X", 2, 4), tensor("Y", 2, 6)), op(K.SUM, 0, dim=1), op(K.SUM, 1, dim=1), op(K.ADD, 2, 3)),
        tiny(max_block_ops=4, griddims=[(1, 1, 1)], fmaps=[-1]),
    ),
    "one-axis-of-computed-tensors-split-in-two-ways": (
        program((tensor("X", 2, 4),), op(K.EXP, 0), op(K.SUM, 1, dim=1), op(K.DIV, 1, 2)),
        _two_outputs(),
    ),
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="known gap of the guided engine")
def test_known_gaps(name: str) -> None:
    source, space = GAPS[name]
    compare(source, space)
