"""The test of an exported folder, with its kernels on the emulator: right values pass, all others fail."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.numerics.result_comparison import draw_input
from mirage_formal.device.elements import floats_to_bits
from mirage_formal.graph.graph import Input
from mirage_formal.graph.types import DTensor, DType, row_major
from tests.export.emulated_gpu import EmulatedGpu, as_cupy

NAMES = ("one", "two", "product", "masked")


def load_test(folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: EmulatedGpu | None = None) -> Any:
    """The module test.py of a folder, which imports the folder's own modules, and a stand-in for CuPy."""
    monkeypatch.syspath_prepend(str(folder))
    for name, module in (as_cupy(gpu) if gpu else {}).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "load_cupy", raising=False)
    spec = importlib.util.spec_from_file_location("exported_test", folder / "test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_test(folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None] | None = None) -> int:
    gpu = EmulatedGpu(folder) if spoil is None else EmulatedGpu(folder, spoil)
    code: int = load_test(folder, monkeypatch, gpu).main()
    return code


@pytest.mark.parametrize("name", NAMES)
def test_right_values_pass(
    name: str, exported: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_test(exported[name], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "right: output0" in said
    assert "of its tolerance" in said


def last_element(array: Any) -> None:
    """One element of what a kernel wrote is off by a fifth of its value."""
    array.reshape(-1)[-1] *= 1.2


def nothing(array: Any) -> None:
    array[...] = 0


def not_a_number(array: Any) -> None:
    array.reshape(-1)[:1] = np.nan if array.dtype != np.uint16 else 0x7FC0


@pytest.mark.parametrize("spoil", [last_element, nothing, not_a_number])
@pytest.mark.parametrize("name", ["one", "two", "product"])
def test_wrong_values_fail(
    name: str, spoil: Callable[[Any], None], exported: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_test(exported[name], monkeypatch, spoil) == 1


def test_a_wrong_sign_of_bfloat16_fails(exported: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(array: Any) -> None:
        array[:1] ^= 0x8000

    assert run_test(exported["masked"], monkeypatch, flip) == 1


def test_an_output_without_a_known_element_is_not_right(
    exported: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(exported["one"], tmp_path / "one")
    path = folder / "expected" / "0-tolerance.npy"
    np.save(path, np.full_like(np.load(path), np.nan))
    assert run_test(folder, monkeypatch) == 1


def test_other_inputs_are_refused(
    exported: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(exported["one"], tmp_path / "one")
    path = folder / "inputs" / "1.npy"
    np.save(path, np.load(path) + 1)
    with pytest.raises(SystemExit, match="not those of the export"):
        run_test(folder, monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_are_not_stored_are_drawn(
    name: str, exported: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_test(exported[name], monkeypatch)
    stored = [module.read_input(place) for place in range(len(module.TABLE["inputs"]))]
    folder = shutil.copytree(exported[name], tmp_path / name)
    shutil.rmtree(folder / "inputs")
    again = load_test(folder, monkeypatch)
    for place, array in enumerate(stored):
        assert np.array_equal(again.read_input(place), array)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_inputs_are_drawn_by_the_rule_of_the_package(
    dtype: DType, scale: float, exported: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_test(exported["one"], monkeypatch)
    monkeypatch.setitem(module.TEST, "scale", scale)
    item = Input("x", DTensor((300, 1000), dtype), row_major((300, 1000)))
    raw = {DType.FLOAT16: "float16", DType.BFLOAT16: "uint16", DType.FLOAT32: "float32"}[dtype]
    found = module.drawn({"shape": [300, 1000], "dtype": dtype.value, "numpy": raw}, 2)
    wanted = floats_to_bits(draw_input(item, 2, 0, scale), dtype, np)
    assert np.array_equal(found.view(wanted.dtype), wanted)


def test_zeros_are_not_within_tolerance(exported: Mapping[str, Path]) -> None:
    """A tolerance as large as the values would let everything pass."""
    for folder in exported.values():
        value, tolerance = (np.load(folder / "expected" / f"0{end}.npy") for end in ("", "-tolerance"))
        assert np.isfinite(tolerance).mean() > 0.9
        assert np.median(tolerance[value != 0] / np.abs(value[value != 0])) < 0.1


def test_an_unknown_way_is_named(
    exported: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_test(exported["one"], monkeypatch).main("jax") == 2
    assert "cupy, library, torch" in capsys.readouterr().out


def test_every_element_of_small_outputs_is_compared(exported: Mapping[str, Path]) -> None:
    for folder in exported.values():
        table = json.loads((folder / "launch.json").read_text())
        assert [one["step"] for one in table["test"]["outputs"]] == [1] * len(table["outputs"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda array: array.astype(np.float32), r"expected Q as launch\.json has it, got float32"),
        (lambda array: array[:, :4], r"got float16\[2, 4, 4\]"),
        (
            lambda array: np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2),
            r"with strides \[64, 2, 16\] in bytes",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    wrong: Callable[[Any], Any], said: str, exported: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = EmulatedGpu(exported["one"])
    module = load_test(exported["one"], monkeypatch, gpu)
    given = [module.read_input(place) for place in range(3)]
    with pytest.raises(ValueError, match=said):
        importlib.import_module("load_cupy").run(wrong(given[0]), *given[1:])
    assert gpu.launched == []
