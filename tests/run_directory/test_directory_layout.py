"""A user's files survive everything that writes to a directory, whatever they are called and wherever they lie."""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage_formal as mf
from mirage_formal import records
from mirage_formal.api.request import superoptimize
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import build_run
from mirage_formal.partition.search_directory import open_cover_directory, remove_unused_searches
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.records import ExhaustedRecord, RunRecord, SummaryRecord
from mirage_formal.records.partition import WholeRecord
from mirage_formal.records.reproduction import Row, Workloads
from mirage_formal.reproduce.row_journal import RecordFile, expect_writable_result
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.run.verify.verdicts import write_verdicts
from mirage_formal.run_directory.directory_layout import (
    KERNELS_OF_ONE,
    RUN,
    WHOLE,
    DirectoryWarning,
    expect_replaceable_kernels,
    list_contents,
    remove,
    remove_file,
)
from mirage_formal.run_directory.run_writer import RunStore
from mirage_formal.support.errors import MirageError, RunError, SpaceError
from tests.kit.paths import REPOSITORY
from tests.kit.runs.fake_engine import program

PACKAGE = REPOSITORY / "mirage_formal"
FAKE: dict[str, Any] = {"config": "tiny", "keep": 1, "workers": 1, "engine": "tests.kit.runs.fake_engine:FakeEngine"}
ONE = "001-0123456789ab"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with kernels of one candidate (not real ones) and results of a device."""
    root = tmp_path_factory.mktemp("finished") / "run"
    run_search(program(), Settings(**FAKE), root, name="mine")
    first = sorted((root / "candidates").iterdir())[0]
    place = root / "kernels" / first.name
    place.mkdir(parents=True)
    for name in ("launch.json", "kernel.cu", "kernel-sm_90a.cubin", "manifest.json", "numerics.json", "measure.json"):
        (place / name).write_text("{}")
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a whole program with two searches."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="X")
    for _ in range(4):
        x = graph.add(graph.exp(x), x)
    graph.mark_output(x)
    root = tmp_path_factory.mktemp("whole") / "run"
    search_or_cover(graph.freeze(), Settings(config="tiny", keep=1, workers=1), root)
    return root


def snapshot(root: Path) -> dict[str, object]:
    """Everything below a directory: contents of files, targets of links, None for a directory."""
    found: dict[str, object] = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder) / name
            key = path.relative_to(root).as_posix()
            found[key] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


# --- a thousand layouts -----------------------------------------------------------------------------------------------

#: Where something may be put: directories of ours, with names of ours and others, that need not be there.
PLACES = (
    "",
    "candidates",
    f"candidates/{ONE}",
    f"candidates/{ONE}/proof",
    ".candidates",
    "kernels",
    f"kernels/{ONE}",
    f"kernels/.{ONE}.part",
    "parts",
    f"parts/01-{ONE[4:]}",
    f"parts/01-{ONE[4:]}/kernels",
    "kernels/mine",
    "src/kernels",
    "0",
)
#: Names that we write nowhere.
FOREIGN = (
    *("my_kernel.cu", "notes.txt", ".git", "kernel.cu~", "run.json.bak", "001-abc", "Kernels", "kernel-.cubin"),
    *(".run.json.tmp", "001-0123456789ab.old", "thesis", "summary.jsonl", "0x1.smt2", "\udcff.cu", "a b\nc", "12"),
)
#: Names of ours, each with a place in which we do not write it, or not as a file.
MISPLACED = (
    *(("run.json", "candidates"), ("search.jsonl", "kernels"), ("mugraph.json", ""), ("kernel.cu", "")),
    *(("kernel.cu", f"candidates/{ONE}"), ("proof", ""), ("candidates", "kernels"), (ONE, ""), (ONE, "parts")),
    *(("proof.jsonl", "kernels"), ("summary.json", f"kernels/{ONE}"), ("equivalence.json", f"candidates/{ONE}")),
)
KINDS = ("file", "folder", "link to a file", "link to a folder", "dangling link")

entries = st.one_of(
    st.tuples(st.sampled_from(FOREIGN), st.sampled_from(PLACES), st.sampled_from(KINDS)),
    st.tuples(st.sampled_from(MISPLACED), st.sampled_from(KINDS)).map(lambda pair: (*pair[0], pair[1])),
    # A link is never ours, whatever its name.
    st.tuples(
        st.sampled_from(["candidates", "kernels", "parts", "search.jsonl", "summary.json", ".candidates"]),
        st.just(""),
        st.sampled_from(KINDS[2:]),
    ),
)
BASES = ("nothing", "a run.json of somebody else's", "a run", "a run without its summary", "a whole program")
ACTIONS = ("search", "search --force", "search --resume", "whole", "whole --force", "whole --resume", "build", "verify")


def put(root: Path, name: str, place: str, kind: str, canary: Path) -> Path | None:
    """Put a user's entry there, unless something of ours is in its way."""
    path = root / place / name
    for above in path.relative_to(root).parents:
        if (root / above).is_symlink() or (root / above).is_file():
            return None
    if os.path.lexists(path):
        if kind in KINDS[:2]:
            return None
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            path.write_bytes(b"all I have")
        case "folder":
            path.mkdir()
            (path / "kernel.cu").write_bytes(b"all I have")
        case "link to a file":
            path.symlink_to(canary / "file")
        case "link to a folder":
            path.symlink_to(canary)
        case _:
            path.symlink_to(canary / "nothing")
    return path


def nothing_tried(record: RunRecord) -> ExhaustedRecord:
    return ExhaustedRecord(
        key=record.key,
        space=record.config,
        target=msgspec.Raw(b"{}"),
        left_out=(),
        tried={},
        pruned={},
        dropped={},
        bounds=(),
        bound_us=None,
        best_us=None,
        gap=None,
    )


def act(action: str, root: Path, record: RunRecord, summary: SummaryRecord, other: WholeRecord) -> None:
    what, _, how = action.partition(" --")
    flags = {"resume": how == "resume", "force": how == "force"}
    match what:
        case "search":
            RunStore.open(root, record, **flags).finish([], summary, nothing_tried(record))
        case "whole":
            open_cover_directory(root, other.config, other.identity, **flags)
            remove_unused_searches(root, (), ())
        case "build":
            expect_replaceable_kernels(root / "kernels", force=True)
            for path in sorted((root / "kernels").iterdir()) if (root / "kernels").is_dir() else ():
                remove(path, KERNELS_OF_ONE)
        case _:
            with write_verdicts(root, "x", KernelGraph((), (), ())):
                pass


@settings(max_examples=1000)
@given(base=st.sampled_from(BASES), mine=st.lists(entries, max_size=4), action=st.sampled_from(ACTIONS))
def layouts(
    paths: tuple[Path, Path], counts: dict[str, int], base: str, mine: list[tuple[str, str, str]], action: str
) -> None:
    finished, whole = paths
    record = records.decode((finished / "run.json").read_bytes(), RunRecord, "")
    summary = records.decode((finished / "summary.json").read_bytes(), SummaryRecord, "")
    other = records.decode((whole / "whole.json").read_bytes(), WholeRecord, "")
    with tempfile.TemporaryDirectory() as name:
        root, canary = Path(name) / "out", Path(name) / "canary"
        canary.mkdir()
        (canary / "file").write_bytes(b"not yours")
        (canary / "run.json").write_bytes((finished / "run.json").read_bytes())
        ours = {"a run": finished, "a run without its summary": finished, "a whole program": whole}.get(base)
        if ours is None:
            root.mkdir()
        else:
            shutil.copytree(ours, root)
        if base == "a run without its summary":
            (root / "summary.json").unlink()
        if base == "a run.json of somebody else's":
            (root / "run.json").write_bytes(b'{"name": "mine"}')
        before = {path for path in map(Path, snapshot(root))}
        users = [path for path in (put(root, *one, canary) for one in mine) if path is not None]
        kept = {key: value for key, value in snapshot(root).items() if ours is None or Path(key) not in before}
        kept |= {key: value for key, value in snapshot(root).items() if isinstance(value, str)}
        outside = snapshot(canary)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DirectoryWarning)
                act(action, root, record, summary, other)
            counts["done"] += 1
        except MirageError:
            counts["refused"] += 1
            if not users and ours is not None and action.endswith("--force"):
                raise  # what is ours alone is replaced
        after = snapshot(root)
        assert {key: after.get(key, "gone") for key in kept} == kept
        assert snapshot(canary) == outside


@pytest.mark.slow
def test_foreign_files_survive_a_thousand_layouts(finished: Path, whole: Path) -> None:
    counts = {"done": 0, "refused": 0}
    layouts((finished, whole), counts)
    assert counts["done"] >= 50
    assert counts["refused"] >= 300


# --- what is refused, and what is said --------------------------------------------------------------------------------


def test_the_users_kernel_of_the_report(tmp_path: Path) -> None:
    """Any directory with a file called run.json once counted as an earlier run."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "my_kernel.cu").write_text("__global__ void mine() {}")
    (tmp_path / "run.json").write_text('{"runs": 3}')
    before = snapshot(tmp_path)
    for more in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(MirageError, match=r"run\.json"):
            run_search(program(), Settings(**FAKE | more), tmp_path)
        assert snapshot(tmp_path) == before


def test_a_run_is_replaced_only_with_force_and_device_results_not_without_a_word(
    finished: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(finished, tmp_path / "run"))
    before = snapshot(root)
    with pytest.raises(RunError, match="got a finished run of mine") as caught:
        run_search(program(), Settings(**FAKE), root)
    assert "--resume" in caught.value.hint
    assert "--force" in caught.value.hint
    assert snapshot(root) == before
    with pytest.raises(SpaceError, match="got both"):
        run_search(program(), Settings(**FAKE, resume=True, force=True), root)
    (root / "kernels" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"got kernels/notes\.txt: nothing was removed"):
        run_search(program(), Settings(**FAKE, force=True), root)
    (root / "kernels" / "notes.txt").unlink()
    assert snapshot(root) == before
    with pytest.warns(DirectoryWarning, match=r"removed 2 results of a device: kernels/.*/measure\.json"):
        found = run_search(program(), Settings(**FAKE, force=True), root, name="mine")
    assert found.summary.status == "complete"
    assert not (root / "kernels").exists()


def test_an_unfinished_run_is_not_replaced_either(finished: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished, tmp_path / "run"))
    (root / "summary.json").unlink()
    with pytest.raises(RunError, match="got an unfinished run of mine"):
        run_search(program(), Settings(**FAKE), root)


def test_what_a_kill_leaves_before_the_first_record_is_no_run(finished: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / ".run.json.123.tmp").write_text('{"half')
    record = records.decode((finished / "run.json").read_bytes(), RunRecord, "")
    RunStore.open(root, record)
    assert sorted(snapshot(root)) == ["run.json", "search.jsonl"]


def test_kernels_with_results_of_a_device_are_built_again_only_with_force(finished: Path) -> None:
    with pytest.raises(RunError, match="got 2 results of a device"):
        expect_replaceable_kernels(finished / "kernels", force=False)
    with pytest.warns(DirectoryWarning, match="kernels are built again: removed 2 results"):
        expect_replaceable_kernels(finished / "kernels", force=True)


def test_links_are_neither_followed_nor_removed(finished: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished, tmp_path / "run"))
    (tmp_path / "link").symlink_to(root / "kernels")
    for path, how in ((tmp_path / "link", lambda p: remove(p, KERNELS_OF_ONE)), (tmp_path / "link", remove_file)):
        with pytest.raises(RunError, match="symbolic link"):
            how(path)
    shutil.rmtree(root / "kernels")
    (root / "kernels").symlink_to(finished / "kernels")
    before = snapshot(finished)
    changes: tuple[dict[str, Any], ...] = ({"force": True}, {"resume": True})
    for more in changes:
        with pytest.raises(RunError, match="got kernels: nothing was removed"):
            run_search(program(), Settings(**FAKE | more), root)
    assert snapshot(finished) == before


def test_from_python_a_search_without_a_directory_never_meets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = superoptimize(program(), **FAKE, name="mine")
    journaled = Path("runs/mine/search.jsonl").read_bytes()
    again = superoptimize(program(), **FAKE, name="mine")
    assert [result.digest for result in again] == [result.digest for result in first]
    assert [path.name for path in Path("runs").iterdir()] == ["mine"]
    assert Path("runs/mine/search.jsonl").read_bytes() == journaled
    before = snapshot(Path("runs/mine"))
    other = superoptimize(program(), **FAKE, name="mine", seed=1)
    assert other[0].directory.parts[:2][1].startswith("mine-")
    assert snapshot(Path("runs/mine")) == before


def test_reproduce_leaves_files_of_its_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"my own rows, without a newline")
    with pytest.raises(RunError, match="expected a record at the end"):
        RecordFile(path, Row)
    assert path.read_bytes() == b"my own rows, without a newline"
    (tmp_path / "workloads.md").write_text("mine")
    with pytest.raises(RunError, match="or a result beside it"):
        expect_writable_result(tmp_path, "workloads", Workloads)
    (tmp_path / "workloads.json").write_text("{}")
    with pytest.raises(RunError, match="expected an earlier result"):
        expect_writable_result(tmp_path, "workloads", Workloads)


def test_the_inventory_has_everything_that_a_search_writes(finished: Path, whole: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(root / "kernels")
    ((_, outcome), *_) = build_run(root, count=1, archs=())
    assert outcome.startswith("built")
    found = list_contents(root, RUN)
    assert found.foreign == ()
    assert {"run.json", "manifest.json", "launch.json", "001.smt2"} <= {path.name for path in found.files}
    assert list_contents(whole, WHOLE).foreign == ()
    assert len(list_contents(whole, WHOLE).files) > 3


# --- nothing else removes ---------------------------------------------------------------------------------------------

#: Each with what it removes.
REMOVERS = {
    "run_directory/directory_layout.py": "what is ours",
    "cache/lock.py": "the lock, which it has written",
    "cache/cache_directory.py": "entries of caches, which it has written",
    "records/storage.py": "its own temporary file",
    "torch/integrations/kernelbench/problem_runner.py": "the answer of a problem's process, which it has asked for",
}


def removals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("rmtree", "unlink", "rmdir", "removedirs"):
            yield node.attr
        if isinstance(node, ast.Attribute) and node.attr == "remove" and ast.unparse(node.value) == "os":
            yield "os.remove"
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
            yield from (
                name.name for name in node.names if name.name in ("rmtree", "unlink", "rmdir", "remove", "move")
            )


def test_only_one_module_removes_from_directories_of_users() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if list(removals(path))}
    assert found == set(REMOVERS)
