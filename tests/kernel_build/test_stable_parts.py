"""The running-maximum form of a µGraph of many kernels is proved and checked part by part."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda.manifest import check_kernels
from mirage_formal.check.partitioning.subgraphs import Replacement, extract_operators, partition, replace_parts
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.codegen.online_softmax import stabilize as stabilizer
from mirage_formal.codegen.online_softmax.stabilize import NoStableForm, stabilize, stabilize_with_groups
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.edit import renumber
from mirage_formal.graph.formats.json import embed, from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.kernel_build.save import save_built
from mirage_formal.kernel_build.stable_forms import NotProvedError, stabilize_proved
from mirage_formal.prove.equality.prove import prove
from mirage_formal.records import FormRecord, decode
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import FormatError
from tests.kit.graphs import workloads as w
from tests.kit.graphs.softmax_forms import built, candidates
from tests.kit.proofs.claims import Saved, kernel, on, program
from tests.kit.runs.tampering import copy, edit, sign_kernels

H200 = load_target("h200")
SIZE = {"b": 2, "m": 16, "d": 16, "n": 16, "e": 16}
ATTENTION = w.attention(**SIZE)
#: Two kernels: partial sums of exponentials, and what combines them.
SPLIT = w.attention_split(**SIZE, split=2, loop=2)


def layers(count: int, attention: KernelGraph) -> KernelGraph:
    """Layers of attention with keys and values of their own; a norm and the layer's input are added after each."""
    inputs = [ATTENTION.inputs[0]]
    for n in range(count):
        inputs += [replace(item, name=f"{item.name}{n}") for item in ATTENTION.inputs[1:]]
    ops: list[KernelOp] = []
    tensors, x = len(inputs), 0
    for n in range(count):
        number = [x, 1 + 2 * n, 2 + 2 * n]
        for op in attention.ops:
            ops.append(renumber(op, number))
            number += range(tensors, tensors + op.results)
            tensors += op.results
        out = number[attention.outputs[0]]
        ops += [w.op(OpKind.LAYER_NORM, out, dim=2), w.op(OpKind.ADD, tensors, x)]
        tensors += 2
        x = tensors - 1
    return KernelGraph(tuple(inputs), tuple(ops), (x,))


WHOLE = layers(3, SPLIT)
PROGRAM = layers(3, ATTENTION)


def record_of(proof: bytes | None) -> FormRecord:
    assert proof is not None
    return decode(proof, FormRecord, "equivalence.json")


def test_what_changes_is_proved_alone_and_once_for_each_layer() -> None:
    found = record_of(stabilize_proved(WHOLE).proof)
    assert [(part.operators, part.form is not None) for part in found.parts] == [
        ((0, 1), True),
        ((2, 3), False),
        ((4, 5), True),
        ((6, 7), False),
        ((8, 9), True),
        ((10, 11), False),
    ]
    assert stabilize_proved(WHOLE).graph == stabilize(WHOLE)


def test_the_proofs_grow_with_the_number_of_layers_and_not_faster() -> None:
    sizes = []
    for count in (1, 2, 3, 6):
        forms = [
            part.form for part in record_of(stabilize_proved(layers(count, SPLIT)).proof).parts if part.form is not None
        ]
        sizes.append(sum(len(bytes(form.proof)) for form in forms))
    assert sizes == [sizes[0] * count for count in (1, 2, 3, 6)]


def test_many_layers_have_a_stable_form() -> None:
    """Each layer takes several rounds, and moves its partial sums; what was found for those before stays."""
    found = stabilize_with_groups(layers(10, SPLIT))
    assert isinstance(found, stabilizer.StableGraph)
    assert [run.operators for run in found.runs if run.changed] == [(4 * n, 4 * n + 1) for n in range(10)]


def test_a_part_that_knows_too_little_is_taken_with_all_around_it() -> None:
    """The kernel reads the logarithm of a softmax: that its exponential is bounded is known outside of the kernel."""

    def weighed(t: BlockBuilder, y: BlockTensor, log: BlockTensor) -> Saved:
        e = t.exp(y)
        return t.forloop_accum(e * t.exp(log), "sum") / t.forloop_accum(e, "sum"), on(0)

    def body(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        log = x - g.log(g.reduction(g.exp(x), 1))
        return kernel(g, (4,), [(y, on(0), 1), (log, on(0), 1)], weighed, 4)

    graph = program({"X": (8, 64), "Y": (8, 64)}, body)
    form = stabilize_with_groups(graph)
    assert isinstance(form, stabilizer.StableGraph)
    assert len(form.runs) > 1
    last = extract_operators(graph, form.runs[-1].operators).program
    assert isinstance(stabilize(last), NoStableForm)
    found = stabilize_proved(graph)
    assert [part.operators for part in record_of(found.proof).parts] == [tuple(range(len(graph.ops)))]
    draw = np.random.default_rng(3)
    arrays = [draw.standard_normal((8, 64)) for _ in range(2)]
    assert np.allclose(float64_reference.run(graph, arrays)[0], float64_reference.run(found.graph, arrays)[0])


def test_it_computes_what_the_candidate_does() -> None:
    draw = np.random.default_rng(3)
    arrays = [draw.standard_normal(item.tensor.shape) for item in WHOLE.inputs]
    (wanted,), (got,) = (
        float64_reference.run(PROGRAM, arrays),
        float64_reference.run(stabilize_proved(WHOLE).graph, arrays),
    )
    assert np.allclose(wanted, got)


@pytest.mark.slow
def test_every_form_of_attention_is_the_form_of_its_parts() -> None:
    """Whatever moves between kernels, a form put together from parts is the one of the whole."""
    several = 0
    for name, inputs, norms, body in candidates(1):
        _, graph = built(inputs, norms, body)
        found = stabilize_with_groups(graph)
        assert isinstance(found, stabilizer.StableGraph), name
        pieces = partition(graph, [run.operators for run in found.runs])
        for run, piece in zip(found.runs, pieces, strict=True):
            form = stabilize(piece.program)
            assert isinstance(form, KernelGraph), name
            assert (form != piece.program) == run.changed, name
        assert stabilize(stabilize_proved(graph).graph) == stabilize_proved(graph).graph, name
        several += len(found.runs) > 1
    assert several > 5


# --- the easy wrong versions, when kernels are built -----------------------------------------------------------------


def not_rescaled(op: GraphDefined) -> GraphDefined:
    """A kernel that forgets to rescale its sums."""
    plain = {OpKind.ACCUM_RESCALED_SUM: OpKind.ACCUM_SUM}
    ops = tuple(
        replace(one, kind=plain[one.kind], operands=one.operands[:1])
        if isinstance(one, Op) and one.kind in plain
        else one
        for one in op.graph.ops
    )
    return replace(op, graph=replace(op.graph, ops=ops))


def swapped(op: GraphDefined) -> GraphDefined:
    """A kernel that reads values where it should read keys."""
    a, b, c, *rest = op.operands
    return replace(op, operands=(a, c, b, *rest))


@pytest.mark.parametrize("fault", [not_rescaled, swapped])
def test_a_part_with_another_meaning_is_refused(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[GraphDefined], GraphDefined]
) -> None:
    real = stabilizer.stabilize

    def wrong(graph: KernelGraph) -> Any:
        found = real(graph)
        assert isinstance(found, KernelGraph)
        assert isinstance(found.ops[0], GraphDefined)
        return replace(found, ops=(fault(found.ops[0]), *found.ops[1:]))

    monkeypatch.setattr(stabilizer, "stabilize", wrong)
    with pytest.raises(NotProvedError):
        stabilize_proved(WHOLE)
    with pytest.raises(KernelRejected, match="NotProved"):
        build(WHOLE, PROGRAM, H200)


def other(graph: KernelGraph, operators: tuple[int, ...], form: KernelGraph | None = None) -> Replacement:
    """A part's stable form, or another graph in its place, with the proof of the right one."""
    program = extract_operators(graph, operators).program
    right = stabilize(program)
    assert isinstance(right, KernelGraph)
    verdict = prove(program, right)
    assert isinstance(verdict, Equivalent)
    return Replacement(right if form is None else form, verdict.proof)


FIRST = other(WHOLE, (0, 1))
REST = (tuple(range(2, 12)), None)


def test_the_checker_takes_the_right_one() -> None:
    found = replace_parts(WHOLE, [((0, 1), FIRST), REST]).graph
    assert kernels_of(found)[:2] == kernels_of(FIRST.graph)
    assert kernels_of(found)[2:] == kernels_of(WHOLE)[2:]


def kernels_of(graph: KernelGraph) -> list[object]:
    return [op.graph if isinstance(op, GraphDefined) else (op.kind, op.attrs) for op in graph.ops]


@pytest.mark.parametrize(
    "parts",
    [
        [((0, 1), FIRST), ((2, 3), None)],  # not all operators
        [((0, 1), FIRST), ((1, 2, 3), None), (tuple(range(4, 12)), None)],  # one of them twice
        [REST, ((0, 1), FIRST)],  # before what it reads is there
        [((1, 0), FIRST), REST],  # in another order
        [((0,), FIRST), (tuple(range(1, 12)), None)],  # a form of more than the part
        [((0, 1, 2), FIRST), (tuple(range(3, 12)), None)],  # a form of less
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[Any]) -> None:
    with pytest.raises((FormatError, ProofError)):
        replace_parts(WHOLE, parts)


def test_a_form_that_reads_its_inputs_in_another_order_is_refused() -> None:
    first = FIRST.graph.ops[0]
    assert isinstance(first, GraphDefined)
    wrong = replace(FIRST.graph, ops=(swapped(first), *FIRST.graph.ops[1:]))
    with pytest.raises(ProofError, match="part 1"):
        replace_parts(WHOLE, [((0, 1), Replacement(wrong, FIRST.proof)), REST])
    inputs = FIRST.graph.inputs
    renamed = replace(FIRST.graph, inputs=(inputs[0], inputs[2], inputs[1]))
    with pytest.raises(FormatError, match="inputs"):
        replace_parts(WHOLE, [((0, 1), Replacement(renamed, FIRST.proof)), REST])


# --- and when they are checked ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of three layers."""
    root = tmp_path_factory.mktemp("kernels") / "001"
    save_built(build(WHOLE, PROGRAM, H200), root)
    return root


def test_the_kernels_of_three_layers_are_established(kernels: Path) -> None:
    found = check_kernels(kernels).about
    assert found.stabilized
    assert found.candidate == digest(WHOLE)
    assert {one.partition(":")[0] for one in found.conditions} == {"part 1", "part 3", "part 5"}
    assert found.added == ()


def graphs(root: Path, change: Callable[[KernelGraph], KernelGraph]) -> None:
    """Another µGraph for the kernels, in every file that names it."""
    graph = change(from_json((root / "stabilized.json").read_bytes()))
    text = json.loads(bytes(embed(graph)))
    (root / "stabilized.json").write_text(json.dumps(text))
    edit(root / "launch.json", lambda record: record.update(graph=text, digest=digest(graph)))
    edit(root / "manifest.json", lambda record: record.update(graph=digest(graph)))


def outside(graph: KernelGraph) -> KernelGraph:
    """The norm between the first two layers is another one."""
    return changed(graph, 2, lambda op: replace(op, kind=OpKind.RMS_NORM))


def changed(graph: KernelGraph, number: int, change: Callable[[Any], Any]) -> KernelGraph:
    ops = tuple(change(op) if n == number else op for n, op in enumerate(graph.ops))
    return replace(graph, ops=ops)


def keys_of_another_layer(graph: KernelGraph) -> KernelGraph:
    return changed(graph, 4, lambda op: replace(op, operands=(op.operands[0], 1, *op.operands[2:])))


def in_the_part(root: Path) -> None:
    """The same wrong kernel in the launches and in the evidence."""
    graphs(root, lambda graph: changed(graph, 0, not_rescaled))

    def change(record: dict[str, Any]) -> None:
        form = record["parts"][0]["form"]
        wrong = changed(from_json(json.dumps(form["graph"])), 0, not_rescaled)
        form["graph"] = json.loads(bytes(embed(wrong)))

    edit(root / "equivalence.json", change)


def of_another_candidate(root: Path) -> None:
    """The operator outside of the parts is changed in the candidate as well."""
    graphs(root, outside)

    def change(record: dict[str, Any]) -> None:
        record["candidate"] = json.loads(bytes(embed(outside(from_json(json.dumps(record["candidate"]))))))

    edit(root / "equivalence.json", change)


def without_its_proof(root: Path) -> None:
    """The first layer is taken as it is; the launches have its stable form."""
    edit(root / "equivalence.json", lambda record: record["parts"][0].update(form=None))


def of_another_layer(root: Path) -> None:
    """Two parts with each other's operators."""

    def change(record: dict[str, Any]) -> None:
        parts = record["parts"]
        parts[0]["operators"], parts[2]["operators"] = parts[2]["operators"], parts[0]["operators"]

    edit(root / "equivalence.json", change)


FORGERIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a part": (in_the_part, "replay the proofs of parts"),
    "an operator outside": (lambda root: graphs(root, outside), "put together from the parts"),
    "operands": (lambda root: graphs(root, keys_of_another_layer), "put together from the parts"),
    "another candidate": (of_another_candidate, "digest of the candidate"),
    "no proof": (without_its_proof, "put together from the parts"),
    "parts of other layers": (of_another_layer, "replay the proofs of parts: part 1: expected to read"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused_after_signing_again(kernels: Path, tmp_path: Path, name: str) -> None:
    forge, expected = FORGERIES[name]
    root = copy(kernels, tmp_path / "kernels")
    forge(root)
    sign_kernels(root)
    with pytest.raises(CheckFailed) as failure:
        check_kernels(root)
    assert expected in f"{failure.value.step}: {failure.value.what}", failure.value
