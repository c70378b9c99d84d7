"""Check of stored kernels before any of them is launched: code generation is repeated, and the candidate is replayed.

A digest shows only that a file is the one that another file names; an attacker can change both. So the kernels of a
directory are launched only if ``check`` would accept them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mirage_formal.check.check_steps import CheckFailed, expect_equal, step
from mirage_formal.check.cuda.manifest import EstablishedKernels
from mirage_formal.codegen.executable import Executable, load_executable
from mirage_formal.graph.canonical import digest
from mirage_formal.records import CANDIDATES, KERNELS, MANIFEST_FILE
from mirage_formal.records.partition import COVERS, WHOLE_FILE
from mirage_formal.revalidate.evidence_replay import replay_directory
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.support.errors import FormatError


@dataclass(frozen=True, slots=True)
class StoredKernels:
    """Kernels of a directory that may be launched.

    Attributes:
        executable: Launches of the kernels.
        about: Results of the checks.
        bound: Whether their candidate lies in the run around them, and was proved again to compute its program.
    """

    executable: Executable
    about: EstablishedKernels
    bound: bool

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return remarks on the facts that were not checked and are taken from the files; empty if all were checked."""
        found = [f"{count} obligations as recorded: {why}" for why, count in sorted(self.about.recorded.items())]
        found += [
            f"{count} files of machine code as written by the author: {why}"
            for why, count in sorted(self.about.written.items())
            if not why.startswith("not for ")
        ]
        if unproved := self.about.kernels - self.about.realized:
            found.append(f"{unproved} kernels as tested: not proved to compute their µGraph")
        if unread := self.about.kernels - self.about.read_back:
            found.append(f"CUDA C++ of {unread} kernels as code generation prints it: not read back")
        return (*found, *(() if self.bound else ("no candidate beside them whose proof could be replayed",)))


def stored_kernels(directory: Path, arch: str = "") -> StoredKernels:
    """Read the kernels of a directory, and check them.

    Sound: see ``revalidate.rederive.derive_kernels``: the CUDA C++ is what code generation makes of the µGraph
    here, every safety obligation is settled here, or, without solvers, is compared with the one that is derived
    here, and machine code is what NVRTC makes here, where the same one is installed. Where the run lies around
    them, the µGraph's candidate is one whose proof is replayed here, see
    ``revalidate.evidence_replay.replay_directory``.

    Args:
        directory: The directory of kernels.
        arch: The architecture that is launched on; machine code for others is not compiled again. All, if left out.

    Raises:
        RunError: There are no kernels.
        FormatError: A check fails; names the file and the check.
    """
    executable = load_executable(directory)
    try:
        about = derive_kernels(directory, arch=arch, solvers=_has_solvers())
        bound = _is_bound_to_candidate(directory, about)
    except CheckFailed as failure:
        where = failure.file if os.path.isabs(failure.file) else os.path.join(directory, failure.file)
        hint = "the kernels are not those of their µGraph: mirage-formal tools build RUN_DIR makes them again"
        raise FormatError(f"{failure.step}: {failure.what}", where=where, hint=hint) from None
    return StoredKernels(executable, about, bound)


def _has_solvers() -> bool:
    return all(find_spec(name) is not None for name in ("z3", "cvc5"))


def find_evidence(directory: Path) -> Path | None:
    """Return the directory of the candidate or cover that kernels lie beside; None if there is none.

    Args:
        directory: The directory of kernels.
    """
    place = directory.resolve()
    sets = (place.parent.parent / name for name in (CANDIDATES, COVERS))
    return next((one / place.name for one in sets if (one / place.name).is_dir()), None)


def _is_bound_to_candidate(directory: Path, about: EstablishedKernels) -> bool:
    """Return whether the kernels' candidate lies in the run around them; then replay its evidence."""
    place = directory.resolve()
    root = place.parent.parent
    if place.parent.name != KERNELS:
        return False
    if (root / WHOLE_FILE).is_file():
        found = replay_directory(root)
    else:
        evidence = find_evidence(place)
        if evidence is None:
            return False
        found = replay_directory(evidence)
    with step(directory / MANIFEST_FILE, "whose kernels"):
        if about.candidate not in (known := [one.digest for one in found.shown]):
            raise FormatError(f"expected kernels of {', '.join(known)[:300]}, got those of {about.candidate}")
        expect_equal("program", digest(found.program), about.program)
    return True


__all__ = ["StoredKernels", "find_evidence", "stored_kernels"]
