"""Early start of the fork server that workers are forked from; cheap to import.

The server process loads the modules that tasks need. This takes about as long as the parent's own imports, so an early
start lets both load at the same time. A command that may fork the server first loads what both of them need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mirage_formal.support.resources import worker_count
from mirage_formal.workers.pool import Pool

#: Modules that the fork server of the workers loads once.
PRELOAD: Final = ("mirage_formal.run.tasks", "mirage_formal.search.guided.guided_engine", "mirage_formal.workers.pool")


def start_workers(workers: Any, cluster: Any, *, fork: bool = False) -> None:
    """Start the fork server of this machine's workers, for the option values that the user gave.

    Invalid values start no server; ``settings.check_limits`` reports them later.

    Args:
        workers: Number of workers; None is one for each processor.
        cluster: Address of a cluster, which has workers of its own.
        fork: Whether the server may be forked from this process; see ``Pool.start``.
    """
    if cluster is None and (workers is None or (isinstance(workers, int) and workers > 0)):
        Pool(worker_count(workers), PRELOAD).start(fork=fork)


def start_workers_of(arguments: Sequence[str]) -> None:
    """Fork the fork server for the arguments of a search command, before they are parsed and more is loaded.

    Arguments that start no search, or that cannot be read here, start no server; whoever parses them does.
    """
    workers: int | None = None
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("--cluster", "--help"):
            return
        if name == "--workers":
            number = value or "".join(arguments[place + 1 : place + 2])
            if not number.isdecimal():
                return
            workers = int(number)
    if arguments:
        _load_shared()
        start_workers(workers, None, fork=True)


def _load_shared() -> None:
    """Load the modules that both this process and the workers need, so that the server is forked with them."""
    import mirage_formal.codegen.cost
    import mirage_formal.run.task_entry_points  # noqa: F401
