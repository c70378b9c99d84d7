"""A local dask cluster as a separate process, which lives until its parent closes its standard input or ends.

As a separate process its workers do not import the user's main module once more, and Ctrl-C reaches only the search.
``python -m mirage_formal.workers.cluster_host WORKERS`` prints the address.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from tempfile import TemporaryDirectory
from typing import Any, Final

#: Seconds for dask to close the cluster. No one waits for this process any more, so it must end by itself.
_CLOSE_S: Final = 30.0


def main() -> None:
    """Start a dask cluster of single-threaded workers, print the scheduler's address, and wait for the end of input."""
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
