"""Calls of an executable on the user's tensors.

    optimized = Optimized(load(directory))
    y = optimized(x, w)            # torch tensors, CuPy arrays or NumPy arrays
    optimized(x, w, out=y)

On a GPU a call checks the tensors and launches on the current stream of torch or CuPy, read at every call. After the
first call it neither waits nor compiles, and allocates only outputs, by the allocator of the inputs' library; so it can
be captured in a CUDA graph. ``prepare`` does the work of the first call.

Intermediate tensors lie in one workspace for each device, which belongs to the object. Calls on several streams are
ordered by an event; a captured call is not, so do not replay it while another call of the same object runs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias

from mirage_formal.codegen.executable import Executable, read_and_written_values
from mirage_formal.device.runtime import LoadedExecutable, arch_of, device_count
from mirage_formal.device.tensors import (
    TensorError,
    TensorLibrary,
    TensorSlot,
    adapter,
    bits_of_floats,
    floats_of,
    kind_of,
    raw_elements,
    store_host,
    tensor_from_bits,
    to_memory_order,
)
from mirage_formal.frontend.argument_checks import user_frame
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import MirageError, UnsupportedError

Tensor: TypeAlias = Any

_NO_GPU: Final = (
    "no GPU with CuPy was found: computing by the reference semantics in float64 on the CPU, rounded to the element "
    "type of the outputs"
)


class NoDeviceWarning(UserWarning):
    """Warning: there is no GPU; results come from the reference semantics. Said once in a process."""


class Optimized:
    """A µGraph as a callable.

    Args:
        program: The program that it computes; its inputs and outputs are those of a call.
        build: Function that makes the executable for an architecture ("sm_90a"), at the first call on a GPU.
    """

    def __init__(self, program: KernelGraph, build: Callable[[str], Executable]) -> None:
        self.program = program
        self._build = build
        self._loaded: dict[int, LoadedExecutable] = {}
        self._kinds: dict[type, TensorLibrary] = {}
        self._specs: dict[TensorLibrary, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}
        self._apart: object = None
        self._lock = threading.Lock()
        types = kernel_types(program)
        aligned = [1] * len(types)
        self._inputs = [
            TensorSlot(f"input {item.name}", item.tensor, item.strides, align)
            for item, align in zip(program.inputs, aligned, strict=False)
        ]
        #: Band masks, which callers do not pass, by position; and those that kernels read, on each device.
        self._bands = {i: item.band for i, item in enumerate(program.inputs) if item.band is not None}
        self._masks: dict[int, dict[int, Any]] = {}
        self._given = self._passed_slots()
        self._outputs = [
            TensorSlot(f"out[{i}]", types[number], row_major(types[number].shape), 1)
            for i, number in enumerate(program.outputs)
        ]

    @classmethod
    def of(cls, executable: Executable) -> Optimized:
        """Return a callable of an existing executable; missing machine code is compiled when it is loaded."""
        return cls(executable.program, lambda arch: executable)

    def __call__(
        self,
        *tensors: Tensor,
        out: Tensor = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        stream: Any = None,
    ) -> Tensor:
        """Compute the outputs.

        Args:
            tensors: The inputs in order, all of one kind; or one list of them.
            out: Where to write: one tensor, or a list with one for each output. They must not overlap the inputs.
            inputs: The inputs as a list, instead of ``tensors``.
            outputs: The same as ``out``.
            stream: A stream of torch or CuPy, or its handle, to launch on instead of the current one; without a GPU it
                has no effect.

        Returns:
            Tensors of the inputs' kind: the output if there is one, else a tuple of them; for inputs given as a list, a
            list of all outputs.

        Raises:
            ShapeError, DTypeError, TensorError: An input or output does not fit; names it, and what was expected.
        """
        given, as_list = _arguments(tensors, inputs)
        if outputs is not None:
            if out is not None:
                raise TensorError("expected out or outputs, got both", where="out", hint="give one of them")
            out = outputs
        if len(given) != len(self._given):
            names = ", ".join(item.name for item in self.program.inputs if item.band is None)
            raise TensorError(f"expected {len(self._given)} inputs ({names}), got {len(given)}", where="inputs")
        kind = self._kind(given, out)
        results = None if out is None else list(out) if isinstance(out, list | tuple) else [out]
        if results is not None and len(results) != len(self._outputs):
            what = f"expected {len(self._outputs)} outputs, got {len(results)}"
            raise TensorError(what, where="out", hint="give a list with a tensor for each output")
        if stream is None or (kind.host and not device_count()):
            made = self._run_kernels(given, kind, results)
        else:
            with adapter(kind).on(stream):
                made = self._run_kernels(given, kind, results)
        return made if as_list else made[0] if len(made) == 1 else tuple(made)

    def on_torch(self, given: Sequence[Tensor]) -> Tensor:
        """Compute the outputs for torch tensors on a GPU, without the checks of a call for other kinds.

        Args:
            given: The inputs in order; as many as there are, all of them tensors of torch.

        Raises:
            ShapeError, DTypeError, TensorError: An input does not fit, or does not lie on the first one's GPU.
        """
        made = self._on_device(given, TensorLibrary.TORCH, None)
        return made[0] if len(made) == 1 else tuple(made)

    def prepare(self, device: int | None = None) -> None:
        """Build, compile, load and allocate for a device, the current one if None, so that calls need not.

        Raises:
            UnsupportedError: There is no GPU, or it cannot hold a kernel.
        """
        if not device_count():
            raise UnsupportedError(
                "expected a GPU and CuPy, got none", where="prepare", hint="run it on a machine with one"
            )
        if device is None:
            device = int(import_module("cupy").cuda.runtime.getDevice())
        self._load(device)

    def _run_kernels(self, given: Sequence[Tensor], kind: TensorLibrary, out: list[Tensor] | None) -> list[Tensor]:
        return self._on_host(given, kind, out) if kind.host else self._on_device(given, kind, out)

    def _kind(self, given: Sequence[Tensor], out: Tensor) -> TensorLibrary:
        """Return the common kind of all tensors of a call."""
        first = given[0]
        cls = type(first)
        kind = self._kinds.get(cls)
        if kind is not None and (kind is not TensorLibrary.TORCH or first.is_cuda):
            # Tensors of one class are of one kind; whether those of torch lie on one device is seen later.
            for value in given:
                if type(value) is not cls:
                    break
            else:
                if out is None or type(out) is cls:
                    return kind
                if type(out) is list and all([type(value) is cls for value in out]):
                    return kind
        kind = kind_of(first, self._given[0].where)
        for value, slot in zip(given, self._given, strict=True):
            if (other := kind_of(value, slot.where)) is not kind:
                what = f"expected a {kind.value} as the first input is, got a {other.value}"
                raise TensorError(what, where=slot.where, hint="give all inputs in one kind")
        for i, value in enumerate(() if out is None else out if isinstance(out, list | tuple) else (out,)):
            if (other := kind_of(value, f"out[{i}]")) is not kind:
                raise TensorError(f"expected a {kind.value} as the inputs are, got a {other.value}", where=f"out[{i}]")
        if kind is not TensorLibrary.TORCH_HOST:
            self._kinds[cls] = kind
        return kind

    # --- on a GPU ----------------------------------------------------------------------------------------------------

    def _load(self, device: int) -> LoadedExecutable:
        with self._lock:
            found = self._loaded.get(device)
            if found is None:
                executable = self._build(arch_of(device))
                found = LoadedExecutable(executable, device)
                self._slots(executable)
                self._loaded[device] = found
        return found

    def _slots(self, executable: Executable) -> None:
        """Set the alignments of inputs and outputs that the kernels require."""
        for i, slot in enumerate(self._inputs):
            self._inputs[i] = TensorSlot(slot.where, slot.tensor, slot.strides, max(executable.align(i), slot.align))
        self._given = self._passed_slots()
        for i, slot in enumerate(self._outputs):
            align = executable.align(executable.outputs[i])
            self._outputs[i] = TensorSlot(slot.where, slot.tensor, slot.strides, max(align, slot.align))
        self._specs.clear()

    def _on_device(self, given: Sequence[Tensor], kind: TensorLibrary, out: list[Tensor] | None) -> list[Tensor]:
        read = adapter(kind)
        device = read.device(given[0])
        loaded = self._loaded.get(device)
        if loaded is None:
            if not device_count():
                hint = "install CuPy with one of the extras cuda12 or cuda13"
                raise TensorError("expected CuPy to launch kernels on this GPU, got none", where="cupy", hint=hint)
            loaded = self._load(device)
        specs = self._specs.get(kind)
        if specs is None:
            specs = self._specs[kind] = (read.specs(self._given), read.specs(self._outputs))
        passed = read.addresses(given, specs[0], device)
        sources = self._add_band_masks(passed, device) if self._bands else passed
        made = read.empty(specs[1], device) if out is None else out
        targets = read.addresses(made, specs[1], device)
        if out is not None:
            together = (passed, targets)
            if self._apart != together:
                self._separate(passed, targets)
                self._apart = together
        loaded.run(sources, targets, read.stream(device))
        return made

    def _passed_slots(self) -> list[TensorSlot]:
        """Return the slots of the inputs that a caller passes, which excludes band masks."""
        return [slot for i, slot in enumerate(self._inputs) if i not in self._bands]

    def _add_band_masks(self, sources: Sequence[int], device: int) -> list[int]:
        """Return the addresses of all inputs, with this object's own band masks, made once for each device.

        A mask that no launch reads is not made: its address is 0, and no launch is passed it.
        """
        found = self._masks.get(device)
        if found is None:
            cupy, read = import_module("cupy"), _read_inputs(self._loaded[device].executable)
            with cupy.cuda.Device(device):
                found = {i: cupy.asarray(self._mask(i)) for i in self._bands if i in read}
            self._masks[device] = found
        every = list(sources)
        for i in self._bands:
            every.insert(i, found[i].data.ptr if i in found else 0)
        return every

    def _mask(self, i: int) -> Any:
        """Return the band mask that is input ``i`` as a contiguous NumPy array of bytes (uint8)."""
        from numpy import ascontiguousarray

        return ascontiguousarray(self._bands[i].mask(self._inputs[i].tensor.shape)).view("uint8")

    def _separate(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Refuse outputs that overlap an input or each other, because kernels read inputs while they write."""
        spans = [
            (start, start + slot.span, slot.where)
            for start, slot in zip((*sources, *targets), (*self._given, *self._outputs), strict=True)
        ]
        for i in range(len(sources), len(spans)):
            first, end, where = spans[i]
            for other, other_end, name in spans[:i]:
                if first < other_end and other < end:
                    hint = "give memory of its own, or leave out away"
                    raise TensorError(
                        f"expected memory apart from {name}, got overlapping memory", where=where, hint=hint
                    )

    # --- on the CPU --------------------------------------------------------------------------------------------------

    def _on_host(self, given: Sequence[Tensor], kind: TensorLibrary, out: list[Tensor] | None) -> list[Tensor]:
        bits = [raw_elements(value, kind, slot) for value, slot in zip(given, self._given, strict=True)]
        for i, value in enumerate(out or ()):
            raw_elements(value, kind, self._outputs[i])
        results = self._copied(bits) if device_count() else self._reference(bits)
        if out is None:
            return [
                tensor_from_bits(r, kind, slot.tensor.dtype) for r, slot in zip(results, self._outputs, strict=True)
            ]
        for value, result, slot in zip(out, results, self._outputs, strict=True):
            store_host(value, kind, result, slot)
        return out

    def _copied(self, bits: Sequence[Any]) -> list[Any]:
        """Run on the current device of CuPy, on copies of host tensors."""
        cupy = import_module("cupy")
        device = int(cupy.cuda.runtime.getDevice())
        loaded = self._load(device)
        given = [cupy.asarray(to_memory_order(b, slot)) for b, slot in zip(bits, self._given, strict=True)]
        targets = [cupy.empty(slot.span, dtype="uint8") for slot in self._outputs]
        loaded.run(
            self._add_band_masks([array.data.ptr for array in given], device),
            [array.data.ptr for array in targets],
            int(cupy.cuda.get_current_stream().ptr),
        )
        return [
            array.get().view(f"uint{8 * slot.tensor.dtype.bytes}").reshape(slot.tensor.shape)
            for array, slot in zip(targets, self._outputs, strict=True)
        ]

    def _reference(self, bits: Sequence[Any]) -> list[Any]:
        _say_no_gpu()
        from mirage_formal.semantics import float64_reference

        every = list(bits)
        for i in self._bands:
            every.insert(i, self._mask(i))
        arrays = [floats_of(b, slot.tensor.dtype) for b, slot in zip(every, self._inputs, strict=True)]
        results = float64_reference.run(self.program, arrays)
        return [bits_of_floats(r, slot.tensor.dtype) for r, slot in zip(results, self._outputs, strict=True)]


def _read_inputs(executable: Executable) -> frozenset[int]:
    """Return the inputs in whose memory some launch reads."""
    read = (value for launch in executable.launches for value in read_and_written_values(launch)[0])
    return frozenset(executable.base(value) for value in read)


@cache
def _say_no_gpu() -> None:
    frame = user_frame()
    path, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 1)
    warnings.warn_explicit(_NO_GPU, NoDeviceWarning, path, line)


def _arguments(tensors: tuple[Tensor, ...], inputs: Sequence[Tensor] | None) -> tuple[Sequence[Tensor], bool]:
    """Return the inputs, and whether they came as a list."""
    if inputs is not None:
        if tensors:
            raise TensorError("expected inputs once, got them by position and by name", where="inputs")
        return inputs, True
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        return tensors[0], True
    return tensors, False


__all__ = ["MirageError", "NoDeviceWarning", "Optimized", "TensorError"]
