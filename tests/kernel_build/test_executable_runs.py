"""Kernels of candidates: refused ones are passed over, a run's are written and run, a failure is a row."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal import gpu as command
from mirage_formal.autotune.timing_subprocess import GpuMachine, TimingAnswer, TimingJob, compare_and_time
from mirage_formal.check.__main__ import main as check_main
from mirage_formal.codegen.executable import Executable, KernelLaunch, load_executable
from mirage_formal.codegen.lowering import assemble
from mirage_formal.codegen.program.program import Barrier, For, If, Program
from mirage_formal.codegen.target import load_target
from mirage_formal.device import launch
from mirage_formal.device.measure import Measurement
from mirage_formal.graph.formats.json import encode
from mirage_formal.kernel_build import __main__ as build_command
from mirage_formal.kernel_build.build import KernelWarning, build, build_run, discharge_obligations
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.kernel_build.candidate_preference import Alternatives
from mirage_formal.kernel_build.save import find_kernels
from mirage_formal.records import KERNELS
from mirage_formal.run_directory.directory_layout import DirectoryWarning
from mirage_formal.support.errors import RunError, UnsupportedError
from tests.kit.graphs import workloads as w
from tests.kit.kernels.program_interpreter import run as interpret

H200 = load_target("h200")


def program() -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(2, 256), dtype=mf.float16, name="X")
    weight = graph.new_input(dims=(256, 512), dtype=mf.float16, name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x), weight))
    return graph


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    out = tmp_path_factory.mktemp("run") / "norm"
    found: list[Any] = mf.superoptimize(program(), config="norm", out=out, workers=1, keep=4)
    assert len(found) >= 2
    return found


def without_barriers(body: tuple[Any, ...]) -> tuple[Any, ...]:
    kept = (x for x in body if not isinstance(x, Barrier))
    return tuple(replace(x, body=without_barriers(x.body)) if isinstance(x, For | If) else x for x in kept)


def test_a_broken_obligation_is_refused() -> None:
    built = build(w.ntrans_fused(n=512), w.ntrans(n=512), H200)
    (kernel,) = built.programs.values()
    assert {record.finding for record in built.obligations} == {"held"}
    with pytest.raises(KernelRejected, match="an obligation is"):
        discharge_obligations(replace(kernel, body=without_barriers(kernel.body)))


def test_the_next_candidate_takes_the_place_of_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = w.ntrans_fused(n=512), w.ntrans_fused(n=512, grid=4)
    target = H200
    real = assemble.lower

    def broken(plan: Any) -> Program:
        lowered = real(plan)
        return replace(lowered, body=without_barriers(lowered.body)) if lowered.grid[0] == 4 else lowered

    monkeypatch.setattr(assemble, "lower", broken)
    both = Alternatives((("bad", encode(bad)), ("good", encode(good))), w.ntrans(n=512), target)
    with pytest.warns(KernelWarning, match="candidate bad is passed over, the next one takes its place: .*obligation"):
        built = both.built()
    assert built.executable.graph == good
    alone = Alternatives((("bad", encode(bad)),), w.ntrans(n=512), target)
    with pytest.warns(KernelWarning, match="candidate bad is passed over"):
        assert alone.built().executable.graph == w.ntrans(n=512)  # the program, a kernel for each of its operators
    with pytest.warns(KernelWarning), pytest.raises(UnsupportedError, match=r"candidate bad: .*obligation"):
        alone.first().built()
    with pytest.raises(KernelRejected):
        both.kernels_of()


def test_results_can_be_called(results: list[Any]) -> None:
    """Without a GPU: by the reference semantics."""
    x = np.random.default_rng(0).standard_normal((2, 256)).astype(np.float16)
    weight = np.random.default_rng(1).standard_normal((256, 512)).astype(np.float16)
    launch._say_no_gpu.cache_clear()
    with pytest.warns(launch.NoDeviceWarning):
        got = results[0](x, weight)
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True)) @ weight.astype(np.float64)
    assert np.array_equal(got, exact.astype(np.float16))
    assert np.array_equal(results[0]([x, weight])[0], got)
    assert "__global__" in results[0].kernel()
    with pytest.raises(UnsupportedError, match="expected a GPU"):
        results[0].prepare()


def test_a_run_has_kernels(results: list[Any], tmp_path: Path) -> None:
    root = results[0].directory.parent.parent
    tried = build_run(root, count=2, archs=())
    assert [outcome for _, outcome in tried] == ["built", "built"]
    directories = find_kernels(root)
    assert [path.name for path in directories] == [result.directory.name for result in results[:2]]
    executable = load_executable(directories[0])
    assert executable.digest == results[0].digest
    assert executable.graph == results[0].graph
    assert executable.program == program().freeze()
    lines = (directories[0] / "obligations.jsonl").read_text().splitlines()
    assert {json.loads(line)["finding"] for line in lines} == {"held"}
    # The checker covers a run's kernels.
    check = [sys.executable, "-m", "mirage_formal.check", str(root)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0
    assert "Kernels of 2 candidates." in done.stdout
    assert "compute their µGraph over the reals" in done.stdout
    assert find_kernels(root, 2) == directories[1:]
    assert find_kernels(directories[0]) == directories[:1]
    with pytest.raises(RunError, match="expected a candidate of rank 001, 002, got 7"):
        find_kernels(root, 7)
    with pytest.raises(RunError, match="with kernels"):
        find_kernels(tmp_path)
    with pytest.raises(RunError, match="directory of a run"):
        build_run(tmp_path)


def test_the_commands(results: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = results[0].directory.parent.parent
    assert build_command.main([str(root), "--count", "1", "--arch", "sm_90a"]) == 0
    assert capsys.readouterr().out == f"{root}: {results[0].directory.name}: built\n"
    (kernel,) = load_executable(root / KERNELS / results[0].directory.name).launches
    assert isinstance(kernel, KernelLaunch)
    assert list(kernel.cubins) in ([], ["sm_90a"])
    assert build_command.main([str(tmp_path)]) == 2
    assert "expected the directory of a run" in capsys.readouterr().err
    assert command.main(["run", str(root)]) == 2
    assert "expected a GPU and CuPy" in capsys.readouterr().err
    assert command.main(["info"]) == 0
    assert "numpy: " in capsys.readouterr().out
    assert command.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["gpus"] == []


class Runs:
    """DeviceRuns without a device: kernels are interpreted."""

    cupy = np

    def __init__(self, executable: Executable, scale: float = 1.0) -> None:
        self.programs = list(build(executable.graph, executable.program, H200).programs.values())
        self.executable = executable
        self.scale = scale

    def run(self, arrays: Any) -> list[Any]:
        (kernel,) = self.programs
        found = interpret(kernel, [a.astype(np.float16).reshape(-1) for a in arrays])
        return [self.scale * x.astype(np.float64) for x in found]

    def measure(self) -> Any:
        return Measurement(us=3.0, low=2.5, high=4.0, spread=0.1, replays=15, calls=64, sets=64)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, results: list[Any]) -> Any:
    np_pool = SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setattr(np, "get_default_memory_pool", lambda: np_pool, raising=False)
    module = SimpleNamespace(DeviceRuns=Runs)
    monkeypatch.setitem(sys.modules, "mirage_formal.device.cupy_runner", module)
    monkeypatch.setattr("mirage_formal.kernel_build.device_records.device_name", lambda: "Interpreter")
    for name, answer in (("device_count", 1), ("current_device", 0)):
        monkeypatch.setattr(command, name, lambda answer=answer: answer)
    monkeypatch.setattr(command, "arch_of", lambda device: "sm_90a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DirectoryWarning)  # what the test before this one has measured
        build_run(results[0].directory.parent.parent, count=2, archs=(), force=True)
    return module


def test_running_a_run(device: Any, results: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    root = results[0].directory.parent.parent
    assert command.main(["run", str(root), "--candidate", "1", "--numerics", "--measure"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{results[0].directory.name}: within  scale 0.1 within (error/tolerance 0.")
    assert out.endswith("3.00 us (2.50..4.00)\n")
    directory = root / KERNELS / results[0].directory.name
    record = json.loads((directory / "numerics.json").read_text())
    assert record["answer"] == "within"
    assert record["device"] == "Interpreter"
    assert [scale["scale"] for scale in record["scales"]] == [0.1, 1.0, 8.0]
    assert json.loads((directory / "measure.json").read_text())["us"] == 3.0
    assert command.main(["run", str(root), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["result"]
    assert [row["answer"] for row in rows] == ["finite", "finite"]
    assert load_executable(directory).digest == results[0].digest


@pytest.mark.usefixtures("check_here")
def test_what_a_device_said_is_checked(
    device: Any, results: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = results[0].directory.parent.parent
    assert command.main(["run", str(root), "--numerics", "--measure"]) == 0
    capsys.readouterr()
    assert check_main([str(root), "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith(results[0].directory.name)]
    assert any("within (0." in row for row in rows)
    assert any("3.00" in row for row in rows)
    assert 'numerics: recorded on "Interpreter" (its author\'s words in quotes), not run again' in output
    # Records of other kernels are refused, and so is measuring what the manifest does not list.
    first, second = (root / KERNELS / result.directory.name for result in results[:2])
    for name in ("numerics.json", "measure.json"):
        kept = (first / name).read_bytes()
        (first / name).write_bytes((second / name).read_bytes())
        assert check_main([str(root), "--jobs", "1"]) == 1
        assert "step: which kernels" in capsys.readouterr().err
        (first / name).write_bytes(kept)
    source = first / "kernel.cu"
    source.write_bytes(source.read_bytes() + b"\n")
    assert command.main(["run", str(first), "--numerics"]) == 1
    assert "FAILED: FormatError" in capsys.readouterr().out


def test_without_the_library(device: Any, results: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    root = results[0].directory.parent.parent
    seen: list[bool] = []

    def runs(executable: Executable, library: bool = True) -> Any:
        seen.append(library)
        return Runs(executable)

    device.DeviceRuns = runs
    assert command.main(["run", str(root), "--candidate", "1", "--without-library"]) == 0
    assert command.main(["run", str(root), "--candidate", "1"]) == 0
    assert seen == [False, True]
    assert command.main(["run", str(root), "--without-library", "--numerics"]) == 2
    assert "expected no --measure and no --numerics" in capsys.readouterr().err


def test_a_failure_is_a_row(device: Any, results: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    root = results[0].directory.parent.parent
    device.DeviceRuns = lambda executable: Runs(executable, scale=1.01)
    assert command.main(["run", str(root), "--numerics"]) == 1
    assert "an error is" in capsys.readouterr().out

    def broken(executable: Executable) -> Any:
        raise RuntimeError("illegal address\nand more")

    device.DeviceRuns = broken
    assert command.main(["run", str(root)]) == 1
    assert capsys.readouterr().out.splitlines()[0].endswith("FAILED: RuntimeError: illegal address")


class Timed(Runs):
    """Kernels of which some are wrong, and each takes another time."""

    order: ClassVar[list[str]] = []
    events: ClassVar[list[str]] = []
    #: For the candidates in the order in which they are run: factor of the results, and microseconds.
    outcomes: ClassVar[list[tuple[float, float]]] = []

    def __init__(self, executable: Executable) -> None:
        if executable.digest not in self.order:
            self.order.append(executable.digest)
        factor, self.us = self.outcomes[self.order.index(executable.digest)]
        super().__init__(executable, factor)

    def run(self, arrays: Any) -> list[Any]:
        self.events.append("run")
        return super().run(arrays)

    def measure(self) -> Any:
        self.events.append("time")
        return Measurement(self.us, self.us, self.us, 0.0, 15, 64, 64)


class InProcess:
    """A GPU of this process: every kernel takes as long as every other, candidates are those of ``Timed``."""

    machine = GpuMachine("Interpreter", "sm_90a", 1)

    def __init__(self, program: str = "") -> None:
        self.program = program

    def launch(self) -> None:
        """It is launched before the search, with the program."""
        assert self.program

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(
        self, plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        for job in jobs:
            yield job, compare_and_time(Path(job.directory), job.tuning) if job.directory else TimingAnswer(1.0, 1.0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, device: Any, tmp_path: Path) -> type[Timed]:
    """superoptimize sees a GPU, whose kernels are interpreted."""
    runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr("mirage_formal.device.runtime.device_count", lambda: 1)
    monkeypatch.setattr("mirage_formal.autotune.timing.TimingProcess", InProcess)
    monkeypatch.setenv("MIRAGE_FORMAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Timed, "order", [])
    monkeypatch.setattr(Timed, "events", [])
    device.DeviceRuns = Timed
    return Timed


def searched(tmp_path: Path, measure: int) -> list[Any]:
    found: list[Any] = mf.superoptimize(
        program(), config="norm", out=tmp_path / "run", workers=1, keep=4, max_kernel_ops=1, measure=measure
    )
    return found


def test_only_candidates_within_tolerance_are_returned_fastest_first(gpu: type[Timed], tmp_path: Path) -> None:
    """The fastest is wrong."""
    gpu.outcomes = [(1.0, 5.0), (1.01, 1.0), (1.0, 4.0)]
    with pytest.warns(KernelWarning, match=r"left out: candidate .*: expected results within tolerance"):
        found = searched(tmp_path, measure=3)
    assert [result.digest for result in found] == [gpu.order[2], gpu.order[0]]
    # Numerics at three scales come before the time, and what is wrong is not timed.
    assert gpu.events == ["run"] * 3 + ["time"] + ["run"] * 3 + ["run"] * 3 + ["time"]
    for result in found:
        # A call runs what was checked, and falls back on nothing else.
        executable = result.alternatives.built(("sm_90a",)).executable
        assert executable.digest == result.digest
        assert len(result.alternatives._candidates) == 1
        directory = tmp_path / "run" / KERNELS / result.directory.name
        assert json.loads((directory / "numerics.json").read_text())["answer"] == "within"
        assert (directory / "measure.json").is_file()


def test_further_candidates_are_tried_while_none_is_within_tolerance(gpu: type[Timed], tmp_path: Path) -> None:
    gpu.outcomes = [(1.01, 1.0), (float("nan"), 1.0), (1.0, 4.0), (1.0, 3.0)]
    with pytest.warns(KernelWarning, match="left out"):
        assert [result.digest for result in searched(tmp_path, measure=1)] == [gpu.order[2]]


@pytest.mark.slow
def test_what_was_proved_is_returned_where_nobody_asked_for_a_comparison(gpu: type[Timed], tmp_path: Path) -> None:
    """As of a program whose own operators overflow: no kernel of it can be within tolerance."""
    gpu.outcomes = [(float("nan"), 1.0)] * 8
    with pytest.warns(KernelWarning) as said:
        found = mf.superoptimize(program(), config="norm", out=tmp_path / "run", workers=1, keep=4, max_kernel_ops=1)
    assert found
    assert "in the order of estimates, compared with nothing" in str(said[-1].message)
    assert [result.rank for result in found] == list(range(1, len(found) + 1))


def test_nothing_is_returned_unchecked(gpu: type[Timed], tmp_path: Path) -> None:
    gpu.outcomes = [(1.01, 1.0)] * 9
    with pytest.warns(KernelWarning), pytest.raises(UnsupportedError, match="within tolerance on this GPU, got none"):
        searched(tmp_path, measure=4)
    assert "time" not in gpu.events
