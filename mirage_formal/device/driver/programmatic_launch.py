"""Programmatic dependent launch: a kernel starts while the previous launch ends, and waits for it by itself.

These are launches by ``cuLaunchKernelEx`` with the attribute of programmatic stream serialization, which CuPy does not
offer. All driver arguments lie in memory that is allocated once; a call sets the stream only. In stream capture the
attribute makes a programmatic edge of the CUDA graph, which drivers support from CUDA 12.3 on. Where driver or GPU do
not support such launches, kernels are launched in order, and their waits end at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.device.driver.driver_library import driver_function
from mirage_formal.support.errors import MirageError

#: The first driver whose graphs have programmatic edges, as cuDriverGetVersion counts.
OLDEST_DRIVER: Final = 12030
#: The first compute capability that has griddepcontrol.
OLDEST_CAPABILITY: Final = 90
_PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6


class LaunchError(MirageError):
    """Error: the driver refused a launch."""


class Attribute(ctypes.Structure):
    """C structure CUlaunchAttribute; the value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint64 * 8))


class Config(ctypes.Structure):
    """C structure CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


def launcher(runtime: Any, capability: str) -> Any | None:
    """Return the driver's function for launches with attributes; None where dependent launches are unsupported.

    Args:
        runtime: CuPy's ``cuda.runtime``.
        capability: Compute capability of the device, as CuPy has it: "90".
    """
    if not capability.isdecimal() or int(capability) < OLDEST_CAPABILITY:
        return None
    return driver_function("cuLaunchKernelEx") if int(runtime.driverGetVersion()) >= OLDEST_DRIVER else None


def prepare(launch: KernelLaunch, launch_kernel: Any, function: int, arguments: int) -> Callable[[int], None]:
    """Return a dependent launch as a function of the stream's handle; not to be called by two threads at once.

    Args:
        launch: The launch.
        launch_kernel: The driver's function, from ``launcher``.
        function: Handle of the kernel's function.
        arguments: Address of the array of its arguments' addresses, which must outlive the returned function.
    """
    attribute = Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1  # programmaticStreamSerializationAllowed, an int
    config = Config(
        grid=launch.grid,
        block=(launch.threads, 1, 1),
        shared=launch.block_bytes,
        attributes=ctypes.pointer(attribute),
        count=1,
    )
    place, handle, addresses = ctypes.byref(config), ctypes.c_void_p(function), ctypes.c_void_p(arguments)

    def run(stream: int) -> None:
        config.stream = stream
        if code := launch_kernel(place, handle, addresses, None):
            raise LaunchError(f"expected cuLaunchKernelEx to launch, got error {code} of the driver", where=launch.name)

    return run
