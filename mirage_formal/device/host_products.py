"""Predefined matrix products on the CPU: copied there, computed by NumPy in float32, and copied back.

This is for tools that watch every kernel of a process and cannot follow cuBLAS, such as compute-sanitizer's racecheck.
The generated kernels get the same inputs, and no other kernel is launched between them. It is slow, and cannot be
captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from mirage_formal.device.elements import bits_to_floats, floats_to_bits
from mirage_formal.graph.types import DTensor, DType, Shape

_TO_HOST: Final = 2
_TO_DEVICE: Final = 1


class HostProducts:
    """Matrix products on the CPU, with the interface of ``products.Cublas``."""

    def __init__(self) -> None:
        self._runtime: Any = import_module("cupy").cuda.runtime
        self._numpy: Any = import_module("numpy")
        self._stream = 0

    def on(self, stream: int) -> None:
        """Set the stream after whose work the next products run."""
        self._stream = stream

    def calls(
        self,
        a: DTensor,
        b: DTensor,
        strides: tuple[tuple[int, ...], tuple[int, ...]],
        address: Callable[[int], int],
    ) -> list[Callable[[], None]]:
        """Return one function, which computes the product; see ``products.Cublas.calls``."""
        shape = (*a.shape[:-1], b.shape[-1])

        def run() -> None:
            self._runtime.streamSynchronize(self._stream)
            left = self._fetch(address(0), a.shape, strides[0], a.dtype)
            right = self._fetch(address(1), b.shape, strides[1], b.dtype)
            self._store(address(2), left @ right, shape, a.dtype)

        return [run]

    def _fetch(self, address: int, shape: Shape, strides: tuple[int, ...], dtype: DType) -> Any:
        """Copy a tensor from an address and convert it to float32."""
        np = self._numpy
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        raw = np.empty(span, np.dtype(f"uint{8 * dtype.bytes}"))
        self._runtime.memcpy(raw.ctypes.data, address, raw.nbytes, _TO_HOST)
        view = np.lib.stride_tricks.as_strided(raw, shape, tuple(s * raw.itemsize for s in strides))
        return bits_to_floats(view, dtype, np).astype(np.float32)

    def _store(self, address: int, values: Any, shape: Shape, dtype: DType) -> None:
        """Write float32 values to a row-major tensor, rounded to nearest even."""
        assert values.shape == shape
        raw = floats_to_bits(values, dtype, self._numpy)
        self._runtime.memcpy(address, raw.ctypes.data, raw.nbytes, _TO_DEVICE)
        self._runtime.deviceSynchronize()  # a copy from pageable memory may return before it has arrived
