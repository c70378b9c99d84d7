"""Fork of the server of workers, in place of a new interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

SCRIPT = """
import os, signal, sys, threading
{before}
from multiprocessing.forkserver import _forkserver
from multiprocessing.resource_tracker import _resource_tracker
from mirage_formal.run.preload import start_workers_of
from mirage_formal.workers.dispatch import TaskDone
from mirage_formal.workers.pool import Pool
from tests.workers.test_forked_server import state

def handle(*_): print("a handler of the process that forks")
signal.signal(signal.SIGTERM, handle)
secret = os.open("pyproject.toml", os.O_RDONLY)
start_workers_of(["a.py", "--workers", "1"])

def line(pid): return open(f"/proc/{{pid}}/cmdline", "rb").read()
print(line(_forkserver._forkserver_pid) == line(os.getpid()), line(_resource_tracker._pid) == line(os.getpid()))
with Pool(1) as pool:
    [found] = [one.value for one in pool.run(state, [secret], limit_s={limit}) if isinstance(one, TaskDone)]
print(*found)
"""


def state(descriptor: int) -> tuple[bool, bool, str, bool]:
    """Return whether a worker has its parent's file and the default handler, its threads, and whether it collects."""
    import gc
    import os
    import signal

    try:
        inherited = os.readlink(f"/proc/self/fd/{descriptor}").endswith("pyproject.toml")
    except OSError:
        inherited = False
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return inherited, default, os.environ["OPENBLAS_NUM_THREADS"], gc.isenabled()


def _output(before: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before, limit=HUNG_S)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"PATH": "", "PYTHONPATH": str(REPOSITORY)},
        timeout=HUNG_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
@pytest.mark.parametrize(
    ("before", "forked"),
    [
        ("", True),
        ("import numpy", False),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", False),
    ],
)
def test_the_server_is_forked_where_it_may_be_and_workers_are_as_of_a_new_interpreter(
    before: str, forked: bool
) -> None:
    how, found = _output(before)
    assert how.split() == [str(forked)] * 2
    inherited, default, threads, collects = found.split()
    assert (inherited, default, collects) == ("False", "True", "True")
    assert int(threads) >= 1
