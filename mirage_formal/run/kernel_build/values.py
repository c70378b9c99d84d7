"""Kernels of a candidate as values, before they are written to files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mirage_formal.errors import MirageError
from mirage_formal.kernels.executable import Executable
from mirage_formal.kernels.program.program import Program
from mirage_formal.kernels.target import Target
from mirage_formal.records import KernelPlanRecord, ObligationRecord

if TYPE_CHECKING:
    from mirage_formal.run.kernel_build.stable import Stable  # loads the checker, which searches do not need

#: How the names of forms begin whose operators have forms of their own each.
MIXED: Final = "mixed: "


class KernelRefused(MirageError):
    """A µGraph has no kernel that may run.

    Its running-maximum form is not proved, it cannot be planned or compiled, or an obligation does not hold.
    """


@dataclass(frozen=True, slots=True)
class Built:
    """The kernels of a candidate.

    Attributes:
        executable: What is launched.
        programs: The generated kernels' Programs by name.
        obligations: Their safety obligations, all of which hold.
        questions: What the obligations ask of solvers, as SMT-LIB texts; obligations name them by digest.
        plans: The plans of the generated kernels, with what the compiler made of them.
        stable: The µGraph that they compute.
        candidate: Digest of the µGraph that they are of.
        target: What they are planned for.
    """

    executable: Executable
    programs: dict[str, Program]
    obligations: tuple[ObligationRecord, ...]
    questions: tuple[str, ...]
    plans: tuple[KernelPlanRecord, ...]
    stable: Stable
    candidate: str
    target: Target
