"""Texts of an author in what is printed: they stay on their line, are shown as they are, and say who speaks."""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from mirage_formal.check.__main__ import main as check
from mirage_formal.cli import app as cli
from mirage_formal.graph.verdict import Unknown
from mirage_formal.partition.cover_table import reports_values
from mirage_formal.records import RejectedRecord
from mirage_formal.records.answer import answer_text
from mirage_formal.run.candidate_table import print_report
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.run.verify.verdicts import VerifiedGraph, print_verdicts, verdicts_json
from mirage_formal.support.errors import FormatError
from tests.kit.runs.fake_engine import fused, program
from tests.kit.runs.small_runs import make
from tests.kit.runs.tampering import CLAIM, TEXTS, obeyed, places, reseal, value_of, write
from tests.kit.runs.unit_records import unit_record
from tests.kit.sampling import number

HOSTILE = f"x\x1b[2K\r\n{CLAIM}\u202e\u200b[bold]"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with kernels and what a device said."""
    root = tmp_path_factory.mktemp("good") / "run"
    make(root)
    return root


def assert_harmless(text: str) -> None:
    for line in text.split("\n"):
        assert not obeyed(line), repr(line)
        assert not line.lstrip(" |").startswith(CLAIM)


def strings(root: Path) -> list[tuple[Path, tuple[object, ...]]]:
    """Every string field of every record, those of the graphs too."""
    found = []
    for path in sorted(root.rglob("*.json*")):
        value = value_of(path)
        for at in places(value):
            inside = value
            for key in at:
                inside = inside[key]
            if isinstance(inside, str) and not {"manifest", "files"} & set(at):
                found.append((path.relative_to(root), at))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("check_mostly_here")
@settings(max_examples=number(20, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), text=TEXTS)
def test_no_field_of_a_record_writes_a_line_of_the_report(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: st.DataObject, text: str
) -> None:
    root = tmp_path / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(good, root)
    path, at = data.draw(st.sampled_from(strings(good)))
    value = value_of(root / path)
    inside = value
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = data.draw(st.sampled_from([text, inside[at[-1]] + text]))
    write(root / path, value)
    reseal(root)
    code = check([str(root), "--jobs", "1"])
    output, errors = capsys.readouterr()
    assert code in (0, 1, 2)
    assert_harmless(output)
    assert_harmless(errors)
    assert "Traceback" not in errors


@pytest.mark.usefixtures("check_here")
def test_the_device_is_said_by_the_author(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(shutil.copytree(good, tmp_path / "run"))
    for path in root.glob("kernels/*/numerics.json"):
        value = value_of(path)
        value["device"] = f'H100" (established)\n{CLAIM}'
        write(path, value)
    reseal(root)
    assert check([str(root), "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    assert f'recorded on "H100\\" (established)\\\\n{CLAIM}" (its author' in output
    assert_harmless(output)


@pytest.mark.usefixtures("check_here")
def test_names_of_directories_are_no_lines(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "several"
    name = f"a\n{CLAIM}\x1b[1m\udcff".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    shutil.copytree(good, place / name)
    assert check([str(place), "--jobs", "1"]) == 0
    assert_harmless(capsys.readouterr().out)
    (place / name / f"more\x1b[2J\n{CLAIM}").write_text("")
    assert check([str(place), "--jobs", "1"]) == 1
    assert_harmless(capsys.readouterr().err)
    assert check([str(tmp_path / f"none\n{CLAIM}")]) == 2
    assert_harmless(capsys.readouterr().err)


def printed(show: object, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    show(*arguments, console)  # type: ignore[operator]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("text", [HOSTILE, "[link=http://x]a[/link]", "[/]", "a\\"])
def test_tables_of_a_search_print_what_records_say(tmp_path: Path, text: str) -> None:
    settings_ = Settings(engine="tests.kit.runs.fake_engine:FakeEngine", config="tiny", keep=1, workers=1)
    report = run_search(program(), settings_, tmp_path / "run", name="x")
    unit = unit_record(unit=1, label=text, status="failed", attempts=3, error=f"Traceback\n{text}")
    lost = RejectedRecord(digest="b" * 64, kind="different", reason=text)
    summary = report.summary.__class__(
        **{name: getattr(report.summary, name) for name in report.summary.__struct_fields__}
        | {"program": text, "rejected": (lost,), "pruned": {text: 1}}
    )
    shown = replace(report, summary=summary, failed=(unit,), remarks=(text,))
    output = printed(print_report, shown)
    assert_harmless(output)
    assert "SEARCH BUG" in output
    assert all(part in output for part in text.split("\x1b")[0:1])
    if text != HOSTILE:
        assert text in output  # markup and backslashes are printed as they stand
    raw = answer_text("search", 0, reports_values([(shown, None)]))
    assert all(not obeyed(line) for line in raw.split("\n"))
    assert json.loads(raw)["result"][0]["summary"]["program"] == text


@pytest.mark.parametrize("text", [HOSTILE, "[red]x[/red]", "[/]"])
def test_verdicts_print_what_graphs_say(text: str) -> None:
    graph = fused(program(), 2, 2, 1)
    judged = [VerifiedGraph(0, graph, Unknown(text), 0.1), VerifiedGraph(1, None, FormatError(text), 0.1)]
    output = printed(print_verdicts, text, judged)
    assert_harmless(output)
    if text != HOSTILE:
        assert output.count(text) == 3
    raw = verdicts_json(text, judged)
    assert all(not obeyed(line) for line in raw.split("\n"))
    assert json.loads(raw)["program"] == text


def test_graphs_at_fault_are_quoted_on_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import mirage_formal as mf\ngraph = mf.new_kernel_graph()\n"
        "X = graph.new_input(dims=(8, 8), dtype=mf.float16)\n"
        "graph.mark_output(graph.exp(X))\n"
    )
    for value in (
        {"schema": HOSTILE},
        {"schema": "mirage_formal/mugraph", "version": HOSTILE},
        {HOSTILE: 1, "schema": "mirage_formal/mugraph", "version": 1},
        [{"op_type": HOSTILE}],
        {"schema": "mirage_formal/mugraph", "version": 1, "ops": [], "outputs": [0], "inputs": [
            {"name": HOSTILE, "shape": [8, 8], "dtype": "float16", "strides": [8, 1]}]},
    ):  # fmt: skip
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(value))
        monkeypatch.setattr(sys, "argv", ["mirage_formal.verify", str(file), str(path)])
        with pytest.raises(SystemExit) as ended:
            cli.verify_main()
        assert ended.value.code == 2
        assert_harmless(capsys.readouterr().err)
