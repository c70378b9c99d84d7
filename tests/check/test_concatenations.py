"""Certificates of concatenations: one about the sum of their parts, or one about each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.check.candidate import check_candidate
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import PROOF_FILE
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.runs.tampering import copy, read_lines, sign_candidate, write_lines


def program() -> KernelGraph:
    """The sigmoid of a concatenation: of that of each part, but not of their sum, the sum is part of the output's."""
    g = mf.new_kernel_graph()
    x, y = g.new_input(dims=(8, 64), name="x"), g.new_input(dims=(1, 64), name="y")
    g.mark_output(g.sigmoid(g.concat([x, y * 0 + 1], dim=0) * 2))
    return g.freeze()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = Settings(workers=1, keep=1, cache=False, longer=True)
    report = run_search(program(), settings, tmp_path_factory.mktemp("parts") / "run")
    assert report.summary.rejected == ()
    return report.results[0].directory


def test_each_part_has_a_certificate(found: Path) -> None:
    lines = Counter(line.get("tensor") for line in read_lines(found / PROOF_FILE))
    del lines[None]
    assert sorted(lines.values())[-1] == 2
    held = check_candidate(found)
    assert held.verdict == "equivalent"
    assert held.certificates == sum(lines.values())


def swapped(pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return pair[::-1]


def first(pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return pair[:1]


def twice(pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pair[0], pair[0]]


def more(pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*pair, pair[0]]


def none(pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return []


@pytest.mark.parametrize("change", [swapped, first, twice, more, none])
def test_other_parts_are_refused(
    found: Path, tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    root = copy(found, tmp_path / found.name)
    lines = read_lines(root / PROOF_FILE)
    many = Counter(line.get("tensor") for line in lines)
    at = next(i for i, line in enumerate(lines) if many[line.get("tensor")] == 2)
    changed = [*lines[:at], *change(lines[at : at + 2]), *lines[at + 2 :]]
    used = {line["file"] for line in changed if "tensor" in line}
    changed[-1] |= {"certificates": len([line for line in changed if "tensor" in line]), "obligations": len(used)}
    write_lines(root / PROOF_FILE, changed)
    for line in lines:
        if "tensor" in line and line["file"] not in used:
            (root / line["file"]).unlink(missing_ok=True)
    sign_candidate(root)
    with pytest.raises(CheckFailed) as refused:
        check_candidate(root)
    assert refused.value.step in ("complete proof log", f"claim about {lines[at]['tensor']}")
    assert "expected" in refused.value.what
