"""Joined launches: the last block of a group runs the second kernel's blocks of that group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.generate import generate, plan_record, requested_options
from mirage_formal.codegen.generated_launches import GeneratedLaunch, launched_programs
from mirage_formal.codegen.joined_launches.block_groups import GROUP, ROUND, BlockGroups, JoinedProgram
from mirage_formal.codegen.joined_launches.joined_printer import emit_joined
from mirage_formal.codegen.planning.planner import schedules
from mirage_formal.codegen.program.access import GRID
from mirage_formal.codegen.program.integers import evaluate_expression
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.safety.obligation_types import DischargedObligation, ObligationKind, ViolatedObligation
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety, safety_obligations
from mirage_formal.codegen.target import load_target
from mirage_formal.device.compile import available
from mirage_formal.device.emulate import EmulationFault, FaultKind, run_kernel, run_source
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind as K
from mirage_formal.kernel_build.candidate_forms import form
from mirage_formal.kernel_build.stable_forms import stabilize_proved
from mirage_formal.revalidate.cuda_reader import has_cuda_grammar
from mirage_formal.revalidate.joined_reader import read_joined, text_of_joined
from mirage_formal.revalidate.rederive import first_difference
from mirage_formal.support.errors import FormatError, UnsupportedError
from tests.kit.graphs import workloads as w

H200 = load_target("h200")
N = None
SIZES = {"b": 2, "m": 32, "d": 16, "n": 128, "e": 16}


def attention() -> KernelGraph:
    """Attention with keys split over four blocks, combined for each batch, with its running maximum."""
    return stabilize_proved(w.attention_split(**SIZES, split=4, loop=2, rows=2)).graph


def linear(split: int = 4) -> KernelGraph:
    """A product of 32 rows whose inner dim is split over blocks."""
    loads = [w.load((0, N, N), 1), w.load((N, 1, N), 0)]
    ops = [w.op(K.MATMUL, 0, 1), w.op(K.ACCUM_SUM, 2)]
    block = w.kernel((0, 1), (2, 4, 1), 8, loads, ops, [(3, (0, 1, N))])
    graph = KernelGraph((w.tensor("X", 32, 256), w.tensor("W", 256, 64)), (block,), (2,))
    return form(graph, H200, f"split-{split} whole").graph


def two_sums() -> KernelGraph:
    """Squares of a matrix on one grid, and sums of their rows on another one: a program without a name."""
    first = w.kernel(
        (0,), (4, 2, 1), 1, [w.load((0, 1, N))], [w.op(K.SQUARE, 0), w.op(K.ACCUM_SUM, 1)], [(2, (0, 1, N))]
    )
    then = w.kernel(
        (1,), (8, 1, 1), 1, [w.load((0, N, N))], [w.op(K.SUM, 0, dim=1), w.op(K.ACCUM_SUM, 1)], [(2, (0, N, N))]
    )
    return KernelGraph((w.tensor("X", 64, 64),), (first, then), (2,))


def batches() -> KernelGraph:
    """Sums of parts of four batches, each by eight blocks on two axes, added up by two blocks for each batch."""
    loads, sums = [w.load((0, 1, 2))], [w.op(K.SQUARE, 0), w.op(K.ACCUM_SUM, 1)]
    first = w.kernel((0,), (4, 4, 2), 1, loads, sums, [(2, (0, 1, 2))])
    then = w.kernel(
        (1,), (2, 4, 1), 1, [w.load((2, 0, N))], [w.op(K.SUM, 0, dim=1), w.op(K.ACCUM_SUM, 1)], [(2, (2, 0, N))]
    )
    return KernelGraph((w.tensor("X", 4, 32, 64),), (first, then), (2,))


GRAPHS: dict[str, Callable[[], KernelGraph]] = {"attention": attention, "linear": linear, "sums": two_sums}


def joined_of(graph: KernelGraph, position: int = 1) -> JoinedProgram:
    made = generate(graph, H200, joined={position})
    (found,) = (one.program for one in made.launches if isinstance(one, GeneratedLaunch) and one.then is not None)
    assert isinstance(found, JoinedProgram)
    return found


def inputs_of(joined: JoinedProgram, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.normal(size=one.elements) * 0.3 for one in joined.params if not one.written]


def apart(joined: JoinedProgram, given: list[Any]) -> list[Any]:
    """What the two kernels write, each in a launch of its own."""
    results = list(run_kernel(joined.first, given[: sum(not one.written for one in joined.first.params)]))
    names = [one.name for one in joined.first.params if one.written]
    known = dict(zip(names, results, strict=True))
    rest = iter(given[sum(not one.written for one in joined.first.params) :])
    sources = dict(joined.groups.handed)
    read = [known[sources[p.name]] if p.name in sources else next(rest) for p in joined.then.params if not p.written]
    return [*results, *run_kernel(joined.then, read)]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_joined_launch_computes_what_two_launches_do_in_any_order_of_blocks(name: str) -> None:
    joined = joined_of(GRAPHS[name]())
    given = inputs_of(joined)
    expected = apart(joined, given)
    for seed in range(4):
        for found, other in zip(run_kernel(joined, given, seed=seed), expected, strict=True):
            np.testing.assert_array_equal(found, other)


def test_sanitizers_find_nothing() -> None:
    joined = joined_of(attention())
    given = inputs_of(joined)
    for found, other in zip(run_kernel(joined, given, sanitize=True, seed=5), run_kernel(joined, given), strict=True):
        np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize("name", GRAPHS)
def test_its_obligations_hold(name: str) -> None:
    made = generate(GRAPHS[name](), H200, joined={1})
    (launch,) = made.launches
    assert isinstance(launch, GeneratedLaunch)
    programs = launched_programs(launch)
    assert len(programs) == 3
    for program in programs:
        assert isinstance(discharge_safety(program).verdict, Safe)
    kinds = {one.kind for one in safety_obligations(programs[2])}
    assert kinds == {ObligationKind.ARRIVAL, ObligationKind.HANDOVER}


def test_groups_are_as_fine_as_both_grids_allow() -> None:
    """Each batch of attention is combined by itself; of the linear layer, each tile; of the sums, two blocks."""
    found = {name: joined_of(build()).groups for name, build in GRAPHS.items()}
    sizes = {name: (one.count, one.blocks, one.rounds) for name, one in found.items()}
    assert sizes == {"attention": (2, 8, 1), "linear": (sizes["linear"][0], 4, 1), "sums": (4, 2, 2)}


def test_plans_say_which_kernels_are_joined() -> None:
    made = generate(attention(), H200, joined={1})
    plans = [plan_record(one, {}) for one in made.steps if not hasattr(one, "a")]
    assert [one.joined is True for one in plans] == [False, True]
    assert generate(attention(), H200, *requested_options(plans)) == made


def test_a_schedule_of_another_number_of_threads_is_replaced() -> None:
    threads = joined_of(attention()).threads
    op = attention()
    other = next(one for one in schedules(op, 1, H200) if one.threads != threads)
    (launch,) = generate(op, H200, {1: other}, joined={1}).launches
    assert isinstance(launch, GeneratedLaunch)
    assert launch.then is not None
    assert launch.then.program.threads == launch.kernel.program.threads == threads
    assert launch.then.asked != other


def test_kernels_that_are_not_graph_defined_are_not_joined() -> None:
    graph = two_sums()
    with pytest.raises(UnsupportedError, match="behind one with a launch of its own"):
        generate(graph, H200, joined={0})
    with pytest.raises(UnsupportedError, match="behind one with a launch of its own"):
        generate(replace(graph, ops=(graph.ops[0], w.op(K.SQUARE, 1))), H200, joined={1})


def test_kernels_that_share_nothing_are_not_joined() -> None:
    graph = two_sums()
    ops = (graph.ops[0], replace(graph.ops[1], operands=(0,)))
    with pytest.raises(UnsupportedError, match="handed over"):
        generate(replace(graph, ops=ops, outputs=(1, 2)), H200, joined={1})


def test_other_views_of_a_result_are_not_handed_over() -> None:
    first, then = two_sums().ops
    assert isinstance(then, GraphDefined)
    turned = w.op(K.RESHAPE, 1, shape=(32, 128))
    graph = KernelGraph(two_sums().inputs, (first, turned, replace(then, operands=(2,))), (3,))
    with pytest.raises(UnsupportedError, match="read as they are written"):
        generate(graph, H200, joined={2})


# --- mutants --------------------------------------------------------------------------------------------------------


def _other(joined: JoinedProgram, **changes: Any) -> JoinedProgram:
    return replace(joined, groups=replace(joined.groups, **changes))


def _modulo(e: IntExpr, count: int) -> IntExpr:
    return IntBin(IntOp.MOD, e, Int(count))


#: Changes of the groups, each with the kind of the obligation that it breaks.
GROUPS: dict[str, tuple[Callable[[BlockGroups], dict[str, Any]], ObligationKind]] = {
    "a ticket too few": (lambda g: {"blocks": g.blocks - 1}, ObligationKind.ARRIVAL),
    "a ticket too many": (lambda g: {"blocks": g.blocks + 1}, ObligationKind.ARRIVAL),
    "a counter too few": (lambda g: {"count": g.count - 1}, ObligationKind.ARRIVAL),
    "all blocks in one group": (lambda g: {"group": Int(0)}, ObligationKind.ARRIVAL),
    "a group beside its own": (lambda g: {"group": IntBin(IntOp.ADD, g.group, Int(1))}, ObligationKind.ARRIVAL),
    "groups of another axis": (lambda g: {"group": _modulo(Var("by"), g.count)}, ObligationKind.HANDOVER),
    "groups in turns": (
        lambda g: {"group": _modulo(IntBin(IntOp.ADD, g.group, Int(1)), g.count)},
        ObligationKind.HANDOVER,
    ),
    "a group that reads another's results": (
        lambda g: {"then_block": tuple(_shifted(one, g.count) for one in g.then_block)},
        ObligationKind.HANDOVER,
    ),
    "a block that is never run": (lambda g: {"then_block": (Int(0), *g.then_block[1:])}, ObligationKind.HANDOVER),
    "blocks outside of the grid": (
        lambda g: {"then_block": (IntBin(IntOp.ADD, g.then_block[0], Int(1)), *g.then_block[1:])},
        ObligationKind.HANDOVER,
    ),
    "a round too many": (lambda g: {"rounds": g.rounds + 1}, ObligationKind.HANDOVER),
    "nothing handed over": (lambda g: {"handed": ()}, ObligationKind.ARRIVAL),
}


def _shifted(e: IntExpr, count: int) -> IntExpr:
    """The same expression of the next group, in turns."""
    if e == Var(GROUP):
        return _modulo(IntBin(IntOp.ADD, Var(GROUP), Int(1)), count)
    return IntBin(e.op, _shifted(e.a, count), _shifted(e.b, count)) if isinstance(e, IntBin) else e


@pytest.mark.parametrize("build", GRAPHS)
@pytest.mark.parametrize("name", GROUPS)
def test_an_obligation_finds_other_groups(build: str, name: str) -> None:
    change, kind = GROUPS[name]
    joined = joined_of(GRAPHS[build]())
    mutant = _other(joined, **change(joined.groups))
    if _equal_groups(mutant, joined):
        pytest.skip("these groups are the same ones")
    verdict = discharge_safety(mutant).verdict
    assert isinstance(verdict, Unsafe)
    broken = {
        one.kind for one in safety_obligations(mutant) if not isinstance(one.finding, DischargedObligation | type(None))
    }
    assert kind in broken
    assert all(
        isinstance(one.finding, DischargedObligation | ViolatedObligation) or one.finding
        for one in safety_obligations(mutant)
    )


def _expressions(e: IntExpr, names: tuple[str, ...]) -> Iterator[IntExpr]:
    """An expression with one constant, variable or operator changed."""
    match e:
        case Int(value):
            yield from (Int(other) for other in (value + 1, value - 1, 2 * value) if other >= 0 and other != value)
        case Var(name):
            yield from (Var(other) for other in names if other != name)
        case IntBin(op, a, b):
            yield from (
                IntBin(other, a, b) for other in (IntOp.ADD, IntOp.MUL, IntOp.DIV, IntOp.MOD) if other is not op
            )
            yield from (IntBin(op, other, b) for other in _expressions(a, names))
            yield from (IntBin(op, a, other) for other in _expressions(b, names))


def _mutants(groups: BlockGroups) -> Iterator[dict[str, Any]]:
    for name in ("count", "blocks", "rounds"):
        value = getattr(groups, name)
        yield from ({name: other} for other in (value + 1, value - 1, 2 * value) if other > 0)
    yield from ({"group": one} for one in _expressions(groups.group, GRID))
    for axis, e in enumerate(groups.then_block):
        for one in _expressions(e, (GROUP, ROUND)):
            yield {"then_block": (*groups.then_block[:axis], one, *groups.then_block[axis + 1 :])}


def test_obligations_find_every_mutant_of_the_groups_that_is_another_launch() -> None:
    """Without a run, and none is undecided; the others are the same groups, written in another way."""
    found, same = 0, 0
    for build in (*GRAPHS.values(), batches):
        joined = joined_of(build())
        for changes in _mutants(joined.groups):
            mutant = _other(joined, **changes)
            verdict = discharge_safety(mutant).verdict
            equal = _equal_groups(mutant, joined)
            assert isinstance(verdict, Safe if equal else Unsafe), (changes, joined.groups)
            found, same = found + (not equal), same + equal
    assert found >= 80
    assert same <= 0.15 * (found + same)


def _equal_groups(a: JoinedProgram, b: JoinedProgram) -> bool:
    """Whether two launches have the same groups, up to the numbers of counters."""

    def pairs(one: JoinedProgram) -> Any:
        g = one.groups
        if any(evaluate_expression(e, {GROUP: 0, ROUND: 0}) is None for e in g.then_block):
            return None
        blocks = [(x, y, z) for z in range(one.grid[2]) for y in range(one.grid[1]) for x in range(one.grid[0])]
        own = [evaluate_expression(g.group, dict(zip(("bx", "by", "bz"), at, strict=True))) for at in blocks]
        runs = [
            tuple(evaluate_expression(e, {GROUP: group, ROUND: r}) for e in g.then_block)
            for group in range(g.count)
            for r in range(g.rounds)
        ]
        return g.count, g.blocks, g.rounds, g.handed, own, runs

    return bool(pairs(a) == pairs(b))


def test_a_block_that_reads_what_two_groups_wrote_is_found() -> None:
    """Programs of which each block of the second one reads two of the first one's rows, in groups of one row."""
    graph = two_sums()
    first, then = graph.ops
    assert isinstance(then, GraphDefined)
    wide = replace(then, graph=replace(then.graph, grid=(2, 1, 1)))
    joined = joined_of(replace(graph, ops=(first, wide)))
    assert (joined.groups.count, joined.groups.blocks) == (2, 4)
    finer = _other(joined, count=4, blocks=2, group=Var("bx"), rounds=1)
    finer = _other(finer, then_block=(IntBin(IntOp.DIV, Var(GROUP), Int(2)), Int(0), Int(0)))
    found = [one for one in safety_obligations(finer) if isinstance(one.finding, ViolatedObligation)]
    assert {one.subject for one in found} >= {joined.groups.handed[0][0]}
    assert isinstance(discharge_safety(finer).verdict, Unsafe)


#: Changes of the text, each with the fault that the emulator finds.
TEXTS: dict[str, tuple[str, str, FaultKind]] = {
    "no fence": ("  mf::publish();\n", "", FaultKind.UNPUBLISHED),
    "a counter that is not reset": ("    mf::reset(mf_counters, mf_group);\n", "", FaultKind.COUNTER),
    "a ticket too many": ("is_last<8>", "is_last<9>", FaultKind.UNWRITTEN),
    "a ticket too few": ("is_last<8>", "is_last<7>", FaultKind.UNINITIALISED),
    "another group": ("mf_group = bx;", "mf_group = (bx + blockIdx.y) % 2;", FaultKind.UNORDERED),
    "no such group": ("mf_group = bx;", "mf_group = bx + 1;", FaultKind.OUT_OF_BOUNDS),
    "no ticket": ("if (mf::is_last<8>(mf_counters, mf_group))", "if (blockIdx.y == 1)", FaultKind.UNINITIALISED),
    "the other group's blocks": ("then_out0_d6, mf_group", "then_out0_d6, 1 - mf_group", FaultKind.UNORDERED),
    "a block that is run twice": ("mf_round < 1", "mf_round < 0", FaultKind.UNWRITTEN),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_emulator_finds_what_is_missing_in_a_text(name: str) -> None:
    before, after, kind = TEXTS[name]
    joined = joined_of(attention())
    text = emit_joined(joined)
    assert text.count(before) == 1, text[text.index('extern "C"') :]
    mutant = text.replace(before, after)
    found = set()
    for seed in range(3):
        with pytest.raises(EmulationFault) as caught:
            run_source(joined, mutant, inputs_of(joined), seed=seed)
        found.add(caught.value.kind)
    assert kind in found


def test_what_is_handed_over_is_not_read_through_the_read_only_path() -> None:
    joined = joined_of(attention())
    text = emit_joined(joined)
    for name, source in joined.groups.handed:
        assert re.search(rf"MF_HANDED\((\w|:)+\) {source}\b", text)
        assert re.search(rf"MF_AWAITED\((\w|:)+\) {name}\b", text)
        assert not re.search(rf"MF_INPUT\((\w|:)+\) {name}\b", text[text.index(f"{joined.then.name}_block") :])
    if available():
        from mirage_formal.device.disassembly import assembly_texts

        ptx = assembly_texts(text, "sm_80")[0].text
        behind = ptx[ptx.index("atom.") :]
        assert "ld.global.nc" in ptx[: ptx.index("atom.")] or "cp.async" in ptx
        assert "ld.global" in behind
        assert "ld.global.nc" not in behind


@pytest.mark.skipif(not has_cuda_grammar(), reason="tree-sitter's grammar of CUDA is not installed")
@pytest.mark.parametrize("name", GRAPHS)
def test_its_text_is_read_back(name: str) -> None:
    joined = joined_of(GRAPHS[name]())
    text = emit_joined(joined)
    stated = read_joined(text)
    assert first_difference(text_of_joined(joined, stated), stated) is None
    changes = [
        ("mf::publish();", "mf::grid_wait();"),
        (f"mf::is_last<{joined.groups.blocks}>", f"mf::is_last<{joined.groups.blocks + 1}>"),
        (f"mf_round < {joined.groups.rounds}", f"mf_round < {joined.groups.rounds + 1}"),
        ("mf::reset(mf_counters, mf_group);", "mf::reset(mf_counters, 0);"),
        ("mf::reuse_shared();", "mf::barrier();"),
        ("const int mf_group = ", "const int mf_group = 1 + "),
        ("MF_HANDED(", "MF_OUTPUT("),
        ("MF_AWAITED(", "MF_INPUT("),
        ("blockIdx.z);\n  mf::publish", "blockIdx.y);\n  mf::publish"),
        ("MF_DEVICE void", "static void"),
    ]
    for before, after in changes:
        assert before in text
        try:
            other = read_joined(text.replace(before, after, 1))
        except FormatError:
            continue
        assert first_difference(text_of_joined(joined, other), other) is not None, before
