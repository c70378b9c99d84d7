"""Resources of the machine and the package: processors; data directories, beside the package or in a checkout."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def data_dir(name: str) -> Path:
    """Return the directory of the data called ``name``: "axioms", "docs", "gpu" or "search".

    Plain paths, because solvers and compilers need real files.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data" / name
    # A checkout's own directories win over a stale copy that an editable install may have left.
    checkout = package.parent / name
    return checkout if checkout.is_dir() and (package.parent / "pyproject.toml").is_file() else installed


def processor_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(asked: int | None) -> int:
    """Return the number of worker processes: what was asked for, or one for each usable processor."""
    return asked or processor_count()


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of this package needs.

    This package is on no index, so the command names the packages themselves.

    Args:
        extra: Name of the extra, as in pyproject.toml; "" for what every user needs.
    """
    from importlib import metadata  # loads much, and few calls need it

    wanted = f'extra == "{extra}"' if extra else ""
    try:
        every = [line.partition(";") for line in metadata.requires("mirage_formal") or ()]
    except metadata.PackageNotFoundError:  # sources that were not installed
        return f"pip install -e '.[{extra}]'" if extra else "pip install -e ."
    needed = [name.strip() for name, _, when in every if when.strip().replace("'", '"') == wanted]
    return "pip install " + " ".join(f"'{name}'" for name in needed)
