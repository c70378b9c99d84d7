"""The kernel's own meaning of µGraphs, against the float64 reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.check.proof.segmented_tensors import MAX_PIECES, PieceValue
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.graph.verifier import faults
from mirage_formal.semantics.float64_reference import run
from tests.kit.graphs.random_graphs import ORDERED, random_graph, with_masks
from tests.kit.proofs.proof_judge import Numbers

ALL = frozenset(OpKind)


class Whole(Numbers):
    """Pieces put together."""

    def whole(self, value: PieceValue) -> NDArray[Any]:
        out = np.zeros(value.shape)
        for place, term in value.terms.items():
            starts = [sum(cut[:i]) for cut, i in zip(value.cuts, place, strict=True)]
            lengths = [cut[i] for cut, i in zip(value.cuts, place, strict=True)]
            part = self(term)
            assert part.shape == tuple(lengths)
            out[tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))] = part
        return out


def compare(graph: KernelGraph, seed: int, low: float = 0.5, high: float = 1.5) -> tuple[Elaboration, bool]:
    numbers = np.random.default_rng(seed)
    inputs = with_masks(graph, [numbers.uniform(low, high, x.tensor.shape) for x in graph.inputs])
    terms = Terms()
    found = Elaboration(terms, graph, "program")
    with np.errstate(all="ignore"):
        values = Whole(terms, inputs)
        got = [values.whole(x) for x in found.outputs]
    wanted = run(graph, inputs)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        # A constant 1 is written as 0 x + 1, which float64 does not know where x has overflowed.
        fine = np.isfinite(b) & (np.abs(b) < 1e100) & ~np.isnan(a)
        assert np.allclose(a[fine], b[fine], rtol=1e-6, atol=1e-9)
    return found, all(np.isfinite(b).all() for b in wanted)


def well_formed(rng: random.Random, kinds: frozenset[OpKind], kernels: int) -> KernelGraph:
    while faults(graph := random_graph(rng, kinds, kernels)):
        pass
    return graph


@pytest.mark.parametrize("ordered", [False, True])
def test_random_graphs_mean_what_the_reference_computes(ordered: bool) -> None:
    rng = random.Random(5)
    kinds = ALL if ordered else ALL - ORDERED
    done = [compare(well_formed(rng, kinds, 2), seed) for seed in range(250)]
    assert sum(finite for _, finite in done) > 180
    assert any(len(value.terms) > 1 for elaboration, _ in done for value in elaboration.outputs)


@pytest.mark.parametrize("kind", sorted(ALL))
def test_every_operator_stands_in_a_random_graph(kind: OpKind) -> None:
    rng, seen = random.Random(kind), 0
    for seed in range(400):
        graph = well_formed(rng, frozenset({kind, OpKind.ACCUM_SUM, OpKind.ADD}), 1)
        inner = [op for top in graph.ops for op in (top.graph.ops if isinstance(top, GraphDefined) else (top,))]
        inner = [step for op in inner for step in (op.graph.ops if not isinstance(op, Op) else (op,))]
        compare(graph, seed)
        if any(isinstance(op, Op) and op.kind is kind for op in inner):
            seen += 1
        if seen == 3:
            return
    raise AssertionError(f"{seen} graphs with {kind}")


def graph(shapes: Sequence[Shape], *ops: KernelOp, outputs: tuple[int, ...] | None = None) -> KernelGraph:
    inputs = tuple(Input(f"t{i}", DTensor(s, DType.FLOAT16), row_major(s)) for i, s in enumerate(shapes))
    return KernelGraph(inputs, ops, outputs or (len(shapes) + len(ops) - 1,))


def test_concatenation_is_cut_where_the_other_operand_is() -> None:
    first = Op(OpKind.CONCAT, (0, 1), Attrs(dim=1))
    second = Op(OpKind.CONCAT, (2, 3), Attrs(dim=0))
    found, _ = compare(graph([(4, 3), (4, 5), (6, 2), (2, 2)], first, second, Op(OpKind.MATMUL, (4, 5))), 1)
    (output,) = found.outputs
    assert len(output.terms) == 1
    found, _ = compare(graph([(4, 3), (4, 5), (4, 6), (4, 2)], first, Op(OpKind.CONCAT, (2, 3), Attrs(dim=1)),
                             Op(OpKind.ADD, (4, 5)), Op(OpKind.TRANSPOSE, (6,), Attrs(perm=(1, 0)))), 1)  # fmt: skip
    assert found.outputs[0].cuts == ((3, 3, 2), (4,))


def test_concatenation_survives_a_reshape_that_keeps_its_parts() -> None:
    joined = Op(OpKind.CONCAT, (0, 1), Attrs(dim=0))
    shapes = [(4, 6), (2, 6)]
    found, _ = compare(graph(shapes, joined, Op(OpKind.RESHAPE, (2,), Attrs(shape=(3, 4, 3)))), 1)
    assert found.outputs[0].cuts == ((2, 1), (4,), (3,))
    found, _ = compare(graph(shapes, joined, Op(OpKind.RESHAPE, (2,), Attrs(shape=(1, 36)))), 1)
    assert found.outputs[0].cuts == ((1,), (24, 12))
    found, _ = compare(graph([(4, 6), (1, 6)], joined, Op(OpKind.RESHAPE, (2,), Attrs(shape=(3, 10)))), 1)
    assert found.outputs[0].cuts == ((3,), (10,))
    inner = Op(OpKind.CONCAT, (0, 1), Attrs(dim=1))
    found, _ = compare(graph([(2, 4), (2, 2)], inner, Op(OpKind.RESHAPE, (2,), Attrs(shape=(12,)))), 1)
    assert found.outputs[0].cuts == ((12,),)


def test_the_largest_value_along_a_concatenation_is_the_largest_of_its_parts() -> None:
    joined = Op(OpKind.CONCAT, (0, 1), Attrs(dim=1))
    found, _ = compare(graph([(4, 6), (4, 2)], joined, Op(OpKind.MAX, (2,), Attrs(dim=1))), 1)
    assert found.outputs[0].cuts == ((4,), (1,))
    found, _ = compare(graph([(4, 6), (4, 2)], joined, Op(OpKind.MAX, (2,), Attrs(dim=0))), 1)
    assert found.outputs[0].cuts == ((1,), (6, 2))


def test_too_many_pieces_are_joined() -> None:
    ops = [Op(OpKind.CONCAT, (i, i), Attrs(dim=i % 2)) for i in range(13)]
    found, _ = compare(graph([(1, 1)], *ops, Op(OpKind.SUM, (13,), Attrs(dim=0))), 1)
    assert found.outputs[0].shape == (1, 64)
    assert all(len(value.terms) <= MAX_PIECES for value in found.tensors)


def running(shape: Sequence[Shape]) -> GraphDefined:
    """A running maximum over the columns of a chunk of three, and what it is carried by, in one kernel."""
    block = BlockGraph((1, 1, 1), (32, 1, 1), 2, 1, (InputIterator((None, None, None), 1),),
                       (Op(OpKind.RUNNING_MAX, (0,), Attrs(dim=1)), Op(OpKind.ACCUM_RESCALED_SUM, (1, 2)),
                        Op(OpKind.ACCUM_SUM, (0,))),
                       (OutputSaver(3, (None, None, None)), OutputSaver(4, (None, None, None))))  # fmt: skip
    return GraphDefined((2,), block)


@pytest.mark.parametrize("widths", [(4, 2), (3, 3), (1, 5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_running_maxima_of_concatenations_have_their_values(widths: tuple[int, int], dim: int) -> None:
    """Concatenated rows, and columns that end inside of a chunk, between two, or that the loop joins."""
    shapes = [(2, n) for n in widths] if dim else [(n, 6) for n in widths]
    joined = Op(OpKind.CONCAT, (0, 1), Attrs(dim=dim))
    compare(graph(shapes, joined, running(shapes), outputs=(3, 4)), 1)


def test_conditions_name_every_division_and_root() -> None:
    norm = Op(OpKind.RMS_NORM, (0,), Attrs(dim=1, eps=Fraction(1, 9)))
    found = Elaboration(Terms(), graph([(4, 6)], norm, Op(OpKind.SOFTMAX, (1,), Attrs(dim=1))), "candidate")
    assert found.conditions == [
        "candidate, kernel operator 0: radicand nonnegative",
        "candidate, kernel operator 0: divisor nonzero",
        "candidate, kernel operator 1: divisor nonzero",
    ]


def test_blocks_that_write_the_same_elements_are_refused() -> None:
    block = BlockGraph((2, 1, 1), (32, 1, 1), 1, 1, (InputIterator((0, None, None), None),),
                       (Op(OpKind.ACCUM_SUM, (0,)),), (OutputSaver(1, (None, None, None)),))  # fmt: skip
    with pytest.raises(ProofError, match="omap"):
        Elaboration(Terms(), graph([(4, 6)], GraphDefined((0,), block)), "candidate")


def test_a_graph_with_faults_is_refused() -> None:
    with pytest.raises(ProofError, match="inner dimensions") as caught:
        Elaboration(Terms(), graph([(4, 6)], Op(OpKind.MATMUL, (0, 0))), "candidate")
    assert caught.value.where == "candidate"
