"""Command ``python -m mirage_formal.kernel_build RUN_DIR``, which builds the kernels of a run's best candidates."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mirage_formal.support.guard import run_main


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``build`` command line and return its exit code."""
    from mirage_formal.cli.kernel_commands import build_main

    return build_main(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    run_main(main)
