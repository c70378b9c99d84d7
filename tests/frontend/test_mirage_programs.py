"""Programs and hand-written µGraphs in the style of the reference system's documents: searched, called, compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mi
from mirage_formal.device import tensors
from mirage_formal.device.tensors import TensorError
from tests.kit.graphs.mirage_programs import CASES, WRITTEN, Case, inputs_of
from tests.kit.runs.fake_devices import FakeCupy
from tests.kit.sampling import but

pytestmark = pytest.mark.filterwarnings("ignore::mirage_formal.device.launch.NoDeviceWarning")


def close(found: Any, wanted: Any, within: float = 4e-3) -> None:
    """Up to the rounding of inputs and results to float16."""
    np.testing.assert_allclose(found, wanted, rtol=within, atol=within)


def numpy_tensor(values: Any, dtype: mi.DType) -> Any:
    return values.astype(dtype.value)


def torch_tensor(values: Any, dtype: mi.DType) -> Any:
    torch = sys.modules["torch"]
    return torch.from_numpy(values).to(mi.convert_dtype_to_torch_type(dtype))


def as_numpy(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else value.float().numpy()


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_called_as_it_is(name: str) -> None:
    case = CASES[name]
    graph = case.program()
    tensors, values = inputs_of(graph, numpy_tensor)
    wanted = case.function(*values)
    (result,) = graph(inputs=tensors)
    assert result.dtype == np.float16
    close(result, wanted)
    np.testing.assert_array_equal(graph(*tensors), result)
    np.testing.assert_array_equal(graph(inputs=tensors, stream=None)[0], result)
    out = np.zeros_like(result)
    (same,) = graph(inputs=tensors, outputs=[out])
    assert same is out
    np.testing.assert_array_equal(out, result)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_hand_written_graph_computes_what_its_program_does(name: str) -> None:
    case, make = WRITTEN[name]
    graph, program = make(), case.program()
    tensors, values = inputs_of(graph, numpy_tensor)
    (result,) = graph(inputs=tensors)
    close(result, case.function(*values))
    close(result, program(*tensors), 1e-3)
    assert isinstance(graph.equivalence(program), mi.Equivalent)
    assert isinstance(mi.equivalence(program, graph), mi.Equivalent)


def test_a_wrong_hand_written_graph_is_refuted() -> None:
    """The rows of the program are normalised before the product, these are not."""
    case = CASES["norm and product"]
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64))
    W = graph.new_input(dims=(64, 64))
    block = mi.new_threadblock_graph(grid_dim=(4, 1, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=64)
    bX, bW = block.new_input(X, (-1, -1, -1), 1), block.new_input(W, (1, -1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(bX, bW)), (1, -1, -1))
    graph.mark_output(graph.customized([X, W], block)[0])
    assert isinstance(graph.equivalence(case.program()), mi.Different)


@pytest.mark.parametrize("name", [*CASES, *WRITTEN])
def test_torch_tensors(name: str) -> None:
    pytest.importorskip("torch")
    case, make = WRITTEN[name] if name in WRITTEN else (CASES[name], CASES[name].program)
    graph = make()
    tensors, values = inputs_of(graph, torch_tensor)
    (result,) = graph(inputs=tensors)
    assert mi.convert_torch_type_to_dtype(result.dtype) is graph.freeze().inputs[0].tensor.dtype
    close(as_numpy(result), case.function(*values))


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("searched_once")
@pytest.mark.slow
@pytest.mark.parametrize("name", but(CASES, "normalised attention", "linear attention", "group-query attention"))
def test_a_program_is_searched_and_its_result_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both styles: what the graph's own method returns, and the first of what the function returns."""
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    graph = case.program()
    arrays, values = inputs_of(graph, numpy_tensor)
    optimized_graph = graph.superoptimize(config=case.config, workers=1)
    (result,) = optimized_graph(inputs=arrays)
    close(result, case.function(*values))
    optimized_graphs = mi.superoptimize(graph, config=case.config, workers=1)
    np.testing.assert_array_equal(optimized_graphs[0](inputs=arrays, stream=None)[0], result)
    np.testing.assert_array_equal(optimized_graphs[0](*arrays), result)
    out = np.zeros_like(result)
    optimized_graphs[-1](inputs=arrays, outputs=[out])
    np.testing.assert_array_equal(out, result)
    with pytest.raises(mi.UnsupportedError, match=r"got KNGraph\.cygraph") as raised:
        optimized_graph.cygraph  # type: ignore[attr-defined]  # noqa: B018
    assert "docs/mirage_api.md" in raised.value.hint


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def product() -> tuple[mi.Graph, list[Any]]:
    case: Case = CASES["norm and product"]
    graph = case.program()
    return graph, inputs_of(graph, numpy_tensor)[0]


def test_a_graph_that_grows_is_another_one(product: tuple[mi.Graph, list[Any]]) -> None:
    graph, tensors = product
    assert len(graph(inputs=tensors)) == 1
    graph.mark_output(graph.exp(graph.outputs[0]))
    first, second = graph(inputs=tensors)
    close(second, np.exp(first.astype(np.float64)))
    assert isinstance(graph(*tensors), tuple)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: tensors[:1], "expected 2 inputs"),
        (lambda tensors: [tensors[0], tensors[1].astype(np.float32)], "expected elements of float16, got float32"),
        (lambda tensors: [tensors[0], tensors[0]], r"expected shape \[64, 64\]"),
        (lambda tensors: [tensors[0], [1.0]], "expected a tensor, got list"),
    ],
)
def test_wrong_inputs(product: tuple[mi.Graph, list[Any]], change: Callable[[Any], Any], text: str) -> None:
    graph, given = product
    with pytest.raises(mi.MirageError, match=text):
        graph(inputs=change(given))


def test_outputs_are_given_once(product: tuple[mi.Graph, list[Any]]) -> None:
    graph, given = product
    out = np.zeros((16, 64), np.float16)
    with pytest.raises(TensorError, match="expected out or outputs, got both"):
        graph(*given, out=out, outputs=[out])


def test_nothing_to_compute() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input((4, 4))
    with pytest.raises(mi.GraphError, match="at least one output"):
        graph(inputs=[X])


@pytest.mark.parametrize("stream", [3, type("TorchStream", (), {"cuda_stream": 3})(), type("S", (), {"ptr": 3})()])
def test_a_stream_is_where_kernels_are_launched(
    stream: Any, product: tuple[mi.Graph, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCupy({})
    monkeypatch.setitem(sys.modules, "cupy", fake)
    tensors.adapter.cache_clear()
    try:
        with tensors.adapter(tensors.TensorLibrary.NUMPY).on(stream):
            assert tensors.adapter(tensors.TensorLibrary.CUPY).stream(0) == 3
        assert tensors.adapter(tensors.TensorLibrary.CUPY).stream(0) == fake.stream == 7
        with pytest.raises(TensorError, match="expected a stream, got str"):
            tensors.adapter(tensors.TensorLibrary.CUPY).on("default")
    finally:
        tensors.adapter.cache_clear()


# --- outputs that nobody marks ---------------------------------------------------------------------------------------


def test_without_marks_the_outputs_are_the_results_that_nothing_reads() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input((4, 8))
    E = graph.exp(X)
    S = graph.reduction(E, 1)
    R = graph.sqrt(S)
    D = graph.div(E, S)
    assert graph.results() == [R, D]
    assert graph.freeze().outputs == (R.number, D.number)
    assert len(graph.origins().operators) == 4
    graph.mark_output(D)
    assert graph.results() == [D]
    assert len(graph.origins().operators) == 3


def test_new_input_in_every_order() -> None:
    graph = mi.new_kernel_graph()
    made = [
        graph.new_input((4, 8), (1, 4), mi.float32),
        graph.new_input((4, 8), mi.float32, (1, 4)),
        graph.new_input((4, 8), (1, 4), dtype="float32"),
        graph.new_input((4, 8), "float32", strides=(1, 4)),
        graph.new_input(dims=(4, 8), strides=[1, 4], dtype=np.float32),
        graph.new_input((4, 8), None, "float32", strides=(1, 4)),
    ]
    assert all(tensor.dtype is mi.float32 for tensor in made)
    graph.mark_output(graph.exp(made[0]))
    assert [item.strides for item in graph.freeze().inputs] == [(1, 4)] * 6
    usual = graph.new_input((4, 8), None)
    assert usual.dtype is mi.float16
    assert graph.freeze().inputs[-1].strides == (8, 1)
    with pytest.raises(mi.ShapeError, match="expected strides and dtype once"):
        graph.new_input((4, 8), (8, 1), strides=(8, 1))
    with pytest.raises(mi.DTypeError, match="expected one of float16"):
        graph.new_input((4, 8), (8, 1), "int8")


def test_a_norm_takes_its_weight_in_either_place() -> None:
    graph = mi.new_kernel_graph()
    X, G = graph.new_input((4, 8)), graph.new_input((8,))
    outputs = [
        graph.rms_norm(X, G),
        graph.rms_norm(X, weight=G),
        graph.rms_norm(X, (8,), G),
        graph.rms_norm(X, normalized_shape=(8,), weight=G),
    ]
    for output in outputs:
        graph.mark_output(output)
    x, g = inputs_of(graph, numpy_tensor)[0]
    found = graph(x, g)
    for value in found[1:]:
        np.testing.assert_array_equal(value, found[0])
    with pytest.raises(mi.ShapeError, match="normalized_shape"):
        graph.rms_norm(X, G, G)


def test_what_is_not_there_names_its_row() -> None:
    graph: Any = mi.new_kernel_graph()
    for name in ("allreduce", "from_json", "register_task"):
        with pytest.raises(mi.UnsupportedError, match="expected a name that is offered here") as raised:
            getattr(graph, name)(1)
        assert "docs/mirage_api.md" in raised.value.hint
        assert "test_mirage_programs.py:" in raised.value.where
    with pytest.raises(AttributeError, match="has no attribute 'chnuk'"):
        graph.chnuk  # noqa: B018
    assert not hasattr(graph, "chnuk")
