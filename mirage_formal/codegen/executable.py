"""Executables: all data needed to run one µGraph on a GPU.

A directory holds launch.json, the CUDA C++ of every generated kernel, and machine code for some architectures.
Reading one needs msgspec only: no solver, no search, no code of the verifier. docs/kernels.md describes the files.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from mirage_formal.codegen.program.program import Program
from mirage_formal.graph.formats.json import embed, from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.storage_views import StorageLocation, storage_locations
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import (
    LAUNCH_FILE,
    Argument,
    Binary,
    JoinedKernel,
    KernelLaunch,
    Launch,
    LaunchRecord,
    ProductLaunch,
    TensorMapRecord,
    launched_kernels,
    write_atomic,
)
from mirage_formal.records.kernels import MAP_ALIGN
from mirage_formal.support import strict_json
from mirage_formal.support.errors import FormatError, RunError, UnsupportedError

SCHEMA: Final = "mirage_formal.launch"
VERSION: Final = 1
#: Workspace tensors start at multiples of this many bytes.
ALIGN: Final = 256
#: Bytes of the counter of a group of blocks.
COUNTER_BYTES: Final = 4
_MAX_BYTES: Final = 64 << 20
_MAX_GRID: Final = (2**31 - 1, 65535, 65535)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiled kernel: machine code, and its use of registers and memory.

    Attributes:
        cubin: Machine code for one architecture.
        registers: Registers per thread.
        spill_bytes: Bytes spilled to local memory, stores and loads together; 0 is the aim.
        stack_bytes: Stack frame per thread; above 0 a register array is indexed dynamically.
        shared_bytes: Static shared memory; the dynamic part of a launch is in Program.shared_bytes.
        log: Log of NVRTC and ptxas.
        compiler: Version of NVRTC in the machine code: equal versions make equal machine code.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    log: str
    compiler: str


@dataclass(frozen=True, slots=True)
class Executable:
    """One µGraph, ready to be loaded on a device.

    Attributes:
        digest: Digest of the µGraph.
        graph: The µGraph.
        program: The program.
        launches: The launches, in order.
        outputs: The value of each output.
        files: Contents of the sources and of the machine code.
    """

    digest: str
    graph: KernelGraph
    program: KernelGraph
    launches: tuple[Launch, ...]
    outputs: tuple[int, ...]
    files: dict[str, bytes]

    @property
    def values(self) -> tuple[DTensor, ...]:
        """Return the type of every value."""
        types = kernel_types(self.graph)
        extra = sorted({value for value in self.outputs if value >= len(types)})
        return (*types, *(types[self.graph.outputs[self.outputs.index(value)]] for value in extra))

    @property
    def sources(self) -> dict[str, str]:
        """Return the CUDA C++ of every generated kernel, by file."""
        names = [launch.source for launch in self.launches if isinstance(launch, KernelLaunch)]
        return {name: self.files[name].decode() for name in dict.fromkeys(names)}

    @property
    def source(self) -> str:
        """Return the CUDA C++ of all generated kernels, one after another."""
        return "\n".join(self.sources.values())

    def align(self, value: int) -> int:
        """Return the alignment in bytes that the kernels together require of a value and of its views."""
        wanted = (argument for launch in self._kernels() for argument in launch.arguments)
        return max((argument.align for argument in wanted if self.base(argument.value) == value), default=1)

    def strides(self, value: int) -> tuple[int, ...]:
        """Return the strides of a value in elements: an input's own, a view's in its base, row-major for all others."""
        return self.place(value).strides

    def base(self, value: int) -> int:
        """Return the value in whose memory a value lies: itself, unless it is a view."""
        return self.place(value).base

    def place(self, value: int) -> StorageLocation:
        """Return the memory layout of a value; copies of outputs are row-major."""
        known = storage_locations(self.graph)
        return known[value] if value < len(known) else StorageLocation(value, row_major(self.values[value].shape))

    def span(self, value: int) -> int:
        """Return the number of elements from the start of a value's base to the value's last element."""
        return self.place(value).span(self.values[value].shape)

    def _kernels(self) -> Iterator[KernelLaunch]:
        return iter(launched_kernels(self.launches))


def workspace(executable: Executable) -> tuple[dict[int, int], int]:
    """Return byte offsets of the values that are no inputs, outputs or views, and the total bytes."""
    offsets: dict[int, int] = {}
    end = 0
    for number, tensor in enumerate(executable.values):
        own = executable.base(number) == number
        if own and number >= len(executable.graph.inputs) and number not in executable.outputs:
            offsets[number] = end
            end += -(-tensor.bytes // ALIGN) * ALIGN
    return offsets, end


def counter_offsets(executable: Executable, start: int) -> tuple[dict[int, int], int]:
    """Return byte offsets of the counters of joined launches, by the launch's position, and the end behind them.

    Each joined launch has counters of its own. They are 0 when the memory is made, and after every launch.

    Args:
        executable: The executable.
        start: Offset of the first counter, a multiple of ``ALIGN``.
    """
    offsets: dict[int, int] = {}
    for number, launch in enumerate(executable.launches):
        if isinstance(launch, KernelLaunch) and launch.counters:
            offsets[number] = start
            start += -(-COUNTER_BYTES * launch.counters // ALIGN) * ALIGN
    return offsets, start


def kernel_launch(
    program: Program, operator: int, values: tuple[int, ...], source: str, text: str, cubins: dict[str, Binary]
) -> KernelLaunch:
    """Return the launch of a Program whose parameters are the given values, in order."""
    arguments = tuple(
        Argument(value, param.elements, param.align, param.written, param.given)
        for value, param in zip(values, program.params, strict=True)
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    threads, shared = program.launch_threads, program.shared_bytes
    return KernelLaunch(
        *(operator, program.name, program.grid, threads, shared, arguments, source, digest, cubins),
        dependent=program.dependent,
        maps=_tensor_maps(program) or msgspec.UNSET,
    )


def _tensor_maps(program: Program) -> tuple[TensorMapRecord, ...]:
    """Return the tensor maps of a Program, in order, each of a parameter by its position."""
    positions = {param.name: position for position, param in enumerate(program.params)}
    found = []
    for one in program.maps:
        position = positions[one.param]
        dtype: Literal["float16", "bfloat16"]
        dtype = "bfloat16" if program.params[position].dtype is DType.BFLOAT16 else "float16"
        found.append(TensorMapRecord(argument=position, dtype=dtype, rows=one.rows, stride=one.stride))
    return tuple(found)


def join_launch(
    launch: KernelLaunch, program: Program, operator: int, values: tuple[int, ...], counters: int
) -> KernelLaunch:
    """Return the launch of a kernel whose last blocks run another one.

    Args:
        launch: The launch of the first kernel.
        program: The second kernel.
        operator: Its operator.
        values: The values of its parameters, in order.
        counters: Number of groups of blocks.
    """
    own = kernel_launch(program, operator, values, launch.source, "", {})
    joined = JoinedKernel(operator, own.name, own.grid, own.shared_bytes, own.arguments, counters)
    return msgspec.structs.replace(launch, joined=joined)


# --- directories -----------------------------------------------------------------------------------------------------


def save_executable(executable: Executable, directory: Path) -> None:
    """Write an executable; launch.json comes last, since an earlier one would not match these files' digests."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in executable.files.items():
        write_atomic(directory / name, content)
    record = LaunchRecord(
        schema=SCHEMA,
        version=VERSION,
        digest=executable.digest,
        graph=embed(executable.graph),
        program=embed(executable.program),
        launches=executable.launches,
        outputs=executable.outputs,
    )
    write_atomic(directory / LAUNCH_FILE, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def load_executable(directory: Path) -> Executable:
    """Return the executable of a directory.

    Raises:
        RunError: There is none.
        FormatError: It is malformed, contradicts its µGraph, or a file differs from its digest.
    """
    path = directory / LAUNCH_FILE
    if not path.is_file():
        hint = "python -m mirage_formal.kernel_build RUN_DIR makes them, where the solvers are installed"
        raise RunError("expected generated kernels (launch.json), got none", where=str(directory), hint=hint)
    where = str(path)
    try:
        data = _read(path)
        strict_json.load_strict_json(data, where, hint="build the kernels again")
        record = msgspec.json.decode(data, type=LaunchRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"expected a launch record, got: {error}", where=where) from None
    if (record.schema, record.version) != (SCHEMA, VERSION):
        got = f"{record.schema!r} version {record.version}"
        raise FormatError(f"expected {SCHEMA!r} version {VERSION}, got {got}", where=where)
    graph, program = from_json(bytes(record.graph), where), from_json(bytes(record.program), where)
    files = {name: _read_verified(directory, name, digest) for name, digest in _files(record.launches, where)}
    executable = Executable(record.digest, graph, program, record.launches, record.outputs, files)
    _check(executable, where)
    return executable


def _read(path: Path) -> bytes:
    if path.stat().st_size > _MAX_BYTES:
        raise FormatError(f"expected at most {_MAX_BYTES} bytes, got more", where=str(path))
    return path.read_bytes()


def _files(launches: tuple[Launch, ...], where: str) -> Iterator[tuple[str, str]]:
    for launch in launches:
        if isinstance(launch, KernelLaunch):
            yield from ((launch.source, launch.sha256), *((b.file, b.sha256) for b in launch.cubins.values()))
            for kernel in launch.kernels:
                if _NAME.fullmatch(kernel.name) is None:
                    raise FormatError(f"expected the name of a kernel, got {kernel.name[:60]!r}", where=where)


def _read_verified(directory: Path, name: str, digest: str) -> bytes:
    path = directory / name
    if _FILE.fullmatch(name) is None or path.is_symlink() or not path.is_file():
        raise FormatError(f"expected a file of this directory, got {name[:60]!r}", where=str(directory / LAUNCH_FILE))
    content = _read(path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise FormatError("expected the file that launch.json was written with, got another", where=str(path))
    return content


def _check(executable: Executable, where: str) -> None:
    """Reject launches that contradict the µGraph: sizes of arguments, values that no launch has written."""

    def refuse(what: str) -> None:
        raise FormatError(what, where=where, hint="build the kernels again")

    types = kernel_types(executable.graph)
    extra = [value for value in executable.outputs if value >= len(types)]
    if len(executable.outputs) != len(executable.graph.outputs) or sorted(set(extra)) != list(
        range(len(types), len(types) + len(extra))
    ):
        refuse(f"expected a value for each output, got {list(executable.outputs)}")
    values = executable.values
    known = set(range(len(executable.graph.inputs)))
    before: Launch | None = None
    for number, launch in enumerate(executable.launches):
        reads, writes = read_and_written_values(launch)
        if not all(0 <= value < len(values) for value in (*reads, *writes)):
            refuse(f"launch {number}: expected values below {len(values)}, got {[*reads, *writes]}")
        if missing := sorted({executable.base(value) for value in reads} - known):
            refuse(f"launch {number}: reads value {missing[0]}, which nothing has written")
        bases = {executable.base(value) for value in writes}
        if again := sorted(bases & known):
            refuse(f"launch {number}: writes value {again[0]} a second time")
        known |= bases
        if isinstance(launch, KernelLaunch):
            for kernel in launch.kernels:
                _check_kernel(executable, kernel, number, refuse)
            if launch.counters > math.prod(launch.grid):
                refuse(f"launch {number}: expected at most a counter for each block, got {launch.counters}")
            if launch.counters and len(launch.passed) == sum(len(one.arguments) for one in launch.kernels):
                refuse(f"launch {number}: expected a joined kernel that reads what the launch writes")
            if launch.counters and launch.tensor_maps:
                refuse(f"launch {number}: expected a joined launch without tensor maps, got {len(launch.tensor_maps)}")
            if launch.dependent and not isinstance(before, KernelLaunch):
                got = "of the first launch" if before is None else "behind a product"
                refuse(f"launch {number}: expected dependent only behind a generated kernel, got it {got}")
        before = launch
    if missing := sorted(set(executable.outputs) - known):
        refuse(f"no launch writes output value {missing[0]}")


def _check_kernel(executable: Executable, launch: KernelLaunch, number: int, refuse: object) -> None:
    assert callable(refuse)
    if any(not 1 <= n <= most for n, most in zip(launch.grid, _MAX_GRID, strict=True)) or not (
        1 <= launch.threads <= 1024 and 0 <= launch.shared_bytes <= 1 << 20
    ):
        refuse(f"launch {number}: expected launch dimensions that a GPU has, got {launch.grid} x {launch.threads}")
    for argument in launch.arguments:
        span = executable.span(argument.value)
        if argument.elements != span or argument.align not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            got = f"{argument.elements} aligned to {argument.align}"
            refuse(f"launch {number}: expected {span} elements of value {argument.value}, got {got}")
        if argument.given and executable.base(argument.value) >= len(executable.graph.inputs):
            refuse(f"launch {number}: expected an input that is read ahead of the wait, got value {argument.value}")
    for one in launch.tensor_maps:
        viewed = launch.arguments[one.argument] if one.argument < len(launch.arguments) else None
        if viewed is None or viewed.written or viewed.align % MAP_ALIGN:
            what = f"an argument that is read and aligned to {MAP_ALIGN} bytes"
            refuse(f"launch {number}: expected a tensor map of {what}, got argument {one.argument}")
        elif executable.values[viewed.value].dtype.value != one.dtype or viewed.elements % one.stride:
            got = f"{viewed.elements} of {executable.values[viewed.value].dtype.value}"
            refuse(f"launch {number}: expected rows of {one.stride} elements of {one.dtype}, got {got}")


def without_dependent_launches(executable: Executable) -> Executable:
    """Return the executable without dependent launches: each begins when the previous one has ended.

    This is right for all kernels: a wait for a launch that has ended returns at once.
    """
    launches = tuple(
        msgspec.structs.replace(launch, dependent=False) if isinstance(launch, KernelLaunch) else launch
        for launch in executable.launches
    )
    return replace(executable, launches=launches)


def expect_no_tensor_maps(executable: Executable) -> None:
    """Refuse an executable whose launches pass tensor maps, where other launch code than this package's is written.

    Raises:
        UnsupportedError: A launch has tensor maps; names its kernel.
    """
    for launch in executable.launches:
        if isinstance(launch, KernelLaunch) and launch.tensor_maps:
            what = f"expected kernels whose arguments are addresses, got {launch.name} with tensor maps"
            hint = (
                "its tensor maps are encoded by the driver for each address, which no loader does; name another one "
                "with --candidate, or replace tuned kernels by ones without maps: mirage-formal tools build DIR --force"
            )
            raise UnsupportedError(what, where=launch.name, hint=hint)


def read_and_written_values(launch: Launch) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the values that a launch reads of what was there before, and those that it writes."""
    if isinstance(launch, ProductLaunch):
        return (launch.a, launch.b), (launch.result,)
    read = tuple(argument.value for argument in launch.passed if not argument.written)
    return read, tuple(argument.value for argument in launch.passed if argument.written)


def moved_bytes(graph: KernelGraph) -> int:
    """Return the fewest bytes that a program moves through device memory: each input and output once, no band mask."""
    types = kernel_types(graph)
    read = sum(item.tensor.bytes for item in graph.inputs if item.band is None)
    return read + sum(types[i].bytes for i in set(graph.outputs))


def describe(launch: Launch, graph: KernelGraph) -> str:
    """Return a short description of a launch."""
    if isinstance(launch, ProductLaunch):
        return "matmul (cuBLAS)"
    defined = launch.operator >= 0 and isinstance(graph.ops[launch.operator], GraphDefined)
    x, y, z = launch.grid
    what = "graph-defined" if defined else "predefined" if launch.operator >= 0 else "copy"
    shape = f"{x}x{y}x{z} blocks of {launch.threads}, {launch.shared_bytes} bytes shared"
    more = ", dependent" if launch.dependent else ""
    for then in launch.kernels[1:]:
        more += f", and {then.name} (graph-defined) by the last blocks of {launch.counters} groups"
    return f"{launch.name} ({what}): {shape}{more}"


__all__ = [
    "ALIGN",
    "COUNTER_BYTES",
    "LAUNCH_FILE",
    "SCHEMA",
    "VERSION",
    "Argument",
    "Binary",
    "Executable",
    "KernelLaunch",
    "Launch",
    "LaunchRecord",
    "ProductLaunch",
    "counter_offsets",
    "describe",
    "expect_no_tensor_maps",
    "join_launch",
    "kernel_launch",
    "load_executable",
    "moved_bytes",
    "read_and_written_values",
    "save_executable",
    "without_dependent_launches",
    "workspace",
]
