"""What the report says of the Triton files that tuning has tried."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirage_formal.device.sealed_records import write_triton
from mirage_formal.records import TritonAccessRecord, TritonLogRecord, TritonRecord, TritonVariantRecord
from mirage_formal.report.page.html import render
from mirage_formal.report.reading import ReadLimits, read_report

FAST = TritonVariantRecord(sha256="a" * 64, warps=0.5, stages=3, us=7.2, answer="within")
SLOW = TritonVariantRecord(sha256="b" * 64, warps=2.0, stages=None, us=8.0)
FAILED = TritonVariantRecord(sha256="c" * 64, warps=1.0, stages=None, us=1.0, failed="it hung")
TRIED = (SLOW, FAST, FAILED)
HELD = TritonAccessRecord(
    function="kernel0", line=9, access="load", pointer="x_ptr", claim="in bounds", finding="held", means="solver"
)
UNKNOWN = TritonAccessRecord(
    function="kernel0", line=10, access="store", pointer="y_ptr", claim="in bounds", finding="undecided", reason="time"
)
LOG = TritonLogRecord(file="a" * 64, graph="b" * 64, verdict="equivalent", accesses=(HELD, UNKNOWN))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            TritonRecord(tried=TRIED, chosen="a" * 64, us=7.0, cuda_us=9.0, backend="triton"),
            "7.00 µs, the run's fastest CUDA kernels 9.00 µs in turns with it; warps x0.5, 3 stages; taken, tested and "
            "not proved safe; 3 files tried",
        ),
        (
            TritonRecord(tried=TRIED, chosen="a" * 64, us=7.0, cuda_us=9.0, backend="triton", log=LOG),
            "7.00 µs, the run's fastest CUDA kernels 9.00 µs in turns with it; warps x0.5, 3 stages; taken, tested and "
            "not proved safe; 1 of 2 accesses in bounds, no claim on races; 3 files tried",
        ),
        (
            TritonRecord(tried=TRIED, chosen="a" * 64, us=8.95, cuda_us=9.0),
            "8.95 µs, the run's fastest CUDA kernels 9.00 µs in turns with it; warps x0.5, 3 stages; not taken; "
            "3 files tried",
        ),
        (TritonRecord(tried=TRIED), "7.20 µs, not taken; 3 files tried"),
        (TritonRecord(tried=(FAILED,), reason="none is right"), "none is right; 1 file tried"),
        (TritonRecord(reason="triton is <not> installed"), "triton is <not> installed"),
        (None, ""),
    ],
)
def test_a_candidates_facts_say_what_came_of_triton(
    small: Path, tmp_path: Path, record: TritonRecord | None, said: str
) -> None:
    shutil.copytree(small, tmp_path / "run")
    (kernels,) = (tmp_path / "run" / "kernels").iterdir()
    write_triton(kernels, record)
    report = read_report(tmp_path / "run", shown=ReadLimits(proofs=0))
    best = report.candidates[0]
    assert best.measured is not None
    assert best.measured.triton == said
    page = render("candidate", "candidate_section", best, report.program)
    assert ("in Triton" in page) == bool(said)
    assert "<not>" not in page
