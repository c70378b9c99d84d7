"""What lies beside a run and is shown with it, and a directory of ``reproduce``; all of it invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu_stages import Row as Bench
from benchmarks.gpu_table import table
from mirage_formal.records.reproduction import Answers, Asked, Comparison, Growth, Host, Row, Source, Table5


def bench(run: Path, name: str, **cells: Any) -> dict[str, Any]:
    """What benchmarks/gpu_bench.py writes of a candidate, which is the one of this name."""
    chosen = run / "kernels" / name
    row = Bench(
        run.name,
        1,
        {},
        {str(chosen): {"answer": "within", "scales": []}},
        str(chosen),
        {"cudnn": "not supported"},
        {name: {"us": us} for name, us in cells.items()},
    )
    return {"command": "python -m benchmarks.gpu_bench runs", "device": {"device": "H"}, "rows": table([row], None)}


HOST = Host(processors=2, load=0.5, python="3.11", versions={})
KEY = "0" * 64


def _row(arm: str, ops: int, *, complete: bool = True) -> Row:
    return Row(
        key=KEY, arm=arm, block_ops=ops - 2, paper_ops=ops, workers=2, complete=complete, wall_s=12.5, cpu_s=20.0,
        states=123456, pruned={"<b>": 7}, configurations=1, expressions=None, classes=3, oracle_calls=9, cache_hits=1,
        oracle_unknown=0, complete_graphs=4, fingerprint_tests=4, candidates=4, structures=2, reference=1,
        extrapolated=None if complete else Growth(states=1e12, seconds=1e7, factor=20.5, measured={5: 10, 6: 200}),
    )  # fmt: skip


def write_figures(root: Path) -> None:
    """Two of the three files that reproduce writes."""
    figures = Table5(
        program="RMSNorm", space="<script>alert(1)</script>", kernel_ops=2, time_limit_s=60, host=HOST,
        rows=(_row("guided", 7), _row("unpruned", 7, complete=False)),
        comparisons=(
            Comparison(key=KEY, paper_ops=7, both=4, guided_only=0, exhaustive_only={"copies": 3}, unexplained=0),
        ),
        published={"8 threads": {7: 22.0}}, published_by="the paper, Table 5",
    )  # fmt: skip
    answers = Answers(
        host=HOST,
        seed=1,
        sources=(Source(key=KEY, name="norm", space="norm", queries=50, sampled=5, saturated=True),),
        rows=(
            Asked(key=KEY, source="norm", arm="z3", proved=3, refuted=1, unknown=1, pruned=1, valid=3,
                  wrongly_pruned=0, wrongly_kept=0, us_per_query=12.0),
        ),
    )  # fmt: skip
    root.mkdir(parents=True)
    (root / "table5.json").write_bytes(msgspec.json.encode(figures))
    (root / "oracle.json").write_bytes(msgspec.json.encode(answers))


__all__ = ["bench", "write_figures"]
