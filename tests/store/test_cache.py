"""The cache that everything kept is in: entries are bound to their keys, whole, and bounded."""

from __future__ import annotations

import multiprocessing
import os
import re
from pathlib import Path

import pytest

from mirage_formal.cache import cache_directory
from mirage_formal.cache.cache_directory import Cache, CacheWarning
from mirage_formal.records.store_entry import CacheEntry
from mirage_formal.support.errors import FormatError, MirageError


class Numbers(CacheEntry[str, int], frozen=True, kw_only=True):
    """Entry of a number."""


FILES = {"text": b"one", "below/text": b"two"}


@pytest.fixture
def numbers(tmp_path: Path) -> Cache[str, int]:
    return Cache("numbers", Numbers, tmp_path)


def test_what_is_put_is_got_and_replaced(numbers: Cache[str, int]) -> None:
    assert numbers.get("a") is None
    path = numbers.put("a", 1, FILES)
    assert (numbers.get("a"), numbers.get("b"), numbers.entries()) == (1, None, [path])
    assert dict(numbers.read(path).files) == FILES
    assert numbers.put("a", 2) == path
    assert numbers.get("a") == 2
    assert sorted(one.name for one in path.iterdir()) == ["entry.json"]
    assert list((numbers.root / "parts").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: (path / "text").write_bytes(b"One"), "text: expected the file that was written, got another"),
        (lambda path: (path / "more").write_bytes(b""), "expected the 2 files that are listed, got more"),
        (lambda path: (path / "text").unlink(), "expected the 2 files that are listed, got no text"),
        (lambda path: (path / "entry.json").write_bytes(b"{}"), "format: expected 2, got None"),
        (lambda path: (path / "entry.json").write_bytes(b""), "entry.json: "),
        (lambda path: edit(path, b'"value": 1', b'"value": 2'), "expected the seal"),
        (lambda path: edit(path, b'"format": 2', b'"format": 9'), "format: expected 2, got 9"),
    ],
)
def test_what_was_changed_is_refused_once(numbers: Cache[str, int], change: object, said: str) -> None:
    assert callable(change)
    path = numbers.put("a", 1, FILES)
    change(path)
    with pytest.raises(MirageError, match=re.escape(said)):
        numbers.read(path)
    with pytest.warns(CacheWarning, match=rf"{path}: refused, and made again: .*{re.escape(said)}"):
        assert numbers.get("a") is None
    assert numbers.get("a") is None
    assert numbers.entries() == []


def edit(path: Path, old: bytes, new: bytes) -> None:
    text = (path / "entry.json").read_bytes()
    assert old in text
    (path / "entry.json").write_bytes(text.replace(old, new))


def test_entries_of_two_keys_or_kinds_do_not_take_each_others_place(numbers: Cache[str, int]) -> None:
    first, second = (numbers.put(key, value) for key, value in (("a", 1), ("b", 2)))
    first.rename(numbers.root / "aside")
    second.rename(first)
    with pytest.warns(CacheWarning, match="expected an answer to what is asked, got another key: b, not a"):
        assert numbers.get("a") is None
    other = Cache("others", Numbers, numbers.root)
    path = other.path("a")
    path.parent.mkdir()
    (numbers.root / "aside").rename(path)
    with pytest.raises(FormatError, match="kind: expected others, got numbers"):
        other.read(path)


def test_the_least_recently_used_entries_make_room(numbers: Cache[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {key: numbers.put(key, 1, {"data": bytes(10_000)}) for key in "abc"}
    for number, path in enumerate(paths.values()):
        os.utime(path / "entry.json", (number, number))
    assert numbers.get("a") == 1  # it was used
    (numbers.root / "numbers" / "notes.txt").write_text("mine")
    monkeypatch.setattr(cache_directory, "MOST_BYTES", 25_000)
    numbers.put("d", 1, {"data": bytes(1_000)})
    assert [key for key in "abcd" if numbers.path(key).is_dir()] == ["a", "c", "d"]
    assert (numbers.root / "numbers" / "notes.txt").read_text() == "mine"


def write_and_read(root: Path, seed: int) -> None:
    numbers = Cache("numbers", Numbers, root)
    for number in range(100):
        key = str((seed + number) % 3)
        assert numbers.get(key) in (None, int(key))
        numbers.put(key, int(key))


@pytest.mark.filterwarnings("error")
def test_several_processes_write_and_read_the_same_entries(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_and_read, args=(tmp_path, seed)) for seed in range(4)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    assert [one.exitcode for one in processes] == [0] * 4
    assert len(Cache("numbers", Numbers, tmp_path).entries()) == 3
