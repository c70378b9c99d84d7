"""Command ``python -m mirage_formal.emulate RUN_DIR``; see mirage_formal.emulate.emulator_command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mirage_formal.support.guard import run_main


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``emulate`` command line and return its exit code."""
    from mirage_formal.cli.kernel_commands import emulate_main

    return emulate_main(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    run_main(main)
