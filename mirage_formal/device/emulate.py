"""CPU emulation of a Program: its CUDA C++ text, compiled by g++ against gpu/emulator.

The emulator runs one fiber per CUDA thread and checks every access: bounds, alignment, initialisation, data races
between barriers, asynchronous copies read before their wait, divergence at barriers, elements of outputs written twice
or never. A fault is raised as EmulationFault. gpu/emulator/runtime.h describes the method.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.cache.cache_directory import Cache, cache_root
from mirage_formal.cache.lock import lock_directory
from mirage_formal.codegen.cuda_printer import CTYPES, emit_cuda
from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.joined_launches.joined_printer import emit_launched
from mirage_formal.codegen.program.instruction_count import count_statements
from mirage_formal.codegen.program.program import Param, Program
from mirage_formal.graph.types import DType
from mirage_formal.records.store_entry import CacheEntry
from mirage_formal.support.errors import MirageError
from mirage_formal.support.resources import data_dir

if TYPE_CHECKING:
    import numpy as np

_FLAGS: Final = ("-std=c++17", "-ffp-contract=off", "-w")
#: Optimisation levels for kernels with little and with much work. Optimisation takes most of the compile time: kernels
#: of the examples compile in 0.6 s with -O2 and 0.25 s with -Og, and run up to 2.6 times as fast, in 2.7 ns a
#: statement.
_LITTLE, _MUCH = "-Og", "-O2"
_WORTH_IT: Final = 1 << 24
_LIBRARY: Final = ("-shared", "-fPIC", "-fvisibility=hidden")
_SANITIZE: Final = (
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-DMF_EMULATE_MAIN",
)
_HINT: Final = "the emulator needs g++ 9 or later (or a compiler that takes its options, named by the variable CXX)"


class FaultKind(StrEnum):
    """Kind of fault that the emulator finds, in the order of gpu/emulator/runtime.h."""

    OUT_OF_BOUNDS = "out of bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised read"
    #: Shared memory read while an asynchronous copy to it is in flight: a wait is missing.
    PENDING = "missing wait"
    #: Shared memory read through a buffer other than the one of its last write.
    STALE = "stale buffer"
    RACE = "race"
    DIVERGENCE = "divergence"
    #: An output element written by two threads.
    DOUBLE_WRITE = "double write"
    #: An output element that is never written.
    UNWRITTEN = "never written"
    #: A result of another block read where this block is not the last one of that block's group.
    UNORDERED = "unordered read"
    #: A write that is not made visible before its block takes a ticket.
    UNPUBLISHED = "unpublished write"
    #: A group's counter that is not 0 behind the launch.
    COUNTER = "counter not reset"
    MEMORY = "out of memory"
    #: Threads wait for an item of a pipeline, or for the slot of one, for ever.
    DEADLOCK = "deadlock"
    #: An item of a pipeline that is acquired, copied, awaited or released out of order.
    ITEM_ORDER = "item out of order"
    #: Copies of an item that have more or fewer bytes than were announced.
    ITEM_BYTES = "bytes of an item"
    #: AddressSanitizer or UBSan stopped the program; only with sanitize=True.
    SANITIZER = "sanitizer"


@dataclass(frozen=True, slots=True)
class FaultLocation:
    """Location of an emulation fault.

    Attributes:
        buffer: The shared buffer, parameter or register array; empty if there is none.
        index: The element.
        thread: The thread, or None for the whole launch.
        other: The second thread of a race, if it is known.
        block: The block, (x, y, z).
        statement: The line of CUDA C++.
        line: Its number in the text that ``emit_cuda`` gives, from 1; 0 if there is none.
    """

    buffer: str = ""
    index: int = 0
    thread: int | None = None
    other: int | None = None
    block: tuple[int, int, int] = (0, 0, 0)
    statement: str = ""
    line: int = 0


class EmulationFault(MirageError):
    """Error: the first fault of a program in this run, with its ``kind`` and its location ``at``."""

    def __init__(self, kind: FaultKind, detail: str, kernel: str, at: FaultLocation) -> None:
        element = f" of {at.buffer}[{at.index}]" if at.buffer else ""
        who = f" by thread {at.thread} of block {at.block}" if at.thread is not None else ""
        pair = f" (the other thread is {at.other})" if at.other is not None else ""
        where = f"{kernel}, line {at.line}: {at.statement}" if at.statement else kernel
        super().__init__(f"{kind.value}{element}{who}: {detail}{pair}", where=where)
        self.kind = kind
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return _fault, (self.args, self.__dict__)


def _fault(arguments: tuple[str, ...], state: dict[str, Any]) -> EmulationFault:
    """Return a fault that was raised in another process."""
    fault = EmulationFault.__new__(EmulationFault, *arguments)
    fault.__dict__.update(state)
    return fault


class EmulatorError(MirageError):
    """Error: the emulator cannot run here, because there is no compiler, or it refuses the text."""

    several_lines = True


class _Fault(ctypes.Structure):
    """C structure mf::emu::Fault of gpu/emulator/runtime.h."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("line", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("other", ctypes.c_int),
        ("block", ctypes.c_int * 3),
        ("pad", ctypes.c_int),
        ("index", ctypes.c_longlong),
        ("loaded", ctypes.c_longlong),
        ("buffer", ctypes.c_char * 64),
        ("detail", ctypes.c_char * 160),
    )


#: What one launch runs.
Launchable = Program | JoinedProgram


def run_kernel(
    program: Launchable, arrays: Sequence[np.ndarray], *, sanitize: bool = False, seed: int = 0
) -> tuple[np.ndarray, ...]:
    """Run a kernel on the CPU emulator.

    Arrays have any shape with the parameter's number of elements and are converted to its dtype; results are flat.
    NumPy has no bfloat16: such parameters take float arrays, rounded to nearest even, or uint16 arrays of raw bits, and
    results are float32 arrays of their exact values. Results that are masks are uint8 arrays of zeros and ones.

    Args:
        program: The kernel, or two in a joined launch, whose blocks run in random order.
        arrays: For the parameters that it reads, in order.
        sanitize: Build with AddressSanitizer and UBSan and run in a process of its own.
        seed: Seed of the order of the blocks of a joined launch; and, where there is a producer, of whether it or the
            other threads run first, and of when the bytes of its copies arrive.

    Returns:
        Arrays for the parameters that it writes, in order.

    Raises:
        EmulationFault: The first fault of the run.
        EmulatorError: There is no compiler.
        ValueError: The arrays do not fit the parameters, or the program cannot be printed.
    """
    return run_source(program, emit_launched(program), arrays, sanitize=sanitize, seed=seed)


def run_source(
    program: Launchable,
    source: str,
    arrays: Sequence[np.ndarray],
    *,
    sanitize: bool = False,
    optimised: bool = False,
    seed: int = 0,
) -> tuple[np.ndarray, ...]:
    """Run any kernel text with the parameters and launch dimensions of ``program``; otherwise as ``run_kernel``.

    With ``optimised`` the text is compiled with -O2, whatever its amount of work.
    """
    level = _MUCH if optimised or _statements(program) > _WORTH_IT else _LITTLE
    return _emulate_kernel(program, source, arrays, sanitize=sanitize, level=level, seed=seed)[0]


def loaded_bytes(program: Program, arrays: Sequence[np.ndarray]) -> int:
    """Return the bytes that all blocks of a kernel read from device memory while it runs; see ``run_kernel``."""
    level = _MUCH if _statements(program) > _WORTH_IT else _LITTLE
    return _emulate_kernel(program, emit_cuda(program), arrays, sanitize=False, level=level, seed=0)[1]


def _statements(program: Launchable) -> float:
    every = (program.first, program.then) if isinstance(program, JoinedProgram) else (program,)
    return sum(map(count_statements, every))


def _emulate_kernel(
    program: Launchable, source: str, arrays: Sequence[np.ndarray], *, sanitize: bool, level: str, seed: int
) -> tuple[tuple[np.ndarray, ...], int]:
    """Return the outputs of a kernel, and the bytes that it reads."""
    data = _bind(program, arrays)
    built = _build(program, source, sanitize, level)
    fault = _run_process(built, program, data, seed) if sanitize else _run_library(built, data, seed)
    if fault.kind:
        _raise(fault, program, source)
    pairs = zip(data, program.params, strict=True)
    return tuple(_result(array, param) for array, param in pairs if param.written), int(fault.loaded)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _bind(program: Launchable, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return one contiguous flat array of raw elements for each parameter; outputs are filled with NaN."""
    import numpy as np

    read = [param for param in program.params if not param.written]
    if len(arrays) != len(read):
        raise ValueError(f"kernel {program.name}: expected {len(read)} arrays, got {len(arrays)}")
    given = iter(arrays)
    data = []
    for param in program.params:
        if param.written:
            raw = np.full(param.elements * param.dtype.bytes, 0xFF, np.uint8)
            data.append(_copy_aligned(raw.view(_raw_dtype(param.dtype))))
            continue
        array = np.asarray(next(given))
        if array.size != param.elements:
            raise ValueError(f"parameter {param.name}: expected {param.elements} elements, got {array.size}")
        data.append(_copy_aligned(_raw(array.reshape(-1), param.dtype)))
    return data


def _raw_dtype(dtype: DType) -> str:
    types = {DType.FLOAT16: "float16", DType.BFLOAT16: "uint16", DType.FLOAT32: "float32", DType.BOOL: "uint8"}
    return types[dtype]


def _raw(array: np.ndarray, dtype: DType) -> np.ndarray:
    import numpy as np

    if dtype is DType.BOOL:
        return np.asarray(np.not_equal(array, 0), np.uint8)
    if dtype is not DType.BFLOAT16:
        with np.errstate(over="ignore"):
            return np.asarray(array.astype(_raw_dtype(dtype)))
    if array.dtype == np.uint16:
        return array
    bits = array.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FFF), rounded)


def _copy_aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a multiple of 256 bytes, as allocations on a device do."""
    import numpy as np

    raw = np.empty(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    out = raw[start : start + array.nbytes].view(array.dtype)
    out[:] = array
    return out


def _result(array: np.ndarray, param: Param) -> np.ndarray:
    import numpy as np

    if param.dtype is DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


# --- building --------------------------------------------------------------------------------------------------------


@cache
def _compiler() -> tuple[str, str]:
    """Return path and version of the C++ compiler."""
    path = shutil.which(os.environ.get("CXX") or "g++")
    if path is None:
        raise EmulatorError("expected a C++ compiler, got none", where="emulator", hint=_HINT)
    return path, subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _headers() -> tuple[tuple[Path, Path], str]:
    """Return the include directories, and the digest of all files in them."""
    directories = (data_dir("gpu") / "include", data_dir("gpu") / "emulator")
    digest = hashlib.sha256()
    for directory in directories:
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            digest.update(path.read_bytes() + b"\0")
    return directories, digest.hexdigest()


def _view(program: Launchable, param: Param) -> str:
    """Return the type of a parameter of the emulator."""
    if isinstance(program, JoinedProgram) and param.name in program.handed:
        return "Handed"
    return "Output" if param.written else "Input"


def _wrapper(program: Launchable) -> str:
    """Return the translation unit around the kernel's text: its parameters, its launch and the entry point."""
    params = "".join(
        f'    {{"{param.name}", {param.dtype.bytes}, {param.elements}, {str(param.written).lower()}, {param.align}}},\n'
        for param in program.params
    )
    arguments = [
        f"mf::{_view(program, param)}<{CTYPES[param.dtype]}>{{&mf_params[{i}]}}"
        for i, param in enumerate(program.params)
    ]
    counters, shared = 0, list(program.shared) if isinstance(program, Program) else []
    if isinstance(program, JoinedProgram):
        arguments.append("mf::Counters{}")
        counters, shared = program.groups.count, [*program.first.shared, *program.then.shared]
    # The emulator copies tiles by the parameter, rows and stride that the text names beside a map.
    arguments += ["mf::TensorMap{}"] * len(program.maps)
    x, y, z = program.grid
    return (
        '#include "prelude.h"\n'
        # The kernel may have the name of a function of the C library.
        f'#define {program.name} mf_kernel_{program.name}\n#include "kernel.cu"\n'
        f"static mf::emu::Param mf_params[] = {{\n{params}}};\n"
        f"static void mf_body() {{ {program.name}({', '.join(arguments)}); }}\n"
        "static mf::emu::Launch mf_launch() {\n"
        f"  return {{mf_body, mf_params, {len(program.params)}, {{{x}, {y}, {z}}}, {program.launch_threads}, "
        f"{program.shared_bytes}, {int(all(buffer.dtype.bytes > 1 for buffer in shared))}, {counters}}};\n"
        '}\n#include "entry.h"\n'
    )


class BuildEntry(CacheEntry[tuple[str, ...], str], frozen=True, kw_only=True):
    """Cache entry of a compiler's output by its name, options and digests of its sources; the value is its compiler."""


def _build(program: Launchable, source: str, sanitize: bool, level: str) -> Path:
    """Return the path of the compiled emulation."""
    flags = (level, *_FLAGS, *(_SANITIZE if sanitize else _LIBRARY))
    sources = {"kernel.cu": source, "main.cpp": _wrapper(program)}

    def more() -> list[str]:
        before = [] if sanitize else [f"-I{_precompiled(cache_root(), level)}"]
        return [*before, "main.cpp", str(_runtime(sanitize)), "-lm"]

    path = _compiled("kernel" if sanitize else "kernel.so", flags, sources, more)
    path.chmod(0o755)
    return path


def _runtime(sanitize: bool) -> Path:
    """Return the path of the compiled emulator runtime, which all kernels share."""
    flags = (_MUCH, *_FLAGS, *(_SANITIZE if sanitize else _LIBRARY[1:]), "-c")
    return _compiled("runtime.o", flags, {}, lambda: [str(data_dir("gpu") / "emulator" / "runtime.cpp")])


@cache
def _precompiled(root: Path, level: str) -> Path:
    """Return a directory with the emulator's precompiled headers, which g++ prefers if it comes first.

    They save a quarter of a kernel's compile time. The directory does not exist if the compiler supports none.
    """
    flags = (level, *_FLAGS, *_LIBRARY[1:], "-x", "c++-header")
    with contextlib.suppress(EmulatorError):
        return _compiled("prelude.h.gch", flags, {}, lambda: [str(data_dir("gpu") / "emulator" / "prelude.h")]).parent
    return root / "none"


def _compiled(name: str, flags: Sequence[str], sources: Mapping[str, str], more: Callable[[], list[str]]) -> Path:
    """Return the path of a compiler's output, from the cache if possible; of several processes one makes it.

    Args:
        name: Name of the output.
        flags: Options that determine it.
        sources: Texts of the files that it is made of, beside the headers.
        more: Further arguments, asked for if it is made.
    """
    version, texts = _compiler()[1], "\0".join(sources.values())
    builds = Cache("emulator", BuildEntry)
    key = (name, *flags, hashlib.sha256(texts.encode()).hexdigest(), _headers()[1], version)
    if builds.get(key) is None:
        with lock_directory(builds.path(key), None), builds.building() as place:
            if builds.get(key) is None:
                builds.put(key, version, {name: _run_compiler([*flags, *more()], sources, place)})
    return builds.path(key) / name


def _run_compiler(arguments: Sequence[str], sources: Mapping[str, str], place: Path) -> bytes:
    """Return the output of the compiler, run in an empty directory with ``sources``."""
    for file, text in sources.items():
        (place / file).write_text(text)
    command = [_compiler()[0], *arguments, *(f"-I{include}" for include in _headers()[0]), "-o", "out"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmulatorError(f"expected C++ that compiles, got:\n{done.stderr[:4000]}", where="emulator", hint=_HINT)
    return (place / "out").read_bytes()


# --- running ---------------------------------------------------------------------------------------------------------

# An emulation's state is static in its library.
_LOCK: Final = threading.Lock()


@cache
def _library(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _run_library(path: Path, data: Sequence[np.ndarray], seed: int) -> _Fault:
    fault = _Fault()
    pointers = (ctypes.c_void_p * len(data))(*(array.ctypes.data for array in data))
    with _LOCK:
        _library(path).mf_emulate(pointers, ctypes.byref(fault), ctypes.c_uint(seed))
    return fault


def _run_process(path: Path, program: Launchable, data: Sequence[np.ndarray], seed: int) -> _Fault:
    """Run a sanitized build in a process; the outputs in ``data`` receive its results."""
    import numpy as np

    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    environment["MF_EMULATOR_SEED"] = str(seed)
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"{i}.bin" for i in range(len(data) + 1)]
        for file, array, param in zip(files, data, program.params, strict=False):
            if not param.written:
                file.write_bytes(array.tobytes())
        command = [str(path), *map(str, files)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmulationFault(FaultKind.SANITIZER, done.stderr[:4000], program.name, FaultLocation())
        for file, array, param in zip(files, data, program.params, strict=False):
            if param.written:
                array[:] = np.frombuffer(file.read_bytes(), array.dtype)
        return _Fault.from_buffer_copy(files[-1].read_bytes())


def _statement(source: str, line: int) -> str:
    """Return the statement at a line of the text (from 1), as one line."""
    lines = [text.split("//")[0].strip() for text in source.splitlines()]
    if not 0 < line <= len(lines):
        return ""
    ends = [text.endswith((";", ") {", "}")) or text.startswith("#") for text in lines]
    first = last = line - 1
    while first > 0 and not ends[first - 1]:
        first -= 1
    while last + 1 < len(lines) and not ends[last]:
        last += 1
    return " ".join(lines[first : last + 1])


def _raise(fault: _Fault, program: Launchable, source: str) -> None:
    at = FaultLocation(
        buffer=fault.buffer.decode(errors="replace"),
        index=fault.index,
        thread=fault.thread if fault.thread >= 0 else None,
        other=fault.other if fault.other >= 0 else None,
        block=(fault.block[0], fault.block[1], fault.block[2]),
        statement=_statement(source, fault.line),
        line=fault.line,
    )
    raise EmulationFault(tuple(FaultKind)[fault.kind - 1], fault.detail.decode(errors="replace"), program.name, at)
