"""An executable loaded on one device: modules, workspace and argument arrays.

A launch writes the addresses of the call's tensors into one table, to which the kernels' argument arrays point, and
calls the driver once for each kernel: through CuPy, or directly if the launch is dependent (``dependent``). Tensor maps
of a launch stand behind the kernel's other arguments, and are encoded for the addresses of the call.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

from mirage_formal.codegen.executable import (
    Executable,
    KernelLaunch,
    ProductLaunch,
    counter_offsets,
    workspace,
)
from mirage_formal.device.cublas import WORKSPACE_BYTES, Cublas
from mirage_formal.device.driver import programmatic_launch
from mirage_formal.device.driver.tensor_maps import TensorMapArgument, tensor_map_function
from mirage_formal.device.host_products import HostProducts
from mirage_formal.support.errors import UnsupportedError

_MAX_DYNAMIC_SHARED: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LEGACY: Final = (0, 1)
#: Loaded modules on each device, for each CuPy. They stay for the life of the process, because the driver refuses to
#: unload one while any stream is captured, the capture is then lost, and the time of garbage collection is unknown.
_MODULES: Final[WeakKeyDictionary[Any, dict[tuple[int, bytes], Any]]] = WeakKeyDictionary()


def device_count() -> int:
    """Return the number of GPUs that CuPy can use; 0 without CuPy or without a driver."""
    try:
        return int(import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception:  # a missing driver, library or package: each its own class
        return 0


def current_device() -> int:
    """Return the number of CuPy's current device."""
    return int(import_module("cupy").cuda.runtime.getDevice())


def device_name() -> str:
    """Return the name of the current GPU."""
    name = import_module("cupy").cuda.runtime.getDeviceProperties(current_device())["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def arch_of(device: int) -> str:
    """Return the architecture that kernels are compiled for to run on a device: "sm_90a", "sm_80", ..."""
    capability = str(import_module("cupy").cuda.Device(device).compute_capability)
    return {"90": "sm_90a", "86": "sm_80", "87": "sm_80", "89": "sm_80"}.get(capability, f"sm_{capability}")


class LoadedExecutable:
    """An executable on one device.

    Args:
        executable: The executable.
        device: The device's number.
        library: Whether cuBLAS computes predefined products; else the host does, which cannot be captured.

    Raises:
        UnsupportedError: The device cannot hold a kernel, or device or driver have no tensor maps.
        CompileError: Machine code is missing, and so is NVRTC.
    """

    def __init__(self, executable: Executable, device: int, *, library: bool = True) -> None:
        self.executable = executable
        self._cupy = import_module("cupy")
        self._device = device
        self._lock = threading.Lock()
        self._threads = threading.local()
        self._modules: list[Any] = []
        with self._cupy.cuda.Device(device):
            self._cupy.cuda.runtime.setDevice(device)
            self._table = (ctypes.c_uint64 * len(executable.values))()
            self._allocate()
            self._products = self._library() if library else HostProducts()
            self._capability = str(self._cupy.cuda.Device(device).compute_capability)
            self._launch_dependent = programmatic_launch.launcher(self._cupy.cuda.runtime, self._capability)
            numbered = enumerate(executable.launches)
            self._calls = [call for number, launch in numbered for call in self._prepare(number, launch)]
        self._last_stream: int | None = None
        self._results = executable.outputs
        runtime = self._cupy.cuda.runtime
        self._get_device, self._is_capturing = runtime.getDevice, runtime.streamIsCapturing
        self._record = runtime.eventRecord

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Launch all kernels on a stream.

        Args:
            inputs: Addresses of the inputs.
            outputs: Addresses of the outputs, in order.
            stream: Handle of the stream.
        """
        if not getattr(self._threads, "entered", False):
            # A thread that has not used the device has no context for the driver to launch in.
            runtime = self._cupy.cuda.runtime
            before = runtime.getDevice()
            runtime.setDevice(self._device)
            if before != self._device:
                runtime.setDevice(before)
            self._threads.entered = True
        if self._get_device() == self._device:
            self._run(inputs, outputs, stream)
        else:
            with self._cupy.cuda.Device(self._device):
                self._run(inputs, outputs, stream)

    def _run(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        table = self._table
        with self._lock:
            table[: len(inputs)] = inputs  # type: ignore[call-overload]
            for number, address in zip(self._results, outputs, strict=True):
                table[number] = address
            if self._event is None:
                for call in self._calls:
                    call(stream)
                return
            # The legacy default stream cannot be captured, nor asked.
            free = stream in _LEGACY or not self._is_capturing(stream)
            if free and self._last_stream not in (None, stream):
                self._cupy.cuda.runtime.streamWaitEvent(stream, self._event.ptr)
            for call in self._calls:
                call(stream)
            if free:
                self._record(self._event.ptr, stream)
                self._last_stream = stream

    # --- once --------------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        offsets, size = workspace(self.executable)
        counters, end = counter_offsets(self.executable, size)
        products = any(isinstance(launch, ProductLaunch) for launch in self.executable.launches)
        size_of_all = end + (WORKSPACE_BYTES if products else 0)
        self._memory = self._cupy.cuda.alloc(size_of_all) if size_of_all else None
        start = int(self._memory.ptr) if self._memory is not None else 0
        for number, offset in offsets.items():
            self._table[number] = start + offset
        if counters:
            self._cupy.cuda.runtime.memset(start + size, 0, end - size)
            self._cupy.cuda.runtime.deviceSynchronize()  # the streams of calls need not wait for the default stream
        # Where a launch's argument is the address of its counters.
        self._counters = {number: ctypes.c_uint64(start + offset) for number, offset in counters.items()}
        self._scratch = start + end
        self._event = self._cupy.cuda.Event(disable_timing=True) if size_of_all else None

    def _library(self) -> Cublas | None:
        products = any(isinstance(launch, ProductLaunch) for launch in self.executable.launches)
        return Cublas(self._scratch) if products else None

    def _prepare(self, number: int, launch: KernelLaunch | ProductLaunch) -> list[Callable[[int], None]]:
        if isinstance(launch, KernelLaunch):
            return [self._kernel(launch, self._counters.get(number))]
        assert self._products is not None
        products = self._products
        values = self.executable.values
        numbers = tuple(self.executable.base(value) for value in (launch.a, launch.b, launch.result))
        strides = (self.executable.strides(launch.a), self.executable.strides(launch.b))
        starts = [
            self.executable.place(value).offset * values[value].dtype.bytes
            for value in (launch.a, launch.b, launch.result)
        ]
        calls = products.calls(
            values[launch.a], values[launch.b], strides, lambda i: int(self._table[numbers[i]]) + starts[i]
        )

        def run(stream: int) -> None:
            products.on(stream)
            for call in calls:
                call()

        return [run]

    def _kernel(self, launch: KernelLaunch, counters: ctypes.c_uint64 | None) -> Callable[[int], None]:
        driver, records = self._cupy.cuda.driver, launch.tensor_maps
        encode = tensor_map_function(self._capability, launch.name) if records else None
        module = self._module(self._cubin(launch))
        function = module.get_function(launch.name)
        self._modules.append((module, function))
        try:
            driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, launch.block_bytes)
        except Exception as error:  # CuPy's own class, which may not be importable here
            what = f"expected a GPU with {launch.block_bytes} bytes of shared memory a block: {error}"
            raise UnsupportedError(what, where=launch.name, hint="choose another candidate") from None
        size = ctypes.sizeof(ctypes.c_uint64)
        start = ctypes.addressof(self._table)
        places = [start + self.executable.base(a.value) * size for a in launch.passed]
        if counters is not None:
            places.append(ctypes.addressof(counters))
        maps = [
            (position, TensorMapArgument(encode, launch, one, ctypes.c_uint64.from_address(places[one.argument])))
            for position, one in enumerate(records, len(places))
        ]
        pointers = (ctypes.c_void_p * (len(places) + len(maps)))(*places)
        self._modules.append(pointers)
        address, handle, shared = ctypes.addressof(pointers), int(function.ptr), launch.block_bytes
        if launch.dependent and self._launch_dependent is not None:
            run_dependent = programmatic_launch.prepare(launch, self._launch_dependent, handle, address)
            return _with_tensor_maps(run_dependent, maps, pointers)
        (x, y, z), threads = launch.grid, launch.threads
        launch_kernel = driver.launchKernel

        def run(stream: int) -> None:
            launch_kernel(handle, x, y, z, threads, 1, 1, shared, stream, address, 0)

        return _with_tensor_maps(run, maps, pointers)

    def _module(self, cubin: bytes) -> Any:
        kept = _MODULES.setdefault(self._cupy, {})
        key = (self._device, hashlib.sha256(cubin).digest())
        if key not in kept:
            module = self._cupy.cuda.function.Module()
            module.load(cubin)
            kept[key] = module
        return kept[key]

    def _cubin(self, launch: KernelLaunch) -> bytes:
        arch = arch_of(self._device)
        if (binary := launch.cubins.get(arch)) is not None:
            return self.executable.files[binary.file]
        # Only missing machine code needs the compiler and its cache.
        from mirage_formal.device.compile import compile

        return compile(self.executable.files[launch.source].decode(), arch).cubin


def _with_tensor_maps(
    run: Callable[[int], None], maps: Sequence[tuple[int, TensorMapArgument]], pointers: ctypes.Array[ctypes.c_void_p]
) -> Callable[[int], None]:
    """Return a launch that first points its arguments to the maps of the tensors' present addresses, if it has maps.

    Args:
        run: The launch, as a function of the stream's handle.
        maps: Its maps, each with its position among the arguments.
        pointers: The addresses of its arguments.
    """
    if not maps:
        return run

    def run_mapped(stream: int) -> None:
        for position, one in maps:
            pointers[position] = one.place()
        run(stream)

    return run_mapped
