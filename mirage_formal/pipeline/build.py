"""``python -m mirage_formal.pipeline.build RUN_DIR``: the kernels of a run's best candidates, for mirage_formal.gpu.

Exit codes: 0 every run has kernels, 1 one has none, 2 a mistake in what was given, and those of ``guard``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mirage_formal.errors import MirageError
from mirage_formal.guard import guarded
from mirage_formal.pipeline.kernels import ARCHS, COUNT, build_run
from mirage_formal.text import plain


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mirage_formal.pipeline.build", description="Write the kernels of a run."
    )
    parser.add_argument("run", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--count", type=int, default=COUNT, help=f"candidates that get kernels [default: {COUNT}]")
    parser.add_argument("--arch", action="append", metavar="ARCH", help=f"repeatable [default: {', '.join(ARCHS)}]")
    parser.add_argument("--force", action="store_true", help="also replace kernels that have results of a device")
    given = parser.parse_args(arguments)
    missing = 0
    for root in given.run:
        try:
            tried = build_run(root, given.count, given.arch or ARCHS, force=given.force)
        except MirageError as error:
            print(error, file=sys.stderr)
            return 2
        for name, outcome in tried:
            print(plain(f"{root}: {name}: {outcome}", 4000))
        missing += not any(outcome.startswith("built") for _, outcome in tried)
    return 1 if missing else 0


if __name__ == "__main__":
    guarded(main)
