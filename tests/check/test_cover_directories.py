"""A cover's directory is checked alone: accepted wherever it lies, and every edit is refused, signed again or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal import records
from mirage_formal.check.__main__ import main
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.partition.cover_search import search_covers
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records import ManifestRecord
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.run.settings import Settings
from mirage_formal.support.errors import FormatError
from tests.kit.graphs.workloads import TINY, layers
from tests.kit.runs.tampering import (
    copy,
    demote,
    edit,
    files,
    read_lines,
    seal_file,
    sign_candidate,
    write,
    write_lines,
)

Line = dict[str, Any]
PROOF = "proof/equivalence.json"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> WholeReport:
    return search_covers(layers(), Settings(**TINY), tmp_path_factory.mktemp("whole") / "layers", name="layers")


@pytest.fixture(scope="module")
def cover(report: WholeReport) -> Path:
    """The best cover, of whose five parts four are replaced."""
    return sorted((report.directory / "covers").iterdir())[0]


def sign_cover(root: Path) -> None:
    """Recompute every digest of a cover's directory, as whoever changed its files would."""
    for place in sorted((root / "parts").iterdir()):
        sign_candidate(place)
    lines = read_lines(root / "proof.jsonl")
    for line in lines[:-1]:
        if line["candidate"] is not None and (root / line["directory"] / PROOF).is_file():
            codes = (
                records.sha256((root / line["directory"] / name).read_bytes()) for name in ("manifest.json", PROOF)
            )
            line["manifest"], line["proof"] = codes
    write_lines(root / "proof.jsonl", lines)
    sign_candidate(root)


def change_line(change: Callable[[Line], object], number: int = 1) -> Callable[[Path], None]:
    """Change one line of the proof log."""

    def forge(root: Path) -> None:
        lines = read_lines(root / "proof.jsonl")
        change(lines[number])
        write_lines(root / "proof.jsonl", lines)

    return forge


def change_log(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the verification log."""
    return lambda root: edit(root / "verification.json", change)


def replaced(root: Path) -> list[Line]:
    return [line for line in read_lines(root / "proof.jsonl")[:-1] if line["candidate"]]


def edited_proof(root: Path) -> None:
    """The proof of a part says less than it needs."""

    def shorten(proof: Any) -> None:
        del proof["steps"][-1]

    edit(root / replaced(root)[1]["directory"] / PROOF, shorten)


def swapped_proofs(root: Path) -> None:
    """Two parts have each other's proof."""
    one, other = (root / line["directory"] / PROOF for line in replaced(root)[1:3])
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def swapped_candidates(root: Path) -> None:
    """Two parts have each other's candidate, with all of its evidence."""
    lines = read_lines(root / "proof.jsonl")
    one, other = lines[1], lines[2]
    for key in ("candidate", "directory", "conditions", "added"):
        one[key], other[key] = other[key], one[key]
    write_lines(root / "proof.jsonl", lines)


def part_left_out(root: Path) -> None:
    lines = read_lines(root / "proof.jsonl")
    shutil.rmtree(root / lines.pop(1)["directory"])
    lines[-1].update(parts=len(lines) - 1, replaced=lines[-1]["replaced"] - 1, proofs=lines[-1]["proofs"] - 1)
    write_lines(root / "proof.jsonl", lines)


def evidence_left_out(root: Path) -> None:
    """A part has no proof any more: its operators are said to stay."""
    lines = read_lines(root / "proof.jsonl")
    shutil.rmtree(root / lines[1]["directory"])
    lines[1].update(candidate=None, directory="", manifest=None, proof=None)
    lines[-1].update(replaced=lines[-1]["replaced"] - 1, proofs=lines[-1]["proofs"] - 1)
    write_lines(root / "proof.jsonl", lines)


def sign_whole_graph(root: Path) -> None:
    code = digest(from_json((root / "mugraph.json").read_bytes()))
    edit(root / "verification.json", lambda log: log.update(candidate=code))
    change_line(lambda line: line.update(graph=code), -1)(root)
    path = root / "manifest.json"
    old = records.decode(path.read_bytes(), ManifestRecord, "")
    path.write_bytes(records.seal_record(ManifestRecord(candidate=code, files=old.files)))


def edited_graph(root: Path) -> None:
    """A kernel reads another input, and the graph has the digest that fits."""

    def swap(graph: dict[str, Any]) -> None:
        count = len(graph["inputs"])
        operands = next(op["operands"] for op in graph["ops"] if any(0 < i < count for i in op["operands"]))
        place = next(i for i, tensor in enumerate(operands) if 0 < tensor < count)
        operands[place] = operands[place] % (count - 1) + 1

    edit(root / "mugraph.json", swap)
    sign_whole_graph(root)


def edited_program(root: Path) -> None:
    def swap(log: dict[str, Any]) -> None:
        log["program"]["outputs"].reverse()
        log["program_digest"] = digest(from_json(json.dumps(log["program"]).encode()))

    edit(root / "verification.json", swap)
    code = json.loads((root / "verification.json").read_bytes())["program_digest"]
    change_line(lambda line: line.update(program=code), -1)(root)


def probable_part(root: Path) -> None:
    """A part's candidate is only probable, which no policy of a search lets into a whole."""
    demote(root / replaced(root)[1]["directory"])


def foreign_file(root: Path) -> None:
    (root / "more.json").write_text("{}")


FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "edited proof": (edited_proof, "replay the proof"),
    "swapped proofs": (swapped_proofs, "replay the proof"),
    "swapped candidates": (swapped_candidates, "part 2: candidate"),
    "part left out": (part_left_out, "partition"),
    "evidence left out": (evidence_left_out, "the whole is put together from the parts"),
    "edited graph": (edited_graph, "the whole is put together from the parts"),
    "edited program": (edited_program, "the whole is put together from the parts"),
    "probable part": (probable_part, "verdict of a part"),
    "foreign file": (foreign_file, "manifest"),
    "listed foreign file": (foreign_file, "manifest"),
    "digest of the whole": (change_log(lambda log: log.update(candidate="ab" * 32)), "program"),
    "digest of the program": (change_log(lambda log: log.update(program_digest="ab" * 32)), "well-formed graph"),
    "operators": (change_line(lambda line: line["operators"].pop()), "partition"),
    "another candidate": (change_line(lambda line: line.update(candidate="ab" * 32)), "part 2: candidate"),
    "reads": (change_line(lambda line: line["reads"].reverse()), "part 2: claims"),
    "results": (change_line(lambda line: line["results"].reverse()), "part 2: claims"),
    "kernels": (change_line(lambda line: line["kernels"].append(2)), "part 2: claims"),
    "inputs": (change_line(lambda line: line["inputs"].reverse()), "part 2: claims"),
    "outputs": (change_line(lambda line: line["outputs"].reverse()), "part 2: claims"),
    "conditions of a part": (change_line(lambda line: line["conditions"].pop()), "part 2: claims"),
    "added by a part": (change_line(lambda line: line["added"].append("x")), "part 2: claims"),
    "number of proofs": (change_line(lambda line: line.update(proofs=3), -1), "closing line"),
    "conditions": (change_log(lambda log: log["verdict"]["conditions"].pop()), "verdict"),
    "a verdict": (change_log(lambda log: log["verdict"].update(kind="probable")), "verdict"),
    "another basis": (change_log(lambda log: log.update(basis="proof")), "read"),
    "another policy": (change_log(lambda log: log.update(policy="probable")), "read the verification log"),
    "no tools": (change_log(lambda log: log.update(tools=[])), "tools"),
    "a tool that was not called": (change_log(lambda log: log["tools"][0].update(version="9.9.9")), "tools"),
    "another directory": (change_line(lambda line: line.update(directory="../parts/x")), "read the proof log"),
}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    def check(root: Path) -> str:
        assert main([str(root), "--jobs", "1"]) in (1, 2)
        return capsys.readouterr().err

    return check


def test_each_cover_is_accepted_elsewhere(
    report: WholeReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = sorted((report.directory / "covers").iterdir())
    assert len(places) == len(report.record.covers) > 1
    for number, (place, record) in enumerate(zip(places, report.record.covers, strict=True)):
        alone = copy(place, tmp_path / f"c{number}")
        if (alone / "parts").is_dir():
            sign_cover(alone)  # the forgeries below are not refused for what this does
        assert main([str(alone), "--jobs", "1"]) == 0
        said = capsys.readouterr().out
        assert f"cover c{number} ({record.graph_digest[:12]}): equivalent" in said
        assert f"Its {len(record.parts)} parts are a partition" in said


def test_a_cover_is_loaded_from_its_directory_alone(report: WholeReport, cover: Path, tmp_path: Path) -> None:
    (found,) = mf.load(copy(cover, tmp_path / "c"))
    best = report.results[0]
    assert found.graph == best.graph
    assert isinstance(found.verdict, Equivalent)
    assert isinstance(best.verdict, Equivalent)
    assert found.verdict.conditions == best.verdict.conditions
    edited = copy(cover, tmp_path / "e")
    edited_proof(edited)
    sign_cover(edited)
    with pytest.raises(FormatError, match="replay the proof"):
        mf.load(edited)


def test_what_the_logs_say(report: WholeReport, cover: Path) -> None:
    """Each line names what the checker needs to put the part in its place; only solvers that answered are named."""
    *parts, closing = read_lines(cover / "proof.jsonl")
    record = report.record.best
    assert [line["operators"] for line in parts] == [list(part.operators) for part in record.parts]
    assert [line["candidate"] for line in parts] == [part.candidate for part in record.parts]
    kernels = [number for line in parts for number in line["kernels"]]
    assert kernels == list(range(len(report.results[0].graph.ops)))
    assert closing["replaced"] == 4
    log = json.loads((cover / "verification.json").read_bytes())
    assert (log["basis"], log["policy"], log["verdict"]["kind"]) == ("composition", "equivalent", "equivalent")
    assert [tool["name"] for tool in log["tools"]] == ["cvc5", "z3-solver"]
    unfused = sorted((report.directory / "covers").iterdir())[-1]
    assert json.loads((unfused / "verification.json").read_bytes())["tools"] == []


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", FORGERIES)
def test_forged_and_signed_again(name: str, cover: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    root = copy(cover, tmp_path / "c")
    forge, step = FORGERIES[name]
    forge(root)
    if name != "foreign file":
        sign_cover(root)
    assert {path.read_bytes() for path in files(root)} != {path.read_bytes() for path in files(cover)}
    said = refused(root)
    assert f"step: {step}" in said
    assert "KeyError" not in said


@pytest.mark.usefixtures("check_here")
def test_every_file_has_its_digest(cover: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    names = [path.relative_to(cover) for path in files(cover) if path.name in ("proof.jsonl", "equivalence.json")]
    for name in (*names, Path("mugraph.json"), Path("verification.json"), Path("manifest.json")):
        root = copy(cover, tmp_path / "c")
        data = (root / name).read_bytes()
        (root / name).write_bytes(data.replace(b" ", b"  ", 1) if b" " in data else data + b"\n")
        assert name.name in refused(root)


@pytest.mark.usefixtures("check_here")
def test_within_a_whole_program(
    report: WholeReport, cover: Path, tmp_path: Path, refused: Callable[[Path], str]
) -> None:
    """Candidates that its searches have established are not checked twice, and no edit passes by that."""
    part = replaced(cover)[1]["directory"]

    def signed(root: Path) -> Path:
        record = json.loads((root / WHOLE_FILE).read_bytes())
        there = [name for name in record["manifest"] if (root / name).is_file()]
        record["manifest"] = {name: records.sha256((root / name).read_bytes()) for name in there}
        write(root / WHOLE_FILE, record)
        seal_file(root / WHOLE_FILE)
        return root

    def forged(change: Callable[[Path], None], *, sign: bool = True) -> str:
        root = copy(report.directory, tmp_path / "w")
        own = root / "covers" / cover.name
        change(own)
        if sign:
            sign_cover(own)
        return refused(signed(root))

    assert "step: replay the proof" in forged(edited_proof)
    assert "step: verdict" in forged(FORGERIES["conditions"][0])

    def file_of_a_part(own: Path) -> None:
        path = own / part / "verification.json"
        path.write_bytes(path.read_bytes() + b"\n")
        sign_candidate(own)  # the part's own manifest is the one that was established

    assert f"{part}/verification.json" in forged(file_of_a_part, sign=False)
    # Earlier versions wrote no directories of covers.
    old = copy(report.directory, tmp_path / "w")
    shutil.rmtree(old / "covers")
    assert main([str(signed(old)), "--jobs", "1"]) == 0
    one = copy(report.directory, tmp_path / "w")
    shutil.rmtree(one / "covers" / cover.name)
    assert "step: directories of covers" in refused(signed(one))
    other = copy(report.directory, tmp_path / "w")
    places = sorted((other / "covers").iterdir())
    shutil.rmtree(places[0])
    copy(places[1], places[0])
    assert "cover of this whole" in refused(signed(other))
