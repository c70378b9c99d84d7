"""Fits constants of the cost model to measured kernels.

    python -m benchmarks.fit_model DIR TIMES [--target h200] [--free NAME ...]
    python -m benchmarks.fit_model PLACE --device NAME [--target h200] [--free NAME ...]

DIR is what ``benchmarks.corpus_gpu build`` has written, TIMES the corpus_gpu.json of its run. PLACE is a tuning
directory, NAME a file of its ``times``: then the kernels of all plans count that read inputs of their programs alone,
each with its first schedule, and every program as much as every other. Printed are the mean of
|log(measured / estimated)| over the programs with the target's own constants, and the constants that make it least:
each is raised and lowered in turn, by less and less. For a tuning directory it is also printed what the model's first
kernel takes over the fastest one (mean over programs), and in how many programs the fastest is among its first 8. The
result goes into gpu/targets by hand, with its digits cut to what the fit can tell.

Options:
  built DIR
  times [FILE]
  --device NAME   DIR is a tuning directory; the times of this GPU
  --target NAME   [default: h200]
  --free NAME...  [default: tensor_efficiency l2_bandwidth_gbs step_us]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import parser_of
from mirage_formal.autotune.plans import TuningDirectory, kernel_graph
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.executable import LAUNCH_FILE
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph

#: Shares, of a peak or of a time: at most 1.
_SHARES = frozenset({"tensor_efficiency", "bandwidth_efficiency", "library_efficiency", "l2_reread_share"})
_ROUNDS = 8
_STEP = 1.5
#: A step's exponent after a round in which it brought nothing.
_FINER = 0.6
#: Whole layers are sums of many kernels, of which a total says little.
_MOST_OPERATORS = 25

_FIRST: int = 8

Measured = tuple[KernelGraph, float]
#: What was measured of each program.
Data = Sequence[Sequence[Measured]]


def read(built: Path, times: Path) -> list[list[Measured]]:
    """The graphs whose kernels were measured, and their microseconds."""
    rows = json.loads(times.read_text())
    found: list[list[Measured]] = []
    for row in rows if isinstance(rows, list) else rows["rows"]:
        path = built / str(row["program"]) / LAUNCH_FILE
        if "ours_us" not in row or not path.is_file():
            continue
        graph = from_json(json.dumps(json.loads(path.read_text())["graph"]).encode(), str(path))
        if len(graph.ops) <= _MOST_OPERATORS:
            found.append([(graph, float(row["ours_us"]))])
    return found


def read_tuned(place: Path, device: str) -> list[list[Measured]]:
    """The kernels of each program whose first schedule was timed, and their microseconds."""
    known = TuningDirectory(place)
    times = known.times(device)
    found = []
    for path in known.plans.entries():
        plan = known.plans.read(path).record.value
        pieces = [one for one in plan.pieces if one.variants and not any(one.warm)]
        timed = [(one, times[one.variants[0].key]) for one in pieces if one.variants[0].key in times]
        rows = [(kernel_graph(one), time.us) for one, time in timed if not time.failed]
        found.append([(graph, us) for graph, us in rows if any(isinstance(op, GraphDefined) for op in graph.ops)])
    return [rows for rows in found if rows]


def loss(data: Data, target: Target, changed: Mapping[str, float]) -> float:
    """The mean of |log(measured / estimated)|."""
    other = _with(target, changed)
    means = (sum(abs(math.log(us / estimate(graph, other).us)) for graph, us in rows) / len(rows) for rows in data)
    return sum(means) / len(data)


def ranks(data: Data, target: Target, changed: Mapping[str, float]) -> tuple[float, int]:
    """The mean of what the model's first takes over the fastest, and the programs whose fastest is among its first."""
    other, over, among = _with(target, changed), 0.0, 0
    for rows in data:
        ordered = [us for _, us in sorted((estimate(graph, other).us, us) for graph, us in rows)]
        over += ordered[0] / min(ordered)
        among += min(ordered[:_FIRST]) == min(ordered)
    return over / len(data), among


def _with(target: Target, changed: Mapping[str, float]) -> Target:
    model = target.model
    for name, value in changed.items():
        model = replace(model, **{name: value})  # type: ignore[arg-type] # names of floats
    return replace(target, model=model)


def fitted(data: Data, target: Target, free: Sequence[str]) -> dict[str, float]:
    """The constants that make the loss least, as far as steps of one at a time lead."""
    found = {name: float(getattr(target.model, name)) for name in free}
    best, step = loss(data, target, found), dict.fromkeys(free, _STEP)
    for _ in range(_ROUNDS):
        for name in free:
            for factor in (step[name], 1 / step[name]):
                tried = {**found, name: found[name] * factor}
                if name in _SHARES and tried[name] > 1:
                    continue
                if (got := loss(data, target, tried)) < best:
                    best, found = got, tried
                    break
            else:
                step[name] = step[name] ** _FINER
    return found


def _said(data: Data, target: Target, changed: Mapping[str, float], device: str | None) -> str:
    text = f"{loss(data, target, changed):.3f}"
    if device is None:
        return text
    over, among = ranks(data, target, changed)
    return f"{text}; first over fastest {over:.3f}; fastest among the first {_FIRST}: {among} of {len(data)}"


def main() -> int:
    """Print the fit."""
    parser = parser_of(__doc__)
    args = parser.parse_args()
    if (args.times is None) == (args.device is None):
        parser.error("expected TIMES or --device")
    data = read(args.built, args.times) if args.device is None else read_tuned(args.built, args.device)
    target = load_target(args.target)
    if not data:
        print(f"{args.times or args.device}: no measured program has kernels in {args.built}", file=sys.stderr)
        return 1
    print(f"{len(data)} programs; {args.target}'s own constants: {_said(data, target, {}, args.device)}")
    found = fitted(data, target, args.free)
    print(f"fitted: {_said(data, target, found, args.device)}")
    for name, value in found.items():
        print(f"  {name}: {getattr(target.model, name):g} -> {value:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
