"""Bad calls of every command: one screen, the exit code of the table, and a hint that is true when it is followed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mirage_formal.records.answer import answer_schema
from tests.kit.processes import Command, leaves
from tests.kit.runs.small_runs import make

PROGRAM = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16, name="X")
W = graph.new_input(dims=(8, 8), dtype=mf.float16, name="W")
graph.mark_output(graph.exp(graph.matmul(X, W)))
"""
BAD = PROGRAM.replace("graph.mark_output(graph.exp(graph.matmul(X, W)))", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with kernels, and files that are wrong in one way each."""
    root = tmp_path_factory.mktemp("bad")
    make(root / "run", keep=2)
    (root / "one.py").write_text(PROGRAM)
    (root / "bad.py").write_text(BAD)
    (root / "empty").mkdir()
    (root / "text.json").write_text("{]")
    (root / "text.npz").write_text("no archive")
    square = np.zeros((8, 8), np.float16)
    np.savez(root / "good.npz", X=square, W=square)
    np.savez(root / "lacking.npz", X=square)
    np.savez(root / "shape.npz", X=square, W=square[:4])
    np.savez(root / "dtype.npz", X=square, W=square.astype(np.float64))
    np.savez(root / "pickle.npz", X=square, W=np.array([{}], dtype=object))
    shutil.copy(next((root / "run" / "candidates").glob("001-*")) / "mugraph.json", root / "graph.json")
    (root / "probable").mkdir()
    return root


@pytest.fixture
def mirage(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check_here: None
) -> Command:
    monkeypatch.chdir(tmp_path)
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return Command(monkeypatch, capsys)


@dataclass(frozen=True)
class Bad:
    """A call that must be refused.

    Attributes:
        line: What is typed behind mirage-formal.
        words: What the mistake says.
        cure: What is typed after having read the hint, which is no mistake; empty where the hint names a command.
        codes: Of the cure.
    """

    line: str
    words: tuple[str, ...]
    cure: str = ""
    codes: tuple[int, ...] = field(default=(0,))


#: An input of each command that is in order, for mistakes in the options behind it.
GOOD = {
    "search": "one.py", "verify": "one.py graph.json", "check": "run", "tools build": "run", "tune": "run",
    "run": "run", "tools emulate": "run", "tools gpu run": "run", "tools gpu tune": "run", "tools gpu info": "",
    "tools show": "run", "tools explain": "run", "tools reproduce table5": "", "tools reproduce workloads": "",
    "tools reproduce oracle": "", "tools doctor": "", "tools docs": "", "tools schema": "",
}  # fmt: skip
WITH_PROGRESS = [name for name in GOOD if any("--progress" in one.opts for one in leaves()[name].params)]
NEED_PATH = (
    *("search", "verify", "check", "tools build", "tune", "run", "tools emulate", "tools gpu run"),
    *("tools show", "tools explain"),
)
#: Of commands that read a run: what they say of a path that is none.
RUNS = {
    "check": "expected a run", "tools build": "expected the directory of a run", "run": "expected a run",
    "tools emulate": "expected the directory of a run", "tools show": "expected a run",
    "tools explain": "expected a run",
}  # fmt: skip
USE = "run one.py --inputs"
CALLS = [
    *(Bad(f"{name} {GOOD[name]} --nosuch", (f"mirage-formal {name}: no such option: --nosuch",)) for name in GOOD),
    *(Bad(name, (f"mirage-formal {name}: missing argument",)) for name in NEED_PATH),
    *(
        Bad(f"{name} {GOOD[name]} --progress often", ("--progress: expected one of auto, bars, json, none", "often"))
        for name in WITH_PROGRESS
    ),
    *(Bad(f"{name} nowhere", (said,), f"{name} run", (0, 1)) for name, said in RUNS.items() if name != "tools build"),
    *(Bad(f"{name} empty", (said,)) for name, said in RUNS.items()),
    Bad("tools build nowhere", ("expected the directory of a run",)),
    Bad("watch nowhere", ("expected a directory with a run, got no such directory",)),
    Bad("watch empty", ("expected a directory with a run, got no run",)),
    Bad("watch run --port 0", ("--port: expected a whole number from 1 up",)),
    Bad("watch run --port 70000", ("--port: expected a free port from 1 to 65535, got 70000",)),
    Bad("tune nowhere", ("expected the directory of a run",)),
    Bad("tools gpu run run", ("expected a GPU and CuPy, got none", "CuPy with one of the extras")),
    Bad("tools gpu tune --place empty", ("expected a directory of tuning, got none", "mirage-formal tune")),
    Bad("nosuch", ("no such command 'nosuch'",)),
    Bad("chekc run", ("no such command 'chekc'", "check")),
    Bad("tools gpu nosuch", ("mirage-formal tools gpu: no such command 'nosuch'",)),
    Bad("tools reproduce nosuch", ("no such command",)),
    Bad("check run more", ("unexpected extra argument",)),
    Bad("check run --jobs 0", ("--jobs: expected a whole number from 1 up, got 0",)),
    Bad("check run --jobs many", ("--jobs: expected a whole number", "many")),
    Bad("check run --time-limit nan", ("--time-limit: expected a positive finite number",)),
    Bad("check run --time-limit", ("requires an argument",)),
    Bad("check run/kernels", ("expected a run",)),
    Bad("search nowhere.py", ("nowhere.py: expected a Python file, got nothing there",)),
    Bad("search empty", ("got a directory",)),
    Bad("search bad.py", ("expected a graph with an output",), "tools show one.py"),
    Bad("search one.py --program grpah", ("expected one of the programs graph, got 'grpah'",), "tools show one.py"),
    Bad("search one.py --config atention", ("atention",)),
    Bad("search one.py --griddim 4;1", ("--griddim: expected three integers",)),
    Bad("search one.py --keep 0", ("--keep: expected a whole number from 1 up",)),
    Bad("search one.py --out one.py/x", ("a file is where a directory has to be",)),
    Bad("search one.py --resume", ("expected a run to resume, got none",)),
    Bad("verify one.py nowhere.json", ("nowhere.json: expected a JSON file, got nothing there",)),
    Bad("verify one.py text.json", ("text.json",)),
    Bad("verify one.py empty", ("got a directory",)),
    Bad("verify nowhere.py graph.json", ("expected a Python file",)),
    Bad("verify one.py graph.json --explain html", ("--explain: expected text or latex", "html")),
    Bad("verify one.py graph.json --seed -1", ("--seed: expected a whole number from 0 up",)),
    Bad("verify one.py graph.json --time-limit 0", ("--time-limit: expected a positive",)),
    Bad("tools build run --count 0", ("--count: expected a whole number from 1 up",)),
    Bad("tools build run --arch", ("requires an argument",)),
    Bad("tune run --kernels none", ("--kernels: expected a whole number",)),
    Bad("tools emulate run --candidate 77", ("expected a candidate of rank 001, 002, 003", "got 77")),
    Bad("tools emulate run --time-limit -1", ("--time-limit: expected a positive",)),
    Bad("tools show run --candidate 77", ("expected a candidate of rank 1, 2, 3, got 77",), "tools show run"),
    Bad("tools show run --form svg9", ("--form: expected one of text, dot",), "tools show run --form text"),
    Bad("tools show text.json", ("text.json",), "tools show graph.json"),
    Bad("tools show bad.py", ("expected a graph with an output",), "tools show one.py"),
    Bad("tools explain graph.json", ("expected a candidate with a proof",), "tools explain run"),
    Bad("tools explain run --form html", ("--form: expected one of text, latex",), "tools explain run --form text"),
    Bad("tools explain run --candidate 0", ("--candidate: expected a whole number from 1 up",), "tools explain run"),
    Bad(f"{USE} nowhere.npz", ("expected a NumPy archive (.npz), got nothing there",), f"{USE} good.npz"),
    Bad(f"{USE} text.npz", ("expected a NumPy archive (.npz) of numbers",), f"{USE} good.npz"),
    Bad(f"{USE} pickle.npz", ("expected a NumPy archive (.npz) of numbers",), f"{USE} good.npz"),
    Bad(f"{USE} lacking.npz", ("expected an array W", "numpy.savez"), f"{USE} good.npz"),
    Bad(f"{USE} shape.npz", ("input W: expected", "4"), f"{USE} good.npz"),
    Bad(f"{USE} dtype.npz", ("input W: expected", "float64"), f"{USE} good.npz"),
    Bad("run one.py --on gpu", ("--on: expected a GPU and CuPy, got none",), "run one.py --on reference"),
    Bad("run one.py --on tpu", ("--on: expected one of auto, gpu, reference",), "run one.py"),
    Bad("run one.py --seed x", ("--seed: expected a whole number",), "run one.py --seed 1"),
    Bad("run one.py --out empty", ("empty: expected a file to write, got a directory",), "run one.py --out y.npz"),
    Bad("tools doctor python nosuch", ("expected some of python, cpu", "nosuch"), "tools doctor python"),
    Bad("tools docs nosuch", ("expected the name of a document, got 'nosuch'",), "tools docs"),
    Bad("tools schema nosuch", ("expected one of answer, run, graph",), "tools schema answer"),
    Bad("tools reproduce oracle --sample 0", ("--sample: expected a whole number from 1 up",)),
    Bad("tools reproduce table5 --ops five", ("--ops: expected positive numbers",)),
    Bad("tools reproduce table5 --arms nosuch", ("nosuch",)),
    Bad("tools reproduce workloads --names nosuch", ("nosuch",)),
]  # fmt: skip


def test_the_table_is_long_and_knows_every_command() -> None:
    assert len(CALLS) >= 60
    assert {one for one in leaves() if one in GOOD or one.split(" ")[1:2] in (["gpu"], ["reproduce"])} == set(GOOD)


@pytest.mark.parametrize("bad", CALLS, ids=lambda bad: bad.line)
def test_a_bad_call(bad: Bad, mirage: Command) -> None:
    """The mistake, and then what its hint says."""
    ended = mirage(*bad.line.split())
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) <= 20
    assert max(map(len, ended.err.splitlines())) <= 400
    assert all(word in ended.err for word in bad.words), ended.err
    [hint] = re.findall(r"^  hint: (.+)$", ended.err, flags=re.MULTILINE)
    if (named := re.match(r"mirage-formal ([a-z0-9 ]*)--help lists every (option|command)", hint)) is not None:
        followed = mirage(*named[1].split(), "--help")
        assert followed.code == 0
        assert ("Commands:" if named[2] == "command" else "--help") in followed.out
    elif (told := re.match(r"mirage-formal (tools (?:docs|doctor|schema))\b.* lists them", hint)) is not None:
        assert mirage(*told[1].split()).code == 0
    if bad.cure:
        cured = mirage(*bad.cure.split())
        assert cured.code in bad.codes, cured


@pytest.mark.parametrize(
    "line",
    ["check nowhere", "search nowhere.py", "tools gpu run run", "tools show", "tools docs nosuch", "tools doctor x"],
)
def test_a_mistake_for_programs(line: str, mirage: Command) -> None:
    """The same, as the one object on standard output."""
    ended = mirage(*line.split(), "--json")
    assert ended.code == 2
    answer = json.loads(ended.out)
    jsonschema.validate(answer, SCHEMA)
    assert (answer["exit_code"], answer["result"]) == (2, None)
    words = line.removeprefix("tools ").split()
    assert answer["command"] == " ".join(words[: 2 if words[0] == "gpu" else 1])
    assert answer["error"]["what"]
    assert answer["error"]["what"].split("\n")[0][:60] in ended.err
    assert ended.err.startswith("error: ")


SCHEMA: Any = {**answer_schema(), "$ref": "#/$defs/Answer"}
Check = Callable[[Any], bool]
#: Calls in order, and what holds of their results.
ANSWERS: list[tuple[str, int, Check]] = [
    ("check run --jobs 1", 0, lambda r: [c["verdict"] for c in r["candidates"]] == ["equivalent"] * 3 and r["report"]),
    ("tools show run", 0, lambda r: r[0]["graph"].startswith("mugraph 1") and r[0]["verdict"] == "equivalent"),
    ("tools show one.py", 0, lambda r: [one["name"] for one in r] == ["graph"]),
    ("tools explain run", 0, lambda r: r["replay"] == "accepted" and r["same_proof"] and "Steps" in r["text"]),
    ("run one.py --inputs good.npz", 0, lambda r: r["outputs"][0]["least"] == 1.0 and "reference" in r["computed_by"]),
    ("tools doctor", 0, lambda r: {"z3", "gpu", "g++"} <= {one["name"] for one in r}),
    ("tools doctor cpu gpu", 1, lambda r: [one["state"] for one in r] == ["ok", "missing"]),
    ("tools doctor --torch", 0, lambda r: any(one["operator"] == "aten.mm.default" and one["imported"] for one in r)),
    ("tools docs", 0, lambda r: "errors" in r["documents"]),
    ("tools docs cli", 0, lambda r: r["text"].startswith("# The command line")),
    ("tools schema answer", 0, lambda r: "Answer" in r["$defs"]),
    ("tools gpu info", 0, lambda r: r["gpus"] == []),
    ("verify one.py one.json", 0, lambda r: r["graphs"][0]["verdict"] == "equivalent"),
]


@pytest.mark.parametrize(("line", "code", "holds"), ANSWERS, ids=[line for line, _, _ in ANSWERS])
def test_answers_follow_the_schema(line: str, code: int, holds: Check, mirage: Command) -> None:
    if "one.json" in line:
        Path("one.json").write_text(mirage("tools", "show", "one.py", "--form", "json").out)
    ended = mirage(*line.split(), "--json")
    assert ended.code == code, ended
    answer = json.loads(ended.out)
    jsonschema.validate(answer, SCHEMA)
    assert (answer["exit_code"], answer["error"]) == (code, None)
    assert holds(answer["result"]), answer
