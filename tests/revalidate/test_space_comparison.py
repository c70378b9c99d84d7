"""A run beside its space, which is enumerated again: what either has and the other lacks is named."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from mirage_formal.check.__main__ import main
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.run_check import Run, decode_graph, read_run
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Candidate, Verdict
from mirage_formal.records import FoundRecord
from mirage_formal.revalidate import space_comparison, space_enumeration
from mirage_formal.revalidate.space_comparison import (
    EnumeratedSpace,
    SpaceComparison,
    SpaceNotEnumerated,
    compare_with_space,
    describe_space,
    find_equal_graphs,
)
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.run.tasks import FingerprintFilter
from mirage_formal.search.bounds import Extents, SearchSpace
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.exhaustive import ExhaustiveEngine
from tests.codegen.test_lower_bound import chain, few
from tests.kit.paths import REPOSITORY
from tests.kit.runs.tampering import copy, edit, read_lines, reseal, write_lines
from tests.search.engine_comparison import K, matmul, op, rmsnorm, search, tensor


def graph(inputs: tuple[Input, ...], *ops: Op, outputs: tuple[int, ...] = ()) -> KernelGraph:
    return KernelGraph(inputs, ops, outputs or (len(inputs) + len(ops) - 1,))


def with_attrs(kind: K, *operands: int, **attrs: object) -> Op:
    return Op(kind, operands, Attrs(**attrs))  # type: ignore[arg-type]


X, Y = tensor("X", 2, 4), tensor("Y", 2, 4)
MASK = Input("M", DTensor((2, 4), DType.BOOL), row_major((2, 4)))


def with_grids(space: SearchSpace, *grids: tuple[int, int, int]) -> SearchSpace:
    return replace(space, free=replace(space.free, grids=grids))


#: Programs in spaces with what those of the lower bound have not: masks, constants, outputs, kernels, grids, limits.
SPACES: dict[str, tuple[KernelGraph, SearchSpace]] = {
    "two outputs": (graph((X,), op(K.EXP, 0), op(K.SUM, 0, dim=1), outputs=(1, 2)), few(2, K.EXP, K.SUM, kernels=2)),
    "scale": (graph((X,), with_attrs(K.SCALE, 0, factor=Fraction(2)), op(K.SUM, 1, dim=1)), few(3, K.SCALE, K.SUM)),
    "maximum": (graph((X, Y), op(K.MAXIMUM, 0, 1)), few(3, K.MAXIMUM)),
    "select": (graph((MASK, X, Y), op(K.SELECT, 0, 1, 2)), few(2, K.SELECT)),
    "select-value": (
        graph((MASK, X), with_attrs(K.SELECT, 0, 1, value=Fraction(0)), op(K.SUM, 2, dim=1)),
        few(3, K.SELECT, K.SUM),
    ),
    "cast": (
        graph((MASK,), op(K.LOGICAL_NOT, 0), with_attrs(K.CAST, 1, dtype=DType.FLOAT16)),
        few(3, K.LOGICAL_NOT, K.CAST),
    ),
    "comparison": (graph((X, Y), op(K.LT, 0, 1), op(K.SELECT, 2, 0, 1)), few(3, K.LT, K.SELECT)),
    "square": (graph((X,), op(K.SQUARE, 0)), few(3, K.SQUARE, K.MUL)),
    "product with itself": (graph((X,), op(K.MUL, 0, 0)), few(3, K.MUL)),
    "broadcast": (graph((X, tensor("Y", 2, 1)), op(K.MUL, 0, 1)), few(3, K.MUL, K.SUM)),
    "eps": (graph((X,), with_attrs(K.RMS_NORM, 0, dim=1, eps=Fraction(1, 100))), few(3, K.RMS_NORM)),
    "softmax": (graph((X,), op(K.SOFTMAX, 0, dim=1)), few(4, K.EXP, K.SUM, K.DIV)),
    "batch": (
        graph((tensor("X", 2, 2, 4), tensor("W", 2, 4, 2)), op(K.MATMUL, 0, 1)),
        few(3, K.MATMUL),
    ),
    "unread input": (graph((X, Y), op(K.EXP, 0)), few(2, K.EXP, K.MUL)),
    "carried input": (
        graph((X, tensor("B", 2, 1)), op(K.SUM, 0, dim=1), op(K.ADD, 2, 1)),
        few(4, K.SUM, K.ADD, K.ACCUM_MAX),
    ),
    "dimx": (
        graph((tensor("X", 2, 8),), op(K.SUM, 0, dim=1)),
        replace(few(3, K.SUM, K.SUM_TO_DIMX, K.ACCUM_SUM_TO_DIMX), reduction_dimx=(2, 4)),
    ),
    "two axes": (matmul(4, 4, 4), with_grids(few(3, K.MATMUL), (2, 2, 1), (2, 1, 1))),
    "listed maps": (matmul(4, 4, 4), replace(few(3, K.MATMUL), extents=Extents.PAPER)),
    "two kernels": (rmsnorm(2, 2, 2), few(1, K.MATMUL, K.RMS_NORM, kernels=2)),
    "three kernels": (chain(K.EXP, K.SUM, shape=(2, 2)), few(1, K.EXP, K.SUM, kernels=3)),
    "shared memory": (matmul(4, 4, 4), replace(few(3, K.MATMUL), shared_bytes=60)),
    "device memory": (rmsnorm(2, 4, 4), replace(few(1, K.MATMUL, K.RMS_NORM, kernels=2), device_bytes=90)),
    "block dims": (matmul(2, 4, 2), replace(few(2, K.MATMUL), block_dims=((128, 1, 1), (64, 1, 1)))),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_engine_without_pruning_finds_the_survivors(name: str) -> None:
    program, space = SPACES[name]
    gate = FingerprintFilter(program, 0)

    def accept(candidate: Candidate) -> Verdict:
        return gate(candidate)

    options = SearchOptions(engine="exhaustive", accept=accept, prune=False)
    found = find_equal_graphs(program, space, 0)
    assert isinstance(found, EnumeratedSpace)
    assert found.survivors
    assert found.survivors == search(ExhaustiveEngine(), program, space, options)


def test_the_enumeration_has_no_code_of_the_engines_and_at_most_300_lines() -> None:
    text = inspect.getsource(space_enumeration)
    assert len(text.splitlines()) <= 300
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in imported if name is not None and name.startswith("mirage_formal.")}
    shared = {"mirage_formal.search.bounds", "mirage_formal.search.epilogue_inputs"}
    assert {name for name in ours if not name.startswith("mirage_formal.graph.")} == shared


def settings(place: Path, **chosen: object) -> Settings:
    text = (REPOSITORY / "search" / "tiny.toml").read_text()
    for name, kinds in (("kernel_ops", ["exp", "sum"]), ("block_ops", ["exp", "sum", "accum_sum"])):
        text = re.sub(rf"^{name} = \[.*?\]$", f"{name} = {kinds}".replace("'", '"'), text, flags=re.S | re.M)
    place.write_text(text.replace("max_block_ops = 6", "max_block_ops = 3"))
    given = {"engine": "exhaustive", "config": str(place), "keep": 1, "workers": 1, **chosen}
    return Settings(**given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("spaces")
    run_search(chain(K.EXP, K.SUM), settings(place / "small.toml"), place / "run")
    return place / "run"


@pytest.fixture
def run(good: Path) -> Run:
    return read_run(good)


def with_candidates(run: Run, change: Callable[[list[FoundRecord]], list[FoundRecord]]) -> Run:
    found = change([one for unit in run.units for one in unit.candidates])
    first, *others = run.units
    units = (msgspec.structs.replace(unit, candidates=()) for unit in others)
    return replace(run, units=(msgspec.structs.replace(first, candidates=tuple(found)), *units))


def test_a_run_has_the_survivors_of_its_space(run: Run) -> None:
    found = compare_with_space(run)
    assert isinstance(found, SpaceComparison)
    assert found.survivors == found.found == run.summary.found
    assert (found.missing, found.outside) == ({}, ())
    assert found.states > found.run_states > found.graphs > found.survivors
    (line,) = describe_space(found)
    assert f"{found.states:,} states (the run: {run.summary.states:,})" in line


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_survivor_that_the_run_lost_is_named(run: Run, place: int) -> None:
    lost: list[FoundRecord] = []

    def lose(found: list[FoundRecord]) -> list[FoundRecord]:
        lost.append(found.pop(place))
        return found

    with pytest.raises(CheckFailed, match="which is in the space") as failure:
        compare_with_space(with_candidates(run, lose))
    assert failure.value.step == "space enumerated again"
    assert "graph_defined" in failure.value.what or "sum" in failure.value.what


@pytest.mark.parametrize("change", [{"status": "interrupted"}, {"units_failed": 1}, {"stats": {"cut": 1}}])
def test_a_search_that_did_not_end_may_lack_survivors(run: Run, change: dict[str, object]) -> None:
    summary = msgspec.structs.replace(run.summary, **change)
    found = compare_with_space(replace(with_candidates(run, lambda each: each[1:]), summary=summary))
    assert isinstance(found, SpaceComparison)
    assert found.missing == {"because the search did not end": 1}


def other_grid(run: Run) -> KernelGraph:
    """A candidate cut by two axes, which the space does not have."""
    for one in (one for unit in run.units for one in unit.candidates):
        form = decode_graph(one.graph)
        (made, *_) = form.ops
        if isinstance(made, GraphDefined) and len(form.ops) == 1 and made.graph.grid == (2, 1, 1):
            return replace(form, ops=(replace(made, graph=replace(made.graph, grid=(4, 1, 1))),))
    raise AssertionError("no candidate has a grid")


def recorded(form: KernelGraph) -> FoundRecord:
    return FoundRecord(digest=digest(form), graph=encode(form), kernels=1, estimated_us=9.0)


def test_a_candidate_outside_of_the_space_is_named(run: Run) -> None:
    extra = recorded(other_grid(run))
    found = compare_with_space(with_candidates(run, lambda each: [*each, extra]))
    assert isinstance(found, SpaceComparison)
    assert found.outside == (extra.digest,)
    assert extra.digest[:12] in describe_space(found)[-1]


def test_a_candidate_that_differs_is_refused(run: Run) -> None:
    extra = recorded(graph(chain(K.EXP).inputs, op(K.SUM, 0, dim=1), op(K.EXP, 1)))
    with pytest.raises(CheckFailed, match="equals the program, got one that differs") as failure:
        compare_with_space(with_candidates(run, lambda each: [*each, extra]))
    assert extra.digest[:12] in failure.value.what


@pytest.mark.parametrize(
    ("limits", "words"), [((50, 60.0), "more than 50 states"), ((10**6, 0.0), "stopped for time after")]
)
def test_a_limit_gives_no_survivors_but_a_reason(
    run: Run, limits: tuple[int, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = find_equal_graphs.__defaults__
    monkeypatch.setattr(
        space_comparison, "find_equal_graphs", lambda one, two, seed: find_equal_graphs(one, two, seed, limits)
    )
    found = compare_with_space(with_candidates(run, lambda each: []))
    assert kept == ((10**6, 300.0),)
    assert isinstance(found, SpaceNotEnumerated)
    assert words in found.reason
    assert describe_space(found) == [f"space not enumerated again: {found.reason}"]


def test_other_engines_and_large_guided_spaces_are_not_enumerated(run: Run) -> None:
    def of(engine: str, **space: bytes) -> Run:
        identity = msgspec.structs.replace(run.record.identity, engine=engine)
        changed = {name: msgspec.Raw(value) for name, value in space.items()}
        record = msgspec.structs.replace(run.record, identity=identity, space={**run.record.space, **changed})
        return replace(run, record=record)

    assert isinstance(compare_with_space(of("guided")), SpaceComparison)
    large = compare_with_space(of("guided", max_block_ops=b"5"))
    assert large == SpaceNotEnumerated("guided search of up to 5 operators")
    assert isinstance(compare_with_space(of("a.module:Engine")), SpaceNotEnumerated)
    assert isinstance(compare_with_space(of("exhaustive", max_block_ops=b'"many"')), SpaceNotEnumerated)


def test_what_cancels_is_left_out_by_name(tmp_path: Path) -> None:
    """A norm of a norm is that norm, which no abstract expression shows; without pruning nothing is left out."""
    text = (REPOSITORY / "search" / "tiny.toml").read_text()
    for name, kinds in (("kernel_ops", ["rms_norm"]), ("block_ops", ["rms_norm", "accum_sum"])):
        text = re.sub(rf"^{name} = \[.*?\]$", f"{name} = {kinds}".replace("'", '"'), text, flags=re.S | re.M)
    (tmp_path / "norms.toml").write_text(text.replace("max_block_ops = 6", "max_block_ops = 3"))
    for prune in (True, False):
        chosen = settings(tmp_path / "x.toml", config=str(tmp_path / "norms.toml"), prune=prune)
        run_search(chain(K.RMS_NORM), chosen, tmp_path / str(prune))
        found = compare_with_space(read_run(tmp_path / str(prune)))
        assert isinstance(found, SpaceComparison)
        assert found.survivors == found.found + sum(found.missing.values())
        assert set(found.missing) == ({"left out by name (cancels)"} if prune else set())


def test_layouts_around_the_sought_program_are_put_back(tmp_path: Path) -> None:
    """What is sought has no transpose, and candidates have it again."""
    program = graph(chain(K.EXP).inputs, with_attrs(K.TRANSPOSE, 0, perm=(1, 0)), op(K.EXP, 1))
    run_search(program, settings(tmp_path / "small.toml"), tmp_path / "run")
    found = compare_with_space(read_run(tmp_path / "run"))
    assert isinstance(found, SpaceComparison)
    assert (found.missing, found.outside) == ({}, ())


@pytest.mark.usefixtures("check_here")
def test_check_says_what_was_enumerated_and_refuses_a_run_that_lost_a_survivor(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(good)]) == 0
    assert "run: space enumerated again:" in capsys.readouterr().out
    root = copy(good, tmp_path / "run")
    reported = {item["digest"] for item in msgspec.json.decode((root / "summary.json").read_bytes())["candidates"]}
    lines = read_lines(root / "search.jsonl")
    lost = next(one for line in lines for one in line["candidates"] if one["digest"] not in reported)
    for line in lines:
        line["candidates"] = [one for one in line["candidates"] if one["digest"] != lost["digest"]]
    write_lines(root / "search.jsonl", lines)
    behind = "candidates behind the reported ones"
    edit(root / "summary.json", lambda value: value.update(found=value["found"] - 1))
    edit(root / "exhausted.json", lambda value: value["dropped"].update({behind: value["dropped"][behind] - 1}))
    reseal(root)
    assert main([str(root)]) == 1
    errors = capsys.readouterr().err
    assert "space enumerated again" in errors
    assert "which is in the space" in errors
