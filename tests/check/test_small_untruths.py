"""Small untruths in evidence that is signed again: refused where check can tell, else listed as said by the author."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check import check_steps
from mirage_formal.check.__main__ import main
from mirage_formal.check.candidate import check_candidate
from mirage_formal.check.check_steps import CheckFailed, list_files
from mirage_formal.check.run_check import read_run
from mirage_formal.records import EXHAUSTED_FILE
from mirage_formal.revalidate.exhausted_record_check import check_exhausted
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.support import limits
from mirage_formal.support.errors import FormatError, RunError
from tests.kit.paths import REPOSITORY
from tests.kit.runs.fake_engine import program
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.small_runs import make
from tests.kit.runs.tampering import (
    SAID,
    differences,
    edit_bytes,
    edit_structure,
    is_said,
    kind,
    obeyed,
    reseal,
    sign_candidate,
    sign_kernels,
    sign_proof,
    value_of,
    write,
)
from tests.kit.sampling import number

DOCUMENT = REPOSITORY / "docs" / "run-directory.md"
Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good") / "run"
    make(root)
    return root


@pytest.fixture
def root(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def checked(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main([str(root), "--jobs", "1"])
    _, errors = capsys.readouterr()
    assert (code == 0) == (errors == "")
    assert "Traceback" not in errors
    return code, errors


def at(*path: Any, value: Any) -> Change:
    """Puts a value, or a function of the old one, at a place."""

    def change(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value(record[path[-1]]) if callable(value) else value

    return change


def twice(record: Any) -> None:
    record["fingerprint_tests"] += 1
    record["candidates"].insert(1, {**record["candidates"][0], "rank": 2})
    for rank, item in enumerate(record["candidates"], 1):
        item.update(rank=rank, directory=f"candidates/{rank:03}-{item['id']}")


CANDIDATE, KERNELS = "candidates/001-*/", "kernels/001-*/"
UNTRUTHS: dict[str, tuple[str, Change, str]] = {
    "negative time of a unit": ("search.jsonl", at(0, "milliseconds", value=-1.0), ">= 0"),
    "a unit that begins before the search": ("search.jsonl", at(0, "times", "begin", value=-0.5), ">= 0"),
    "a unit that ends in thirty years": ("search.jsonl", at(0, "times", "end", value=1e300), "<= 1000000000"),
    "a time that is a text": ("search.jsonl", at(0, "times", "end", value="late"), "Expected `float`, got `str`"),
    "a great many samples": (
        "search.jsonl", at(0, "times", "samples", value=[[0, 1, 0]] * number(10**5, 10**6)), "of length <= 32"
    ),
    "states that were not visited": ("search.jsonl", at(0, "times", "samples", value=[[0, -1, 0]]), ">= 0"),
    "a sample that is no pair": ("search.jsonl", at(0, "times", "samples", value=[[0]]), "of length 3"),
    "a level that no graph has": ("search.jsonl", at(0, "pruned_at", value={"warp": {"shape": 1}}), "Invalid enum"),
    "a negative count at a level": ("search.jsonl", at(0, "pruned_at", value={"block": {"shape": -1}}), ">= 0"),
    "negative time of a run": ("summary.json", at("wall_s", value=-0.001), ">= 0"),
    "negative time of a solver": (CANDIDATE + "proof.jsonl", at(0, "z3", "milliseconds", value=-3), ">= 0"),
    "negative time of an obligation": (KERNELS + "obligations.jsonl", at(0, "milliseconds", value=-1.5), ">= 0"),
    "negative microseconds": (KERNELS + "measure.json", at("us", value=-3.0), ">= 0"),
    "negative error": (KERNELS + "numerics.json", at("scales", 0, "outputs", 0, "max_ulps", value=-1.0), ">= 0"),
    "negative estimate": ("summary.json", at("candidates", 0, "estimated_us", value=-1.0), ">= 0"),
    "negative counter": ("search.jsonl", at(0, "stats", "states", value=-1), ">= 0"),
    "negative registers": (
        KERNELS + "launch.json", at("launches", 0, "cubins", "sm_80", "registers", value=-1), ">= 0"
    ),
    "negative probability": (
        CANDIDATE + "verification.json", at("fingerprint", "bound_log2", value=0.5), "Expected `float` <= 0.0"
    ),
    "no solver version": (CANDIDATE + "proof.jsonl", at(0, "z3", "version", value=""), "matching regex"),
    "a solver version of words": (
        CANDIDATE + "proof.jsonl", at(0, "cvc5", "version", value="the best"), "matching regex"
    ),
    "a solver version with a line break": (
        CANDIDATE + "proof.jsonl", at(0, "z3", "version", value=lambda old: old + "\n"), "matching regex"
    ),
    "another solver than the run's": (
        CANDIDATE + "proof.jsonl", at(0, "z3", "version", value="4.15.4"), "version of z3-solver: expected 4."
    ),
    "another cvc5 for a digit lemma": (
        CANDIDATE + "proof.jsonl", at(-2, "digits", 0, "cvc5", "version", value="1.3.9"), "version of cvc5: expected 1."
    ),
    "a digest with a line break": ("run.json", at("identity", "target_digest", value=lambda old: old + "\n"), "length"),
    "no version of a package": ("run.json", at("versions", value=lambda old: {"numpy": "2.0"}), "packages"),
    "a version of a package in words": ("run.json", at("versions", "numpy", value="newest"), "matching regex"),
    "nothing about the host": ("run.json", at("host", value={}), "missing required field `python`"),
    "no engine": ("run.json", at("identity", "engine", value=""), "length >= 1"),
    "an oracle that is none": ("run.json", at("identity", "oracle", value="delphi"), "delphi"),
    "no tries": ("search.jsonl", at(0, "attempts", value=0), ">= 1"),
    "no workers": ("summary.json", at("workers", value=0), ">= 1"),
    "an error of what is done": ("search.jsonl", at(0, "error", value="it hung"), "an error if it failed"),
    "a candidate twice in a unit": (
        "search.jsonl", at(0, "candidates", value=lambda old: [*old, old[0]]), "distinct candidates"
    ),
    "a unit that is done twice": ("search.jsonl", lambda records: records.append(records[0]), "listed again"),
    "a candidate twice": ("summary.json", twice, "distinct candidates"),
    "a candidate rejected as well": (
        "summary.json",
        lambda r: r["rejected"].append({"digest": r["candidates"][0]["digest"], "kind": "unknown", "reason": "x"}),
        "distinct candidates",
    ),
    "no schema version": ("run.json", lambda record: record.pop("schema_version"), "expected 3, got none"),
    "no schema version in a log": (
        CANDIDATE + "proof.jsonl", lambda records: records[0].pop("schema_version"), "expected 3, got none"
    ),
    "no fingerprint": (CANDIDATE + "verification.json", at("fingerprint", value=None), "got `null`"),
    "cvc5 without z3": (
        KERNELS + "obligations.jsonl",
        lambda records: next(r for r in records if r["solvers"])["solvers"].pop("z3"),
        "asked solvers",
    ),
    "a solver that nobody knows": (
        KERNELS + "obligations.jsonl", at(0, "solvers", "vampire", value=None), "solvers"
    ),
    "an empty claim": (KERNELS + "obligations.jsonl", at(0, "claim", value=""), "length >= 1"),
    "another target": (KERNELS + "manifest.json", at("target", "name", value="a100"), "target: expected ('h200', "),
    "another figure of the target": (
        KERNELS + "manifest.json", at("target", "title", value="another"), "target: expected ('h200', "
    ),
    "an architecture that is a sentence": (
        KERNELS + "plan.json",
        lambda r: r["kernels"][0]["compiled"].update({"x\nproved": r["kernels"][0]["compiled"].pop("sm_80")}),
        "matching regex",
    ),
    "a buffer twice": (
        KERNELS + "plan.json",
        lambda r: r["kernels"][0]["buffers"].append(r["kernels"][0]["buffers"][0]),
        "distinct buffers",
    ),
    "no device": (KERNELS + "measure.json", at("device", value=""), "length >= 1"),
}  # fmt: skip


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", UNTRUTHS)
def test_an_untruth_is_refused(root: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    pattern, change, words = UNTRUTHS[name]
    (path,) = root.glob(pattern)
    value = value_of(path)
    if name == "a solver that nobody knows":
        value[0]["solvers"]["vampire"] = {"answer": "unsat", "version": "5.0", "milliseconds": 1.0}
    else:
        change(value)
    write(path, value)
    if name == "a candidate twice":
        for place in sorted((root / "candidates").iterdir(), reverse=True)[:-1]:
            place.rename(place.with_name(f"{int(place.name[:3]) + 1:03}{place.name[3:]}"))
        (first,) = (root / "candidates").glob("001-*")
        shutil.copytree(first, first.with_name(f"002{first.name[3:]}"))
    reseal(root)
    code, errors = checked(root, capsys)
    assert code in (1, 2)
    assert words in errors
    assert path.name in errors


def texts(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in (".json", ".jsonl"))


def test_a_key_twice_is_refused_in_every_file(root: Path, good: Path) -> None:
    for path in texts(good):
        here = root / path.relative_to(good)
        text = path.read_text()
        key = text[text.index('"') : text.index(":") + 1]
        here.write_text(text.replace("{", f"{{{key} 3,", 1))
        with pytest.raises(CheckFailed) as found:
            read_again(root, here)
        assert found.value.file == str(here)
        assert "occurs twice" in found.value.what or "distinct keys" in found.value.what
        shutil.rmtree(root)
        shutil.copytree(good, root)


def read_again(root: Path, path: Path) -> None:
    """Have check read a file that was changed, with the digests that it meets before."""
    place = root / Path(*path.relative_to(root).parts[:2])
    if place.parent.name == "candidates":
        if path.name == "equivalence.json":
            sign_proof(place)
        if path.name != "manifest.json":
            sign_candidate(place)
        check_candidate(place)
    elif place.parent.name == "kernels":
        if path.name not in ("manifest.json", "numerics.json", "measure.json"):
            sign_kernels(place)
        derive_kernels(place)
    elif path.name == EXHAUSTED_FILE:
        reseal(root)
        check_exhausted(read_run(root))
    else:
        read_run(root)


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bound_us": 0.5}, "bound_us: expected"),
        ({"gap": 0.0}, "gap: expected"),
        ({"best_us": 0.1}, "best_us: expected"),
        ({"bounds": []}, "bounds: expected"),
        ({"key": "0" * 64}, "key: expected"),
        ({"pruned": {"expression": 1}}, "pruned: expected"),
    ],
)
def test_another_bound_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], words: str
) -> None:
    path = root / EXHAUSTED_FILE
    write(path, {**value_of(path), **change})
    reseal(root)
    code, errors = checked(root, capsys)
    assert code == 1
    assert words in errors


@pytest.mark.usefixtures("check_here")
def test_figures_of_another_target_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / EXHAUSTED_FILE
    record = value_of(path)
    write(path, {**record, "target": {**record["target"], "bandwidth_gbs": 1.0}})
    reseal(root)
    assert "figures of the target: expected" in checked(root, capsys)[1]


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("place", [".", "candidates", "candidates/001-*", "candidates/001-*/proof", "kernels/001-*"])
def test_an_empty_directory_is_refused(root: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    (inside,) = root.glob(place) if place != "." else (root,)
    (inside / "empty" / "below").mkdir(parents=True)
    code, errors = checked(root, capsys)
    assert code == 1
    assert "empty/below/ as well" in errors or "got empty" in errors


@pytest.mark.usefixtures("check_here")
def test_kernels_of_nobody_are_refused_even_if_empty(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "kernels" / "009-0123456789ab").mkdir()
    assert "kernels of a reported candidate only, got 009-0123456789ab/" in checked(root, capsys)[1]


def test_a_run_that_found_nothing_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(engine="tests.kit.runs.fake_engine:Foreign", config="tiny", keep=1, workers=1)
    report = run_search(program(), settings, tmp_path / "run")
    for path in sorted((tmp_path / "run" / "candidates").iterdir()):
        shutil.rmtree(path)
    assert report.summary.rejected
    write(tmp_path / "run" / "summary.json", {**value_of(tmp_path / "run" / "summary.json"), "candidates": [],
                                              "status": "time-limit"})  # fmt: skip
    (tmp_path / "run" / EXHAUSTED_FILE).unlink()  # as earlier versions, which wrote none
    reseal(tmp_path / "run")
    assert checked(tmp_path / "run", capsys)[0] == 0


def test_a_run_is_not_resumed_with_other_packages(tmp_path: Path) -> None:
    settings = {"engine": "tests.kit.runs.fake_engine:FakeEngine", "config": "tiny", "keep": 1, "workers": 1}
    run_search(program(), Settings(**settings), tmp_path / "run")  # type: ignore[arg-type]
    path = tmp_path / "run" / "run.json"
    write(path, {**value_of(path), "versions": {**value_of(path)["versions"], "z3-solver": "4.12.0.0"}})
    with pytest.raises(RunError, match=r"the packages that the run was started with, \{'z3-solver': '4.12.0.0'\}"):
        run_search(program(), Settings(**settings, resume=True), tmp_path / "run")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("MAX_ENTRIES", 20), ("MAX_DIRECTORY_BYTES", 20_000), ("MAX_LEVELS", 0)])
def test_a_directory_is_bounded(good: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    assert getattr(limits, name) > 10 * value
    monkeypatch.setattr(check_steps, name, value)
    with pytest.raises(FormatError, match=f"expected at most {value}"):
        list_files(good)


@pytest.mark.usefixtures("check_here")
def test_a_directory_beyond_a_bound_is_not_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (root / "holes").open("wb") as file:
        file.truncate(limits.MAX_DIRECTORY_BYTES)  # it takes no room on the disk
    code, errors = checked(root, capsys)
    assert code == 2
    assert f"expected at most {limits.MAX_DIRECTORY_BYTES} bytes in all files" in errors
    assert "give one run" in errors
    (root / "holes").unlink()
    (root / "/".join(["deep"] * (limits.MAX_LEVELS + 2))).mkdir(parents=True)
    code, errors = checked(root, capsys)
    assert code == 2
    assert "directories inside one another" in errors


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_untouched_runs_are_established(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    make(tmp_path / "run", name, kernels=0)
    assert checked(tmp_path / "run", capsys)[0] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("check_mostly_here")
def test_edits_say_no_more_than_their_author_may(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample of benchmarks/fuzz_readers.py."""
    accepted = 0
    trials = number(30, 150)
    for trial in range(trials):
        rng = random.Random(trial)
        root = tmp_path / "run"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(good, root)
        path = rng.choice(texts(root))
        if trial % 2:
            path.write_bytes(edit_bytes(path.read_bytes(), rng))
        else:
            write(path, edit_structure(value_of(path), rng))
        if trial % 5:
            reseal(root)
        code, errors = checked(root, capsys)
        assert not any(map(obeyed, errors.split("\n")))
        if code == 0 and path.name not in ("mugraph.json", "stabilized.json"):
            accepted += 1
            found = differences(value_of(good / path.relative_to(root)), value_of(path))
            assert [place for place in found if not is_said(kind(root, path), place)] == [], f"trial {trial}"
    assert accepted < trials / 3


def test_the_document_lists_what_the_author_says() -> None:
    section = DOCUMENT.read_text().partition("## Said by the author")[2]
    for said in SAID:
        name, _, field = said.partition(" ")
        row = next(line for line in section.splitlines() if line.startswith(f"| {name} |"))
        last = [part for part in field.split("/") if part != "*"][-1]
        assert f"`{last}`" in row, said
