"""Tensor maps of launches: matrices in device memory, as the tensor memory accelerator is told of them.

The driver encodes a map for the address of a tensor, in 128 bytes that are an argument of the launch. A launch copies
its arguments when it is made, also in stream capture, so what a map holds may be replaced as soon as that call returns.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.device.driver.driver_library import driver_function
from mirage_formal.records import TensorMapRecord
from mirage_formal.records.kernels import MAP_ALIGN, MAP_COLUMNS
from mirage_formal.support.errors import MirageError, UnsupportedError

#: Bytes of an encoded map, and the alignment that the driver asks for.
MAP_BYTES: Final = 128
_ALIGN: Final = 64
#: Most encoded maps that are kept for each argument.
KEPT: Final = 16
#: The first compute capability that has the tensor memory accelerator.
OLDEST_CAPABILITY: Final = 90
_FUNCTION: Final = "cuTensorMapEncodeTiled"
#: CU_TENSOR_MAP_DATA_TYPE_FLOAT16 and _BFLOAT16; elements have two bytes.
_TYPES: Final = {"float16": 6, "bfloat16": 9}
_ELEMENT_BYTES: Final = 2
#: Without interleaving, with a swizzle of 128 bytes, with promotion to 128 bytes of the L2 cache, zeros out of bounds.
_MODES: Final = (0, 3, 2, 0)
_HINT: Final = "choose another candidate, whose kernels have no tensor maps"


class TensorMapError(MirageError):
    """Error: the driver refused to encode a tensor map."""


def tensor_map_function(capability: str, where: str) -> Any:
    """Return the driver's function that encodes tensor maps.

    Args:
        capability: Compute capability of the device, as CuPy has it: "90".
        where: The kernel that has maps.

    Raises:
        UnsupportedError: The GPU or the driver has no tensor maps.
    """
    if not capability.isdecimal() or int(capability) < OLDEST_CAPABILITY:
        what = f"expected a GPU of compute capability 9.0 or later for its tensor maps, got {capability}"
        raise UnsupportedError(what, where=where, hint=_HINT)
    if (function := driver_function(_FUNCTION)) is None:
        what = f"expected a CUDA driver with {_FUNCTION}, got one without it"
        raise UnsupportedError(what, where=where, hint=f"install a driver of CUDA 12.0 or later, or {_HINT}")
    return function


class TensorMapArgument:
    """A tensor map of a launch, encoded for each address that its tensor has had lately.

    Args:
        encode: The driver's function, from ``tensor_map_function``.
        launch: The launch.
        record: The map.
        tensor: The address of the tensor, read at every call of ``place``; its owner outlives this object.
    """

    def __init__(self, encode: Any, launch: KernelLaunch, record: TensorMapRecord, tensor: ctypes.c_uint64) -> None:
        elements = launch.arguments[record.argument].elements
        self._encode, self._tensor = encode, tensor
        self._where = f"{launch.name}: argument {record.argument}"
        self._type = _TYPES[record.dtype]
        self._extents = (ctypes.c_uint64 * 2)(record.stride, elements // record.stride)
        self._stride = (ctypes.c_uint64 * 1)(record.stride * _ELEMENT_BYTES)
        self._box = (ctypes.c_uint32 * 2)(MAP_COLUMNS, record.rows)
        self._steps = (ctypes.c_uint32 * 2)(1, 1)
        self._memory = (ctypes.c_char * (MAP_BYTES * KEPT + _ALIGN))()
        start = -(-ctypes.addressof(self._memory) // _ALIGN) * _ALIGN
        self._free = [start + MAP_BYTES * i for i in reversed(range(KEPT))]
        self._places: dict[int, int] = {}

    def place(self) -> int:
        """Return the address of the map for the tensor's present address; not to be called by two threads at once.

        Raises:
            TensorMapError: The driver refuses the address.
        """
        address = self._tensor.value
        found = self._places.get(address)
        return self._encoded(address) if found is None else found

    def _encoded(self, address: int) -> int:
        if address % MAP_ALIGN:
            what = f"expected a tensor at a multiple of {MAP_ALIGN} bytes, got address {address:#x}"
            raise TensorMapError(what, where=self._where, hint="copy the tensor to memory of its own")
        if not self._free:
            oldest = next(iter(self._places))
            self._free.append(self._places.pop(oldest))
        place = self._free[-1]
        matrix = (ctypes.c_void_p(address), self._extents, self._stride, self._box, self._steps)
        if code := self._encode(ctypes.c_void_p(place), self._type, len(self._extents), *matrix, *_MODES):
            what = f"expected {_FUNCTION} to encode a tensor map, got error {code} of the driver"
            raise TensorMapError(what, where=self._where, hint=_HINT)
        self._places[address] = self._free.pop()
        return place


__all__ = ["KEPT", "MAP_BYTES", "TensorMapArgument", "TensorMapError", "tensor_map_function"]
