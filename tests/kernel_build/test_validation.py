"""Kernels are kept and launched only if they are proved to compute their µGraph; a caller may accept tested ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.autotune.kernel_preparation import Finalist, build_finalist
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.realization_record import realization_record
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build import validation
from mirage_formal.kernel_build.build import KernelChoice, KernelWarning, build, build_run
from mirage_formal.kernel_build.built_kernels import Acceptance, KernelRejected
from mirage_formal.kernel_build.candidate_preference import Alternatives
from mirage_formal.kernel_build.compile_unsearched import make_callable
from mirage_formal.records import REALIZES_FILE, RealizationRecord, RealizesRecord
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.support.errors import SpaceError, UnsupportedError
from tests.kit.kernels.example_kernels import H200, fastest
from tests.kit.runs.small_runs import kernel_runs
from tests.kit.runs.tampering import copy
from tests.revalidate.test_kernel_evidence import sign_sources

GRAPH = fastest()["ntrans-b1"]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with kernels."""
    return kernel_runs(tmp_path_factory.mktemp("runs"))["attention"]


@pytest.fixture
def root(attention: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return copy(attention, tmp_path / "run")


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lowering that errs: elements of a vector are written in reversed order, and single ones in place of the next."""
    decide = realization_record

    def change(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        for item in body:
            match item:
                case ir.GlobalWrite(values=(value,)):
                    found.append(replace(item, values=(ir.Combine(ir.BinaryFn.ADD, value, value),)))
                case ir.GlobalWrite():
                    found.append(replace(item, values=tuple(reversed(item.values))))
                case ir.For() | ir.If():
                    found.append(replace(item, body=change(item.body)))
                case _:
                    found.append(item)
        return tuple(found)

    def turned(graph: KernelGraph, kernel: GeneratedKernel) -> RealizationRecord:
        return decide(graph, replace(kernel, program=replace(kernel.program, body=change(kernel.program.body))))

    validation._decide.cache_clear()
    monkeypatch.setattr(validation, "realization_record", turned)
    yield
    validation._decide.cache_clear()


def test_built_kernels_have_the_claim() -> None:
    built = build(GRAPH, GRAPH, H200)
    assert [one.verdict for one in built.realized] == ["realizes"]
    assert built.realized[0].elements > 0
    assert built.realized[0].points > 0


def test_a_known_claim_is_used_for_the_same_kernel_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning builds a kernel with and without an early launch, and decides it once."""
    built = build(GRAPH, GRAPH, H200)
    known = validation.claim_records(built)
    decided: list[str] = []

    def decide(graph: KernelGraph, kernel: GeneratedKernel) -> RealizationRecord:
        decided.append(kernel.program.name)
        return realization_record(graph, kernel)

    monkeypatch.setattr(validation, "_decide", decide)
    ((name, program),) = built.programs.items()
    early = replace(program, body=(*program.body, ir.LaunchDependents()))
    for same in (built, replace(built, programs={name: early})):
        assert validation.validate_kernels(same, known=known).realized == built.realized
    assert not decided
    negated = replace(program, body=_negated(program.body))
    with pytest.raises(KernelRejected, match="elements differ"):
        validation.validate_kernels(replace(built, programs={name: negated}), known=known)
    other = next(graph for one, graph in fastest().items() if one == "ntrans-b8")
    executable = replace(built.executable, graph=other)
    with pytest.raises(KernelRejected):
        validation.validate_kernels(replace(built, executable=executable), known=known)
    assert decided == [name, name]


def _negated(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    found: list[ir.Stmt] = []
    for item in body:
        match item:
            case ir.GlobalWrite():
                values = tuple(ir.Apply(ir.KernelFn.NEG, value) for value in item.values)
                found.append(replace(item, values=values))
            case ir.For() | ir.If():
                found.append(replace(item, body=_negated(item.body)))
            case _:
                found.append(item)
    return tuple(found)


@pytest.mark.usefixtures("wrong")
def test_a_kernel_that_computes_something_else_is_rejected() -> None:
    with pytest.raises(KernelRejected, match=r"not proved that the kernel computes its µGraph: .* elements differ"):
        build(GRAPH, GRAPH, H200)
    accepted = build(GRAPH, GRAPH, H200, accept=Acceptance.TESTED)
    assert accepted.realized[0].verdict == "deviates"


@pytest.mark.usefixtures("wrong")
def test_a_run_passes_over_candidates_and_says_why(root: Path) -> None:
    assert all("not proved that the kernel" in said for _, said in build_run(root, 1, (), force=True))
    choice = KernelChoice(accept=Acceptance.TESTED)
    ((_, said), *_) = build_run(root, 1, (), force=True, choice=choice)
    assert said.startswith("built; ")
    assert "is tested and not proved" in said


def edited(directory: Path, change: dict[str, object], kernel: int = 0) -> None:
    """Edit an entry of realizes.json, and sign the directory again."""
    path = directory / REALIZES_FILE
    record = msgspec.json.decode(path.read_bytes(), type=RealizesRecord)
    kernels = list(record.kernels)
    kernels[kernel] = msgspec.structs.replace(kernels[kernel], **change)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, kernels=tuple(kernels))))
    sign_sources(directory)


@pytest.mark.parametrize(
    "change", [{"elements": 7}, {"classes": 99}, {"kernel": "other"}, {"points": 1}, {"bits": 3}, {"roundings": ("x",)}]
)
def test_an_edited_claim_is_refused(root: Path, change: dict[str, object]) -> None:
    directory = min((root / "kernels").iterdir())
    established = derive_kernels(directory, recompile=False)
    assert established.realized == established.kernels > 0
    edited(directory, change)
    with pytest.raises(CheckFailed, match=r"realizes\.json"):
        derive_kernels(directory, recompile=False)


def test_a_kernel_that_was_only_tested_is_counted_as_such(
    root: Path,
) -> None:
    directory = min((root / "kernels").iterdir())
    edited(directory, {"verdict": "unknown", "reason": "not decided"})
    established = derive_kernels(directory, recompile=False)
    assert established.tested == 1
    assert established.realized == established.kernels - 1


def test_the_claim_is_decided_without_its_file(root: Path) -> None:
    """A directory of before the claim, or one whose file was taken out and which was signed again."""
    directory = min((root / "kernels").iterdir())
    (directory / REALIZES_FILE).unlink()
    sign_sources(directory)
    established = derive_kernels(directory, recompile=False)
    assert established.realized == established.kernels > 0


# --- the option accept_kernels of Python


@pytest.mark.usefixtures("wrong")
def test_calls_run_tested_kernels_only_where_they_are_accepted() -> None:
    both = Alternatives((("one", encode(GRAPH)),), GRAPH, H200)
    with pytest.warns(KernelWarning, match="passed over"), pytest.raises(UnsupportedError, match="not proved"):
        both.built()
    assert both.claim == ""
    tested = both.accepting(Acceptance.TESTED)
    with pytest.warns(KernelWarning, match=r"candidate one: .* is tested and not proved: .* elements differ"):
        tested.built()
    assert tested.claim.startswith("tested only: ")
    assert pickle.loads(pickle.dumps(tested)).accept is Acceptance.TESTED
    assert tested.first().accept is Acceptance.TESTED
    again = tested.accepting(Acceptance.PROVED)
    with pytest.warns(KernelWarning, match="passed over"), pytest.raises(UnsupportedError, match="not proved"):
        again.built()


def test_proved_kernels_say_so() -> None:
    one = Alternatives((("one", encode(GRAPH)),), GRAPH, H200)
    one.built()
    assert one.claim == "proved to compute their µGraph"
    kept = one.accepting(Acceptance.TESTED)
    assert kept.kernels_of() is one.kernels_of(), "what is proved is not built again"


@pytest.mark.usefixtures("wrong")
def test_a_graph_runs_tested_kernels_only_where_they_are_accepted() -> None:
    with pytest.raises(KernelRejected, match="not proved"):
        make_callable(GRAPH)._build("sm_90a")
    with pytest.warns(KernelWarning, match="tested and not proved"):
        make_callable(GRAPH, Acceptance.TESTED)._build("sm_90a")
    with pytest.raises(KernelRejected, match="not proved"):
        mf.generate_cuda_program(GRAPH)
    assert mf.generate_cuda_program(GRAPH, accept_kernels="tested").built.tested


@pytest.mark.usefixtures("wrong")
def test_tuning_builds_tested_kernels_only_where_they_are_accepted() -> None:
    task = Finalist(encode(GRAPH), encode(GRAPH), "h200", "sm_90a", "", ())
    found = build_finalist(task)
    assert isinstance(found, str)
    assert "not proved that the kernel computes its µGraph" in found
    tested = build_finalist(replace(task, accept=Acceptance.TESTED))
    assert not isinstance(tested, str)
    assert len(tested.tested) == 1


def program() -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(2, 256), dtype=mf.float16)
    graph.mark_output(graph.exp(x))
    return graph


@pytest.mark.parametrize(
    "call",
    [
        lambda value, path: mf.superoptimize(program(), accept_kernels=value, out=path),
        lambda value, path: program().superoptimize(accept_kernels=value, out=path),
        lambda value, path: mf.load(path, accept_kernels=value),
        lambda value, path: mf.generate_cuda_program(program(), accept_kernels=value),
        lambda value, path: program().compile(accept_kernels=value),
        lambda value, path: program()([[0.0]], accept_kernels=value),
    ],
)
def test_a_misspelt_acceptance_is_refused_where_it_is_given(call: Callable[..., Any], tmp_path: Path) -> None:
    expected = r"accept_kernels: expected one of proved, tested, got 'testd'"
    with pytest.raises(SpaceError, match=expected) as raised:
        call("testd", tmp_path / "run")
    assert raised.value.hint
    assert not (tmp_path / "run").exists()


def test_the_two_acceptances_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="accept: expected one of equivalent, probable, got 'tested'") as raised:
        mf.superoptimize(program(), accept="tested", out=tmp_path / "run")
    assert "accept_kernels='tested'" in (raised.value.hint or "")


def test_results_have_what_was_accepted(attention: Path) -> None:
    assert [one.accepts_tested for one in mf.load(attention)[:1]] == [False]
    assert [one.accepts_tested for one in mf.load(attention, accept_kernels="tested")[:1]] == [True]
