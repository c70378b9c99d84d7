"""An introduction to ``mirage_formal/prove``: equality with a proof, a counterexample, and agreement in a field."""

from __future__ import annotations

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown
from mirage_formal.prove.counterexamples.refute import find_counterexample
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings


def product(*, scale_first: bool, factor: int = 3) -> KernelGraph:
    """(factor X) W, or factor (X W)."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    w = graph.new_input(dims=(8, 16), dtype=mf.float16)
    result = graph.matmul(x * factor, w) if scale_first else graph.matmul(x, w) * factor
    graph.mark_output(result)
    return graph.freeze()


def test_equal_graphs_have_a_proof() -> None:
    verdict = prove(product(scale_first=True), product(scale_first=False))
    assert isinstance(verdict, Equivalent)
    assert verdict.conditions == ()
    assert verdict.proof


def test_different_graphs_have_no_proof_but_an_input_that_shows_it() -> None:
    program, candidate = product(scale_first=True), product(scale_first=False, factor=4)
    assert isinstance(prove(program, candidate), Unknown)
    found = find_counterexample(program, candidate, seed=0)
    assert found is not None
    assert found.expected != found.got


def test_agreement_at_random_points_of_a_field_is_no_proof() -> None:
    session = FingerprintSession(product(scale_first=True), FingerprintSettings(seed=1, rounds=1))
    assert isinstance(session.check(product(scale_first=False)).verdict, Probable)
    assert isinstance(session.check(product(scale_first=False, factor=4)).verdict, Different | Unknown)
