"""Predefined matrix products by cuBLAS, with precomputed arguments.

cuBLAS is called directly rather than through CuPy's functions, because those refuse to run during CUDA graph capture.
Sums are float32 for all element types (never tf32); results are rounded once.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any, Final

from mirage_formal.codegen.matrix_sides import matrix_side
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.support.errors import MirageError

#: Values of cudaDataType.
_TYPES: Final = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}
_COMPUTE_32F: Final = 68
_DEFAULT_ALGORITHM: Final = -1
#: Workspace size that cuBLAS wants on Hopper; it is provided, so that cuBLAS never allocates.
WORKSPACE_BYTES: Final = 32 << 20
_SONAMES: Final = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")


class CublasError(MirageError):
    """Error: cuBLAS is missing, or a call of it failed."""


@dataclass(frozen=True, slots=True)
class StridedBatch:
    """A strided batch: ``count`` products ``steps`` elements apart, for operands and result, from ``starts``."""

    count: int
    starts: tuple[int, int, int]
    steps: tuple[int, int, int]


def strided_batches(leading: Shape, strides: tuple[tuple[int, ...], ...]) -> tuple[StridedBatch, ...]:
    """Return the products over the leading dims, in as few strided batches as possible.

    Args:
        leading: Extents of the dims before the last two.
        strides: Strides of both operands and of the result along them.
    """
    split = len(leading)
    while split > 0 and _is_uniform(leading[split - 1 :], tuple(s[split - 1 :] for s in strides)):
        split -= 1
    inner = leading[split:]
    count = 1
    for extent in inner:
        count *= extent
    found = []
    for at in product(*(range(extent) for extent in leading[:split])):
        starts = [sum(i * step for i, step in zip(at, s, strict=False)) for s in strides]
        steps = [_step(inner, s[split:]) for s in strides]
        found.append(StridedBatch(count, (starts[0], starts[1], starts[2]), (steps[0], steps[1], steps[2])))
    return tuple(found)


def _step(extents: Shape, strides: tuple[int, ...]) -> int:
    """Return the stride of the innermost index, for dims that ``_is_uniform`` accepts."""
    return next((s for n, s in zip(reversed(extents), reversed(strides), strict=True) if n > 1), 0)


def _is_uniform(extents: Shape, strides: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether dims can be flattened to one: consecutive indices have one common stride in each tensor."""
    for own in strides:
        step, within = _step(extents, own), 1
        for extent, stride in zip(reversed(extents), reversed(own), strict=True):
            if extent > 1 and stride != step * within:
                return False
            within *= extent
    return True


@dataclass(frozen=True, slots=True)
class ProductCall:
    """Arguments of one call of cublasGemmStridedBatchedEx: row-major C = A B, which column-major is C' = B' A'.

    Triples are of A, B and C.

    Attributes:
        transposed: Whether A and B are read transposed, as column-major matrices.
        extents: Rows of C, columns of C, and the extent that is summed over.
        leading: Leading dimensions.
        starts: First elements, in bytes from the start of each tensor.
        steps: Elements between consecutive products.
        count: Number of products.
        cuda_type: Value of cudaDataType of all three.
    """

    transposed: tuple[bool, bool]
    extents: tuple[int, int, int]
    leading: tuple[int, int, int]
    starts: tuple[int, int, int]
    steps: tuple[int, int, int]
    count: int
    cuda_type: int


def product_calls(a: DTensor, b: DTensor, strides: tuple[tuple[int, ...], tuple[int, ...]]) -> list[ProductCall]:
    """Return the calls of cuBLAS that compute a product.

    Args:
        a: The left operand.
        b: The right operand.
        strides: Strides of both, in elements.

    Raises:
        UnsupportedError: An operand has neither rows nor columns contiguous.
    """
    shape = (*a.shape[:-1], b.shape[-1])
    left, right = matrix_side(a.shape, strides[0]), matrix_side(b.shape, strides[1])
    size = a.dtype.bytes
    lead = tuple(s[: len(shape) - 2] for s in (*strides, row_major(shape)))
    return [
        ProductCall(
            transposed=(left.transposed, right.transposed),
            extents=(shape[-2], shape[-1], a.shape[-1]),
            leading=(left.leading, right.leading, shape[-1]),
            starts=(batch.starts[0] * size, batch.starts[1] * size, batch.starts[2] * size),
            steps=batch.steps,
            count=batch.count,
            cuda_type=_TYPES[a.dtype],
        )
        for batch in strided_batches(shape[:-2], lead)
    ]


class Cublas:
    """A handle of cuBLAS on the current device, which must stay the current one in every call.

    Args:
        workspace: Address of WORKSPACE_BYTES of device memory, which must outlive the handle.
    """

    def __init__(self, workspace: int) -> None:
        self._library = library()
        self._workspace = ctypes.c_void_p(workspace)
        self._handle = ctypes.c_void_p()
        self._check("cublasCreate_v2", self._library.cublasCreate_v2(ctypes.byref(self._handle)))
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._size = ctypes.c_size_t(WORKSPACE_BYTES)

    def on(self, stream: int) -> None:
        """Set the stream of the next products."""
        handle = self._handle
        self._check("cublasSetStream_v2", self._library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
        # A new stream takes the workspace away.
        done = self._library.cublasSetWorkspace_v2(handle, self._workspace, self._size)
        self._check("cublasSetWorkspace_v2", done)

    def calls(
        self,
        a: DTensor,
        b: DTensor,
        strides: tuple[tuple[int, ...], tuple[int, ...]],
        address: Callable[[int], int],
    ) -> list[Callable[[], None]]:
        """Return one function for each cuBLAS call of a product.

        Args:
            a: The left operand.
            b: The right operand.
            strides: Strides of both, in elements.
            address: Function that returns the address of the left operand, the right one or the result, by number.
        """
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        last = (ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_DEFAULT_ALGORITHM))
        function = self._library.cublasGemmStridedBatchedEx

        def prepare(one_call: ProductCall) -> Callable[[], None]:
            (m, n, k), kind = one_call.extents, ctypes.c_int(one_call.cuda_type)
            left, right = (ctypes.c_int(int(side)) for side in one_call.transposed)
            fixed = (self._handle, right, left, ctypes.c_int(n), ctypes.c_int(m), ctypes.c_int(k), one)
            leading = [ctypes.c_int(x) for x in one_call.leading]
            steps = [ctypes.c_longlong(step) for step in one_call.steps]
            count = ctypes.c_int(one_call.count)

            def run() -> None:
                pointers = [ctypes.c_void_p(address(i) + one_call.starts[i]) for i in range(3)]
                done = function(
                    *fixed,
                    *(pointers[1], kind, leading[1], steps[1]),
                    *(pointers[0], kind, leading[0], steps[0]),
                    zero,
                    *(pointers[2], kind, leading[2], steps[2]),
                    count,
                    *last,
                )
                self._check("cublasGemmStridedBatchedEx", done)

            return run

        return [prepare(one_call) for one_call in product_calls(a, b, strides)]

    def _check(self, name: str, status: int) -> None:
        if status != 0:
            raise CublasError(f"expected {name} to succeed, got status {status}", where="cuBLAS")


@cache
def library() -> Any:
    """Return the cuBLAS library that CuPy or torch has loaded, or the system's.

    Raises:
        CublasError: There is none.
    """
    with suppress(ImportError, AttributeError, RuntimeError):
        # CuPy's wheels find theirs when this is first touched.
        import_module("cupy_backends.cuda.libs.cublas")
    for name in (*_SONAMES, ctypes.util.find_library("cublas")):
        if name is not None:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    hint = "install CuPy with one of the extras cuda12 or cuda13 and the CUDA libraries (nvidia-cublas)"
    raise CublasError("expected cuBLAS for a predefined matmul, got none", where="cuBLAS", hint=hint)
