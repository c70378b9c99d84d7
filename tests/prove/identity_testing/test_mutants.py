"""Wrong µGraphs: what float64 tells apart from the program, the fingerprint refuses; what it does not, it accepts."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import chain

import pytest

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Probable, Unknown, Verdict
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.support.errors import GraphError
from tests.kit.graphs import workloads as w
from tests.kit.graphs.mutants import Decision, differs, double_mutants, single_mutants
from tests.kit.sampling import number, share

#: Small shapes: extents that coincide leave more changes well-formed, distinct ones make them show.
CASES = {
    "attention, two kernels": (
        w.attention(b=2, m=4, d=4, n=4, e=4),
        w.attention_split(b=2, m=4, d=4, n=4, e=4, split=2, loop=2, rows=2),
    ),
    "attention, one kernel": (
        w.attention(b=2, m=4, d=2, n=8, e=2),
        w.attention_one(b=2, m=4, d=2, n=8, e=2, rows=2, loop=2),
    ),
    "qk_norm": (w.qk_norm(b=1, m=4, d=4, n=4, e=4), w.qk_norm_one(b=1, m=4, d=4, n=4, e=4, rows=2, loop=2)),
    "rms_norm": (w.rmsnorm(b=4, k=4, n=4), w.rmsnorm_fused(b=4, k=4, n=4, grid=2, loop=2, rows=2)),
    "rms_norm by hand": (w.rmsnorm(b=2, k=4, n=4), w.rmsnorm_by_hand(b=2, k=4, n=4, grid=2, loop=2)),
    "lora": (w.lora(b=4, k=4, n=4, r=4), w.lora_fused(b=4, k=4, n=4, r=4, grid=2, loop=2, rows=2)),
    "gated_mlp": (w.gated_mlp(b=4, k=4, n=4), w.gated_mlp_fused(b=4, k=4, n=4, grid=2, loop=2, rows=2)),
    "ntrans": (w.ntrans(b=4, n=4), w.ntrans_fused(b=4, n=4, grid=2)),
}
#: Pairs of changes that are drawn for a case; a tenth to a third are well-formed. Single changes are all there.
DOUBLE = number(400, 1200)
#: What the issue names; each must occur among the wrong ones.
NAMED = (
    "imap",
    "fmap",
    "omap",
    "operand order",
    "accumulator",
    "doubled accumulator",
    "scale",
    "reduction",
    "kernel operand order",
)


@cache
def _judged(name: str) -> list[tuple[str, KernelGraph, Decision]]:
    """All well-formed mutants of a case, by labels: (label, graph, what float64 says of it)."""
    program, candidate = CASES[name]
    assert differs(program, candidate) is Decision.SAME
    rng = random.Random(7)
    seen = {candidate}
    found = []
    for label, mutant in chain(single_mutants(candidate), double_mutants(candidate, rng, DOUBLE)):
        if mutant in seen:
            continue
        seen.add(mutant)
        try:
            found.append((label, mutant, differs(program, mutant)))
        except GraphError:
            continue
    return found


def _met(bits: int, name: str) -> list[tuple[str, KernelGraph, Decision]]:
    """A share of a case's mutants, and the first wrong one of each kind that is named.

    The smaller primes, which tell less apart, meet more of them. Others: ``test_most_wrong_graphs...``.
    """
    judged = _judged(name)
    wrong: dict[str, tuple[str, KernelGraph, Decision]] = {}
    for mutant in judged:
        if mutant[2] is Decision.DIFFERENT:
            wrong.setdefault(mutant[0], mutant)
    return [*share(judged, 5 if bits == 20 else 8, 0), *(wrong[label] for label in NAMED if label in wrong)]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [20, 31])
@pytest.mark.parametrize("name", CASES)
def test_no_wrong_graph_is_accepted_and_right_ones_are(bits: int, name: str) -> None:
    program, candidate = CASES[name]
    session = FingerprintSession(program, FingerprintSettings(seed=17, prime_bits=bits, rounds=1))
    assert isinstance(session.check(candidate).verdict, Probable)
    for label, mutant, decision in _met(bits, name):
        verdict = session.check(mutant).verdict
        if decision is Decision.DIFFERENT:
            assert isinstance(verdict, Different | Unknown), (label, mutant)
        elif decision is Decision.SAME:
            right = isinstance(verdict, Probable) or (isinstance(verdict, Unknown) and "LAX" in verdict.reason)
            assert right, (label, verdict, mutant)


def test_there_are_enough_wrong_graphs_of_every_kind() -> None:
    labels: Counter[str] = Counter()
    right = 0
    for name in CASES:
        for label, _, decision in _judged(name):
            right += decision is Decision.SAME
            labels[label] += decision is Decision.DIFFERENT
    assert sum(labels.values()) >= number(1200, 2000)
    assert right >= 50
    assert not [label for label in NAMED if not labels[label]], labels
    for bits in (20, 31):
        met = {label for name in CASES for label, _, decision in _met(bits, name) if decision is Decision.DIFFERENT}
        assert not set(NAMED) - met


def test_a_missing_accumulator_is_refused_before_any_draw() -> None:
    """With a loop of more than one iteration such a graph has no meaning, which is an error and no verdict."""
    refused = 0
    for name, (program, candidate) in CASES.items():
        session = FingerprintSession(program, FingerprintSettings(prime_bits=20))
        for label, mutant in single_mutants(candidate):
            if label == "missing accumulator" and name != "ntrans" and "two kernels" not in name:
                with pytest.raises(GraphError):
                    session.check(mutant)
                refused += 1
    assert refused >= 10


@pytest.mark.slow
def test_most_wrong_graphs_are_refuted_outright() -> None:
    """Unknown is rare: it is no way out of a decision."""
    outcomes: Counter[type[Verdict]] = Counter()
    for name, (program, _) in CASES.items():
        session = FingerprintSession(program, FingerprintSettings(seed=3, prime_bits=31))
        for _, mutant, decision in share(_judged(name)[::3], 4, 1):
            if decision is Decision.DIFFERENT:
                outcomes[type(session.check(mutant).verdict)] += 1
    assert outcomes[Probable] == 0
    assert outcomes[Unknown] <= 0.1 * outcomes[Different]
