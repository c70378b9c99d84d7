"""What a caller gets of Triton files that were measured: results that run them, copies, and nothing with CUDA."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.autotune import measured_order as fastest_module
from mirage_formal.autotune.measured_order import MeasurementLimits, order_by_measurement
from mirage_formal.autotune.plans import TuningDirectory
from mirage_formal.autotune.triton import compare_backends as beside_module
from mirage_formal.autotune.triton.results import BackendComparison
from mirage_formal.autotune.tuning_result import TuningResources, TuningResult
from mirage_formal.kernel_build.build import KernelWarning, candidates_of
from mirage_formal.kernel_build.built_kernels import Acceptance
from mirage_formal.kernel_build.candidate_preference import Alternatives
from mirage_formal.run.results.result import Result
from mirage_formal.support.errors import SpaceError, UnsupportedError
from tests.autotune.fake_tuning import Compiler, Gpu, first_is, names, rows


def results(run: Path) -> list[Result]:
    program, target, found = candidates_of(run)
    from mirage_formal.codegen.target import load_target
    from mirage_formal.graph.canonical import digest
    from mirage_formal.graph.formats.json import encode
    from mirage_formal.graph.verdict import Equivalent

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
def told(run: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[BackendComparison | None], list[str]]:
    """``order_by_measurement`` after a tuning that says so of Triton; the back ends that it was asked for."""

    def fake(beside: BackendComparison | None) -> list[str]:
        asked: list[str] = []

        def tune(root: Path, bench: TuningResources) -> TuningResult:
            from mirage_formal.kernel_build.build import build

            asked.append(bench.backend)
            built = {}
            for result in results(run):
                name = result.directory.name
                if name in names(run):
                    program = candidates_of(run)[0]
                    assert result.alternatives is not None
                    built[name] = build(result.graph, program, result.alternatives._target)
            return TuningResult(2, 2, 2, rows(run), built=built, triton=beside)

        monkeypatch.setattr(fastest_module, "tune_run", tune)
        return asked

    return fake


def test_the_fastest_result_runs_the_file_that_was_taken(
    run: Path, told: Callable[[BackendComparison | None], list[str]], tmp_path: Path
) -> None:
    first, second = names(run)
    asked = told(BackendComparison("triton", "said so", texts={second: "the file"}))
    with pytest.warns(KernelWarning, match="said so"):
        found = order_by_measurement(
            results(run),
            run,
            MeasurementLimits(2, backend="auto"),
            Gpu(first_is(1.0)),
            TuningDirectory(tmp_path / "place"),
        )
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
    run: Path, told: Callable[[BackendComparison | None], list[str]], tmp_path: Path
) -> None:
    first, second = names(run)

    def found(backend: str) -> list[Result]:
        return order_by_measurement(
            results(run),
            run,
            MeasurementLimits(2, backend=backend),
            Gpu(first_is(1.0)),
            TuningDirectory(tmp_path / "place"),
        )

    told(BackendComparison("triton", "said so", texts={second: "the file", first: "another"}))
    with pytest.warns(KernelWarning, match="said so"):
        assert [(one.backend, one.triton_source()) for one in found("triton")] == [
            ("triton", "the file"),
            ("triton", "another"),
        ]
    told(BackendComparison("cuda", "triton is not installed"))
    with pytest.raises(UnsupportedError, match="triton is not installed"):
        found("triton")
    with pytest.warns(KernelWarning, match="triton is not installed"):
        assert [one.backend for one in found("auto")] == ["cuda", "cuda"]


def test_the_back_end_cuda_never_touches_triton(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirage_formal.autotune import tune as tune_module

    def never(*given: Any) -> BackendComparison:
        raise AssertionError("Triton was touched")

    monkeypatch.setattr(beside_module, "compare_with_cuda", never)
    monkeypatch.setattr(tune_module, "_tune_cuda_kernels", lambda *given: TuningResult(1, 1, 1, ()))
    bench = TuningResources(TuningDirectory(tmp_path), Gpu(first_is(1.0)), Compiler(), lambda *said: None, "sm_90a")  # type: ignore[arg-type]
    assert tune_module.tune_run(made, bench).triton is None
    with pytest.raises(AssertionError, match="Triton was touched"):
        tune_module.tune_run(made, replace(bench, backend="auto", accept=Acceptance.TESTED))


def test_triton_files_are_tuned_only_where_tested_kernels_are_accepted(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirage_formal.autotune import tune as tune_module

    def never(*given: Any) -> BackendComparison:
        raise AssertionError("Triton was touched")

    monkeypatch.setattr(beside_module, "compare_with_cuda", never)
    monkeypatch.setattr(tune_module, "_tune_cuda_kernels", lambda *given: TuningResult(1, 1, 1, ()))
    bench = TuningResources(TuningDirectory(tmp_path), Gpu(first_is(1.0)), Compiler(), lambda *said: None, "sm_90a")  # type: ignore[arg-type]
    found = tune_module.tune_run(made, replace(bench, backend="auto")).triton
    assert found is not None
    assert (found.backend, found.rows) == ("cuda", ())
    assert found.said.startswith("back end auto: CUDA C++: Triton files are tested, not proved")
    assert "with --accept tested auto may choose them" in found.said
    with pytest.raises(SpaceError, match="expected cuda or auto where only proved kernels are accepted") as raised:
        tune_module.tune_run(made, replace(bench, backend="triton"))
    assert "--accept tested" in (raised.value.hint or "")


def graph() -> mf.Graph:
    made = mf.new_kernel_graph()
    x, w = made.new_input(dims=(4, 64)), made.new_input(dims=(64, 64))
    made.mark_output(made.matmul(made.rms_norm(x), w))
    return made


def test_results_run_triton_files_only_where_tested_kernels_are_accepted(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="expected cuda or auto where only proved kernels are accepted") as raised:
        mf.superoptimize(graph(), backend="triton", out=tmp_path / "run")
    assert "accept_kernels='tested'" in (raised.value.hint or "")
    assert not (tmp_path / "run").exists(), "nothing is searched before it is said"
    asked: Any = {"config": "norm", "keep": 1, "workers": 1}
    with pytest.warns(KernelWarning, match="back end auto: CUDA C.*with accept_kernels='tested' auto may choose them"):
        found = mf.superoptimize(graph(), backend="auto", out=tmp_path / "auto", **asked)
    assert {(one.backend, one.accepts_tested) for one in found} == {("cuda", False)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        asked |= {"backend": "triton", "accept_kernels": "tested"}
        found = mf.superoptimize(graph(), out=tmp_path / "triton", **asked)
    assert {(one.backend, one.accepts_tested) for one in found} == {("triton", True)}
    assert found[0].claim() == "tested only: a Triton file has no such proof"
