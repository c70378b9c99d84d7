"""Several processes and one store: nothing is lost, and nothing is made twice."""

from __future__ import annotations

import contextvars
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirage_formal.cache.lock import lock_directory
from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH, SearchCache
from mirage_formal.run.settings import make_job
from mirage_formal.support.errors import RunError
from tests.kit.paths import REPOSITORY
from tests.store.entries import Case, several, single, using, warm

PROCESSES = 8

#: Forks processes that all ask for the same two answers at once; the search is replaced by one that takes a while,
#: leaves a line, and finds what an earlier call has found.
FILL = """
import multiprocessing, os, sys, time
from pathlib import Path
from mirage_formal.partition import search_strategy
from mirage_formal.run.driver import write_stored_run as _
from mirage_formal.partition.stored_covers import write_stored_answer
from mirage_formal.run.result_cache.cache_lookup import claim_entry
from mirage_formal.cache.lock import lock_directory
from mirage_formal.support.errors import RunError
from mirage_formal.run.settings import make_job
from tests.store.entries import several, single

root, warmed = Path(sys.argv[1]), sys.argv[2]

def searched(program, settings, out, **about):
    with open(root / "made.txt", "a") as file:
        file.write(f"{len(program.ops)}\\n")
    time.sleep(0.3)
    cold = os.environ["MIRAGE_FORMAL_STORE"]
    os.environ["MIRAGE_FORMAL_STORE"] = warmed
    job = make_job(program, settings)
    with claim_entry("answer", job, settings) as claim:
        found = write_stored_answer(claim.found, job, settings, out, **about)
    os.environ["MIRAGE_FORMAL_STORE"] = cold
    return found

def fill(number, barrier):
    barrier.wait()
    for name, made in (("single", single), ("several", several)):
        found = search_strategy.search_or_cover(*made(), root / f"{name}-{number}")
        assert found.results and found.results[0].directory.is_dir()

search_strategy._search_or_cover_uncached = searched
context = multiprocessing.get_context("fork")
barrier = context.Barrier(int(sys.argv[3]))
processes = [context.Process(target=fill, args=(n, barrier)) for n in range(int(sys.argv[3]))]
for one in processes:
    one.start()
for one in processes:
    one.join()
print([one.exitcode for one in processes])
"""


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("warm")
    case = warm(single(), root)
    second = Case(*several(), root / "second", case.store)
    with using(case.store):
        second.call(second.out)
    return case.store


def test_eight_processes_fill_one_store(tmp_path: Path, warmed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), STORE_VARIABLE: str(tmp_path / "store")}
    environment.pop(SWITCH, None)
    command = [sys.executable, "-c", FILL, str(tmp_path), str(warmed), str(PROCESSES)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY)
    assert done.stdout.strip() == str([0] * PROCESSES), done.stderr
    made = (tmp_path / "made.txt").read_text().split()
    assert len(made) == len(set(made)) == 2, done.stderr
    place = SearchCache(tmp_path / "store")
    assert len(place.entries()) == 2
    assert list((place.root / "parts").iterdir()) == []
    with using(place.root):
        for made_by in (single, several):
            program, settings = made_by()
            assert Case(program, settings, tmp_path, place.root).call(tmp_path / made_by.__name__).results


def test_whoever_waits_does_not_wait_longer_than_its_time(tmp_path: Path) -> None:
    from mirage_formal.run.result_cache.keys import entry_key

    program, settings = single()
    with using(tmp_path / "store"):
        key = entry_key("answer", make_job(program, settings), settings)
        assert key is not None
        path = SearchCache().path(key)
        with lock_directory(path, None), lock_directory(path):  # whoever makes it already may do so
            begin = time.monotonic()
            with pytest.raises(RunError, match=f"so does process {os.getpid()}"):
                contextvars.Context().run(lambda: lock_directory(path, 0.1).__enter__())
            assert time.monotonic() - begin >= 0.1
        with lock_directory(path):
            pass
