"""The tables of benchmarks/gpu_bench.py, from what it has written.

python -m benchmarks.gpu_table gpu_bench.json [--sanitized gpu_sanitize.json] > results.md
python -m benchmarks.gpu_table gpu_bench.json --auto > results-auto.md     # CUDA C++ and the back end auto
python -m benchmarks.gpu_table --page results.md       # the table of docs/results.md: the same numbers, fewer columns
python -m benchmarks.gpu_table --readme results.md     # the README's table: fewer again

Options:
  results FILE
  --sanitized FILE results of gpu_sanitize.py
  --page           the table of docs/results.md, from results.md
  --readme         the README's table, from results.md
  --auto           CUDA C++ beside the back end auto
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.gpu_stages import ERROR, READS, Row

PEERS = ("eager", "compile", "autotune", "flash", "cudnn")
_NAMES = {
    "eager": "torch eager",
    "compile": "torch.compile",
    "autotune": "max-autotune",
    "flash": "SDPA flash",
    "cudnn": "SDPA cuDNN",
}
#: Rows of the README's table: what it calls the examples.
_TITLES = {
    "attn": "attn (GQA)",
    "qk": "qknorm (Q and K)",
    "qv": "qknorm (Q and V)",
    "rmsnorm": "rmsnorm",
    "lora": "lora",
    "gated_mlp": "gated_mlp",
    "ntrans": "ntrans",
    "decode": "decode",
}
#: Columns of the table of docs/results.md, and of the README's.
_OF_PAGE = ("ours", "ratio", "x read-only")
_OF_README = ("ours", "ratio")


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
    from mirage_formal.codegen.executable import load_executable, moved_bytes

    return moved_bytes(load_executable(kernels).program)


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
    """Write three tables: times; spreads and candidates; errors beside tolerances.

    Args:
        written: What gpu_bench.py has written.
        sanitized: What gpu_sanitize.py has written, if anything.
    """
    rows, tools = written["rows"], {(row["run"], row["tool"]): row["outcome"] for row in sanitized}
    named = [(row, (row["example"], row["b"])) for row in rows]
    keys = ("ours", "floor", "read_only", *PEERS, "ratio", "x_read_only")
    times = [
        (*name, *(_cell(row.get(key)) for key in keys), row.get("reason") or "; ".join(map(_short, row["launches"])))
        for row, name in named
    ]
    spreads = []
    for row, name in named:
        reads = [row["cells"][kind] for kind in READS if "us" in row["cells"].get(kind, {})]
        cells = [
            *(row["cells"].get(kind, {}) for kind in ("ours", *PEERS)),
            min(reads, key=lambda c: c["us"], default={}),
        ]
        shown = [_cell(100 * cell["spread"] if "spread" in cell else None, ".1f") for cell in cells]
        outcomes = [tools.get((f"{row['example']}-b{row['b']}", tool), "") for tool in ("memcheck", "racecheck")]
        spreads.append((*name, (row["digest"] or "")[:12], *shown, _cell(row["replays_error"], ".1e"), *outcomes))
    errors = [
        (*name, *(f"{s['error']:.2g} / {s['tolerance']:.2g} ({s['ratio']:.2f})" for s in row.get("scales") or ()))
        for row, name in named
    ]
    heads = ["program", "b", "ours", "floor", "read-only", *_NAMES.values(), "ratio", "x read-only", "kernels"]
    others = ["program", "b", "candidate", "ours", *_NAMES.values(), "read-only", "replays", "memcheck", "racecheck"]
    absent = [
        (f"{row['example']}, b = {row['b']}: {_NAMES.get(peer, peer)}", reason)
        for row in rows
        for peer, reason in row["missing"].items()
    ]
    return _text(
        "gpu_bench",
        written["device"],
        times=harness.table(heads, times, (0, -1)),
        absent=_absent("Not measured, and not in the ratio:", absent),
        spreads=harness.table(others, spreads, (0, 2, -2, -1)),
        errors=harness.table(["program", "b", "scale 0.1", "scale 1", "scale 8"], errors, (0, 2, 3, 4)),
    )


def auto(written: dict[str, Any]) -> str:
    """CUDA C++ beside the back end auto: what tuning has taken, and what it takes here.

    Args:
        written: What gpu_bench.py --backend auto has written.
    """
    times = []
    for row in written["rows"]:
        ours, triton = row.get("ours"), row.get("triton")
        best = ours if triton is None else triton
        peer = min((row[name] for name in PEERS if row.get(name) is not None), default=None)
        saved = None if triton is None or ours is None else 100 * (1 - triton / ours)
        ratio = None if best is None or peer is None else peer / best
        errors = [_cell(row.get(key), ".1e") for key in ("replays_error", "triton_error")]
        cells = [*map(_cell, (ours, triton, best)), _cell(saved, ".1f"), _cell(ratio), *errors]
        times.append((row["example"], row["b"], *cells))
    missing = [(row, row["missing"]["triton"]) for row in written["rows"] if "triton" in row["missing"]]
    absent = [(f"{row['example']}, b = {row['b']}", reason) for row, reason in missing]
    heads = ["program", "b", "CUDA C++", "Triton", "auto", "saved, %", "ratio", "error, CUDA", "error, Triton"]
    listed = _absent("Triton files that were not measured:", absent)
    return _text("gpu_bench_auto", written["device"], times=harness.table(heads, times), absent=listed)


def _text(name: str, device: dict[str, Any], **tables: str) -> str:
    """Write tables into the text of benchmarks/tables that is about them."""
    text = (harness.ROOT / "benchmarks" / "tables" / f"{name}.txt").read_text(encoding="utf-8")
    return text.format(**{"device": "GPU", "torch": "", "gbs": 0, **device, "most": ERROR, **tables})


def _absent(title: str, items: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["", "", title, "", *(f"- {what}: {reason}" for what, reason in items)]) if items else ""


def page(results: str) -> str:
    """Return the table of docs/results.md: cells of the first table of results.md, unchanged."""
    return _chosen(results, _OF_PAGE)


def readme(results: str) -> str:
    """Return the README's table: cells of the first table of results.md, unchanged."""
    return _chosen(results, _OF_README)


def _chosen(results: str, columns: Sequence[str]) -> str:
    """Return a row for each example with these columns at each batch."""
    lines = [line for line in results.splitlines() if line.startswith("|")]
    head = _split(lines[0])
    chosen = [name for name in columns if name in head]
    rows = {}
    for line in lines[2:]:
        cells = dict(zip(head, _split(line), strict=False))
        if len(cells) != len(head) or cells["program"] not in _TITLES:
            break
        rows[cells["program"], int(cells["b"])] = [cells[name] for name in chosen]
    batches = sorted({batch for _, batch in rows})
    titles = [f"b = {b}, us" if name == "ours" else name for b in batches for name in chosen]
    blank = [""] * len(chosen)
    made = [[title, *(x for b in batches for x in rows.get((name, b), blank))] for name, title in _TITLES.items()]
    return harness.table(["program", *titles], made) + "\n"


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _cell(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _short(launch: str) -> str:
    """Of what executable.describe says, the blocks and threads."""
    return launch.partition("): ")[2].rpartition(",")[0] or launch


def main() -> None:
    """The command line."""
    given = harness.options(__doc__)
    text = given.results.read_text()
    if given.page or given.readme:
        sys.stdout.write((page if given.page else readme)(text))
    elif given.auto:
        sys.stdout.write(auto(json.loads(text)))
    else:
        sanitized = json.loads(given.sanitized.read_text()) if given.sanitized is not None else ()
        sys.stdout.write(markdown(json.loads(text), sanitized))


if __name__ == "__main__":
    main()
