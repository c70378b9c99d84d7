"""The Triton files that tuning has taken, beside CUDA kernels in the benchmark's table; without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import gpu_bench, gpu_cases, gpu_stages, gpu_table
from benchmarks.gpu_cases import Case, triton_of
from benchmarks.gpu_jobs import Pool
from benchmarks.gpu_stages import Row, Stages, candidates
from benchmarks.harness import parser_of
from mirage_formal.autotune.triton.launch_variants import TritonText, triton_texts
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.device.measure import Measurement
from mirage_formal.device.sealed_records import write_measurement, write_triton
from mirage_formal.records import TritonRecord, TritonVariantRecord
from tests.benchmarks.test_gpu_cases import Ours
from tests.benchmarks.test_gpu_stages import WITHIN, Answered, cell, kernels, script
from tests.kit.runs import small_runs

OPTIONS = (LaunchOptions(1.0), LaunchOptions(2.0, 3))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("auto") / "attn-b1"
    small_runs.make(root, kernels=2)
    return root


def taken(one: TritonText, us: float = 1.0) -> TritonRecord:
    """What tuning writes beside kernels of which the file took so many microseconds, CUDA kernels 3."""
    variants = tuple(
        TritonVariantRecord(sha256=each.digest, warps=each.options.warps, stages=each.options.stages, answer="within")
        for each in triton_texts(one.directory, OPTIONS)
    )
    backend = "triton" if us < 2.9 else "cuda"
    return TritonRecord(tried=variants, chosen=one.digest, us=us, cuda_us=3.0, backend=backend)  # type: ignore[arg-type]


def test_what_tuning_has_taken_is_found_with_its_options(run: Path) -> None:
    places = candidates(run, 8)
    assert len(places) == 2
    assert triton_of(places) is None
    _, chosen = triton_texts(places[1], OPTIONS)
    write_triton(places[1], taken(chosen, 2.95))
    assert triton_of(places) is None, "it is not faster"
    write_triton(places[1], taken(chosen))
    found = {"kernels": str(places[1]), "warps": 2.0, "stages": 3, "sha256": chosen.digest}
    assert triton_of(places) == found
    with pytest.raises(ValueError, match="the file is another than the one that tuning chose"):
        gpu_cases.triton_call(cast(Case, None), {**found, "sha256": "0" * 64}, 1024)


def test_what_tuning_found_the_fastest_is_measured_first(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "kernels", tmp_path / "kernels")
    first, second = candidates(tmp_path)
    assert first.name < second.name
    write_measurement(second, Measurement(2.0, 2.0, 2.0, 0.0, 15, 64, 64), "Test", 1)
    assert candidates(tmp_path) == [second, first]
    (first / "measure.json").unlink()  # a kernel that was not timed
    write_measurement(second, Measurement(9.0, 9.0, 9.0, 0.0, 15, 64, 64), "Test", 1)
    assert candidates(tmp_path, 1) == [second]


def test_rows_of_runs_in_which_it_was_taken_measure_it_and_no_other_job_changes(tmp_path: Path) -> None:
    places = {"a-b8": kernels(tmp_path / "a", 1), "b-b1": kernels(tmp_path / "b", 1)}
    parser = parser_of(gpu_stages.__doc__)

    def jobs(more: dict[str, Any]) -> list[dict[str, Any]]:
        pool = Answered(tmp_path / f"ledger{len(more)}", script)
        given = parser.parse_args(["--jobs", "4"])
        Stages(cast(Pool, pool), lambda name: ["eager"], given, "cache", lambda name: more.get(name, {})).run(places)
        return [job for _, jobs in pool.calls for job in jobs]

    plain, beside = jobs({}), jobs({"a-b8": {"triton": {"warps": 2.0}}})
    assert [job for job in beside if job not in plain] == [
        {**job, "triton": {"warps": 2.0}} for job in plain if job["do"] == "row" and job["name"] == "a-b8"
    ]
    assert len(plain) == len(beside)


def test_a_row_has_a_cell_and_an_error_of_its_own_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Triton:
        def __init__(self, case: Case, chosen: Any, size: int) -> None:
            if chosen != {"warps": 2.0} or size != 1024:
                raise ValueError("the file is another")

        def measure(self) -> Any:
            return SimpleNamespace(us=7.0)

        def replays_error(self) -> float:
            return 3e-4

    monkeypatch.setattr("mirage_formal.device.measure.TorchRecorder", lambda: SimpleNamespace(cache_bytes=lambda: 1))
    monkeypatch.setattr(gpu_cases, "cuda_call", Ours)
    monkeypatch.setattr(gpu_cases, "triton_call", Triton)
    monkeypatch.setattr(Ours, "measure", lambda self: SimpleNamespace(us=10.0))
    case = Case(lambda seed: [seed], lambda given: [], [])
    job: dict[str, Any] = {"kernels": "k", "peers": [], "read_only": False, "triton": {"warps": 2.0}}
    found = gpu_cases.row(case, job)
    assert (found["cells"]["ours"]["us"], found["cells"]["triton"]["us"]) == (10.0, 7.0)
    assert found["cells"]["triton"]["runs"] == [7.0] * 3
    assert (found["replays_error"], found["triton_error"]) == (5e-4, 3e-4)
    found = gpu_cases.row(case, {**job, "triton": {"warps": 1.0}})
    assert list(found["cells"]) == ["ours"], "one that cannot be run costs its own cell"
    assert found["notes"]["triton"] == {"error": "ValueError: the file is another"}
    assert "triton" not in str(gpu_cases.row(case, {key: job[key] for key in job if key != "triton"}))


def test_the_table_of_auto_beside_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_table, "program_bytes", lambda place: 8_000_000)
    kept = {**WITHIN, "digest": "d" * 64, "launches": ["k0 (x): 4x1x1 blocks of 128, 3 registers"], "registers": 3}
    kept["scales"] = [{**s, "error": 1.0, "tolerance": 2.0, "ratio": 0.5} for s in WITHIN["scales"]]

    def row(batch: int, cells: dict[str, Any], **found: Any) -> Row:
        place = f"attn-b{batch}"
        cells = {"ours": cell(10.0), "eager": cell(12.0), **cells}
        return Row(place, 1, {place: 9.0}, {place: kept}, place, {}, cells, {"replays_error": 2e-4, **found})

    failed = {"notes": {"triton": {"error": "OutOfResources: shared"}}}
    rows = [row(8, {"triton": cell(8.0)}, triton_error=4e-4), row(16, {}), row(1, {}, **failed)]
    device = {"device": "A GPU", "gbs": 4000.0}
    written: dict[str, Any] = {"backend": "auto", "device": device, "rows": gpu_table.table(rows, 4000.0)}
    first, second, third = written["rows"]
    assert (first["ours"], first["ratio"], first["triton"]) == (10.0, 1.2, 8.0), "ours, and its ratio, stay CUDA"
    assert "triton" not in second
    assert third["missing"] == {"triton": "OutOfResources: shared"}
    text = gpu_table.auto(written)
    assert "| attn | 8 | 10.00 | 8.00 | 8.00 | 20.0 | 1.50 | 2.0e-04 | 4.0e-04 |" in text
    assert "| attn | 16 | 10.00 |  | 10.00 |  | 1.20 | 2.0e-04 |  |" in text
    assert "- attn, b = 1: OutOfResources: shared" in text
    assert "8.00" in gpu_table.show(written).splitlines()[1]
    assert "Triton" not in gpu_table.markdown({**written, "rows": [first]}), "the table of CUDA kernels is what it was"
    assert gpu_bench.good(first)
    assert not gpu_bench.good({**first, "triton_error": 2e-3})
    assert gpu_bench.good(second)
    assert not gpu_bench.good(third)
