"""``python -m mirage_formal.check PATH``: establish a run, or one candidate, again from its files alone.

Exit code 0 and a table; 1 if something does not hold, naming the first file and step; 2 if the path is no run and no
candidate, or a file cannot be read as what it should be.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from mirage_formal.check.candidate import CheckFailed, Established, check_candidate
from mirage_formal.check.run import check_members, read_run
from mirage_formal.errors import MirageError, RunError
from mirage_formal.journal import MANIFEST_FILE, RUN_FILE, SUMMARY_FILE

_HEAD = (
    *("candidate", "verdict", "kernels", "certificates", "obligations"),
    *("steps", "sympy", "fingerprints", "bound", "seconds"),
)
_SCREEN = 1600  # characters of a message


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a directory; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mirage_formal.check", description=__doc__)
    parser.add_argument("path", type=Path, help="directory of a run, of several runs, or of one candidate")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes [default: processors]")
    try:
        options = parser.parse_args(arguments)
    except SystemExit as ended:  # argparse has said what is wrong
        return int(ended.code or 0)
    try:
        if options.jobs < 1:
            hint = "one process for each processor is the default"
            raise RunError(f"expected at least 1, got {options.jobs}", where="--jobs", hint=hint)
        print(_report(_check(options.path, options.jobs)))
    except CheckFailed as failure:
        head = "cannot be read" if failure.corrupt else "check failed"
        hint = "the evidence is not what a search wrote; see docs/run-directory.md, or repeat the search"
        _complain(f"error: {failure.file}: {head}\n  step: {failure.step}\n  {failure.what}\n  hint: {hint}")
        return 2 if failure.corrupt else 1
    except MirageError as error:
        _complain(f"error: {error}")
        return 2
    return 0


def _complain(text: str) -> None:
    print(text if len(text) <= _SCREEN else f"{text[:_SCREEN]} ...", file=sys.stderr)


def _check(path: Path, jobs: int) -> list[Established]:
    """Establish a candidate, a run, or all runs of a program file.

    Raises:
        CheckFailed: Something does not hold.
        RunError: The path is none of these, or one of the runs has not finished.
    """
    if (path / MANIFEST_FILE).is_file():
        return [check_candidate(path)]
    inside = sorted(path.iterdir()) if path.is_dir() else []
    runs = [below for below in inside if (below / RUN_FILE).is_file()]
    if (path / SUMMARY_FILE).is_file() or (path / RUN_FILE).is_file() or not runs:
        return _check_run(path, jobs)
    return [replace(one, name=f"{below.name}/{one.name}") for below in runs for one in _check_run(below, jobs)]


def _check_run(path: Path, jobs: int) -> list[Established]:
    if not (path / SUMMARY_FILE).is_file():
        got = "no such directory" if not path.is_dir() else "neither"
        if (path / RUN_FILE).is_file():
            got = "a run that has not finished"
        what = f"expected a run ({SUMMARY_FILE}) or a candidate ({MANIFEST_FILE}), got {got}"
        raise RunError(what, where=str(path), hint="give a directory that a search has written, or --resume the search")
    run = read_run(path)
    results = _all(run.directories, jobs)
    check_members(run, results)
    return results


def _all(directories: list[Path], jobs: int) -> list[Established]:
    """Every candidate, in order, so that the first failure is always the same one."""
    jobs = min(jobs, len(directories))
    if jobs <= 1:
        return [check_candidate(directory) for directory in directories]
    # Matrix products of one process each: the processes share the processors.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    with pool:
        futures = [pool.submit(check_candidate, directory) for directory in directories]
        results: list[Established] = []
        for directory, future in zip(directories, futures, strict=True):
            try:
                results.append(future.result())
            except BrokenProcessPool as error:
                what = "the process that checked it died; try --jobs 1"
                raise CheckFailed(str(directory), "check in a process of its own", what) from error
            except CheckFailed:
                pool.shutdown(cancel_futures=True)
                raise
    return results


def _report(results: Sequence[Established]) -> str:
    rows = [
        (
            item.name,
            item.verdict,
            str(item.kernels),
            str(item.certificates),
            str(item.obligations),
            str(item.steps) if item.steps else "-",
            _sympy(item),
            str(item.rounds) if item.rounds else "-",
            _bound(item),
            f"{item.seconds:.1f}",
        )
        for item in results
    ]
    widths = [max(len(row[i]) for row in (_HEAD, *rows)) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (_HEAD, *rows)]
    return "\n".join([*(line.rstrip() for line in lines), *_meaning(results)])


def _sympy(item: Established) -> str:
    if item.opinions is None:
        return "-"
    return f"{item.opinions.confirmed}/{item.opinions.confirmed + len(item.opinions.undecided)}"


def _bound(item: Established) -> str:
    if item.verdict == "equivalent":
        return "-"
    return "none" if item.bound_log2 is None else f"2^{item.bound_log2:.1f}"


def _meaning(results: Sequence[Established]) -> list[str]:
    """What the table shows, and on what each verdict rests."""
    proved = [item for item in results if item.verdict == "equivalent"]
    lines = [
        f"Candidates established again: {len(results)}, of which proved equivalent: {len(proved)}. Digests agree,",
        "graphs are well-formed, every tensor has a certificate (unsat for z3 and cvc5; the abstract claim only).",
    ]
    if proved:
        lines += [
            "equivalent: equal over the reals for all inputs on which the conditions hold. The kernel replayed the",
            "proof, z3 and cvc5 refuted its digit lemmas; fingerprints were drawn again, the verdict rests on none.",
            f"conditions: {_conditions(proved)}",
            "sympy: closing identities that it confirms, of all; it leaves the others undecided and finds none wrong.",
        ]
    if len(proved) < len(results):
        lines += [
            "probable: NOT proved. It rests on the fingerprints, drawn again, whose error the bound states (none: the",
            "theorem gives no bound below 1).",
        ]
    return lines


def _conditions(proved: Sequence[Established]) -> str:
    """The conditions of all candidates by kind; each is named with its operator in proof.jsonl."""
    kinds = sorted({condition.rpartition(": ")[2] for item in proved for condition in item.conditions})
    return f"{', '.join(kinds)} (where: proof.jsonl)" if kinds else "none"


if __name__ == "__main__":
    sys.exit(main())
