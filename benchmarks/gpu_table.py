"""The table of benchmarks/gpu_bench.py, from its results.

python -m benchmarks.gpu_table gpu_bench.json RUN_DIR... > results.md
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("eager", "compile", "flash", "cudnn")
_NAMES = {"eager": "torch eager", "compile": "torch.compile", "flash": "SDPA flash", "cudnn": "SDPA cuDNN"}


def table(results: list[dict[str, Any]], runs: list[Path]) -> list[dict[str, Any]]:
    """One row for each run."""
    rows = []
    gbs = next((r["result"].get("gbs") for r in results if r["job"]["kind"] == "bandwidth"), None)
    for run in runs:
        example, _, text = run.name.rpartition("-b")
        batch = int(text)
        mine = [r for r in results if r["job"].get("example") == example and r["job"].get("batch") == batch]
        tried = [r for r in mine if r["job"]["kind"] == "ours"]
        good = [r for r in tried if r["result"].get("answer") == "within" and "us" in r["result"]]
        best = min(good, key=lambda r: r["result"]["us"], default=None)
        others = {
            r["job"]["peer"]: r["result"].get("us") for r in mine if r["job"]["kind"] == "peer" and "us" in r["result"]
        }
        row: dict[str, Any] = {"example": example, "b": batch, "candidates": len(tried), "good": len(good), **others}
        if gbs:
            row["floor"] = program_bytes(run) / gbs / 1e3
        if best is not None:
            row |= {"ours": best["result"]["us"], "candidate": Path(best["job"]["directory"]).name}
            row |= {key: best["result"].get(key) for key in ("low", "high", "launches", "registers", "scales")}
            if others:
                row["ratio"] = min(others.values()) / row["ours"]
        elif tried:
            row["reason"] = _why(tried[0]["result"])
        else:
            row["reason"] = "no kernels in the run"
        rows.append(row)
    return rows


def program_bytes(run: Path) -> int:
    """Bytes of the program's inputs and outputs."""
    from mirage_formal.kernels.executable import load, moved_bytes

    found = sorted((run / "kernels").glob("*/launch.json"))
    return moved_bytes(load(found[0].parent).program) if found else 0


def _why(result: dict[str, Any]) -> str:
    if "error" in result:
        return str(result["error"])
    bad = [f"scale {s['scale']:g} {s['answer']}: {s['reason']}" for s in result.get("scales", ()) if s["reason"]]
    return "; ".join(bad) or str(result.get("answer"))


def show(rows: list[dict[str, Any]]) -> str:
    """The table as text."""
    head = f"{'example':10}{'b':>4}{'ours':>9}{'floor':>8}" + "".join(f"{name:>9}" for name in PEERS)
    lines = [head + f"{'ratio':>7}  candidate"]
    for row in rows:
        cells = "".join(f"{row[name]:9.2f}" if row.get(name) else f"{'-':>9}" for name in PEERS)
        ours_us = f"{row['ours']:9.2f}" if "ours" in row else f"{'-':>9}"
        floor = f"{row['floor']:8.2f}" if "floor" in row else f"{'-':>8}"
        ratio = f"{row['ratio']:7.2f}" if "ratio" in row else f"{'-':>7}"
        what = f"{row['candidate']} ({row['good']}/{row['candidates']} good)" if "candidate" in row else row["reason"]
        lines.append(f"{row['example']:10}{row['b']:4}{ours_us}{floor}{cells}{ratio}  {what}")
    return "\n".join(lines)


def markdown(rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> str:
    """Two tables: times, and errors beside tolerances."""
    found: dict[str, Any] = next((r["result"] for r in results if r["job"]["kind"] == "bandwidth"), {})
    lines = [
        f"# {found.get('device', 'GPU')}",
        "",
        "Written by `make gpu-bench` from the kernels of `make gpu-runs`, in one run; docs/kernels.md says how times",
        "and tolerances come about. Microseconds; the floor is the program's bytes at the speed of copies on this GPU,",
        f"{found.get('gbs', 0):.0f} GB/s (small programs stay within its L2). Keys are transposed for SDPA before",
        "anything is timed. Ratio: the best peer's time over ours; above 1 ours is faster.",
        "",
        "| program | b | ours | floor | " + " | ".join(_NAMES[name] for name in PEERS) + " | ratio | kernels |",
        "|---|--:|--:|--:|" + "--:|" * len(PEERS) + "--:|---|",
    ]
    for row in rows:
        cells = [row["example"], str(row["b"]), *(_cell(row.get(key)) for key in ("ours", "floor", *PEERS))]
        what = "; ".join(_short(x) for x in row.get("launches") or ()) or row.get("reason", "")
        lines.append("| " + " | ".join([*cells, _cell(row.get("ratio")), what]) + " |")
    lines += [
        "",
        "Largest error of an element / largest tolerance of one, at three scales of the inputs; in brackets the",
        "largest error over the tolerance of the same element, which is at most 1 within tolerance.",
        "",
        "| program | b | scale 0.1 | scale 1 | scale 8 |",
        "|---|--:|---|---|---|",
    ]
    for row in rows:
        scales = [f"{s['error']:.2g} / {s['tolerance']:.2g} ({s['ratio']:.2f})" for s in row.get("scales") or ()]
        lines.append("| " + " | ".join([row["example"], str(row["b"]), *scales]) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _short(launch: str) -> str:
    """Of what executable.describe says, the blocks and threads."""
    return launch.partition("): ")[2].rpartition(",")[0] or launch


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    given = parser.parse_args()
    results = json.loads(given.results.read_text())
    sys.stdout.write(markdown(table(results, given.runs), results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
