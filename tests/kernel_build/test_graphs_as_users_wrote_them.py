"""Graphs as their users wrote them: their own kernels, on a fake CuPy whose launches are emulated."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import mirage_formal as mi
from mirage_formal.codegen.numerics.result_comparison import SCALES
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.device import tensors
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build import build as builder
from mirage_formal.kernel_build import compile_unsearched
from mirage_formal.kernel_build.build import KernelWarning
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels, KernelRejected
from mirage_formal.support.errors import MirageError
from tests.kit.graphs.mirage_programs import CASES, WRITTEN, inputs_of
from tests.kit.runs.fake_devices import FakeCupy, aligned, ndarray, with_code


class Machine:
    """A machine with a GPU; what is built for it.

    Attributes:
        fake: Its CuPy.
        built: The graphs and targets that kernels were built of.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeCupy({})
        self.built: list[tuple[KernelGraph, str]] = []
        self.accepted: list[Acceptance] = []
        make = builder.build

        def build(
            graph: KernelGraph,
            program: KernelGraph,
            target: Target,
            archs: Sequence[str] = (),
            *,
            accept: Acceptance = Acceptance.PROVED,
        ) -> BuiltKernels:
            made = with_code(make(graph, program, target, accept=accept))
            self.built.append((graph, target.name))
            self.accepted.append(accept)
            self.fake.programs.update(made.programs)
            return made

        monkeypatch.setattr(compile_unsearched, "build", build)
        monkeypatch.setitem(sys.modules, "cupy", self.fake)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    tensors.adapter.cache_clear()
    yield Machine(monkeypatch)
    tensors.adapter.cache_clear()


def half(values: Any, dtype: mi.DType) -> Any:
    return aligned(values.astype(dtype.value))


def on_device(graph: mi.Graph, arrays: Sequence[Any]) -> list[ndarray]:
    """Arrays with the strides of the graph's inputs."""
    found = []
    for item, array in zip(graph.freeze().inputs, arrays, strict=True):
        by_stride = sorted(range(array.ndim), key=lambda dim, item=item: -item.strides[dim])  # type: ignore[misc]
        found.append(ndarray(aligned(array.transpose(by_stride)).transpose(np.argsort(by_stride))))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WRITTEN)
def test_the_kernels_of_a_hand_written_graph_run(name: str, machine: Machine) -> None:
    case, make = WRITTEN[name]
    graph = make()
    arrays, values = inputs_of(graph, half)
    wanted = case.function(*values)
    (result,) = graph(inputs=on_device(graph, arrays))
    np.testing.assert_allclose(result.host, wanted, rtol=6e-3, atol=6e-3)
    count = len(machine.fake.log)
    launches = [entry for entry in machine.fake.log if entry[0] == "launch"]
    assert launches
    assert {stream for _, _, stream in launches} == {7}
    again = graph(*on_device(graph, arrays), stream=9)
    np.testing.assert_array_equal(again.host, result.host)
    assert [entry[2] for entry in machine.fake.log[count:] if entry[0] == "launch"] == [9] * len(launches)
    assert machine.built == [(graph.freeze(), "h200")]  # once, of the graph itself


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*CASES, *WRITTEN])
def test_its_kernels_are_within_tolerance(name: str) -> None:
    """Plain programs, one kernel for each operator, as well as graphs with block graphs."""
    make = WRITTEN[name][1] if name in WRITTEN else CASES[name].program
    graph = make().freeze()
    made = builder.build(graph, graph, load_target("h200"))
    # Without a running maximum exponentials may leave float16 at larger scales.
    record = compare_on_emulator(made, scales=(0.1,) if made.stable.note else SCALES)
    assert record.answer == "within"


def test_arrays_of_the_host_are_copied_there_and_back(machine: Machine) -> None:
    graph = WRITTEN["norm and product, one kernel"][1]()
    arrays, values = inputs_of(graph, half)
    out = np.zeros((16, 64), np.float16)
    graph(inputs=arrays, outputs=[out], stream=9)
    np.testing.assert_allclose(out, CASES["norm and product"].function(*values), rtol=6e-3, atol=6e-3)
    assert machine.fake.stream == 7
    assert {entry[2] for entry in machine.fake.log if entry[0] == "launch"} == {9}


def test_compile_builds_before_the_first_call(machine: Machine) -> None:
    graph = WRITTEN["perceptron, one kernel"][1]()
    graph.compile()
    assert len(machine.built) == 1
    assert "load" in {entry[0] for entry in machine.fake.log}
    graph(*inputs_of(graph, half)[0])
    assert len(machine.built) == 1


def test_calls_and_compile_build_the_kernels_that_are_accepted(machine: Machine) -> None:
    graph = WRITTEN["perceptron, one kernel"][1]()
    arrays = inputs_of(graph, half)[0]
    graph.compile(accept_kernels="tested")
    graph(*arrays, accept_kernels="tested")
    assert machine.accepted == [Acceptance.TESTED]
    graph(*arrays)
    assert machine.accepted == [Acceptance.TESTED, Acceptance.PROVED], "a call that does not say so runs proved ones"


def test_a_graph_that_grows_gets_kernels_anew(machine: Machine) -> None:
    graph = WRITTEN["perceptron, one kernel"][1]()
    arrays = inputs_of(graph, half)[0]
    graph(*arrays)
    graph.mark_output(graph.square(graph.outputs[0]))
    first, second = graph(*arrays)
    assert len(machine.built) == 2
    np.testing.assert_allclose(second, first.astype(np.float64) ** 2, rtol=6e-3, atol=6e-3)


@pytest.mark.parametrize(("arch", "name"), [("sm_90a", "h200"), ("sm_80", "a100"), ("sm_86", "rtx4090")])
def test_kernels_are_planned_for_the_device(arch: str, name: str) -> None:
    assert compile_unsearched.target_of(arch).name == name


def test_a_kernel_that_cannot_be_planned_says_why(machine: Machine) -> None:
    graph = mi.new_kernel_graph()
    X, W = graph.new_input((512, 512)), graph.new_input((512, 512))
    block = mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1)
    tiles = [block.new_input(t, (-1, -1, -1), -1) for t in (X, W)]
    block.new_output(block.forloop_accum(block.matmul(*tiles)), (-1, -1, -1))
    graph.mark_output(graph.customized([X, W], block)[0])
    with pytest.raises(KernelRejected, match="shared memory") as raised:
        graph(*[np.zeros((512, 512), np.float16)] * 2)
    assert isinstance(raised.value, MirageError)
    with pytest.raises(KernelRejected):
        mi.generate_cuda_program(graph)


def test_sums_of_exponentials_without_a_running_maximum_are_told(machine: Machine) -> None:
    graph = mi.new_kernel_graph()
    X, Y = graph.new_input((16, 64)), graph.new_input((16, 1))
    E, F = graph.exp(X), graph.exp(Y)
    graph.mark_output(graph.div(F, graph.add(graph.reduction(E, 1), F)))
    arrays, (x, y) = inputs_of(graph, half)
    with pytest.warns(KernelWarning, match="no running maximum"):
        result = graph(*arrays)
    wanted = np.exp(y) / (np.exp(x).sum(axis=1, keepdims=True) + np.exp(y))
    np.testing.assert_allclose(result, wanted, rtol=6e-3, atol=6e-3)
