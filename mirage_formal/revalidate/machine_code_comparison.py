"""Comparison of machine code: the regenerated text is compiled again, and compared with the files byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mirage_formal.check.check_steps import expect_equal, step
from mirage_formal.check.cuda.cubin import sections
from mirage_formal.check.cuda.manifest import BoundKernels
from mirage_formal.codegen.executable import Compiled
from mirage_formal.codegen.generate import compiled_record
from mirage_formal.device import compile as nvrtc
from mirage_formal.records import Binary, CompiledRecord, launched_kernels, read_file, resolve_inside
from mirage_formal.support.errors import FormatError, UnsupportedError


@dataclass(frozen=True, slots=True)
class MachineCodeComparison:
    """Result of compiling the files of machine code again.

    Attributes:
        again: Number of files that were compiled again to equal bytes.
        written: Number of files taken as the author wrote them, by reason.
        compiler: Compiler that compiled them again, or "".
    """

    again: int
    written: Mapping[str, int]
    compiler: str


def compare_machine_code(
    bound: BoundKernels, texts: Mapping[str, str], *, recompile: bool, arch: str = ""
) -> MachineCodeComparison:
    """Compile the derived texts and compare the results, where the compiler that the plans name is installed.

    Sound: a file counts as made again only if its bytes are those that the compiler makes just now, from the text that
    was derived and the device header of this installation; results of an earlier call, or of the user's cache, count
    for nothing unless they are of this process.

    Args:
        bound: The directory.
        texts: CUDA C++ of each kernel.
        recompile: Whether to compile at all.
        arch: The only architecture whose machine code is compiled again; all, if left out.

    Raises:
        CheckFailed: Names the file and the section of the first machine code that differs.
    """
    here = nvrtc.version() if recompile else ""
    again, written, compiler = 0, Counter[str](), ""
    for launch, plan in zip(launched_kernels(bound.launch.launches), bound.plans.kernels, strict=True):
        for name, binary in sorted(launch.cubins.items()):
            stated = plan.compiled[name]
            with step(bound.root / binary.file, f"machine code of {launch.name} for {name}, compiled again"):
                why = (
                    f"not for {arch}"
                    if arch not in ("", name)
                    else _not_compiled_reason(stated.compiler, here, recompile)
                )
                why = why or _compare(bound.root, texts[launch.name], name, binary, stated)
            if why:
                written[why] += 1
            else:
                again, compiler = again + 1, stated.compiler
    return MachineCodeComparison(again, dict(sorted(written.items())), compiler)


def _not_compiled_reason(stated: str, here: str, recompile: bool) -> str:
    """Return the reason why a text is not compiled at all, or ""."""
    if not recompile:
        return "not compiled again, as asked"
    if not here:
        return f"compiled by NVRTC {stated}, there is none here"
    return "" if (stated + ".").startswith(here + ".") else f"compiled by NVRTC {stated}, here is {here}"


def _compare(root: Path, text: str, arch: str, binary: Binary, stated: CompiledRecord) -> str:
    """Return the reason why machine code cannot be compared, or ""; raise a FormatError if it differs."""
    try:
        found = _compile_cached(text, arch)
    except UnsupportedError:
        return f"compiled by NVRTC {stated.compiler}, which does not know {arch} here"
    if found.compiler != stated.compiler:
        return f"compiled by NVRTC {stated.compiler}, here is {found.compiler}"
    data = read_file(resolve_inside(root, binary.file))
    if data != found.cubin:
        raise FormatError(
            f"expected what NVRTC {found.compiler} makes of the source, "
            f"got another: {_first_different_section(found, data)}"
        )
    expect_equal("what the compiler reports", compiled_record(found), stated)
    expect_equal(
        "registers and spilled bytes", (found.registers, found.spill_bytes), (binary.registers, binary.spill_bytes)
    )
    return ""


@lru_cache(maxsize=512)
def _compile_cached(text: str, arch: str) -> Compiled:
    """Compile a text; cached in the process, because candidates often share kernels."""
    return nvrtc.compile(text, arch, fresh=True)


def _first_different_section(found: Compiled, data: bytes) -> str:
    """Return what differs first: "section" and its name, "other sections", or "its headers"."""
    ours, theirs = list(sections(found.cubin)), list(sections(data))
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return "other sections"
    differs = (name for (name, a), (_, b) in zip(ours, theirs, strict=True) if a != b)
    return next((f"section {name}" for name in differs), "its headers")
