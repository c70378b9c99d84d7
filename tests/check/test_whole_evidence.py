"""Whole programs under attack: every edit of partition, parts or whole is refused, with the file and step named."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal import records
from mirage_formal.check.__main__ import main
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.partition.cover_search import search_covers
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.run.settings import Settings
from tests.kit.graphs.workloads import TINY, layers
from tests.kit.runs.tampering import copy, edit, flip, seal_file, sign_candidate, sign_run, write

Record = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "layers"
    assert search_covers(layers(), Settings(**TINY), root, name="layers").result is not None
    return root


def sign_whole(root: Path, change: Callable[[Record], None] = lambda record: None) -> None:
    """Change whole.json and sign it and the searches' summaries again, as whoever forges it would."""
    path = root / WHOLE_FILE
    record = json.loads(path.read_bytes())
    change(record)
    record["manifest"] = {name: records.sha256((root / name).read_bytes()) for name in record["manifest"]}
    write(path, record)
    seal_file(path)


def best(record: Record) -> Record:
    """The first cover."""
    cover: Record = record["covers"][0]
    return cover


def renumbered(record: Record) -> None:
    """A forger also writes the digest that fits the graph."""
    best(record)["graph_digest"] = digest(from_json(json.dumps(best(record)["graph"]).encode()))


def searched(record: Record, cover: int = 0) -> list[Record]:
    return [part for part in record["covers"][cover]["parts"] if part["candidate"]]


def stolen_operator(record: Record) -> None:
    first, second = (part for part in searched(record) if len(part["operators"]) > 3)
    first["operators"] = sorted([*first["operators"], second["operators"].pop()])


def operator_twice(record: Record) -> None:
    best(record)["parts"][1]["operators"] = sorted(
        {*best(record)["parts"][0]["operators"], *best(record)["parts"][1]["operators"]}
    )


def operator_missing(record: Record) -> None:
    del best(record)["parts"][-1]


def parts_reversed(record: Record) -> None:
    best(record)["parts"].reverse()


def two_parts_in_one(record: Record) -> None:
    """The softmax and the view before it, as if one search had been for both."""
    view = next(part for part in best(record)["parts"] if not part["run"])
    best(record)["parts"][-1]["operators"] = sorted(view["operators"] + best(record)["parts"][-1]["operators"])
    best(record)["parts"].remove(view)


def another_candidate(record: Record) -> None:
    """Another part's search, candidate and all."""
    first = searched(record)[0]
    other = next(part for part in searched(record) if part["run"] != first["run"])
    first.update(run=other["run"], candidate=other["candidate"], directory=other["directory"])


def unknown_candidate(record: Record) -> None:
    searched(record)[0]["candidate"] = "ab" * 32


def another_directory(record: Record) -> None:
    first = searched(record)[0]
    names = [name for name in record["manifest"] if name.startswith(first["run"])]
    first["directory"] = names[0].removesuffix("/summary.json")


def forgotten_search(record: Record) -> None:
    run = searched(record)[0]["run"]
    record["manifest"] = {name: code for name, code in record["manifest"].items() if not name.startswith(run)}


def no_candidate(record: Record) -> None:
    """A part's own operators, where the whole has its candidate."""
    searched(record)[0].update(candidate=None, directory="")


def swapped_operands(record: Record) -> None:
    """The whole computes something else: a kernel reads the other layer's weight."""
    inputs = len(best(record)["graph"]["inputs"])
    for op in best(record)["graph"]["ops"]:
        weights = [i for i in op["operands"] if 0 < i < inputs]
        if weights:
            op["operands"] = [weights[0] % (inputs - 1) + 1 if i == weights[0] else i for i in op["operands"]]
            break
    renumbered(record)


def outputs_swapped(record: Record) -> None:
    best(record)["graph"]["outputs"].reverse()
    renumbered(record)


def another_program(record: Record) -> None:
    """The program that all this is for is another one: one kernel of it reads another input."""
    program = record["graph_of_program"]
    for op in program["ops"]:
        if op.get("op") == "matmul" or op.get("kind") == "matmul":
            op["operands"][1] = op["operands"][1] % (len(program["inputs"]) - 1) + 1
            break
    record["identity"]["program"] = digest(from_json(json.dumps(program).encode()))


def fewer_conditions(record: Record) -> None:
    best(record)["conditions"].pop()


def fewer_conditions_of_a_part(record: Record) -> None:
    part = next(part for part in best(record)["parts"] if part["conditions"])
    part["conditions"].pop()


def fewer_kernels(record: Record) -> None:
    best(record)["kernels"] -= 1


def more_saved(record: Record) -> None:
    best(record)["parts"][0]["unfused_kernels"] += 1


def cheaper(record: Record) -> None:
    searched(record)[0]["estimated_us"] /= 2


def no_cover(record: Record) -> None:
    record["covers"] = []


def cover_twice(record: Record) -> None:
    record["covers"].insert(0, best(record))


def worse_cover_first(record: Record) -> None:
    record["covers"].reverse()


def another_cover_changed(record: Record) -> None:
    """Every cover is held to what it says, not the first alone."""
    last = record["covers"][-1]
    last["graph"]["outputs"].reverse()
    last["graph_digest"] = digest(from_json(json.dumps(last["graph"]).encode()))


def kernels_of_another_cover(record: Record) -> None:
    record["covers"][-1]["kernels"] -= 1


def part_of_another_cover(record: Record) -> None:
    record["covers"][1]["parts"][0]["unfused_kernels"] += 1


def fewer_unfused(record: Record) -> None:
    record["unfused_kernels"] += 1


def another_seed(record: Record) -> None:
    record["identity"]["seed"] += 1


def another_target(record: Record) -> None:
    record["identity"]["target_digest"] = "ab" * 32


def less_than_nothing(record: Record) -> None:
    next(part for part in best(record)["parts"] if not part["run"])["unfused_us"] = -1.0


def no_search(record: Record) -> None:
    searched(record)[0]["run"] = ""


FORGERIES: dict[Callable[[Record], None], str] = {
    stolen_operator: "partition",
    operator_twice: "partition",
    operator_missing: "partition",
    parts_reversed: "partition",
    two_parts_in_one: "program of cover 1, part",
    another_candidate: "program of cover 1, part 1",
    unknown_candidate: "cover 1, part 1: candidate",
    another_directory: "cover 1, part 1: candidate",
    forgotten_search: "manifest",
    no_candidate: "cover 1, part 1",
    swapped_operands: "cover 1: the whole is put together",
    outputs_swapped: "cover 1: the whole is put together",
    another_program: "program of cover 1, part",
    fewer_conditions: "cover 1: claims about the whole",
    fewer_conditions_of_a_part: "cover 1, part 1: claims",
    fewer_kernels: "cover 1: claims about the whole",
    more_saved: "cover 1, part 1: claims",
    cheaper: "cover 1, part 1: candidate",
    no_cover: "covers",
    cover_twice: "covers",
    worse_cover_first: "covers",
    another_cover_changed: "cover 3: the whole is put together",
    kernels_of_another_cover: "cover 3: claims about the whole",
    part_of_another_cover: "cover 2, part 1: claims",
    fewer_unfused: "claims about the program",
    another_seed: "search for a part",
    another_target: "search for a part",
    less_than_nothing: "read the whole",
    no_search: "cover 1, part 1: candidate",
}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    def check(root: Path) -> str:
        assert main([str(root), "--jobs", "1"]) in (1, 2)
        return capsys.readouterr().err

    return check


def test_untouched_it_is_accepted(whole: Path, tmp_path: Path) -> None:
    root = copy(whole, tmp_path / "w")
    sign_whole(root)
    assert main([str(root), "--jobs", "1"]) == 0


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_forged_and_signed_again(
    forge: Callable[[Record], None], whole: Path, tmp_path: Path, refused: Callable[[Path], str]
) -> None:
    root = copy(whole, tmp_path / "w")
    before = (root / WHOLE_FILE).read_bytes()
    sign_whole(root, forge)
    assert (root / WHOLE_FILE).read_bytes() != before
    said = refused(root)
    assert f"step: {FORGERIES[forge]}" in said
    assert WHOLE_FILE in said or "run.json" in said
    assert "KeyError" not in said


@pytest.mark.usefixtures("check_mostly_here")
def test_flipped_bytes(whole: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    rng = random.Random(5)
    data = (whole / WHOLE_FILE).read_bytes()
    root = copy(whole, tmp_path / "w")
    for _ in range(25):
        place = rng.randrange(len(data))
        (root / WHOLE_FILE).write_bytes(data[:place] + bytes([data[place] ^ 1 << rng.randrange(7)]) + data[place + 1 :])
        assert WHOLE_FILE in refused(root)


@pytest.mark.usefixtures("check_here")
def test_files_of_parts(whole: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    """Evidence of a part that is changed and signed again is met by the part's own check."""
    record = json.loads((whole / WHOLE_FILE).read_bytes())
    part = searched(record)[0]
    root = copy(whole, tmp_path / "w")
    flip(root / part["directory"] / "proof" / "equivalence.json", random.Random(1))
    assert "equivalence.json" in refused(root)
    root = copy(whole, tmp_path / "w")

    def cheat(verification: Record) -> None:
        verification["verdict"]["conditions"].pop()

    edit(root / part["directory"] / "verification.json", cheat)
    sign_candidate(root / part["directory"])
    sign_run(root / part["run"])
    sign_whole(root)
    assert "verification.json" in refused(root)


def test_files_that_do_not_belong(whole: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    root = copy(whole, tmp_path / "w")
    (root / "more.json").write_text("{}")
    assert "more.json as well" in refused(root)
    root = copy(whole, tmp_path / "w")
    record = json.loads((root / WHOLE_FILE).read_bytes())
    shutil.rmtree(root / searched(record)[0]["run"])
    assert "error" in refused(root)
    root = copy(whole, tmp_path / "w")

    def outside(forged: Record) -> None:
        searched(forged)[0]["directory"] = "../elsewhere"

    sign_whole(root, outside)
    assert "cannot be read" in refused(root)


@pytest.mark.usefixtures("check_here")
def test_what_else_a_directory_holds(whole: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    """Manifests decide neither what a directory is nor which files a candidate may have."""
    part = searched(json.loads((whole / WHOLE_FILE).read_bytes()))[0]
    root = copy(whole, tmp_path / "w")
    (root / "manifest.json").write_bytes((root / part["directory"] / "manifest.json").read_bytes())
    assert "manifest.json as well" in refused(root)
    candidate = copy(whole / part["directory"], tmp_path / "c")
    assert main([str(candidate)]) == 0
    (candidate / "kernel.cu").write_text("int x;")
    sign_candidate(candidate)
    assert "only files of a candidate, got kernel.cu" in refused(candidate)


def test_directories_of_runs_hold_nothing_else(whole: Path, tmp_path: Path, refused: Callable[[Path], str]) -> None:
    run = next(iter((whole / "parts").iterdir()))
    copy(run, tmp_path / "all" / "one")
    (tmp_path / "all" / "empty").mkdir()
    assert main([str(tmp_path / "all"), "--jobs", "1"]) == 0
    (tmp_path / "all" / "lost").mkdir()
    (tmp_path / "all" / "lost" / "search.jsonl").write_text("")
    assert "lost, which is none" in refused(tmp_path / "all")


def test_paths_that_cannot_be_read(tmp_path: Path, refused: Callable[[Path], str]) -> None:
    said = refused(tmp_path / ("x" * 300))
    assert "expected a readable path" in said
    assert said.splitlines()[1:] == ["  hint: check the path"]
