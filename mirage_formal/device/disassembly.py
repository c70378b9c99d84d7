"""PTX and SASS of a kernel, with the line of its CUDA C++ that each of their lines was compiled from.

NVRTC is asked for line information, which changes no instruction. The disassembler is NVIDIA's ``nvdisasm``, searched
for as NVRTC is, and in the package triton. ``MIRAGE_FORMAL_NVDISASM`` names another one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.device.compile import compile_with_lines, cuda_files

#: Name that NVRTC knows the source by.
_SOURCE: Final = "kernel.cu"
_LIMIT_S: Final = 120
_LOC: Final = re.compile(r"\s*\.loc\s+(\d+) (\d+) (\d+)(?:,.*inlined_at (\d+) (\d+) (\d+))?")
_FILE: Final = re.compile(r'\s*\.file\s+(\d+) "(?:[^"]*/)?([^"/]*)"')
_LINE: Final = re.compile(
    r'\s*//## File "(?:[^"]*/)?([^"/]*)", line (\d+)(?: inlined at "(?:[^"]*/)?([^"/]*)", line (\d+))?'
)


@dataclass(frozen=True, slots=True)
class AssemblyText:
    """Assembly text of a kernel.

    Attributes:
        language: "ptx" or "sass".
        text: The text, without line information.
        sources: Line of the CUDA C++ of each line of the text; 0 where there is none.
        missing: Why there is no text; empty otherwise.
    """

    language: str
    text: str
    sources: tuple[int, ...]
    missing: str = ""


def assembly_texts(source: str, arch: str) -> tuple[AssemblyText, AssemblyText]:
    """Return the PTX and the SASS of one kernel.

    Args:
        source: CUDA C++, as mirage_formal.codegen.cuda_printer.emit_cuda prints it.
        arch: Architecture, as in "sm_90a".

    Raises:
        CompileError: NVRTC is missing, or it refuses the source.
    """
    cubin, ptx = compile_with_lines(source, arch)
    return parse_ptx(ptx), _sass(cubin)


def parse_ptx(text: str) -> AssemblyText:
    """Return PTX without its line information, and for each line the line of CUDA C++ that it comes from.

    A location in a header is that of the call in the source, which ``inlined_at`` leads to.
    """
    files = {number: name for number, name in _FILE.findall(text)}
    known: dict[tuple[str, ...], int] = {}
    lines: list[str] = []
    sources: list[int] = []
    at = 0
    for line in text.split("\n"):
        if found := _LOC.match(line):
            place, call = found.groups()[:3], found.groups()[3:]
            if call[0] is None:
                known[place] = int(place[1]) if files.get(place[0]) == _SOURCE else 0
                at = known[place]
            else:
                known[place] = at = known.get(call, int(call[1]) if files.get(call[0]) == _SOURCE else 0)
        elif line.lstrip().startswith(".section"):  # debug information, which ends the text
            break
        elif line.strip() and not _FILE.match(line):
            lines.append(line.replace("\t", "    "))
            sources.append(at if line.startswith(("\t", "@")) else 0)
    return AssemblyText("ptx", "\n".join(lines), tuple(sources))


def parse_sass(text: str) -> AssemblyText:
    """Return the instructions and labels that nvdisasm printed, and the line of the source of each instruction."""
    lines: list[str] = []
    sources: list[int] = []
    at = 0
    for line in text.split("\n"):
        if found := _LINE.match(line):
            at = next((int(n) for name, n in (found.group(1, 2), found.group(3, 4)) if name == _SOURCE), at)
        elif re.match(r"\s*/\*[0-9a-f]+\*/", line):
            lines.append(re.sub(r"\s+", " ", line, count=2).strip())
            sources.append(at)
        elif re.match(r"\.L_\w+:", line):
            lines.append(line.strip())
            sources.append(0)
    return AssemblyText("sass", "\n".join(lines), tuple(sources))


def _sass(cubin: bytes) -> AssemblyText:
    tool = next(_nvdisasm_paths(), None)
    if tool is None:
        return AssemblyText(
            "sass", "", (), "nvdisasm was not found: pip install nvidia-cuda-nvdisasm, or a CUDA toolkit"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run([tool, "-gi", "-c", file.name], capture_output=True, timeout=_LIMIT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return AssemblyText("sass", "", (), f"nvdisasm failed: {error}")
    return parse_sass(done.stdout.decode("utf-8", "replace"))


def _nvdisasm_paths() -> Iterator[str]:
    """Yield the possible paths of nvdisasm, in order of preference."""
    if chosen := os.environ.get("MIRAGE_FORMAL_NVDISASM"):
        yield chosen
        return
    yield from cuda_files("*/bin/nvdisasm", "bin/nvdisasm")
    triton = importlib.util.find_spec("triton")
    roots = list(triton.submodule_search_locations or ()) if triton is not None else []
    yield from (str(path) for root in roots for path in Path(root).glob("backends/nvidia/bin/nvdisasm"))
    if (system := shutil.which("nvdisasm")) is not None:
        yield system


__all__ = ["AssemblyText", "assembly_texts", "parse_ptx", "parse_sass"]
