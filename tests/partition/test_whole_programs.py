"""Programs larger than their space: searched part by part, resumed, put together, called, lowered."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

import mirage_formal as mf
from mirage_formal.check.__main__ import main as check
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.codegen.target import load_target
from mirage_formal.device import launch
from mirage_formal.device.launch import NoDeviceWarning
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import KernelGraph, operators
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.build import build, build_run
from mirage_formal.partition import cover_search
from mirage_formal.partition.cover_search import search_covers
from mirage_formal.partition.cover_table import describe_best_cover, print_any, reports_values
from mirage_formal.partition.search_strategy import needs_partitioning, search_or_cover
from mirage_formal.partition.spaces import is_searchable, part_config
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records import decode
from mirage_formal.records.partition import COVERS, PARTS, WHOLE_FILE, WholeRecord, cover_name
from mirage_formal.run.driver import run_search
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, make_job
from mirage_formal.run.task_entry_points import run_search_task
from mirage_formal.search.preprocess import preprocess
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import MirageError, RunError, UnsupportedError
from mirage_formal.workers.dispatch import TaskFailed
from mirage_formal.workers.pool import Pool
from tests.kit.graphs.workloads import TINY, layers
from tests.kit.paths import REPOSITORY
from tests.kit.sampling import number


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> WholeReport:
    found = search_or_cover(layers(), Settings(**TINY), tmp_path_factory.mktemp("whole") / "layers", name="layers")
    assert isinstance(found, WholeReport)
    return found


def searches(record: WholeRecord) -> set[str]:
    """The directories of the searches of parts that whole.json names."""
    return {name.removesuffix("/summary.json") for name in record.manifest if name.startswith(f"{PARTS}/")}


def agree(program: KernelGraph, graph: KernelGraph) -> None:
    """The two graphs' outputs on random inputs, in float64."""
    numbers = np.random.default_rng(7)
    arrays = [numbers.uniform(-1, 1, source.tensor.shape) for source in program.inputs]
    for want, got in zip(float64_reference.run(program, arrays), float64_reference.run(graph, arrays), strict=True):
        assert np.abs(want).max() > 0.01
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_equal_parts_are_searched_once_and_all_are_put_together(report: WholeReport) -> None:
    assert report.result is not None
    record = report.record
    assert record.status == "complete"
    assert isinstance(report.result.verdict, Equivalent)
    assert any("divisor nonzero" in condition for condition in report.result.verdict.conditions)
    assert any("radicand nonnegative" in condition for condition in report.result.verdict.conditions)
    # The reshape is a view: no kernel is launched for it.
    assert record.best.kernels == kernel_count(report.result.graph) < record.unfused_kernels == 15
    assert record.best.estimated_us < record.unfused_us
    searched = [[part for part in one.parts if part.run] for one in record.covers]
    assert any(len({part.run for part in parts}) < len(parts) for parts in searched)
    assert [part.candidate for part in record.best.parts if not part.run] == [None]  # the reshape
    agree(layers(), report.result.graph)


def test_a_part_for_which_nothing_is_found_is_cut_again(report: WholeReport) -> None:
    """A layer fits the limit on a part's operators, but not, with its accumulators, that of a kernel."""
    used = {part.run for part in report.record.best.parts}
    unused = searches(report.record) - used
    assert unused
    assert all(one.chosen is not None for one in report.parts if one.report is not None)


def test_the_directory_is_established_again(report: WholeReport, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([str(report.directory), "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    for rank, one in enumerate(report.record.covers, 1):
        assert f'whole program "layers", cover {rank} ({one.graph_digest[:12]}): equivalent' in said


def test_what_is_printed(report: WholeReport) -> None:
    out = StringIO()
    print_any(report, Console(file=out))
    assert f"kernels: {report.record.best.kernels} instead of 15" in " ".join(out.getvalue().split())
    shown = msgspec.json.decode(msgspec.json.encode(reports_values([(report, None)])))
    assert shown[0]["summary"]["covers"][0]["graph_digest"] == report.record.best.graph_digest
    assert not any("others may be cheaper" in note for note in describe_best_cover(report))
    assert any(note.startswith("parts: for 3 operators") for note in describe_best_cover(replace(report, limited=3)))


def test_a_whole_is_called(report: WholeReport) -> None:
    assert report.result is not None
    launch._say_no_gpu.cache_clear()  # it is said once in a process, and another test may have been told
    numbers = np.random.default_rng(3)
    given = [numbers.uniform(-1, 1, source.tensor.shape).astype(np.float16) for source in layers().inputs]
    with pytest.warns(NoDeviceWarning):
        got = report.result(*given)
    wanted = float64_reference.run(layers(), [array.astype(np.float64) for array in given])
    for want, one in zip(wanted, got, strict=True):
        np.testing.assert_allclose(one.astype(np.float64), want, rtol=2e-3, atol=2e-3)


def test_a_whole_is_lowered_and_runs_on_the_emulator(report: WholeReport) -> None:
    assert report.result is not None
    made = build(report.result.graph, layers(), load_target("h200"))
    assert len(made.executable.launches) >= report.record.best.kernels
    assert compare_on_emulator(made, scales=(0.1,)).answer == "within"


class Interrupt:
    """Ctrl-C while the search of a certain run goes on."""

    def __init__(self, run: int) -> None:
        self.left = run
        self.planned = False

    def __call__(self, progress: Progress) -> None:
        if progress.phase is RunPhase.PLAN and not self.planned:
            self.left -= 1
        self.planned = progress.phase is RunPhase.PLAN
        if self.left == 0 and progress.phase is RunPhase.SEARCH:
            self.left = -1
            raise KeyboardInterrupt


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_an_interrupted_whole_is_resumed(report: WholeReport, tmp_path: Path) -> None:
    out = tmp_path / "layers"
    stopped = search_covers(layers(), Settings(**TINY), out, name="layers", watch=Interrupt(2))
    assert (stopped.result, stopped.record.status) == (None, "interrupted")
    assert check([str(out)]) == 2
    with pytest.raises(RunError, match="another program"):
        search_covers(layers(3), Settings(**TINY, resume=True), out)
    # What a crash and what a session of another order may leave: a search without run.json, one that is not used.
    (first,) = sorted((out / PARTS).glob("01-*"))
    shutil.copytree(first, out / PARTS / f"77-{'ab' * 6}")
    shutil.copytree(first, out / PARTS / f"05-{'cd' * 6}")
    (out / PARTS / f"05-{'cd' * 6}" / "run.json").unlink()
    (out / ".whole.json.123.tmp").write_text("{")
    (out / f".{COVERS}" / f"001-{'ab' * 6}" / "parts").mkdir(parents=True)
    (out / COVERS / f"004-{'ab' * 6}").mkdir(parents=True)
    (first / "run.json").unlink()
    resumed = search_covers(layers(), Settings(**{**TINY, "workers": 2}, resume=True), out, name="layers")
    assert resumed.record.best.graph_digest == report.record.best.graph_digest
    assert [part.candidate for part in resumed.record.best.parts] == [
        part.candidate for part in report.record.best.parts
    ]
    assert {f"{PARTS}/{path.name}" for path in (out / PARTS).iterdir()} == searches(resumed.record)
    names = {cover_name(rank, one.graph_digest) for rank, one in enumerate(resumed.record.covers, 1)}
    assert {path.name for path in (out / COVERS).iterdir()} == names
    assert check([str(out), "--jobs", "1"]) == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"seed": 1}, "another seed"),
        ({"keep": 3}, "another search space"),
        ({"max_block_ops": 5}, "another search space"),
        ({"config": "norm"}, "another config .tiny, now norm.; another search space"),
        ({"engine": "exhaustive"}, "another engine"),
        ({"target": "a100"}, "another target"),
        ({"prune": False}, "another prune"),
        ({"engine": "exhaustive", "oracle": "z3"}, "another oracle"),
    ],
)
def test_only_what_was_asked_for_is_resumed(report: WholeReport, option: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        search_covers(layers(), Settings(**{**TINY, **option}, resume=True), report.directory)


class Broken(Pool):
    """Workers that give up every unit of the parts of so many operators."""

    def __init__(self, operators: int) -> None:
        super().__init__(1)
        self.operators = operators

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **limits: Any) -> Iterator[Any]:
        if function is run_search_task and len(tasks[0].job.program.ops) == self.operators:
            return iter([TaskFailed(i, "worker died", 3) for i in range(len(tasks))])
        return super().run(function, tasks, **limits)


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_a_part_of_which_a_unit_failed_is_searched_again_on_resume(tmp_path: Path) -> None:
    with Broken(6) as broken:
        found = search_covers(layers(1), Settings(**TINY), tmp_path / "out", executor=broken)
    assert found.failed
    assert all(len(part.operators) < 6 for part in found.record.best.parts)
    out = StringIO()
    print_any(found, Console(file=out))
    assert "INCOMPLETE" in out.getvalue()
    assert check([str(tmp_path / "out"), "--jobs", "1"]) == 0
    cured = search_covers(layers(1), Settings(**TINY, resume=True), tmp_path / "out")
    assert not cured.failed
    assert cured.record.best.estimated_us <= found.record.best.estimated_us
    assert check([str(tmp_path / "out"), "--jobs", "1"]) == 0


def test_parts_without_a_digest_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: KernelGraph) -> str:
        raise UnsupportedError("too many symmetries", where="graph", hint="")

    program, settings = _attention()
    job = make_job(program, settings)
    assert is_searchable(program, job, settings)
    monkeypatch.setattr("mirage_formal.partition.spaces.digest", refuse)
    assert not is_searchable(program, job, settings)


def test_a_part_keeps_the_space_that_has_its_operators() -> None:
    def part(kind: str) -> KernelGraph:
        graph = mf.new_kernel_graph()
        x, y = graph.new_input(dims=(4, 8)), graph.new_input(dims=(8, 8))
        graph.mark_output(getattr(graph, kind)(graph.matmul(x, y), x))
        return graph.freeze()

    assert [part_config(part(kind), Settings()) for kind in ("add", "sub")] == ["mlp", "default"]
    assert part_config(part("add"), Settings(config="default")) == "default"


def test_parts_that_differ_in_views_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mf.new_kernel_graph()
    x, bias = graph.new_input((16, 64)), graph.new_input((64,))  # a bias is read as [1, 64], which is a view
    graph.mark_output(graph.max(graph.exp(graph.tanh(x + bias)) * 2, dim=-1))
    found: list[KernelGraph] = []

    def recorded(program: KernelGraph, *given: Any, **about: Any) -> RunReport:
        found.append(program)
        return run_search(program, *given, **about)

    monkeypatch.setattr("mirage_formal.partition.cover_search.run_search", recorded)
    report = search_covers(graph.freeze(), Settings(**TINY), tmp_path / "out")
    kinds = [tuple(op.kind for op in operators(preprocess(program).program)) for program in found]
    assert kinds
    assert len(set(kinds)) == len(kinds)
    assert report.result is not None
    agree(graph.freeze(), report.result.graph)


@pytest.mark.usefixtures("check_here")
def test_without_time_the_operators_stay(tmp_path: Path) -> None:
    out = tmp_path / "layers"
    found = search_covers(layers(), Settings(**TINY, time_limit=1e-9), out, name="layers")
    assert found.result is not None
    assert found.record.status == "time-limit"
    assert found.record.best.kernels == found.record.unfused_kernels
    agree(layers(), found.result.graph)
    assert check([str(out), "--jobs", "1"]) == 0


def test_without_time_no_part_is_priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[KernelGraph] = []

    def asked(part: KernelGraph, *rest: Any, **more: Any) -> bool:
        priced.append(part)
        return is_searchable(part, *rest, **more)

    monkeypatch.setattr(cover_search, "is_searchable", asked)
    found = search_covers(layers(), Settings(**TINY, time_limit=1e-9), tmp_path / "layers")
    assert found.record.status == "time-limit"
    assert not priced
    search_covers(layers(), Settings(**TINY, time_limit=60.0), tmp_path / "longer")
    assert priced


def test_a_part_whose_preprocessing_is_not_proved_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its costs are estimated as if it were, and no search takes a maximum."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((8, 16)), graph.new_input((16, 8))
    weights = graph.exp(x - graph.max(x, 1))
    graph.mark_output(graph.rms_norm((weights / graph.sum(weights, 1)) @ w))
    monkeypatch.setattr("mirage_formal.search.preprocess._is_proved_equal", lambda program, anew: False)
    preprocess.cache_clear()
    try:
        found = search_or_cover(graph.freeze(), Settings(workers=1), tmp_path / "out")
    finally:
        preprocess.cache_clear()
    assert isinstance(found, WholeReport)
    assert found.result is not None
    agree(graph.freeze(), found.result.graph)


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="an earlier run, got other files"):
        search_covers(layers(), Settings(**TINY), tmp_path)
    with pytest.raises(RunError, match="expected a run to resume"):
        search_covers(layers(), Settings(**TINY, resume=True), tmp_path)
    broken = tmp_path / "broken"
    (broken / PARTS / "kept").mkdir(parents=True)
    (broken / WHOLE_FILE).write_text("{}")
    with pytest.raises(RunError, match="expected a WholeRecord"):
        search_covers(layers(), Settings(**TINY), broken)
    assert (broken / PARTS / "kept").is_dir()
    mixed = tmp_path / "mixed"
    search_covers(layers(), Settings(**TINY, time_limit=1e-9), mixed)
    (mixed / PARTS / "kept").mkdir(parents=True)
    with pytest.raises(RunError, match="only what a search writes, got parts/kept"):
        search_covers(layers(), Settings(**TINY, force=True), mixed)
    assert (mixed / PARTS / "kept").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="got a file"):
        search_covers(layers(), Settings(**TINY), tmp_path / "file")


@pytest.mark.usefixtures("check_here")
def test_a_program_that_no_search_takes_stays_as_it_is(tmp_path: Path) -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="X")
    for _ in range(9):
        x = graph.cast(graph.max(graph.transpose(x), 0), mf.float16)
    graph.mark_output(x)
    program = graph.freeze()
    found = search_or_cover(program, Settings(**TINY), tmp_path / "out")
    assert isinstance(found, WholeReport)
    assert found.result is not None
    assert found.record.best.kernels == found.record.unfused_kernels == 18  # transposes are views
    agree(program, found.result.graph)
    assert check([str(tmp_path / "out"), "--jobs", "1"]) == 0


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_a_candidate_above_the_operators_one_by_one_is_not_reported(tmp_path: Path) -> None:
    """One kernel for both products would compute the hidden layer again in every block."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(512, 512), name="X")
    a, b = graph.new_input(dims=(512, 4096), name="A"), graph.new_input(dims=(4096, 512), name="B")
    graph.mark_output(graph.add(x, graph.matmul(graph.relu(graph.matmul(x, a)), b)))
    program = graph.freeze()
    alone = search_or_cover(program, Settings(config="mlp", max_kernel_ops=1, workers=1, keep=1), tmp_path / "alone")
    assert isinstance(alone, RunReport)
    assert min(result.cost for result in alone.results) > alone.unfused_us
    found = search_or_cover(program, Settings(workers=1), tmp_path / "cover")
    best = found.results[0]
    assert best.cost <= alone.unfused_us
    agree(program, best.graph)
    assert check([str(tmp_path / "cover"), "--jobs", "1"]) == 0


def test_kernels_of_a_resumed_run_are_not_removed_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the run's candidates are such that a cover would take its place."""
    program, _ = _attention()
    first = search_or_cover(program, Settings(workers=1), tmp_path / "run")
    assert isinstance(first, RunReport)
    (outcome,) = build_run(tmp_path / "run", 1, ())
    assert outcome[1].startswith("built")
    monkeypatch.setattr("mirage_formal.partition.search_strategy._is_good_enough", lambda report, share: False)
    again = search_or_cover(program, Settings(workers=1, resume=True), tmp_path / "run")
    assert isinstance(again, RunReport)
    assert list((tmp_path / "run" / "kernels").glob("*/launch.json"))


def test_candidates_that_are_no_alternative_are_left_out(tmp_path: Path) -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16, 256), name="X")
    a, b = graph.new_input(dims=(256, 1024), name="A"), graph.new_input(dims=(256, 1024), name="B")
    graph.mark_output(graph.mul(graph.silu(graph.matmul(x, a)), graph.matmul(x, b)))
    usual = search_or_cover(graph.freeze(), Settings(workers=1), tmp_path / "usual")
    asked = search_or_cover(graph.freeze(), Settings(workers=1, config="mlp"), tmp_path / "asked")
    assert isinstance(usual, RunReport)
    assert isinstance(asked, RunReport)
    assert max(result.cost for result in usual.results) <= usual.unfused_us
    assert usual.results[0].digest == asked.results[0].digest


def test_programs_of_one_search_stay_with_it(tmp_path: Path) -> None:
    for name in ("attn", "qknorm", "rmsnorm", "lora", "gated_mlp", "ntrans", "decode"):
        for program in load_programs(REPOSITORY / "examples" / f"{name}.py").values():
            assert not needs_partitioning(program, Settings())
    small = layers(1)  # its limit is that of the space, whoever sets it
    assert needs_partitioning(small, Settings(**TINY))
    assert not needs_partitioning(small, Settings(**TINY, max_block_ops=10))
    assert isinstance(search_or_cover(*_attention(), tmp_path / "one"), RunReport)


def _attention() -> tuple[KernelGraph, Settings]:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="X")
    graph.mark_output(graph.exp(graph.square(x)))
    return graph.freeze(), Settings(**TINY)


def test_superoptimize_returns_the_covers(tmp_path: Path) -> None:
    found = mf.superoptimize(layers(1), out=tmp_path / "whole", name="one_layer", **TINY)
    assert len(found) > 1
    assert [(one.rank, one.directory) for one in found] == [(i, tmp_path / "whole") for i in range(1, len(found) + 1)]
    written = decode((tmp_path / "whole" / WHOLE_FILE).read_bytes(), WholeRecord, WHOLE_FILE)
    assert [(one.graph_digest, one.estimated_us) for one in written.covers] == [(one.digest, one.cost) for one in found]
    assert all(one.cost <= written.unfused_us for one in found)
    for one in found:
        agree(layers(1), one.graph)


def test_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "layer.py"
    file.write_text(
        "import mirage_formal as mf\ngraph = mf.new_kernel_graph()\n"
        "x = graph.new_input(dims=(4, 8))\n" + "x = graph.add(graph.exp(x), x)\n" * 4 + "graph.mark_output(x)\n"
    )
    command = [sys.executable, "-m", "mirage_formal.search", str(file), "--config", "tiny", "--workers", "1"]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert "instead of 8" in " ".join(done.stdout.split())
    assert check([str(tmp_path / "run"), "--jobs", "1"]) == 0


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_a_small_decoder_layer_from_end_to_end(tmp_path: Path) -> None:
    """The example's layer at reduced sizes: proved, as float64 says, and right on the emulator."""
    names = runpy.run_path(str(REPOSITORY / "examples" / "decoder_layer.py"), run_name="layer")
    sizes = names["Sizes"](hidden=32, heads=4, groups=2, head=16, inner=64, cached=64)
    program = names["program"](2, sizes).freeze()
    # More operators in a kernel, and two kernels for a part, take most of the time; with neither there are 6 kernels.
    limits: dict[str, Any] = {"max_block_ops": number(7, 9), "max_kernel_ops": number(1, 2)}
    settings = Settings(config="norm", workers=1, keep=1, **limits)
    found = search_covers(program, settings, tmp_path / "layer", name="layer")
    assert found.result is not None
    assert found.record.best.kernels < found.record.unfused_kernels == 34  # five reshapes are views
    agree(program, found.result.graph)
    assert check([str(tmp_path / "layer"), "--jobs", "1"]) == 0
    made = build(found.result.graph, program, load_target("h200"))
    # Larger scores overflow float16: a sum of exponentials plus another one gets no running maximum.
    assert made.stable.note
    assert compare_on_emulator(made, scales=(0.1, 0.3)).answer == "within"


def test_mistakes_in_settings_are_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(MirageError, match="unknown preset"):
        search_or_cover(layers(), Settings(config="none"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
