"""Where the user names no space there is always an answer; a search of a named space that finds nothing says why.

By rule, where in the user's file, and what to try, and that works.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.api.no_result_diagnosis import find_reasons_for_no_result
from mirage_formal.check.__main__ import main as check
from mirage_formal.cli.search.search_main import search_main
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.frontend.origins import unknown_origins
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.records import UnitRecord
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings
from mirage_formal.support.errors import NothingFoundError, Reason
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S
from tests.kit.runs.fake_engine import program as small
from tests.kit.runs.fake_engine import roots
from tests.kit.sampling import THOROUGH

HEAD = "import mirage_formal as mf\n\ngraph = mf.new_kernel_graph()\n"  # three lines

BIAS = """x = graph.new_input((4, 8))
w = graph.new_input((8, 4))
b = graph.new_input((4,))
graph.mark_output(graph.add(graph.matmul(x, w), b))
"""
RESHAPED = """x = graph.new_input((4, 8))
w = graph.new_input((8, 4))
y = graph.reshape(graph.matmul(x, w), (2, 8))
graph.mark_output(graph.exp(y))
"""
SHOWN = """x = graph.new_input((4, 8))
w = graph.new_input((8, 4))
graph.mark_output(graph.reshape(graph.matmul(x, w), (2, 8)))
"""
UNREAD = """x = graph.new_input((4, 8))
forgotten = graph.new_input((8, 4))
graph.mark_output(graph.exp(x))
"""
GRAM = """x = graph.new_input((4, 8))
graph.mark_output(graph.transpose(x) @ x)
"""
WIDE = """terms = [graph.new_input((4, 8), name=f"x{i}") for i in range(11)]
total = terms[0]
for term in terms[1:]:
    total = total + term
graph.mark_output(total)
"""
UNLISTED = """x = graph.new_input((4, 8))
w = graph.new_input((8, 4))
y = graph.new_input((4, 4))
graph.mark_output(graph.relu(x @ w) - y)
"""
NORMED = """x = graph.new_input((4, 8))
graph.mark_output(graph.layer_norm(x))
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def built(text: str) -> mf.Graph:
    """The graph of a file called own.py, as a script that imports us builds it."""
    Path("own.py").write_text(HEAD + text)
    names: dict[str, Any] = {}
    exec(compile(HEAD + text, "own.py", "exec"), names)
    graph = names["graph"]
    assert isinstance(graph, mf.Graph)
    return graph


def reasons(graph: Any, **options: Any) -> tuple[Reason, ...]:
    with pytest.raises(NothingFoundError) as caught:
        mf.superoptimize(graph, workers=1, **{"config": "default", **options})
    assert caught.value.reasons
    for reason in caught.value.reasons:
        assert reason.hint
        assert str(reason) in str(caught.value)
    return caught.value.reasons


def space_of(what: str) -> str:
    """The space that a reason names; where it names none, the default one."""
    return next((name for name in ("tiny", "mlp") if f"search space {name}," in what), "default")


def command(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["mirage_formal.search", *arguments, "--workers", "1"])
    with pytest.raises(SystemExit) as ended:
        search_main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


CASES = [
    (RESHAPED, "operator", "own.py:6", "reshape to [2, 8] is outside the search space default, which lists no reshape"),
    (UNREAD, "input", "own.py:5", "input forgotten is read by nothing that an output needs"),
    (WIDE, "reads", "", "11 inputs cannot be read by at most 3 kernels of at most 4 inputs each"),
    (UNLISTED, "operator", "own.py:7", "sub of y, made by -, is outside the search space mlp, which lists no sub"),
    (NORMED, "operator", "own.py:5", "layer_norm of x is outside the search space tiny, which lists no layer_norm"),
]


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("text", [BIAS, GRAM, SHOWN])
def test_views_of_inputs_and_outputs_in_another_shape_need_no_list(text: str) -> None:
    best = mf.superoptimize(built(text), workers=1, out="out", keep=1, config="default")[0]
    assert isinstance(best.verdict, Equivalent)
    assert check(["out", "--jobs", "1"]) == 0


# BIAS is searched so in test_without_a_space_and_without_time_there_is_an_answer, WIDE where it is said to try it.
@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [GRAM, *([BIAS, SHOWN] if THOROUGH else []), *(text for text, *_ in CASES if THOROUGH or text != WIDE)]
)
def test_without_a_space_there_is_an_answer(text: str) -> None:
    """Proved, never above the operators one by one, and established again from the files."""
    program = built(text).freeze()
    best = mf.superoptimize(program, workers=1, out="out", keep=1)[0]
    assert isinstance(best.verdict, Equivalent)
    assert best.cost <= estimate(program, load_target("h200")).us
    assert check(["out", "--jobs", "1"]) == 0


@pytest.mark.parametrize("text", [BIAS, UNREAD])
def test_without_a_space_and_without_time_there_is_an_answer(text: str) -> None:
    program = built(text).freeze()
    best = mf.superoptimize(program, workers=1, out="out", time_limit=1e-6)[0]
    assert best.cost == estimate(program, load_target("h200")).us
    assert check(["out", "--jobs", "1"]) == 0
    again = mf.superoptimize(program, workers=1, out="out", resume=True)[0]
    assert again.cost <= best.cost


@pytest.mark.parametrize(("text", "cause", "where", "what"), CASES)
def test_the_reason_is_the_rule_and_the_line(text: str, cause: str, where: str, what: str) -> None:
    [reason] = reasons(built(text), out="out", config=space_of(what))
    assert (reason.cause, reason.where) == (cause, where)
    assert reason.what.startswith(what)


@pytest.mark.parametrize(("text", "cause", "where", "what"), CASES)
def test_the_command_line_says_the_same_and_ends_with_1(
    text: str, cause: str, where: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, config = built(text), space_of(what)
    with pytest.raises(NothingFoundError) as caught:
        mf.superoptimize(graph, workers=1, out="out", name="graph", config=config)
    capsys.readouterr()
    assert command("own.py", "--out", "again", "--config", config, monkeypatch=monkeypatch) == 1
    output = capsys.readouterr().out
    assert output.startswith(f"{caught.value}\n")
    assert "rank" not in output  # no empty table
    assert "evidence in again" in output


def test_the_graph_of_a_user_raises_as_well_and_says_it_by_itself() -> None:
    with pytest.raises(NothingFoundError, match=r"own\.py:5: input forgotten"):
        built(UNREAD).superoptimize(workers=1, out="out", config="default")


def test_json_has_the_reasons_of_each_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = "fine = mf.new_kernel_graph()\nz = fine.new_input((4, 8))\nfine.mark_output(fine.exp(z))\n"
    Path("two.py").write_text(HEAD + found + UNREAD)
    assert command("two.py", "--json", "--config", "default", monkeypatch=monkeypatch) == 1
    by_name = {one["summary"]["program"]: one["nothing_found"] for one in json.loads(capsys.readouterr().out)["result"]}
    assert by_name["fine"] is None
    [reason] = by_name["graph"]
    assert set(reason) == {"cause", "where", "what", "hint"}
    assert (reason["cause"], reason["where"]) == ("input", "two.py:8")
    assert command("two.py", "--program", "fine", "--json", "--out", "one", monkeypatch=monkeypatch) == 0


def test_a_graph_that_was_not_written_with_the_front_end_names_inputs_and_operators() -> None:
    [reason] = reasons(built(RESHAPED).freeze(), out="out")
    assert reason.where == "operator 1 (reshape)"
    [reason] = reasons(built(UNREAD).freeze(), out="other")
    assert reason.where == "input forgotten"


# --- what is said to try ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "hint", "change", "options"),
    [
        *([(RESHAPED, "name no space, engine and limits", None, {"config": None})] if THOROUGH else []),
        (UNREAD, "remove forgotten", ("forgotten = graph.new_input((8, 4))\n", ""), {}),
        (WIDE, "name no space, engine and limits", None, {"config": None}),
        (UNLISTED, "config='default'", None, {"config": "default"}),
    ],
)
def test_what_is_said_to_try_finds_candidates(
    text: str, hint: str, change: tuple[str, str] | None, options: dict[str, Any]
) -> None:
    config = "mlp" if text == UNLISTED else "default"
    [reason] = reasons(built(text), out="out", config=config)
    assert hint in reason.hint
    changed = text if change is None else text.replace(*change)
    assert changed != text or options
    best = mf.superoptimize(built(changed), workers=1, out="better", keep=1, **{"config": config, **options})[0]
    assert type(best.verdict).__name__ == "Equivalent"
    if options == {"config": None}:  # as wherever no space is named
        assert best.cost <= estimate(built(changed).freeze(), load_target("h200")).us
        assert check(["better", "--jobs", "1"]) == 0


def test_the_operator_that_an_engine_refuses_is_named_by_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "x = graph.new_input((4, 8))\ny = graph.exp(x)\nz = graph.max(y, 1)\ngraph.mark_output(z)\n"
    with pytest.raises(
        mf.UnsupportedError, match=r"own\.py:6: guided search: the operator max is not searched"
    ) as caught:
        mf.superoptimize(built(text), workers=1, out="out", config="default")
    assert "name no space" in caught.value.hint
    assert command("own.py", "--out", "again", "--config", "default", monkeypatch=monkeypatch) == 2
    assert "own.py:6: guided search: the operator max" in capsys.readouterr().err
    assert mf.superoptimize(built(text), workers=1, out="parts")


# --- what became of the search ---------------------------------------------------------------------------------------


def test_a_time_limit_is_a_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    graph = built("x = graph.new_input((4, 8))\ngraph.mark_output(graph.exp(x))\n")
    [reason] = reasons(graph, out="out", time_limit=1e-6)
    assert reason.cause == "time-limit"
    assert "time limit of 1e-06 s" in reason.what
    assert "resume=True" in reason.hint
    assert mf.superoptimize(graph, workers=1, out="out", resume=True, config="default")
    asked = ("--time-limit", "0.000001", "--config", "default")
    assert command("own.py", "--out", "again", *asked, monkeypatch=monkeypatch) == 1
    assert "the search stopped at the time limit" in capsys.readouterr().out


def test_a_rule_about_the_program_comes_before_the_limit() -> None:
    first, second = reasons(built(UNREAD), out="out", time_limit=1e-6)
    assert (first.cause, second.cause) == ("input", "time-limit")


@pytest.mark.parametrize(
    ("engine", "make", "kind", "hint"),
    [("Unproved", roots, "not refuted and not proved", "accept='probable'")],
)
def test_what_was_rejected_is_counted_by_kind(
    engine: str, make: Callable[..., Any], kind: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Settings(engine=f"tests.kit.runs.fake_engine:{engine}", config="tiny", workers=1, keep=1)
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    graph = make()
    report = search_or_cover(graph, chosen, Path("out"))
    assert isinstance(report, RunReport)
    rejected = [item for item in report.summary.rejected if item.kind == "unproved"]
    assert rejected
    # The program itself is a candidate there: without it, nothing is left.
    alone = dataclasses.replace(report, results=())
    nothing = find_reasons_for_no_result(alone, graph, chosen, unknown_origins(graph))
    assert nothing is not None
    [reason] = nothing.reasons
    assert reason.cause == "rejected"
    assert kind in reason.what
    assert reason.what.startswith(f"{len(rejected)} of {report.summary.found} ")
    assert hint in reason.hint


def test_lists_that_fit_nothing_are_named() -> None:
    graph = built("x = graph.new_input((4, 8))\ny = graph.exp(x)\ngraph.mark_output(graph.square(y))\n")
    options = {"griddims": [(4, 1, 1)], "imaps": [(-1, -1, -1)], "max_kernel_ops": 1, "max_block_ops": 6}
    [reason] = reasons(graph, out="out", **options)
    assert reason.cause == "extents"
    assert "ways to compute it were found, and none has extents that fit" in reason.what
    assert reason.hint == "leave out griddims, imaps"
    assert mf.superoptimize(graph, workers=1, out="free", max_kernel_ops=1, max_block_ops=6)


def test_limits_are_named_where_no_other_rule_holds() -> None:
    graph = built("x = graph.new_input((4, 8))\ny = graph.exp(x)\ngraph.mark_output(graph.square(y))\n")
    [reason] = reasons(graph, out="out", max_kernel_ops=1, max_block_ops=2)
    assert reason.cause == "limits"
    assert "at most 1 kernels" in reason.what
    assert reason.hint.startswith("leave out max_kernel_ops, max_block_ops; or --max-kernel-ops 2 --max-block-ops 4")
    assert mf.superoptimize(graph, workers=1, out="free", max_kernel_ops=2, max_block_ops=4)


def test_a_failed_unit_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = Settings(engine="tests.kit.runs.fake_engine:FakeEngine", config="tiny", workers=1, keep=1)
    report = search_or_cover(small(), settings, Path("out"))
    assert isinstance(report, RunReport)
    assert find_reasons_for_no_result(report, small(), settings, unknown_origins(small())) is None
    # As after a run of which the one unit that would have found something died.
    summary = msgspec.structs.replace(report.summary, candidates=(), units_failed=1)
    fields: dict[str, Any] = {
        "label": "unit 0",
        "stats": {},
        "pruned": {},
        "fingerprint_tests": 0,
        "candidates": (),
        "milliseconds": 0.0,
    }
    error = "Traceback\nMemoryError: no memory"
    unit = UnitRecord(key="key", unit=0, status="failed", attempts=3, error=error, **fields)
    failed = dataclasses.replace(report, results=(), failed=(unit,), summary=summary)
    nothing = find_reasons_for_no_result(failed, small(), settings, unknown_origins(small()))
    assert nothing is not None
    [reason] = nothing.reasons
    assert (reason.cause, "MemoryError: no memory" in reason.what) == ("failed", True)


# --- programs in parts -----------------------------------------------------------------------------------------------


def test_a_program_in_parts_names_the_part_and_the_line() -> None:
    text = "x = graph.new_input((4, 8))\ny = graph.layer_norm(x)\nz = graph.layer_norm(y)\ngraph.mark_output(z)\n"
    first, second = reasons(built(text), out="out", config="tiny", max_kernel_ops=1, max_block_ops=1)
    assert (first.cause, first.where, second.where) == ("operator", "own.py:5", "own.py:6")
    assert first.what.startswith("part 1: layer_norm")
    assert second.what.startswith("part 2: layer_norm")


def test_a_program_in_parts_that_ran_out_of_time() -> None:
    text = "x = graph.new_input((4, 8))\ny = graph.exp(x)\nz = graph.square(y)\ngraph.mark_output(z)\n"
    found = reasons(built(text), out="out", config=None, max_kernel_ops=1, max_block_ops=1, time_limit=1e-6)
    assert {reason.cause for reason in found} == {"time-limit"}


def test_parts_of_which_one_has_candidates_are_a_result() -> None:
    text = "x = graph.new_input((4, 8))\ny = graph.layer_norm(x)\nz = graph.exp(y)\ngraph.mark_output(z)\n"
    assert mf.superoptimize(built(text), workers=1, out="out", max_kernel_ops=1, max_block_ops=1)


def test_a_script_sees_the_text_as_its_error() -> None:
    Path("script.py").write_text(HEAD + UNREAD + "mf.superoptimize(graph, workers=1, config='default')[0]\n")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, env=environment, timeout=HUNG_S
    )
    assert done.returncode == 1
    last = done.stderr[done.stderr.index("NothingFoundError") :]
    assert "script.py:5: input forgotten is read by nothing" in last
    assert "IndexError" not in done.stderr
