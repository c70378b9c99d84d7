"""Reader of files beside a run that are not part of its evidence: Triton files, and times of baselines.

No manifest lists these files, so their origin is unknown. The report says so, and a file that cannot be read is left
out with a remark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.model import READ_ONLY, Baseline, Baselines, ReportedCandidate, ReportedTriton, SourceLines
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.report.reading.kernel_reader import triton_lines
from mirage_formal.support.strict_json import load_strict_json

#: File that benchmarks/gpu_bench.py writes into the directory of its runs.
BENCH_FILE: Final = "gpu_bench.json"
#: Labels of the baselines in it, by field name.
_PEERS: Final = {
    "eager": "torch eager",
    "compile": "torch.compile, default mode",
    "autotune": "torch.compile, max-autotune",
    "flash": "SDPA flash",
    "cudnn": "SDPA cuDNN",
    "read_only": READ_ONLY,
}
#: Most bytes of a Triton file that is shown.
_MOST: Final = 1 << 19


class _Row(msgspec.Struct, frozen=True):
    directory: str | None = None
    ours: float | None = None
    eager: float | None = None
    compile: float | None = None
    autotune: float | None = None
    flash: float | None = None
    cudnn: float | None = None
    read_only: float | None = None
    missing: Mapping[str, str] = {}


class _Bench(msgspec.Struct, frozen=True):
    rows: tuple[_Row, ...]
    device: Mapping[str, Any] = {}
    command: str = ""


def triton_directory(root: Path) -> Path:
    """Return the directory to which ``mirage-formal tools build --backend triton`` writes the files of a run."""
    whole = root.absolute()
    return whole.with_name(f"{whole.name}-triton")


@dataclass(frozen=True, slots=True)
class TritonRequest:
    """Request from which a Triton file is generated again.

    Attributes:
        program: The program; None where it cannot be read.
        target: Name of the target.
        lines: Number of candidates whose lines are linked to operators.
    """

    program: KernelGraph | None
    target: str
    lines: int


def with_adjacent_files(
    root: Path, found: Sequence[ReportedCandidate], asked: TritonRequest
) -> tuple[ReportedCandidate, ...]:
    """Return the candidates of a run, each with the files beside the run that have its name.

    Args:
        root: The directory of the run, or of a whole program.
        found: The candidates, best first.
        asked: The request.
    """
    folder = triton_directory(root)
    times = _times(root) if found else {}
    out = []
    for number, one in enumerate(found):
        name = PurePosixPath(one.directory).name
        if (folder / f"{name}.py").is_file():
            one = _with_triton(one, folder, f"{name}.py", asked if number < asked.lines else None)
        out.append(replace(one, peers=times.get(name)))
    return tuple(out)


def _with_triton(one: ReportedCandidate, folder: Path, file: str, asked: TritonRequest | None) -> ReportedCandidate:
    source = EvidenceReader(folder)
    with source.reading(file):
        data = source.data(file)
        if len(data) <= _MOST:
            text = data.decode("utf-8")
            lines: tuple[SourceLines, ...] = ()
            form: KernelGraph | None = None
            if asked is not None and asked.program is not None and one.graph is not None:
                known = one.code.form if one.code is not None else None
                lines, form = triton_lines(one.graph, known, asked.program, asked.target, text)
            return replace(one, triton=ReportedTriton(f"{folder.name}/{file}", text, lines, form))
    return replace(one, remarks=(*one.remarks, f"{folder.name}/{file} cannot be shown"))


def _times(root: Path) -> dict[str, Baselines]:
    """Return the times of baselines, by the name of the candidate that was timed beside them."""
    folder = root.absolute().parent
    if not (folder / BENCH_FILE).is_file():
        return {}
    source = EvidenceReader(folder)
    with source.reading(BENCH_FILE):
        data = source.data(BENCH_FILE)
        load_strict_json(data, BENCH_FILE)
        bench = msgspec.json.decode(data, type=_Bench)
        device = str(bench.device.get("device") or bench.device.get("name") or "")
        return {
            Path(row.directory).name: _peers(row, bench.command, device)
            for row in bench.rows
            if row.directory and Path(row.directory).parent.parent.name == root.absolute().name
        }
    return {}


def _peers(row: _Row, command: str, device: str) -> Baselines:
    timed = tuple(
        Baseline(title, us, row.missing.get(name, ""))
        for name, title in _PEERS.items()
        if (us := getattr(row, name)) is not None or name in row.missing
    )
    return Baselines(command, device, row.ours, timed)


__all__ = ["BENCH_FILE", "TritonRequest", "triton_directory", "with_adjacent_files"]
