"""What worker processes do, in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import mirage_formal as mf
from mirage_formal.graph.canonical import canonical_with_digest
from mirage_formal.graph.formats.json import decode_graph, encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Candidate, Different, Equivalent, Probable, Unknown
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.identity_testing.fingerprint import FingerprintResult, FingerprintSession
from mirage_formal.records import VerdictRecord
from mirage_formal.run.settings import Settings, make_job, preprocess_job
from mirage_formal.run.task_values import AcceptedCandidate, CandidateTask, RejectedCandidate, UnitTask
from mirage_formal.run.tasks import (
    FingerprintFilter,
    load_engine,
    plan,
    replay_proof,
    search_unit,
    verdict_record,
    verify_candidate,
)
from mirage_formal.support.errors import UnsupportedError
from tests.kit.paths import REPOSITORY
from tests.kit.runs.fake_engine import fused, program


def test_unknown_engines_are_refused() -> None:
    for name in ("no.such.module:Engine", "tests.kit.runs.fake_engine:None_", "guided2"):
        with pytest.raises(UnsupportedError, match="expected an engine"):
            load_engine(name)


def test_the_gate_tests_every_pair_once_and_refuses_wrong_graphs() -> None:
    gate = FingerprintFilter(program(), 0)
    right, wrong = fused(program(), 2, 2, 1), fused(program(), 2, 2, 1, wrong=True)
    assert isinstance(gate(Candidate(right, "fake")), Probable)
    assert isinstance(gate(Candidate(wrong, "fake")), Different)
    assert isinstance(gate(Candidate(right, "fake", scaled=(program(), wrong))), Different)
    assert gate.tests == 2


def test_the_gate_asks_the_prover_where_the_fingerprint_says_nothing() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 6))
    graph.mark_output(graph.max(graph.exp(x), 1))
    other = mf.new_kernel_graph()
    y = other.new_input(dims=(4, 6))
    other.mark_output(other.max(y, 1))
    gate = FingerprintFilter(graph.freeze(), 0)
    assert isinstance(gate(Candidate(graph.freeze(), "fake")), Equivalent)
    assert isinstance(gate(Candidate(other.freeze(), "fake")), Unknown)


def test_the_gate_refuses_outputs_of_other_element_types() -> None:
    def scaled(dtype: mf.DType) -> KernelGraph:
        graph = mf.new_kernel_graph()
        x = graph.new_input(dims=(4, 6), dtype=mf.float16)
        graph.mark_output(graph.cast(graph.exp(x), dtype))
        return graph.freeze()

    gate = FingerprintFilter(scaled(mf.float32), 0)
    assert isinstance(gate(Candidate(scaled(mf.float32), "fake")), Probable)
    assert isinstance(gate(Candidate(scaled(mf.float16), "fake")), Unknown)


def _one_output() -> KernelGraph:
    graph = mf.new_kernel_graph()
    x, y, z = graph.new_input(dims=(4, 8)), graph.new_input(dims=(4, 8)), graph.new_input(dims=(8, 8))
    graph.mark_output(graph.div(graph.exp(graph.matmul(x, z)), graph.add(graph.relu(y), graph.sqrt(graph.exp(x)))))
    return graph.freeze()


def _two_outputs() -> KernelGraph:
    graph = mf.new_kernel_graph()
    x, y, z = graph.new_input(dims=(4, 8)), graph.new_input(dims=(8, 8)), graph.new_input(dims=(8, 8))
    graph.mark_output(graph.matmul(x, y))
    graph.mark_output(graph.exp(graph.matmul(x, z)))
    return graph.freeze()


def _views() -> KernelGraph:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 6))
    graph.mark_output(graph.transpose(graph.relu(graph.exp(graph.transpose(x, 0, 1))), 0, 1))
    return graph.freeze()


def _odd() -> KernelGraph:
    graph = mf.new_kernel_graph()
    x, y = graph.new_input(dims=(5, 7)), graph.new_input(dims=(7, 11))
    graph.mark_output(graph.relu(graph.exp(graph.matmul(x, y))))
    return graph.freeze()


@pytest.mark.parametrize("make", [_one_output, _two_outputs, _views, _odd])
def test_what_a_unit_finds_is_in_canonical_form_under_its_digest(make: Callable[[], KernelGraph]) -> None:
    """Also where what the engine found was fused, wrapped or padded, so that it is in canonical form no more."""
    job = preprocess_job(make_job(make(), Settings(config="mlp", max_kernel_ops=1, longer=True)))
    found = [one for unit in plan(job) for one in search_unit(UnitTask(job, "", unit, 0)).candidates]
    assert found
    for one in found:
        graph = decode_graph(one.graph)
        assert canonical_with_digest(graph) == (graph, one.digest)


def test_verdicts_as_data() -> None:
    assert verdict_record(Equivalent(b"{}", ("a",))) == VerdictRecord(kind="equivalent", conditions=("a",))
    assert verdict_record(Probable(2, -20.5, "")).bound_log2 == -20.5
    assert verdict_record(Unknown("why")).reason == "why"
    assert "expected 3, got 4" in verdict_record(Different(1, 0, (2, 2), 3, 4)).reason


def test_proving_and_replaying_load_neither_sympy_nor_solvers() -> None:
    """sympy is the checker's second opinion; a search does not pay for it."""
    script = """
import sys
from mirage_formal.run.tasks import replay_proof
from mirage_formal.prove.equality.prove import prove
from tests.kit.runs.fake_engine import fused, program
proved = prove(program(), fused(program(), 2, 4, 2))
print(replay_proof(program(), fused(program(), 2, 4, 2), proved.proof).theorem.steps)
print({"sympy", "z3", "cvc5", "galois"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    steps, loaded = done.stdout.splitlines()
    assert int(steps) > 0
    assert loaded == "set()"


def _shifted_exponential(split: bool) -> KernelGraph:
    """exp(x - max x), or exp(x) exp(-max x), which overflows."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16, 16), dtype=mf.float16)
    top = graph.max(x, 1)
    graph.mark_output(graph.exp(x) * graph.exp(graph.scale(top, -1)) if split else graph.exp(x - top))
    return graph.freeze()


def test_what_is_proved_and_wrong_at_special_values_takes_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[KernelGraph] = []
    check = FingerprintSession.check

    def counted(self: FingerprintSession, candidate: KernelGraph) -> FingerprintResult:
        checked.append(candidate)
        return check(self, candidate)

    monkeypatch.setattr(FingerprintSession, "check", counted)
    job = preprocess_job(make_job(_shifted_exponential(split=False), Settings()))
    found = verify_candidate(CandidateTask(job, encode(_shifted_exponential(split=True))))
    assert isinstance(found, RejectedCandidate)
    assert (found.kind, found.reason[:14]) == ("numerics", "special values")
    assert not checked
    # What is not proved is refused by the fingerprint or the prover, though it is wrong at special values as well.
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16, 16), dtype=mf.float16)
    graph.mark_output(graph.exp(x))
    found = verify_candidate(CandidateTask(job, encode(graph.freeze())))
    assert isinstance(found, RejectedCandidate)
    assert found.kind != "numerics"
    assert checked
    assert isinstance(verify_candidate(CandidateTask(job, encode(job.program))), AcceptedCandidate)


def test_what_the_kernel_refuses_is_unknown_and_names_the_place() -> None:
    right = fused(program(), 2, 2, 1)
    proved = prove(program(), right)
    assert isinstance(proved, Equivalent)
    assert not isinstance(replay_proof(program(), right, proved.proof), Unknown)
    for candidate, proof in (
        (fused(program(), 2, 2, 1, wrong=True), proved.proof),
        (right, proved.proof.replace(b'"exp"', b'"sqrt"', 1)),
        (right, b"{}"),
        (right, b""),
    ):
        refused = replay_proof(program(), candidate, proof)
        assert isinstance(refused, Unknown)
        assert refused.reason
