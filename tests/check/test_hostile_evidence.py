"""Evidence that is corrupt or hostile: the checker says so on one screen, with exit code 2 and without a traceback.

Whoever forges evidence recomputes the digests too, so every forgery here is sealed again; what is left unsealed is a
plain failure of the check (exit code 1).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mirage_formal import records
from mirage_formal.check.__main__ import main as check
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.support.errors import FormatError
from tests.kit.runs.fake_engine import program

Edit = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good") / "run"
    run_search(
        program(), Settings(engine="tests.kit.runs.fake_engine:FakeEngine", config="tiny", keep=1, workers=1), root
    )
    return root


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def first(root: Path) -> Path:
    return (
        root / records.decode((root / "summary.json").read_bytes(), records.SummaryRecord, "").candidates[0].directory
    )


def seal(root: Path) -> None:
    """Recompute every digest of a run, as a forger would."""
    summary = records.decode((root / "summary.json").read_bytes(), records.SummaryRecord, "")
    manifest = dict(summary.manifest)
    for item in summary.candidates:
        place = root / item.directory
        record = records.decode((place / "manifest.json").read_bytes(), records.ManifestRecord, "")
        files = {name: records.sha256((place / name).read_bytes()) for name in record.files}
        (place / "manifest.json").write_bytes(records.seal_record(msgspec.structs.replace(record, files=files)))
        for name in (*files, "manifest.json"):
            manifest[f"{item.directory}/{name}"] = records.sha256((place / name).read_bytes())
    (root / "summary.json").write_bytes(records.seal_record(msgspec.structs.replace(summary, manifest=manifest)))


def said(path: Path, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert check([str(path)]) == code
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert "hint: " in errors
    assert len(errors) < 2000
    return errors


def test_good_evidence_is_accepted(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([str(good)]) == 0
    assert check([str(first(good))]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(lambda d: d.replace(b"[8, 8]", b"[8, 9999999999999]", 1), ("shape", "2147483648"), id="huge"),
        pytest.param(lambda d: d.replace(b'"operands": [', b'"operands": [77, ', 1), ("operands",), id="cycle"),
        pytest.param(
            lambda d: d.replace(b'"version": 1', b'"version": 2', 1), ("version", "expected 1", "2"), id="version"
        ),
        pytest.param(lambda d: d.replace(b"mugraph", b"pickle", 1), ("schema",), id="schema"),
        pytest.param(lambda d: d[: len(d) // 2], ("JSON",), id="half"),
        pytest.param(lambda d: b"[" * 200_000, ("nesting",), id="deep"),
        pytest.param(lambda d: d + b" " * (9 << 20), ("at most",), id="large"),
        pytest.param(lambda d: b"\xff\xfe" + d, ("expected",), id="no text"),
    ],
)
@pytest.mark.parametrize("part", [False, True], ids=["run", "candidate"])
def test_hostile_graphs(
    copy: Path, capsys: pytest.CaptureFixture[str], edit: Edit, words: tuple[str, ...], part: bool
) -> None:
    path = first(copy) / "mugraph.json"
    changed = edit(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    seal(copy)
    errors = said(first(copy) if part else copy, 2, capsys)
    assert "mugraph.json" in errors
    assert all(word in errors for word in words)


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", ["../../../../../etc/passwd", "/etc/passwd", "proof/../../../x"])
def test_paths_that_leave_the_directory(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = first(copy) / "manifest.json"
    record = records.decode(path.read_bytes(), records.ManifestRecord, "")
    forged = msgspec.structs.replace(record, files={**record.files, name: "0" * 64})
    path.write_bytes(records.seal_record(forged))
    assert "inside the directory" in said(first(copy), 2, capsys)


def test_obligations_outside_the_directory(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = first(copy) / "proof.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"proof/001.smt2"', b'"../proof/001.smt2"'))
    seal(copy)
    assert check([str(first(copy))]) in (1, 2)
    errors = capsys.readouterr().err
    assert "../proof/001.smt2" in errors
    assert "Traceback" not in errors


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", ["summary.json", "run.json", "search.jsonl", "manifest.json", "proof.jsonl"])
def test_what_an_earlier_version_wrote_says_so(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    root = copy if name in ("summary.json", "run.json", "search.jsonl") else first(copy)
    data = (root / name).read_bytes()
    older = data.replace(b'"schema_version": 3', b'"schema_version": 1').replace(
        b'"schema_version":3', b'"schema_version":1'
    )
    assert older != data
    (root / name).write_bytes(older)
    errors = said(root, 2, capsys)
    assert name in errors
    assert "schema_version: expected 3, got 1: another version of this package wrote it" in errors


def test_a_run_of_an_earlier_version_is_not_resumed(copy: Path) -> None:
    path = copy / "run.json"
    older = path.read_bytes().replace(b'"schema_version": 3', b'"schema_version": 1').replace(b'"accept"', b'"agree"')
    path.write_bytes(older)
    settings = Settings(engine="tests.kit.runs.fake_engine:FakeEngine", config="tiny", keep=1, workers=1, resume=True)
    with pytest.raises(FormatError, match="schema_version: expected 3, got 1"):
        run_search(program(), settings, copy)


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(lambda d: b"[" * 200_000, ("nested",), id="deep"),
        pytest.param(lambda d: d[: len(d) // 2], ("JSON",), id="half"),
        pytest.param(lambda d: d + b" " * (2 << 20), ("at most 1048576 bytes",), id="large"),
        pytest.param(lambda d: b"\xff\xfe" + d, ("expected",), id="no text"),
        pytest.param(lambda d: d.replace(b'"digits":[', b'"digits":[9999999999999,', 1), ("1099511627776",), id="huge"),
        pytest.param(lambda d: d.replace(b'"lemmas":[', b'"lemmas":[1.5,', 1), ("integers",), id="float"),
        pytest.param(lambda d: b'{"steps":[],' + d[1:], ("distinct keys",), id="key twice"),
    ],
)
def test_hostile_proofs(copy: Path, capsys: pytest.CaptureFixture[str], edit: Edit, words: tuple[str, ...]) -> None:
    path = first(copy) / "proof" / "equivalence.json"
    changed = edit(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    seal(copy)
    errors = said(first(copy), 1, capsys)
    assert "equivalence.json" in errors
    assert "step: replay the proof" in errors
    assert all(word in errors for word in words)


def test_links_are_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = first(copy) / "mugraph.json"
    elsewhere = copy.parent / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert "symbolic link" in said(first(copy), 2, capsys)


def test_a_changed_byte_fails_the_check(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = first(copy) / "mugraph.json"
    path.write_bytes(path.read_bytes().replace(b"8", b"4", 1))
    errors = said(copy, 1, capsys)
    assert "mugraph.json" in errors
    assert "sha256" in errors


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("missing", ["mugraph.json", "proof.jsonl", "verification.json"])
def test_missing_files(copy: Path, capsys: pytest.CaptureFixture[str], missing: str) -> None:
    (first(copy) / missing).unlink()
    assert check([str(copy)]) in (1, 2)
    errors = capsys.readouterr().err
    assert missing in errors
    assert "Traceback" not in errors


def test_no_run_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such directory" in said(tmp_path / "nothing", 2, capsys)
    assert "expected a run" in said(tmp_path, 2, capsys)


def test_a_run_that_has_not_finished(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "summary.json").unlink()
    assert "not finished" in said(copy, 2, capsys)
