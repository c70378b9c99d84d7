"""Runs of executables with CuPy alone, for numerics on seeded inputs and for timing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mirage_formal.codegen.executable import Executable, moved_bytes
from mirage_formal.device.elements import RAW, bits_to_floats, floats_to_bits
from mirage_formal.device.measure import CupyRecorder, Measurement, measure
from mirage_formal.device.runtime import LoadedExecutable
from mirage_formal.graph.graph import Input
from mirage_formal.graph.types import DType, row_major

Array = Any


class Elements:
    """Inputs of an executable as raw elements of any type on CuPy's current device; nothing is loaded.

    Args:
        executable: The executable.
    """

    def __init__(self, executable: Executable) -> None:
        self.cupy = import_module("cupy")
        self.executable = executable

    def store(self, item: Input, values: Array) -> Array:
        """Convert float64 values to the elements of an input, in the order of its strides."""
        cp, tensor = self.cupy, item.tensor
        bits = floats_to_bits(values, tensor.dtype, cp)
        if item.strides == row_major(tensor.shape):
            return cp.ascontiguousarray(bits)
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, item.strides, strict=True))
        out = cp.zeros(span, bits.dtype)
        steps = tuple(s * out.itemsize for s in item.strides)
        cp.lib.stride_tricks.as_strided(out, tensor.shape, steps)[...] = bits
        return out

    def draw(self, item: Input, seed: int, scale: float) -> Array:
        """Return seeded normal numbers as the elements of an input; a mask has zeros and ones in equal parts.

        An input with a band is that band mask.
        """
        if item.band is not None:
            return self.store(item, self.cupy.asarray(item.band.mask(item.tensor.shape)))
        random = self.cupy.random.default_rng(seed)
        drawn = random.standard_normal(item.tensor.shape, dtype=self.cupy.float32)
        return self.store(item, drawn * scale if item.tensor.dtype.floating else drawn > 0)


class DeviceRuns(Elements):
    """An executable on CuPy's current device, called with raw elements of any type.

    Args:
        executable: The executable.
        library: Whether cuBLAS computes predefined products, or the host.

    Raises:
        MirageError: It cannot be loaded.
    """

    def __init__(self, executable: Executable, *, library: bool = True) -> None:
        super().__init__(executable)
        self.device = int(self.cupy.cuda.runtime.getDevice())
        self.loaded = LoadedExecutable(executable, self.device, library=library)

    def outputs(self) -> list[Array]:
        """Return new outputs as raw elements, all of them NaN."""
        made = []
        for number in self.executable.graph.outputs:
            tensor = self.executable.values[number]
            kind = self.cupy.dtype(RAW[tensor.dtype.bytes])
            made.append(self.cupy.full(tensor.shape, self.cupy.iinfo(kind).max, kind))
        return made

    def launch(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Launch on CuPy's current stream."""
        stream = int(self.cupy.cuda.get_current_stream().ptr)
        self.loaded.run([x.data.ptr for x in inputs], [x.data.ptr for x in outputs], stream)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs as float64 for float64 inputs, both CuPy arrays; see numerics.result_comparison."""
        items = self.executable.graph.inputs
        inputs = [self.store(item, x) for item, x in zip(items, arrays, strict=True)]
        outputs = self.outputs()
        self.launch(inputs, outputs)
        types = [self.executable.values[number] for number in self.executable.graph.outputs]
        return [bits_to_floats(x, tensor.dtype, self.cupy) for x, tensor in zip(outputs, types, strict=True)]

    def measure(
        self, scale: float = 0.1, replays: int = 15, *, inputs: InputSets | None = None, finite: bool = True
    ) -> Measurement:
        """Time the executable on seeded inputs.

        Args:
            scale: Standard deviation of the inputs.
            replays: Timed replays.
            inputs: The inputs; drawn here, if left out.
            finite: Whether results must be finite, as those of a program are; those of one kernel of it, on inputs that
                no earlier kernel computed, need not.

        Raises:
            MeasureError: It does not write its outputs.
        """
        outputs = self.outputs()
        sets = InputSets(self, scale) if inputs is None else inputs

        def call(given: Sequence[Array]) -> None:
            self.launch(given, outputs)

        types = [self.executable.values[number] for number in self.executable.graph.outputs]
        recorder = _RawRecorder(outputs, [tensor.dtype for tensor in types], finite=finite)
        return measure(call, sets, sets.cold_bytes, recorder, outputs=outputs, replays=replays)

    @property
    def moved_bytes(self) -> int:
        """Return a lower bound of the bytes that the program moves through device memory."""
        return moved_bytes(self.executable.program)


class InputSets:
    """Seeded inputs of an executable, each set drawn once.

    Args:
        runs: Converter to the elements of an executable's inputs.
        scale: Standard deviation of the inputs.
        warm: For each input, whether it is the same in all sets, so that it stays in the cache.
    """

    def __init__(self, runs: Elements, scale: float = 0.1, warm: Sequence[bool] = ()) -> None:
        self._runs, self._scale = runs, scale
        self._items = runs.executable.graph.inputs
        self._warm = tuple(warm) or (False,) * len(self._items)
        self._drawn: dict[tuple[int, int], Array] = {}

    @property
    def cold_bytes(self) -> int:
        """Return the bytes of one set, without band masks and inputs that are the same in all sets."""
        pairs = zip(self._items, self._warm, strict=True)
        return sum(item.tensor.bytes for item, warm in pairs if not warm and item.band is None)

    def __call__(self, seed: int) -> list[Array]:
        """Return one array for each input, drawn by ``seed``; those that are ``warm`` are the same for all seeds."""
        return [self._one(number, 0 if warm else seed) for number, warm in enumerate(self._warm)]

    def _one(self, number: int, seed: int) -> Array:
        key = number, seed
        if key not in self._drawn:
            self._drawn[key] = self._runs.draw(self._items[number], seed * len(self._items) + number, self._scale)
        return self._drawn[key]


class _RawRecorder(CupyRecorder):
    """Recorder for outputs that are arrays of integers, with the bits of elements of ``dtypes``."""

    def __init__(self, outputs: Sequence[Array], dtypes: Sequence[DType], *, finite: bool = True) -> None:
        super().__init__()
        self._finite = finite
        self._dtypes = {id(value): dtype for value, dtype in zip(outputs, dtypes, strict=True)}

    def poison(self, value: Any) -> None:
        """Implement ``Recorder.poison``."""
        value.fill(self._cupy.iinfo(value.dtype).max)
        self._cupy.cuda.Device().synchronize()

    def finite(self, value: Any) -> bool:
        """Implement ``Recorder.finite``."""
        self._stream.synchronize()
        if not self._finite:
            return True
        return bool(self._cupy.isfinite(bits_to_floats(value, self._dtypes[id(value)], self._cupy)).all())
