"""What a search loads, and when: the process that the user starts, and the processes that compute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

#: Libraries that a default search does not use: galois and sympy are the checker's.
UNUSED = {"galois", "numba", "llvmlite", "sympy", "scipy", "distributed", "egglog", "matplotlib", "torch", "cupy"}
#: And what only computing takes, so that the user's own process does without it until it has results.
COMPUTING = {
    "numpy",
    "z3",
    "cvc5",
    "mirage_formal.run.tasks",
    "mirage_formal.kernel_build.build",
    "mirage_formal.check.equivalence",
    "mirage_formal.search.guided.guided_engine",
    "mirage_formal.prove.identity_testing.fingerprint",
}

SEARCH = """
import sys
from pathlib import Path
from mirage_formal.run.settings import Settings
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.run.executors import make_executor
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.workers.dispatch import TaskDone
from tests.run.test_start import loaded

[program] = load_programs(Path({example!r})).values()
settings = Settings(workers=1)
seen = []

def watch(progress):
    if progress.phase == "searching":
        seen.append(loaded(0))

with make_executor(settings) as executor:
    report = search_or_cover(program, settings, Path({out!r}), watch=watch, executor=executor)
    # The one worker has planned, searched, certified and proved by now, and is still there.
    worker = next(o.value for o in executor.run(loaded, [0], limit_s=600) if isinstance(o, TaskDone))
print(len(report.results), report.results[0].directory)
for names in (seen[0], loaded(0), worker):
    print(*sorted(names))
"""


def loaded(_: int) -> set[str]:
    """What the process that computes this has loaded of the above."""
    return {name for name in (*UNUSED, *COMPUTING) if name in sys.modules}


def _python(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_default_search_loads_neither_galois_nor_sympy_and_its_parent_no_engine(tmp_path: Path) -> None:
    example = REPOSITORY / "examples" / "rmsnorm.py"
    found, searching, parent, worker = _python(SEARCH.format(example=str(example), out=str(tmp_path / "run")))
    assert int(found.split()[0]) > 0
    assert set(searching.split()) == set()
    assert set(parent.split()) & (UNUSED | {"numpy", "mirage_formal.search.guided.guided_engine"}) == set()
    assert set(worker.split()) & UNUSED == set()
    # The worker has proved.
    assert {"numpy", "mirage_formal.run.tasks", "mirage_formal.prove.identity_testing.fingerprint"} <= set(
        worker.split()
    )


def test_workers_start_before_the_pipeline_is_loaded(tmp_path: Path) -> None:
    """The server that workers are forked from loads what they need while the user's process loads its own."""
    script = f"""
import sys
from mirage_formal.workers import pool
from mirage_formal.support.errors import MirageError

start = pool._start_server
def started(threads, **_):
    names = {{"mirage_formal.run.driver", "mirage_formal.partition.search_strategy"}}
    print(threads, *sorted(names & set(sys.modules)))
    start(threads)
pool._start_server = started
sys.argv = ["search", {str(tmp_path / "none.py")!r}, "--workers", "1"]
from mirage_formal.cli.app import search_command
from mirage_formal.cli.utilities import single_command
try:
    single_command(search_command)()
except MirageError as error:
    print("mistake", error.where)
"""
    first, *rest = _python(script)
    assert len(first.split()) == 1
    assert any(line.startswith("mistake") for line in rest)


def test_only_what_can_be_used_is_started() -> None:
    """A cluster has workers of its own, and a mistake is said by whoever reads the settings."""
    script = """
from mirage_formal.run.preload import start_workers
from mirage_formal.workers import pool

pool._start_server = lambda threads, **_: print("started", threads)
for workers, cluster in ((0, None), (-1, None), ("2", None), (None, "local:2"), (1, None)):
    start_workers(workers, cluster)
"""
    assert len(_python(script)) == 1


def test_a_search_command_starts_workers_before_it_is_parsed() -> None:
    script = """
from mirage_formal.run.preload import start_workers_of
from mirage_formal.workers import pool

pool.processor_count = lambda: 8
pool._start_server = lambda threads, **_: print("started", threads)
starts = ("a.py --workers 2", "--workers=4 a.py")
for given in (*starts, "a.py --workers x", "a.py --workers", "--help", "", "a.py --cluster=c"):
    start_workers_of(given.split())
"""
    assert _python(script) == ["started 4", "started 2"]


SLOW_START = """
import os
import time
from mirage_formal.workers.pool import Pool

os.environ["PYTHONPATH"] = {folder!r}
with Pool(1, ("slow_to_load",)) as pool:
    deadline = time.monotonic() + 0.3
    early = [one for one in pool.run(abs, [-1], limit_s={limit}, deadline=deadline) if one is not None]
    open({flag!r}, "w").close()  # from here on workers have loaded it
    late = [outcome.value for outcome in pool.run(abs, [-1], limit_s={limit}) if outcome is not None]
print(*early, *late)
"""


def test_a_time_limit_does_not_wait_for_what_workers_load(tmp_path: Path) -> None:
    """What workers load ends after the first call has returned: a call that waited for it would never return."""
    flag = str(tmp_path / "flag")
    turns = f"for _ in range({50 * HUNG_S}):\n    if os.path.exists({flag!r}):\n        break\n    time.sleep(0.02)\n"
    slow = f"import os, time\n{turns}"
    (tmp_path / "slow_to_load.py").write_text(slow)
    (found,) = _python(SLOW_START.format(folder=str(tmp_path), flag=flag, limit=HUNG_S))
    assert found == "1"  # of the second call alone
