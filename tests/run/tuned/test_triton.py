"""Triton beside CUDA on a GPU that answers from a table: what is timed, compared, kept, taken, written and said."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.check.__main__ import main as check_main
from mirage_formal.errors import UnsupportedError
from mirage_formal.kernels.triton.options import LaunchOptions
from mirage_formal.records import MEASURE_FILE, MeasureRecord, NumericsRecord, TritonRecord, sha256, unsealed
from mirage_formal.run.built.alternatives import Alternatives
from mirage_formal.run.built.build import KernelWarning, candidates_of
from mirage_formal.run.results.result import Result
from mirage_formal.run.tuned import fastest as fastest_module
from mirage_formal.run.tuned.bench import Bench, Row, Tuned
from mirage_formal.run.tuned.child import Answer, Job, Machine
from mirage_formal.run.tuned.fastest import Wanted, fastest
from mirage_formal.run.tuned.plans import Place
from mirage_formal.run.tuned.timing import FIRST
from mirage_formal.run.tuned.triton import beside as beside_module
from mirage_formal.run.tuned.triton.beside import SAFETY, beside_cuda
from mirage_formal.run.tuned.triton.files import texts
from mirage_formal.run.tuned.triton.found import Beside
from mirage_formal.workers.dispatch import Done, Failed
from tests.kit.runs import small_run

TEST = Machine("Test", "sm_90a", 1, "torch 2.11.0, Triton 3.6.0")
#: What the CUDA kernels of the two candidates take.
CUDA = (10.0, 12.0)
_OPTIONS = re.compile(r"num_warps=(\d+), num_stages=(\d+)")
#: Microseconds of a file by the directory of its kernels, warps and stages; or how it fails.
Us = Callable[[str, int, int], float | str]


class Gpu:
    """A GPU whose times a function gives.

    Attributes:
        turns: What a file and CUDA kernels take in turns; None: as before.
        wrong: Whether a file's results are outside, by warps.
        jobs: What it was asked.
        stop_after: Jobs after which somebody presses Ctrl-C.
    """

    def __init__(self, us: Us, machine: Machine = TEST) -> None:
        self.machine, self.us = machine, us
        self.turns: tuple[float, float] | str | None = None
        self.wrong: Callable[[int], bool] = lambda warps: False
        self.jobs: list[Job] = []
        self.stop_after = 10**9

    def run(self, plan: Path | None, place: Path, jobs: Sequence[Job], deadline: float) -> Iterator[tuple[Job, Answer]]:
        for job in jobs:
            if len(self.jobs) >= self.stop_after:
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return
            self.jobs.append(job)
            yield job, self.answer(job)

    def answer(self, job: Job) -> Answer:
        found = _OPTIONS.findall(Path(job.triton).read_text())
        warps, stages = (max(int(one[at]) for one in found) for at in (0, 1))
        us = self.us(Path(job.directory).name, warps, stages)
        if isinstance(us, str):
            return Answer(failed=us)
        if job.cuda:
            turns = self.turns if self.turns is not None else (us, CUDA[0])
            return Answer(failed=turns) if isinstance(turns, str) else Answer(turns[0], turns[0], cuda_us=turns[1])
        if job.replays:
            return Answer(us, us)
        record = msgspec.json.decode((Path(job.directory) / "numerics.json").read_bytes(), type=NumericsRecord)
        return Answer(answer="outside" if self.wrong(warps) else "within", numerics=record)

    @property
    def timed(self) -> list[tuple[str, str]]:
        """Files that were timed in short, by directory and name."""
        return [(Path(job.directory).name, Path(job.triton).name) for job in self.jobs if job.replays == FIRST]


class Compiler:
    """Workers that compile nothing; or that die, or hang, at every file."""

    def __init__(self, fate: str = "") -> None:
        self.fate, self.texts = fate, list[str]()

    def run(self, function: Any, tasks: Sequence[Any], **more: Any) -> Iterator[Any]:
        for at, task in enumerate(tasks):
            self.texts.append(task.text)
            yield Failed(at, self.fate, 1, overdue="hung" in self.fate) if self.fate else Done(at, "", 1, 0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("triton") / "run"
    small_run.make(root, kernels=2)
    return root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "kernels").iterdir())


def rows(run: Path) -> tuple[Row, ...]:
    return tuple(
        Row(name, "", us, us, us, rank) for rank, (name, us) in enumerate(zip(names(run), CUDA, strict=True), 1)
    )


def tried(
    run: Path, gpu: Gpu, compiler: Compiler | None = None, backend: str = "auto", seconds: float = 60.0, code: str = "1"
) -> Beside:
    bench = Bench(
        Place(run.parent / "place"),
        gpu,
        compiler or Compiler(),  # type: ignore[arg-type]
        lambda *said: None,
        "sm_90a",
        backend=backend,
    )
    return beside_cuda(run, rows(run), code, bench, time.monotonic() + seconds)


def record(run: Path, at: int = 0) -> TritonRecord | None:
    path = run / "kernels" / names(run)[at] / MEASURE_FILE
    return unsealed(path.read_bytes(), MeasureRecord, "").triton


def first_is(us: float, other: float = 30.0) -> Us:
    """The first candidate's files with 8 warps take so much, all others that."""
    return lambda name, warps, stages: us if name.startswith("001") and warps == 8 else other


# --- what is taken ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_faster_and_right_is_taken(run: Path) -> None:
    gpu = Gpu(first_is(7.0))
    found = tried(run, gpu)
    first, _ = names(run)
    assert found.backend == "triton"
    assert found.said == (
        f"back end auto: Triton: {first} (warps x2, own stages) takes 7.00 us, the fastest CUDA kernels 10.00 in turns "
        f"with it; {SAFETY}"
    )
    assert list(found.texts) == [first]
    (text,) = texts(run / "kernels" / first, [LaunchOptions(2.0)])
    assert found.texts[first] == text.text
    assert found.rows[0].chosen
    assert [row.chosen for row in found.rows[1:]] == [False] * (len(found.rows) - 1)
    mine, other = record(run), record(run, 1)
    assert mine is not None
    assert other is not None
    assert (mine.backend, mine.us, mine.cuda_us, mine.chosen) == ("triton", 7.0, 10.0, sha256(text.text.encode()))
    assert [scale.scale for scale in mine.scales] == [0.1, 1.0, 8.0]
    assert mine.versions == TEST.triton
    (variant,) = (one for one in mine.tried if one.sha256 == mine.chosen)
    assert (variant.warps, variant.stages, variant.us, variant.answer) == (2.0, None, 7.0, "within")
    assert (other.backend, other.chosen) == ("cuda", None)
    assert {one.us for one in other.tried} == {30.0}
    assert check_main([str(run), "--jobs", "1"]) == 0, "the evidence of the CUDA kernels stays"


@pytest.mark.parametrize(
    ("turns", "backend"),
    [((9.8, 10.0), "triton"), ((9.81, 10.0), "cuda"), ((10.5, 10.0), "cuda"), ((7.0, 7.1), "cuda")],
)
def test_two_percent_in_turns_decide(run: Path, turns: tuple[float, float], backend: str) -> None:
    """Whatever the short runs before said."""
    gpu = Gpu(first_is(5.0))
    gpu.turns = turns
    found, known = tried(run, gpu), record(run)
    assert known is not None
    assert (found.backend, known.backend) == (backend, backend)
    assert (known.us, known.cuda_us) == turns
    assert ("would have to save 2%" in found.said) == (backend == "cuda")


def test_what_is_outside_of_its_tolerance_is_never_taken(run: Path) -> None:
    gpu = Gpu(lambda name, warps, stages: {8: 3.0, 4: 6.0}.get(warps, 30.0) if name.startswith("001") else 30.0)
    gpu.wrong = lambda warps: warps == 8
    found = tried(run, gpu)
    assert (found.backend, found.rows[0].us) == ("triton", 6.0)
    assert "warps x1" in found.said
    known = record(run)
    assert known is not None
    outside = [one for one in known.tried if one.answer == "outside"]
    assert [one.us for one in outside] == [3.0] * len(outside)
    assert all(one.failed.startswith("expected results within tolerance") for one in outside)
    gpu.wrong = lambda warps: True
    found = tried(run, gpu, code="2")
    assert (found.backend, dict(found.texts)) == ("cuda", {})
    assert "no Triton file that is fast enough is right: expected results within tolerance" in found.said


def test_what_is_slower_is_not_even_compared(run: Path) -> None:
    gpu = Gpu(first_is(10.5))
    found = tried(run, gpu)
    assert found.backend == "cuda"
    assert found.said == "back end auto: CUDA C++: the fastest Triton file takes 10.50 us, the CUDA kernels 10.00"
    assert all(job.replays == FIRST for job in gpu.jobs)


def test_stages_are_tried_where_it_is_near_and_with_the_best_warps_alone(run: Path) -> None:
    gpu = Gpu(first_is(11.0))
    tried(run, gpu)
    first, second = names(run)
    asked = {name: {file for where, file in gpu.timed if where == name} for name in (first, second)}
    alone = {f"{one.digest}.py" for one in texts(run / "kernels" / second, [LaunchOptions(w) for w in (0.5, 1.0, 2.0)])}
    assert asked[second] == alone
    near = [*(LaunchOptions(w) for w in (0.5, 1.0, 2.0)), *(LaunchOptions(2.0, stages) for stages in (2, 3, 4))]
    assert asked[first] == {f"{one.digest}.py" for one in texts(run / "kernels" / first, near)}
    assert len(asked[first]) > 3
    assert len(gpu.timed) == len(set(gpu.timed)), "each text once"


# --- what fails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["its worker died", "its worker hung", "device", "turns"])
def test_what_fails_is_recorded_and_cuda_stays(run: Path, where: str) -> None:
    worker = where if "worker" in where else ""
    gpu = Gpu(lambda name, warps, stages: "OutOfResources: shared memory" if where == "device" else 5.0)
    if where == "turns":
        gpu.turns = "its process ended"
    compiler = Compiler(worker)
    found, known = tried(run, gpu, compiler), record(run)
    assert found.backend == "cuda"
    assert known is not None
    assert (known.backend, known.chosen) == ("cuda", None)
    reasons = {one.failed for one in known.tried}
    if where == "turns":
        assert "its process ended" in reasons
        assert "its process ended" in found.said
    else:
        assert reasons == {f"it could not be compiled: {where}" if worker else "OutOfResources: shared memory"}
        assert found.said.startswith("back end auto: CUDA C++: no Triton file ran: ")
    assert bool(gpu.jobs) == (not worker)
    count, asked = len(gpu.timed), len(compiler.texts)
    tried(run, gpu, compiler)
    assert len(gpu.timed) == count, "what failed there is not run again"
    assert (len(compiler.texts) > asked) == ("hung" in where), "a compiler that was too slow gets another chance"


def test_without_torch_or_triton_it_is_cuda_in_one_line(run: Path) -> None:
    gpu, compiler = Gpu(first_is(1.0), Machine("Test", "sm_90a", 1, "", "triton is not installed")), Compiler()
    found, known = tried(run, gpu, compiler), record(run)
    assert found == Beside("cuda", "back end auto: CUDA C++, for no Triton file was timed: triton is not installed")
    assert (gpu.jobs, compiler.texts) == ([], [])
    assert known == TritonRecord(reason="triton is not installed")


def test_without_a_gpu_here_it_is_cuda_in_one_line(run: Path) -> None:
    bench = Bench(Place(run.parent / "place"), None, Compiler(), lambda *said: None, "sm_90a", backend="auto")  # type: ignore[arg-type]
    found = beside_cuda(run, (), "1", bench, 0.0)
    assert found.said == "back end auto: CUDA C++, for no Triton file was timed: there is no GPU that is asked here"


def test_without_time_it_is_cuda(run: Path) -> None:
    found = tried(run, Gpu(first_is(1.0)), seconds=-1.0)
    assert (found.backend, {row.said for row in found.rows}) == ("cuda", {"there was no time left for it"})


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_nothing_is_timed_twice_and_an_interrupt_keeps_what_was(run: Path) -> None:
    gpu = Gpu(first_is(7.0))
    gpu.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        tried(run, gpu)
    gpu.stop_after = 10**9
    found = tried(run, gpu)
    assert found.backend == "triton"
    assert len(gpu.timed) == len(set(gpu.timed))
    count, compiler = len(gpu.jobs), Compiler()
    assert tried(run, gpu, compiler) == found
    assert compiler.texts == []
    assert [bool(job.cuda) for job in gpu.jobs[count:]] == [True], "only the turns decide anew"


@pytest.mark.parametrize("other", ["text", "code", "driver", "versions", "device"])
def test_times_of_anything_else_do_not_count(run: Path, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither times nor numerics: the file was right and fast, and now is neither."""
    assert tried(run, Gpu(first_is(7.0))).backend == "triton"
    changes: dict[str, Any] = {"driver": 2, "versions": "torch 2.12.0, Triton 3.7.0", "device": "Other"}
    key = "triton" if other == "versions" else other
    machine = msgspec.structs.replace(TEST, **({key: changes[other]} if other in changes else {}))
    if other == "text":
        monkeypatch.setattr("mirage_formal.run.tuned.triton.files.TITLE", "another text")
    gpu = Gpu(first_is(20.0), machine)
    found = tried(run, gpu, code="2" if other == "code" else "1")
    assert found.backend == "cuda"
    assert gpu.timed


def test_a_damaged_answer_is_asked_for_again(run: Path) -> None:
    gpu = Gpu(first_is(7.0))
    tried(run, gpu)
    count = len(gpu.timed)
    for path in (run.parent / "place" / "triton").glob("*.json"):
        path.write_bytes(path.read_bytes()[:-3])
    tried(run, gpu)
    assert len(gpu.timed) == 2 * count


def test_what_another_call_said_of_other_candidates_goes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried(run, Gpu(first_is(7.0)))
    only = rows(run)[1:]
    monkeypatch.setattr(f"{__name__}.rows", lambda run: only)
    tried(run, Gpu(first_is(7.0)))
    assert record(run) is None
    assert record(run, 1) is not None


# --- the back end triton, and cuda -----------------------------------------------------------------------------------


def test_files_that_are_asked_for_are_taken_though_they_are_slower(run: Path) -> None:
    first, second = names(run)
    gpu = Gpu(lambda name, warps, stages: (40.0 if name == first else 20.0) + warps)
    found = tried(run, gpu, backend="triton")
    assert (found.backend, list(found.texts)) == ("triton", [second, first])
    assert SAFETY in found.said
    assert [known.backend for at in (0, 1) if (known := record(run, at))] == ["cuda", "cuda"], "the faster ones"
    gpu.wrong = lambda warps: True
    found = tried(run, gpu, backend="triton", code="2")
    assert (found.backend, dict(found.texts)) == ("cuda", {})


def results(run: Path) -> list[Result]:
    program, target, found = candidates_of(run)
    from mirage_formal.graph.canonical import digest
    from mirage_formal.graph.formats.json import encode
    from mirage_formal.graph.verdict import Equivalent
    from mirage_formal.kernels.target import load_target

    every = [(name, graph()) for name, graph in found]
    return [
        Result(
            graph,
            digest(graph),
            rank,
            Equivalent(()),  # type: ignore[arg-type]
            1.0,
            run / "candidates" / name,
            Alternatives([(name, encode(graph))], program, load_target(target)),
        )
        for rank, (name, graph) in enumerate(every, 1)
    ]


@pytest.fixture
def told(run: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Beside | None], list[str]]:
    """``fastest`` after a tuning that says so of Triton; the back ends that it was asked for."""

    def fake(beside: Beside | None) -> list[str]:
        asked: list[str] = []

        def tune(root: Path, bench: Bench) -> Tuned:
            from mirage_formal.run.built.build import build

            asked.append(bench.backend)
            built = {}
            for result in results(run):
                name = result.directory.name
                if name in names(run):
                    program = candidates_of(run)[0]
                    assert result.alternatives is not None
                    built[name] = build(result.graph, program, result.alternatives._target)
            return Tuned(2, 2, 2, rows(run), built=built, triton=beside)

        monkeypatch.setattr(fastest_module, "tune", tune)
        return asked

    return fake


def test_the_fastest_result_runs_the_file_that_was_taken(
    run: Path, told: Callable[[Beside | None], list[str]], tmp_path: Path
) -> None:
    first, second = names(run)
    asked = told(Beside("triton", "said so", texts={second: "the file"}))
    with pytest.warns(KernelWarning, match="said so"):
        found = fastest(results(run), run, Wanted(2, backend="auto"), Gpu(first_is(1.0)), Place(tmp_path / "place"))
    assert asked == ["auto"]
    assert [one.directory.name for one in found] == [second, first]
    assert [one.backend for one in found] == ["triton", "cuda"]
    for same in (found[0], copy.deepcopy(found[0]), pickle.loads(pickle.dumps(found[0]))):
        assert same.triton_source() == same.kernel() == "the file"
        assert type(same.optimized).__name__ == "TritonOptimized"
    assert "in Triton" in repr(found[0])
    assert "in Triton" not in repr(found[1])
    assert found[0].alternatives is not None
    assert found[0].alternatives.built().executable.source, "the CUDA kernels are there as well"
    assert found[1].triton_source() != "the file"


def test_results_that_were_asked_for_in_triton(
    run: Path, told: Callable[[Beside | None], list[str]], tmp_path: Path
) -> None:
    first, second = names(run)

    def found(backend: str) -> list[Result]:
        return fastest(results(run), run, Wanted(2, backend=backend), Gpu(first_is(1.0)), Place(tmp_path / "place"))

    told(Beside("triton", "said so", texts={second: "the file", first: "another"}))
    with pytest.warns(KernelWarning, match="said so"):
        assert [(one.backend, one.triton_source()) for one in found("triton")] == [
            ("triton", "the file"),
            ("triton", "another"),
        ]
    told(Beside("cuda", "triton is not installed"))
    with pytest.raises(UnsupportedError, match="triton is not installed"):
        found("triton")
    with pytest.warns(KernelWarning, match="triton is not installed"):
        assert [one.backend for one in found("auto")] == ["cuda", "cuda"]


def test_the_back_end_cuda_never_touches_triton(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirage_formal.run.tuned import tune as tune_module

    def never(*given: Any) -> Beside:
        raise AssertionError("Triton was touched")

    monkeypatch.setattr(beside_module, "beside_cuda", never)
    monkeypatch.setattr(tune_module, "_tuned", lambda *given: Tuned(1, 1, 1, ()))
    bench = Bench(Place(tmp_path), Gpu(first_is(1.0)), Compiler(), lambda *said: None, "sm_90a")  # type: ignore[arg-type]
    assert tune_module.tune(made, bench).triton is None
    with pytest.raises(AssertionError, match="Triton was touched"):
        tune_module.tune(made, replace(bench, backend="auto"))
