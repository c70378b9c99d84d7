"""Runs with added axioms: their identity and files, the checker, and an axiom that is false."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.check.candidate import check_candidate
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.logic.consistency import AXIOMS_ADDED
from mirage_formal.records import Identity, RunRecord, decode, key_of, read_file
from mirage_formal.run.driver import RunReport, search_program
from mirage_formal.run.settings import Settings, identity, make_job
from mirage_formal.support.errors import FormatError, SpaceError
from tests.kit.paths import REPOSITORY
from tests.kit.runs.tampering import reseal

LAW = REPOSITORY / "examples" / "axioms" / "exponential.smt2"


def product_of(function: str) -> KernelGraph:
    """f(x) f(y)."""
    graph = mf.new_kernel_graph()
    x, y = (graph.new_input(dims=(4, 4), dtype=mf.float16) for _ in "xy")
    graph.mark_output(graph.mul(getattr(graph, function)(x), getattr(graph, function)(y)))
    return graph.freeze()


def settings(*files: Path, without: tuple[str, ...] = ()) -> Settings:
    axioms = tuple(map(str, files)) or None
    return Settings(
        config="tiny", workers=1, cache=False, axioms=axioms, without_axioms=without or None, max_block_ops=4
    )


def test_axioms_are_part_of_the_identity_and_of_no_other_run() -> None:
    program = product_of("exp")
    usual, added, fewer = (
        identity(make_job(program, one)) for one in (settings(), settings(LAW), settings(without=("sub-exp",)))
    )
    assert len({key_of(one) for one in (usual, added, fewer)}) == 3
    assert b"axioms" not in msgspec.json.encode(usual)
    assert "exp-of-sum" in added.axioms[0]
    assert fewer.without_axioms == ("sub-exp",)
    assert msgspec.json.decode(msgspec.json.encode(usual), type=Identity) == usual


def test_the_place_of_a_file_is_no_part_of_the_identity(tmp_path: Path) -> None:
    other = tmp_path / "other.smt2"
    other.write_text(f"; elsewhere\n{LAW.read_text()}", encoding="utf-8")
    program = product_of("exp")
    assert identity(make_job(program, settings(other))) == identity(make_job(program, settings(LAW)))


def test_bad_axioms_are_mistakes_of_the_user(tmp_path: Path) -> None:
    bad = tmp_path / "bad.smt2"
    bad.write_text("\n(assert (! (forall ((x Expr)) (! (= (foo x) x) :qid a)) :named a))", encoding="utf-8")
    with pytest.raises(FormatError, match=r"bad\.smt2:2: axiom a: "):
        make_job(product_of("exp"), settings(bad))
    with pytest.raises(SpaceError, match="expected the name of an axiom, got nothing"):
        make_job(product_of("exp"), settings(without=("nothing",)))


def _uses_law(candidate: Path) -> bool:
    return any("exp-of-sum" in file.read_text() for file in (candidate / "proof").glob("*.smt2"))


@pytest.fixture(scope="module")
def lawful(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return search_program(product_of("exp"), settings(LAW), tmp_path_factory.mktemp("lawful") / "run")


def test_what_a_law_finds_is_proved_and_certified(lawful: RunReport) -> None:
    assert not lawful.summary.rejected
    assert any(remark.startswith(f"{AXIOMS_ADDED}: exp-of-sum") for remark in lawful.remarks)
    record = decode(read_file(lawful.directory / "run.json"), RunRecord, "run.json")
    assert len(record.identity.axioms) == 1
    using = [result for result in lawful.results if _uses_law(result.directory)]
    assert using
    established = check_candidate(using[0].directory)
    assert established.verdict == "equivalent"
    assert established.axioms == record.identity.axioms


@pytest.mark.parametrize(
    ("axioms", "step"),
    [
        (None, "certificate of"),
        ([], "closing line"),
        (["(assert (! (forall ((x Expr)) (! (= (foo x) x) :qid a)) :named a))"], "added axioms"),
        (["(assert"], "added axioms"),
    ],
)
def test_a_proof_log_without_its_axioms_or_with_malformed_ones_is_refused(
    lawful: RunReport, tmp_path: Path, axioms: list[str] | None, step: str
) -> None:
    root = tmp_path / "run"
    shutil.copytree(lawful.directory, root)
    for log in sorted((root / "candidates").glob("*/proof.jsonl")):
        *lines, last = log.read_text().splitlines()
        closing = json.loads(last)
        closing.pop("axioms")
        closing |= {} if axioms is None else {"axioms": axioms}
        log.write_text("\n".join([*lines, json.dumps(closing, separators=(",", ":")), ""]))
    reseal(root)
    using = [log.parent for log in root.glob("candidates/*/proof.jsonl") if _uses_law(log.parent)]
    with pytest.raises(CheckFailed) as caught:
        check_candidate(using[0])
    assert step in f"{caught.value.step} {caught.value.what}"


def test_a_false_law_makes_nothing_wrong_a_result(tmp_path: Path) -> None:
    false = tmp_path / "false.smt2"
    false.write_text(LAW.read_text().replace("exp", "silu"), encoding="utf-8")
    report = search_program(product_of("silu"), settings(false), tmp_path / "run")
    usual = search_program(product_of("silu"), settings(), tmp_path / "usual")
    assert report.summary.states > usual.summary.states
    assert {one.digest for one in report.results} <= {one.digest for one in usual.results}
    assert report.results
    assert report.summary.stats["rejected"] + len(report.summary.rejected) > 0
    assert not usual.summary.rejected
