"""Launch tables: all launches of an executable as plain data, which loaders in any language can follow.

Addresses of tensors are given as *places*: a kind of memory, a number and an offset in bytes, for example
("input", 2, 0) or ("workspace", 0, 4096).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal

import msgspec

from mirage_formal.codegen.executable import (
    ALIGN,
    Executable,
    KernelLaunch,
    ProductLaunch,
    expect_no_tensor_maps,
    read_and_written_values,
    workspace,
)
from mirage_formal.device.cublas import WORKSPACE_BYTES, product_calls
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

#: NumPy's names of raw elements; those of bfloat16 are its bits, those of a mask are 0 and 1.
NUMPY_TYPES: Final = {
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "uint16",
    DType.FLOAT32: "float32",
    DType.BOOL: "uint8",
}

Place = tuple[Literal["input", "output", "workspace"], int, int]


class TensorEntry(msgspec.Struct, frozen=True):
    """An input or output: what a caller passes.

    Attributes:
        name: Its name.
        dtype: Element type, as PyTorch names it.
        numpy: Element type of raw elements, as NumPy names it.
        shape: Extents.
        strides: Strides in elements.
        span: Elements from its first to its last one in memory.
        bytes: Bytes of an element.
        align: Alignment of its first element in bytes.
        band: Of a band mask (element (i, j) is 1 where lower <= j - i <= upper), lower and upper; else None.
    """

    name: str
    dtype: str
    numpy: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: int
    bytes: int
    align: int
    band: tuple[int | None, int | None] | None = None


class LaunchTable(msgspec.Struct, frozen=True):
    """All launches of an executable, in order.

    Attributes:
        name: Prefix of its C functions.
        inputs, outputs: Tensors of a call.
        workspace_bytes: Device memory for what lies between kernels, aligned to 256 bytes.
        library_workspace: Offset of 32 MiB of it that cuBLAS uses; None without products.
        headers: Headers of the kernels, below ``include``.
        launches: Either a kernel with its file, launch dimensions, arguments and whether it may start before the launch
            before has ended; or the operands of a call of cublasGemmStridedBatchedEx, as
            ``device.cublas.ProductCall`` has them.
    """

    name: str
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    workspace_bytes: int
    library_workspace: int | None
    headers: tuple[str, ...]
    launches: tuple[dict[str, Any], ...]


def call_inputs(executable: Executable) -> tuple[int, ...]:
    """Return the numbers of the inputs that a caller passes: all but band masks that no launch reads."""
    read = {executable.base(value) for launch in executable.launches for value in read_and_written_values(launch)[0]}
    return tuple(i for i, item in enumerate(executable.graph.inputs) if item.band is None or i in read)


def launch_table(executable: Executable, name: str, headers: tuple[str, ...]) -> LaunchTable:
    """Return the launch table of an executable.

    Raises:
        UnsupportedError: A launch is joined, or has tensor maps.
    """
    expect_no_tensor_maps(executable)
    for launch in executable.launches:
        if isinstance(launch, KernelLaunch) and launch.counters:
            names = " and ".join(one.name for one in launch.kernels)
            hint = (
                "its counters begin at 0, which no loader sees to; mirage-formal tools build RUN_DIR joins no kernels"
            )
            raise UnsupportedError(
                f"expected a kernel for each launch, got {names} in one", where=launch.name, hint=hint
            )
    passed, (offsets, end) = call_inputs(executable), workspace(executable)

    def place(value: int, offset: int = 0) -> Place:
        base = executable.base(value)
        if base in executable.outputs:
            return ("output", executable.outputs.index(base), offset)
        return ("input", passed.index(base), offset) if base in passed else ("workspace", 0, offsets[base] + offset)

    launches: list[dict[str, Any]] = []
    for launch in executable.launches:
        if isinstance(launch, KernelLaunch):
            launches.append(
                {
                    "kernel": launch.name,
                    "file": launch.source,
                    "grid": launch.grid,
                    "threads": launch.threads,
                    "shared_bytes": launch.shared_bytes,
                    "starts_early": launch.dependent,
                    "arguments": [place(argument.value) for argument in launch.arguments],
                }
            )
        else:
            launches += _products(executable, launch, place)
    products = any(isinstance(launch, ProductLaunch) for launch in executable.launches)
    items = executable.graph.inputs
    return LaunchTable(
        name,
        tuple(_entry(executable, i, items[i].name or f"x{i}") for i in passed),
        tuple(_entry(executable, value, f"output{i}") for i, value in enumerate(executable.outputs)),
        -(-end // ALIGN) * ALIGN + (WORKSPACE_BYTES if products else 0),
        end if products else None,
        headers,
        tuple(launches),
    )


def _entry(executable: Executable, value: int, name: str) -> TensorEntry:
    tensor, items = executable.values[value], executable.graph.inputs
    band = items[value].band if value < len(items) else None
    return TensorEntry(
        name,
        tensor.dtype.value,
        NUMPY_TYPES[tensor.dtype],
        tensor.shape,
        executable.strides(value),
        executable.span(value),
        tensor.dtype.bytes,
        executable.align(value),
        None if band is None else (band.lower, band.upper),
    )


def _products(executable: Executable, launch: ProductLaunch, place: Any) -> list[dict[str, Any]]:
    numbers = (launch.a, launch.b, launch.result)
    values, places = executable.values, [executable.place(number) for number in numbers]
    found = []
    for call in product_calls(values[launch.a], values[launch.b], (places[0].strides, places[1].strides)):
        size = values[launch.a].dtype.bytes
        offsets = [one.offset * size + start for one, start in zip(places, call.starts, strict=True)]
        operands = [place(number, offset) for number, offset in zip(numbers, offsets, strict=True)]
        found.append({"operands": operands, **{k: v for k, v in asdict(call).items() if k != "starts"}})
    return found


__all__ = ["NUMPY_TYPES", "LaunchTable", "Place", "TensorEntry", "call_inputs", "launch_table"]
