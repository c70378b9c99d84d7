"""One program in one stage, as a command that prints a Row: what benchmarks.corpus and benchmarks.fuzz_programs start.

    python -m benchmarks.stages STAGE FILE DIR [--time-limit S] [--small] [--evaluate]

search: ``mf.superoptimize`` of the file's program into DIR, with no further options. check: python -m
mirage_formal.check DIR. build: kernels of the best candidate for sm_80 and sm_90a, with their safety obligations.
emulate: those kernels on the CPU emulator, results held to the derived tolerances at scales 0.1, 1 and 8; it searches
first at small sizes, and if DIR holds nothing.

Options:
  stage {search,check,build,emulate}
  file FILE
  place DIR
  --time-limit S                      [default: 60.0]
  --small                             the program at its small sizes
  --evaluate                          compare candidate and program in float64
"""

from __future__ import annotations

import resource
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

import mirage_formal as mf
from benchmarks.harness import ROOT, options
from benchmarks.in_processes import Row, replace_row
from mirage_formal.cli.graphs.user_file import RUN_NAME
from mirage_formal.graph.graph import KernelGraph, operators
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.support.errors import MirageError

#: Relative difference up to which two float64 evaluations count as equal: more than rounding, less than any mistake.
_SAME = 1e-6
#: Size of values below which they count as what rounding in float64 leaves of operands of about 1.
_CANCELLED = 1e-8
_DRAWS = 3
_LONGEST = 500


class Failed(Exception):
    """A stage that did not give what it should, with the kind of failure in one word."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def program_of(file: Path, *, small: bool = False) -> mf.Graph:
    """The first graph of a file; ``small``, what its function ``program`` makes of its sizes ``SMALL``."""
    names = runpy.run_path(str(file), run_name=RUN_NAME)
    if small:
        found: mf.Graph = names["program"](**names["SMALL"])
        return found
    return next(value for value in names.values() if isinstance(value, mf.Graph))


def searched(graph: mf.Graph, place: Path, time_limit: float, *, evaluate: bool = False) -> Row:
    """The best candidate of a search into ``place``, which is emptied first."""
    from mirage_formal.codegen.cost import estimate
    from mirage_formal.codegen.target import load_target
    from mirage_formal.support.options import Settings

    program = graph.freeze()
    row = Row(
        program="",
        stage="",
        ok=False,
        operators=sum(1 for _ in operators(program)),
        unfused_kernels=kernel_count(program),
        unfused_us=estimate(program, load_target(Settings().target)).us,
    )
    shutil.rmtree(place, ignore_errors=True)
    begin = time.perf_counter()
    try:
        results = mf.superoptimize(graph, out=place, time_limit=time_limit, cache=False)
    except mf.NothingFoundError as error:
        reasons = "; ".join(f"{one.cause}: {one.what}" for one in error.reasons)
        return replace_row(row, kind="nothing", reason=reasons or str(error), seconds=time.perf_counter() - begin)
    except MirageError as error:
        reason = f"{type(error).__name__}: {error}"
        return replace_row(row, kind="refused", reason=reason, seconds=time.perf_counter() - begin)
    seconds, best = time.perf_counter() - begin, results[0]
    within = [one for one in results if one.cost <= row.unfused_us * (1 + 1e-9)] or [best]
    fewest = min(within, key=lambda one: (kernel_count(one.graph), one.cost))
    row = replace_row(
        row,
        ok=True,
        seconds=seconds,
        verdict=type(best.verdict).__name__.lower(),
        kernels=kernel_count(best.graph),
        estimate_us=best.cost,
        fewest_kernels=kernel_count(fewest.graph),
        fewest_us=fewest.cost,
    )
    difference = differs(program, best.graph) if evaluate else ""
    return replace_row(row, ok=False, kind="wrong", reason=difference) if difference else row


def differs(program: KernelGraph, graph: KernelGraph) -> str:
    """How two graphs differ in float64 at random inputs; empty if they do not.

    They differ if they do at every draw: what is almost singular at one, or overflows, is so by chance.
    """
    from mirage_formal.semantics.float64_reference import run

    said = ""
    for seed in range(_DRAWS):
        rng = np.random.default_rng(seed)
        arrays = [
            rng.integers(0, 2, item.tensor.shape).astype(np.float64)
            if item.name.startswith("mask")
            else rng.standard_normal(item.tensor.shape)
            for item in program.inputs
        ]
        said = ""
        for number, (a, b) in enumerate(zip(run(program, arrays), run(graph, arrays), strict=True)):
            known = np.isfinite(a)
            if not known.any():
                continue
            # Where everything cancels, as in log_softmax().logsumexp(), what is left is rounding.
            off = np.abs(a - b)[known] / (np.abs(a)[known] + np.abs(a[known]).mean() + _CANCELLED)
            worst = float(np.where(np.isnan(off), np.inf, off).max())
            if worst > _SAME:
                said = f"output {number} is off by {worst:.3g} of its values"
        if not said:
            return ""
    return said


def best_of(place: Path) -> tuple[KernelGraph, KernelGraph]:
    """The program and the best candidate of a finished run, which may be one of parts."""
    program, (best,) = best_few_of(place, 1)
    return program, best


def best_few_of(place: Path, count: int) -> tuple[KernelGraph, list[KernelGraph]]:
    """The program and the best candidates of a finished run, or covers if it is one of parts; at least one."""
    from mirage_formal.graph.formats.json import from_json
    from mirage_formal.records import CANDIDATES, GRAPH_FILE, RUN_FILE, RunRecord, decode, read_file
    from mirage_formal.records.partition import WHOLE_FILE, WholeRecord

    if (place / WHOLE_FILE).is_file():
        whole = decode(read_file(place / WHOLE_FILE), WholeRecord, str(place))
        covers = [whole.best, *whole.covers[1:count]]
        graphs = [from_json(bytes(cover.graph), str(place)) for cover in covers]
        return from_json(bytes(whole.graph_of_program), str(place)), graphs
    run = decode(read_file(place / RUN_FILE), RunRecord, str(place))
    files = [path / GRAPH_FILE for path in sorted((place / CANDIDATES).iterdir())[:count]]
    if not files:
        raise ValueError(f"{place}: expected candidates, got none")
    return from_json(bytes(run.program), str(place)), [from_json(read_file(path), str(path)) for path in files]


def checked(place: Path) -> str:
    """Nothing, if the checker establishes the run from its files alone.

    Raises:
        Failed: It does not.
    """
    command = [sys.executable, "-m", "mirage_formal.check", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failed("check", _last(done.stderr or done.stdout))
    return ""


def built(place: Path) -> str:
    """What is to be said about the kernels that were built.

    Raises:
        Failed: They are refused.
    """
    from mirage_formal.codegen.target import load_target
    from mirage_formal.kernel_build.build import ARCHS, build, build_run
    from mirage_formal.kernel_build.built_kernels import KernelRejected
    from mirage_formal.records import RUN_FILE
    from mirage_formal.support.options import Settings

    if (place / RUN_FILE).is_file():
        outcomes = [outcome for _, outcome in build_run(place, 1, ARCHS)]
        if len(outcomes) != 1 or not outcomes[0].startswith("built"):
            raise Failed("kernels", "; ".join(outcomes))
        return outcomes[0].removeprefix("built").lstrip("; ")
    program, graph = best_of(place)
    try:
        made = build(graph, program, load_target(Settings().target), ARCHS)
    except KernelRejected as error:
        raise Failed("kernels", str(error)) from error
    return made.stable.note


def emulated(place: Path) -> str:
    """What is to be said about results that are within tolerance.

    Raises:
        Failed: Kernels are refused, the emulator finds a fault, or a result is outside of its tolerance at a scale at
            which the program's own operators have results within the range of their element types.
    """
    from mirage_formal.codegen.numerics.result_comparison import SCALES
    from mirage_formal.codegen.target import load_target
    from mirage_formal.device.emulate import EmulationFault
    from mirage_formal.emulate.runner import compare_on_emulator as held
    from mirage_formal.kernel_build.build import build
    from mirage_formal.kernel_build.built_kernels import KernelRejected
    from mirage_formal.support.options import Settings

    program, graph = best_of(place)
    try:
        made = build(graph, program, load_target(Settings().target))
        # Without a running maximum exponentials may leave float16 at larger scales.
        record = held(made, scales=SCALES[:1] if made.stable.note else SCALES)
    except KernelRejected as error:
        raise Failed("kernels", str(error)) from error
    except EmulationFault as error:
        raise Failed("fault", str(error)) from error
    notes = [made.stable.note] if made.stable.note else []
    for one in record.scales:
        said = f"scale {one.scale:g} {one.answer}: {'; '.join(o.reason for o in one.outputs if o.reason)}"
        if one.answer == "outside" and not _lost(program, one.seed, one.scale):
            raise Failed("numerics", said)
        if one.answer != "within":
            notes.append(said)
    return "; ".join(notes)


def _lost(program: KernelGraph, seed: int, scale: float) -> bool:
    """Whether the program's own operators, each rounded to its element type, give results that are too large or none.

    Then nobody who computes it operator by operator gets exact values either: a softmax of large logits that is divided
    by itself is 0 / 0. And an exact value just below the largest one may be rounded to infinity.
    """
    from mirage_formal.codegen.numerics.result_comparison import draw_all, expected_results
    from mirage_formal.codegen.numerics.rounding import LARGEST
    from mirage_formal.codegen.numerics.rounding_simulation import simulate
    from mirage_formal.graph.verifier import kernel_types

    arrays = draw_all(program, seed, scale)
    wanted = expected_results(program, program, arrays)
    types = kernel_types(program)
    results = list(zip(wanted.values, program.outputs, strict=True))
    beyond = any(bool((np.abs(value) > LARGEST[types[number].dtype]).any()) for value, number in results)
    plain = zip(simulate(program, arrays), wanted.values, strict=True)
    none = any(bool((~np.isfinite(own) & np.isfinite(value)).any()) for own, value in plain)
    return beyond or none or bool(wanted.overflows)


def _last(text: str) -> str:
    return " ".join(text.split())[-_LONGEST:]


def _stage(stage: str, place: Path, search: Callable[[], Row], *, small: bool) -> Row:
    """One stage; what goes wrong is a row as well."""
    empty = Row(program="", stage=stage, ok=False)
    try:
        if stage == "search":
            return search()
        if stage == "emulate" and (small or not place.is_dir()) and not (row := search()).ok:
            return row
        begin = time.perf_counter()
        call: dict[str, Callable[[Path], str]] = {"check": checked, "build": built, "emulate": emulated}
        said = call[stage](place)
        return replace_row(empty, ok=True, reason=said, seconds=time.perf_counter() - begin)
    except Failed as failure:
        return replace_row(empty, kind=failure.kind, reason=str(failure))
    except Exception as error:
        # AttributeError and the like: a function that the front end lacks, or a mistake in this repository.
        return replace_row(empty, kind="crash", reason=f"{type(error).__name__}: {error}")


def main() -> None:
    """The command line; the last line of what it prints is the Row."""
    given = options(__doc__)

    def search() -> Row:
        graph = program_of(given.file, small=given.small)
        return searched(graph, given.place, given.time_limit, evaluate=given.evaluate)

    row = _stage(given.stage, given.place, search, small=given.small)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    row = replace_row(
        row, program=given.file.stem, stage=given.stage, reason=_last(row.reason), peak_mib=round(peak, 1)
    )
    print(msgspec.json.encode(row).decode(), flush=True)


if __name__ == "__main__":
    main()
