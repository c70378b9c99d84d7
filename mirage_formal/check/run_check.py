"""Check of a whole run: the files beside its candidates, and that all are of one program and one search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_formal.check.candidate import EstablishedCandidate
from mirage_formal.check.check_steps import CheckFailed, check_manifest, expect_equal, list_files, step
from mirage_formal.check.cuda.manifest import EstablishedKernels
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import decode_graph as decode_graph
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verifier import faults
from mirage_formal.records import (
    CANDIDATES,
    EXHAUSTED_FILE,
    KERNELS,
    MANIFEST_FILE,
    PACKAGES,
    PATIENCE,
    PROOF_FILE,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    FoundRecord,
    Positive,
    RunRecord,
    SummaryRecord,
    UnitRecord,
    decode,
    key_of,
    open_sealed,
    read_file,
    read_lines,
    report_order,
    resolve_inside,
    sha256,
)
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_JOURNAL_BYTES


@dataclass(frozen=True, slots=True)
class Run:
    """The records of a run that belong to no single candidate."""

    root: Path
    record: RunRecord
    program: KernelGraph
    units: tuple[UnitRecord, ...]
    summary: SummaryRecord

    @property
    def directories(self) -> list[Path]:
        """Return the directories of the reported candidates, best first."""
        return [self.root / item.directory for item in self.summary.candidates]

    @property
    def kernels(self) -> list[Path]:
        """Return the directories of kernels of the reported candidates, best first; they have the candidates' names."""
        made = (self.root / KERNELS / directory.name for directory in self.directories)
        return [path for path in made if path.is_dir()]


def read_run(root: Path) -> Run:
    """Read a run's own files and establish that they fit together.

    The cost model's estimates, times, versions and the host are not checked, because they are no evidence: they are
    only tied to the rest by digests, and estimates of the summary to those of the journal.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    run = _read(root)
    with step(root / SUMMARY_FILE, "seal"):
        open_sealed(read_file(root / SUMMARY_FILE), SummaryRecord, SUMMARY_FILE)
    empty = () if run.summary.candidates else (f"{CANDIDATES}/",)  # a run that reports none leaves the directory empty
    check_manifest(root, SUMMARY_FILE, run.summary.manifest, [f"{KERNELS}/", *empty])
    with step(root / SUMMARY_FILE, "manifest"):
        own = {name for name in run.summary.manifest if not name.startswith(f"{CANDIDATES}/")}
        # Earlier versions wrote no bound.
        expect_equal("files beside the candidates", [RUN_FILE, SEARCH_FILE], sorted(own - {EXHAUSTED_FILE}))
    _check_kernel_names(run)
    _check_identity(run)
    _check_units(run)
    _check_summary(run)
    return run


def _read(root: Path) -> Run:
    with step(root / SUMMARY_FILE, "read the summary", corrupt=True):
        summary = decode(read_file(root / SUMMARY_FILE), SummaryRecord, SUMMARY_FILE)
        for name in (*summary.manifest, *(item.directory for item in summary.candidates)):
            resolve_inside(root, name)
    with step(root / RUN_FILE, "read the run", corrupt=True):
        record = decode(read_file(root / RUN_FILE), RunRecord, RUN_FILE)
        program = from_json(bytes(record.program), "program")
    with step(root / SEARCH_FILE, "read the journal", corrupt=True):
        lines = read_lines(root / SEARCH_FILE, MAX_JOURNAL_BYTES)
        units = tuple(decode(text, UnitRecord, f"line {number}") for number, text in lines)
    return Run(root, record, program, units, summary)


def _check_kernel_names(run: Run) -> None:
    """Check that the directory of kernels has those of the candidates only."""
    place = run.root / KERNELS
    with step(place, "kernels of the reported candidates"):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise FormatError("expected a directory, got another file")
        known = {path.name for path in run.kernels if not path.is_symlink()}
        if other := sorted(name for name in list_files(place) if name.split("/")[0] not in known):
            raise FormatError(f"expected kernels of a reported candidate only, got {other[0]}")


def _check_identity(run: Run) -> None:
    """Check what a request says of itself: the digests of its program and space, its package names, and its key.

    Then check that summary.json names the same run.
    """
    who = run.record.identity
    with step(run.root / RUN_FILE, "program"):
        if found := faults(run.program):
            raise FormatError("; ".join(found)[:600])
        expect_equal("digest of the program", digest(run.program), who.program)
    with step(run.root / RUN_FILE, "search space"):
        space = {name: msgspec.json.decode(value) for name, value in run.record.space.items()}
        expect_equal("sha256 of the space", sha256(msgspec.json.encode(space)), who.space)
    with step(run.root / RUN_FILE, "versions"):
        # Earlier versions name galois too, which no search calls.
        expect_equal("packages", sorted(PACKAGES), sorted(run.record.versions.keys() - {"galois"}))
    with step(run.root / RUN_FILE, "key"):
        expect_equal("key", key_of(who), run.record.key)
    with step(run.root / SUMMARY_FILE, "which run"):
        ours = (run.record.key, who.program, run.record.name, run.record.config)
        summary = run.summary
        expect_equal("run", ours, (summary.key, summary.program_digest, summary.program, summary.config))


def _latest(run: Run) -> list[UnitRecord]:
    return list({record.unit: record for record in run.units}.values())


def _check_units(run: Run) -> None:
    """Check the journal: one run, candidates that match their digests, and totals that equal the summary's."""
    with step(run.root / SEARCH_FILE, "journal of this run"):
        for record in run.units:
            expect_equal(f"key of unit {record.unit}", run.record.key, record.key)
            expect_equal(f"unit {record.unit}: an error if it failed", record.status == "failed", bool(record.error))
            digests = [found.digest for found in record.candidates]
            expect_equal(f"unit {record.unit}: distinct candidates", len(digests), len(set(digests)))
        last = {record.unit: record for record in run.units}
        again = [record.unit for record in run.units if record.status == "done" and record is not last[record.unit]]
        expect_equal("units that were done and are listed again", [], again)
        for found in _candidates_by_digest(run.units).values():
            graph = decode_graph(found.graph)
            if broken := faults(graph):
                raise FormatError("; ".join(broken)[:600])
            expect_equal("digest of a candidate", digest(graph), found.digest)
            expect_equal("kernels of a candidate", kernel_count(graph), found.kernels)
    latest, summary = _latest(run), run.summary
    failed = sum(record.status == "failed" for record in latest)
    with step(run.root / SUMMARY_FILE, "totals of the journal"):
        expect_equal("stats", dict(_total(record.stats for record in latest)), summary.stats)
        expect_equal("states", summary.stats.get("states", 0), summary.states)
        expect_equal("pruned", dict(_total(record.pruned for record in latest)), summary.pruned)
        expect_equal("units_done", len(latest) - failed, summary.units_done)
        expect_equal("units_failed", failed, summary.units_failed)
        expect_equal("found", len(_candidates_by_digest(latest)), summary.found)
        done = {record.unit for record in latest}
        if max(done, default=-1) >= summary.units or (summary.status == "complete" and len(done) < summary.units):
            raise FormatError(f"units of a {summary.status} run: expected {len(done)}, got {summary.units}")
        searched = sum(record.fingerprint_tests for record in latest)
        least = searched + len(summary.candidates)
        # A run that its time limit ended may have tested candidates whose obligations no solver has answered yet.
        most = least + len(summary.rejected) if summary.status == "complete" else searched + summary.found
        if not least <= summary.fingerprint_tests <= most:
            raise FormatError(f"fingerprint_tests: expected {least} to {most}, got {summary.fingerprint_tests}")


def _candidates_by_digest(units: Iterable[UnitRecord]) -> dict[str, FoundRecord]:
    """Return the distinct candidates of the journal, each as the first unit recorded it."""
    found: dict[str, FoundRecord] = {}
    for record in sorted(units, key=lambda record: record.unit):
        for item in record.candidates:
            found.setdefault(item.digest, item)
    return found


def _total(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _check_summary(run: Run) -> None:
    """Check the list of candidates: found by this search, ranked, and no more directories than listed."""
    found = _candidates_by_digest(_latest(run))
    with step(run.root / SUMMARY_FILE, "list of candidates"):
        expect_equal(
            "ranks", list(range(1, len(run.summary.candidates) + 1)), [item.rank for item in run.summary.candidates]
        )
        for item in run.summary.candidates:
            here = found.get(item.digest)
            if here is None:
                raise FormatError(f"candidate {item.id}: expected one that the journal has, got digest {item.digest}")
            expect_equal(f"estimate of {item.id}", here.estimated_us, item.estimated_us)
            expect_equal(f"kernels of {item.id}", here.kernels, item.kernels)
            expect_equal(f"id of {item.directory}", item.digest[:12], item.id)
            expect_equal(f"directory of {item.id}", f"{CANDIDATES}/{item.rank:03}-{item.id}", item.directory)
            if item.outside is None:
                expect_equal(f"rounding of {item.id}", None, item.rounding)
            expect_equal(f"measurements of {item.id}", (None, None), (item.measured_us, item.max_relative_error))
        order = {item.digest: (item.estimated_us, item.outside, item.rounding) for item in run.summary.candidates}
        expect_equal("order of candidates", report_order(order), list(order))
        if run.summary.candidates and run.summary.candidates[0].outside:
            raise FormatError(f"candidate {run.summary.candidates[0].id}: expected a first one that is not outside")
        listed = {name.split("/")[1] for name in run.summary.manifest if name.startswith(f"{CANDIDATES}/")}
        expect_equal("directories", sorted(path.name for path in run.directories), sorted(listed))
        kept = {item.digest for item in run.summary.candidates}
        everybody = [*(item.digest for item in run.summary.candidates), *(one.digest for one in run.summary.rejected)]
        expect_equal("distinct candidates", len(everybody), len(set(everybody)))
        for rejected in run.summary.rejected:
            if rejected.digest in kept or rejected.digest not in found:
                raise FormatError(f"expected a rejected candidate of the journal, got {rejected.digest}")
        most = run.summary.most_us
        for item in run.summary.candidates:
            if most is not None and item.estimated_us > most:
                raise FormatError(f"estimate of {item.id}: expected at most {most} us, got {item.estimated_us}")
        worth = {name for name, one in found.items() if most is None or one.estimated_us <= most}
        _check_none_lost(run, worth - kept - {item.digest for item in run.summary.rejected})


def _check_none_lost(run: Run, missing: set[str]) -> None:
    """Check that a complete run gives a reason for each good candidate that it does not report.

    The check applies to a run that reports fewer candidates than it may keep, unless it gave up after too many
    rejections.
    """
    keep = msgspec.convert(msgspec.json.decode(run.record.space.get("keep", b"null")), Positive)
    summary = run.summary
    few = len(summary.candidates) < keep and len(summary.rejected) <= PATIENCE * keep
    if few and missing and summary.status == "complete":
        raise FormatError(f"expected a reason why {min(missing)[:12]} is not reported, got none")


def check_members(run: Run, results: Sequence[EstablishedCandidate]) -> None:
    """Check that the summary states the established facts of each candidate.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    who = run.record.identity
    for item, result in zip(run.summary.candidates, results, strict=True):
        with step(run.root / SUMMARY_FILE, f"candidate {item.id}"):
            expect_equal("digest", result.digest, item.digest)
            expect_equal("program", result.program, who.program)
            expect_equal("seed", result.seed, who.seed)
            expect_equal("verdict", result.verdict, item.verdict)
            if who.accept == "equivalent":
                expect_equal("verdict in a run that accepts only equivalent candidates", "equivalent", result.verdict)
            expect_equal("kernels", result.kernels, item.kernels)
            expect_equal("error_bound_log2", result.bound_log2, item.error_bound_log2)
        for package, version in sorted(result.solvers):
            with step(run.root / item.directory / PROOF_FILE, "versions of what has answered"):
                _check_version(package, version, run.record.versions)


def _check_version(package: str, version: str, versions: Mapping[str, str]) -> None:
    """Check that a candidate's solver versions are those of the run; the run's may have one more component."""
    installed = versions.get(package, "none")
    if installed != "not installed" and installed != version and not installed.startswith(f"{version}."):
        raise FormatError(f"version of {package}: expected {installed} as in {RUN_FILE}, got {version}")


def check_kernel_members(run: Run, results: Sequence[EstablishedKernels]) -> None:
    """Check that kernels are those of the candidate whose directory has the same name, of this run's program.

    Sound: the candidate has been certified in this run, and its graph has the digest that the kernels' manifest names.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    digests = {
        directory.name: item.digest for directory, item in zip(run.directories, run.summary.candidates, strict=True)
    }
    for result in results:
        with step(run.root / KERNELS / result.name / MANIFEST_FILE, "whose kernels"):
            expect_equal("candidate", digests[result.name], result.candidate)
            expect_equal("program", run.record.identity.program, result.program)
            who = run.record.identity
            expect_equal("target", (who.target, who.target_digest), (result.target, result.target_digest))


__all__ = ["CheckFailed", "Run", "check_kernel_members", "check_members", "read_run"]
