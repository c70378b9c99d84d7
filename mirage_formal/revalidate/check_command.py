"""``python -m mirage_formal.check PATH``: establish a run, one candidate or one cover, again from its files alone.

Exit code 0 and a table; 1 if something does not hold, naming the first file and step; 2 if the path is none of them, or
a file cannot be read as what it should be.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mirage_formal.check import solvers
from mirage_formal.check.candidate import EstablishedCandidate, check_candidate
from mirage_formal.check.check_steps import CheckFailed, list_files, report_established
from mirage_formal.check.cuda.manifest import SOLVERS, EstablishedKernels
from mirage_formal.check.partitioning.cover_check import (
    EstablishedWhole,
    check_cover_directories,
    check_kernels_of_covers,
    check_whole,
    read_whole,
)
from mirage_formal.check.partitioning.cover_directory import check_cover
from mirage_formal.check.run_check import Run, check_kernel_members, check_members, read_run
from mirage_formal.check.time_limit import LIMIT_S, LimitedCheck, TimeLimitExceeded
from mirage_formal.records import (
    KERNELS,
    LAUNCH_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    SUMMARY_FILE,
    VERIFICATION_FILE,
    ExhaustedRecord,
    describe_gap,
    is_cover,
    read_file,
    sha256,
)
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.revalidate.processes import check_each
from mirage_formal.support.errors import MirageError, RunError
from mirage_formal.support.resources import processor_count
from mirage_formal.support.terminal import escape_line, quote_text

_HEAD = "candidate,verdict,kernels,certificates,obligations,steps,sympy,fingerprints,bound,seconds"
_KERNEL_HEAD = "kernels of,form,kernels,cuBLAS,obligations,again,recorded,registers,stack,numerics,us,seconds"
_SCREEN = 1600  # characters of a message
_WIDE = 60  # characters of a row of a table


@dataclass(frozen=True, slots=True)
class _CheckOptions:
    """Options of a check: number of processes, and whether machine code is compiled again."""

    jobs: int
    recompile: bool


@dataclass(frozen=True, slots=True)
class _EstablishedFacts:
    """Established facts about candidates, their kernels, whole programs, and lower bounds and spaces of runs."""

    candidates: list[EstablishedCandidate]
    kernels: list[EstablishedKernels]
    wholes: list[EstablishedWhole] = field(default_factory=list)
    bounds: list[tuple[str, ExhaustedRecord]] = field(default_factory=list)
    spaces: list[tuple[str, Sequence[str]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Outcome of a check: its exit code, its printed lines, and the established facts."""

    code: int
    report: Sequence[str] = ()
    complaint: str = ""
    found: _EstablishedFacts = field(default_factory=lambda: _EstablishedFacts([], []))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a directory; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mirage_formal.check", description=__doc__)
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="directory of a run, of several, or of one candidate or cover"
    )
    what = f"seconds for all of it; above 0 [default: {LIMIT_S:g}]"
    parser.add_argument("--time-limit", metavar="SECONDS", type=float, default=LIMIT_S, help=what)
    what = "worker processes; 1 or more [default: one for each processor]"
    parser.add_argument("--jobs", metavar="N", type=int, default=processor_count(), help=what)
    what = "do not compile kernels again, to compare them, where the NVRTC is here that compiled them [default: off]"
    parser.add_argument("--no-recompile", dest="recompile", action="store_false", help=what)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as ended:  # argparse has said what is wrong
        return int(ended.code or 0)
    outcome = check_directory(options.path, options.time_limit, options.jobs, options.recompile)
    print_outcome(outcome)
    return outcome.code


def check_directory(
    path: Path, limit_s: float, jobs: int, recompile: bool, told: list[Any] | None = None
) -> CheckOutcome:
    """Check a directory; every error, also in the arguments, becomes part of the outcome.

    Args:
        path: The directory.
        limit_s: Seconds for the whole check.
        jobs: Number of worker processes.
        recompile: Whether machine code is compiled again.
        told: List that receives established facts at once.
    """
    try:
        if jobs < 1 or not 0 < limit_s < float("inf"):
            where, got = ("--jobs", jobs) if jobs < 1 else ("--time-limit", limit_s)
            raise RunError(f"expected a number above 0, got {got:g}", where=where, hint="leave it out for the default")
        within = LimitedCheck(limit_s, _check_with_solvers, path, _CheckOptions(jobs, recompile))
        within.established = [] if told is None else told
        found = within.result()
        return CheckOutcome(0, _reports(found), "", found)
    except TimeLimitExceeded as over:
        done = _EstablishedFacts(
            [one for one in over.established if isinstance(one, EstablishedCandidate)],
            [one for one in over.established if isinstance(one, EstablishedKernels)],
        )
        partly = ["NOT the whole directory: established before the time was over", *_reports(done)]
        at, about = escape_line(over.step), f"{len(done.candidates)} candidates and kernels of {len(done.kernels)}"
        complaint = (
            f"error: {escape_line(over.file or str(path))}: time limit of {limit_s:g} s\n  step: {at}\n  {about} were "
            "established before; nothing is said about the rest\n  hint: --time-limit gives more"
        )
        return CheckOutcome(1, partly if done.candidates else (), complaint, done)
    except CheckFailed as failure:
        head = "cannot be read" if failure.corrupt else "check failed"
        hint = "the evidence is not what a search wrote: repeat the search"
        where, what = escape_line(failure.file), f"{escape_line(failure.step)}\n  {escape_line(failure.what, _SCREEN)}"
        return CheckOutcome(2 if failure.corrupt else 1, (), f"error: {where}: {head}\n  step: {what}\n  hint: {hint}")
    except MirageError as error:
        return CheckOutcome(2, (), f"error: {error}")
    except OSError as error:  # a name that is too long, a directory that may not be read
        if error.filename is None:
            raise
        what = f"expected a readable path, got {error.strerror or type(error).__name__}"
        return CheckOutcome(2, (), f"error: {escape_line(str(error.filename), 200)}: {what}\n  hint: check the path")


def print_outcome(outcome: CheckOutcome) -> None:
    """Print the outcome of a check."""
    print("".join(f"{escape_line(text, _SCREEN)}\n" for text in outcome.report), end="")
    if text := outcome.complaint:
        print(text if len(text) <= _SCREEN else f"{text[:_SCREEN]} ...", file=sys.stderr)


def _check_with_solvers(path: Path, how: _CheckOptions) -> _EstablishedFacts:
    """Check a directory with a time budget for solvers; return the established facts."""
    solvers.reset_solver_budget()
    list_files(path)  # a directory beyond the bounds is refused before anything in it is read
    return _check(path, how)


def _reports(found: _EstablishedFacts) -> list[str]:
    kernels = _kernel_report(found.kernels) if found.kernels else []
    candidates = _report(found.candidates) if found.candidates or not found.wholes else []
    return [*candidates, *kernels, *_whole_report(found.wholes), *_bound_report(found)]


def _check(path: Path, how: _CheckOptions) -> _EstablishedFacts:
    """Check a candidate, a cover, a run, or all runs of a program file.

    Raises:
        CheckFailed: A check fails.
        RunError: The path is none of these, or one of the runs has not finished.
    """
    if (path / WHOLE_FILE).is_file():  # first: whatever else lies beside it does not belong there
        return _check_whole(path, how)
    if (path / LAUNCH_FILE).is_file():
        hint = "give the directory of the run: kernels are checked with the candidate that they are made of"
        raise RunError("expected a run or a candidate, got kernels", where=str(path), hint=hint)
    if (path / MANIFEST_FILE).is_file() and is_cover(path):
        return _check_cover_alone(path)
    if (path / MANIFEST_FILE).is_file():
        return _EstablishedFacts([report_established(check_candidate(path))], [])
    inside = sorted(path.iterdir()) if path.is_dir() else []
    runs = [below for below in inside if (below / RUN_FILE).is_file() or (below / WHOLE_FILE).is_file()]
    if (path / SUMMARY_FILE).is_file() or (path / RUN_FILE).is_file() or not runs:
        return _check_run(path, how)[1]
    for below in inside:
        if below not in runs and below.is_dir() and any(below.iterdir()):
            what = f"expected runs of several programs, got {below.name}, which is none"
            raise RunError(what, where=str(below), hint="give the directory of one run, or move this away")
    return _merge_facts([(below.name, _check(below, how)) for below in runs])


def _merge_facts(each: Sequence[tuple[str, _EstablishedFacts]]) -> _EstablishedFacts:
    """Merge the facts about several directories, with the directories' names as prefixes."""
    return _EstablishedFacts(
        [replace(one, name=f"{name}/{one.name}") for name, found in each for one in found.candidates],
        [replace(one, name=f"{name}/{one.name}") for name, found in each for one in found.kernels],
        [one for _, found in each for one in found.wholes],
        [(_run_name(name, below), one) for name, found in each for below, one in found.bounds],
        [(_run_name(name, below), lines) for name, found in each for below, lines in found.spaces],
    )


def _run_name(name: str, below: str) -> str:
    return name if below in name else f"{name}/{below}"


def _check_cover_alone(path: Path) -> _EstablishedFacts:
    held = check_cover(path)
    counts = (len(held.operators), held.replaced, held.kernels, held.unfused)
    whole = EstablishedWhole(path.name, 0, held.digest, *counts, held.conditions, held.added)
    return _EstablishedFacts([report_established(one) for one in held.candidates], [], [whole])


def _check_whole(path: Path, how: _CheckOptions) -> _EstablishedFacts:
    whole = read_whole(path)
    runs = {name: _check_run(path / name, how) for name in whole.runs}
    found = _merge_facts([(name.rpartition("/")[2], about) for name, (_, about) in runs.items()])
    about = check_whole(whole, {name: (run, held.candidates) for name, (run, held) in runs.items()})
    known = {
        sha256(read_file(directory / MANIFEST_FILE)): one
        for run, held in runs.values()
        for directory, one in zip(run.directories, held.candidates, strict=True)
    }
    check_cover_directories(whole, known)
    names = list(whole.kernels)
    kernels = check_each(partial(_derive, recompile=how.recompile), [path / KERNELS / name for name in names], how.jobs)
    check_kernels_of_covers(whole, dict(zip(names, kernels, strict=True)))
    return replace(found, wholes=about, kernels=[*found.kernels, *kernels])


def _check_run(path: Path, how: _CheckOptions) -> tuple[Run, _EstablishedFacts]:
    if not (path / SUMMARY_FILE).is_file():
        got = "neither" if path.is_dir() else "a file" if path.is_file() else "no such directory"
        if (path / RUN_FILE).is_file():
            got = "a run that has not finished"
        what = f"expected a run ({SUMMARY_FILE}) or a candidate ({MANIFEST_FILE}), got {got}"
        raise RunError(what, where=str(path), hint="give a directory that a search has written, or --resume the search")
    run = read_run(path)
    results = check_each(check_candidate, run.directories, how.jobs)
    check_members(run, results)
    # The cost model and the space are loaded when the candidates are established: no verdict depends on them.
    from mirage_formal.revalidate.exhausted_record_check import check_exhausted
    from mirage_formal.revalidate.space_comparison import compare_with_space, describe_space

    bound = check_exhausted(run)
    space = describe_space(compare_with_space(run))
    kernels = check_each(partial(_derive, recompile=how.recompile), run.kernels, how.jobs)
    check_kernel_members(run, kernels)
    bounds = [(path.name, bound)] if bound is not None else []
    return run, _EstablishedFacts(results, kernels, bounds=bounds, spaces=[(path.name, space)])


def _derive(directory: Path, *, recompile: bool) -> EstablishedKernels:
    # Code generation and its analysis are loaded only where there are kernels.
    from mirage_formal.revalidate.rederive import derive_kernels

    return derive_kernels(directory, recompile=recompile)


def _report(results: Sequence[EstablishedCandidate]) -> list[str]:
    rows = [
        (
            item.name,
            item.verdict,
            str(item.kernels),
            str(item.certificates),
            str(item.obligations),
            str(item.steps) if item.steps else "-",
            _sympy(item),
            str(item.rounds) if item.rounds else "none",
            _error_bound_line(item),
            f"{item.seconds:.1f}",
        )
        for item in results
    ]
    return [*_table(_HEAD, rows), *_explain_candidates(results)]


def _table(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned columns; a wide table is split to several, each with the column of names."""
    rows = [head.split(","), *([escape_line(cell, 80) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines, columns = list[str](), [0]
    for i in [*range(1, len(widths)), 0]:
        if i == 0 or sum(widths[j] + 2 for j in columns) + widths[i] > _WIDE:
            lines += ["  ".join(row[j].ljust(widths[j]) for j in columns).rstrip() for row in rows]
            columns = [0]
        columns.append(i)
    return lines


def _whole_report(wholes: Sequence[EstablishedWhole]) -> list[str]:
    """Return the report lines about the covers of whole programs."""
    lines: list[str] = []
    for one in wholes:
        file = WHOLE_FILE if one.rank else VERIFICATION_FILE
        which = f"whole program {quote_text(one.name, 80)}, cover {one.rank}" if one.rank else f"cover {one.name}"
        lines += [
            f"{which} ({one.digest[:12]}): equivalent.",
            f"Its {one.parts} parts are a partition of the program; proved candidates",
            f"take the place of {one.replaced}, the others' operators stay; put together again, that is {one.kernels}",
            f"kernels instead of {one.unfused}. Its {len(one.conditions)} conditions are its parts' ({file}).",
            *_added_condition_lines([(one.name, one.added)]),
        ]
    return lines


def _bound_report(found: _EstablishedFacts) -> list[str]:
    """Return the report lines about runs: lower bounds derived again, and spaces enumerated again."""
    lines = [f"{escape_line(name, 80)}: {describe_gap(one)} (derived again)." for name, one in found.bounds]
    lines += [f"{escape_line(name, 80)}: {text}." for name, each in found.spaces for text in each]
    return ["", *lines] if lines else []


def _sympy(item: EstablishedCandidate) -> str:
    if item.opinions is None:
        return "-"
    return f"{item.opinions.confirmed}/{item.opinions.confirmed + len(item.opinions.undecided)}"


def _error_bound_line(item: EstablishedCandidate) -> str:
    if item.verdict == "equivalent":
        return "-"
    return "none" if item.bound_log2 is None else f"2^{item.bound_log2:.1f}"


def _explain_candidates(results: Sequence[EstablishedCandidate]) -> list[str]:
    """Return the lines that explain the table of candidates and the basis of each verdict."""
    proved = [item for item in results if item.verdict == "equivalent"]
    lines = [
        f"Candidates established again: {len(results)}, of which proved equivalent: {len(proved)}. Digests agree,",
        "graphs are well-formed, every tensor has a certificate (unsat for z3 and cvc5; the abstract claim only).",
    ]
    if added := sorted({statement for item in results for statement in item.axioms}):
        lines += ["Certificates are instances of the project's axioms and of these, which the author added:", *added]
    if proved:
        lines += [
            "equivalent: equal over the reals for all inputs on which the conditions hold. The kernel replayed the",
            "proof, z3 and cvc5 refuted its digit lemmas; fingerprints were drawn again, the verdict rests on none.",
            f"conditions: {_conditions(proved)}",
            *_added_condition_lines([(item.name, item.added) for item in proved]),
            "That some input meets them all was tried, in float64, when it was accepted; it is not tried here.",
            "sympy: closing identities that it confirms, of all; it leaves the others undecided and finds none wrong.",
        ]
    if evaluators := sorted({item.galois for item in results if item.galois}):
        lines.append(f"galois {', '.join(evaluators)} evaluated the fingerprints, in arrays over GF(p) and GF(q).")
    if none := sum(not item.rounds for item in results):
        lines += [
            f"fingerprints none ({none}): an operator has no picture in a finite field, a tensor is too large, or no",
            "point at which both graphs have a value was found, as the author says.",
        ]
    if len(proved) < len(results):
        lines += [
            "probable: NOT proved. It rests on the fingerprints, drawn again, whose error the bound states (none: the",
            "theorem gives no bound below 1).",
        ]
    return lines


def _conditions(proved: Sequence[EstablishedCandidate]) -> str:
    """Return the side conditions of all candidates by kind; proof.jsonl names each with its operator."""
    kinds = sorted({condition.rpartition(": ")[2] for item in proved for condition in item.conditions})
    return f"{', '.join(kinds)} (where: proof.jsonl)" if kinds else "none"


def _added_condition_lines(each: Sequence[tuple[str, tuple[str, ...]]], whose: str = "program") -> list[str]:
    """Return lines on the conditions that the program, or another graph, does not have, by candidate."""
    found = [f"  {escape_line(name, 80)}: {'; '.join(added)}" for name, added in each if added]
    return (
        [f"conditions that the {whose} does not have:", *found] if found else [f"None is one that the {whose} has not."]
    )


def _kernel_report(results: Sequence[EstablishedKernels]) -> list[str]:
    rows = [
        (
            item.name,
            "rewritten" if item.stabilized else "as proved",
            str(item.kernels),
            str(item.products) if item.products else "-",
            str(item.obligations),
            str(sum(item.again.values())),
            str(sum(item.recorded.values())),
            _by_arch({arch: code.registers for arch, code in item.code.items()}),
            _by_arch({arch: code.stack_bytes for arch, code in item.code.items()}),
            "-" if item.numerics is None else f"{item.numerics.answer} ({item.numerics.ratio:.2f})",
            "-" if item.measure is None else f"{item.measure.us:.2f}",
            f"{item.seconds:.1f}",
        )
        for item in results
    ]
    return ["", *_table(_KERNEL_HEAD, rows), *_kernel_meaning(results)]


def _by_arch(values: Mapping[str, int]) -> str:
    return " ".join(f"{arch}:{value}" for arch, value in sorted(values.items())) or "-"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _form_conditions(results: Sequence[EstablishedKernels]) -> list[str]:
    """Return where rewritten forms equal their candidates, by kind; the candidates' own conditions are listed above."""
    if not any(item.stabilized for item in results):
        return []
    held = sorted({one.rpartition(": ")[2] for item in results for one in item.conditions})
    return [
        f"conditions of the proofs of rewritten forms: {', '.join(held) or 'none'} (where: equivalence.json).",
        *_added_condition_lines([(item.name, item.added) for item in results if item.stabilized], "candidate"),
    ]


def _machine_meaning(again: int, written: Mapping[str, int], results: Sequence[EstablishedKernels]) -> list[str]:
    """Return the lines about machine code: compiled again with equal bytes, or only as the author wrote it."""
    lines: list[str] = []
    if again:
        compilers = ", ".join(sorted({item.compiler for item in results if item.compiler}))
        lines.append(
            f"Machine code: {again} files are, byte for byte, what NVRTC {compilers} makes of that CUDA C++ here."
        )
    lines += [f"Machine code as written by the author: {count} files, {why}." for why, count in sorted(written.items())]
    return lines


def _realized_meaning(results: Sequence[EstablishedKernels]) -> list[str]:
    """Return the lines that say of how many kernels it is established that they compute their µGraph."""
    kernels, realized = sum(item.kernels for item in results), sum(item.realized for item in results)
    tested = sum(item.tested for item in results)
    lines = [
        f"Of {kernels} kernels {realized} compute their µGraph over the reals: both were evaluated again, element by",
        "element, at random points of prime fields drawn here.",
    ]
    if tested:
        lines.append(f"{tested} kernels were accepted as tested, not proved.")
    if rest := kernels - realized - tested:
        lines.append(
            f"{rest} kernels have no claim in their directory, and it is not decided that they compute theirs."
        )
    return lines


def _read_back_meaning(results: Sequence[EstablishedKernels]) -> str:
    kernels, read = sum(item.kernels for item in results), sum(item.read_back for item in results)
    if read < kernels:
        return f"CUDA C++ of {kernels - read} kernels was not read back: pip install tree-sitter tree-sitter-cuda."
    return f"CUDA C++ of {read} kernels, read back by tree-sitter's grammar of CUDA, states exactly their Programs."


def _kernel_meaning(results: Sequence[EstablishedKernels]) -> list[str]:
    """Return the lines that explain the table of kernels, and its limits."""
    again, recorded, written = (Counter[str]() for _ in range(3))
    for item in results:
        again.update(item.again)
        recorded.update(item.recorded)
        written.update(item.written)
    total, held, refuted = sum(item.obligations for item in results), sum(again.values()), again.pop(SOLVERS, 0)
    lines = [
        f"Kernels of {len(results)} candidates. Digests agree; each launch computes one operator of a µGraph that is",
        "the candidate's, or equal to it by replayed proofs of what it changes; registers and stack frames are the",
        "machine code's own.",
        *_form_conditions(results),
        "Derived again from each µGraph, and equal to the files: Programs, CUDA C++, launches, plans, obligations of",
        f"safety and their questions. Of {total} obligations {held} hold again: {SOLVERS} refuted the negation",
        f"of {refuted}; settled by the analysis alone: {_counted(again)}. Only recorded: {_counted(recorded)}.",
        *_realized_meaning(results),
        _read_back_meaning(results),
        *_machine_meaning(sum(item.compiled for item in results), written, results),
        "This rests on the analysis of safety (codegen/safety/) and the meaning of Programs' statements that made the",
        "kernels, not on an independent implementation; that the obligations are all that safety needs is tested and",
        "not proved.",
    ]
    if devices := sorted({item.numerics.device for item in results if item.numerics is not None}):
        where = ", ".join(quote_text(name, 80) for name in devices[:4])
        lines += [
            f"numerics: recorded on {where} (its author's words in quotes), not run again; in brackets the largest",
            "error over its tolerance.",
        ]
    return lines
