"""Proofs of candidates with tails: accepted where they hold, refused where any part of them is another."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.check.equivalence import crosscheck_proof, replay_with_obligations
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import resize
from mirage_formal.graph.remainder_tiles.split import split_pads_and_slices
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.counterexamples.definedness import check_conditions
from mirage_formal.prove.equality import prove as proving
from mirage_formal.prove.equality.explain import explain
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.horizontal_fusion.whole_program_fusion import fuse_whole_program
from mirage_formal.search.preprocess import preprocess
from mirage_formal.search.space import load_space
from tests.kit.graphs.workloads import program as built
from tests.kit.kernels.tails import Wrapped, chain, product
from tests.kit.proofs.claims import Mask, Saved, kernel, on, pair

K = OpKind
SHAPE, WANTED = (5, 37), (8, 48)


def proof_of(program: KernelGraph, graph: KernelGraph) -> bytes:
    found = prove(program, graph)
    assert isinstance(found, Equivalent)
    return found.proof


def by_blocks(build: Any, *ops: Op, inputs: int = 1, keeps: bool = True) -> tuple[KernelGraph, KernelGraph]:
    """A program of one operator or more over padded inputs, and the same operators in blocks of rows."""
    g = mf.new_kernel_graph()
    given = [g.new_input(dims=SHAPE, name=name) for name in "xy"[:inputs]]
    g.mark_output(build(g, *given))
    program = g.freeze()
    made = Wrapped(program)
    padded = tuple(made.padded(i, SHAPE, WANTED) for i in range(inputs))
    count = inputs + len(ops)
    block = BlockGraph(
        (2, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),) * inputs,
        (*ops, Op(K.ACCUM_SUM, (count - 1,))),
        (OutputSaver(count, (0, None, None)),),
    )
    result = made.add(GraphDefined(padded, block))
    whole, wanted = (WANTED, SHAPE) if keeps else ((8, 1), (5, 1))
    return program, made.graph(made.cut(result, whole, wanted))


@pytest.mark.parametrize(
    "pair",
    [
        product(19, 37, 45, (16, 16, 16)),
        product(197, 257, 50257, (16, 64, 32)),
        product(19, 37, 45, (16, 16, 16), K.SILU),
        product(1, 17, 16, (16, 16, 16), K.EXP),
        chain((5, 197), (8, 256), (2, 4)),
    ],
    ids=lambda pair: str([item.tensor.shape for item in pair[0].inputs]),
)
def test_tails_are_proved_and_the_checker_agrees(pair: list[KernelGraph]) -> None:
    program, graph = pair
    found = replay_with_obligations(program, graph, proof_of(program, graph))
    assert found.added == ()
    assert not any("padded program" in text for text in found.conditions)
    assert crosscheck_proof(found).confirmed == len(found.theorem.closings) == 2
    assert {ob.lemma for ob in found.obligations} == {"injective", "onto"}


def test_a_sum_over_zeros_is_the_sum() -> None:
    program, graph = by_blocks(lambda g, x: g.sum(x, 1), Op(K.SUM, (0,), Attrs(dim=1)), keeps=False)
    assert replay_with_obligations(program, graph, proof_of(program, graph)).conditions == ()


@pytest.mark.parametrize(
    ("build", "ops", "keeps"),
    [
        (lambda g, x: g.sum(g.exp(x), 1), (Op(K.EXP, (0,)), Op(K.SUM, (1,), Attrs(dim=1))), False),
        (lambda g, x: g.mean(x, 1), (Op(K.MEAN, (0,), Attrs(dim=1)),), False),
        (lambda g, x: g.max(x, 1), (Op(K.MAX, (0,), Attrs(dim=1)),), False),
        (lambda g, x: g.rms_norm(x, (37,)), (Op(K.RMS_NORM, (0,), Attrs(dim=1)),), True),
        (
            lambda g, x: g.softmax(x, 1),
            (Op(K.EXP, (0,)), Op(K.SUM, (1,), Attrs(dim=1)), Op(K.DIV, (1, 2))),
            True,
        ),
    ],
    ids=["sum of exponentials", "mean", "max", "rms_norm", "softmax"],
)
def test_zeros_that_are_not_neutral_are_not_proved(build: Any, ops: tuple[Op, ...], keeps: bool) -> None:
    program, graph = by_blocks(build, *ops, keeps=keeps)
    assert isinstance(prove(program, graph), Unknown)


def test_keys_of_a_masked_attention_may_be_padded_to_whole_tiles() -> None:
    """The mask is padded with zeros too, which discard the keys beyond the end."""

    def weights(t: BlockBuilder, *given: BlockTensor) -> Saved:
        q, k, v, mask = given
        s = q @ k
        largest, moved = t.reduction_max(t.select(mask, s, -(2.0**127)), 2)
        p, f = t.select(mask, t.exp(s - largest), 0), t.exp(moved)
        return t.div_no_nan(t.forloop_accum_rescale(p @ v, f), t.forloop_accum_rescale(p, f, "sum")), on(0)

    def plain(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = g.select(mask, g.exp(q @ k), 0)
        return g.div_no_nan(p @ v, g.sum(p, 2))

    def tiled(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, kept: int) -> Tensor:
        masked = (mask.pad(2, kept, 6 - kept), on(0), 2)
        return kernel(g, (2,), [(q, on(0)), (k.pad(2, 0, 6), on(0), 2), (v.pad(1, 0, 6), on(0), 1), masked], weights, 4)

    def zero(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return tiled(g, q, k, v, mask, 0)

    def one(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return tiled(g, q, k, v, mask, 1)

    inputs = {"Q": (2, 3, 5), "K": (2, 5, 58), "V": (2, 58, 7), "M": Mask(2, 3, 58)}
    program, graph = pair(inputs, plain, zero)
    found = replay_with_obligations(program, graph, proof_of(program, graph))
    assert found.conditions == ()
    assert crosscheck_proof(found).confirmed == len(found.theorem.closings) == 2
    _, shifted = pair(inputs, plain, one)
    assert isinstance(prove(program, shifted), Unknown)


def test_conditions_beyond_the_end() -> None:
    """y is 0 there, so a divisor is; that nothing is divided by 0 is then a condition that no input meets."""
    program, graph = by_blocks(lambda g, x, y: g.div(x, y), Op(K.DIV, (0, 1)), inputs=2)
    found = replay_with_obligations(program, graph, proof_of(program, graph))
    assert found.added == ("candidate, kernel operator 4, block operator 0: divisor nonzero",)
    assert found.doubtful
    assert check_conditions(program, graph, found.doubtful) is not None
    program, graph = by_blocks(lambda g, x, y: g.div(x, g.exp(y)), Op(K.EXP, (1,)), Op(K.DIV, (0, 2)), inputs=2)
    found = replay_with_obligations(program, graph, proof_of(program, graph))
    assert found.added == ()


def test_a_condition_that_only_the_program_has_beyond_the_end_is_refused() -> None:
    """P' divides by zeros, C' does not divide: at padded inputs nothing says what P' computes there."""
    program, graph = by_blocks(
        lambda g, x, y: g.mul(g.div(x, y), y), Op(K.SCALE, (1,), Attrs(factor=Fraction(0))), Op(K.ADD, (0, 2)), inputs=2
    )
    found = prove(program, graph)
    assert isinstance(found, Equivalent)
    with pytest.raises(ProofError, match="beyond the end"):
        replay_with_obligations(program, graph, found.proof)


def parts(proof: bytes) -> list[str]:
    found = json.loads(proof)
    assert isinstance(found, list)
    assert len(found) == 3
    return found


def test_proofs_of_other_graphs_are_refused() -> None:
    program, graph = product(19, 37, 45, (16, 16, 16))
    middle, kernels, padding = parts(proof_of(program, graph))
    other = parts(proof_of(*product(19, 37, 45, (16, 16, 16), K.EXP)))
    longer = resize(program, [(48, 48), (48, 48)])
    assert longer is not None
    for wrong in (
        [middle, padding, kernels],
        [middle, kernels, kernels],
        [other[0], kernels, padding],
        [middle, other[1], padding],
        [middle, kernels, other[2]],
        [to_json(longer), kernels, padding],
        [to_json(program), kernels, padding],
        [middle, kernels],
        [middle, kernels, padding, padding],
        ["{}", kernels, padding],
        [middle, kernels, None],
        [middle, kernels, padding[:-1]],
    ):
        with pytest.raises(ProofError):
            replay_with_obligations(program, graph, json.dumps(wrong).encode())
    assert replay_with_obligations(program, graph, json.dumps([middle, kernels, padding]).encode()).conditions == ()


def test_other_pads_and_slices_are_refused() -> None:
    """The proof of a candidate says nothing about one whose pads or slices lie elsewhere."""
    program, graph = product(19, 37, 45, (16, 16, 16))
    proof = proof_of(program, graph)
    for position, op in enumerate(graph.ops):
        if not isinstance(op, Op):
            continue
        dim = op.attrs.dim
        assert dim is not None
        if op.kind is K.PAD:
            assert op.attrs.after is not None
            changed = Op(K.PAD, op.operands, Attrs(dim=dim, before=op.attrs.after, after=0))
        else:
            assert op.attrs.stop is not None
            changed = Op(K.SLICE, op.operands, Attrs(dim=dim, start=1, stop=op.attrs.stop + 1))
        moved = KernelGraph(graph.inputs, (*graph.ops[:position], changed, *graph.ops[position + 1 :]), graph.outputs)
        with pytest.raises(ProofError):
            replay_with_obligations(program, moved, proof)
        assert isinstance(prove(program, moved), Unknown), position


def test_inputs_of_other_shapes_are_refused() -> None:
    """The same pads make other extents of them: what is proved of the kernels is about those of the candidate."""
    program, graph = chain((5, 9), (8, 16), (2, 2))
    proof = proof_of(program, graph)
    longer = tuple(replace(item, tensor=replace(item.tensor, shape=(6, 9))) for item in graph.inputs)
    other = replace(program, inputs=longer)
    for mine, theirs in ((other, graph), (program, replace(graph, inputs=longer))):
        with pytest.raises(ProofError, match="shapes"):
            replay_with_obligations(mine, theirs, proof)


def test_a_list_for_a_candidate_without_tails_is_refused() -> None:
    program, graph = product(16, 32, 16, (16, 16, 16))
    proof = proof_of(program, graph)
    assert proof.startswith(b"{")
    with pytest.raises(ProofError, match="pads"):
        replay_with_obligations(program, graph, json.dumps([to_json(program), proof.decode(), proof.decode()]).encode())
    for text in (b"[", b"[[[[", b"[" * 100_000, b"[]", b'["", "", ""]', b"[1, 2, 3]"):
        with pytest.raises(ProofError):
            replay_with_obligations(program, graph, text)


def test_both_halves_are_explained() -> None:
    program, graph = product(19, 37, 45, (16, 16, 16), K.SILU)
    text = explain(program, graph)
    assert text.count("Program") == 2
    assert "Of the kernels, at the padded extents" in text
    assert "between pads and slices" in text
    assert "unknown" not in text


@pytest.mark.parametrize(
    ("build", "ops"),
    [
        (
            lambda g, x, y: g.div(x, g.sigmoid(y)),
            (Op(K.SIGMOID, (1,)), Op(K.DIV, (0, 2))),
        ),
        (
            lambda g, x, y: g.log(g.sigmoid(x)) + y,
            (Op(K.SIGMOID, (0,)), Op(K.LOG, (2,)), Op(K.ADD, (3, 1))),
        ),
        (
            lambda g, x, y: g.div(x, g.abs(g.mul(x, y) / (g.abs(y) + 1)) + 0.5),
            (
                *(Op(K.MUL, (0, 1)), Op(K.ABS, (1,)), Op(K.SHIFT, (3,), Attrs(shift=Fraction(1)))),
                *(Op(K.DIV, (2, 4)), Op(K.ABS, (5,)), Op(K.SHIFT, (6,), Attrs(shift=Fraction(1, 2)))),
                Op(K.DIV, (0, 7)),
            ),
        ),
    ],
    ids=["over a sigmoid", "log of a sigmoid", "over a sum above 0"],
)
def test_divisors_that_are_never_0_hold_beyond_the_end(build: Any, ops: tuple[Op, ...]) -> None:
    program, graph = by_blocks(build, *ops, inputs=2)
    found = replay_with_obligations(program, graph, proof_of(program, graph))
    assert found.added == ()
    assert not found.doubtful


def test_a_divisor_that_may_be_0_does_not_hold_beyond_the_end() -> None:
    """1 / (|y| - 1/2) there is -2, but the form of the divisor does not say so."""
    half = Attrs(shift=Fraction(-1, 2))
    program, graph = by_blocks(
        lambda g, x, y: g.div(x, g.abs(y) - 0.5), Op(K.ABS, (1,)), Op(K.SHIFT, (2,), half), Op(K.DIV, (0, 3)), inputs=2
    )
    found = replay_with_obligations(program, graph, proof_of(program, graph))
    assert found.doubtful


def test_results_in_another_order() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=SHAPE, name="x")
    g.mark_output(g.exp(x))
    g.mark_output(g.square(x))
    program = g.freeze()
    made = Wrapped(program)
    block = BlockGraph(
        (2, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),),
        (Op(K.SQUARE, (0,)), Op(K.EXP, (0,)), Op(K.ACCUM_SUM, (1,)), Op(K.ACCUM_SUM, (2,))),
        (OutputSaver(3, (0, None, None)), OutputSaver(4, (0, None, None))),
    )
    first = made.add(GraphDefined((made.padded(0, SHAPE, WANTED),), block))
    square, power = (made.cut(n, WANTED, SHAPE) for n in (first, first + 1))
    graph = made.graph(power, square)
    assert replay_with_obligations(program, graph, proof_of(program, graph)).added == ()
    assert isinstance(prove(program, made.graph(square, power)), Unknown)


def test_a_program_of_moves_alone() -> None:
    """What the search looked for says which of its moves are the kernel's."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=SHAPE, name="x")
    g.mark_output(g.repeat(g.reshape(x, (5, 37, 1)), 2, 2))
    program = g.freeze()
    made, via = Wrapped(program), Wrapped(program)
    block = BlockGraph(
        (2, 3, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, 1, None), None),),
        (Op(K.REPEAT, (0,), Attrs(dim=2, times=2)), Op(K.ACCUM_SUM, (1,))),
        (OutputSaver(2, (0, 1, None)),),
    )
    graphs = []
    for one, inside in ((made, True), (via, False)):
        view = one.add(program.ops[0])
        padded = one.padded(view, (*SHAPE, 1), (*WANTED, 1))
        inner = GraphDefined((padded,), block) if inside else Op(K.REPEAT, (padded,), Attrs(dim=2, times=2))
        graphs.append(one.graph(one.cut(one.add(inner), (*WANTED, 2), (*SHAPE, 2))))
    graph, looked_for = graphs
    assert isinstance(prove(program, graph), Unknown)
    found = prove(program, graph, [looked_for])
    assert isinstance(found, Equivalent)
    assert replay_with_obligations(program, graph, found.proof).added == ()


def pairs_by_blocks() -> tuple[KernelGraph, KernelGraph]:
    """Concatenated pairs under a merged shape: the seam is inside of a dim of the program's output."""
    g = mf.new_kernel_graph()
    x, y = (g.new_input(dims=(4, 8, 2), name=name) for name in "xy")
    a, _ = g.split(x, 1, dim=-1)
    _, b = g.split(y, 1, dim=-1)
    g.mark_output(g.reshape(g.concat([a * 2 - b, a + b], dim=-1), (4, 16)))
    program = g.freeze()
    plain = preprocess(program)
    (graph, *_) = (made for _, made in fuse_whole_program(plain.program, load_space("mlp"), lambda one: 0.0))
    return program, plain.wrapped(graph)


def moved_proof(program: KernelGraph, graph: KernelGraph) -> bytes:
    """The proof between moves, also where there is one without."""
    parts = split_pads_and_slices(graph, moves=True)
    assert parts is not None
    found = proving._prove_between_moves(program, parts, program)
    assert found is not None
    return found.proof


def test_moves_around_kernels_are_taken_off() -> None:
    program, graph = pairs_by_blocks()
    replay_with_obligations(program, graph, proof_of(program, graph))
    proof = moved_proof(program, graph)
    *_, last = json.loads(proof)
    assert last == "moves"
    assert replay_with_obligations(program, graph, proof).conditions == ()


def test_moves_are_taken_off_only_where_the_proof_says_so() -> None:
    program, graph = pairs_by_blocks()
    middle, kernels, around, last = json.loads(moved_proof(program, graph))
    other = mf.new_kernel_graph()
    a, b = (other.new_input(dims=(4, 8, 1), name=f"x{i}") for i in range(2))
    other.mark_output(other.concat([a * 2 - b, a - b], dim=-1))
    for wrong in (
        [middle, kernels, around],
        [middle, kernels, around, "pads"],
        [middle, kernels, around, last, last],
        [middle, around, kernels, last],
        [to_json(other.freeze()), kernels, around, last],
        [to_json(program), kernels, around, last],
    ):
        with pytest.raises(ProofError):
            replay_with_obligations(program, graph, json.dumps(wrong).encode())


def test_a_candidate_that_moves_elements_elsewhere_is_not_proved() -> None:
    program, graph = pairs_by_blocks()
    slices = [n for n, op in enumerate(graph.ops) if isinstance(op, Op) and op.kind is K.SLICE]
    assert len(slices) == 2
    for n in slices:
        op = graph.ops[n]
        assert isinstance(op, Op)
        start = 1 - (op.attrs.start or 0)
        moved = replace(op, attrs=replace(op.attrs, start=start, stop=start + 1))
        wrong = replace(graph, ops=(*graph.ops[:n], moved, *graph.ops[n + 1 :]))
        assert isinstance(prove(program, wrong), Unknown)
        with pytest.raises(ProofError):
            replay_with_obligations(program, wrong, proof_of(program, graph))


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (1, 1), (1, 3)])
def test_pads_of_one_element_are_proved(before: int, after: int) -> None:
    def build(g: mf.Graph) -> mf.Tensor:
        x = g.new_input(dims=(4, 6))
        return g.pad(x * 2, 1, before, after)

    g = mf.new_kernel_graph()
    x = g.new_input(dims=(4, 6))
    g.mark_output(g.pad(x, 1, before, after) * 2)
    program, graph = built(build), g.freeze()
    assert replay_with_obligations(program, graph, proof_of(program, graph)).conditions == ()
