"""A CuPy without a GPU, and a torch without torch.

Device memory is host memory, and launches run Programs of a registry on the emulator. Kernel arguments are read as the
driver reads them, through the addresses that the launcher hands over, so wrong argument tables, wrong workspaces and
wrong order are wrong results.

Tensors of torch are NumPy arrays that say where they lie and whether autograd knows them: to be put in sys.modules as
``torch``, so that what the launcher asks of torch tensors is tested where it is not installed;
tests/device/test_gradients.py runs the same tests on the real one where there is one.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from mirage_formal.codegen.executable import Binary, KernelLaunch, kernel_launch
from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.program.program import Acquire, Int, Param, Pipeline, TileCopy
from mirage_formal.device.emulate import Launchable
from mirage_formal.device.emulate import run_kernel as emulate
from mirage_formal.graph.types import DType
from mirage_formal.kernel_build.built_kernels import BuiltKernels

_RAW: dict[DType, Any] = {
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.FLOAT32: np.float32,
    DType.BOOL: np.uint8,
}

#: What ``FakeCupy.encode`` writes: address, type, columns and rows, bytes of a row, columns and rows of a tile.
_MAP = struct.Struct("<7Q")


class ndarray:
    """The few things of cupy.ndarray that are used."""

    def __init__(self, host: np.ndarray, device: int = 0) -> None:
        self.host = host
        self.device = device

    @property
    def data(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=self.host.ctypes.data, device_id=self.device)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.host.strides

    @property
    def dtype(self) -> Any:
        return self.host.dtype

    def get(self) -> np.ndarray:
        return self.host.copy()


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 256 bytes."""
    raw = np.empty(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    out = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def at(address: int, elements: int, dtype: DType) -> np.ndarray:
    """Device memory as an array."""
    raw = _RAW[dtype]
    size = elements * np.dtype(raw).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), raw)


_Array = ndarray  # inside the class below, the name is that of an attribute


class FakeCupy:
    """To be put in sys.modules as ``cupy``.

    Attributes:
        log: Calls of the runtime and of the driver, in order.
        capturing: Streams that are being captured.
        fault: Called before every launch.

    Args:
        programs: What is launched, by name.
        devices: How many there are.
        capability: Their compute capability.
        driver: The driver's version; 0 has no dependent launches.

    ``encode`` is the driver's cuTensorMapEncodeTiled, which logs the addresses and returns ``refusal``.
    """

    __name__ = "cupy"
    __version__ = "fake"
    ndarray = ndarray

    def __init__(
        self, programs: Mapping[str, Launchable], devices: int = 1, capability: str = "90", driver: int = 0
    ) -> None:
        self.programs: dict[str, Launchable] = dict(programs)
        self.log: list[tuple[Any, ...]] = []
        self.capturing: set[int] = set()
        self.stream = 7
        self.current = 0
        self.functions: list[str] = []
        self.keep: list[Any] = []
        self.fault: Callable[[], None] = lambda: None
        self.refusal = 0
        p, u = ctypes.c_void_p, ctypes.c_uint
        self.encode = ctypes.CFUNCTYPE(ctypes.c_int, p, u, u, p, p, p, p, p, u, u, u, u)(self._encode)
        fake = self

        class Module:
            def load(self, cubin: bytes) -> None:
                assert isinstance(cubin, bytes)
                fake.log.append(("load", cubin))

            def get_function(self, name: str) -> SimpleNamespace:
                assert name in fake.programs, name
                fake.functions.append(name)
                return SimpleNamespace(ptr=len(fake.functions) - 1)

        class Device:
            def __init__(self, number: int = 0) -> None:
                self.number = number
                self.compute_capability = capability

            def __enter__(self) -> None:
                self.before, fake.current = fake.current, self.number

            def __exit__(self, *_: object) -> None:
                fake.current = self.before

            def synchronize(self) -> None:
                fake.log.append(("synchronize",))

        runtime = SimpleNamespace(
            getDeviceCount=lambda: devices,
            getDevice=lambda: self.current,
            driverGetVersion=lambda: driver,
            setDevice=lambda number: setattr(self, "current", number),
            streamIsCapturing=lambda stream: stream in self.capturing,
            streamWaitEvent=lambda stream, event: self.log.append(("wait", stream)),
            eventRecord=lambda event, stream: self.log.append(("record", stream)),
            streamSynchronize=lambda stream: self.log.append(("wait for", stream)),
            deviceSynchronize=lambda: self.log.append(("synchronize",)),
            memset=lambda target, value, size: ctypes.memset(target, value, size),
            memcpy=lambda target, source, size, kind: ctypes.memmove(target, source, size),
            getDeviceProperties=lambda number: {
                "name": b"Fake",
                "l2CacheSize": 1 << 20,
                "multiProcessorCount": 1,
                "totalGlobalMem": 1 << 30,
            },
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(funcSetAttribute=self._attribute, launchKernel=self._launch),
            function=SimpleNamespace(Module=Module),
            Device=Device,
            Event=lambda **_: SimpleNamespace(ptr=5),
            alloc=self._alloc,
            get_current_stream=lambda *_: SimpleNamespace(ptr=self.stream),
            ExternalStream=self._on,
        )

    def empty(self, shape: Any, dtype: Any = np.float64) -> _Array:
        self.log.append(("empty",))
        host = aligned(np.empty(shape, dtype))
        host.view(np.uint8).fill(0xFF) if host.size else None
        return ndarray(host, self.current)

    def asarray(self, host: np.ndarray) -> _Array:
        return ndarray(aligned(host), self.current)

    @contextmanager
    def _on(self, stream: int) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def _alloc(self, size: int) -> SimpleNamespace:
        self.log.append(("alloc", size))
        host = aligned(np.full(size, 0xFF, np.uint8))
        self.keep.append(host)
        return SimpleNamespace(ptr=host.ctypes.data)

    def _attribute(self, function: int, attribute: int, value: int) -> None:
        if value > 227 << 10:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE")
        self.log.append(("attribute", self.functions[function], attribute, value))

    def _encode(self, place: int, kind: int, rank: int, address: int, *more: int) -> int:
        extents, strides, box, steps, *modes = more
        assert (place % 64, address % 16, rank, modes) == (0, 0, 2, [0, 3, 2, 0])
        assert (ctypes.c_uint32 * 2).from_address(steps)[:] == [1, 1]
        matrix = (ctypes.c_uint64 * 2).from_address(extents)[:], (ctypes.c_uint64 * 1).from_address(strides)[:]
        self.log.append(("encode", address))
        if self.refusal == 0:
            encoded = _MAP.pack(address, kind, *matrix[0], *matrix[1], *(ctypes.c_uint32 * 2).from_address(box))
            ctypes.memmove(place, encoded, _MAP.size)
        return self.refusal

    def _launch(self, function: int, *arguments: int) -> None:
        self.fault()
        program = self.programs[self.functions[function]]
        x, y, z, threads, one, also, shared, stream, address, extra = arguments
        assert ((x, y, z), threads, one, also, shared, extra) == (
            program.grid,
            program.launch_threads,
            1,
            1,
            program.shared_bytes,
            0,
        )
        count = len(program.params)
        joined = isinstance(program, JoinedProgram)
        slots = (ctypes.c_void_p * (count + joined + len(program.maps))).from_address(address)
        pointers = [ctypes.c_uint64.from_address(slot or 0).value for slot in slots[: count + joined]]
        names = [param.name for param in program.params]
        for slot, matrix in zip(slots[count + joined :], program.maps, strict=True):
            number = names.index(matrix.param)
            rows = program.params[number].elements // matrix.stride
            kind = 6 if program.params[number].dtype is DType.FLOAT16 else 9
            wanted = (pointers[number], kind, matrix.stride, rows, 2 * matrix.stride, 64, matrix.rows)
            assert _MAP.unpack(ctypes.string_at(slot or 0, _MAP.size)) == wanted
        if isinstance(program, JoinedProgram):
            counters = at(pointers.pop(), program.groups.count, DType.FLOAT32).view(np.uint32)
            self.log.append(("counters", counters.ctypes.data, counters.tolist()))
        views = [at(p, param.elements, param.dtype) for p, param in zip(pointers, program.params, strict=True)]
        given = [view for view, param in zip(views, program.params, strict=True) if not param.written]
        results = iter(emulate(program, given))
        for view, param in zip(views, program.params, strict=True):
            if param.written:
                result = next(results)
                view[:] = (result.view(np.uint32) >> 16).astype(np.uint16) if param.dtype is DType.BFLOAT16 else result
        self.log.append(("launch", program.name, stream))


def _matrix_copies(param: Param) -> Iterator[TileCopy]:
    """Copies of two kinds of tiles of a parameter, seen as a matrix of 256 columns."""
    for rows in (8, 64):
        yield TileCopy("p0", Int(0), "s0", Int(0), param.name, Int(0), rows, 256)


def with_tensor_maps(built: BuiltKernels) -> BuiltKernels:
    """The same kernels with a producer that copies tiles of all that they read: right launches of what cannot run."""
    programs, launches = {}, []
    for launch in built.executable.launches:
        assert isinstance(launch, KernelLaunch)
        program = built.programs[launch.name]
        copies = [one for param in program.params if not param.written for one in _matrix_copies(param)]
        program = replace(program, producer=(Acquire("p0", Int(0)), *copies), pipelines=(Pipeline("p0", 1, 128),))
        programs[program.name] = program
        values, text = tuple(one.value for one in launch.arguments), built.executable.sources[launch.source]
        launches.append(kernel_launch(program, launch.operator, values, launch.source, text, launch.cubins))
    executable = replace(built.executable, launches=tuple(launches))
    return replace(built, executable=executable, programs=programs)


def with_code(built: BuiltKernels) -> BuiltKernels:
    """The same with something in the place of machine code."""
    code = b"machine code"
    binary = Binary("code.cubin", hashlib.sha256(code).hexdigest())
    launches = tuple(
        msgspec.structs.replace(x, cubins={"sm_90a": binary}) if isinstance(x, KernelLaunch) else x
        for x in built.executable.launches
    )
    files = {**built.executable.files, "code.cubin": code}
    return replace(built, executable=replace(built.executable, launches=launches, files=files))


class Tensor:
    """The few things of torch.Tensor that are used; on a GPU, device memory is host memory."""

    def __init__(self, host: np.ndarray, dtype: str, device: int = -1, requires_grad: bool = False) -> None:
        self.host = host
        self._dtype = sys.intern(dtype)  # element types are one object each
        self._device = device
        self.requires_grad = requires_grad
        self.made_for_inference = False

    @property
    def is_cuda(self) -> bool:
        return self._device >= 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def dtype(self) -> str:
        return self._dtype

    def get_device(self) -> int:
        return self._device

    def data_ptr(self) -> int:
        return self.host.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.host.itemsize for step in self.host.strides)

    def detach(self) -> Tensor:
        return Tensor(self.host, self._dtype, self._device)

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.host), self._dtype, self._device)

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.host.view(dtype.removeprefix("torch.")), dtype, self._device)

    def numpy(self) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.host


class Parameter(Tensor):
    """A tensor of a module, which requires a gradient."""

    def __init__(self, host: np.ndarray, dtype: str, device: int = -1) -> None:
        super().__init__(host, dtype, device, requires_grad=True)


_Tensor = Tensor  # inside the class below, the name is that of an attribute


class FakeTorch:
    """The module: element types are their names."""

    Tensor = Tensor
    float16, float32, int16, int32 = (sys.intern(f"torch.{n}") for n in ("float16", "float32", "int16", "int32"))

    def __init__(self) -> None:
        self._recording = True
        self._inference = False
        self.nn = SimpleNamespace(Parameter=Parameter)
        self.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=7))
        torch = self

        def copy_(target: Tensor, source: Tensor) -> Tensor:
            if target.made_for_inference and not torch._inference:
                raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")
            if target.requires_grad and torch._recording:
                raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
            target.host[...] = source.host
            return target

        Tensor.copy_ = copy_  # type: ignore[attr-defined]

    def is_grad_enabled(self) -> bool:
        return self._recording

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        with self._set(False, self._inference):
            yield

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        with self._set(False, True):
            yield

    @contextmanager
    def _set(self, recording: bool, inference: bool) -> Iterator[None]:
        before = self._recording, self._inference
        self._recording, self._inference = recording, inference
        try:
            yield
        finally:
            self._recording, self._inference = before

    def from_numpy(self, host: np.ndarray) -> _Tensor:
        made = Tensor(host, f"torch.{host.dtype.name}")
        made.made_for_inference = self._inference
        return made

    def device(self, kind: str, number: int) -> int:
        assert kind == "cuda"
        return number

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        return Tensor(aligned(np.zeros(shape, dtype.removeprefix("torch."))), dtype, device)
