"""Explanations of all kernels of a directory, read from its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.executable import load_executable
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.program.serialization import decode_programs
from mirage_formal.records import (
    LAUNCH_FILE,
    PROGRAMS_FILE,
    REALIZES_FILE,
    KernelLaunch,
    Launch,
    RealizesRecord,
    decode,
    read_file,
)
from mirage_formal.report.kernels.kernel_explanation import BuiltKernel, ExplanationSection, explain_kernel
from mirage_formal.support.errors import FormatError

#: The end of a function's head.
_BODY: Final = ") {\n"


@dataclass(frozen=True, slots=True)
class ExplainedKernel:
    """Explanation of one launch.

    Attributes:
        name: Name of the kernel; "cuBLAS" for a product of the library.
        sections: The parts of the explanation.
        decided: Whether it is recorded that the kernel computes its operator; products of the library are believed.
    """

    name: str
    sections: tuple[ExplanationSection, ...]
    decided: bool = True


def explain_kernels(directory: Path, element: Sequence[int] | None = None) -> tuple[ExplainedKernel, ...]:
    """Return the explanations of a candidate's kernels, in the order of their launches.

    The files are read and not checked: ``check`` establishes that they belong together.

    Args:
        directory: The directory of the kernels.
        element: Coordinates of the element of each result that is followed; one in the middle if left out.

    Raises:
        RunError: There are no kernels.
        FormatError: A file does not fit to the others.
    """
    executable = load_executable(directory)
    programs = {one.name: one for one in decode_programs(read_file(directory / PROGRAMS_FILE))}
    claims = {}
    if (path := directory / REALIZES_FILE).is_file():
        claims = {one.kernel: one for one in decode(read_file(path), RealizesRecord, str(path)).kernels}
    found = []
    joined = [one for one in executable.launches if isinstance(one, KernelLaunch) and one.counters]
    halves = {part.name for one in joined for part in one.kernels}
    for launch in (part for one in executable.launches for part in _kernels(one)):
        if not isinstance(launch, KernelLaunch):
            text = f"cuBLAS computes operator {launch.operator} of the µGraph, a product; nothing is generated for it."
            believed = "What cuBLAS computes is believed, and no claim is about it."
            found.append(ExplainedKernel("cuBLAS", (ExplanationSection("What it computes", (text, believed)),)))
            continue
        program = programs.get(launch.name)
        whole = executable.sources[launch.source]
        if program is None or not (_states(whole, program) if launch.name in halves else _text(program) == whole):
            got = "another" if program else "none"
            what = f"expected the Program of {launch.name} as {launch.source} has it, got {got}"
            raise FormatError(what, where=str(directory / PROGRAMS_FILE), hint="mirage-formal tools build RUN_DIR")
        values = tuple(argument.value for argument in launch.arguments)
        if len(values) != len(program.params):
            what = f"expected {len(program.params)} arguments of {launch.name}, got {len(values)}"
            raise FormatError(what, where=str(directory / LAUNCH_FILE))
        kernel = BuiltKernel(program, executable.graph, launch.operator, values, claims.get(launch.name))
        decided = kernel.claim is not None and kernel.claim.verdict == "realizes"
        found.append(ExplainedKernel(launch.name, explain_kernel(kernel, element), decided))
    return tuple(found)


def _kernels(one: Launch) -> tuple[Launch, ...]:
    """Return the kernels of a launch; a product is one."""
    return one.kernels if isinstance(one, KernelLaunch) else (one,)


def _states(text: str, program: Program) -> bool:
    """Return whether the text of a joined launch has the body of a Program: only coordinates have other sources."""
    own = _text(program)
    for axis in "xyz":
        own = own.replace(f"(blockIdx.{axis});", f"(mf_{axis});")
    return own[own.find(_BODY) :] in text if own else False


def _text(program: Program) -> str:
    """Return the CUDA C++ of a Program; empty if it is malformed."""
    try:
        return emit_cuda(program)
    except ValueError:
        return ""


__all__ = ["ExplainedKernel", "explain_kernels"]
