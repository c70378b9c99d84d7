"""What of a test is stored, at which inputs its values are known, and masks that a caller passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.executable import Executable
from mirage_formal.codegen.target import load_target
from mirage_formal.export import launch_table as tables
from mirage_formal.export import stored_test as tests
from mirage_formal.export.folder import export_candidate
from mirage_formal.export.stored_test import stored_test
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.kernel_build.build import build
from mirage_formal.support.errors import UnsupportedError
from tests.export.test_stored_values import nothing, run_test
from tests.kit.runs.fake_devices import with_tensor_maps


def executable(function: Callable[[mf.Graph, Tensor, Tensor], Tensor]) -> Executable:
    """Kernels of a program's own operators."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16, 1024), dtype=mf.float16, name="x")
    w = graph.new_input(dims=(1024, 16), dtype=mf.float16, name="w")
    graph.mark_output(function(graph, x, w))
    program = graph.freeze()
    return build(program, program, load_target("h200")).executable


def test_inputs_are_so_large_that_results_have_full_values() -> None:
    assert stored_test(executable(lambda graph, x, w: graph.matmul(x, w))).scale == 1.0


def test_inputs_are_smaller_where_results_overflow() -> None:
    """exp of sums of 1024 products, of standard deviation 32 and 0.32."""
    test = stored_test(executable(lambda graph, x, w: graph.exp(graph.matmul(x, w))))
    assert test.scale == 0.1
    assert np.isfinite(test.tolerances[0]).all()


def test_an_output_without_a_known_element_has_no_test() -> None:
    made = executable(lambda graph, x, w: graph.mul(graph.mul(graph.exp(graph.relu(x)), 60000.0), 60000.0))
    with pytest.raises(UnsupportedError, match="exact values are known"):
        stored_test(made)


def test_kernels_with_tensor_maps_are_not_exported() -> None:
    """Loaders pass addresses only; the error says what to do instead."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(64, 256), dtype=mf.float16, name="x")
    graph.mark_output(graph.exp(x))
    made = build(program := graph.freeze(), program, load_target("h200"))
    assert len(tables.launch_table(made.executable, "exponential", ()).launches) == 1
    with pytest.raises(UnsupportedError, match="arguments are addresses, got op0_exp with tensor maps") as caught:
        tables.launch_table(with_tensor_maps(made).executable, "exponential", ())
    assert "--candidate" in caught.value.hint


def test_elements_that_overflow_are_not_compared() -> None:
    """At the last scale some elements are beyond float16 and some are not."""
    test = stored_test(executable(lambda graph, x, w: graph.exp(graph.mul(graph.matmul(x, w), 40.0))))
    known = np.isfinite(test.tolerances[0])
    assert 0 < known.sum() < known.size
    assert np.abs(test.values[0][known]).max() < 65504
    assert np.abs(test.values[0][~known]).max() > 65504


def test_large_inputs_are_drawn_and_masks_are_stored(
    built_runs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = lambda made: tuple(range(len(made.graph.inputs)))  # noqa: E731
    monkeypatch.setattr(tables, "call_inputs", everything)
    monkeypatch.setattr(tests, "call_inputs", everything)
    monkeypatch.setattr(tests, "MOST_INPUT_BYTES", 2048)  # X has 2048 bytes, W 4096, the mask 512
    export_candidate(built_runs["masked"], "cuda", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "inputs").iterdir()] == ["2.npy"]
    rows, columns = np.indices((16, 32))
    assert np.array_equal(np.load(tmp_path / "out" / "inputs" / "2.npy"), columns <= rows)
    assert run_test(tmp_path / "out", monkeypatch) == 0
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "M is 1 at element (i, j) where -infinity <= j - i <= 0, else 0." in readme
    assert "test.py draws larger ones" in readme


def test_of_large_outputs_every_nth_element_is_compared(
    built_runs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tests, "MOST_ELEMENTS", 20)
    export_candidate(built_runs["attention"], "cuda", tmp_path / "out")
    (step,) = (one["step"] for one in json.loads((tmp_path / "out" / "launch.json").read_text())["test"]["outputs"])
    assert step == 5
    assert run_test(tmp_path / "out", monkeypatch) == 0
    assert "13 of 64 elements compared" in capsys.readouterr().out
    assert "of every n-th element" in (tmp_path / "out" / "README.md").read_text()
    assert run_test(tmp_path / "out", monkeypatch, nothing) == 1
