"""A store that is prepared where there is time, and carried to where there is a GPU.

python -m benchmarks.torch_store --migrate DIR     take entries of other code over, where all of it holds
python -m benchmarks.torch_store --pack DIR FILE   its answers as one file (.tar.xz); parts of searches stay behind

Options:
  --migrate DIR
  --pack DIR FILE
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from benchmarks.gpu_jobs import Turn, everything_takes, short
from benchmarks.harness import options


@contextmanager
def store_in(place: Path) -> Iterator[None]:
    """The store, in a directory."""
    before = os.environ.get("MIRAGE_FORMAL_STORE"), os.environ.pop("MIRAGE_FORMAL_NO_CACHE", None)
    os.environ["MIRAGE_FORMAL_STORE"] = str(place.resolve())
    try:
        yield
    finally:
        for name, value in zip(("MIRAGE_FORMAL_STORE", "MIRAGE_FORMAL_NO_CACHE"), before, strict=True):
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def migrated(place: Path) -> tuple[int, int]:
    """Take entries of other code as this code's, where all proofs and estimates hold; how many, and of how many."""
    from mirage_formal.cache.search_store import SearchCache
    from mirage_formal.run.result_cache.entry_checks import check_record, import_entry
    from mirage_formal.support.errors import MirageError

    store, done, others = SearchCache(place), 0, 0
    for path in store.entries():
        if not check_record(path).why:
            continue
        others += 1
        try:
            import_entry(store, path, migrate=True)
            done += 1
        except MirageError as error:
            print(f"  {path.name[:12]}: {error.what}", flush=True)
        store.drop(path)
    return done, others


def nothing_is_searched() -> None:
    """What the store has not stays with torch, for the rest of this process: time on a GPU is not for searches."""
    from mirage_formal.support.errors import MirageError
    from mirage_formal.torch.modules import region_search

    def refused(*_: object) -> None:
        raise MirageError("the store has no search of it")

    assert "search_into_store" in vars(region_search)
    vars(region_search)["search_into_store"] = refused


def prepare(place: Path, cases: Iterable[tuple[str, Callable[[], str]]]) -> None:
    """Let cases search what a store lacks; what it has of earlier code is taken over if it holds.

    Args:
        place: The store.
        cases: Names, and what searches and says what became of it.
    """
    import torch

    from mirage_formal.torch.modules import backend

    place.mkdir(parents=True, exist_ok=True)
    with store_in(place), torch.no_grad():
        print("{} of {} entries of other code taken over".format(*migrated(place)), flush=True)
        for name, search in cases:
            torch._dynamo.reset()
            backend.REPORTS.clear()
            begin = time.monotonic()
            try:
                said = search()
            except Exception as error:  # the next case is another matter
                said = short(error)
            print(f"{name}: {said or 'no region'} [{time.monotonic() - begin:.1f} s]", flush=True)


@cache
def child_turn(lock: str, device: str) -> Turn:
    """Make a child one that searches nothing on a GPU, and holds a file's lock whenever it times something."""
    import torch

    torch.set_grad_enabled(False)
    turn = Turn(Path(lock))
    if device != "cpu":
        nothing_is_searched()
    everything_takes(turn)
    return turn


def packed(place: Path, file: Path) -> int:
    """Write the answers of a store as one file; how many. What only a search would ask for is left out."""
    from mirage_formal.cache.search_store import SearchCache

    count = 0
    with tarfile.open(file, "w:xz", preset=3) as archive:
        for path in SearchCache(place).entries():
            if SearchCache().read_record(path).key.kind == "answer":
                archive.add(path, str(path.relative_to(place)))
                count += 1
    return count


def unpacked(store: Path) -> Path:
    """A store's directory; of a file, that of what was in it."""
    if store.is_dir() or not store.is_file():
        return store.resolve()
    place = Path(tempfile.mkdtemp(prefix="mirage_formal-store-"))
    with tarfile.open(store) as archive:
        archive.extractall(place, filter="data")
    return place


def main() -> int:
    """The command line."""
    given = options(__doc__)
    if given.migrate is not None:
        print("{} of {} entries of other code taken over".format(*migrated(given.migrate)))
    if given.pack is not None:
        print(f"{packed(*given.pack)} answers, {given.pack[1].stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
