"""Main program of ``python -m mirage_formal.search``."""

from __future__ import annotations

import sys
from typing import NoReturn

from mirage_formal.cli.search.plain_arguments import SearchArguments, read_plain_arguments
from mirage_formal.support.guard import run_main


def search_main() -> NoReturn:
    """Run the search command on the arguments of the process."""
    run_main(_run)


def _run() -> int:
    given = read_plain_arguments(sys.argv[1:])
    if given is None:
        from mirage_formal.cli.app import search_command
        from mirage_formal.cli.utilities import invoke_command, single_command

        return invoke_command(single_command(search_command), sys.argv[1:], "search")
    return _search(given)


def _search(given: SearchArguments) -> int:
    from mirage_formal.cli.search.search_files import check_program, print_answer, search_files
    from mirage_formal.support.errors import MirageError
    from mirage_formal.support.guard import print_mistake

    try:
        check_program(given.files, given.program)
        return search_files(given.files, given.program, (given.out, given.progress), given.settings, as_json=given.json)
    except MirageError as error:
        if given.json:
            print_answer(2, None, error)
        print_mistake(error)
        return 2
