"""Runs rows of the artifact: ``artifact/run --kick-tires | --cpu | --gpu | --only NAME``."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifact.claims import CLAIMS, Claim
from artifact.judges import ROOT, Ran


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a row.

    Attributes:
        claim: The row.
        word: "PASS", "FAIL" or "SKIP".
        reason: Why, if it did not pass.
        seconds: Wall time.
    """

    claim: Claim
    word: str
    reason: str
    seconds: float


def execute(claim: Claim, where: Path) -> Outcome:
    """Run one row; its output is kept in ``where``."""
    if claim.tier == "gpu" and shutil.which("nvidia-smi") is None:
        return Outcome(claim, "SKIP", "no GPU here", 0.0)
    command = claim.command.replace("PYTHON", sys.executable)
    begin = time.monotonic()
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seconds = time.monotonic() - begin
    (where / f"{claim.name}.log").write_text(f"$ {command}\n{done.stdout}", encoding="utf-8")
    reason = claim.judge(Ran(done.returncode, done.stdout))
    if reason:
        reason += busy(*os.getloadavg())
    return Outcome(claim, "FAIL" if reason else "PASS", reason, seconds)


def busy(minute: float, five: float, quarter: float) -> str:
    """What to know of a row that fails on a machine that does other work: times are judged as if it did none.

    Args:
        minute: Processes that wanted to run, on average over the last minute.
        five: Over the last five.
        quarter: Over the last fifteen.
    """
    processors = os.cpu_count() or 1
    load = max(minute, five, quarter)
    return f" (load {load:.1f} on {processors} processors: times want an idle machine)" if load > 2 * processors else ""


def report(outcomes: Sequence[Outcome]) -> str:
    """The report of a call, as Markdown."""
    lines = ["# Artifact report", "", "| name | result | seconds | reason |", "|---|---|--:|---|"]
    lines += [f"| {one.claim.name} | {one.word} | {one.seconds:.0f} | {one.reason} |" for one in outcomes]
    return "\n".join(lines) + "\n"


def chosen(arguments: Sequence[str] | None) -> list[Claim]:
    """The rows that are asked for."""
    parser = argparse.ArgumentParser(
        prog="artifact/run", description="Run claims of docs/results.md; see artifact/README.md."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--kick-tires", action="store_true", help="about 5 minutes on two processors, no GPU")
    which.add_argument("--cpu", action="store_true", help="these and all that a CPU can show; some hours")
    which.add_argument("--gpu", action="store_true", help="what needs a GPU")
    which.add_argument("--only", metavar="NAME", choices=[one.name for one in CLAIMS], help="one row")
    given = parser.parse_args(arguments)
    if given.only is not None:
        return [one for one in CLAIMS if one.name == given.only]
    tiers = ("gpu",) if given.gpu else ("kick-tires", "cpu") if given.cpu else ("kick-tires",)
    return [one for one in CLAIMS if one.tier in tiers]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print a line for each row, and write the report."""
    claims = chosen(arguments)
    where = ROOT / "runs" / "artifact"
    where.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for claim in claims:
        print(f"{claim.name}: {claim.claim} ({claim.minutes:g} min) ... ", end="", flush=True)
        outcome = execute(claim, where)
        outcomes.append(outcome)
        print(f"{outcome.word} {outcome.reason}".rstrip(), flush=True)
    (where / "report.md").write_text(report(outcomes), encoding="utf-8")
    counts = {word: sum(one.word == word for one in outcomes) for word in ("PASS", "FAIL", "SKIP")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()) + f"; {where / 'report.md'}")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
