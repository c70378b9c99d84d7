"""``python -m mirage_formal.verify`` and ``mirage_formal.equivalence``: formats, tables, JSON, exit codes, mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import mirage_formal as mf
from mirage_formal.cli import app as cli
from mirage_formal.graph.counterexample import Counterexample, CounterexampleEntry, DefaultValues
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.formats.mirage.checkpoint_writer import to_mirage
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown, Verdict
from mirage_formal.records import PROOF_FILE
from mirage_formal.run.verify import verdicts
from mirage_formal.run.verify.verdicts import VerifiedGraph, plain_verdict, verdicts_json
from tests.kit.graphs import workloads

LORA = """
import mirage_formal as mf

lora = mf.new_kernel_graph()
X = lora.new_input(dims=(4, 8), dtype=mf.float16)
W = lora.new_input(dims=(8, 12), dtype=mf.float16)
A = lora.new_input(dims=(8, 2), dtype=mf.float16)
B = lora.new_input(dims=(2, 12), dtype=mf.float16)
lora.mark_output(X @ W + (X @ A) @ B)
"""
OTHER = """
other = mf.new_kernel_graph()
other.mark_output(other.exp(other.new_input(dims=(4, 4))))
"""
SQUARE = """
import mirage_formal as mf

square = mf.new_kernel_graph()
A = square.new_input(dims=(4, 4))
B = square.new_input(dims=(4, 4))
square.mark_output(A - B)
"""
PROGRAM = workloads.lora(4, 8, 12, 2)
RIGHT = workloads.lora_fused(4, 8, 12, 2, grid=3, loop=4)
WRONG = replace(PROGRAM, ops=(*PROGRAM.ops[:3], workloads.op(OpKind.SUB, 4, 6)))
MISFIT = workloads.gated_mlp_fused(4, 8, 12, grid=3, loop=4)
ILL_FORMED = replace(RIGHT, outputs=(9,))


class FakeProver(ModuleType):
    """Stands for the prover: knows which graphs are right, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__("mirage_formal.run.verify.decide")
        self.asked: list[tuple[KernelGraph, KernelGraph, int]] = []

    def decide_equality(self, program: KernelGraph, candidate: KernelGraph, *, seed: int = 0) -> Verdict:
        self.asked.append((program, candidate, seed))
        if candidate == RIGHT:
            return Equivalent(b'{"steps": []}', ("x > 0",))
        if candidate == WRONG:
            return Different(seed, 0, (1, 2), 3, 4)
        return Unknown("too [red]hard[/red]")


@pytest.fixture
def prover(monkeypatch: pytest.MonkeyPatch) -> FakeProver:
    fake = FakeProver()
    monkeypatch.setitem(sys.modules, "mirage_formal.run.verify.decide", fake)
    # its proofs are none
    monkeypatch.setattr(verdicts, "replay_verdict", lambda program, graph, verdict, seed: verdict)
    # A process of its own would not know this one.
    monkeypatch.setattr(verdicts.VerdictProcess, "call", lambda self, function, task: function(*task))
    return fake


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("lora.py").write_text(LORA)
    Path("two.py").write_text(LORA + OTHER)
    Path("right.json").write_text(to_json(RIGHT))
    Path("wrong.json").write_text(to_json(WRONG))


def listed(*graphs: KernelGraph) -> str:
    return "[" + ",".join(map(to_json, graphs)) + "]"


class Command:
    """Runs the command and gives its exit code and what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self._monkeypatch.setattr(sys, "argv", ["mirage_formal.verify", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.verify_main()
        output, errors = self._capsys.readouterr()
        assert errors == ""
        return int(str(ended.value.code)), output

    def refused(self, *arguments: str) -> str:
        """What is said where a mistake ends the command: one screen, no output."""
        self._monkeypatch.setattr(sys, "argv", ["mirage_formal.verify", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.verify_main()
        output, errors = self._capsys.readouterr()
        assert ended.value.code == 2
        assert output == ""
        assert errors.startswith("error: ")
        assert "Traceback" not in errors
        assert len(errors.splitlines()) <= 20
        assert "expected" in errors or "differ" in errors
        assert "got" in errors or "expected JSON: " in errors or "has" in errors
        assert "hint: " in errors
        return errors


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_one_graph_that_is_equivalent(verify: Command, prover: FakeProver) -> None:
    code, output = verify("lora.py", "right.json", "--seed", "5")
    assert code == 0
    assert "lora: 1 of 1 graphs equivalent" in output
    assert "1 places" in output
    ((program, candidate, seed),) = prover.asked
    assert program == PROGRAM
    assert candidate == RIGHT
    assert seed == 5


def test_several_graphs_in_a_table(verify: Command, prover: FakeProver) -> None:
    Path("several.json").write_text(listed(RIGHT, WRONG, PROGRAM))
    code, output = verify("lora.py", "several.json")
    assert code == 1
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    assert [row[:3] for row in rows] == [
        ["0", "equivalent", "where no divisor is 0 and no radicand negative (1 places; --json lists them)"],
        ["1", "different", "output 0 at (1, 2): expected 3, got 4"],
        ["2", "unknown", "too [red]hard[/red]"],
    ]
    assert all(float(row[3]) >= 0 for row in rows)


def test_json(verify: Command, prover: FakeProver) -> None:
    Path("several.json").write_text(listed(RIGHT, WRONG, PROGRAM))
    code, output = verify("lora.py", "several.json", "--json")
    assert code == 1
    found = json.loads(output)["result"]
    assert set(found) == {"program", "graphs"}
    assert found["program"] == "lora"
    fields = {"index", "verdict", "reason", "conditions", "added", "counterexample", "seconds"}
    assert [set(one) for one in found["graphs"]] == [fields] * 3
    assert [one["index"] for one in found["graphs"]] == [0, 1, 2]
    assert [one["verdict"] for one in found["graphs"]] == ["equivalent", "different", "unknown"]
    point = {"seed": 0, "output": 0, "index": [1, 2], "expected": 3, "got": 4}
    assert found["graphs"][1]["counterexample"] == point
    assert found["graphs"][0]["counterexample"] is None
    assert found["graphs"][2]["reason"] == "too [red]hard[/red]"


def test_mirages_format_with_names_by_position(verify: Command, prover: FakeProver) -> None:
    Path("checkpoint.json").write_text(to_mirage([RIGHT, RIGHT]))
    code, output = verify("lora.py", "checkpoint.json")
    assert code == 0
    assert "2 of 2 graphs equivalent" in output
    assert [asked[1] for asked in prover.asked] == [RIGHT, RIGHT]
    # A file may also be one graph.
    Path("one.json").write_text(json.dumps(json.loads(to_mirage([RIGHT]))[0]))
    assert verify("lora.py", "one.json")[0] == 0


def test_a_checkpoint_has_the_programs_16_bit_type(verify: Command, prover: FakeProver) -> None:
    Path("b.py").write_text(LORA.replace("float16", "bfloat16"))
    typed = replace(
        RIGHT, inputs=tuple(replace(i, tensor=replace(i.tensor, dtype=DType.BFLOAT16)) for i in RIGHT.inputs)
    )
    text = to_mirage([typed]).replace('"data_type":920', '"data_type":940')
    Path("checkpoint.json").write_text(text)
    assert verify("b.py", "checkpoint.json")[0] == 1
    assert prover.asked[0][1] == typed


@pytest.mark.parametrize("write", [listed, lambda *graphs: to_mirage(graphs)], ids=["ours", "mirage"])
def test_one_misfit_of_several_does_not_stop_the_others(
    verify: Command, prover: FakeProver, write: Callable[..., str]
) -> None:
    Path("several.json").write_text(write(RIGHT, MISFIT, RIGHT))
    code, output = verify("lora.py", "several.json", "--json")
    assert code == 1
    first, misfit, last = json.loads(output)["result"]["graphs"]
    assert (first["verdict"], last["verdict"]) == ("equivalent", "equivalent")
    assert misfit["verdict"] == "unknown"
    assert misfit["reason"].startswith("ill-formed: expected inputs of shapes [[4, 8], [8, 12], [8, 2]")
    assert len(prover.asked) == 2


def test_an_unreadable_graph_of_several(verify: Command, prover: FakeProver) -> None:
    text = to_mirage([RIGHT, RIGHT, RIGHT])
    value = json.loads(text)
    value[1][4]["op_type"] = "kn_pow_op"
    Path("several.json").write_text(json.dumps(value))
    code, output = verify("lora.py", "several.json", "--json")
    assert code == 1
    reasons = [one["reason"] for one in json.loads(output)["result"]["graphs"]]
    assert "field $[1][4].op_type: expected an operator with a counterpart here, got 'kn_pow_op'" in reasons[1]
    assert len(prover.asked) == 2
    ours = json.loads(listed(RIGHT, RIGHT))
    ours[0]["version"] = 7
    ours[1]["outputs"] = [9]
    Path("several.json").write_text(json.dumps(ours))
    code, output = verify("lora.py", "several.json", "--json")
    assert code == 1
    reasons = [one["reason"] for one in json.loads(output)["result"]["graphs"]]
    assert reasons[0].startswith("ill-formed: field $.version: expected 1, got 7")
    assert reasons[1].startswith("ill-formed: field $.outputs: expected tensors numbered below 5")


def test_a_program_is_chosen_by_name(verify: Command, prover: FakeProver) -> None:
    assert verify("two.py", "right.json", "--program", "lora")[0] == 0
    assert "expected one program, got lora, other" in verify.refused("two.py", "right.json")
    assert "expected one of the programs lora, other, got 'lor'" in verify.refused(
        "two.py", "right.json", "--program", "lor"
    )


def test_a_directory_of_verdicts(verify: Command, prover: FakeProver) -> None:
    Path("several.json").write_text(to_mirage([RIGHT, PROGRAM, MISFIT]))
    code, output = verify("lora.py", "several.json", "--out", "verdicts", "--json")
    assert code == 1
    assert json.loads(Path("verdicts/verdicts.json").read_text()) == json.loads(output)["result"]
    assert Path("verdicts/0", PROOF_FILE).read_bytes() == b'{"steps": []}'
    assert from_json(Path("verdicts/0/mugraph.json").read_text()).ops == RIGHT.ops
    assert sorted(p.name for p in Path("verdicts/1").iterdir()) == ["mugraph.json"]
    assert "expected an empty or new directory, got files in it" in verify.refused(
        "lora.py", "right.json", "--out", "verdicts"
    )
    assert "expected a directory to write" in verify.refused("lora.py", "right.json", "--out", "lora.py")


def test_one_graph_that_does_not_fit(verify: Command, prover: FakeProver) -> None:
    Path("misfit.json").write_text(to_json(MISFIT))
    said_ = verify.refused("lora.py", "misfit.json")
    assert "misfit.json: expected inputs of shapes [[4, 8], [8, 12], [8, 2], [2, 12]], got [[4, 8]" in said_
    square = workloads.tensor("A", 4, 4), workloads.tensor("B", 4, 4)
    Path("swapped.json").write_text(to_json(KernelGraph(square[::-1], (workloads.op(OpKind.SUB, 0, 1),), (2,))))
    Path("square.py").write_text(SQUARE)
    assert "expected inputs in the program's order A, B, got B, A" in verify.refused("square.py", "swapped.json")
    assert prover.asked == []


def _file(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "expected JSON"),
        ("{", "expected JSON"),
        (b"\xff\xfe", "expected UTF-8"),
        ("3", "field $.schema"),
        ("{}", "field $.schema: expected 'mirage_formal/mugraph', got None"),
        ("[]", "expected a list of graphs or of operators, got an empty one"),
        ("[3]", "graph 0: field $.schema"),
        ("[[]]", "field $[0]: expected 1..4096 operators, got 0"),
        ('[{"op_type": "kn_softmax_op"}]', "a counterpart here, got 'kn_softmax_op'"),
        ("[" * 100_000, "nesting too deep"),
        (b" " * 9_000_000, "expected at most 8388608 bytes"),
    ],
)
def test_files_that_are_no_graphs(verify: Command, prover: FakeProver, content: str | bytes, words: str) -> None:
    said_ = verify.refused("lora.py", _file("bad.json", content))
    assert "bad.json" in said_
    assert words in said_


def test_files_that_are_not_there(verify: Command, prover: FakeProver) -> None:
    assert "none.json: expected a JSON file, got nothing there" in verify.refused("lora.py", "none.json")
    assert "expected a JSON file, got a directory" in verify.refused("lora.py", ".")
    assert "none.py: expected a Python file, got nothing there" in verify.refused("none.py", "right.json")


def test_ill_formed_graphs_of_our_format(verify: Command, prover: FakeProver) -> None:
    program = replace(PROGRAM, ops=(*PROGRAM.ops[:3], workloads.op(OpKind.MATMUL, 4, 6)))
    Path("bad.json").write_text(to_json(program))
    assert "bad.json: op 3 (matmul): inner dimensions differ" in verify.refused("lora.py", "bad.json")


def test_what_is_said_of_every_verdict() -> None:
    def row(verdict: Verdict) -> tuple[str, str]:
        one = plain_verdict(VerifiedGraph(0, None, verdict, 0.5))
        return one.verdict, one.reason

    assert row(Equivalent(b"")) == ("equivalent", "")
    assert row(Equivalent(b"", ("a != 0", "b >= 0"))) == ("equivalent", "where a != 0; b >= 0")
    assert row(Probable(3, -9.5)) == ("probable", "agreed at 3 random points of a finite field")
    assert row(Probable(3, None, "vacuous")) == ("probable", "vacuous")
    assert row(Unknown("why")) == ("unknown", "why")
    assert row(Different(1, 2, (3,), 4, 5)) == ("different", "output 2 at (3): expected 4, got 5")


def test_the_counterexample_of_a_verdict_is_plain_data() -> None:
    witness = Counterexample(
        (DefaultValues(0, 1), DefaultValues(0, 0)), (CounterexampleEntry(1, (0, 2), -3),), 0, (1,), 1 / 3, 2.0
    )
    found = plain_verdict(VerifiedGraph(0, None, Different(9, 0, (1,), 1 / 3, 2.0, witness), 0.5))
    inputs = "x0 = 0 (1 where the sum of the coordinates is odd); x1 = 0 but x1[0, 2] = -3"
    assert found.reason == f"{inputs}; output 0 at (1): expected 0.333333, got 2"
    assert json.loads(
        verdicts_json("p", [VerifiedGraph(0, None, Different(9, 0, (1,), 1 / 3, 2.0, witness), 0.5)])
    ) == {
        "program": "p",
        "graphs": [
            {
                "index": 0,
                "verdict": "different",
                "reason": found.reason,
                "conditions": [],
                "added": [],
                "counterexample": {
                    "fills": [{"even": 0, "odd": 1}, {"even": 0, "odd": 0}],
                    "entries": [{"input": 1, "index": [0, 2], "value": -3}],
                    "output": 0,
                    "index": [1],
                    "expected": 1 / 3,
                    "got": 2.0,
                },
                "seconds": 0.5,
            }
        ],
    }


def test_the_real_prover(verify: Command) -> None:
    other = workloads.lora_fused(4, 8, 12, 2, grid=2, loop=2, rows=2)
    Path("right.json").write_text(to_mirage([RIGHT, other, PROGRAM]))
    code, output = verify("lora.py", "right.json", "--json")
    assert code == 0
    assert [one["verdict"] for one in json.loads(output)["result"]["graphs"]] == ["equivalent"] * 3
    Path("several.json").write_text(listed(RIGHT, WRONG))
    code, output = verify("lora.py", "several.json", "--json", "--out", "verdicts")
    assert code == 1
    right, wrong = json.loads(output)["result"]["graphs"]
    assert (right["verdict"], wrong["verdict"]) == ("equivalent", "different")
    assert wrong["counterexample"]["expected"] != wrong["counterexample"]["got"]
    proved = mf.equivalence(PROGRAM, RIGHT)
    assert isinstance(proved, Equivalent)
    assert Path("verdicts/0", PROOF_FILE).read_bytes() == proved.proof != b""
    assert isinstance(mf.equivalence(PROGRAM, WRONG), Different)


# --- the function ---


def test_the_function_takes_graphs_and_files(prover: FakeProver) -> None:
    graph = mf.new_kernel_graph()
    names = {"X": (4, 8), "W": (8, 12), "A": (8, 2), "B": (2, 12)}
    X, W, A, B = (graph.new_input(shape, name=name) for name, shape in names.items())
    graph.mark_output(X @ W + (X @ A) @ B)
    assert isinstance(mf.equivalence(graph, RIGHT), Equivalent)
    assert isinstance(mf.equivalence(PROGRAM, "right.json"), Equivalent)
    assert isinstance(mf.equivalence(graph, Path("wrong.json"), seed=3), Different)
    assert prover.asked[-1] == (PROGRAM, WRONG, 3)
    assert isinstance(mf.equivalence(graph, graph), Unknown)


def test_mistakes_of_the_function(prover: FakeProver) -> None:
    Path("several.json").write_text(listed(RIGHT, RIGHT))
    with pytest.raises(mf.FormatError, match="expected one graph, got 2"):
        mf.equivalence(PROGRAM, "several.json")
    with pytest.raises(mf.GraphError, match="expected inputs of shapes") as raised:
        mf.equivalence(PROGRAM, MISFIT)
    assert raised.value.where == "graph"
    with pytest.raises(mf.GraphError):
        mf.equivalence(PROGRAM, ILL_FORMED)
    with pytest.raises(mf.ProgramError, match="expected a kernel graph, got int"):
        mf.equivalence(PROGRAM, 3)  # type: ignore[arg-type]
    with pytest.raises(mf.FormatError, match="got nothing there"):
        mf.equivalence(PROGRAM, "none.json")
    with pytest.raises(mf.FormatError, match="counterpart"):
        mf.equivalence(PROGRAM, _file("bad.json", '[{"op_type": "kn_softmax_op"}]'))
    assert prover.asked == []


def test_a_proof_that_the_checker_refuses_is_believed_by_nobody() -> None:
    verdict = verdicts.replay_verdict(PROGRAM, RIGHT, Equivalent(b"{}", ()))
    assert isinstance(verdict, Unknown)
    assert "refuses" in verdict.reason


def test_the_proof_as_formulas(verify: Command) -> None:
    code, output = verify("lora.py", "right.json", "--explain", "text")
    assert code == 0
    assert "sum[" in output
    assert "The two are the same term." in output
    _, output = verify("lora.py", "right.json", "--explain", "latex")
    assert r"\sum_{" in output
