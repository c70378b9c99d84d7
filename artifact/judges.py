"""What is expected of a command's output: each judge returns why the claim does not hold, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended.

    Attributes:
        code: Its exit code.
        output: What it printed, both streams.
    """

    code: int
    output: str


Judge = Callable[[Ran], str]


def measured() -> str:
    """Return the text of docs/results.md."""
    return (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs and tables."""
    yield from (block.strip() for block in re.split(r"\n\s*\n", text) if block.strip())


def rows(text: str) -> dict[str, list[str]]:
    """The rows of Markdown tables: what stands in the first cell, and the others."""
    found = {}
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|-: "):
            first, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
            found[first] = cells
    return found


def number(text: str) -> float:
    """The first number of a text, which may have commas in it."""
    found = re.search(r"\d[\d,]*(?:\.\d+)?", text)
    if found is None:
        raise ValueError(f"no number in {text!r}")
    return float(found[0].replace(",", ""))


def ends_well(ran: Ran) -> str:
    """The command judges itself, by its exit code."""
    return "" if ran.code == 0 else f"exit code {ran.code}"


def says(*wanted: str) -> Judge:
    """The exit code is 0, and every pattern occurs."""

    def judge(ran: Ran) -> str:
        missing = [one for one in wanted if re.search(one, ran.output) is None]
        return ends_well(ran) or (f"expected {missing[0]!r} in the output" if missing else "")

    return judge


def searches(slower: float) -> Judge:
    """The counts of the table of searches in docs/results.md exactly, and its seconds within a factor."""

    def judge(ran: Ran) -> str:
        [table] = [block for block in blocks(measured()) if block.startswith("| example | s |")]
        wanted, got = rows(table), rows(ran.output)
        for example, (_, *counts) in wanted.items():
            if example == "example":
                continue
            if example not in got:
                return f"no row of {example}"
            if got[example][1:] != counts:
                return f"{example}: expected states, found and reported {counts}, got {got[example][1:]}"
        late = [
            f"{example}: expected at most {slower:g} times {cells[0]} s, got {got[example][0]} s"
            for example, cells in wanted.items()
            if example != "example" and number(got[example][0]) > slower * number(cells[0])
        ]
        return ends_well(ran) or (f"counts agree, times do not: {late[0]}" if late else "")

    return judge


def proofs(slower: float) -> Judge:
    """All candidates are proved, and medians of proving and replaying are those of docs/results.md within a factor."""

    def judge(ran: Ran) -> str:
        said = re.search(r"proving\s+([\d.]+) ms median.*?replay ([\d.]+) median", measured(), flags=re.DOTALL)
        row = rows(ran.output).get("**all**")
        if said is None or row is None:
            return "no row of all runs, or no such sentence in docs/results.md"
        if row[1] != "0":
            return f"{row[1]} candidates are not proved"
        for what, wanted, got in (("proving", said[1], row[2]), ("replay", said[2], row[4])):
            if number(got) > slower * number(wanted):
                return f"{what}: expected at most {slower:g} times {wanted} ms, got {got}"
        return ends_well(ran)

    return judge


def known(most: float, least: int) -> Judge:
    """At most so many percent are unknown, of at least so many candidates: of none, nothing would be shown."""

    def judge(ran: Ran) -> str:
        row = rows(ran.output).get("**all**")
        if row is None:
            return ends_well(ran) or "no row of all runs"
        count, share = sum(int(cell.replace(",", "")) for cell in row[:-1]), float(row[-1])
        if count < least:
            return f"expected at least {least} candidates, got {count}"
        return ends_well(ran) or (f"expected at most {most:g} % unknown, got {share:g} %" if share > most else "")

    return judge


def structures(ran: Ran) -> str:
    """Of RMSNorm at 11 of the paper's operators, the structures that the reference reports: 26."""
    heads = next((line for line in ran.output.splitlines() if line.startswith("| paper's operators | wall")), "")
    row = [line for line in ran.output.splitlines() if line.startswith("| 11 |")]
    if not heads or not row:
        return "no row of 11 operators"
    cells = dict(zip(heads.strip("| ").split(" | "), row[0].strip("| ").split(" | "), strict=False))
    got = cells.get("reference's")
    return ends_well(ran) if got == "26" else f"expected 26 of the reference's structures, got {got}"
