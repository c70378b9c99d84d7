"""Compilation of CUDA C++ to cubins by NVRTC, without a driver or a GPU; results are cached by content.

NVRTC is loaded through ctypes, so that no package must be importable. It is searched for in the ``nvidia`` packages of
this Python, then in a CUDA toolkit, then by the system's loader. ``MIRAGE_FORMAL_NVRTC`` names a library to use
instead.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from mirage_formal.cache.cache_directory import Cache
from mirage_formal.codegen.executable import Compiled
from mirage_formal.records.store_entry import CacheEntry
from mirage_formal.support.errors import MirageError, UnsupportedError
from mirage_formal.support.resources import data_dir, install_command

_OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v")
#: Version from which NVRTC caches machine code if there is a driver; ptxas then reports nothing.
_NO_CACHE: Final = (12, 9)
_HEADER: Final = "mirage_formal/device.cuh"
_INCLUDE: Final = re.compile(r'^#include "(mirage_formal/\w+\.cuh)"$', re.MULTILINE)


def nvrtc_hint() -> str:
    """Return the hint of messages that says how to install NVRTC."""
    return f"install NVRTC for CUDA 13 ({install_command('cuda13')}) or 12, or a CUDA toolkit"


class CompileError(MirageError):
    """Error: NVRTC is missing or too old, or it refuses the source; ``what`` holds its log."""

    several_lines = True


class CubinEntry(CacheEntry[tuple[str, ...], Compiled], frozen=True, kw_only=True):
    """Cache entry of a compiled kernel: digests of source and headers, architecture, NVRTC's version and options."""


def compile(source: str, arch: str, *, fresh: bool = False) -> Compiled:
    """Compile one kernel, as mirage_formal.codegen.cuda_printer.emit_cuda prints it, for ``arch`` ("sm_80", "sm_90a").

    The cache is keyed by source, the headers that it includes, architecture, options and NVRTC's version; an entry that
    is damaged, or was written for another key, is compiled again.

    Args:
        source: CUDA C++.
        arch: Architecture.
        fresh: Compile without reading or writing the cache.

    Raises:
        CompileError: NVRTC is missing, or it refuses the source; says what to install, or holds its log.
        UnsupportedError: This NVRTC does not know the architecture.
    """
    nvrtc = _nvrtc()
    if arch not in nvrtc.archs:
        known = ", ".join(nvrtc.archs)
        raise UnsupportedError(
            f"expected an architecture of NVRTC {nvrtc.version} ({known}), got {arch!r}", where="arch"
        )
    headers = device_headers([source])
    if fresh:
        return _parse_ptxas_log(*nvrtc.compile(source, headers, arch), nvrtc.version)
    key = (_digest(source), _digest(*headers.values()), arch, nvrtc.version, *nvrtc.options)
    cubins = Cache("cubins", CubinEntry)
    if (found := cubins.get(key)) is None:
        found = _parse_ptxas_log(*nvrtc.compile(source, headers, arch), nvrtc.version)
        cubins.put(key, found)
    return found


def compile_with_lines(source: str, arch: str) -> tuple[bytes, str]:
    """Return the cubin and the PTX of one kernel, both with the lines of the source; nothing is cached.

    Raises:
        CompileError: NVRTC is missing, or it refuses the source.
    """
    nvrtc = _nvrtc()
    options = (f"--gpu-architecture={arch}", *nvrtc.options, "--generate-line-info")
    _, cubin, ptx = nvrtc.results(source, device_headers([source]), options, "nvrtcGetCUBIN", "nvrtcGetPTX")
    return cubin, ptx.rstrip(b"\0").decode("utf-8", "replace")


def compilation_environment_digest(sources: Iterable[str]) -> str:
    """Return a digest of the compilation environment of sources: device layer, included headers, and options."""
    return _digest(*device_headers(sources).values(), *_OPTIONS)


def device_headers(sources: Iterable[str]) -> dict[str, str]:
    """Return the headers of sources by name: the device layer, and the headers that they include."""
    named = {name for source in sources for name in _INCLUDE.findall(source)} - {_HEADER}
    files = {name: data_dir("gpu") / "include" / name for name in (_HEADER, *sorted(named))}
    return {name: path.read_text() for name, path in files.items() if path.is_file()}


def version() -> str:
    """Return the version of the installed NVRTC, as two numbers; "" without one. Compiled.compiler begins with it."""
    return _nvrtc().version if available() else ""


def require_nvrtc() -> None:
    """Raise an error that says what to install, unless NVRTC can be loaded here.

    Raises:
        CompileError: NVRTC is missing.
    """
    _nvrtc()


def available() -> bool:
    """Return whether NVRTC can be loaded here."""
    try:
        _nvrtc()
    except CompileError:
        return False
    return True


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def _parse_ptxas_log(cubin: bytes, log: str, version: str) -> Compiled:
    """Parse what ``--ptxas-options=-v`` reports about a source's one kernel, and find the compiler's build version."""
    used = re.search(r"Used (\d+) registers", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or frame is None:
        raise CompileError(
            f"expected ptxas to report registers and spills, got: {log!r}", where="NVRTC", hint=nvrtc_hint()
        )
    shared = re.search(r"(\d+) bytes smem", log)
    # NVRTC reports two numbers of its version; the note in the cubin has all.
    build = re.search(rb"Cuda compilation tools, release [0-9.]+, V([0-9.]*[0-9])", cubin)
    return Compiled(
        cubin=cubin,
        registers=int(used[1]),
        spill_bytes=int(frame[2]) + int(frame[3]),
        stack_bytes=int(frame[1]),
        shared_bytes=int(shared[1]) if shared else 0,
        log=log,
        compiler=build[1].decode() if build is not None else version,
    )


# --- NVRTC -----------------------------------------------------------------------------------------------------------


class _Nvrtc:
    """Bindings of the libnvrtc functions in use."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        caches = (major.value, minor.value) >= _NO_CACHE
        self.options = (*_OPTIONS, *(("--no-cache",) if caches else ()))
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        self.archs = tuple(f"sm_{n}{suffix}" for n in numbers for suffix in ("", *("a" if n >= 90 else ())))

    def compile(self, source: str, headers: Mapping[str, str], arch: str) -> tuple[bytes, str]:
        """Return the cubin and the log of a source with these headers."""
        log, cubin = self.results(source, headers, (f"--gpu-architecture={arch}", *self.options), "nvrtcGetCUBIN")
        return cubin, log

    def results(self, source: str, headers: Mapping[str, str], given: Sequence[str], *wanted: str) -> list[Any]:
        """Return the log of a source with these headers and options, then the wanted results, by their functions."""
        program = ctypes.c_void_p()
        count = len(headers)
        texts = (ctypes.c_char_p * count)(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * count)(*(name.encode() for name in headers))
        options = [option.encode() for option in given]
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", count, texts, names)
        try:
            status = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            raw = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            # Equal sources have equal results, so no times.
            log = "\n".join(line for line in raw.strip().splitlines() if "Compile time" not in line)
            if status != 0:
                arch = given[0].partition("=")[2]
                raise CompileError(f"expected CUDA C++ that compiles for {arch}, got:\n{log}", where="kernel.cu")
            return [log, *(self._bytes(name, program) for name in wanted)]
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, name: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(name, program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            message = self._library.nvrtcGetErrorString(status).decode()
            raise CompileError(f"expected {name} to succeed, got {message}", where="NVRTC", hint=nvrtc_hint())


@cache
def _nvrtc() -> _Nvrtc:
    tried = []
    for name in _nvrtc_paths():
        try:
            return _Nvrtc(ctypes.CDLL(name))
        except (OSError, AttributeError) as error:
            tried.append(f"{name}: {error}")
    found = "; ".join(tried) or "none"
    raise CompileError(f"expected NVRTC to compile CUDA C++, got {found}", where="NVRTC", hint=nvrtc_hint())


def _nvrtc_paths() -> Iterator[str]:
    """Yield the possible paths of NVRTC, in order of preference; newest first among packages."""
    if chosen := os.environ.get("MIRAGE_FORMAL_NVRTC"):
        yield chosen
        return
    yield from cuda_files("*/lib/libnvrtc.so.*", "lib64/libnvrtc.so")
    if (system := ctypes.util.find_library("nvrtc")) is not None:
        yield system


def cuda_files(wheel: str, toolkit: str) -> Iterator[str]:
    """Yield the files that match a pattern: of the ``nvidia`` packages, newest first, then of CUDA toolkits."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    wheels = [path for root in roots for path in Path(root).glob(wheel)]
    yield from map(str, sorted(wheels, key=_version, reverse=True))
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    yield from (str(path) for root in toolkits if root for path in Path(root).glob(toolkit))


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name))
