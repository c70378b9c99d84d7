"""launch.cu of an exported folder, compiled against stubs: it launches what launch.json says, and values are right."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.emulated_gpu import EmulatedGpu, _aligned
from tests.export.test_stored_values import load_test

STUBS = Path(__file__).resolve().parent / "stubs"
NAMES = ("one", "two", "product", "masked")
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
    ctypes.c_void_p,
)
MULTIPLY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_longlong), ctypes.POINTER(ctypes.c_void_p))


@pytest.fixture(scope="module")
def libraries(exported: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Host code of each folder, with kernels that do nothing: stubs launch them."""
    root = tmp_path_factory.mktemp("libraries")
    for name, folder in exported.items():
        (root / name).mkdir()
        table = json.loads((folder / "launch.json").read_text())
        for step in table["launches"]:
            if "kernel" in step:
                (root / name / step["file"]).write_text(f'extern "C" void {step["kernel"]}() {{}}\n')
        for file in ("launch.h", "launch.cu"):
            shutil.copy(folder / file, root / name)
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-comment", f"-I{STUBS}"]
        command = ["g++", *flags, "-shared", "-fPIC", "-x", "c++", "launch.cu", "-o", "host.so"]
        subprocess.run(command, cwd=root / name, check=True)
    return {name: root / name / "host.so" for name in exported}


class Host:
    """The library of a folder, whose kernels a stand-in for a GPU runs."""

    def __init__(self, library: Path, gpu: EmulatedGpu) -> None:
        self.library, self.gpu = ctypes.CDLL(str(library)), gpu
        self.name, self.streams = gpu.table["name"], set[Any]()
        names = {
            ctypes.cast(self.library[step["kernel"]], ctypes.c_void_p).value: step
            for step in gpu.table["launches"]
            if "kernel" in step
        }

        def launch(kernel: Any, grid: Any, threads: int, shared: int, early: int, arguments: Any, stream: Any) -> int:
            step = names[kernel]
            places = [arguments[i][0] for i in range(len(step["arguments"]))]
            gpu.launch(step["kernel"], (grid[:3], threads, shared), places, bool(early))
            self.streams.add(stream)
            return 0

        def multiply(numbers: Any, places: Any) -> int:
            gpu.multiply(numbers[:13], places[:3])
            return 0

        self.kept = LAUNCH(launch), MULTIPLY(multiply)
        ctypes.c_void_p.in_dll(self.library, "stub_launch").value = ctypes.cast(self.kept[0], ctypes.c_void_p).value
        if any("operands" in step for step in gpu.table["launches"]):
            place = ctypes.c_void_p.in_dll(self.library, "stub_multiply")
            place.value = ctypes.cast(self.kept[1], ctypes.c_void_p).value
        self.bytes = self.library[f"{self.name}_workspace_bytes"]
        self.bytes.restype = ctypes.c_size_t

    def run(self, inputs: list[Any], *, shift: int = 0, workspace: bool = True) -> tuple[int, list[Any]]:
        """Call the function; with a shift, on inputs that begin so many bytes behind an aligned address."""
        table = self.gpu.table
        given = []
        for flat in inputs:
            raw = _aligned((flat.nbytes + 256,), np.uint8)[shift : shift + flat.nbytes].view(flat.dtype)
            raw[...] = flat
            given.append(raw)
        outputs = [_aligned(one["shape"], one["numpy"]) for one in table["outputs"]]
        space = _aligned((self.bytes() + 1,), np.uint8)
        arrays = [(ctypes.c_void_p * len(group))(*(one.data.ptr for one in group)) for group in (given, outputs)]
        place = ctypes.c_void_p(space.data.ptr if workspace else None)
        return self.library[f"{self.name}_run"](*arrays, place, ctypes.c_void_p(77)), outputs


@pytest.fixture
def host_of(exported: Mapping[str, Path], libraries: Mapping[str, Path]) -> Callable[[str], Host]:
    return lambda name: Host(libraries[name], EmulatedGpu(exported[name]))


@pytest.mark.parametrize("name", NAMES)
def test_the_function_computes_the_outputs(
    name: str,
    exported: Mapping[str, Path],
    host_of: Callable[[str], Host],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host, test = host_of(name), load_test(exported[name], monkeypatch)
    inputs = [test.in_memory(one, test.read_input(i)) for i, one in enumerate(host.gpu.table["inputs"])]
    status, outputs = host.run(inputs)
    assert status == 0
    assert test.main("stub", {"stub": lambda given: outputs}) == 0
    assert "with stub: right" in capsys.readouterr().out
    steps = host.gpu.table["launches"]
    wanted = [(step["kernel"], step["starts_early"]) if "kernel" in step else ("product", False) for step in steps]
    assert host.gpu.launched == wanted
    assert host.streams == {77}
    assert host.bytes() == host.gpu.table["workspace_bytes"]


def test_the_folders_have_what_they_are_to_show(exported: Mapping[str, Path]) -> None:
    tables = {name: json.loads((folder / "launch.json").read_text()) for name, folder in exported.items()}
    assert [len(tables[name]["launches"]) for name in NAMES] == [1, 2, 2, 1]
    assert tables["one"]["workspace_bytes"] == 0 < tables["two"]["workspace_bytes"]
    assert tables["two"]["launches"][1]["starts_early"]
    assert tables["product"]["library_workspace"] is not None
    assert tables["product"]["workspace_bytes"] - tables["product"]["library_workspace"] == 32 << 20
    assert [one["name"] for one in tables["masked"]["inputs"]] == ["X", "W"]  # kernels compute the mask
    assert {one["dtype"] for one in tables["masked"]["outputs"]} == {"bfloat16"}


def test_kernels_start_early_only_where_the_gpu_can(host_of: Callable[[str], Host]) -> None:
    host = host_of("two")
    ctypes.c_int.in_dll(host.library, "stub_major").value = 8
    status, _ = host.run([np.zeros(one["span"], one["numpy"]) for one in host.gpu.table["inputs"]])
    ctypes.c_int.in_dll(host.library, "stub_major").value = 9
    assert status == 0
    assert [early for _, early in host.gpu.launched] == [False, False]


def test_a_call_that_the_kernels_cannot_serve_launches_nothing(host_of: Callable[[str], Host]) -> None:
    host = host_of("two")
    inputs = [np.zeros(one["span"], one["numpy"]) for one in host.gpu.table["inputs"]]
    least = min(one["align"] for one in host.gpu.table["inputs"])
    assert host.run(inputs, shift=least // 2)[0] == 716
    assert host.run(inputs, workspace=False)[0] == 1
    assert host.gpu.launched == []


def test_cublas_gets_the_end_of_the_workspace(host_of: Callable[[str], Host]) -> None:
    host = host_of("product")
    assert host.run([np.zeros(one["span"], one["numpy"]) for one in host.gpu.table["inputs"]])[0] == 0
    assert ctypes.c_size_t.in_dll(host.library, "stub_workspace_bytes").value == 32 << 20


@pytest.mark.parametrize("name", NAMES)
def test_the_example_and_the_header_compile(name: str, exported: Mapping[str, Path], tmp_path: Path) -> None:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{STUBS}", f"-I{exported[name]}"]
    subprocess.run(["g++", *flags, "-fsyntax-only", str(exported[name] / "example.cpp")], check=True)


@pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("cmake") is None, reason="needs a CUDA toolkit")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two", "masked"])  # a toolkit may lack cuBLAS
def test_cmake_builds_the_folder(name: str, exported: Mapping[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(exported[name], tmp_path / name)
    more = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=90a"]
    subprocess.run(["cmake", "-S", ".", "-B", "build", *more], cwd=folder, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", "build"], cwd=folder, check=True, capture_output=True)
    table = json.loads((folder / "launch.json").read_text())
    library = (folder / "build" / f"lib{table['name']}.so").read_bytes()
    assert f"{table['name']}_run".encode() in library
    assert (folder / "build" / "example").is_file()
