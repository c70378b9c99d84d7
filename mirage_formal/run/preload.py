"""Early start of the server process that workers are forked from; light to import.

Workers are forked from a server process, which loads what their tasks need. It takes as long as loading what the user's
own process needs; started first, it does so meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

from mirage_formal.workers.pool import Pool, default_workers

#: Loaded once by the server process that workers are forked from.
PRELOAD: Final = ("mirage_formal.run.tasks", "mirage_formal.search.guided.engine")


def start_workers(workers: Any, cluster: Any) -> None:
    """Start the server that this machine's workers are forked from, for the numbers that a user has given.

    What is wrong with them is said later, by ``settings.check_limits``.
    """
    if cluster is None and (workers is None or (isinstance(workers, int) and workers > 0)):
        Pool(workers or default_workers(), PRELOAD).start()
