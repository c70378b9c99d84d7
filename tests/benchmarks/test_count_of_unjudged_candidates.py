"""The count of candidates of which nothing is known, on a run whose answers are known."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

import mirage_formal as mf
from benchmarks import unknown
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import RUN_FILE, SUMMARY_FILE
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings


def program() -> KernelGraph:
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(16, 32), name="x"), g.new_input(dims=(32, 16), name="w")
    g.mark_output(g.silu(g.matmul(x, w)))
    return g.freeze()


def other() -> KernelGraph:
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(16, 32), name="x"), g.new_input(dims=(32, 16), name="w")
    g.mark_output(g.silu(g.matmul(x, w) * 2))
    return g.freeze()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unknown") / "whole" / "parts" / "01"
    out.parent.mkdir(parents=True)
    run_search(program(), Settings(workers=1, config="mlp", keep=3, max_kernel_ops=1, cache=False), out)
    return out


@pytest.fixture
def rejecting(found: Path, tmp_path: Path) -> Path:
    """The same run, whose summary says that its candidates were rejected, one for each reason."""
    copy = tmp_path / "run"
    copy.mkdir()
    summary = json.loads((found / SUMMARY_FILE).read_text())
    kinds = ("certificate", "different", "unproved")
    first = summary["candidates"][: len(kinds)]
    assert len(first) == len(kinds)
    rejected = [{"digest": one["digest"], "kind": kind, "reason": ""} for one, kind in zip(first, kinds, strict=True)]
    summary |= {"candidates": summary["candidates"][len(kinds) :], "rejected": rejected}
    (copy / SUMMARY_FILE).write_text(json.dumps(summary))
    for name in (RUN_FILE, "search.jsonl"):
        (copy / name).write_bytes((found / name).read_bytes())
    return copy


def test_runs_of_parts_are_found(found: Path) -> None:
    assert unknown.runs(found.parents[1]) == [found]
    assert unknown.counts(found)["accepted"] >= 3
    assert unknown.share(unknown.counts(found)) == 0


def test_what_is_refuted_does_not_count(rejecting: Path) -> None:
    kinds = unknown.counts(rejecting)
    assert (kinds["certificate"], kinds["refuted"], kinds["unproved"]) == (1, 1, 1)
    assert unknown.share(Counter(accepted=98, refuted=50, certificate=1, unproved=1)) == 2
    assert unknown.share(Counter[str]()) == 0


def test_what_was_rejected_is_looked_at_again(rejecting: Path) -> None:
    """All of them are the program; for another program a counterexample refutes all."""
    before = unknown.counts(rejecting)
    kinds = unknown.counts(rejecting, again=True)
    assert kinds == {"accepted": before["accepted"] + 3}
    record = json.loads((rejecting / RUN_FILE).read_text())
    record["program"] = json.loads(to_json(other()))
    (rejecting / RUN_FILE).write_text(json.dumps(record))
    assert unknown.counts(rejecting, again=True)["refuted"] == 3


def test_the_command(rejecting: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for more, code in (([], 1), (["--most", "100"], 0), (["--again"], 0)):
        monkeypatch.setattr(sys, "argv", ["unknown", str(rejecting), *more])
        assert unknown.main() == code
        assert capsys.readouterr().out.splitlines()[-1].startswith("| **all** |")
    monkeypatch.setattr(sys, "argv", ["unknown", str(rejecting / "nothing")])
    with pytest.raises(SystemExit, match="2"):
        unknown.main()
