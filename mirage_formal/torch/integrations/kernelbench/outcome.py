"""Records of KernelBench problems: the job of a subprocess, its outcome, and the table of all problems."""

from __future__ import annotations

from typing import Literal

import msgspec


class SolveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Request to the process that solves one problem.

    Attributes:
        problem: Its name, as in "level1/1_Square_matrix_multiplication".
        file: The problem file.
        place: Directory for its evidence.
        written: The file to write.
        answer: The file for the outcome.
        largest: Bound of the file's numbers (see ``sizes``); 0 leaves them as they are.
        elements: Most elements of all inputs, parameters and buffers together for a problem to be computed.
        trials: Trials of correctness.
        search_s: Seconds for all searches of the problem.
        target, cache: Options of the searches.
    """

    problem: str
    file: str
    place: str
    written: str
    answer: str
    largest: int
    elements: int
    trials: int
    search_s: float
    target: str
    cache: bool


class UnsupportedOperator(msgspec.Struct, frozen=True):
    """An operator that stays with torch: its name, the reason, and the line of the problem file if it is known."""

    operator: str
    reason: str
    where: str


class RegionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one region of a problem.

    Attributes:
        operators: Torch operators that it computes.
        digest: Digest of the program.
        candidate: Digest of the candidate that is used; empty if there is none.
        verdict: Verdict on the candidate, as in "equivalent".
        kernels: Number of its kernels.
        estimate_us: Its estimated microseconds.
        unfused_us: Estimated microseconds of the unfused program.
        evidence: Directory of its evidence.
        reason: Reason why there is no candidate.
    """

    operators: tuple[str, ...]
    digest: str
    unfused_us: float
    candidate: str = ""
    verdict: str = ""
    kernels: int = 0
    estimate_us: float = 0.0
    evidence: str = ""
    reason: str = ""


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the random trials that compare the written module with the problem's.

    Attributes:
        answer: "passed", "failed", or "not run".
        trials: Trials that passed.
        tolerance: Absolute and relative tolerance.
        max_error: Largest absolute difference of all trials that were compared.
        reason: Why it failed or was not run.
    """

    answer: Literal["passed", "failed", "not run"]
    trials: int = 0
    tolerance: float = 0.0
    max_error: float = 0.0
    reason: str = ""


class ProblemOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one problem.

    Attributes:
        problem: Its name.
        imported: "whole" (one program computes all that depends on an input), "part", "none" (no operator of it is in a
            program), or "error".
        error: Error message, or empty; the other fields have the state before the error.
        operators: Number of torch operators in programs.
        left: Operators that stay with torch.
        regions: The regions.
        correct: Result of the random trials of the written module.
        sizes: Old and new value of each number of the file that was changed.
        elements: Elements of all inputs, parameters and buffers.
        written: The file with ModelNew; empty if there is none.
        seconds: Duration.
    """

    problem: str
    imported: Literal["whole", "part", "none", "error"]
    error: str = ""
    operators: int = 0
    left: tuple[UnsupportedOperator, ...] = ()
    regions: tuple[RegionOutcome, ...] = ()
    correct: Trials = Trials(answer="not run")
    sizes: dict[str, tuple[int, int]] = {}
    elements: int = 0
    written: str = ""
    seconds: float = 0.0

    @property
    def proved(self) -> bool:
        """Return whether every program of the problem has a proved candidate, and there is one."""
        return bool(self.regions) and all(region.verdict == "equivalent" for region in self.regions)


class OutcomeTable(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of table.json: all problems, and the versions and options of the run.

    Attributes:
        schema_version: 1.
        directory: The directory as the user named it.
        commit: The commit that is checked out there, with "+" if files differ from it; empty if it is no git checkout.
        versions: Versions of mirage_formal and torch.
        options: Options of the user.
        problems: Outcomes in the order of levels and numbers.
    """

    directory: str
    commit: str
    versions: dict[str, str]
    options: dict[str, str | int | float | bool]
    problems: tuple[ProblemOutcome, ...]
    schema_version: Literal[1] = 1


__all__ = ["OutcomeTable", "ProblemOutcome", "RegionOutcome", "SolveRequest", "Trials", "UnsupportedOperator"]
