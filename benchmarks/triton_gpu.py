"""The same candidates as CUDA C++ and as Triton files on a GPU: times side by side, and whether Triton's are right.

    python -m benchmarks.triton_gpu RUN_DIR... [--top N] [--limit S] [--jobs N] [--out DIR]     times
    python -m benchmarks.triton_gpu --write DIR RUN_DIR... [--most N]     files of every kind of candidate; no GPU
    python -m benchmarks.triton_gpu --sweep DIR [--limit S] [--jobs N] [--out DIR]      runs these files on the GPU

Times: of the kernels in RUN_DIR/kernels (python -m benchmarks.gpu_runs --tune) the fastest that is right counts; the
µGraph that it launches, and the candidate's own form, become Triton files. Numbers of warps and of stages are launch
options that this back end does not tune, so the file's own and a few others are timed, and the fastest counts. Files
are compiled side by side and timed one at a time: both sides by one protocol in one process, medians of three rounds.
Right is a relative error of at most 1e-3 (1e-2 for bfloat16) in 12 replays of one graph for each of two seeds, outputs
filled with NaN before.

The sweep calls each file's own check, which compares with float64. Candidates are of one kind if their kernels have the
same operators. Answers are kept in DIR/triton_gpu.jsonl as they come, and a call that was cut is continued by the same
call. The exit status is 0 if nothing failed.

Options:
  runs [RUN_DIR...]
  --write DIR        write files of every kind of candidate; no GPU is needed
  --sweep DIR        run the files in DIR
  --most N           kinds of each run that are written [default: 12]
  --top N            kernels of each run that are tried [default: 4]
  --target NAME      whose cost model chooses Triton's tiles [default: h200]
  --limit S          seconds for everything [default: 120]
  --row-limit S      seconds for one row or file [default: 90]
  --jobs N           processes [default: 14]
  --out DIR          where results go [default: $OUT]
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_jobs import Job, Ledger, Pool, Result, runs_among, serve
from benchmarks.gpu_stages import candidates
from benchmarks.harness import options

WORKER = "--worker"
LIMITS = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-3}
#: Launch options that are timed beside a file's own: warps as a factor, stages.
_WARPS, _STAGES = (0.5, 1, 2), (2, 3, 4)
_OPTIONS = re.compile(r"num_warps=(\d+), num_stages=(\d+)")
_SEEDS = (1, 2)
_SCALE = 0.1


# --- in a child ------------------------------------------------------------------------------------------------------


def answer(job: Job) -> Result:
    """A row of the table, or a file's own check."""
    import torch

    from benchmarks.gpu_turn import Turn

    torch.set_grad_enabled(False)
    try:
        turn = Turn(Path(job["lock"]))
        return {"row": _row, "file": _file}[job["do"]](job, turn)
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _file(job: Job, turn: Any) -> Result:
    """What a file says about itself."""
    import contextlib
    import io

    from mirage_formal.run.kernel_build.triton.calls import load_module

    said = io.StringIO()
    module = load_module(Path(job["file"]).read_text(encoding="utf-8"))
    with contextlib.redirect_stdout(said):
        code = module.main()
    text = said.getvalue().strip()
    return {"right": code == 0, "said": text[-200:]} if code == 0 else {"error": text[-300:] or f"main returned {code}"}


def _row(job: Job, turn: Any) -> Result:
    """One program: the fastest right kernels of CUDA C++, and the same µGraph in Triton."""
    from benchmarks.gpu_cases import rounds
    from benchmarks.torch_program import draw
    from mirage_formal.device.launch import Optimized
    from mirage_formal.kernels.executable import load

    found: Result = {"notes": {}}
    chosen = None
    with turn:
        timed = []
        for directory in job["kernels"]:
            executable = load(Path(directory))
            optimized = Optimized.of(executable)
            try:
                us = _time(lambda given, own=optimized: own(*given), executable.program)().us
            except Exception as wrong:
                found["notes"][Path(directory).name] = _short(wrong)
                continue
            timed.append((us, directory, executable, optimized))
        for us, directory, executable, optimized in sorted(timed, key=lambda one: one[0]):
            error = _replayed(lambda given, own=optimized: own(*given), executable.program)
            if error <= _limit(executable.program):
                chosen = executable, optimized, Path(directory)
                found |= {"candidate": Path(directory).name, "cuda_error": error, "cuda_once": us}
                break
            found["notes"][Path(directory).name] = f"relative error {error:.3g}"
    if chosen is None:
        return {"error": "no kernels ran and were right", **found}
    executable, optimized, place = chosen
    program = executable.program
    right: list[tuple[float, str, Callable[..., Any], float]] = []
    for name, text in _texts(executable, place, job["target"]):
        try:
            module = _loaded(text)
            module.run(*draw(program.inputs, 0, _SCALE))  # compiled here, while others have the GPU as well
            with turn:
                us = _time(lambda given, own=module: own.run(*given), program)().us
                if right and us >= min(one[0] for one in right):
                    continue
                error = _replayed(lambda given, own=module: own.run(*given), program)
            if error <= _limit(program):
                right.append((us, name, module.run, error))
            else:
                found["notes"][f"triton {name}"] = f"relative error {error:.3g}"
        except Exception as wrong:
            found["notes"][f"triton {name}"] = _short(wrong)
    if not right:
        return {"error": "no Triton file ran and was right", **found}
    _, name, run, error = min(right, key=lambda one: one[0])
    found |= {"variant": name, "triton_error": error}
    cells = {"cuda": _time(lambda given: optimized(*given), program), "triton": _time(lambda x: run(*x), program)}
    with turn:
        found["cells"] = rounds(cells)
    if all("us" in cell for cell in found["cells"].values()):
        found["ratio"] = found["cells"]["triton"]["us"] / found["cells"]["cuda"]["us"]
    return found


def _texts(executable: Any, directory: Path, target: str) -> Iterator[tuple[str, str]]:
    """Triton files of a candidate by name: as it is launched, in its own form, and with other launch options."""
    from mirage_formal.errors import MirageError
    from mirage_formal.kernels.target import load_target
    from mirage_formal.kernels.triton.file import triton_file

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
    from mirage_formal.errors import MirageError
    from mirage_formal.run.kernel_build.build import candidates_of
    from mirage_formal.run.kernel_build.stable import stable

    try:
        graph = dict(candidates_of(directory.parents[1])[2])[directory.name]()
        return stable(graph).graph
    except (MirageError, KeyError, OSError):
        return None


def _loaded(text: str) -> Any:
    from mirage_formal.run.kernel_build.triton.calls import load_module

    return load_module(text)


def _limit(program: Any) -> float:
    return max(LIMITS[item.tensor.dtype.value] for item in program.inputs)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


def _time(call: Callable[..., Any], program: Any) -> Callable[[], Any]:
    """Times a call; it returns new outputs each time, which a graph keeps."""
    from benchmarks.torch_program import draw
    from mirage_formal.device.measure import TorchRecorder, measure

    size = sum(item.tensor.bytes for item in program.inputs)
    return lambda: measure(call, lambda seed: draw(program.inputs, seed, _SCALE), size, TorchRecorder())


def _replayed(call: Callable[..., Any], program: Any) -> float:
    """The largest relative error in replays of one graph, whose outputs are NaN before each."""
    from benchmarks.torch_program import draw
    from mirage_formal.device.measure import TorchRecorder, replayed_error

    drawn = {seed: draw(program.inputs, seed, _SCALE) for seed in _SEEDS}
    wanted = {seed: _exact(program, given) for seed, given in drawn.items()}
    buffers = draw(program.inputs, 0, _SCALE)
    held: list[Any] = []

    def run() -> None:
        found = call(buffers)
        held[:] = found if isinstance(found, list | tuple) else [found]

    def load(seed: int) -> None:
        for buffer, values in zip(buffers, drawn[seed], strict=True):
            buffer.copy_(values)

    def error(seed: int) -> float:
        worst = 0.0
        for mine, value in zip(held, wanted[seed], strict=True):
            apart = float((mine.double() - value).norm() / value.norm().clamp(min=1e-30))
            worst = apart if not apart <= worst else worst
        return worst

    return replayed_error(run, load, error, held, TorchRecorder(), _SEEDS)


def _exact(program: Any, given: list[Any]) -> list[Any]:
    """The program's outputs in float64, by torch."""
    from benchmarks.torch_program import torch_program

    return list(torch_program(program)(*(x.double() for x in given)))


# --- files -----------------------------------------------------------------------------------------------------------


def write(root: Path, runs: list[Path], most: int, target: str) -> int:
    """Files of every kind of candidate of runs, at most so many of each run; how many."""
    from mirage_formal.errors import MirageError
    from mirage_formal.kernels.target import load_target
    from mirage_formal.run.kernel_build.build import candidates_of
    from mirage_formal.run.kernel_build.triton.program import triton_program

    count = 0
    for run in runs:
        program, _, candidates = candidates_of(run)
        kinds: dict[str, None] = {}
        place = root / run.name
        place.mkdir(parents=True, exist_ok=True)
        for name, graph in candidates:
            made = graph()
            kind = str([str(getattr(op, "kind", "") or _operators(op)) for op in made.ops])
            if kind in kinds or len(kinds) >= most:
                continue
            kinds[kind] = None
            try:
                code = triton_program(made, program, load_target(target), f"candidate {name} of {run.name}").code
            except MirageError as error:
                print(f"{run.name} {name}: {error.what}", flush=True)
                continue
            (place / f"{name}.py").write_text(code, encoding="utf-8")
            count += 1
        print(f"{run.name}: {len(kinds)} kinds of {len(candidates)} candidates", flush=True)
    return count


def _operators(op: Any) -> list[str]:
    """The kinds of operators of a kernel, in order."""
    return [str(getattr(one, "kind", type(one).__name__)) for one in op.graph.ops]


def show(rows: dict[str, Result]) -> str:
    """The table."""
    lines = [
        "| run | candidate | CUDA, us | Triton, us | ratio | errors | Triton's variant |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    ratios = []
    for name, row in rows.items():
        cells = {key: f"{cell['us']:.2f}" for key, cell in row.get("cells", {}).items() if "us" in cell}
        if "ratio" in row:
            ratios.append(row["ratio"])
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else str(row.get("error", "-"))
        errors = " / ".join(f"{row[key]:.1e}" for key in ("cuda_error", "triton_error") if key in row)
        parts = [name, str(row.get("candidate", "-"))[:20], cells.get("cuda", "-"), cells.get("triton", "-"), ratio]
        lines.append(f"| {' | '.join([*parts, errors, str(row.get('variant', '-'))])} |")
        lines += [f"|   {key} | {str(note)[:150]} |" for key, note in row.get("notes", {}).items()]
    if ratios:
        lines.append(f"{len(ratios)} rows, geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        from benchmarks.gpu_cases import healthy

        return serve(answer, healthy)
    given = options(__doc__)
    if given.write is not None:
        return 0 if write(given.write, given.runs, given.most, given.target) else 1
    given.out.mkdir(parents=True, exist_ok=True)
    lock = Path(tempfile.gettempdir()) / "mirage_formal-triton-lock"
    common = {"lock": str(lock), "target": given.target}
    if given.sweep is not None:
        files = sorted(given.sweep.glob("*/*.py"))
        jobs: dict[str, Job] = {f"{f.parent.name}/{f.stem}": {**common, "do": "file", "file": str(f)} for f in files}
    else:
        kernels = {run.name: candidates(run, given.top) for run in runs_among(given.runs)}
        jobs = {
            name: {**common, "do": "row", "name": name, "kernels": [str(path) for path in paths]}
            for name, paths in kernels.items()
        }
    ledger = Ledger(given.out / "triton_gpu.jsonl")

    def told(job: Job, result: Result) -> None:
        if job["do"] == "row" or "error" in result:
            print(f"{job.get('name') or job.get('file')}: {json.dumps(result)[:220]}", flush=True)

    command = (sys.executable, "-m", "benchmarks.triton_gpu", WORKER)
    pool = Pool(command, ledger, {}, given.out / "triton_gpu.err", told)
    pool.do(jobs.values(), processes=given.jobs, limit_s=given.row_limit, until=time.monotonic() + given.limit)
    results = {name: ledger.get(job) for name, job in jobs.items()}
    known = {name: result for name, result in results.items() if result is not None}
    bad = {name: result for name, result in known.items() if "error" in result}
    if given.sweep is None:
        print(show({name: result or {"error": "no time left"} for name, result in results.items()}))
    print(f"{len(known)} of {len(jobs)} done, {len(known) - len(bad)} right")
    for name, result in bad.items() if given.sweep is not None else ():
        print(f"  {name}: {str(result['error'])[-200:]}")
    return 0 if known and not bad and len(known) == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
