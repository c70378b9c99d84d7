"""Command ``python -m mirage_formal.reproduce``; see mirage_formal.cli.reproduce."""

from __future__ import annotations

from typing import NoReturn

from mirage_formal.cli.utilities import run_command


def main() -> NoReturn:
    """Run the command line of ``mirage_formal.reproduce``."""
    from mirage_formal.cli.reproduce import app

    run_command(app)


if __name__ == "__main__":
    main()
