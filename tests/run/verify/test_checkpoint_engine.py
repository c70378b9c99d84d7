"""Graphs of a file in place of a search: verified, ranked and written as found ones are, under the file's digest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.check.__main__ import main as check
from mirage_formal.cli import app as cli
from mirage_formal.cli import utilities
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.formats.mirage.checkpoint_writer import to_mirage
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.partition.search_strategy import needs_partitioning, search_or_cover
from mirage_formal.records import key_of, sha256
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, identity, make_job
from mirage_formal.support.errors import FormatError, GraphError, NothingFoundError, RunError, SpaceError
from tests.kit.checkpoints.first_checkpoints import file_of, lora, lora_unfused
from tests.kit.graphs import workloads
from tests.kit.runs.tampering import edit, sign_run

PROGRAM = workloads.lora(4, 8, 12, 2)
FUSED = workloads.lora_fused(4, 8, 12, 2, grid=3, loop=4)
WRONG = replace(PROGRAM, ops=(*PROGRAM.ops[:3], workloads.op(OpKind.SUB, 4, 6)))
SOURCE = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X, W, A, B = (graph.new_input(dims=dims, dtype=mf.float16) for dims in [(4, 8), (8, 12), (8, 2), (2, 12)])
graph.mark_output(graph.add(graph.matmul(X, W), graph.matmul(graph.matmul(X, A), B)))
"""


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A first checkpoint of three graphs, two of which are one."""
    path = tmp_path / "first.json"
    graphs = (lora_unfused(4, 8, 12, 2), lora(4, 8, 12, 2, grid=3), lora(4, 8, 12, 2, grid=3))
    path.write_text(json.dumps(file_of(*graphs)))
    return path


def search(path: Path, out: Path, program: KernelGraph = PROGRAM, **more: object) -> RunReport:
    report = search_or_cover(program, Settings(checkpoint=str(path), workers=1, **more), out)  # type: ignore[arg-type]
    assert isinstance(report, RunReport)
    return report


def own(path: Path, *graphs: KernelGraph) -> Path:
    path.write_text(f"[{','.join(map(to_json, graphs))}]")
    return path


@pytest.mark.usefixtures("check_here")
def test_graphs_of_a_file_are_the_candidates(first: Path, tmp_path: Path) -> None:
    report = search(first, tmp_path / "out")
    assert report.summary.status == "complete"
    assert (report.summary.units, report.summary.states, report.summary.found) == (3, 0, 2)
    assert all(isinstance(one.verdict, mf.Equivalent) for one in report.results)
    assert [one.cost for one in report.results] == sorted(one.cost for one in report.results)
    assert {one.digest for one in report.results} >= {digest(PROGRAM)}
    written = (tmp_path / "out" / "run.json").read_text()
    assert json.loads(written)["identity"]["engine"] == f"file:{sha256(first.read_bytes())}"
    assert check([str(tmp_path / "out")]) == 0


def test_a_file_is_read_once_and_nothing_was_searched(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest in the identity is that of the bytes whose graphs were taken, whoever writes the file meanwhile."""
    opened, own_open = list[Path](), Path.open

    def count(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.extend([path] * (path == first))
        return own_open(path, *arguments, **options)

    digest_of_file = sha256(first.read_bytes())
    monkeypatch.setattr(Path, "open", count)
    job = make_job(PROGRAM, Settings(checkpoint=str(first)))
    assert (opened, job.engine) == ([first], f"file:{digest_of_file}")
    search(first, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "exhausted.json").read_text())
    assert record["left_out"] == [f"no space was searched: graphs come from the file with sha256 {digest_of_file}"]


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize(("words", "code"), [("not stated by this engine", 0), ("nothing", 1)])
def test_earlier_words_about_what_is_left_out(first: Path, tmp_path: Path, words: str, code: int) -> None:
    search(first, tmp_path / "out")
    edit(tmp_path / "out" / "exhausted.json", lambda record: record.update(left_out=[words]))
    sign_run(tmp_path / "out")
    assert check([str(tmp_path / "out")]) == code


def test_a_wrong_graph_is_rejected_with_the_reason(tmp_path: Path) -> None:
    report = search(own(tmp_path / "graphs.json", WRONG, FUSED), tmp_path / "out")
    assert len(report.results) == 1
    (rejected,) = report.summary.rejected
    assert (rejected.kind, rejected.digest) == ("certificate", digest(WRONG))
    assert "is not known to be part of an output's expression" in rejected.reason


def test_every_format_gives_the_same_candidates(tmp_path: Path) -> None:
    mine = own(tmp_path / "graphs.json", FUSED, PROGRAM)
    theirs = tmp_path / "checkpoint.json"
    theirs.write_text(to_mirage([PROGRAM, FUSED]))
    found = [[one.digest for one in search(path, tmp_path / path.stem).results] for path in (mine, theirs)]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_a_program_larger_than_its_space_is_not_cut(tmp_path: Path) -> None:
    path = own(tmp_path / "graphs.json", PROGRAM)
    assert needs_partitioning(PROGRAM, Settings(max_kernel_ops=1, max_block_ops=1))
    assert not needs_partitioning(PROGRAM, Settings(max_kernel_ops=1, max_block_ops=1, checkpoint=str(path)))


# --- identity ---


def test_the_identity_is_the_files_digest(first: Path, tmp_path: Path) -> None:
    """Another byte is another run; and a run without a file is what it was."""
    keys = {key_of(identity(make_job(PROGRAM, Settings(checkpoint=str(first)))))}
    plain = identity(make_job(PROGRAM, Settings()))
    assert plain.engine == "guided"
    keys.add(key_of(plain))
    search(first, tmp_path / "out")
    first.write_text(first.read_text() + "\n")
    keys.add(key_of(identity(make_job(PROGRAM, Settings(checkpoint=str(first))))))
    assert len(keys) == 3
    with pytest.raises(RunError, match="expected the run that is being resumed, got another engine"):
        search(first, tmp_path / "out", resume=True)


def test_a_finished_run_is_resumed(first: Path, tmp_path: Path) -> None:
    one = search(first, tmp_path / "out")
    again = search(first, tmp_path / "out", resume=True)
    assert [r.digest for r in again.results] == [r.digest for r in one.results]


# --- mistakes ---


def test_a_graph_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = own(tmp_path / "graphs.json", PROGRAM, workloads.gated_mlp(4, 8, 12))
    with pytest.raises(GraphError, match="expected inputs of shapes") as raised:
        search(path, tmp_path / "out")
    assert raised.value.where.endswith("graphs.json, graph 1")
    inputs = tuple(replace(one, tensor=replace(one.tensor, dtype=DType.BFLOAT16)) for one in PROGRAM.inputs)
    path = own(tmp_path / "other.json", replace(PROGRAM, inputs=inputs))
    with pytest.raises(GraphError, match="expected outputs of types float16, got bfloat16"):
        search(path, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.json"))


def test_a_graph_that_cannot_be_read_is_named(first: Path, tmp_path: Path) -> None:
    value = json.loads(first.read_text())
    del value["generated_graphs"][1][4]["bgraph"]["forloop_range"]
    first.write_text(json.dumps(value))
    with pytest.raises(FormatError, match=r"generated_graphs\[1\]\[4\]\.bgraph: .* \(in kn_customized_op\)"):
        search(first, tmp_path / "out")
    with pytest.raises(FormatError, match="expected a JSON file, got nothing there"):
        search(tmp_path / "none.json", tmp_path / "out")
    with pytest.raises(SpaceError, match="expected one of checkpoint and engine, got both"):
        search(first, tmp_path / "out", engine="exhaustive")


def test_a_file_of_wrong_graphs_says_so(tmp_path: Path) -> None:
    path = own(tmp_path / "graphs.json", WRONG)
    program = mf.new_kernel_graph()
    x, w, a, b = (program.new_input(dims) for dims in [(4, 8), (8, 12), (8, 2), (2, 12)])
    program.mark_output(program.add(program.matmul(x, w), program.matmul(program.matmul(x, a), b)))
    with pytest.raises(NothingFoundError, match=r"no graph of .*graphs\.json was accepted") as raised:
        mf.superoptimize(program, checkpoint=path, out=tmp_path / "out", workers=1)
    (reason,) = raised.value.reasons
    assert "1 of 1 proposed candidates are without a certificate for each tensor" in reason.what
    assert "mirage-formal verify judges each graph of the file" in reason.hint


# --- the command ---


def test_the_command(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(SOURCE)
    command = ["search", "program.py", "--checkpoint", first.name, "--workers", "1", "--json"]
    assert utilities.invoke_command(cli.app, command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == 0
    assert Path("runs/program/summary.json").is_file()
