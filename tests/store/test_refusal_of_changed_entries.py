"""Entries that were changed, or are about something else: refused with a reason, and made again."""

from __future__ import annotations

import random
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.cache.cache_directory import CacheWarning
from mirage_formal.partition import search_strategy
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records.store_entry import SearchEntry
from mirage_formal.run.result_cache import cache_lookup
from mirage_formal.run.result_cache.entry_checks import check_evidence
from mirage_formal.run.results.run_report import RunReport
from tests.kit.runs.tampering import files
from tests.store.entries import Case, copy_of, edit_json, several, sign, sign_run, single, using, warm

#: Edits of each kind of file of a run, and of a whole program.
EDITS, WHOLE_EDITS = 17, 5


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return warm(single(), tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return warm(several(), tmp_path_factory.mktemp("whole"))


class Again:
    """In place of the search: counts, and finds what the first call found."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        with using(case.store):
            self._found = case.call(case.store.parent / f"again-{secrets.token_hex(4)}")
        self.count = 0
        monkeypatch.setattr(search_strategy, "_search_or_cover_uncached", self)

    def __call__(self, *given: Any, **about: Any) -> RunReport | WholeReport:
        self.count += 1
        return self._found


def refused(case: Case, again: Again, out: Path) -> str:
    """That an entry is refused, once, what it should hold is made again, and is recalled then; returns the reason."""
    before = again.count
    cache_lookup._replayed.clear()
    with pytest.warns(CacheWarning) as said:
        case.call(out / "first")
    assert again.count == before + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = case.call(out / "second")
    assert again.count == before + 1
    assert found.results
    shutil.rmtree(out, ignore_errors=True)
    (text,) = [str(one.message) for one in said]
    assert "refused, and made again: " in text
    return text.partition("made again: ")[2]


def kinds(entry: Path) -> dict[str, list[Path]]:
    """The files of an entry by kind."""
    found: dict[str, list[Path]] = {}
    for path in files(entry):
        name = path.name if not path.name[0].isdigit() else "obligation.smt2"
        name = "digits.smt2" if name.startswith("digits-") else name
        found.setdefault(name, []).append(path)
    return found


#: Kinds of files of both entries; a whole program's has one more.
KINDS = {
    *("entry.json", "run.json", "search.jsonl", "summary.json", "mugraph.json", "proof.jsonl", "equivalence.json"),
    *("verification.json", "manifest.json", "exhausted.json", "obligation.smt2", "digits.smt2"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "edits", "least"), [("one", EDITS, 150), ("whole", WHOLE_EDITS, 50)])
def test_every_flipped_bit_in_every_kind_of_file_is_refused(
    name: str, edits: int, least: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case: Case = request.getfixturevalue(name)
    rng, refusals, seen = random.Random(0), 0, set[str]()
    again = Again(case, monkeypatch)
    mine = copy_of(case, tmp_path / "copy")
    with using(mine.store):
        for kind, paths in sorted(kinds(mine.entry).items()):
            names = [path.relative_to(mine.entry) for path in paths]
            for number in range(edits):
                path = mine.entry / rng.choice(names)
                data = bytearray(path.read_bytes())
                if number < edits - 3 and data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                elif number == edits - 3:
                    data = data[: len(data) // 2]
                elif number == edits - 2:
                    data += b" "
                path.write_bytes(bytes(data))
                if number == edits - 1:
                    path.unlink()
                    if kind == "entry.json":  # without it there is no entry
                        path.write_bytes(b"")
                assert refused(mine, again, tmp_path / "out")
                refusals += 1
            seen.add(kind)
    assert seen == KINDS | ({"whole.json"} if name == "whole" else set())
    assert refusals >= least


# --- entries that somebody signed again ------------------------------------------------------------------------------


def _first(entry: Path, name: str, number: int = 0) -> Path:
    return sorted((entry / "evidence" / "candidates").iterdir())[number] / name


def _swap(name: str) -> Callable[[Path], None]:
    """A file of one candidate in the place of another's."""

    def change(entry: Path) -> None:
        first, second = _first(entry, name), _first(entry, name, 1)
        data = first.read_bytes()
        assert data != second.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)

    return change


def _json(name: str, edit: Callable[[Any], None], candidate: bool = True) -> Callable[[Path], None]:
    return lambda entry: edit_json(_first(entry, name) if candidate else entry / "evidence" / name, edit)


def _proof_digits(entry: Path) -> None:
    """Another number in the proof."""
    path = _first(entry, "proof/equivalence.json")
    text = path.read_text()
    at = next(i for i in range(len(text) - 1, 0, -1) if text[i] in "2345678")
    path.write_text(f"{text[:at]}{int(text[at]) + 1}{text[at + 1 :]}")


def _conditions(value: Any) -> None:
    value["verdict"]["conditions"] = value["verdict"]["conditions"][1:] or ["none"]


def _estimates(value: Any) -> None:
    for item in value["candidates"]:
        item["estimated_us"] /= 2


def _probable(value: Any) -> None:
    log = value["fingerprint"]
    found = {
        "kind": "probable",
        "rounds": log["rounds"],
        "bound_log2": log["bound_log2"],
        "reason": log["bound_reason"],
    }
    value["verdict"] = {**found, "conditions": [], "added": []}


def _foreign(name: str) -> Callable[[Path], None]:
    def change(entry: Path) -> None:
        path = entry / "evidence" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("evil")

    return change


RESIGNED: dict[str, tuple[Callable[[Path], object], str]] = {
    "swapped proofs": (_swap("proof/equivalence.json"), "replay the proof"),
    "swapped candidates": (_swap("mugraph.json"), ""),
    "an edited proof": (_proof_digits, ""),
    "fewer conditions": (_json("verification.json", _conditions), "conditions"),
    "lower estimates": (_json("summary.json", _estimates, candidate=False), "the cost model's estimate"),
    "a proof less": (_json("verification.json", _probable), ""),
    "no proof": (lambda entry: _first(entry, "proof/equivalence.json").unlink(), ""),
    "a foreign file": (_foreign("kernel.cu"), "kernel.cu as well"),
    "a file beside a candidate": (lambda entry: _first(entry, "kernel.cu").write_text("evil"), "kernel.cu as well"),
    "a program of another name": (
        _json("run.json", lambda value: value["program"]["inputs"][0].update(name="y"), candidate=False),
        "program of the run",
    ),
}


@pytest.mark.parametrize("name", RESIGNED)
def test_signing_again_does_not_help(one: Case, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, said = RESIGNED[name]
    again, mine = Again(one, monkeypatch), copy_of(one, tmp_path)
    with using(mine.store):
        entry = mine.entry
        change(entry)
        sign_run(entry / "evidence")
        sign(entry)
        assert said in refused(mine, again, tmp_path / "out")


def test_an_entry_has_no_kernels(one: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's directory may have them; what runs here is made here."""
    again, mine = Again(one, monkeypatch), copy_of(one, tmp_path)
    with using(mine.store):
        name = sorted((mine.entry / "evidence" / "candidates").iterdir())[0].name
        _foreign(f"kernels/{name}/kernel-sm_90a.cubin")(mine.entry)
        sign(mine.entry)
        assert "expected no kernels" in refused(mine, again, tmp_path / "out")


def _key(**changed: Any) -> Callable[[SearchEntry], SearchEntry]:
    return lambda record: msgspec.structs.replace(record, key=msgspec.structs.replace(record.key, **changed))


def _identity(**changed: Any) -> Callable[[SearchEntry], SearchEntry]:
    def change(record: SearchEntry) -> SearchEntry:
        identity = msgspec.structs.replace(record.key.identity, **changed)
        return msgspec.structs.replace(record, key=msgspec.structs.replace(record.key, identity=identity))

    return change


#: Entries about something else, in the place of what is asked for.
OTHERS = {
    "version": (_key(package="0.0.9"), "another package: 0.0.9"),
    "code": (_key(code="0" * 64), "another code"),
    "bucket": (_key(bucket="kv=1..128"), "another bucket"),
    "space by name": (_key(config="attention"), "another config"),
    "kind": (_key(kind="search"), "another kind"),
    "text of the program": (_key(written="0" * 64), "another written"),
    "program": (_identity(program="0" * 64), "another program"),
    "space": (_identity(space="0" * 64), "another space"),
    "target": (_identity(target="h100"), "another target: h100"),
    "figures of the target": (_identity(target_digest="0" * 64), "another target_digest"),
    "seed": (_identity(seed=7), "another seed: 7"),
    "policy": (_identity(accept="probable"), "another accept"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_entry_of_another_key_is_refused(
    one: Case, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = OTHERS[name]
    again, mine = Again(one, monkeypatch), copy_of(one, tmp_path)
    with using(mine.store):
        sign(mine.entry, change)
        assert said in refused(mine, again, tmp_path / "out")


@pytest.mark.parametrize("kind", ["single", "whole"])
def test_the_evidence_of_another_program_is_refused(
    kind: str, one: Case, whole: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, other = (one, whole) if kind == "single" else (whole, one)
    again, mine = Again(case, monkeypatch), copy_of(case, tmp_path)
    with using(mine.store):
        entry = mine.entry
        shutil.rmtree(entry / "evidence")
        shutil.copytree(other.entry / "evidence", entry / "evidence")
        sign(entry)
        assert "evidence" in refused(mine, again, tmp_path / "out")


def test_another_format_is_refused_by_its_number(one: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again, mine = Again(one, monkeypatch), copy_of(one, tmp_path)
    with using(mine.store):
        edit_json(mine.entry / "entry.json", lambda value: value.update(format=3, more=1))
        text = "format: expected 2, got 3: another version of this package wrote it"
        assert text in refused(mine, again, tmp_path / "out")


def test_a_link_in_an_entry_is_refused(one: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again, mine = Again(one, monkeypatch), copy_of(one, tmp_path)
    with using(mine.store):
        path = _first(mine.entry, "mugraph.json")
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert "symbolic link" in refused(mine, again, tmp_path / "out")


def test_a_part_of_a_whole_that_is_not_proved_is_refused(
    whole: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof of a part's candidate, edited, with every digest above it computed anew."""
    from mirage_formal.records import decode, read_file, seal_record, sha256
    from mirage_formal.records.partition import WholeRecord

    again, mine = Again(whole, monkeypatch), copy_of(whole, tmp_path)
    with using(mine.store):
        root = mine.entry / "evidence"
        record = decode(read_file(root / "whole.json"), WholeRecord, "")
        directory = next(part.directory for part in record.best.parts if part.candidate)
        proof = root / directory / "proof" / "equivalence.json"
        value = msgspec.json.decode(proof.read_bytes())
        value["outputs"] = []
        proof.write_bytes(msgspec.json.encode(value))
        run = root / directory.partition("/candidates/")[0]
        sign_run(run)
        digests = {name: sha256(read_file(root / name)) for name in record.manifest}
        (root / "whole.json").write_bytes(seal_record(msgspec.structs.replace(record, manifest=digests)))
        sign(mine.entry)
        assert "replay the proof" in refused(mine, again, tmp_path / "out")


def test_what_is_not_changed_is_not_refused(one: Case, whole: Case, tmp_path: Path) -> None:
    """The edits' own tools change nothing by themselves."""
    for number, case in enumerate((one, whole)):
        mine = copy_of(case, tmp_path / str(number))
        with using(mine.store):
            if case is one:
                sign_run(mine.entry / "evidence")
            sign(mine.entry)
            assert check_evidence(mine.entry).why == ""
