"""Command ``doctor``: the optional components of this machine, and how to install or repair them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from mirage_formal.cli.utilities import Json, answer, flag_option
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.resources import install_command, processor_count
from mirage_formal.support.terminal import escape_line

State = Literal["ok", "missing", "broken"]
_LIMIT_S: Final = 20.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of looking for one component.

    Attributes:
        name: Name on the command line.
        state: "ok", "missing" if it is not installed, "broken" if it is installed and does not work.
        found: Version, size or another identification.
        needed: Purpose of the component.
        mend: Command that repairs it; empty if nothing is wrong.
    """

    name: str
    state: State
    found: str
    needed: str
    mend: str = ""


_Things = Annotated[
    list[str] | None,
    typer.Argument(metavar="[THING...]", help="What has to be there, by its name in the list.", show_default="nothing"),
]
_Torch = Annotated[bool, flag_option("--torch", "Print which operators of PyTorch are imported, and which are left.")]


def doctor_command(thing: _Things = None, torch: _Torch = False, json: Json = False) -> None:
    """Say what this machine has, and what mends the rest; exit code 1 if something that is named is missing."""
    if torch:
        _print_torch(json=json)
        return
    wanted = thing or []
    if unknown := [name for name in wanted if name not in CHECKS]:
        what = f"expected some of {', '.join(CHECKS)}, got {unknown[0]!r}"
        raise SpaceError(what, where="doctor", hint="mirage-formal tools doctor lists them all")
    found = [CHECKS[name]() for name in wanted or CHECKS]
    code = 1 if wanted and any(one.state != "ok" for one in found) else 0
    if json:
        raise typer.Exit(answer("doctor", code, found))
    for text in _lines(found):
        print(text)
    raise typer.Exit(code)


def _lines(found: Sequence[Finding]) -> list[str]:
    """Return a table of at most 60 columns, and the repair commands of failed components below it."""
    width = max(len(one.name) for one in found)
    marks = {"ok": "ok     ", "missing": "missing", "broken": "BROKEN "}
    room = 60 - width - 11
    lines = [f"{one.name:<{width}}  {marks[one.state]}  {escape_line(one.found or '-', room)}" for one in found]
    for one in found:
        if one.mend:
            lines += ["", f"{one.name}: {escape_line(one.needed)}", f"  {escape_line(one.mend)}"]
    return lines


def _print_torch(*, json: bool) -> None:
    from mirage_formal.torch.op_table import ROWS

    if json:
        rows = [
            {"operator": row.name, "imported": not row.refused, "means": row.means, "when": row.when or row.refused}
            for row in ROWS
        ]
        raise typer.Exit(answer("doctor", 0, rows))
    from mirage_formal.torch.op_table_docs import document

    print(document())


# --- what is looked for ----------------------------------------------------------------------------------------------


def _package(name: str, distributions: str, needed: str, extra: str) -> Callable[[], Finding]:
    """Return a check of a package, which is imported in a process of its own because a broken one may crash."""

    def look() -> Finding:
        version = next(filter(None, map(_version, distributions.split())), "")
        mend = install_command(extra)
        if not version:
            return Finding(name=name, state="missing", found="", needed=needed, mend=mend)
        said = _last_error_line([sys.executable, "-c", f"import {name}"])
        if said is None:
            return Finding(name=name, state="ok", found=version, needed=needed)
        return Finding(name=name, state="broken", found=f"{version}: {said}", needed=needed, mend=mend)

    return look


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _last_error_line(command: Sequence[str]) -> str | None:
    """Return the last line of a command's error output; None if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if done.returncode == 0:
        return None
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return last[-1] if last else f"exit code {done.returncode}"


def _python() -> Finding:
    old = sys.version_info < (3, 11)
    found = f"{platform.python_version()} {platform.python_implementation()}"
    mend = "install Python 3.11 or later" if old else ""
    return Finding(name="python", state="broken" if old else "ok", found=found, needed="everything", mend=mend)


def _cpu() -> Finding:

    usable, every = processor_count(), os.cpu_count() or 1
    found = f"{platform.machine()}, {usable} of {every} processors usable"
    return Finding(name="cpu", state="ok", found=found, needed="search and proof")


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return Finding(name="memory", state="ok", found="unknown on this platform", needed="search and proof")
    return Finding(
        name="memory", state="ok", found=f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} free", needed="search"
    )


def _gpu() -> Finding:
    from mirage_formal.gpu import machine

    found = machine()["gpus"]
    if found:
        names = "; ".join(f"{gpu['name']}, {gpu['arch']}" for gpu in found)
        return Finding(name="gpu", state="ok", found=names, needed="kernels that run")
    mend = f"a machine with an NVIDIA GPU and a driver; {install_command('cuda13')}"
    return Finding(name="gpu", state="missing", found="none that CuPy can use", needed="kernels that run", mend=mend)


def _driver() -> Finding:
    needed = "kernels that run"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        mend = "install NVIDIA's driver, with its tool nvidia-smi"
        return Finding(name="driver", state="missing", found="no nvidia-smi", needed=needed, mend=mend)
    command = [tool, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        mend = "nvidia-smi has to run: look at the driver"
        return Finding(name="driver", state="broken", found=type(error).__name__, needed=needed, mend=mend)
    text = done.stdout.decode("utf-8", "replace").strip().replace("\n", "; ")
    if done.returncode:
        return Finding(name="driver", state="broken", found=text, needed=needed, mend="nvidia-smi has to run")
    return Finding(name="driver", state="ok", found=text, needed=needed)


def _nvrtc() -> Finding:
    from mirage_formal.device.compile import nvrtc_hint, version

    if found := version():
        return Finding(name="nvrtc", state="ok", found=found, needed="machine code of kernels")
    return Finding(name="nvrtc", state="missing", found="", needed="machine code of kernels", mend=nvrtc_hint())


def _compiler() -> Finding:
    needed = "the emulator, which runs kernels on the CPU"
    mend = "install g++ 9 or later, or name a compiler that takes its options in the variable CXX"
    path = shutil.which(os.environ.get("CXX") or "g++")
    if path is None:
        return Finding(name="g++", state="missing", found="", needed=needed, mend=mend)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name="g++", state="broken", found=type(error).__name__, needed=needed, mend=mend)
    first = (done.stdout.decode("utf-8", "replace").splitlines() or [""])[0]
    if done.returncode:
        return Finding(name="g++", state="broken", found=first, needed=needed, mend=mend)
    return Finding(name="g++", state="ok", found=first, needed=needed)


def _cache() -> Finding:
    from mirage_formal.cache.cache_directory import cache_root

    needed = "searches and kernels that are not made twice"
    try:
        root = cache_root()
        root.mkdir(parents=True, exist_ok=True)
        sizes = {path.name: _size(path) for path in sorted(root.iterdir()) if path.is_dir()}
    except OSError as error:
        mend = "name a directory that can be written in MIRAGE_FORMAL_CACHE"
        return Finding(name="cache", state="broken", found=str(error), needed=needed, mend=mend)
    found = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in sizes.items() if size) or "empty"
    return Finding(name="cache", state="ok", found=f"MiB: {found}", needed=needed)


def _size(root: Path) -> int:
    return sum(entry.stat().st_size for entry in root.rglob("*") if entry.is_file())


#: What is looked for, by its name.
CHECKS: Final[dict[str, Callable[[], Finding]]] = {
    "python": _python,
    "cpu": _cpu,
    "memory": _memory,
    "z3": _package("z3", "z3-solver", "proofs and safety obligations", ""),
    "cvc5": _package("cvc5", "cvc5", "proofs and safety obligations", ""),
    "numpy": _package("numpy", "numpy", "the reference semantics", ""),
    "torch": _package("torch", "torch", "modules of PyTorch", "torch"),
    "triton": _package("triton", "triton", "kernels of torch.compile beside ours", "triton"),
    "cupy": _package("cupy", "cupy-cuda13x cupy-cuda12x cupy", "kernels that run", "cuda13"),
    "gpu": _gpu,
    "driver": _driver,
    "nvrtc": _nvrtc,
    "g++": _compiler,
    "cache": _cache,
}

__all__ = ["CHECKS", "Finding", "doctor_command"]
