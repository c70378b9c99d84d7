"""Readers of evidence files, which return the values of a report.

Takes files of a run directory. Returns the model of its report, and the files that could not be read. Imports cache,
check, codegen, device, graph, records, report, report.drawing, report.proofs, run_directory, search and support.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import (
    MANIFEST_FILE,
    RUN_FILE,
    VERIFICATION_FILE,
    ManifestRecord,
    VerificationRecord,
    decode,
    is_cover,
)
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.report.model import Basis, CheckResult, ReportedCandidate, ReportModel
from mirage_formal.report.reading.candidate_reader import VERDICTS_FILE, read_verdicts
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.report.reading.reproduction_reader import FILES, read_reproduced
from mirage_formal.report.reading.run_reader import ReadLimits, read_candidate_alone, read_run_report
from mirage_formal.report.reading.whole_program_reader import read_whole_report
from mirage_formal.support.errors import RunError


def is_reportable(path: Path) -> bool:
    """Return whether a directory can be shown: it is evidence, or output of ``reproduce``."""
    return is_evidence(path) or _is_reproduced(path)


def _is_reproduced(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES)


def is_evidence(path: Path) -> bool:
    """Return whether a directory is evidence, with every file listed somewhere."""
    return any((path / name).is_file() for name in (WHOLE_FILE, RUN_FILE, VERDICTS_FILE, MANIFEST_FILE))


def read_report(path: Path, *, check: bool = False, shown: ReadLimits | None = None) -> ReportModel:
    """Read the report of a directory: a run, a whole program, a candidate, verdicts, or output of ``reproduce``.

    Args:
        path: The directory.
        check: Whether ``check`` is run on all of it, in a process of its own.
        shown: Options that limit how much of a run is read.

    Returns:
        The report. Its faults name everything that does not hold or cannot be read; no content of a recognised
        directory raises an error.

    Raises:
        RunError: The directory is none of these, or one that ``check`` does not take.
    """
    source = EvidenceReader(path)
    if (path / WHOLE_FILE).is_file():
        report = read_whole_report(source)
    elif (path / RUN_FILE).is_file():
        report = read_run_report(source, shown or ReadLimits())
    elif (path / VERDICTS_FILE).is_file():
        if check:
            hint = "leave --check out: its proofs are replayed in any case"
            raise RunError("expected a run, a whole or a candidate to check, got verdicts", where=str(path), hint=hint)
        report = read_verdicts(source)
    elif (path / MANIFEST_FILE).is_file() and is_cover(path):
        hint = "give the directory of the whole program: its report shows every cover"
        raise RunError("expected a run, a whole or a candidate, got a cover", where=str(path), hint=hint)
    elif (path / MANIFEST_FILE).is_file() and (path / VERIFICATION_FILE).is_file():
        report = _candidate(source)
    elif _is_reproduced(path):
        if check:
            hint = "leave --check out: figures that were measured are not checked"
            raise RunError("expected a run, a whole or a candidate to check, got figures", where=str(path), hint=hint)
        report = read_reproduced(source)
    else:
        got = "no such directory" if not path.is_dir() else "a directory without any of these"
        hint = "give a directory that search, verify --out or reproduce has written; --all takes a directory of several"
        what = f"expected {RUN_FILE}, {WHOLE_FILE}, {VERDICTS_FILE} or a candidate, got {got}"
        raise RunError(what, where=str(path), hint=hint)
    report = replace(report, when=current_time(), version=_version())
    return _with_check(report, path) if check else report


def _version() -> str:
    try:
        return version("mirage_formal")
    except PackageNotFoundError:  # a checkout that is not installed
        return "of a checkout"


def _with_check(report: ReportModel, path: Path) -> ReportModel:
    """Run ``check`` on a directory and add its result to the report: all claims are established, or none."""
    said = run_check(path)

    def judged(one: ReportedCandidate) -> ReportedCandidate:
        return replace(one, basis=Basis.CHECKED) if said.held and not one.faults else one

    parts = tuple(replace(part, report=judged(part.report)) if part.report else part for part in report.parts)
    return replace(report, checked=said, candidates=tuple(map(judged, report.candidates)), parts=parts)


def _candidate(source: EvidenceReader) -> ReportModel:
    about = source.value(VERIFICATION_FILE, lambda data: decode(data, VerificationRecord, VERIFICATION_FILE))
    manifest = source.value(MANIFEST_FILE, lambda data: decode(data, ManifestRecord, MANIFEST_FILE))
    program: KernelGraph | None = None
    candidates: tuple[ReportedCandidate, ...] = ()
    if about is not None and manifest is not None:
        program = source.graph(VERIFICATION_FILE, about.program)
        if program is not None:
            source.same_digest(VERIFICATION_FILE, program, about.program_digest)
        below = EvidenceReader(source.root)
        candidates = (read_candidate_alone(below, program, about.verdict.kind, manifest.candidate),)
    return ReportModel(
        "candidate", source.root.name, "", str(source.root), program, candidates, faults=tuple(source.faults)
    )


# --- check -----------------------------------------------------------------------------------------------------------


_LIMIT_S: Final = 3600
_LONGEST: Final = 20_000


def current_time() -> str:
    """Return the current minute, in UTC, as text."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def run_check(path: Path) -> CheckResult:
    """Run ``mirage-formal check`` on a directory and return its result."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "mirage_formal.check", "--", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S + 120, check=False)
        held, text = done.returncode == 0, done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        held, text = False, f"check could not be run: {error}"
    return CheckResult(held, text[:_LONGEST], time.monotonic() - begin, current_time())


__all__ = ["ReadLimits", "is_evidence", "is_reportable", "read_report", "run_check"]
