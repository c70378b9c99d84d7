"""Introduction: the claim that a kernel's Program computes its operator of the µGraph, and what refuses it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.realization_record import roundings
from mirage_formal.codegen.translation_validation.field_points import rational_constant
from mirage_formal.codegen.translation_validation.predefined_blocks import PredefinedBlocks
from mirage_formal.codegen.translation_validation.realization import Deviates, Realizes, decide_realizes
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Unknown
from mirage_formal.kernel_build.stable_forms import stabilize_proved
from tests.kit.fuzz.random_programs import program
from tests.kit.kernels import masked_attention, tails
from tests.kit.kernels.example_kernels import H200, fastest

#: Candidates at real extents whose kernels take least time here; benchmarks/validate_kernels.py takes runs.
QUICK = ("attn-b1", "lora-b1", "lora-b16", "ntrans-b16", "qk-b1", "qv-b1", "gated_mlp-b1", "rmsnorm-b1", "rmsnorm-b8")


def kernels(graph: KernelGraph) -> list[GeneratedKernel]:
    """The generated kernels of a µGraph."""
    return [step for step in generate(graph, H200).steps if isinstance(step, GeneratedKernel)]


def changed(kernel: GeneratedKernel, change: Any) -> GeneratedKernel:
    """The kernel with its statements changed."""
    return replace(kernel, program=replace(kernel.program, body=change(kernel.program.body)))


def rewritten(item: Any, old: type, new: Any) -> Any:
    """A statement or expression with each part of a kind put in another form."""
    if isinstance(item, tuple):
        return tuple(rewritten(one, old, new) for one in item)
    if not hasattr(item, "__dataclass_fields__"):
        return item
    item = replace(item, **{name: rewritten(getattr(item, name), old, new) for name in item.__dataclass_fields__})
    return new(item) if isinstance(item, old) else item


@pytest.mark.parametrize("name", QUICK)
def test_kernels_at_real_extents_compute_their_ugraph(name: str) -> None:
    for kernel in kernels(fastest()[name]):
        assert isinstance(decide_realizes(fastest()[name], kernel), Realizes)


@pytest.mark.parametrize("graph", [masked_attention.apart(mf.float16), masked_attention.fused(mf.float16)])
def test_masked_attention_computes_its_ugraph(graph: KernelGraph) -> None:
    stable = stabilize_proved(graph).graph
    for kernel in kernels(stable):
        assert isinstance(decide_realizes(stable, kernel), Realizes), kernel.program.name


def test_tiles_that_overhang_have_classes_of_blocks() -> None:
    several = 0
    for seed in range(20):
        for graph in tails.drawn(seed):
            for kernel in kernels(graph):
                verdict = decide_realizes(graph, kernel)
                assert isinstance(verdict, Realizes), (seed, kernel.program.name, verdict)
                several += verdict.classes > 1
    assert several > 10


def test_a_quotient_by_0_that_is_not_stored_changes_nothing() -> None:
    """The rows behind the end of x are zeros, and each is divided by the sum of its squares."""
    for shape in ((13, 24), (13, 21), (61, 130)):
        _, graph = tails.quotients(shape, 8)
        (kernel,) = kernels(graph)
        assert isinstance(decide_realizes(graph, kernel), Realizes), shape
        wrong = changed(kernel, lambda body: rewritten(body, ir.Combine, multiplied))
        assert isinstance(decide_realizes(graph, wrong), Deviates), shape


def multiplied(value: ir.Combine) -> ir.Combine:
    return replace(value, fn=ir.BinaryFn.MUL) if value.fn is ir.BinaryFn.DIV else value


def test_a_stored_quotient_by_0_is_unknown() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(8, 8), name="x")
    g.mark_output(g.div(x, g.sub(x, x)))
    graph = g.freeze()
    last = kernels(graph)[-1]
    assert isinstance(decide_realizes(graph, last), Realizes), "the divisor is an input of this kernel"
    block = BlockGraph(
        (1, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((None, None, None), None),),
        (Op(OpKind.SUB, (0, 0)), Op(OpKind.DIV, (0, 1)), Op(OpKind.ACCUM_SUM, (2,))),
        (OutputSaver(3, (None, None, None)),),
    )
    fused = KernelGraph(graph.inputs, (GraphDefined((0,), block),), (1,))
    (kernel,) = kernels(fused)
    verdict = decide_realizes(fused, kernel)
    assert isinstance(verdict, Unknown)
    assert "divisor that is 0" in str(verdict)


def test_random_programs_compute_their_ugraph() -> None:
    """Sampled: all operators, odd extents."""
    count = 0
    for seed in range(40):
        scope: dict[str, Any] = {}
        exec(program(seed).text, scope)
        (graph,) = [value.freeze() for value in scope.values() if isinstance(value, mf.Graph)]
        stable = stabilize_proved(graph).graph
        for kernel in kernels(stable):
            assert isinstance(decide_realizes(stable, kernel), Realizes), (seed, kernel.program.name)
            count += 1
    assert count > 200


def test_a_deviation_names_block_thread_and_address() -> None:
    graph = fastest()["rmsnorm-b8"]
    (kernel,) = kernels(graph)
    wrong = changed(
        kernel,
        lambda body: rewritten(body, ir.GlobalWrite, lambda w: replace(w, values=tuple(reversed(w.values)))),
    )
    verdict = decide_realizes(graph, wrong)
    assert isinstance(verdict, Deviates)
    assert verdict.thread is not None
    assert "differ from the µGraph's" in verdict.reason


@pytest.mark.parametrize("transposed", [False, True])
def test_a_fragment_that_is_read_transposed_deviates(transposed: bool) -> None:
    graph = fastest()["lora-b1"]
    (kernel,) = kernels(graph)
    wrong = changed(kernel, lambda body: rewritten(body, ir.LoadMatrix, lambda m: replace(m, transposed=transposed)))
    assert isinstance(decide_realizes(graph, wrong), Deviates)


def test_an_element_that_nobody_writes_deviates() -> None:
    graph = fastest()["ntrans-b1"]
    (kernel,) = kernels(graph)
    first = ir.IntBin(ir.IntOp.LT, ir.Int(0), ir.Var("tid"))
    wrong = changed(kernel, lambda body: rewritten(body, ir.GlobalWrite, lambda w: ir.If(first, (w,))))
    verdict = decide_realizes(graph, wrong)
    assert isinstance(verdict, Deviates)
    assert "not written" in verdict.reason


def test_what_has_no_meaning_is_unknown() -> None:
    graph = fastest()["ntrans-b1"]
    (kernel,) = kernels(graph)
    assert isinstance(decide_realizes(graph, replace(kernel, program=replace(kernel.program, grid=(4, 2, 1)))), Unknown)
    beyond = changed(kernel, lambda body: rewritten(body, ir.GlobalWrite, lambda w: replace(w, index=ir.Int(1 << 30))))
    assert isinstance(decide_realizes(graph, beyond), Unknown)


def test_a_verdict_is_no_truth_value() -> None:
    graph = fastest()["ntrans-b1"]
    (kernel,) = kernels(graph)
    with pytest.raises(TypeError):
        bool(decide_realizes(graph, kernel))


def test_a_decision_depends_on_its_seed_alone() -> None:
    graph = fastest()["ntrans-b8"]
    (kernel,) = kernels(graph)
    first, again = (decide_realizes(graph, kernel, seed=3) for _ in range(2))
    assert isinstance(first, Realizes)
    assert isinstance(again, Realizes)
    assert (first.classes, first.elements) == (again.classes, again.elements)


def test_a_constant_stands_for_the_fraction_that_it_rounds() -> None:
    assert rational_constant(1 / 3) == rational_constant(Fraction(1, 3)) == Fraction(1, 3)
    assert rational_constant(0.125) == Fraction(1, 8)
    assert rational_constant(-1e-5) == Fraction(-1, 100000)
    assert rational_constant(0.0883883461356163) != rational_constant(0.0883884)


def test_conversions_are_listed() -> None:
    (kernel,) = kernels(fastest()["lora-b1"])
    assert any(line.startswith("stored to out0_d4 as float16") for line in roundings(kernel.program))


def test_blocks_that_cross_no_row_move_as_their_indices_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predefined operators on broadcast, transposed and odd tensors: digits of distances, and indices one by one."""
    seen: list[tuple[list[int], list[int]]] = []
    quick = PredefinedBlocks._families

    def both(self: PredefinedBlocks, *given: Any) -> list[int]:
        found = quick(self, *given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PredefinedBlocks, "_without_carry", lambda self, at, far: np.zeros(len(far), bool))
            seen.append((found, quick(self, *given)))
        return found

    monkeypatch.setattr(PredefinedBlocks, "_families", both)
    for shape, other in (((40, 300), (1, 300)), ((7, 33, 65), (7, 1, 65)), ((3, 4096), (3, 1))):
        graph = mf.new_kernel_graph()
        x = graph.new_input(dims=shape, dtype=mf.float16, name="X")
        y = graph.new_input(dims=other, dtype=mf.float16, name="Y")
        for output in (
            graph.mul(x, y),
            graph.exp(x),
            graph.reduction(x, len(shape) - 1),
            graph.rms_norm(x, dim=len(shape) - 1),
        ):
            graph.mark_output(output)
        frozen = graph.freeze()
        for kernel in kernels(frozen):
            assert isinstance(decide_realizes(frozen, kernel), Realizes)
    assert len(seen) > 9
    assert all(found == wanted for found, wanted in seen)
