"""A built candidate of a run, with the evidence beside it: what an export reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mirage_formal.codegen.executable import Executable, KernelLaunch
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.save import find_kernels
from mirage_formal.records import (
    CANDIDATES,
    GRAPH_FILE,
    KERNELS,
    VERIFICATION_FILE,
    VerdictRecord,
    VerificationRecord,
    decode,
    is_cover,
    read_file,
)
from mirage_formal.records.partition import COVERS, CoverVerificationRecord
from mirage_formal.run.result_cache.stored_kernel_check import StoredKernels, find_evidence, stored_kernels
from mirage_formal.support.errors import RunError


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """A candidate whose kernels and proof were checked.

    Attributes:
        name: Name of its run, as a C identifier.
        stored: Its kernels, and what was checked about them.
        kernels: Directory of the kernels.
        evidence: Directory of the candidate or cover.
        verdict: Its verdict, with the side conditions of the proof.
    """

    name: str
    stored: StoredKernels
    kernels: Path
    evidence: Path
    verdict: VerdictRecord

    @property
    def executable(self) -> Executable:
        """Return the launches of its kernels."""
        return self.stored.executable

    @property
    def architectures(self) -> tuple[str, ...]:
        """Return the architectures that the kernels were compiled for ("sm_90a"), or that of the target."""
        launches = [launch for launch in self.executable.launches if isinstance(launch, KernelLaunch)]
        return tuple(dict.fromkeys(arch for launch in launches for arch in launch.cubins)) or (self.target.arch,)

    @property
    def graph(self) -> KernelGraph:
        """Return the candidate's µGraph; that of the kernels may be another form of it."""
        return from_json(read_file(self.evidence / GRAPH_FILE), str(self.evidence / GRAPH_FILE))

    @property
    def target(self) -> Target:
        """Return the target that the kernels are planned for.

        Raises:
            TargetError: It is unknown here.
        """
        return load_target(self.stored.about.target)


def load_built_candidate(path: Path, candidate: int | None = None) -> BuiltCandidate:
    """Return a built candidate.

    Sound: see ``run.result_cache.stored_kernel_check.stored_kernels``. Nothing else is read before it returns, and
    kernels whose candidate's evidence it did not replay are refused.

    Args:
        path: Directory of a run, a candidate, a cover or kernels.
        candidate: Rank of a run's candidate; None is the best one that is built.

    Raises:
        RunError: Nothing is built, or no candidate lies beside the kernels.
        FormatError: Kernels or evidence do not hold; names the file and the check.
    """
    place = path.resolve()
    beside = place.parent.parent / KERNELS / place.name
    one = beside if place.parent.name in (CANDIDATES, COVERS) and place.is_dir() else find_kernels(place, candidate)[0]
    stored = stored_kernels(one)
    evidence = find_evidence(one)
    if evidence is None or not stored.bound:
        hint = "give a run, or kernels inside of one: what is exported comes with the proof of its candidate"
        raise RunError("expected kernels beside their candidate, got none of it", where=str(one), hint=hint)
    where = evidence / VERIFICATION_FILE
    kind: type[CoverVerificationRecord | VerificationRecord]
    kind = CoverVerificationRecord if is_cover(evidence) else VerificationRecord
    log = decode(read_file(where), kind, str(where))
    identifier = re.sub(r"\W", "_", one.parent.parent.name, flags=re.ASCII)
    name = identifier if re.match(r"[A-Za-z]", identifier) else f"p{identifier}"
    return BuiltCandidate(name[:60], stored, one, evidence, log.verdict)


__all__ = ["BuiltCandidate", "load_built_candidate"]
