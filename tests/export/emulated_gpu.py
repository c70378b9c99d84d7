"""A stand-in for the GPU of an exported folder: its kernels run on the CPU emulator, its products in NumPy.

Memory is that of the host, so that addresses mean the same everywhere. ``as_cupy`` is a stand-in for CuPy.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from mirage_formal.codegen.program.serialization import decode_programs
from mirage_formal.device import compile as compiler
from mirage_formal.device.elements import bits_to_floats, floats_to_bits
from mirage_formal.device.emulate import run_source
from mirage_formal.graph.types import DType

CUDA_TYPES = {0: DType.FLOAT32, 2: DType.FLOAT16, 14: DType.BFLOAT16}
RAW = {DType.FLOAT16: np.float16, DType.BFLOAT16: np.uint16, DType.FLOAT32: np.float32, DType.BOOL: np.uint8}


def memory(address: int, elements: int, dtype: Any) -> Any:
    """The elements at an address, which can be written."""
    size = elements * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


class EmulatedGpu:
    """Runs the kernels of a folder; what was launched is in ``launched``."""

    def __init__(self, folder: Path, spoil: Callable[[Any], None] = lambda array: None) -> None:
        self.folder, self.spoil = folder, spoil
        self.table = json.loads((folder / "launch.json").read_text())
        (kernels,) = (folder / "proof" / "kernels").iterdir()
        programs = decode_programs((kernels / "programs.json").read_bytes())
        self.programs = {program.name: program for program in programs}
        self.files = {step["kernel"]: step["file"] for step in self.table["launches"] if "kernel" in step}
        self.launched: list[tuple[str, bool]] = []

    def launch(
        self, name: str, shape: tuple[Sequence[int], int, int], addresses: Sequence[int], early: bool = False
    ) -> None:
        """Run a kernel with a grid, a number of threads and bytes of shared memory."""
        program = self.programs[name]
        assert (tuple(shape[0]), shape[1], shape[2]) == (program.grid, program.threads, program.shared_bytes)
        assert not any(address % param.align for address, param in zip(addresses, program.params, strict=True))
        arrays = [
            memory(address, param.elements, RAW[param.dtype])
            for address, param in zip(addresses, program.params, strict=True)
        ]
        pairs = list(zip(arrays, program.params, strict=True))
        text = (self.folder / self.files[name]).read_text()
        results = run_source(program, text, [array for array, param in pairs if not param.written])
        for array, result in zip((a for a, param in pairs if param.written), results, strict=True):
            is_bits = array.dtype == np.uint16
            array[...] = floats_to_bits(result, DType.BFLOAT16, np) if is_bits else result
            self.spoil(array)
        self.launched.append((name, early))

    def multiply(self, numbers: Sequence[int], places: Sequence[int]) -> None:
        """Compute what cublasGemmStridedBatchedEx does: column-major C = op(A) op(B)."""
        left, right, m, n, k, lda, by_a, ldb, by_b, ldc, by_c, count, kind = numbers
        dtype = CUDA_TYPES[kind]

        def matrix(place: int, first: int, rows: int, cols: int, leading: int) -> Any:
            size = np.dtype(RAW[dtype]).itemsize
            flat = memory(place + first * size, (cols - 1) * leading + rows, RAW[dtype])
            return np.lib.stride_tricks.as_strided(flat, (rows, cols), (size, leading * size), writeable=True)

        for i in range(count):
            a = matrix(places[0], i * by_a, *((k, m) if left else (m, k)), lda)
            b = matrix(places[1], i * by_b, *((n, k) if right else (k, n)), ldb)
            c = matrix(places[2], i * by_c, m, n, ldc)
            x, y = (bits_to_floats(np.ascontiguousarray(one), dtype, np) for one in (a, b))
            found = (x.T if left else x) @ (y.T if right else y)
            c[...] = floats_to_bits(found, dtype, np).view(RAW[dtype])
            self.spoil(c)
        self.launched.append(("product", False))


class Array(np.ndarray):
    """An array of NumPy with an address as CuPy's arrays have one."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


def _aligned(shape: Any, dtype: Any) -> Any:
    """Memory that begins at a multiple of 256 bytes, as CuPy's does, and holds NaN."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(size + 256, 0xFF, np.uint8)
    start = -raw.__array_interface__["data"][0] % 256
    return raw[start : start + size].view(dtype).reshape(shape).view(Array)


def as_cupy(gpu: EmulatedGpu) -> dict[str, ModuleType]:
    """The modules of a CuPy that launches on a stand-in; NVRTC compiles each kernel, where there is one."""

    def asarray(given: Any) -> Any:
        made = _aligned(given.shape, given.dtype)
        made[...] = given
        return made

    def compile_program(program: list[Any], options: tuple[str, ...]) -> None:
        text, _, headers, names = program
        (option,) = (one for one in options if one.startswith("--gpu-architecture="))
        given = {name.decode(): header.decode() for name, header in zip(names, headers, strict=True)}
        if compiler.available():
            compiler._nvrtc().compile(text, given, option.partition("=")[2])

    class Module:
        def load(self, cubin: bytes) -> None:
            self.loaded = cubin

        def get_function(self, name: str) -> Any:
            def call(grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
                assert all(type(one) is np.uint64 for one in arguments)
                assert shared[call] == shared_mem
                assert block[1:] == (1, 1)
                gpu.launch(name, (grid, block[0], shared_mem), [int(one) for one in arguments])

            call.ptr = call  # type: ignore[attr-defined]
            return call

    shared: dict[Any, int] = {}

    def multiply(handle: int, transa: int, transb: int, m: int, n: int, k: int, one: int, *rest: Any) -> None:
        a, kind, lda, by_a, b, _, ldb, by_b, zero, c, _, ldc, by_c, count, compute, algorithm = rest
        assert (memory(one, 1, np.float32)[0], memory(zero, 1, np.float32)[0]) == (1, 0)
        assert (compute, algorithm) == (68, -1)
        gpu.multiply([transa, transb, m, n, k, lda, by_a, ldb, by_b, ldc, by_c, count, kind], [a, b, c])

    def strided(array: Any, shape: Any, steps: Any) -> Any:
        return np.lib.stride_tricks.as_strided(array, shape, steps, subok=True)

    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(
        Device=lambda: SimpleNamespace(compute_capability="90"),
        driver=SimpleNamespace(funcSetAttribute=lambda ptr, number, value: shared.__setitem__(ptr, value)),
        nvrtc=SimpleNamespace(
            createProgram=lambda *given: list(given),
            compileProgram=compile_program,
            getCUBIN=lambda program: b"",
            getProgramLog=lambda program: "",
        ),
        function=SimpleNamespace(Module=Module),
        device=SimpleNamespace(get_cublas_handle=lambda: 1),
        cublas=SimpleNamespace(gemmStridedBatchedEx=multiply),
        get_current_stream=lambda: SimpleNamespace(ptr=0),
        ExternalStream=lambda handle: nullcontext(),
    )
    cupy = ModuleType("cupy")
    vars(cupy).update(
        cuda=cuda,
        uint8=np.uint8,
        empty=_aligned,
        asarray=asarray,
        asnumpy=np.array,
        lib=SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=strided)),
    )
    return {"cupy": cupy, "cupy.cuda": cuda}
