"""Forms of a candidate: proved, built, run on the emulator, written, and checked from their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda.manifest import check_kernels
from mirage_formal.codegen.cost import block_cost
from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.codegen.post_search_rewrites.split_k import SplitKernels, split_loop
from mirage_formal.codegen.target import load_target
from mirage_formal.device import compile as nvrtc
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.kernel_build import candidate_forms as module
from mirage_formal.kernel_build.__main__ import main as build_command
from mirage_formal.kernel_build.build import ARCHS, build, build_form
from mirage_formal.kernel_build.candidate_forms import OWN, CandidateForm, forms, mixed_form, parse_mixed_name
from mirage_formal.kernel_build.save import save_built
from mirage_formal.kernel_build.stable_forms import stabilize_proved
from mirage_formal.records import FormRecord, decode
from mirage_formal.revalidate.check_command import main as check
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.search.thread import fuse_threads
from tests.kit.graphs import workloads as w
from tests.kit.kernels import example_kernels as kit
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.tampering import sign_kernels

H200 = load_target("h200")
COMPILED = ARCHS if nvrtc.available() else ()
#: However slow they are estimated to be.
ANY = 1e9

SMALL = {"b": 2, "m": 16, "d": 16, "n": 64, "e": 16}
#: Name, program, candidate.
CASES: dict[str, tuple[KernelGraph, KernelGraph]] = {
    "norms of queries and keys": (w.qk_norm(**SMALL), w.qk_norm_one(**SMALL, rows=1, loop=4)),
    "attention": (w.attention(**SMALL), w.attention_one(**SMALL, rows=2, loop=4)),
    "gated products": (w.gated_mlp(b=16, k=256, n=128), w.gated_mlp_fused(b=16, k=256, n=128, grid=4, loop=8)),
    "norm and product": (w.rmsnorm(b=4, k=256, n=128), w.rmsnorm_fused(b=4, k=256, n=128, grid=4, loop=8)),
}


def named(found: list[CandidateForm], name: str) -> CandidateForm:
    return next(form for form in found if form.name == name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", list(CASES))
def test_kernels_of_every_form_are_safe_and_right(case: str) -> None:
    program, candidate = CASES[case]
    found = forms(candidate, H200, slack=ANY)
    assert found[0].name == OWN
    assert found[0].graph == stabilize_proved(candidate).graph
    assert [form.us for form in found[1:]] == sorted(form.us for form in found[1:])
    assert len({form.graph for form in found}) == len(found)
    assert {"split-2", "split-4"} <= {form.name for form in found}
    if case.startswith("norms"):
        assert {"factors", "factors split-4"} <= {form.name for form in found}
    for form in found:
        assert form.note == ""
        made = build(candidate, program, H200, form=form)
        assert made.candidate == digest(candidate)
        assert made.executable.graph == form.graph
        record = compare_on_emulator(made)
        assert record.answer == "within", (form.name, record)


@pytest.mark.parametrize("case", list(CASES))
def test_estimates_know_the_types_of_what_kernels_hand_on(case: str) -> None:
    """A kernel that combines float32 parts writes half precision: what reads it computes on tensor cores."""
    for form in forms(CASES[case][1], H200, slack=ANY):
        for graph in (form.graph, fuse_threads(form.graph)):
            types, first = kernel_types(graph), len(graph.inputs)
            for op in graph.ops:
                assert isinstance(op, GraphDefined)
                _, results = block_cost(op.graph, [types[n] for n in op.operands], H200)
                assert tuple(results) == types[first : first + op.results], form.name
                first += op.results


def test_they_are_the_same_every_time() -> None:
    _, candidate = CASES["norms of queries and keys"]
    assert forms(candidate, H200) == forms(candidate, H200)


def test_slow_forms_are_left_out() -> None:
    _, candidate = CASES["norm and product"]
    assert [form.name for form in forms(candidate, H200, slack=0.0)] == [OWN]
    own, *others = forms(candidate, H200, slack=2.0)
    assert all(form.us <= 2 * own.us for form in others)
    # The model charges more for the operators of a norm than for the norm.
    _, normed = CASES["norms of queries and keys"]
    assert [form.name for form in forms(normed, H200, slack=0.0)] == [OWN, "factors"]


def test_a_rewriting_that_is_wrong_has_no_proof_and_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of which the second kernel takes the largest instead of the sum."""

    def wrong(*given: Any, whole: bool = False) -> SplitKernels | None:
        found = split_loop(*given, whole=whole)
        if found is None:
            return None
        ops = tuple(
            replace(op, kind=OpKind.ACCUM_MAX) if isinstance(op, Op) and op.kind is OpKind.ACCUM_SUM else op
            for op in found.second.ops
        )
        return replace(found, second=replace(found.second, ops=ops))

    _, candidate = CASES["gated products"]
    assert len(forms(candidate, H200, slack=ANY)) > 1
    monkeypatch.setattr("mirage_formal.codegen.post_search_rewrites.rewrite_sequences.split_loop", wrong)
    assert [form.name for form in forms(candidate, H200, slack=ANY)] == [OWN]


def test_kernels_of_a_candidate_change_each_by_itself() -> None:
    """Two layers of gated products, and a norm between them: parts that change are proved alone."""
    one = CASES["gated products"][1]
    (kernel,) = one.ops
    inputs = (w.tensor("X", 16, 256), *(w.tensor(f"W{n}", 256, 256) for n in range(4)))
    assert isinstance(kernel, GraphDefined)
    block = replace(kernel.graph, grid=(8, 1, 1))
    layers = KernelGraph(
        inputs,
        (
            GraphDefined((0, 1, 2), block),
            w.op(OpKind.RMS_NORM, 5, dim=1),
            GraphDefined((6, 3, 4), block),
        ),
        (7,),
    )
    form = named(forms(layers, H200, slack=ANY), "split-2")
    assert form.proof is not None
    record = decode(form.proof, FormRecord, "equivalence.json")
    assert [(part.operators, part.form is not None) for part in record.parts] == [
        ((0,), True),
        ((1,), False),
        ((2,), True),
    ]
    assert len(form.graph.ops) == 5


def test_operators_of_a_candidate_have_forms_of_their_own_each() -> None:
    (kernel,) = CASES["gated products"][1].ops
    assert isinstance(kernel, GraphDefined)
    wide, narrow = (replace(kernel.graph, grid=(blocks, 1, 1)) for blocks in (8, 4))
    inputs = (w.tensor("X", 16, 256), *(w.tensor(f"W{n}", 256, 256) for n in range(4)))
    ops = (GraphDefined((0, 1, 2), wide), w.op(OpKind.RMS_NORM, 5, dim=1), GraphDefined((6, 3, 4), narrow))
    graph = KernelGraph(inputs, ops, (7,))
    found = {form.name: form for form in forms(graph, H200, slack=ANY)}
    halves, quarters = found["split-2"], found["split-4"]
    assert halves.sources == quarters.sources == (0, 0, 1, 2, 2)
    made = mixed_form(graph, H200, {0: "split-2", 2: "split-4"}, slack=ANY)
    assert (made.name, made.sources) == ("mixed: 0 split-2, 2 split-4", (0, 0, 1, 2, 2))
    assert parse_mixed_name(made.name) == {0: "split-2", 2: "split-4"}
    assert made.graph.ops == (*halves.graph.ops[:3], *quarters.graph.ops[3:])
    assert build(graph, graph, H200, form=made).executable.graph == made.graph
    one = mixed_form(graph, H200, {2: "split-4"}, slack=ANY)
    assert one.sources == (0, 1, 2, 2)
    assert one.graph.ops[0] == graph.ops[0]
    assert mixed_form(graph, H200, {}, slack=ANY).graph == found[OWN].graph
    with pytest.raises(KeyError):
        mixed_form(graph, H200, {0: "halved"}, slack=ANY)


def test_their_evidence_lies_beside_the_kernels_and_is_checked(tmp_path: Path) -> None:
    program, candidate = CASES["norms of queries and keys"]
    form = named(forms(candidate, H200, slack=ANY), "factors split-2")
    save_built(build(candidate, program, H200, form=form), tmp_path / "kernels")
    assert from_json((tmp_path / "kernels" / "stabilized.json").read_bytes(), "graph") == form.graph
    bound = check_kernels(tmp_path / "kernels")
    assert bound.about.stabilized
    assert bound.about.candidate == digest(candidate)
    assert bound.graph == form.graph
    # The evidence of another form says nothing about these kernels.
    other = named(forms(candidate, H200, slack=ANY), "split-2")
    assert other.proof is not None
    (tmp_path / "kernels" / "equivalence.json").write_bytes(other.proof)
    sign_kernels(tmp_path / "kernels")
    with pytest.raises(CheckFailed, match="put together from the parts"):
        check_kernels(tmp_path / "kernels")


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_the_command_builds_the_form_with_the_best_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=2, workers=1)
    root = tmp_path / "run"
    run_search(PROGRAMS["attention"]()[0], settings, root, name="attention")
    # At these extents a second launch never pays; estimates that say so are not what is tested.
    real = module.forms

    def flattering(candidate: KernelGraph, target: Any) -> list[CandidateForm]:
        return [form if form.name == OWN else replace(form, us=0.0) for form in real(candidate, target, slack=ANY)]

    monkeypatch.setattr(module, "forms", flattering)
    assert build_command([str(root), "--forms", "--arch", "sm_80"]) == 0
    said = capsys.readouterr().out
    assert "built in the form " in said
    assert check([str(root), "--jobs", "1"]) == 0
    assert "rewritten" in capsys.readouterr().out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", ["qk-b8", "gated_mlp-b16", "rmsnorm-b1", "attn-b8"])
def test_forms_at_real_extents(row: str) -> None:
    """Obligations hold, kernels compile, and real tiles run right."""
    name, batch = row.rsplit("-b", 1)
    program, candidate = kit.real(name, int(batch)), kit.fastest()[row]
    others = forms(candidate, H200, slack=1.4)[1:]
    assert others
    for form in others[:2]:
        made = build_form(form, program, H200, COMPILED)
        launches = [launch for launch in made.executable.launches if isinstance(launch, KernelLaunch)]
        spilled = {launch.name: [launch.cubins[arch].spill_bytes for arch in COMPILED] for launch in launches}
        assert not any(any(found) for found in spilled.values()), (form.name, spilled)
        for position, kernel in enumerate(kit.kernels(form.graph)):
            assert kit.run_alone(kernel, position) <= 1, (form.name, position)


def test_a_split_is_a_form_although_its_running_maxima_are_estimated_beyond_shared_memory() -> None:
    """A plan holds scores and their exponentials in registers, where the model counts them in shared memory."""
    found = {form.name: form for form in forms(w.attention_one(b=16, rows=8, loop=16), H200)}
    assert found["split-4"].us < found["own"].us
    first, second = (op.graph for op in found["split-4"].graph.ops if isinstance(op, GraphDefined))
    assert (first.grid, first.forloop_range, second.forloop_range) == ((16, 2, 4), 4, 1)
