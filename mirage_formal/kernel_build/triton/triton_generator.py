"""Generator of Triton files from µGraphs.

Sound: a file is of the graph itself, or of its running-maximum form, which is proved equal to it
(kernel_build.stable_forms). That the file computes it is not proved. Bounds of its loads and stores are decided as far
as their index expressions can be, and no other safety obligation is discharged: docs/kernels.md says what is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mirage_formal.codegen.generate import first_line
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.support.errors import MirageError, UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.codegen.triton.file import TritonFile
    from mirage_formal.kernel_build.stable_forms import StableForm
    from mirage_formal.records import TritonAccessRecord

#: Text of a file's first line after the name of the program.
TITLE: Final = (
    "functions of Triton that mirage_formal made; the µGraph was proved equal to its program, this text was not."
)


@dataclass(frozen=True, slots=True)
class TritonProgram:
    """A graph as a Triton file; ``program["code"]`` works too, as with the reference system's dictionary.

    Attributes:
        code: Text of the file.
        file: The file as a value, with its functions.
        stable: The µGraph that it computes.
        accesses: What is known about the bounds of each load and store; none is known to be out of bounds.
    """

    code: str
    file: TritonFile
    stable: StableForm
    accesses: tuple[TritonAccessRecord, ...]

    def __getitem__(self, name: str) -> str:
        """Return the text, for the key "code"."""
        if name != "code":
            raise KeyError(name)
        return self.code

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the reference system's dictionary."""
        return ("code",)


def triton_program(graph: KernelGraph, program: KernelGraph, target: Target, name: str = "A program") -> TritonProgram:
    """Generate the Triton file of a graph.

    Args:
        graph: A µGraph, or a program.
        program: The program that it is equal to, which the file computes in float64 to check itself.
        target: The GPU whose cost model chooses the tiles of predefined operators.
        name: Name in the file's docstring.

    Raises:
        KernelRejected: A kernel has no Triton function, the running-maximum form is not proved, or an access is out of
            bounds; says why.
    """
    from mirage_formal.codegen.triton.file import triton_file
    from mirage_formal.kernel_build.stable_forms import stabilize_proved  # loads numerical packages
    from mirage_formal.kernel_build.triton.triton_log import access_records

    try:
        form = stabilize_proved(graph)
        made = triton_file(form.graph, program, target, f"{name}: {TITLE}")
    except MirageError as error:
        raise KernelRejected(f"it has no Triton file: {first_line(error)}", where="triton") from error
    return TritonProgram(made.text, made, form, access_records(made))


def first_program(candidates: Sequence[tuple[str, KernelGraph]], program: KernelGraph, target: Target) -> TritonProgram:
    """Return the Triton file of the first candidate that has one; candidates are given with their names.

    Raises:
        UnsupportedError: None has; says why of each.
    """
    reasons: list[str] = []
    for name, graph in candidates:
        try:
            return triton_program(graph, program, target, f"candidate {name}")
        except KernelRejected as error:
            reasons.append(f"candidate {name}: {error}")
    raise UnsupportedError(f"expected a Triton file, got none: {'; '.join(reasons)}", where="triton")
