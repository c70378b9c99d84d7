"""The user's tensors (CuPy arrays, torch tensors, NumPy arrays), and their checks against a kernel's requirements.

Device tensors are used in place: their address, shape and strides are read, nothing is converted. Host tensors (NumPy
arrays, torch tensors on the CPU) are copied. Neither CuPy nor torch is imported before the user has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from mirage_formal.device.elements import RAW
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.support.errors import DTypeError, MirageError, ShapeError


class TensorError(MirageError):
    """Error: a tensor has a kind, device, strides or address that a kernel cannot use."""


class TensorLibrary(Enum):
    """Libraries of tensors, with the memory that holds them: torch and CuPy on a GPU, NumPy and torch on the CPU."""

    TORCH = "torch tensor on a GPU"
    CUPY = "CuPy array"
    NUMPY = "NumPy array"
    TORCH_HOST = "torch tensor on the CPU"

    @property
    def host(self) -> bool:
        """Return whether it lies in the memory of the CPU."""
        return self in (TensorLibrary.NUMPY, TensorLibrary.TORCH_HOST)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Required form of one input or output.

    Attributes:
        where: Name in messages.
        tensor: Shape and element type.
        strides: Strides in elements.
        align: Alignment of its first element in bytes.
    """

    where: str
    tensor: DTensor
    strides: tuple[int, ...]
    align: int

    @property
    def span(self) -> int:
        """Return the bytes from its first to its last element."""
        steps = zip(self.tensor.shape, self.strides, strict=True)
        return (1 + sum((n - 1) * s for n, s in steps)) * self.tensor.dtype.bytes


def kind_of(value: object, where: str) -> TensorLibrary:
    """Return the kind of a tensor: the library that made it, and the memory that it lies in.

    Raises:
        TensorError: It is a tensor of no supported library.
    """
    for name, attribute in (("torch", "Tensor"), ("cupy", "ndarray"), ("numpy", "ndarray")):
        cls = getattr(sys.modules.get(name), attribute, None)
        if cls is not None and isinstance(value, cls):
            if name == "torch":
                return TensorLibrary.TORCH if value.is_cuda else TensorLibrary.TORCH_HOST
            return TensorLibrary.CUPY if name == "cupy" else TensorLibrary.NUMPY
    hint = "give torch tensors, CuPy arrays or NumPy arrays"
    raise TensorError(f"expected a tensor, got {type(value).__name__}", where=where, hint=hint)


class Adapter(Protocol):
    """Interface that reads and makes GPU tensors of one kind."""

    def device(self, value: Any) -> int:
        """Return the number of the GPU that a tensor is on."""

    def specs(self, slots: Sequence[TensorSlot]) -> tuple[Any, ...]:
        """Return the values that ``addresses`` compares tensors with, in the terms of the tensor library; made once."""

    def addresses(self, values: Sequence[Any], specs: tuple[Any, ...], device: int) -> list[int]:
        """Return the addresses of tensors' first elements.

        Raises:
            MirageError: One does not fit its slot.
        """

    def empty(self, specs: tuple[Any, ...], device: int) -> list[Any]:
        """Return new row-major tensors, from the allocator of this kind's library."""

    def stream(self, device: int) -> int:
        """Return the handle of the current stream of a GPU."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one.

        Args:
            stream: A stream of torch or CuPy, or its handle.

        Raises:
            TensorError: It is none of these.
        """


@cache
def adapter(kind: TensorLibrary) -> Adapter:
    """Return the adapter of a kind of tensors; host tensors are copied with CuPy."""
    return Torch() if kind is TensorLibrary.TORCH else Cupy()


def handle_of(stream: Any) -> int:
    """Return the handle of a stream of torch or CuPy, or the handle itself.

    Raises:
        TensorError: It is none of these.
    """
    for found in (stream, getattr(stream, "cuda_stream", None), getattr(stream, "ptr", None)):
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    hint = "give a stream of torch or CuPy, or its handle; left out, it is the current one"
    raise TensorError(f"expected a stream, got {type(stream).__name__}", where="stream", hint=hint)


class Torch:
    """Adapter for torch tensors."""

    def __init__(self) -> None:
        self.torch = import_module("torch")
        self._devices: dict[int, Any] = {}
        # The public function allocates an object in each call.
        self._raw_stream = getattr(getattr(self.torch, "_C", None), "_cuda_getCurrentRawStream", None)

    def device(self, value: Any) -> int:
        """Implement ``Adapter.device``."""
        return int(value.get_device())

    def specs(self, slots: Sequence[TensorSlot]) -> tuple[Any, ...]:
        """Implement ``Adapter.specs``."""
        return tuple((s.tensor.shape, s.strides, getattr(self.torch, s.tensor.dtype.value), s.align, s) for s in slots)

    def addresses(self, values: Sequence[Any], specs: tuple[Any, ...], device: int) -> list[int]:
        """Implement ``Adapter.addresses``."""
        found = []
        for value, (shape, strides, dtype, align, slot) in zip(values, specs, strict=True):
            address = value.data_ptr()
            if (
                value.dtype is not dtype
                or value.shape != shape
                or value.get_device() != device
                or (value.requires_grad and self.torch.is_grad_enabled())
                or (value.stride() != strides and not same_strides(shape, value.stride(), strides))
                or address % align
            ):
                name = str(value.dtype).removeprefix("torch.")
                got = _GivenTensor(tuple(value.shape), name, value.get_device(), tuple(value.stride()), address)
                _refuse(slot, got, device)
                reject_gradient(value, slot)
            found.append(address)
        return found

    def empty(self, specs: tuple[Any, ...], device: int) -> list[Any]:
        """Implement ``Adapter.empty``."""
        place = self._devices.get(device)
        if place is None:
            place = self._devices[device] = self.torch.device("cuda", device)
        return [self.torch.empty(spec[0], dtype=spec[2], device=place) for spec in specs]

    def stream(self, device: int) -> int:
        """Implement ``Adapter.stream``."""
        if self._raw_stream is not None:
            return int(self._raw_stream(device))
        return int(self.torch.cuda.current_stream(device).cuda_stream)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Implement ``Adapter.on``."""
        own = hasattr(stream, "cuda_stream")
        found: AbstractContextManager[Any] = self.torch.cuda.stream(
            stream if own else self.torch.cuda.ExternalStream(handle_of(stream))
        )
        return found


class Cupy:
    """Adapter for CuPy arrays."""

    def __init__(self) -> None:
        self.cupy = import_module("cupy")
        self._get_device = self.cupy.cuda.runtime.getDevice
        self._get_stream = self.cupy.cuda.get_current_stream

    def device(self, value: Any) -> int:
        """Implement ``Adapter.device``."""
        return int(value.data.device_id)

    def specs(self, slots: Sequence[TensorSlot]) -> tuple[Any, ...]:
        """Implement ``Adapter.specs``."""
        return tuple(
            (
                s.tensor.shape,
                tuple(step * s.tensor.dtype.bytes for step in s.strides),
                numpy_dtype(s.tensor.dtype),
                s.align,
                s,
            )
            for s in slots
        )

    def addresses(self, values: Sequence[Any], specs: tuple[Any, ...], device: int) -> list[int]:
        """Implement ``Adapter.addresses``."""
        found = []
        for value, (shape, strides, dtype, align, slot) in zip(values, specs, strict=True):
            memory = value.data
            address = memory.ptr
            if (
                value.dtype != dtype
                or value.shape != shape
                or memory.device_id != device
                or (value.strides != strides and not same_strides(shape, value.strides, strides))
                or address % align
            ):
                own = tuple(step // value.dtype.itemsize for step in value.strides)
                _refuse(slot, _GivenTensor(value.shape, value.dtype.name, memory.device_id, own, address), device)
            found.append(address)
        return found

    def empty(self, specs: tuple[Any, ...], device: int) -> list[Any]:
        """Implement ``Adapter.empty``."""
        if self._get_device() == device:
            return [self.cupy.empty(spec[0], spec[2]) for spec in specs]
        with self.cupy.cuda.Device(device):
            return [self.cupy.empty(spec[0], spec[2]) for spec in specs]

    def stream(self, device: int) -> int:
        """Implement ``Adapter.stream``."""
        return int(self._get_stream().ptr)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Implement ``Adapter.on``."""
        found: AbstractContextManager[Any] = self.cupy.cuda.ExternalStream(handle_of(stream))
        return found


def same_strides(shape: Shape, a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether strides agree along every dim of more than one element."""
    return all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True))


class _GivenTensor(NamedTuple):
    """A user's tensor: shape, element type, device (negative is the CPU), strides in elements, address."""

    shape: Shape
    dtype: str
    device: int
    strides: tuple[int, ...]
    address: int


def _refuse(slot: TensorSlot, got: _GivenTensor, wanted: int) -> None:
    """Raise the error of a tensor that does not fit its slot; do nothing if it fits."""
    check_type(slot, tuple(got.shape), got.dtype)
    if got.device != wanted:
        hint = "move all tensors to one device"
        on = f"GPU {got.device}" if got.device >= 0 else "the CPU"
        raise TensorError(f"expected a tensor on GPU {wanted}, got one on {on}", where=slot.where, hint=hint)
    if not same_strides(got.shape, got.strides, slot.strides):
        hint = "make it contiguous" if slot.strides == row_major(slot.tensor.shape) else "lay it out as it was declared"
        what = f"expected strides {list(slot.strides)}, got {list(got.strides)}"
        raise TensorError(what, where=slot.where, hint=hint)
    if got.address % slot.align:
        what = f"expected an address that is a multiple of {slot.align} bytes, got {got.address:#x}"
        raise TensorError(what, where=slot.where, hint="clone the tensor: a view may start anywhere")


def reject_gradient(value: Any, slot: TensorSlot) -> None:
    """Refuse a torch tensor, on any device, that requires a gradient, because none is computed.

    Raises:
        TensorError: Gradients are being recorded, and the tensor requires one.
    """
    if value.requires_grad and import_module("torch").is_grad_enabled():
        what = "expected a tensor that requires no gradient, got one that does while gradients are recorded"
        hint = "call it under torch.no_grad() or torch.inference_mode(), or detach the tensor: it computes no gradient"
        raise TensorError(what, where=slot.where, hint=hint)


def check_type(slot: TensorSlot, shape: Shape, dtype: str) -> None:
    """Refuse a wrong shape or element type.

    Raises:
        ShapeError: The shape is wrong.
        DTypeError: The element type is wrong.
    """
    if shape != slot.tensor.shape:
        what = f"expected shape {list(slot.tensor.shape)}, got {list(shape)}"
        raise ShapeError(what, where=slot.where, hint="kernels are made for the declared shapes only")
    if dtype != slot.tensor.dtype.value:
        what = f"expected elements of {slot.tensor.dtype.value}, got {dtype}"
        raise DTypeError(what, where=slot.where, hint="convert the tensor yourself; nothing is converted silently")


# --- host tensors ----------------------------------------------------------------------------------------------------

_BFLOAT_HINT: Final = "NumPy has no bfloat16 of its own: install ml_dtypes, or give torch tensors"


def numpy_dtype(dtype: DType) -> Any:
    """Return the NumPy dtype of an element type.

    Raises:
        DTypeError: It is bfloat16 and ml_dtypes is not installed.
    """
    if dtype is not DType.BFLOAT16:
        return import_module("numpy").dtype(dtype.value)
    try:
        return import_module("numpy").dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise DTypeError("expected a bfloat16 of NumPy, got none", where="dtype", hint=_BFLOAT_HINT) from None


#: Integer types of torch, by size in bytes.
SIGNED: Final = {1: "uint8", 2: "int16", 4: "int32"}


def raw_elements(value: Any, kind: TensorLibrary, slot: TensorSlot) -> Any:
    """Return the elements of a host tensor as an array of raw unsigned integers, of the tensor's shape.

    Raises:
        ShapeError, DTypeError: It does not fit the slot.
        TensorError: As in ``reject_gradient``.
    """
    np = import_module("numpy")
    size = slot.tensor.dtype.bytes
    raw = np.dtype(RAW[size])
    if kind is TensorLibrary.NUMPY:
        check_type(slot, value.shape, value.dtype.name)
        return np.ascontiguousarray(value).view(raw).reshape(value.shape)
    torch = import_module("torch")
    check_type(slot, tuple(value.shape), str(value.dtype).removeprefix("torch."))
    reject_gradient(value, slot)
    integer = getattr(torch, SIGNED[size])
    return value.detach().contiguous().view(integer).numpy().view(raw)


def tensor_from_bits(bits: Any, kind: TensorLibrary, dtype: DType) -> Any:
    """Return a host tensor of a kind with these raw elements."""
    if kind is TensorLibrary.NUMPY:
        return bits.view(numpy_dtype(dtype))
    torch = import_module("torch")
    return torch.from_numpy(bits.view(SIGNED[dtype.bytes])).view(getattr(torch, dtype.value))


def store_host(value: Any, kind: TensorLibrary, bits: Any, slot: TensorSlot) -> None:
    """Write raw elements into the user's host tensor ``value``, which must fit the slot."""
    raw_elements(value, kind, slot)
    if kind is TensorLibrary.NUMPY:
        value[...] = tensor_from_bits(bits, kind, slot.tensor.dtype)
    else:
        # Only in this mode may tensors be written that were made in it; what is recorded was refused above.
        with import_module("torch").inference_mode():
            value.copy_(tensor_from_bits(bits, kind, slot.tensor.dtype))


def floats_of(bits: Any, dtype: DType) -> Any:
    """Convert raw elements to float64."""
    np = import_module("numpy")
    if dtype is DType.BOOL:
        return (bits != 0).astype(np.float64)
    if dtype is DType.BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(np.dtype(dtype.value)).astype(np.float64)


def bits_of_floats(values: Any, dtype: DType) -> Any:
    """Round float64 to the nearest elements, ties to even, as raw elements."""
    np = import_module("numpy")
    values = np.ascontiguousarray(values)
    if dtype is DType.BOOL:
        return (values != 0).astype(np.uint8)
    with np.errstate(over="ignore"):
        if dtype is not DType.BFLOAT16:
            return values.astype(np.dtype(dtype.value)).view(RAW[dtype.bytes]).reshape(values.shape)
        # Rounding to float32 first could round twice; to odd instead, it cannot.
        single = values.astype(np.float32)
        bits = single.view(np.uint32).copy().reshape(values.shape)
        back = single.astype(np.float64).reshape(values.shape)
    inexact = np.isfinite(back) & (back != values)
    toward = np.where(inexact & (np.abs(back) > np.abs(values)), np.uint32(1), np.uint32(0))
    bits = np.where(inexact, (bits - toward) | np.uint32(1), bits)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(back), np.uint16(0x7FC0), rounded)


def to_memory_order(bits: Any, slot: TensorSlot) -> Any:
    """Return raw elements in the memory order of the slot's strides, as bytes; gaps are zero."""
    np = import_module("numpy")
    if slot.strides == row_major(slot.tensor.shape):
        return np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
    out = np.zeros(slot.span // slot.tensor.dtype.bytes, bits.dtype)
    steps = tuple(s * out.itemsize for s in slot.strides)
    np.lib.stride_tricks.as_strided(out, slot.tensor.shape, steps)[...] = bits
    return out.view(np.uint8)
