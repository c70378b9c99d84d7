"""Choice of the executor that computes a run's tasks: local worker processes, or the workers of a dask cluster."""

from __future__ import annotations

from typing import Any, Final

from mirage_formal.run.preload import PRELOAD
from mirage_formal.run.settings import Settings, check_limits, environment
from mirage_formal.support.errors import ClusterError
from mirage_formal.support.resources import worker_count
from mirage_formal.workers.dispatch import Executor
from mirage_formal.workers.pool import Pool

_SCHEMES: Final = ("tcp://", "tls://", "local:")
_GIB: Final = 1 << 30


def make_executor(settings: Settings) -> Executor[Any]:
    """Return a new executor as the settings ask for; the caller closes it.

    Raises:
        SpaceError: A limit that is not positive.
        ClusterError: There is no such cluster, it has no workers, or one of them is of another version.
    """
    check_limits(settings)
    memory = None if settings.worker_memory is None else int(settings.worker_memory * _GIB)
    address = settings.cluster
    if address is None:
        return Pool(worker_count(settings.workers), PRELOAD, memory=memory)
    if not address.startswith(_SCHEMES):
        hint = "as in --cluster tcp://10.0.0.1:8786"
        raise ClusterError(f"expected one of {', '.join(_SCHEMES)}, got {address!r}", where="--cluster", hint=hint)
    if settings.workers is not None:
        what = f"expected workers or a cluster, got {settings.workers} workers and {address}"
        raise ClusterError(what, where="--cluster", hint="--cluster local:N starts N workers on this machine")
    from mirage_formal.workers.cluster import Cluster

    return Cluster(address, PRELOAD, environment=environment, memory=memory)
