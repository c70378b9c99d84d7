"""Kernels are made of the running-maximum form, which has proofs of what it changes; without them they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.check.partitioning.subgraphs import ReplacedGraph, Replacement, replace_parts
from mirage_formal.codegen.executable import Binary, KernelLaunch, load_executable
from mirage_formal.codegen.online_softmax import stabilize as optimizer
from mirage_formal.codegen.online_softmax.stabilize import NoStableForm
from mirage_formal.codegen.target import load_target
from mirage_formal.device import tensors
from mirage_formal.device.launch import Optimized
from mirage_formal.graph.formats.json import encode, from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.kernel_build.build import KernelWarning, build
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.kernel_build.candidate_preference import Alternatives
from mirage_formal.kernel_build.save import save_built
from mirage_formal.kernel_build.stable_forms import NotProvedError, stabilize_proved
from mirage_formal.logic import session
from mirage_formal.logic.script import parse_script
from mirage_formal.prove.equality import prove
from mirage_formal.records import FormRecord, decode
from mirage_formal.semantics import float64_reference
from tests.kit.graphs import workloads as w
from tests.kit.runs.fake_devices import FakeCupy

H200 = load_target("h200")
SIZE = {"b": 2, "m": 16, "d": 16, "n": 64, "e": 16}
PROGRAM = w.attention(**SIZE)
SPLIT = w.attention_split(**SIZE, split=2, loop=2)


def kinds(graph: KernelGraph) -> set[OpKind]:
    blocks = [op.graph.ops for op in graph.ops if isinstance(op, GraphDefined)]
    return {op.kind for ops in blocks for op in ops if isinstance(op, Op)}


def again(graph: KernelGraph, proof: bytes) -> ReplacedGraph:
    """What the checker says about a file of proofs."""
    record = decode(proof, FormRecord, "equivalence.json")
    assert from_json(bytes(record.candidate)) == graph
    forms = [part.form for part in record.parts]
    others = [None if x is None else Replacement(from_json(bytes(x.graph)), bytes(x.proof)) for x in forms]
    return replace_parts(graph, [(part.operators, other) for part, other in zip(record.parts, others, strict=True)])


def test_it_has_a_proof_that_the_checker_replays() -> None:
    found = stabilize_proved(SPLIT)
    assert {OpKind.RUNNING_MAX, OpKind.ACCUM_RESCALED_SUM} <= kinds(found.graph)
    assert found.proof is not None
    shown = again(SPLIT, found.proof)
    assert shown.graph == found.graph
    assert shown.conditions == found.conditions
    assert found.note == ""


def test_what_sums_no_exponentials_stays_as_it_is() -> None:
    found = stabilize_proved(w.ntrans_fused(n=512))
    assert found.graph == w.ntrans_fused(n=512)
    assert found.proof is None


def test_files_lie_beside_the_kernels(tmp_path: Path) -> None:
    built = build(SPLIT, PROGRAM, H200)
    save_built(built, tmp_path)
    graph = from_json((tmp_path / "stabilized.json").read_bytes(), "stabilized.json")
    assert graph == load_executable(tmp_path).graph == built.stable.graph
    assert again(SPLIT, (tmp_path / "equivalence.json").read_bytes()).graph == graph
    assert isinstance(mf.equivalence(PROGRAM, tmp_path / "stabilized.json"), Equivalent)
    save_built(build(w.ntrans_fused(n=512), w.ntrans(n=512), H200), tmp_path)
    assert not (tmp_path / "stabilized.json").exists()
    assert not (tmp_path / "equivalence.json").exists()


def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "prove", lambda program, graph: Unknown("too hard"))


def wrong_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewriting that forgets to rescale one sum."""
    real = optimizer.stabilize

    def wrong(graph: KernelGraph) -> Any:
        found = real(graph)
        assert isinstance(found, KernelGraph)
        first = found.ops[0]
        assert isinstance(first, GraphDefined)
        plain = {OpKind.ACCUM_RESCALED_SUM: OpKind.ACCUM_SUM}
        ops = tuple(
            replace(op, kind=plain[op.kind], operands=op.operands[:1])
            if isinstance(op, Op) and op.kind in plain
            else op
            for op in first.graph.ops
        )
        return replace(found, ops=(replace(first, graph=replace(first.graph, ops=ops)), *found.ops[1:]))

    monkeypatch.setattr(optimizer, "stabilize", wrong)


def wrong_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prover that takes the proof of something else."""
    real = prove.prove
    monkeypatch.setattr(prove, "prove", lambda program, graph: real(program, program))


def wrong_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers that do not refute what the proof leaves to them."""
    results = session.discharge(parse_script("(set-logic QF_LIA)\n(assert false)\n(check-sat)\n"))
    found = [replace(result, answer=session.Satisfiability.UNKNOWN) for result in results]
    monkeypatch.setattr(session, "discharge", lambda script: found)


@pytest.mark.parametrize("fault", [unproved, wrong_form, wrong_proof, wrong_digits])
def test_without_a_proof_it_is_refused(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    fault(monkeypatch)
    from mirage_formal.kernel_build import stable_forms as module

    module._solver_complaint.cache_clear()
    with pytest.raises(NotProvedError):
        stabilize_proved(SPLIT)
    with pytest.raises(KernelRejected, match="NotProved"):
        build(SPLIT, PROGRAM, H200)
    module._solver_complaint.cache_clear()


def test_where_there_is_no_such_form_the_graph_goes_on_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numerics are the judge then."""
    monkeypatch.setattr(optimizer, "stabilize_with_groups", lambda graph: NoStableForm("a sum leaves the kernel"))
    built = build(SPLIT, PROGRAM, H200)
    assert built.executable.graph == SPLIT
    assert built.stable.note == "no running maximum: a sum leaves the kernel"
    one = Alternatives((("one", encode(SPLIT)),), PROGRAM, H200)
    with pytest.warns(KernelWarning, match="candidate one: no running maximum: a sum leaves the kernel"):
        one.built()


def test_a_call_on_a_device_survives_logits_beyond_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy arrays in, through the launcher, on the emulator; with a float32 tensor of maxima between the kernels."""
    built = build(SPLIT, PROGRAM, H200)
    binary = Binary("code.cubin", "0" * 64)
    launches = tuple(
        msgspec.structs.replace(x, cubins={"sm_90a": binary}) if isinstance(x, KernelLaunch) else x
        for x in built.executable.launches
    )
    files = {**built.executable.files, "code.cubin": b"machine code"}
    fake = FakeCupy(built.programs)
    monkeypatch.setitem(__import__("sys").modules, "cupy", fake)
    tensors.adapter.cache_clear()
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal(x.tensor.shape).astype(np.float16) * np.float16(5) for x in PROGRAM.inputs)
    logits = q.astype(float) @ k.astype(float)
    assert logits.max() > 200
    optimized = Optimized.of(replace(built.executable, launches=launches, files=files))
    got = optimized(*(fake.asarray(x) for x in (q, k, v))).get()
    (exact,) = float64_reference.run(PROGRAM, [x.astype(np.float64) for x in (q, k, v)])
    assert np.abs(got - exact).max() < 2e-3 * np.abs(exact).max()
    tensors.adapter.cache_clear()
