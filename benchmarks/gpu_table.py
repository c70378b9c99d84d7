"""The tables of benchmarks/gpu_bench.py, from what it has written.

python -m benchmarks.gpu_table gpu_bench.json [--sanitized gpu_sanitize.json] > results.md
python -m benchmarks.gpu_table gpu_bench.json --auto > results-auto.md     # CUDA C++ and the back end auto
python -m benchmarks.gpu_table --readme results.md     # the README's table: the same numbers, fewer columns

Options:
  results FILE
  --sanitized FILE results of gpu_sanitize.py
  --readme         the README's table, from results.md
  --auto           CUDA C++ beside the back end auto
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_stages import ERROR, READS, Row
from benchmarks.harness import options

PEERS = ("eager", "compile", "autotune", "flash", "cudnn")
_NAMES = {
    "eager": "torch eager",
    "compile": "torch.compile",
    "autotune": "max-autotune",
    "flash": "SDPA flash",
    "cudnn": "SDPA cuDNN",
}
#: Rows of the README's table: what it calls the examples.
_README = {
    "attn": "attn (GQA)",
    "qk": "qknorm (Q and K)",
    "qv": "qknorm (Q and V)",
    "rmsnorm": "rmsnorm",
    "lora": "lora",
    "gated_mlp": "gated_mlp",
    "ntrans": "ntrans",
    "decode": "decode",
}
_OF_README = ("ours", "ratio", "x read-only")


def table(rows: Sequence[Row], gbs: float | None) -> list[dict[str, Any]]:
    """One plain row for each run.

    Args:
        rows: What was measured; names are <example>-b<batch>.
        gbs: Bandwidth of copies; None if it is not known.
    """
    return [_plain(row, gbs) for row in rows]


def _plain(row: Row, gbs: float | None) -> dict[str, Any]:
    example, _, batch = row.name.rpartition("-b")
    numerics = row.numerics.get(row.chosen or "", {})
    found: dict[str, Any] = {
        "example": example,
        "b": int(batch),
        "candidates": row.candidates,
        "compared": len(row.numerics),
        "missing": dict(row.missing),
        "directory": row.chosen,
        "replays_error": row.found.get("replays_error"),
        "read_only_tried": row.found.get("read_only_tried", {}),
        **{key: numerics.get(key) for key in ("digest", "launches", "registers", "spill_bytes", "scales")},
        **{peer: row.us(peer) for peer in PEERS},
        "cells": dict(row.cells),
    }
    triton = row.us("triton")
    if triton is not None:
        found |= {"triton": triton, "triton_error": row.found.get("triton_error")}
    elif "triton" in row.found.get("notes", {}) or "triton" in row.cells:
        said = row.found.get("notes", {}).get("triton", row.cells.get("triton", {}))
        found["missing"]["triton"] = str(said.get("error", "not measured"))
    if gbs and row.chosen:
        found["floor"] = program_bytes(Path(row.chosen)) / gbs / 1e3
    if not row.within or row.us("ours") is None:
        return {**found, "reason": row.reason or "not within tolerance"}
    found |= {"ours": row.us("ours"), "read_only": row.us(*READS), "ratio": row.over(*PEERS)}
    least = row.over(*READS)
    return {**found, "x_read_only": 1 / least if least else None}


def program_bytes(kernels: Path) -> int:
    """Bytes of the program's inputs and outputs."""
    from mirage_formal.kernels.executable import load, moved_bytes

    return moved_bytes(load(kernels).program)


def show(written: dict[str, Any]) -> str:
    """The table as text."""
    triton = ("triton",) if written.get("backend") == "auto" else ()
    names = ("ours", *triton, "floor", "read_only", *PEERS, "ratio", "x_read_only")
    lines = [f"{'example':10}{'b':>4}" + "".join(f"{name[:11]:>12}" for name in names) + "  candidate"]
    for row in written["rows"]:
        cells = "".join(f"{row[name]:12.2f}" if row.get(name) else f"{'-':>12}" for name in names)
        good = "" if "reason" in row else f"{row['digest'][:12]}, error {row['replays_error']:.1e}"
        what = row.get("reason") or f"{good}, spread {_spread(row):.1f} %"
        missing = "".join(f"; {name}: {reason}" for name, reason in row["missing"].items())
        lines.append(f"{row['example']:10}{row['b']:4}{cells}  {what}{missing}")
    return "\n".join(lines)


def _spread(row: dict[str, Any]) -> float:
    """The largest spread of a cell of a row, in percent."""
    return 100 * max((cell["spread"] for cell in row["cells"].values() if "spread" in cell), default=0.0)


def markdown(written: dict[str, Any], sanitized: Sequence[dict[str, Any]] = ()) -> str:
    """Times; spreads and candidates; errors beside tolerances.

    Args:
        written: What gpu_bench.py has written.
        sanitized: What gpu_sanitize.py has written, if anything.
    """
    device, rows = written["device"], written["rows"]
    lines = [
        f"# {device.get('device', 'GPU')}",
        "",
        "Written by `make gpu-bench` from the kernels of `make gpu-runs`; docs/kernels.md says how times and",
        "tolerances come about. Microseconds, medians of three rounds in one process; each round measures ours, every",
        "peer and the read-only kernels in turns. The floor is the program's inputs and outputs at the speed of copies",
        f"on this GPU, {device.get('gbs', 0):.0f} GB/s (small programs stay within its L2). Read-only is a kernel that",
        "only reads the program's inputs: the best of plain 16-byte loads and of 16 KiB bulk copies, each on the best",
        "of several grids. Keys are transposed for SDPA before anything is timed; max-autotune makes no CUDA graphs",
        "of its own, as everything is captured in one. Ratio: the best peer's time over ours; above 1 ours is faster.",
        "x read-only: ours over read-only.",
        f"PyTorch {device.get('torch', '')}.",
        "",
        _line(["program", "b", "ours", "floor", "read-only", *_NAMES.values(), "ratio", "x read-only", "kernels"]),
        "|---|" + "--:|" * (6 + len(PEERS)) + "---|",
    ]
    for row in rows:
        keys = ("ours", "floor", "read_only", *PEERS, "ratio", "x_read_only")
        what = row.get("reason") or "; ".join(_short(x) for x in row["launches"])
        lines.append(_line([row["example"], str(row["b"]), *(_cell(row.get(key)) for key in keys), what]))
    absent = [
        f"- {row['example']}, b = {row['b']}: {_NAMES.get(peer, peer)}: {reason}"
        for row in rows
        for peer, reason in row["missing"].items()
    ]
    if absent:
        lines += ["", "Not measured, and not in the ratio:", "", *absent]
    lines += [
        "",
        "Candidates by their digest; the distance of the fastest and the slowest of the three rounds, in percent of",
        "the median; the largest relative error (norm over norm) in replays of one graph, 12 for each of two seeds,",
        f"outputs NaN before each (at most {ERROR:g}); compute-sanitizer where it was run.",
        "",
        _line(["program", "b", "candidate", "ours", *_NAMES.values(), "read-only", "replays", "memcheck", "racecheck"]),
        "|---|--:|---|" + "--:|" * (3 + len(PEERS)) + "---|---|",
    ]
    tools = {(row["run"], row["tool"]): row["outcome"] for row in sanitized}
    for row in rows:
        cells = row["cells"]
        reads = [cells[name] for name in READS if "us" in cells.get(name, {})]
        spreads = [cells.get(name, {}) for name in ("ours", *PEERS)] + [min(reads, key=lambda c: c["us"], default={})]
        error = "" if row["replays_error"] is None else f"{row['replays_error']:.1e}"
        outcomes = [tools.get((f"{row['example']}-b{row['b']}", tool), "") for tool in ("memcheck", "racecheck")]
        shown = ["" if "spread" not in cell else f"{100 * cell['spread']:.1f}" for cell in spreads]
        lines.append(_line([row["example"], str(row["b"]), (row["digest"] or "")[:12], *shown, error, *outcomes]))
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
        lines.append(_line([row["example"], str(row["b"]), *scales]))
    return "\n".join(lines) + "\n"


def auto(written: dict[str, Any]) -> str:
    """CUDA C++ beside the back end auto: what tuning has taken, and what it takes here.

    Args:
        written: What gpu_bench.py --backend auto has written.
    """
    device = written["device"]
    lines = [
        f"# The back end auto on {device.get('device', 'a GPU')}",
        "",
        "CUDA C++ is the candidate of the table of `make gpu-bench`. Triton has a time where `mirage-formal tune",
        "--backend auto` took a Triton file, by its own times, as at least 2 % faster than all CUDA kernels of the",
        "run; elsewhere auto is CUDA C++. Both were measured here in the same rounds, in one process. Microseconds,",
        "medians of three rounds. Ratio: the best peer's time over that of auto. Errors: the largest (norm over",
        f"norm) in replays of one graph, 12 for each of two seeds, outputs NaN before each (at most {ERROR:g}).",
        f"PyTorch {device.get('torch', '')}.",
        "",
        _line(["program", "b", "CUDA C++", "Triton", "auto", "saved, %", "ratio", "error, CUDA", "error, Triton"]),
        "|---|" + "--:|" * 8,
    ]
    for row in written["rows"]:
        ours, triton = row.get("ours"), row.get("triton")
        best = ours if triton is None else triton
        peer = min((row[name] for name in PEERS if row.get(name) is not None), default=None)
        saved = "" if triton is None or ours is None else f"{100 * (1 - triton / ours):.1f}"
        errors = ["" if row.get(key) is None else f"{row[key]:.1e}" for key in ("replays_error", "triton_error")]
        ratio = None if best is None or peer is None else peer / best
        cells = [*(_cell(us) for us in (ours, triton, best)), saved, _cell(ratio), *errors]
        lines.append(_line([row["example"], str(row["b"]), *cells]))
    absent = [
        f"- {row['example']}, b = {row['b']}: {row['missing']['triton']}"
        for row in written["rows"]
        if "triton" in row["missing"]
    ]
    return "\n".join(lines + (["", "Triton files that were not measured:", "", *absent] if absent else [])) + "\n"


def readme(results: str) -> str:
    """The README's table: what the first table of results.md says of ours, without a change."""
    lines = [line for line in results.splitlines() if line.startswith("|")]
    head = _split(lines[0])
    chosen = [name for name in _OF_README if name in head]
    rows = {}
    for line in lines[2:]:
        cells = dict(zip(head, _split(line), strict=False))
        if len(cells) != len(head) or cells["program"] not in _README:
            break
        rows[cells["program"], int(cells["b"])] = [cells[name] for name in chosen]
    batches = sorted({batch for _, batch in rows})
    titles = [f"b = {b}, us" if name == "ours" else name for b in batches for name in chosen]
    made = [_line(["program", *titles]), "|---|" + "--:|" * len(titles)]
    for example, title in _README.items():
        made.append(_line([title, *(cell for b in batches for cell in rows.get((example, b), [""] * len(chosen)))]))
    return "\n".join(made) + "\n"


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _short(launch: str) -> str:
    """Of what executable.describe says, the blocks and threads."""
    return launch.partition("): ")[2].rpartition(",")[0] or launch


def main() -> int:
    """The command line."""
    given = options(__doc__)
    if given.auto:
        sys.stdout.write(auto(json.loads(given.results.read_text())))
        return 0
    if given.readme:
        sys.stdout.write(readme(given.results.read_text()))
        return 0
    sanitized = json.loads(given.sanitized.read_text()) if given.sanitized is not None else ()
    sys.stdout.write(markdown(json.loads(given.results.read_text()), sanitized))
    return 0


if __name__ == "__main__":
    sys.exit(main())
