"""Built kernels of a candidate as values, before they are written to files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mirage_formal.codegen.executable import Executable
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import Target
from mirage_formal.records import KernelPlanRecord, ObligationRecord, RealizationRecord
from mirage_formal.support.errors import MirageError

if TYPE_CHECKING:
    from mirage_formal.kernel_build.stable_forms import StableForm  # loads the checker, which searches do not need

#: Default number of candidates that get kernels.
COUNT: Final = 4
#: Name prefix of mixed forms, in which operators have forms of their own.
MIXED: Final = "mixed: "


class Acceptance(StrEnum):
    """The claims that must hold of a kernel for it to be launched, beside its safety."""

    #: It realizes its operator of the µGraph.
    PROVED = "proved"
    #: None: emulation and numerics have to tell.
    TESTED = "tested"


class KernelRejected(MirageError):
    """Error: a µGraph has no kernel that may run.

    Its running-maximum form is not proved, it cannot be planned or compiled, or an obligation does not hold.
    """


@dataclass(frozen=True, slots=True)
class BuiltKernels:
    """The built kernels of a candidate.

    Attributes:
        executable: Launches of the kernels in order.
        programs: The generated kernels' Programs by name.
        obligations: Their safety obligations, all of which hold.
        questions: SMT-LIB texts of the obligations, which name them by digest.
        plans: Plans of the generated kernels, with the compiler's figures.
        stable: The µGraph that they compute.
        candidate: Digest of the candidate's µGraph.
        target: Target that they are planned for.
        realized: For each generated kernel, the claim that it realizes its operator; empty where it was not decided,
            as for kernels that are only timed.
    """

    executable: Executable
    programs: dict[str, Program]
    obligations: tuple[ObligationRecord, ...]
    questions: tuple[str, ...]
    plans: tuple[KernelPlanRecord, ...]
    stable: StableForm
    candidate: str
    target: Target
    realized: tuple[RealizationRecord, ...] = ()
