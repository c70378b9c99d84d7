"""Programs with odd extents, from the search to the check of what it wrote and kernels on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal.check.candidate import check_candidate
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import GraphDefined, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.kernel_build.build import build
from mirage_formal.run.driver import run_search
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, make_job, preprocess_job
from mirage_formal.run.tasks import PADDED, plan
from tests.kit.sampling import number

H200 = load_target("h200")


def gated(rows: int, inner: int, columns: int) -> KernelGraph:
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(rows, inner), name="x"), g.new_input(dims=(inner, columns), name="w")
    g.mark_output(g.silu(g.matmul(x, w)))
    return g.freeze()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[KernelGraph, RunReport]:
    program = gated(37, 67, 101)
    settings = Settings(workers=1, config="mlp", keep=2, max_kernel_ops=1)
    return program, run_search(program, settings, tmp_path_factory.mktemp("tails") / "run")


def test_candidates_at_rounded_extents_are_proved(found: tuple[KernelGraph, RunReport]) -> None:
    program, report = found
    best = report.results[0]
    assert isinstance(best.verdict, Equivalent)
    assert any(isinstance(op, GraphDefined) and op.graph.blocks > 1 for op in best.graph.ops)
    assert kernel_count(best.graph) == 1
    assert best.graph.inputs == program.inputs
    assert kernel_types(best.graph)[best.graph.outputs[0]].shape == (37, 101)
    assert best.cost < report.unfused_us
    assert report.summary.rejected == ()


def test_the_checker_establishes_them(found: tuple[KernelGraph, RunReport]) -> None:
    for result in found[1].results:
        held = check_candidate(result.directory)
        assert held.verdict == "equivalent"
        assert held.added == ()
        assert held.kernels == kernel_count(result.graph)


def test_their_kernels_compute_the_program(found: tuple[KernelGraph, RunReport]) -> None:
    program, report = found
    made = build(report.results[0].graph, program, H200)
    assert len(made.executable.launches) == 1
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"


def gram() -> KernelGraph:
    """An input that is read as it lies and transposed, both padded along the dim that is summed over."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(16, 67), name="x")
    g.mark_output(g.matmul(x, g.transpose(x)))
    return g.freeze()


def means() -> KernelGraph:
    """Two outputs, which one kernel gives in the order of its own."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(21, 67), name="x")
    g.mark_output(g.mean(g.gelu(x), 0))
    g.mark_output(g.exp(x))
    return g.freeze()


@pytest.mark.parametrize("build", [gram, means], ids=lambda build: build.__name__)
def test_nothing_is_rejected(build: Callable[[], KernelGraph], tmp_path: Path) -> None:
    report = run_search(build(), Settings(workers=1, keep=4, cache=False), tmp_path / "run")
    padded = [result for result in report.results if any(_tail(op) for op in result.graph.ops)]
    assert padded
    assert report.summary.rejected == ()
    for result in padded[:2]:
        assert check_candidate(result.directory).verdict == "equivalent"


def _tail(op: KernelOp) -> bool:
    return isinstance(op, Op) and op.kind is OpKind.PAD


def test_a_proof_that_is_changed_is_refused(found: tuple[KernelGraph, RunReport], tmp_path: Path) -> None:
    import shutil

    source = found[1].results[0].directory
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    proof = copy / "proof" / "equivalence.json"
    proof.write_bytes(proof.read_bytes().replace(b"48", b"64", 1))
    with pytest.raises(CheckFailed):
        check_candidate(copy)


def test_units_are_added_behind_the_program_s_own() -> None:
    settings = Settings(config="mlp")
    own, longer = (
        plan(preprocess_job(make_job(gated(64, 64, 96), settings))),
        plan(preprocess_job(make_job(gated(37, 67, 101), settings))),
    )
    assert not any(unit.label.startswith(PADDED) for unit in own)
    kinds = [unit.label.startswith(PADDED) for unit in longer]
    assert any(kinds)
    assert kinds == sorted(kinds)
    assert [unit.index for unit in longer] == list(range(len(longer)))


def test_a_program_that_is_not_searched_at_longer_extents_is_searched_at_its_own() -> None:
    """A softmax along one element has no normal form; at longer extents no tile of the program's operators fits."""
    graph = mf.new_kernel_graph()
    x = graph.new_input((138, 77, 39), mf.float16, name="x")
    graph.mark_output(graph.softmax(graph.mean(graph.mean(x, 0), 1), 1))
    units = plan(preprocess_job(make_job(graph.freeze(), Settings(longer=True))))
    assert [unit.label for unit in units] == ["one kernel of the program's operators"]


def test_certificates_of_concatenations_that_are_read_at_longer_extents(tmp_path: Path) -> None:
    """The pads of a concatenation are the program's own; those that make it longer stand behind them."""
    graph = mf.new_kernel_graph()
    x, y, w = (graph.new_input(dims, name=name) for name, dims in zip("xyw", ((1, 8), (1, 38), (46, 64)), strict=True))
    graph.mark_output(graph.matmul(graph.concat([x, y], dim=1), w) - 0.5)
    settings = Settings(workers=1, config="mlp", keep=100, max_kernel_ops=1)
    report = run_search(graph.freeze(), settings, tmp_path / "run")
    assert report.summary.rejected == ()
    longer = [result for result in report.results if any(48 in t.shape for t in kernel_types(result.graph))]
    assert longer
    for result in longer[: number(4, 100)]:
        assert check_candidate(result.directory).verdict == "equivalent"
