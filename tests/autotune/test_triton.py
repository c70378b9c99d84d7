"""Triton beside CUDA on a GPU that answers from a table: what is timed, compared, kept, taken, written and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.autotune.plans import TuningDirectory
from mirage_formal.autotune.timing import FIRST
from mirage_formal.autotune.timing_subprocess import GpuMachine
from mirage_formal.autotune.triton.compare_backends import SAFETY, compare_with_cuda
from mirage_formal.autotune.triton.launch_variants import triton_texts
from mirage_formal.autotune.triton.results import BackendComparison
from mirage_formal.autotune.tuning_result import FinalistRow, TuningResources
from mirage_formal.cache.cache_directory import CacheWarning
from mirage_formal.check.__main__ import main as check_main
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.records import TritonRecord, sha256
from tests.autotune.fake_tuning import OPTIONS, TEST, Compiler, Gpu, first_is, names, record, rows, tried
from tests.kit.runs import small_runs

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
    (text,) = triton_texts(run / "kernels" / first, [LaunchOptions(2.0)])
    assert found.texts[first] == text.text
    assert found.rows[0].chosen
    assert [row.chosen for row in found.rows[1:]] == [False] * (len(found.rows) - 1)
    mine, other = record(run), record(run, 1)
    assert mine is not None
    assert other is not None
    assert (mine.backend, mine.us, mine.cuda_us, mine.chosen) == ("triton", 7.0, 10.0, sha256(text.text.encode()))
    assert [scale.scale for scale in mine.scales] == [0.1, 1.0, 8.0]
    assert mine.versions == TEST.triton
    assert mine.log is not None
    assert (mine.log.file, mine.log.verdict, mine.log.races) == (mine.chosen, "equivalent", "no claim")
    assert mine.log.accesses == text.accesses
    assert found.logs == {first: mine.log}
    assert {one.access for one in mine.log.accesses if one.finding == "held"} == {"load", "store"}
    with pytest.raises(ValueError, match="expected a log of the chosen"):
        msgspec.structs.replace(mine, log=msgspec.structs.replace(mine.log, file="0" * 64)).__post_init__()
    earlier = msgspec.to_builtins(mine)
    del earlier["log"]
    assert msgspec.convert(earlier, TritonRecord) == msgspec.structs.replace(mine, log=None)
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
    once = [*(LaunchOptions(w) for w in (0.5, 1.0, 2.0)), *(LaunchOptions(w, 3) for w in (0.5, 1.0))]
    assert asked[second] == {f"{one.digest}.py" for one in triton_texts(run / "kernels" / second, once)}
    near = [*once, *(LaunchOptions(2.0, stages) for stages in (2, 3, 4))]
    assert asked[first] == {f"{one.digest}.py" for one in triton_texts(run / "kernels" / first, near)}
    assert len(asked[first]) > 3
    assert len(gpu.timed) == len(set(gpu.timed)), "each text once"


def test_stages_that_a_file_does_not_ask_for_are_tried_though_it_is_far_behind_with_its_own(run: Path) -> None:
    first, _ = names(run)
    for own in triton_texts(run / "kernels" / first, [LaunchOptions(w) for w in (0.5, 1.0, 2.0)]):
        assert "num_stages=3" not in own.text
    found = tried(run, Gpu(lambda name, warps, stages: 7.0 if name == first and stages == 3 else 50.0))
    assert (found.backend, found.rows[0].us) == ("triton", 7.0)


def test_of_files_that_are_close_in_short_the_fastest_in_turns_is_taken(run: Path) -> None:
    first, _ = names(run)
    (own,) = {
        int(found[1])
        for one in triton_texts(run / "kernels" / first, [LaunchOptions()])
        for found in OPTIONS.findall(one.text)
    }
    short = {8: 5.0, 4: 5.2, 2: 5.6}
    gpu = Gpu(lambda name, warps, stages: short[warps] if (name, stages) == (first, own) else 30.0)
    gpu.turns = lambda warps: ({8: 8.0, 4: 7.0, 2: 1.0}[warps], 10.0)
    found, known = tried(run, gpu), record(run)
    assert known is not None
    assert (found.backend, known.us) == ("triton", 7.0), "two warps were 12 % behind: too far to be measured again"


def test_a_candidate_of_fewer_kernels_is_tried_in_full_though_its_cuda_kernels_are_behind(tmp_path: Path) -> None:
    root = tmp_path / "run"
    small_runs.make(root, kernels=3)
    one, two, seven = names(root)
    for order, full in (((seven, two, one), {seven, two, one}), ((one, two, seven), {one, two})):
        behind = tuple(FinalistRow(name, "", us, us, us, 1) for us, name in zip((10.0, 12.0, 40.0), order, strict=True))
        gpu = Gpu(lambda name, warps, stages: 7.0 if name == one else 50.0)
        assert tried(root, gpu, code=order[0], cuda=behind).rows[0].name == one
        asked = {name: {file for where, file in gpu.timed if where == name} for name in order}
        wide = {name: triton_texts(root / "kernels" / name, [LaunchOptions(2.0)])[0].digest for name in order}
        assert {name for name in order if f"{wide[name]}.py" in asked[name]} == full
        assert all(asked.values())


def test_the_files_of_a_finalist_behind_others_are_found_and_tried_further(tmp_path: Path) -> None:
    """Two others of as few kernels have faster CUDA kernels, and it does best with twice as many warps."""
    root = tmp_path / "run"
    small_runs.make(root, kernels=3)
    one, two, last = names(root)
    cuda = tuple(
        FinalistRow(name, "", us, us, us, 1) for us, name in zip((10.0, 12.0, 14.0), (one, two, last), strict=True)
    )
    gpu = Gpu(lambda name, warps, stages: 50.0 if name != last else 7.0 if warps == 8 else 9.0)
    found = tried(root, gpu, cuda=cuda)
    assert (found.backend, found.rows[0].name, found.rows[0].us) == ("triton", last, 7.0)


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
    gpu, compiler = Gpu(first_is(1.0), GpuMachine("Test", "sm_90a", 1, "", "triton is not installed")), Compiler()
    found, known = tried(run, gpu, compiler), record(run)
    assert found == BackendComparison(
        "cuda", "back end auto: CUDA C++, for no Triton file was timed: triton is not installed"
    )
    assert (gpu.jobs, compiler.texts) == ([], [])
    assert known == TritonRecord(reason="triton is not installed")


def test_without_a_gpu_here_it_is_cuda_in_one_line(run: Path) -> None:
    place, compiler = TuningDirectory(run.parent / "place"), Compiler()
    bench = TuningResources(place, None, compiler, lambda *said: None, "sm_90a", backend="auto")  # type: ignore[arg-type]
    found = compare_with_cuda(run, (), "1", bench, 0.0)
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
    assert [bool(job.cuda) for job in gpu.jobs[count:]] == [True] * 3, "only the turns decide anew"


@pytest.mark.parametrize("other", ["text", "code", "driver", "versions", "device"])
def test_times_of_anything_else_do_not_count(run: Path, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither times nor numerics: the file was right and fast, and now is neither."""
    assert tried(run, Gpu(first_is(7.0))).backend == "triton"
    changes: dict[str, Any] = {"driver": 2, "versions": "torch 2.12.0, Triton 3.7.0", "device": "Other"}
    key = "triton" if other == "versions" else other
    machine = msgspec.structs.replace(TEST, **({key: changes[other]} if other in changes else {}))
    if other == "text":
        monkeypatch.setattr("mirage_formal.autotune.triton.launch_variants.TITLE", "another text")
    gpu = Gpu(first_is(20.0), machine)
    found = tried(run, gpu, code="2" if other == "code" else "1")
    assert found.backend == "cuda"
    assert gpu.timed


def test_a_damaged_answer_is_asked_for_again(run: Path) -> None:
    gpu = Gpu(first_is(7.0))
    tried(run, gpu)
    count = len(gpu.timed)
    for entry in TuningDirectory(run.parent / "place").triton.entries():
        path = entry / "entry.json"
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(CacheWarning, match="refused, and made again"):
        tried(run, gpu)
    assert len(gpu.timed) == 2 * count


def test_what_another_call_said_of_other_candidates_goes(run: Path) -> None:
    tried(run, Gpu(first_is(7.0)))
    only = rows(run)[1:]
    tried(run, Gpu(first_is(7.0)), cuda=only)
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
