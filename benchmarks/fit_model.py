"""Fits constants of the cost model to measured kernels.

    python -m benchmarks.fit_model DIR TIMES [--target h200] [--free NAME ...]

DIR is what ``benchmarks.corpus_gpu build`` has written, TIMES the corpus_gpu.json of its run. Printed are the mean of
|log(measured / estimated)| over the programs with the target's own constants, and the constants that make it least:
each is raised and lowered in turn, by less and less. The result goes into gpu/targets by hand, with its digits cut to
what the fit can tell.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernels.cost import estimate
from mirage_formal.kernels.executable import LAUNCH_FILE
from mirage_formal.kernels.target import Target, load_target

FREE = ("tensor_efficiency", "l2_bandwidth_gbs")
#: Shares of a peak, at most 1.
_SHARES = frozenset({"tensor_efficiency", "bandwidth_efficiency", "library_efficiency"})
_ROUNDS = 8
_STEP = 1.5
#: A step's exponent after a round in which it brought nothing.
_FINER = 0.6
#: Whole layers are sums of many kernels, of which a total says little.
_MOST_OPERATORS = 25

Measured = tuple[KernelGraph, float]


def read(built: Path, times: Path) -> list[Measured]:
    """The graphs whose kernels were measured, and their microseconds."""
    rows = json.loads(times.read_text())
    found: list[Measured] = []
    for row in rows if isinstance(rows, list) else rows["rows"]:
        path = built / str(row["program"]) / LAUNCH_FILE
        if "ours_us" not in row or not path.is_file():
            continue
        graph = from_json(json.dumps(json.loads(path.read_text())["graph"]).encode(), str(path))
        if len(graph.ops) <= _MOST_OPERATORS:
            found.append((graph, float(row["ours_us"])))
    return found


def loss(data: Sequence[Measured], target: Target, changed: Mapping[str, float]) -> float:
    """The mean of |log(measured / estimated)|."""
    model = target.model
    for name, value in changed.items():
        model = replace(model, **{name: value})  # type: ignore[arg-type] # names of floats
    other = replace(target, model=model)
    return sum(abs(math.log(us / estimate(graph, other).us)) for graph, us in data) / len(data)


def fitted(data: Sequence[Measured], target: Target, free: Sequence[str]) -> dict[str, float]:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Print the fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("built", type=Path, metavar="DIR")
    parser.add_argument("times", type=Path, metavar="TIMES")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--free", nargs="+", default=list(FREE), metavar="NAME")
    args = parser.parse_args(argv)
    data, target = read(args.built, args.times), load_target(args.target)
    if not data:
        print(f"{args.times}: no measured program has kernels in {args.built}", file=sys.stderr)
        return 1
    print(f"{len(data)} programs; {args.target}'s own constants: {loss(data, target, {}):.3f}")
    found = fitted(data, target, args.free)
    print(f"fitted: {loss(data, target, found):.3f}")
    for name, value in found.items():
        print(f"  {name}: {getattr(target.model, name):g} -> {value:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
