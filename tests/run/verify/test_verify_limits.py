"""``python -m mirage_formal.verify``: conditions, inputs of counterexamples, and the time limit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal import Graph, Tensor
from mirage_formal.cli import app as cli
from mirage_formal.cli.search.search_files import INTERRUPTED
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent, Unknown, Verdict
from mirage_formal.run.verify import verdicts
from tests.run.verify.test_verify_cli import PROGRAM, RIGHT, WRONG, Command, _here, listed, verify

__all__ = ["_here", "verify"]

VACUOUS = """
import mirage_formal as mf

same = mf.new_kernel_graph()
X = same.new_input(dims=(4, 8), name="X")
Y = same.new_input(dims=(4, 8), name="Y")
same.mark_output(same.scale(Y, 1))
"""


def _same(body: Callable[..., Tensor]) -> KernelGraph:
    """A candidate for the program of VACUOUS."""
    graph = mf.new_kernel_graph()
    x, y = (graph.new_input(dims=(4, 8), name=name) for name in "XY")
    graph.mark_output(body(graph, x, y))
    return graph.freeze()


def test_what_is_defined_nowhere_is_not_equivalent(verify: Command) -> None:
    def by_zero(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        d = g.relu(g.shift(g.sigmoid(x), -1))
        return y * d / d

    Path("same.py").write_text(VACUOUS)
    Path("graphs.json").write_text(listed(_same(by_zero), _same(lambda g, x, y: y * x / x)))
    code, output = verify("same.py", "graphs.json", "--json")
    assert code == 1
    first, second = json.loads(output)["result"]["graphs"]
    assert (first["verdict"], first["reason"]) == ("unknown", "its conditions were never met")
    assert second["verdict"] == "equivalent"
    assert second["added"] == second["conditions"] == ["candidate, kernel operator 1: divisor nonzero"]
    _, output = verify("same.py", "graphs.json", "--explain", "text")
    assert "ADDED, for the program does not need it" in " ".join(output.replace("│", " ").split())
    after = output[output.index("Conditions that the program does not have") :]
    assert "candidate, kernel operator 1: divisor nonzero" in after


def test_a_wrong_graph_s_inputs_are_printed_first(verify: Command) -> None:
    Path("same.py").write_text(VACUOUS)
    Path("graph.json").write_text(to_json(_same(lambda g, x, y: y * x)))
    code, output = verify("same.py", "graph.json")
    assert code == 1
    said = " ".join(output.replace("│", " ").split())
    assert said.index("X = 0") < said.index("Y = 0 but Y[") < said.index("output 0 at (") < said.index("expected")


def _hopeless(program: KernelGraph, graph: KernelGraph, seed: int, where: str) -> Verdict:
    """Stands for a proof inside a call that never comes back to Python."""
    if graph == WRONG:
        pow(3, 10**9)
    return Equivalent(b"{}", ())


def test_a_graph_that_takes_too_long_is_unknown_and_the_others_are_judged(
    verify: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_decide_and_replay", _hopeless)
    Path("several.json").write_text(listed(RIGHT, WRONG, RIGHT))
    code, output = verify("lora.py", "several.json", "--time-limit", "2", "--json", "--out", "judged")
    assert code == 1
    found = json.loads(output)["result"]["graphs"]
    assert [one["verdict"] for one in found] == ["equivalent", "unknown", "equivalent"]
    assert found[1]["reason"] == "time limit of 2 s"
    assert json.loads(Path("judged/verdicts.json").read_text())["graphs"] == found
    assert sorted(path.name for path in Path("judged").iterdir()) == ["0", "1", "2", "program.json", "verdicts.json"]


def test_what_was_judged_before_an_interrupt_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(program: KernelGraph, graph: KernelGraph, seed: int, where: str) -> Unknown:
        if graph == WRONG:
            raise KeyboardInterrupt
        return Unknown("too hard")

    monkeypatch.setattr(verdicts, "_decide_and_replay", interrupted)
    monkeypatch.setattr(verdicts.VerdictProcess, "call", lambda self, function, task: function(*task))
    Path("several.json").write_text(listed(RIGHT, WRONG, RIGHT))
    monkeypatch.setattr(sys, "argv", ["mirage_formal.verify", "lora.py", "several.json", "--out", "judged"])
    with pytest.raises(SystemExit) as ended:
        cli.verify_main()
    assert ended.value.code == INTERRUPTED
    assert "too hard" in capsys.readouterr().out
    assert len(json.loads(Path("judged/verdicts.json").read_text())["graphs"]) == 1


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(verify: Command, limit: str) -> None:
    assert "--time-limit" in verify.refused("lora.py", "right.json", "--time-limit", limit)


def test_the_function_has_a_time_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_decide_and_replay", _hopeless)
    assert mf.equivalence(PROGRAM, WRONG, time_limit=2.0) == Unknown("time limit of 2 s")
    assert isinstance(mf.equivalence(PROGRAM, RIGHT, time_limit=100.0), Equivalent)
