"""Execution of Triton files in the process that owns the GPU: comparison with float64, and timing as of CUDA kernels.

Inputs are those of CUDA kernels, drawn by CuPy; torch accesses them as tensors in the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Final

from mirage_formal.codegen.executable import load_executable
from mirage_formal.device.cupy_runner import DeviceRuns, Elements, InputSets
from mirage_formal.device.elements import bits_to_floats
from mirage_formal.device.measure import Measurement, TorchRecorder, measure
from mirage_formal.graph.graph import Input
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.kernel_build.triton.triton_callable import load_module
from mirage_formal.records import NumericsRecord

Array = Any
Tensor = Any

#: Rounds of the interleaved measurement of a Triton file and CUDA kernels; the medians count.
ROUNDS: Final = 3


class TritonRuns:
    """A Triton file of a µGraph on torch's current device, called with raw elements in CuPy's memory.

    Args:
        elements: Conversion of elements, from the CUDA kernels of the same µGraph.
        module: The loaded Triton file.
    """

    def __init__(self, elements: Elements, module: ModuleType) -> None:
        self._elements, self._module = elements, module
        self._torch = import_module("torch")

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs as float64 for float64 inputs; elements that are never written are NaN."""
        own, program = self._elements, self._elements.executable.program
        pairs = zip(program.inputs, arrays, strict=True)
        given = [self.tensor(item, own.store(item, x)) for item, x in pairs if item.band is None]
        found = _as_list(self._module.run(*given, poison=True))
        types = [kernel_types(program)[number] for number in program.outputs]
        return [self._floats(value, tensor.dtype) for value, tensor in zip(found, types, strict=True)]

    def measure(self, sets: InputSets, replays: int) -> Measurement:
        """Time the file on drawn inputs, by the protocol of ``device.measure``; its outputs must be finite."""
        items = self._elements.executable.program.inputs

        def given(seed: int) -> list[Tensor]:
            pairs = zip(items, sets(seed), strict=True)
            return [self.tensor(item, raw) for item, raw in pairs if item.band is None]

        return measure(lambda x: self._module.run(*x), given, sets.cold_bytes, TorchRecorder(), replays=replays)

    def tensor(self, item: Input, raw: Array) -> Tensor:
        """Return the raw elements of an input as a torch tensor in the same memory."""
        whole = item.tensor.dtype is DType.FLOAT32
        signed = raw.view(self._elements.cupy.int32 if whole else self._elements.cupy.int16)
        view = self._torch.from_dlpack(signed).view(getattr(self._torch, item.tensor.dtype.value))
        return view.as_strided(item.tensor.shape, item.strides)

    def _floats(self, value: Tensor, dtype: DType) -> Array:
        cupy, whole = self._elements.cupy, dtype is DType.FLOAT32
        signed = value.contiguous().view(self._torch.int32 if whole else self._torch.int16)
        return bits_to_floats(cupy.from_dlpack(signed).view(cupy.uint32 if whole else cupy.uint16), dtype, cupy)


class TritonFileRunner:
    """Runner of Triton files, one candidate after another; the inputs are drawn once for each candidate."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._elements: Any = None
        self._sets: Any = None
        self._modules: dict[Path, ModuleType] = {}

    def timed(self, directory: Path, file: Path, replays: int) -> Measurement:
        """Return the measured microseconds of a call of a Triton file."""
        return self._runs(directory, file).measure(self._sets, replays)

    def compared(self, directory: Path, file: Path) -> NumericsRecord:
        """Compare the results of a file with float64 at every scale, by the tolerance of its µGraph."""
        from mirage_formal.codegen.numerics.result_comparison import Inputs, check
        from mirage_formal.device.runtime import device_name

        runs, executable, cupy = self._runs(directory, file), self._elements.executable, self._elements.cupy
        inputs = Inputs(0, xp=cupy)
        try:
            return check(
                executable.program, executable.graph, executable.digest, runs.run, device=device_name(), inputs=inputs
            )
        finally:
            cupy.get_default_memory_pool().free_all_blocks()

    def in_turns(self, directory: Path, file: Path, cuda: Path, replays: int) -> tuple[float, float]:
        """Return the microseconds of a file and of CUDA kernels of the same program, measured in turns."""
        triton, kernels = self._runs(directory, file), DeviceRuns(load_executable(cuda))
        rounds = [
            (triton.measure(self._sets, replays).us, kernels.measure(replays=replays, inputs=self._sets).us)
            for _ in range(ROUNDS)
        ]
        return median(one for one, _ in rounds), median(other for _, other in rounds)

    def _runs(self, directory: Path, file: Path) -> TritonRuns:
        if directory != self._directory:
            self._directory, self._sets, self._modules = None, None, {}
            self._elements = Elements(load_executable(directory))
            self._elements.cupy.get_default_memory_pool().free_all_blocks()
            import_module("torch").cuda.empty_cache()
            self._sets = InputSets(self._elements)
            self._directory = directory
        if file not in self._modules:
            self._modules[file] = load_module(file.read_text(encoding="utf-8"))
        return TritonRuns(self._elements, self._modules[file])


def _as_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


__all__ = ["TritonFileRunner", "TritonRuns"]
