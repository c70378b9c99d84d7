"""The same candidates as CUDA C++ and as Triton files on a GPU: times side by side, and whether Triton's are right.

    python -m benchmarks.triton_gpu RUN_DIR... [--top N] [--limit S] [--jobs N] [--out DIR]

Of the kernels in RUN_DIR/kernels (python -m benchmarks.gpu_runs --tune) the fastest that is right counts; the
µGraph that it launches, and the candidate's own form, become Triton files. Numbers of warps and of stages are launch
options that this back end does not tune, so the file's own and a few others are timed, and the fastest counts. Files
are compiled side by side and timed one at a time: both sides by one protocol in one process, medians of three rounds.
Right is a relative error of at most 1e-3 (1e-2 for bfloat16) in 12 replays of one graph for each of two seeds, outputs
filled with NaN before.

Answers are kept in DIR/triton_gpu.jsonl as they come, and a call that was cut is continued by the same
call. The exit status is 0 if nothing failed.

Options:
  runs RUN_DIR...
  --top N            kernels of each run that are tried [default: 4]
  --target NAME      whose cost model chooses Triton's tiles [default: h200]
  --limit S          seconds for everything [default: 120]
  --row-limit S      seconds for one row [default: 90]
  --jobs N           processes [default: 14]
  --out DIR          where results go [default: $OUT]
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.gpu_cases import Called, Case, rounds
from benchmarks.gpu_jobs import WORKER, Job, Result, Turn, children, runs_among, serve, short
from benchmarks.gpu_stages import candidates
from benchmarks.harness import options, table
from mirage_formal.graph.graph import KernelGraph

LIMITS = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-3}
#: Launch options that are timed beside a file's own: warps as a factor, stages.
_WARPS, _STAGES = (0.5, 1, 2), (2, 3, 4)
_OPTIONS = re.compile(r"num_warps=(\d+), num_stages=(\d+)")


def answer(job: Job) -> Result:
    """Measure a row of the table: the fastest right kernels of CUDA C++, and the same µGraph in Triton."""
    import torch

    torch.set_grad_enabled(False)
    try:
        return _row(job, Turn(Path(job["lock"])))
    finally:
        torch.cuda.empty_cache()


def _row(job: Job, turn: Turn) -> Result:
    from mirage_formal.codegen.executable import load_executable
    from mirage_formal.device.launch import Optimized
    from mirage_formal.kernel_build.triton.triton_callable import load_module

    found: Result = {"notes": {}}
    timed = []
    with turn:
        for directory in map(Path, job["kernels"]):
            executable = load_executable(directory)
            called = _called(executable.program, Optimized.of(executable))
            try:
                timed.append((called.measure().us, directory, executable, called))
            except Exception as wrong:
                found["notes"][directory.name] = short(wrong)
        for us, place, executable, ours in sorted(timed, key=lambda one: one[0]):
            error, limit = ours.replays_error(), _limit(executable.program)
            if error <= limit:
                found |= {"candidate": place.name, "cuda_error": error, "cuda_once": us}
                break
            found["notes"][place.name] = f"relative error {error:.3g}"
        else:
            return {"error": "no kernels ran and were right", **found}
    program, best = executable.program, None
    for name, text in _texts(executable, place, job["target"]):
        try:
            called = _called(program, load_module(text).run)
            called.once()  # compiled here, while others have the GPU as well
            with turn:
                us = called.measure().us
                if best is not None and us >= best[0]:
                    continue
                error = called.replays_error()
            if error <= limit:
                best = us, called
                found |= {"variant": name, "triton_error": error}
            else:
                found["notes"][f"triton {name}"] = f"relative error {error:.3g}"
        except Exception as wrong:
            found["notes"][f"triton {name}"] = short(wrong)
    if best is None:
        return {"error": "no Triton file ran and was right", **found}
    with turn:
        found["cells"] = rounds({"cuda": ours.measure, "triton": best[1].measure})
    if all("us" in cell for cell in found["cells"].values()):
        found["ratio"] = found["cells"]["triton"]["us"] / found["cells"]["cuda"]["us"]
    return found


def _called(program: KernelGraph, run: Callable[..., Any]) -> Called:
    """Put what computes a program beside the program in float64, by torch."""
    from benchmarks.peers import draw
    from mirage_formal.torch.modules.eager_execution import torch_program

    exact = torch_program(program)
    case = Case(lambda seed: draw(program.inputs, seed), lambda given: exact(*(x.double() for x in given)), ())
    return Called(case, run, sum(item.tensor.bytes for item in program.inputs))


def _limit(program: KernelGraph) -> float:
    return max(LIMITS[item.tensor.dtype.value] for item in program.inputs)


def _texts(executable: Any, directory: Path, target: str) -> Iterator[tuple[str, str]]:
    """Triton files of a candidate by name: as it is launched, in its own form, and with other launch options."""
    from mirage_formal.codegen.target import load_target
    from mirage_formal.codegen.triton.file import triton_file
    from mirage_formal.support.errors import MirageError

    figures = load_target(target)
    texts: dict[str, str] = {}
    for name, graph in (("launched", executable.graph), ("own form", _own_form(directory))):
        try:
            text = "" if graph is None else triton_file(graph, executable.program, figures).text
        except MirageError:
            continue
        if text and text not in texts.values():
            texts[name] = text
    yield from texts.items()
    for name, text in texts.items():
        for warps in _WARPS:
            for stages in _STAGES:

                def other(found: re.Match[str], warps: float = warps, stages: int = stages) -> str:
                    return f"num_warps={min(16, max(1, int(int(found[1]) * warps)))}, num_stages={stages}"

                changed = _OPTIONS.sub(other, text)
                if changed != text:
                    yield f"{name}, warps x{warps:g}, {stages} stages", changed


def _own_form(directory: Path) -> Any:
    """The candidate of a directory of kernels with running maxima and nothing else; None if the run is not there."""
    from mirage_formal.kernel_build.build import candidates_of
    from mirage_formal.kernel_build.stable_forms import stabilize_proved
    from mirage_formal.support.errors import MirageError

    try:
        graph = dict(candidates_of(directory.parents[1])[2])[directory.name]()
        return stabilize_proved(graph).graph
    except (MirageError, KeyError, OSError):
        return None


def show(rows: dict[str, Result]) -> str:
    """The table."""
    lines, ratios = [], [row["ratio"] for row in rows.values() if "ratio" in row]
    for name, row in rows.items():
        cells = {key: f"{cell['us']:.2f}" for key, cell in row.get("cells", {}).items() if "us" in cell}
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else row.get("error", "-")
        errors = " / ".join(f"{row[key]:.1e}" for key in ("cuda_error", "triton_error") if key in row)
        parts = [name, row.get("candidate", "-")[:20], cells.get("cuda", "-"), cells.get("triton", "-"), ratio]
        lines += [[*parts, errors, row.get("variant", "-")]]
        lines += [[f"  {key}", str(note)[:150]] for key, note in row.get("notes", {}).items()]
    heads = ["run", "candidate", "CUDA, us", "Triton, us", "ratio", "errors", "Triton's variant"]
    text = table(heads, lines, (0, 1, 5, 6))
    return f"{text}\n{len(ratios)} rows, geometric mean {geometric_mean(ratios):.3f}" if ratios else text


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        return serve(answer)
    given = options(__doc__)
    common = {
        "lock": str(Path(tempfile.gettempdir()) / "mirage_formal-triton-lock"),
        "target": given.target,
        "do": "row",
    }
    jobs: dict[str, Job] = {
        run.name: {**common, "name": run.name, "kernels": [str(path) for path in candidates(run, given.top)]}
        for run in runs_among(given.runs)
    }

    def told(job: Job, result: Result) -> None:
        print(f"{job['name']}: {json.dumps(result)[:220]}", flush=True)

    pool = children("benchmarks.triton_gpu", given.out, told)
    pool.do(jobs.values(), processes=given.jobs, limit_s=given.row_limit, until=time.monotonic() + given.limit)
    results = {name: pool.ledger.get(job) or {"error": "no time left"} for name, job in jobs.items()}
    print(show(results))
    right = sum("error" not in result for result in results.values())
    print(f"{right} of {len(jobs)} right")
    return 0 if right == len(jobs) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
