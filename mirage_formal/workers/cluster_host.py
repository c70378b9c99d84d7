"""A dask cluster on this machine, which lives until whoever started it closes its standard input or is gone.

It is a process of its own so that its workers do not import the user's main module once more, and so that Ctrl-C
reaches only the search: ``python -m mirage_formal.workers.cluster_host WORKERS`` prints the address.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from tempfile import TemporaryDirectory
from typing import Any, Final

#: Seconds that dask is given to close the cluster. Nobody waits for this process by then: it must not stay for ever.
_CLOSE_S: Final = 30.0


def main() -> None:
    """Start so many workers of one thread each, print the scheduler's address, and wait for the end of the input."""
    import distributed

    make: Any = distributed.LocalCluster  # its signature is not annotated
    with (
        TemporaryDirectory(prefix="mirage_formal_") as scratch,
        make(
            n_workers=int(sys.argv[1]),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            local_directory=scratch,
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):
        print(cluster.scheduler_address, flush=True)
        sys.stdin.buffer.read()
        late = threading.Timer(_CLOSE_S, os._exit, (1,))
        late.daemon = True
        late.start()  # its workers end when this process does


if __name__ == "__main__":
    main()
