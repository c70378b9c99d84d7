"""``mirage-formal tools store``, and entries that are handed on."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.cli import app as cli
from mirage_formal.run.result_cache import keys
from mirage_formal.store.entry import read_record
from mirage_formal.store.location import StoreDirectory
from tests.store.entries import Case, copy_of, edit_json, sign, single, using, warm


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return warm(single(), tmp_path_factory.mktemp("single"))


class Commands:
    """The command line, with the store of a case."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = patch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Exit code, and what was printed."""
        self._patch.setattr(sys, "argv", ["mirage-formal", "tools", "store", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        assert "Traceback" not in said.err
        return code, said.out + said.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, capsys)


def test_an_entry_is_listed_shown_and_verified(one: Case, command: Commands) -> None:
    with using(one.store):
        key, record = one.entry.name, read_record(one.entry)
        code, text = command("list")
        assert (code, text.count("\n")) == (0, 2)
        assert f"{key[:12]}  answer  h200  mlp  {record.key.identity.program[:12]}" in text
        rows = json.loads(command("list", "--json")[1])["result"]
        assert rows["store"] == str(one.store)
        assert rows["entries"][0]["record"] == msgspec.to_builtins(record)
        code, text = command("show", key[:6])
        assert code == 0
        first = mf.load(one.entry)[0]
        assert f"{first.digest[:12]}  equivalent, {len(first.verdict.conditions)} conditions" in text  # type: ignore[union-attr]
        shown = json.loads(command("show", key, "--json")[1])["result"]
        assert [row["digest"] for row in shown["established"]] == [result.digest for result in mf.load(one.entry)]
        assert command("verify") == (0, f"{text.splitlines()[0]}\n1 of 1 entries hold\n")


def test_what_does_not_hold_is_said(one: Case, command: Commands, tmp_path: Path) -> None:
    mine = copy_of(one, tmp_path)
    with using(mine.store):
        path = next(mine.entry.rglob("equivalence.json"))
        path.write_bytes(b"{}")
        code, text = command("verify")
        assert code == 1
        assert "expected the file that was written" in text
        assert "0 of 1 entries hold" in text
        code, text = command("export", mine.entry.name, "--out", str(tmp_path / "a.zip"))
        assert code == 2
        assert "error: " in text
        assert not (tmp_path / "a.zip").exists()
        assert command("show", "zzz")[0] == 2
        moved = mine.entry.rename(mine.entry.with_name("0" * 32))
        assert "got the one of" in command("show", str(moved))[1] or command("show", str(moved))[0] == 1


def test_an_entry_is_handed_on(one: Case, command: Commands, tmp_path: Path) -> None:
    file = tmp_path / "entry.zip"
    with using(one.store):
        assert command("export", one.entry.name, "--out", str(file))[0] == 0
        assert command("export", one.entry.name, "--out", str(file))[0] == 2  # nothing is overwritten
    elsewhere = Case(one.program, one.settings, tmp_path / "out", tmp_path / "store")
    with using(elsewhere.store):
        code, text = command("import", str(file))
        assert code == 0, text
        assert "every proof replayed" in text
        assert elsewhere.entry.name == one.entry.name
        found = elsewhere.call(elsewhere.out)
        assert [result.digest for result in found.results] == [result.digest for result in mf.load(one.out)]
        assert json.loads((elsewhere.out / "summary.json").read_text())["recalled"] is True
        assert command("import", str(one.entry))[0] == 0  # the directory of an entry as well


def test_what_is_handed_on_is_refused_like_any_other(one: Case, command: Commands, tmp_path: Path) -> None:
    mine = copy_of(one, tmp_path / "mine")
    with using(mine.store):
        candidates = sorted((mine.entry / "evidence" / "candidates").iterdir())
        (candidates[0] / "proof" / "equivalence.json").write_bytes(
            (candidates[1] / "proof" / "equivalence.json").read_bytes()
        )
        sign(mine.entry)
    with using(tmp_path / "store"):
        code, text = command("import", str(mine.entry))
        assert code == 2
        assert "digest of the file" in text
        assert StoreDirectory().entries() == []
        for name, data in (("noise.zip", b"noise"), ("empty.zip", b"PK\x05\x06" + bytes(18))):
            (tmp_path / name).write_bytes(data)
            assert command("import", str(tmp_path / name))[0] == 2
        assert command("import", str(tmp_path / "none.zip"))[0] == 2
        assert StoreDirectory().entries() == []


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil"])
def test_an_archive_writes_nothing_outside(one: Case, command: Commands, tmp_path: Path, name: str) -> None:
    file = tmp_path / "evil.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("entry.json", (one.entry / "entry.json").read_bytes())
        archive.writestr(zipfile.ZipInfo(name), b"evil")
    with using(tmp_path / "store"):
        assert command("import", str(file))[0] == 2
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name and path != file]


def test_an_entry_of_other_code_is_refused_or_migrated(
    one: Case, command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with using(tmp_path / "store"):
        monkeypatch.setattr(keys, "installed_code", lambda: ("0.2.0", "a" * 64))
        monkeypatch.setattr("mirage_formal.run.result_cache.entry_checks.installed_code", lambda: ("0.2.0", "a" * 64))
        code, text = command("import", str(one.entry))
        assert code == 2
        assert f"one of version {mf.__version__}, not 0.2.0" in text
        assert "--migrate" in text
        assert command("import", "--migrate", str(one.entry))[0] == 0
        case = Case(one.program, one.settings, tmp_path / "out", tmp_path / "store")
        assert read_record(case.entry).key.package == "0.2.0"
        assert case.call(case.out).results
        assert json.loads((case.out / "summary.json").read_text())["recalled"] is True


def test_entries_are_removed(one: Case, command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = copy_of(one, tmp_path)
    (mine.store / "notes.txt").write_text("mine")
    with using(mine.store):
        assert command("clear", "--unusable")[1] == "removed 0 of 1 entries\n"
        assert command("clear", str(one.entry))[0] == 2  # it is of another store
        assert one.entry.is_dir()
        edit_json(mine.entry / "entry.json", lambda value: value.update(format=2))
        assert command("clear", "--unusable")[1] == "removed 1 of 1 entries\n"
        assert StoreDirectory().entries() == []
        assert sorted(os.listdir(mine.store)) == ["entries", "locks", "notes.txt", "parts"]


def test_an_entry_that_the_clock_cut_short_counts_for_no_longer_search(one: Case, tmp_path: Path) -> None:
    from mirage_formal.run.result_cache.keys import entry_key
    from mirage_formal.run.result_cache.recall import find_entry
    from mirage_formal.run.settings import make_job

    mine = copy_of(one, tmp_path)
    job = make_job(one.program, one.settings)
    with using(mine.store):
        sign(mine.entry, lambda record: msgspec.structs.replace(record, status="time-limit", limit_s=10.0))
        key: Any = entry_key("answer", job, msgspec.structs.replace(one.settings, time_limit=11.0))
        assert [find_entry(key, job, limit) is not None for limit in (5.0, 11.0, 12.0, None)] == [
            True,
            True,
            False,
            False,
        ]
