"""The exhaustive engine: complete against a naive enumeration, well-formed, deterministic, counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

import msgspec
import pytest

from mirage_formal.graph.canonical import canonical, digest
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    operators,
)
from mirage_formal.graph.ops import SPECS, Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Candidate, Different, Probable, Unknown, Verdict
from mirage_formal.graph.verifier import DeviceLimits, faults, kernel_types
from mirage_formal.logic.terms import Expr
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.prove.abstract.normal_form import NormalForms
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions, Stats, Unit, UnitResult
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.exhaustive import kernel_enumeration as kernel_module
from mirage_formal.search.exhaustive.kernel_enumeration import KernelSearch
from mirage_formal.search.exhaustive.pruner import Pruner
from mirage_formal.search.space import load_space
from mirage_formal.support.errors import UnsupportedError
from tests.kit.sampling import THOROUGH, but

K = OpKind
ENGINE = ExhaustiveEngine()


def tensor(name: str, *shape: int, dtype: DType = DType.FLOAT16) -> Input:
    return Input(name, DTensor(shape, dtype), row_major(shape))


MATMUL = KernelGraph((tensor("X", 2, 4), tensor("W", 4, 6)), (Op(K.MATMUL, (0, 1)),), (2,))
RMS = KernelGraph(MATMUL.inputs, (Op(K.RMS_NORM, (0,), Attrs(dim=1)), Op(K.MATMUL, (2, 1))), (3,))
EXP = KernelGraph((tensor("X", 2, 2),), (Op(K.EXP, (0,)),), (1,))


def tiny(**bounds: object) -> SearchSpace:
    return load_space("tiny").with_overrides(**bounds)  # type: ignore[arg-type]


def search(program: KernelGraph, space: SearchSpace, options: SearchOptions | None = None) -> list[UnitResult]:
    options = options or SearchOptions(engine="exhaustive")
    return [ENGINE.run(program, space, options, unit) for unit in ENGINE.units(program, space, options)]


def graphs(results: list[UnitResult]) -> dict[str, KernelGraph]:
    return {digest(c.graph): c.graph for result in results for c in result.candidates}


def naive(program: KernelGraph, space: SearchSpace, kinds: tuple[OpKind, ...], most: int) -> set[str]:
    """One-kernel candidates on one input, grid (1, 1, 1) or (2, 1, 1), without a loop, in every order of operators.

    Knows nothing of canonical order, expressions or counts: it appends any operator on any tensors and keeps what is
    well-formed, has the right shape and reads everything.
    """
    found = set()
    goal = kernel_types(program)[program.outputs[0]].shape

    def visit(ops: tuple[Op, ...]) -> None:
        for (grid, imap), omap in product(
            (((1, 1, 1), (None,) * 3), ((2, 1, 1), (0, None, None)), ((2, 1, 1), (1, None, None))),
            ((None,) * 3, (0, None, None), (1, None, None)),
        ):
            if (omap[0] is None) != (grid[0] == 1) or (imap[0] is not None and imap[0] != omap[0]):
                continue
            saver = OutputSaver(len(ops), omap)
            block = BlockGraph(grid, (128, 1, 1), 1, 2, (InputIterator(imap, None),), ops, (saver,))
            graph = KernelGraph(program.inputs, (GraphDefined((0,), block),), (1,))
            read = [n for op in ops for n in op.operands]
            if ops and not faults(graph) and set(read) == set(range(len(ops))) and kernel_types(graph)[1].shape == goal:
                found.add(digest(canonical(graph)))
        if len(ops) == most:
            return
        tensors = range(len(ops) + 1)
        for kind in kinds:
            for operands in product(tensors, repeat=SPECS[kind].min_arity):
                op = Op(kind, operands)
                if op not in ops and not (SPECS[kind].commutative and operands[0] > operands[1]):
                    visit((*ops, op))

    visit(())
    return found


#: Kinds, operators, and how many block graphs there are at least: fewer kinds, or fewer operators, take a tenth of it.
ORDERS = {
    "three kinds": ((K.EXP, K.ADD, K.ACCUM_SUM), 4, 250),
    "three operators": ((K.EXP, K.ADD, K.DIV, K.ACCUM_SUM), 3, 150),
    "both": ((K.EXP, K.ADD, K.DIV, K.ACCUM_SUM), 4, 500),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", but(ORDERS, "both"))
def test_every_block_graph_is_found_once_whatever_the_order_of_its_operators(name: str) -> None:
    kinds, most, least = ORDERS[name]
    space = replace(tiny(max_block_ops=most, fmaps=[-1]), block_ops=kinds, kernel_ops=())
    results = search(EXP, space, SearchOptions(engine="exhaustive", prune=False))
    wanted = naive(EXP, space, kinds, most)
    assert len(wanted) > least
    assert graphs(results).keys() == wanted
    # One order per graph: no more block graphs are closed than there are graphs.
    assert sum(r.stats.block_graphs for r in results) == len(wanted)


@pytest.mark.parametrize(
    "program", [pytest.param(MATMUL, id="matmul"), pytest.param(RMS, id="rms", marks=pytest.mark.slow)]
)
def test_candidates_are_canonical_well_formed_and_inside_the_space(program: KernelGraph) -> None:
    fmaps = [-1, 1] if THOROUGH or program is MATMUL else [-1]  # loops are in the space of one of the programs
    space = replace(tiny(max_kernel_ops=2, max_block_ops=3, griddims=[(2, 1, 1)], fmaps=fmaps), max_graph_defined=2)
    found = graphs(search(program, space))
    limits = DeviceLimits(space.shared_bytes, space.device_bytes)
    goal = kernel_types(program)[program.outputs[0]]
    forms = NormalForms()
    target = forms.of(expressions(program).outputs[0])
    assert len(found) > 30
    assert {len(graph.ops) for graph in found.values()} == {1, 2}
    for graph in found.values():
        assert faults(graph, limits) == []
        assert canonical(graph) == graph
        assert kernel_types(graph)[graph.outputs[0]] == goal
        read = {n for op in graph.ops for n in op.operands} | set(graph.outputs)
        assert read == set(range(len(kernel_types(graph))))
        assert forms.of(expressions(graph).outputs[0]) == target
        for op in graph.ops:
            if isinstance(op, GraphDefined):
                assert len(inline_blocks(op.graph).ops) <= 3
                assert len(set(op.operands)) == len(op.operands)
                assert (op.graph.forloop_range > 1) == any(i.fmap is not None for i in op.graph.inputs)


def test_expressions_built_step_by_step_are_those_of_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    original = KernelSearch._candidate

    def checked(self: KernelSearch, outputs: tuple[int, ...]) -> Iterator[Candidate]:
        nonlocal seen
        seen += 1
        walked: tuple[Expr, ...] = expressions(KernelGraph(self.program.inputs, tuple(self.ops), outputs)).tensors
        # Of terms with one normal form the first one stands for all.
        forms = [self.judge.form(t.term) for t in self.tensors]
        assert None not in forms
        assert forms == [self.judge.form(term) for term in walked]
        yield from original(self, outputs)

    monkeypatch.setattr(kernel_module.KernelSearch, "_candidate", checked)
    search(RMS, tiny(max_kernel_ops=2, max_block_ops=4, griddims=[(1, 1, 1), (2, 1, 1)]))
    assert seen > 100


def test_an_accumulator_counts_the_loop_in_its_expression() -> None:
    # Elementwise operators share their terms between loop ranges; accumulators must not, whatever their shape rule is.
    program = KernelGraph((tensor("X", 2, 4),), (Op(K.SUM, (0,), Attrs(dim=1)),), (1,))
    space = tiny(max_block_ops=2, griddims=[(1, 1, 1)])
    found = graphs(search(program, space)).values()
    loops = {op.graph.forloop_range for graph in found for op in graph.ops if isinstance(op, GraphDefined)}
    assert loops == {1, 2}
    for graph in found:
        for op in graph.ops:
            if isinstance(op, GraphDefined) and op.graph.forloop_range == 2:
                assert op.graph.inputs[0].fmap == 1, "a loop over rows would be summed away"


def test_pruning_by_expression_loses_nothing_that_is_accepted() -> None:
    def accept(candidate: Candidate) -> Verdict:
        same = expressions(candidate.graph).outputs[0] is expressions(EXP).outputs[0]
        return Probable(1, None) if same else Unknown("another expression")

    space = tiny(max_block_ops=3)
    options = SearchOptions(engine="exhaustive", accept=accept)
    pruned = search(EXP, space, options)
    full = search(EXP, space, msgspec.structs.replace(options, prune=False))
    assert graphs(pruned).keys() == graphs(full).keys()
    assert graphs(pruned)
    assert sum(r.stats.states for r in pruned) < sum(r.stats.states for r in full)
    assert sum(r.stats.rejected for r in full) > 0
    assert "expression" not in full[0].stats.pruned


def test_z3_keeps_what_it_does_not_know() -> None:
    # Whatever Z3 knows or not, it prunes nothing of what the normal forms keep.
    space = tiny(max_block_ops=2, griddims=[(1, 1, 1)], fmaps=[-1])
    options = SearchOptions(engine="exhaustive", oracle="z3", oracle_ms=20)
    asked = search(EXP, space, options)
    assert graphs(asked).keys() == graphs(search(EXP, space)).keys()
    assert graphs(asked)
    assert sum(r.stats.oracle_unknown for r in asked) > 0


def test_units_split_the_search_and_are_deterministic() -> None:
    space = tiny(max_kernel_ops=2, max_block_ops=2, griddims=[(1, 1, 1), (2, 1, 1), (2, 2, 1)])
    options = SearchOptions(engine="exhaustive")
    units = ENGINE.units(MATMUL, space, options)
    assert len(units) > 1
    assert [u.index for u in units] == list(range(len(units)))
    forward = [ENGINE.run(MATMUL, space, options, u) for u in units]
    backward = [ExhaustiveEngine().run(MATMUL, space, options, u) for u in reversed(units)][::-1]
    assert [r.candidates for r in forward] == [r.candidates for r in backward]
    assert [r.stats for r in forward] == [r.stats for r in backward]
    whole = ENGINE.run(MATMUL, space, options, Unit(0, "everything", "0/1"))
    assert {digest(c.graph) for c in whole.candidates} == graphs(forward).keys()
    assert sum((r.stats for r in forward), Stats()).configurations == whole.stats.configurations


def test_only_probable_candidates_are_reported() -> None:
    verdicts: list[Verdict] = [Probable(1, None), Unknown("no"), Different(0, 0, (0,), 1, 2)]
    space = tiny(max_block_ops=2, griddims=[(1, 1, 1)])
    everything = search(EXP, space)
    for verdict in verdicts:
        results = search(EXP, space, SearchOptions(engine="exhaustive", accept=partial(lambda v, c: v, verdict)))
        reported = sum(len(r.candidates) for r in results)
        assert reported == (len(graphs(everything)) if isinstance(verdict, Probable) else 0)
        assert sum(r.stats.rejected for r in results) == len(graphs(everything)) - reported


def test_programs_of_several_outputs_and_unread_inputs() -> None:
    inputs = (tensor("X", 2, 4), tensor("unread", 3, 5))
    program = KernelGraph(inputs, (Op(K.EXP, (0,)), Op(K.SUM, (2,), Attrs(dim=1))), (3, 2))
    found = graphs(search(program, tiny(max_block_ops=4, griddims=[(1, 1, 1)]))).values()
    assert found
    forms = NormalForms()
    wanted = [forms.of(e) for e in expressions(program).outputs]
    for graph in found:
        types = kernel_types(graph)
        assert [types[n].shape for n in graph.outputs] == [(2, 1), (2, 4)]
        assert [forms.of(e) for e in expressions(graph).outputs] == wanted


MASKED = (tensor("M", 2, 4, dtype=DType.BOOL), tensor("X", 2, 4), tensor("Y", 2, 4))
SELECTIONS = {
    "of three": KernelGraph(MASKED, (Op(K.EXP, (1,)), Op(K.SELECT, (0, 3, 2))), (4,)),
    "of two and a number": KernelGraph(
        MASKED[:2], (Op(K.EXP, (1,)), Op(K.SELECT, (0, 2), Attrs(value=Fraction(1, 3)))), (3,)
    ),
    "by a comparison": KernelGraph(MASKED[1:], (Op(K.LT, (0, 1)), Op(K.SELECT, (2, 0, 1))), (3,)),
    "by a comparison with a number": KernelGraph(
        MASKED[1:2],
        (Op(K.GT, (0,), Attrs(value=Fraction(2))), Op(K.SELECT, (1, 0), Attrs(value=Fraction(0)))),
        (2,),
    ),
    "by a negation": KernelGraph(
        MASKED[:2], (Op(K.LOGICAL_NOT, (0,)), Op(K.SELECT, (2, 1), Attrs(value=Fraction(0)))), (3,)
    ),
    "with a rounding and a quotient": KernelGraph(
        MASKED[1:], (Op(K.ROUND_BFLOAT16, (0,)), Op(K.DIV_NO_NAN, (2, 1))), (3,)
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_are_found_as_one_kernel(name: str) -> None:
    """With the operators that the program has, the numbers in place of operands included, and no others."""
    program = SELECTIONS[name]
    kinds = (K.EXP, K.SELECT, K.EQ, K.LT, K.LE, K.GT, K.GE, K.LOGICAL_NOT, K.DIV_NO_NAN, K.ROUND_BFLOAT16, K.ACCUM_SUM)
    space = replace(tiny(max_block_ops=5, griddims=[(1, 1, 1)], franges=[1]), kernel_ops=(), block_ops=kinds)
    session = FingerprintSession(program, FingerprintSettings(rounds=2))
    accept = SearchOptions(engine="exhaustive", accept=lambda candidate: session.check(candidate.graph).verdict)
    found = list(graphs(search(program, space, accept)).values())
    wanted = {(op.kind, op.attrs) for op in program.ops if isinstance(op, Op)}
    closing = {K.ACCUM_SUM, K.ACCUM_MAX}
    assert any(
        isinstance(graph.ops[0], GraphDefined)
        and {(op.kind, op.attrs) for op in graph.ops[0].graph.ops if isinstance(op, Op) and op.kind not in closing}
        == wanted
        for graph in found
    )
    for graph in found:
        assert not faults(graph)
        used = {(op.kind, op.attrs) for op in operators(graph) if op.kind not in closing}
        assert used <= wanted, graph


def test_memory_limits_prune() -> None:
    space = tiny(max_block_ops=2, griddims=[(1, 1, 1)])
    needed = (2 * 4 + 4 * 6 + 2 * 6) * 2
    assert graphs(search(MATMUL, replace(space, shared_bytes=needed)))
    fits = {
        op.graph.forloop_range
        for graph in graphs(search(MATMUL, replace(space, shared_bytes=needed - 1))).values()
        for op in graph.ops
        if isinstance(op, GraphDefined)
    }
    assert fits == {2}
    assert not graphs(search(MATMUL, replace(space, device_bytes=needed - 1)))
    assert graphs(search(MATMUL, replace(space, device_bytes=needed)))


def test_mixed_element_types_are_refused_with_a_hint() -> None:
    program = KernelGraph((tensor("X", 2, 4), tensor("W", 2, 4, dtype=DType.FLOAT32)), (Op(K.EXP, (0,)),), (2,))
    with pytest.raises(UnsupportedError, match="expected inputs of one element type, got float16, float32") as caught:
        ENGINE.units(program, tiny(), SearchOptions())
    assert caught.value.hint


def test_options_override_the_limits_of_the_space() -> None:
    space = load_space("tiny")
    bounded = SearchOptions(max_kernel_ops=3, max_block_ops=2).bounded(space)
    assert (bounded.max_kernel_ops, bounded.max_block_ops) == (3, 2)
    assert SearchOptions().bounded(space) == space


def test_counts_add_up() -> None:
    tally = SearchCounters()
    tally.add("states", 3)
    tally.prune("shape", "block")
    tally.prune("shape", "block")
    tally.prune("use", "kernel", 4)
    other = Stats(states=2, pruned_at={"block": {"shape": 1}, "kernel": {"use": 1, "order": 2}}, candidates=1)
    whole = tally.stats() + other
    assert whole == Stats(states=5, pruned_at={"kernel": {"order": 2, "use": 5}, "block": {"shape": 3}}, candidates=1)
    assert whole.pruned == {"order": 2, "shape": 3, "use": 5}
    assert tally.stats() == Stats(states=3, pruned_at={"kernel": {"use": 4}, "block": {"shape": 2}})


def test_the_judge_recognises_outputs_up_to_the_axioms_only() -> None:
    judge = Pruner(RMS, SearchOptions())
    trace = expressions(RMS)
    normed, out = trace.tensors[2:]
    assert judge.reaches(0, out)
    assert judge.keeps(normed)
    assert not judge.reaches(0, normed)
    late = KernelGraph(
        MATMUL.inputs,
        (
            GraphDefined(
                (0, 1),
                BlockGraph(
                    (1, 1, 1),
                    (128, 1, 1),
                    2,
                    2,
                    (InputIterator((None,) * 3, 1), InputIterator((None,) * 3, 0)),
                    (
                        Op(K.MATMUL, (0, 1)),
                        Op(K.ACCUM_SUM, (2,)),
                        Op(K.ACCUM_RMS_LAST, (0,)),
                        Op(K.DIV, (3, 4)),
                    ),
                    (OutputSaver(5, (None,) * 3),),
                ),
            ),
        ),
        (2,),
    )
    assert judge.reaches(0, expressions(late).outputs[0])
