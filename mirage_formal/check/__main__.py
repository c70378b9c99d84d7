"""Command ``python -m mirage_formal.check PATH``; see mirage_formal.revalidate.check_command.

This is the only module of the package that imports from outside it: the command also regenerates kernels, which the
checker cannot do.
"""

from __future__ import annotations

from mirage_formal.revalidate.check_command import main
from mirage_formal.support.guard import run_main

__all__ = ["main"]

if __name__ == "__main__":
    run_main(main)
