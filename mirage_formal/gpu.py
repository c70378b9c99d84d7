"""``python -m mirage_formal.gpu``: run the kernels of a run directory where there is a GPU but no solver.

Needs CuPy, NumPy and msgspec. Exit codes: 0 done, 1 a kernel failed or its numerics are not within tolerance, 2 a
mistake in what was given, and those of ``guard``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from mirage_formal.codegen.executable import Executable, KernelLaunch, describe
from mirage_formal.device.runtime import arch_of, current_device, device_count
from mirage_formal.kernel_build.device_records import record_numerics, record_time
from mirage_formal.kernel_build.save import find_kernels
from mirage_formal.records.answer import answer_text
from mirage_formal.support import options
from mirage_formal.support.errors import MirageError, RunError, UnsupportedError
from mirage_formal.support.guard import run_main
from mirage_formal.support.terminal import escape_line

_OFF: Final = "[default: off]"
_JSON: Final = "print one JSON object, see `mirage-formal tools schema answer`."

#: Told what is being done, how much of it is done, and of how much.
Watch = Callable[[str, int, int], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of ``mirage_formal.gpu`` and return its exit code."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as ended:  # argparse has said what is wrong, or printed its help
        return int(ended.code or 0)
    try:
        return int(given.action(given))
    except MirageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mirage_formal.gpu", description="Run kernels of a run directory.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run kernels on seeded inputs")
    run.add_argument("directory", type=Path, metavar="RUN_DIR", help="a run, or one candidate's directory of kernels")
    run.add_argument("--candidate", metavar="N", help="the candidate of this rank; 1 or more [default: all]")
    run.add_argument("--measure", action="store_true", help=f"time it, and write measure.json {_OFF}")
    run.add_argument("--numerics", action="store_true", help=f"compare with float64, and write numerics.json {_OFF}")
    run.add_argument("--seed", metavar="N", default=0, help="seed of the inputs; 0 or more [default: 0]")
    run.add_argument(
        "--without-library",
        action="store_true",
        help="compute predefined products on the host instead of with cuBLAS, so that a tool that watches kernels "
        "sees the generated ones alone; neither --measure nor --numerics goes with it "
        f"{_OFF}",
    )
    run.add_argument("--json", action="store_true", help=f"{_JSON} {_OFF}")
    run.set_defaults(action=_run)
    tune = commands.add_parser("tune", help="time the kernels that `mirage-formal tune` has made elsewhere")
    tune.add_argument(
        "directory", type=Path, nargs="*", metavar="RUN_DIR", help="a run whose kernels are compared and timed as well"
    )
    what = "where `mirage-formal tune --place DIR` has put them"
    tune.add_argument("--place", type=Path, metavar="DIR", help=f"{what} [default: the user's cache]")
    tune.add_argument("--time-limit", metavar="SECONDS", help="for everything; above 0 [default: no limit]")
    tune.add_argument("--json", action="store_true", help=f"{_JSON} {_OFF}")
    tune.set_defaults(action=_tune)
    info = commands.add_parser("info", help="say what this machine has")
    info.add_argument("--json", action="store_true", help=f"{_JSON} {_OFF}")
    info.set_defaults(action=_info)
    return parser


def run_one(directory: Path, *, measure: bool, numerics: bool, seed: int = 0, library: bool = True) -> dict[str, Any]:
    """Run one candidate's kernels, and return the outcome as plain values; a failure is an outcome too.

    Sound: nothing is launched before ``stored_kernels`` has established it.

    Args:
        directory: The directory of kernels.
        measure: Whether to time the kernels, and write measure.json.
        numerics: Whether to compare with float64, and write numerics.json.
        seed: Seed of the inputs.
        library: Whether cuBLAS computes predefined products, or the host.
    """
    report: dict[str, Any] = {"directory": str(directory), "ok": False}
    try:
        from mirage_formal.device.cupy_runner import DeviceRuns  # needs NumPy
        from mirage_formal.run.result_cache.stored_kernel_check import stored_kernels

        stored = stored_kernels(directory, arch_of(current_device()))
        executable = stored.executable
        report |= _described(executable) | {"remarks": list(stored.remarks)}
        how = {} if library else {"library": False}
        runs = DeviceRuns(executable, **how)
        if numerics:
            report["numerics"] = msgspec.to_builtins(record_numerics(runs, directory, seed))
            report["answer"] = report["numerics"]["answer"]
        else:
            report["answer"] = _finiteness(runs, executable, seed)
        if measure:
            report["measure"] = msgspec.to_builtins(record_time(runs, directory))
        report["ok"] = report["answer"] == "within" or (not numerics and report["answer"] == "finite")
    except Exception as error:  # one failing kernel is a row of the report, whatever fails
        lines = str(error).strip().splitlines()
        report["error"] = f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
    return report


def _described(executable: Executable) -> dict[str, Any]:
    binaries = [b for x in executable.launches if isinstance(x, KernelLaunch) for b in x.cubins.values()]
    return {
        "digest": executable.digest,
        "launches": [describe(launch, executable.graph) for launch in executable.launches],
        "registers": max((b.registers for b in binaries), default=0),
        "spill_bytes": max((b.spill_bytes for b in binaries), default=0),
    }


def _finiteness(runs: Any, executable: Executable, seed: int) -> str:
    """Run the kernels once, and return whether the outputs are finite, as text."""
    from mirage_formal.codegen.numerics.result_comparison import draw_all

    outputs = runs.run(draw_all(executable.program, seed, 0.1, runs.cupy))
    return "finite" if all(bool(runs.cupy.isfinite(x).all()) for x in outputs) else "not finite"


def _run(given: argparse.Namespace) -> int:
    candidate = None if given.candidate is None else options.parse_value("--candidate", given.candidate, options.Count)
    seed = options.parse_value("--seed", given.seed, options.Natural)
    how = {"measure": given.measure, "numerics": given.numerics, "library": not given.without_library}
    return print_reports(run_all(given.directory, candidate, seed, **how), as_json=given.json)


def run_all(
    root: Path, candidate: int | None, seed: int, *, measure: bool, numerics: bool, library: bool
) -> list[dict[str, Any]]:
    """Run the kernels of one candidate, or of all; see ``run_one``.

    Raises:
        UnsupportedError: There is no GPU, or the options contradict each other.
        RunError: There are no such kernels.
    """
    if not device_count():
        hint = "install CuPy with one of the extras cuda12 or cuda13, on a machine with a GPU"
        raise UnsupportedError("expected a GPU and CuPy, got none", where="gpu run", hint=hint)
    if not library and (measure or numerics):
        hint = "leave --without-library out: what is measured and compared has its products from cuBLAS"
        what = "expected no --measure and no --numerics with --without-library"
        raise UnsupportedError(what, where="gpu run", hint=hint)
    found = find_kernels(root, candidate)
    return [run_one(path, measure=measure, numerics=numerics, seed=seed, library=library) for path in found]


def print_reports(reports: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    """Print the outcomes of kernels; return the exit code."""
    code = 0 if all(report["ok"] for report in reports) else 1
    if as_json:
        print(answer_text("gpu run", code, reports))
    else:
        for report in reports:
            print(escape_line(outcome_line(report), 4000))
    return code


def _tune(given: argparse.Namespace) -> int:
    limit = None if given.time_limit is None else options.parse_value("--time-limit", given.time_limit, options.Amount)

    def watch(what: str, done: int, count: int) -> None:
        if done == count or done % 100 == 0:
            print(f"{what}: {done} of {count}", file=sys.stderr, flush=True)

    return print_tuned(tune(given.place, given.directory, limit, watch), as_json=given.json)


def tune(place: Path | None, roots: Sequence[Path], limit: float | None, watch: Watch) -> list[tuple[str, Any]]:
    """Time the kernels that ``mirage-formal tune`` has written to a directory, and those of runs.

    Raises:
        RunError: The directory has no plans.
    """
    from mirage_formal.autotune.plans import TuningDirectory
    from mirage_formal.autotune.timing import TimingProcess
    from mirage_formal.autotune.tune import tune_on_device

    if place is not None and not (place / "plans").is_dir():
        hint = "mirage-formal tune RUN_DIR --place DIR writes it, where the solvers are installed"
        raise RunError("expected a directory of tuning, got none", where=str(place), hint=hint)
    with TimingProcess() as device:
        return list(tune_on_device(TuningDirectory(place), roots, device, watch, limit))


def print_tuned(found: Sequence[tuple[str, Any]], *, as_json: bool) -> int:
    """Print the outcomes of candidates; return the exit code."""
    code = 0 if all(not answer.failed for _, answer in found) else 1
    if as_json:
        rows = [{"name": name, **msgspec.to_builtins(answer)} for name, answer in found]
        print(answer_text("gpu tune", code, rows))
    else:
        for name, answer in found:
            print(escape_line(f"{name}: {answer.failed or f'{answer.us:.2f} us, {answer.answer}'}", 4000), flush=True)
    return code


def outcome_line(report: dict[str, Any]) -> str:
    """Return the outcome of one directory as one line.

    It has the answer, each scale's largest ratio of error to tolerance, the time in microseconds and the remarks; or
    the error.
    """
    name = Path(report["directory"]).name
    if "error" in report:
        return f"{name}: FAILED: {report['error']}"
    parts = [f"{name}: {report['answer']}"]
    for scale in report.get("numerics", {}).get("scales", ()):
        worst = max(output["max_ratio"] for output in scale["outputs"])
        reasons = "; ".join(output["reason"] for output in scale["outputs"] if output["reason"])
        parts.append(
            f"scale {scale['scale']:g} {scale['answer']} (error/tolerance {worst:.2f}{reasons and ', '}{reasons})"
        )
    if (found := report.get("measure")) is not None:
        parts.append(f"{found['us']:.2f} us ({found['low']:.2f}..{found['high']:.2f})")
    return "  ".join([*parts, *(f"({remark})" for remark in report["remarks"])])


def _info(given: argparse.Namespace) -> int:
    return print_machine(machine(), as_json=given.json)


def machine() -> dict[str, Any]:
    """Return the versions of installed packages and the GPUs of this machine."""
    found: dict[str, Any] = {"gpus": []}
    for package in ("cupy", "torch", "numpy", "msgspec"):
        try:
            found[package] = str(import_module(package).__version__)
        except Exception:  # a broken package raises what it likes
            found[package] = None
    for device in range(device_count()):
        properties = import_module("cupy").cuda.runtime.getDeviceProperties(device)
        name = properties["name"]
        found["gpus"].append(
            {
                "name": name.decode() if isinstance(name, bytes) else str(name),
                "arch": arch_of(device),
                "sms": int(properties["multiProcessorCount"]),
                "memory_bytes": int(properties["totalGlobalMem"]),
                "l2_bytes": int(properties["l2CacheSize"]),
            }
        )
    return found


def print_machine(found: dict[str, Any], *, as_json: bool) -> int:
    """Print the packages and GPUs of a machine; return the exit code."""
    if as_json:
        print(answer_text("gpu info", 0, found))
        return 0
    for name in ("cupy", "torch", "numpy", "msgspec"):
        print(f"{name}: {found[name] or 'not installed'}")
    for i, gpu in enumerate(found["gpus"]):
        print(f"GPU {i}: {escape_line(gpu['name'])}, {gpu['arch']}, {gpu['sms']} SMs, {gpu['memory_bytes'] >> 20} MiB")
    if not found["gpus"]:
        print("GPU: none that CuPy can use; calls compute by the reference semantics")
    return 0


if __name__ == "__main__":
    run_main(main)
