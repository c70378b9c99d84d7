"""The artifact: every number of docs/results.md has its row, the README repeats some, and judges see what is wrong."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from artifact import runner
from artifact.claims import CLAIMS, EVERY, Claim, page
from artifact.judges import Ran, blocks, ends_well, known, measured, proofs, rows, says, searches, structures
from benchmarks.corpus import table
from benchmarks.in_processes import Row
from benchmarks.unknown import row
from tests.kit.paths import REPOSITORY

NUMBER = re.compile(r"\d+e-\d+|\d[\d,]*(?:\.\d+)?")


def numbers(block: str) -> list[str]:
    """The numbers of a paragraph, those in code and in names of files left out."""
    prose = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|[\w/.-]+\.md|commit \w+", " ", block)
    return [found.rstrip(",") for found in NUMBER.findall(re.sub(r"(?<=[A-Za-z])\d+", " ", prose))]


def about(block: str) -> list[Claim]:
    flat = " ".join(block.split())
    return [claim for claim in CLAIMS if flat.startswith(claim.paragraph)]


def uncovered(text: str) -> list[tuple[str, list[str]]]:
    """Paragraphs of a text with numbers that no row is about."""
    wrong = []
    for block in blocks(text):
        claims = about(block)
        covered = {number for claim in claims for number in claim.numbers}
        left = [] if set(EVERY) & covered else [one for one in numbers(block) if one not in covered]
        if left:
            wrong.append((block[:60], left))
    return wrong


def test_every_number_of_the_results_has_its_row() -> None:
    assert uncovered(measured()) == []


def repeated() -> str:
    """The measured part of the README."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return text.partition("\n## Measured\n")[2].partition("\n## ")[0]


def searches_of(text: str) -> dict[str, dict[str, str]]:
    """The cells of the table of searches, by example and head."""
    [block] = [one for one in blocks(text) if one.startswith("| example | s |")]
    heads, *cells = rows(block).items()
    return {name: dict(zip(heads[1], values, strict=True)) for name, values in cells}


def test_the_readme_repeats_numbers_of_the_results() -> None:
    there = {number for block in blocks(measured()) for number in numbers(block)}
    assert [number for block in blocks(repeated()) for number in numbers(block) if number not in there] == []
    full, short = searches_of(measured()), searches_of(repeated())
    assert len(short) >= 8
    for example, cells in short.items():
        assert cells.items() <= full[example].items(), example


def test_every_row_is_about_a_paragraph_and_its_numbers() -> None:
    flat = {" ".join(block.split()): block for block in blocks(measured())}
    for claim in CLAIMS:
        [block] = [block for one, block in flat.items() if one.startswith(claim.paragraph)]
        stale = [one for one in claim.numbers if one not in numbers(block) and (one,) != EVERY]
        assert stale == [], (claim.name, stale)


def test_a_number_without_a_row_is_seen() -> None:
    text = "**Proofs**, one core, all 1,054 candidates: 3.9 ms median, 7.25 at most"
    assert uncovered(text) == [(text[:60], ["7.25"])]


def test_the_page_is_the_table() -> None:
    assert (REPOSITORY / "artifact" / "README.md").read_text(encoding="utf-8") == page()
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_judges_see_what_is_wrong() -> None:
    table = "".join(
        f"| {name} | {' | '.join(cells)} |\n" for name, cells in rows(measured()).items() if len(cells) == 4
    )
    assert searches(4.0)(Ran(0, table)) == ""
    assert "expected states" in searches(4.0)(Ran(0, table.replace("261,289", "261,290")))
    assert searches(0.5)(Ran(0, table)).startswith("counts agree, times do not: attn")
    assert "exit code" in searches(4.0)(Ran(1, table))
    # A count that is wrong is named, however late another row is.
    _, states, *_ = rows(measured())["mla"]
    assert "mla: expected states" in searches(0.5)(Ran(0, table.replace(states, "1,234")))
    assert "no row" in searches(4.0)(Ran(0, ""))
    line = "| **all** | 16 | 0 | 4.0 | 9.0 | 5.1 | 12.0 | 2,500 | 5,800 |\n"
    assert proofs(4.0)(Ran(0, line)) == ""
    assert "not proved" in proofs(4.0)(Ran(1, line.replace("| 0 |", "| 1 |")))
    assert "replay" in proofs(1.01)(Ran(0, line.replace("4.0", "3.9")))
    heads = "| paper's operators | wall s | structures | reference's | lost units |\n"
    assert structures(Ran(0, f"{heads}| 11 | 0.12 | 48 | 26 | 0 |\n")) == ""
    assert "got 25" in structures(Ran(0, f"{heads}| 11 | 0.12 | 48 | 25 | 0 |\n"))
    row = "| **all** | 250 | 3 | 0 | 0 | 1 | 0 | 1 | 0.8 |\n"
    assert known(1.0, 100)(Ran(0, row)) == ""
    assert "at least 100 candidates, got 0" in known(1.0, 100)(
        Ran(0, "| **all** | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0.0 |\n")
    )
    assert "exit code" in known(1.0, 100)(Ran(1, row))
    assert "got 0.8 %" in known(0.5, 100)(Ran(0, row))
    assert ends_well(Ran(3, "")) == "exit code 3"
    assert says("a b")(Ran(0, "xa by")) == ""
    assert "expected" in says("a b")(Ran(0, "ab"))


def test_rows_look_for_what_their_commands_print() -> None:
    """What a benchmark writes is judged by its row: a pattern of another version's output could never pass."""
    rows_of = {claim.name: claim for claim in CLAIMS}
    found = Row(
        program="a", stage="search", ok=True, verdict="equivalent",
        kernels=1, unfused_kernels=2, estimate_us=1.0, unfused_us=2.0,
    )  # fmt: skip
    assert rows_of["corpus"].judge(Ran(0, table([found] * 106, []))) == ""
    assert "106" in rows_of["corpus"].judge(Ran(0, table([found] * 105, [])))
    assert rows_of["unknown"].judge(Ran(0, row("**all**", Counter(accepted=255)))) == ""
    assert "got 0" in rows_of["unknown"].judge(Ran(0, row("**all**", Counter())))


def test_no_row_is_judged_by_what_an_earlier_call_has_left() -> None:
    """Whatever writes into a directory makes all of it again, or finds none there."""
    kept = 0
    for claim in CLAIMS:
        for part in claim.command.split(" && ") if claim.tier != "gpu" else ():
            for place in re.findall(r"(?:--out |REPRODUCE=)(\S+)", part):
                kept += 1
                anew = "--again" in part or "--force" in part or f"rm -rf {place} && " in claim.command
                assert anew, (claim.name, part)
    assert kept > 5


@pytest.mark.parametrize("tier", ["--kick-tires", "--cpu", "--gpu"])
def test_tiers_run_their_rows(tier: str) -> None:
    found = {claim.tier for claim in runner.chosen([tier])}
    assert found == {"--kick-tires": {"kick-tires"}, "--cpu": {"kick-tires", "cpu"}, "--gpu": {"gpu"}}[tier]


def test_a_busy_machine_is_named_and_excuses_nothing() -> None:
    many = 3.0 * (os.cpu_count() or 1)
    assert runner.busy(0.1, 0.1, 0.1) == ""
    assert "idle machine" in runner.busy(0.1, many, 0.1)


def test_a_row_is_run_and_judged(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path_factory.mktemp("artifact")
    monkeypatch.setattr(runner, "ROOT", root)
    good = Claim("good", "cpu", "c", "p", (), "PYTHON -c 'print(41 + 1)'", says("42"), "", "", 1, "")
    bad = Claim("bad", "cpu", "c", "p", (), "exit 3", ends_well, "", "", 1, "")
    monkeypatch.setattr(runner, "CLAIMS", (good, bad))
    assert runner.main(["--cpu"]) == 1
    printed = capsys.readouterr().out
    assert "PASS" in printed
    assert "FAIL exit code 3" in printed
    assert "| bad | FAIL |" in (root / "runs" / "artifact" / "report.md").read_text()
    assert "42" in (root / "runs" / "artifact" / "good.log").read_text()
