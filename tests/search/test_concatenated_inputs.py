"""Concatenated inputs: one input to a search, pads that kernels add up in what it finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal.check.__main__ import main as check
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.kernel_build.build import build
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.concatenated_inputs import fuse_concatenations, pad_expressions
from mirage_formal.search.normalize_layout_ops import normalize_layout_ops
from mirage_formal.search.preprocess import preprocess
from tests.kit.graphs.workloads import Build, program, same
from tests.kit.sampling import but

H200 = load_target("h200")
K = OpKind


def rotated(g: mf.Graph) -> mf.Tensor:
    x, cos, sin = g.new_input((4, 6, 16)), g.new_input((6, 16)), g.new_input((6, 16))
    return x * cos + g.concat([-x[:, :, 8:], x[:, :, :8]], dim=-1) * sin


def appended(g: mf.Graph) -> mf.Tensor:
    """Keys and values with one new row; the keys are read transposed."""
    q, k, v = g.new_input((2, 4, 16)), g.new_input((2, 31, 16)), g.new_input((2, 31, 16))
    keys, values = (g.concat([old, g.new_input((2, 1, 16))], dim=1) for old in (k, v))
    return g.softmax(q @ keys.mT / 4, dim=-1) @ values


def three(g: mf.Graph) -> mf.Tensor:
    """Pieces of three lengths, one of them transposed, behind functions of which each turns 0 into 0."""
    a, b, c = g.new_input((3, 5)), g.new_input((5, 2)), g.new_input((4, 5))
    return g.sigmoid(g.concat([g.tanh(a) * 2, b.mT, g.abs(c)], dim=0)) + g.new_input((9, 1))


INSIDE: dict[str, tuple[Build, int]] = {"rotated": (rotated, 4), "appended": (appended, 3), "three": (three, 2)}


def exponentials(g: mf.Graph) -> mf.Tensor:
    """The exponential of 0 is 1."""
    return g.concat([g.exp(g.new_input((4, 8))), g.new_input((4, 8))], dim=1) * 2 + g.new_input((4, 16))


def products(g: mf.Graph) -> mf.Tensor:
    return g.concat([g.new_input((4, 8)) @ g.new_input((8, 8)), g.new_input((4, 8))], dim=1) * g.new_input((4, 16))


@pytest.mark.parametrize("name", INSIDE)
def test_a_search_sees_one_input(name: str) -> None:
    build, inputs = INSIDE[name]
    given = program(build)
    seen = preprocess(given)
    assert len(seen.program.inputs) == inputs
    assert not {K.CONCAT, K.PAD, K.SLICE} & {op.kind for op in seen.program.ops if isinstance(op, Op)}
    same(given, seen.whole)


@pytest.mark.parametrize("build", [exponentials, products])
def test_what_is_not_zero_where_its_inputs_are_is_no_sum_of_pads(build: Build) -> None:
    given = program(build)
    assert normalize_layout_ops(given) is None
    assert not pad_expressions(given)


def candidate(given: KernelGraph, grid: tuple[int, int, int]) -> KernelGraph:
    """``rotated`` in one kernel that reads the concatenation, which other kernels write."""
    whole = preprocess(given).whole
    *front, one, two, _ = whole.ops
    assert isinstance(one, Op)
    assert isinstance(two, Op)
    block = BlockGraph(
        grid,
        (128, 1, 1),
        1,
        1,
        tuple(InputIterator(imap, None) for imap in ((0, 1, 2), (None, 1, 2), (0, 1, 2), (None, 1, 2))),
        (Op(K.MUL, (0, 1)), Op(K.MUL, (2, 3)), Op(K.ADD, (4, 5)), Op(K.ACCUM_SUM, (6,))),
        (OutputSaver(7, (0, 1, 2)),),
    )
    ops = (*front, GraphDefined((*one.operands, *two.operands), block))
    return KernelGraph(given.inputs, ops, (2 + len(ops),))


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 3, 2), (4, 1, 4), (1, 2, 1)])
def test_the_kernel_computes_the_sum_itself(grid: tuple[int, int, int]) -> None:
    given = program(rotated)
    made = candidate(given, grid)
    found = fuse_concatenations(made)
    assert faults(found) == []
    assert (kernel_count(made), kernel_count(found)) == (5, 1)
    assert isinstance(prove(given, found), Equivalent)
    built = build(found, given, H200)
    assert len(built.executable.launches) == 1
    assert compare_on_emulator(built, scales=(0.1, 1.0)).answer == "within"


def test_a_pad_of_the_sum_is_a_sum_of_pads() -> None:
    """As tiles that overhang have it: rows of 16 become rows of 24."""
    graph = mf.new_kernel_graph()
    a, b = graph.new_input((4, 8)), graph.new_input((4, 8))
    graph.mark_output(graph.exp(graph.pad(graph.pad(a, 1, 0, 8) * 3 + graph.pad(b, 1, 8, 0), 1, 0, 8)))
    given = graph.freeze()
    block = BlockGraph(
        (2, 3, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, 1, None), None),),
        (Op(K.EXP, (0,)), Op(K.ACCUM_SUM, (1,))),
        (OutputSaver(2, (0, 1, None)),),
    )
    made = replace(given, ops=(*given.ops[:-1], GraphDefined(given.ops[-1].operands, block)))
    found = fuse_concatenations(made)
    assert kernel_count(found) == 1
    assert isinstance(prove(given, found), Equivalent)
    assert compare_on_emulator(build(found, given, H200), scales=(0.5,)).answer == "within"


def test_a_pad_is_made_once() -> None:
    """What is read as it is and under a square has one pad, so that it is one input between pads and slices."""
    graph = mf.new_kernel_graph()
    a = graph.new_input((4, 13))
    padded = graph.pad(a, 1, 0, 3)
    graph.mark_output(graph.mul(padded, graph.square(padded)))
    given = graph.freeze()
    block = BlockGraph(
        (4, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),) * 2,
        (Op(K.MUL, (0, 1)), Op(K.ACCUM_SUM, (2,))),
        (OutputSaver(3, (0, None, None)),),
    )
    made = replace(given, ops=(*given.ops[:-1], GraphDefined(given.ops[-1].operands, block)))
    found = fuse_concatenations(made)
    assert kernel_count(found) == 1
    assert [op.kind for op in found.ops if isinstance(op, Op)] == [K.PAD]
    assert isinstance(prove(given, found), Equivalent)


def test_what_other_operators_read_is_stored() -> None:
    given = program(rotated)
    whole = preprocess(given).whole
    assert fuse_concatenations(whole) == whole


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
@pytest.mark.parametrize("name", but(["rotated", "appended"], "appended"))
def test_the_whole_program_is_found_and_check_accepts_it(tmp_path: Path, name: str) -> None:
    graph = mf.new_kernel_graph()
    graph.mark_output(INSIDE[name][0](graph))
    best = mf.superoptimize(graph, out=tmp_path / "run", workers=1, keep=2)[0]
    assert isinstance(best.verdict, Equivalent)
    assert kernel_count(best.graph) == 1
    assert check([str(tmp_path / "run")]) == 0


def test_attrs_of_a_wrong_pad_are_refused() -> None:
    """One row further on: the sum is another tensor, and the prover says so."""
    given = program(rotated)
    found = fuse_concatenations(candidate(given, (1, 1, 1)))
    ops = tuple(
        replace(op, attrs=Attrs(dim=2, before=op.attrs.after, after=op.attrs.before))
        if isinstance(op, Op) and op.kind is K.PAD
        else op
        for op in found.ops
    )
    assert not isinstance(prove(given, replace(found, ops=ops)), Equivalent)
