"""Built kernels of a candidate as values, before they are written to files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mirage_formal.codegen.executable import Executable
from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import Target
from mirage_formal.records import KernelPlanRecord, ObligationRecord, RealizationRecord
from mirage_formal.support.errors import MirageError
from mirage_formal.support.options import AcceptedKernels, check_value

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


def parse_acceptance(value: object) -> Acceptance:
    """Return the value of the option ``accept_kernels``.

    Raises:
        SpaceError: It is neither "proved" nor "tested".
    """
    return Acceptance(check_value("accept_kernels", value, AcceptedKernels))


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
        joins: The joined launches, each by the name of its first kernel; ``programs`` has both of its kernels.
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
    joins: dict[str, JoinedProgram] = field(default_factory=dict)

    @property
    def tested(self) -> tuple[str, ...]:
        """Return a remark on each kernel that is only tested; empty if all are proved to realize their operators."""
        found = (one for one in self.realized if one.verdict != "realizes")
        return tuple(f"{one.kernel} is tested and not proved: {one.reason}" for one in found)

    def may_run(self, accept: Acceptance) -> bool:
        """Return whether these kernels may run.

        Sound: with PROVED they may only if each generated kernel has a record of the claim that it realizes its
        operator.
        """
        return accept is Acceptance.TESTED or (len(self.realized) == len(self.programs) and not self.tested)


def describe_claim(built: BuiltKernels) -> str:
    """Return one line that says whether kernels are proved to realize their operators, or are only tested, and why."""
    if built.tested:
        proved = len(built.realized) - len(built.tested)
        beside = f" ({proved} of {len(built.realized)} are proved)" if proved else ""
        return f"tested only{beside}: {'; '.join(built.tested)}"
    if not built.programs:
        return "none is generated: cuBLAS computes all, and is believed"
    if not built.may_run(Acceptance.PROVED):
        return "tested only: that they compute their µGraph was not decided"
    return "proved to compute their µGraph"
