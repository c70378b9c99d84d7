"""Idle workers search later subgraphs of a cover, with the same results as one worker that searches them in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.partition.cover_search import search_covers
from mirage_formal.records import SUMMARY_FILE, SummaryRecord, open_sealed
from mirage_formal.run import driver
from mirage_formal.run.settings import Settings
from mirage_formal.run.task_values import NextSearch


def program() -> Any:
    """Two products with a softmax and a norm between them, larger than one candidate."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(8, 16), dtype=mf.float16)
    for width in (16, 16, 16):
        w = g.new_input(dims=(16, width), dtype=mf.float16)
        x = g.rms_norm(g.silu(g.matmul(x, w)))
    g.mark_output(x)
    return g.freeze()


def facts(root: Path) -> list[dict[str, Any]]:
    """What the searches of a cover found, without times."""
    found = []
    for path in sorted(root.rglob(SUMMARY_FILE)):
        record = msgspec.to_builtins(open_sealed(path.read_bytes(), SummaryRecord, path.name))
        facts = {name: record[name] for name in ("program_digest", "key", "states", "found", "status")}
        # How many questions z3 answers in their time is a matter of the machine.
        found.append({**facts, **{name: record["audit"][name] for name in ("kept", "pruned", "contradicted")}})
    return found


def test_two_workers_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early: list[NextSearch] = []
    planned_by_runs = 0

    plan = driver._Run._plan

    def planned(self: Any) -> Any:
        nonlocal planned_by_runs
        if self.job not in self.ahead.found:
            planned_by_runs += 1
        else:
            early.append(self.ahead.found[self.job].value)
        return plan(self)

    monkeypatch.setattr(driver._Run, "_plan", planned)
    for workers in (1, 2):
        search_covers(program(), Settings(cache=False, workers=workers, keep=2), tmp_path / str(workers))
        assert bool(early) == (workers == 2)
        if workers == 1:
            planned_by_runs = 0
    # Most are expected before the partition that they belong to is made.
    searched = sum(one.record is not None for one in early)
    assert searched > (len(early) + planned_by_runs) / 2
    one, two = (facts(tmp_path / str(workers)) for workers in (1, 2))
    assert one == two
    assert len(one) > 1
