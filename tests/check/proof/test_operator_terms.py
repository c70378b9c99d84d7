"""What the kernel knows of a tensor from its operators alone: whether it always has values, and their signs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import ABOVE_ZERO, ANY, NOT_NEGATIVE, Terms
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.prove.equality import exact_domain, facts, tensor_terms
from mirage_formal.prove.equality.prove import prove
from tests.kit.graphs.random_graphs import random_graph, with_masks
from tests.kit.proofs.claims import Mask, pair, program
from tests.kit.proofs.proof_judge import Numbers
from tests.kit.sampling import number

SHAPES = {"X": (2, 3), "Y": (2, 3)}
#: Values, and what is known of them: whether they always exist, and their sign.
KNOWN: dict[str, tuple[Callable[[Graph, Tensor, Tensor], Tensor], tuple[bool, int]]] = {
    "a sum": (lambda g, x, y: x + y, (True, ANY)),
    "an exponential": (lambda g, x, y: g.exp(x - y), (True, ABOVE_ZERO)),
    "a square": (lambda g, x, y: g.square(x), (True, NOT_NEGATIVE)),
    "a quotient": (lambda g, x, y: x / y, (False, ANY)),
    "a quotient by a square": (lambda g, x, y: x / g.square(y), (False, ANY)),
    "a quotient by one and an exponential": (lambda g, x, y: x / (1 + g.exp(y)), (True, ANY)),
    "a softmax": (lambda g, x, y: g.softmax(x, 1), (True, ABOVE_ZERO)),
    "its logarithm": (lambda g, x, y: g.log(g.softmax(x, 1)), (True, ANY)),
    "a logarithm": (lambda g, x, y: g.log(x), (False, ANY)),
    "a logarithm of a square": (lambda g, x, y: g.log(g.square(x)), (False, ANY)),
    "a root": (lambda g, x, y: g.sqrt(x), (False, NOT_NEGATIVE)),
    "a root of a square": (lambda g, x, y: abs(x), (True, NOT_NEGATIVE)),
    "a norm": (lambda g, x, y: g.rms_norm(x), (False, ANY)),
    "a norm with an epsilon": (lambda g, x, y: g.rms_norm(x, eps=0.01), (True, ANY)),
    "a layer norm with an epsilon": (lambda g, x, y: g.layer_norm(x, eps=0.01), (True, ANY)),
    "a product with nothing": (lambda g, x, y: (x / y) * 0, (True, NOT_NEGATIVE)),
    "a number": (lambda g, x, y: g.log(x) * 0 + 3, (True, ABOVE_ZERO)),
    "a negative number": (lambda g, x, y: x * 0 - 3, (True, ANY)),
    "a divisor that is at least one": (lambda g, x, y: x / g.maximum(y, 1), (True, ANY)),
    "a divisor that is at most one": (lambda g, x, y: x / g.minimum(y, 1), (False, ANY)),
    "a quotient without NaN": (lambda g, x, y: g.div_no_nan(x, y), (True, ANY)),
    "one of squares": (lambda g, x, y: g.div_no_nan(g.square(x), g.square(y)), (True, NOT_NEGATIVE)),
    "one of a quotient": (lambda g, x, y: g.div_no_nan(x, 1 / y), (False, ANY)),
    "a comparison": (lambda g, x, y: g.cast(g.lt(x, y), "float16"), (True, NOT_NEGATIVE)),
    "a comparison of a quotient": (lambda g, x, y: g.cast(g.lt(x / y, y), "float16"), (False, NOT_NEGATIVE)),
    "a selected exponential": (lambda g, x, y: g.select(g.lt(x, y), g.exp(x), 0), (True, NOT_NEGATIVE)),
    "a selection of exponentials": (lambda g, x, y: g.select(g.lt(x, y), g.exp(x), g.exp(y)), (True, NOT_NEGATIVE)),
    "a guarded quotient": (lambda g, x, y: g.select(g.eq(y, 0), 0, x / y), (False, ANY)),
    "a rounding": (lambda g, x, y: g.round_to(g.exp(x), "float16"), (True, ANY)),
    "a hyperbolic tangent": (lambda g, x, y: g.tanh(x), (True, ANY)),
    "exponentials side by side": (lambda g, x, y: g.concat([g.exp(x), g.exp(y)], 1)[:, 1:-1], (True, ABOVE_ZERO)),
    "a product of matrices above zero": (lambda g, x, y: g.exp(x) @ g.transpose(g.exp(y), 0, 1), (True, ABOVE_ZERO)),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known(name: str) -> None:
    make, wanted = KNOWN[name]
    found = Elaboration(terms := Terms(), program(SHAPES, make), "program")
    assert {terms.known[term] for term in found.outputs[0].terms.values()} == {wanted}


def hostile(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, ones, negative and large numbers."""
    return rng.choice([0.0, 0.0, 1.0, -1.0, 2.0, -3.0, 0.5, 30.0], shape)


def test_what_is_known_holds_at_zeros_and_negative_numbers() -> None:
    """Of every term of random graphs, evaluated: values that exist are finite, and have their signs."""
    rng, seen = random.Random(3), Counter[tuple[bool, int]]()
    for seed in range(number(150, 1500)):
        while faults(graph := random_graph(rng, frozenset(OpKind), 3)):
            pass
        numbers = np.random.default_rng(seed)
        inputs = with_masks(graph, [hostile(numbers, x.tensor.shape) for x in graph.inputs])
        Elaboration(terms := Terms(), graph, "program")
        values = Numbers(terms, inputs)
        with np.errstate(all="ignore"):
            for term, (total, sign) in enumerate(terms.known):
                found = values(term)
                seen[total, sign] += 1
                if np.abs(found[np.isfinite(found)]).max(initial=0) > 1e8 or np.isposinf(found).any():
                    break  # what follows may have overflowed
                assert not total or np.isfinite(found).all(), values.keys[term]
                there = found[np.isfinite(found)]
                # What is above 0 may be too small for float64.
                assert sign == ANY or (there >= 0).all(), values.keys[term]
    assert all(seen[total, sign] > 20 for total in (True, False) for sign in (ANY, NOT_NEGATIVE))
    assert seen[True, ABOVE_ZERO] > 20


def _product(graphs: tuple[KernelGraph, KernelGraph], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What a prover writes that takes every selection for a product."""
    right = facts.infer_facts
    with monkeypatch.context() as patch:
        for module in (tensor_terms, exact_domain):
            patch.setattr(module, "infer_facts", lambda body, given: facts.TensorFacts(True, right(body, given).sign))
        verdict = prove(*graphs)
    assert isinstance(verdict, Equivalent)
    return verdict.proof


@pytest.mark.parametrize("name", KNOWN)
def test_a_selection_is_a_product_only_of_what_always_has_a_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker decides that itself: where the prover is wrong about it, the proof is refused."""
    make, (total, _) = KNOWN[name]
    shape = Elaboration(Terms(), program(SHAPES, make), "program").outputs[0].shape
    graphs = pair(
        {**SHAPES, "M": Mask(*shape)},
        lambda g, x, y, m: g.select(m, make(g, x, y), 0) * 3,
        lambda g, x, y, m: g.cast(m, "float16") * make(g, x, y) * 3,
    )
    assert isinstance(prove(*graphs), Equivalent) == total
    written = _product(graphs, monkeypatch)
    if total:
        replay(*graphs, written)
    else:
        with pytest.raises(ProofError, match=r"equal elements|factors to be used"):
            replay(*graphs, written)


def test_an_atom_is_known_by_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 5 as rows of 3 have no formula; that the quotient in them may have no value is known all the same."""
    shapes = {"X": (3, 5), "Y": (3, 5), "M": Mask(5, 3)}
    for divisor, total in ((lambda g, y: y, False), (lambda g, y: g.exp(y), True)):
        graphs = pair(
            shapes,
            lambda g, x, y, m, d=divisor: g.select(m, g.reshape(x / d(g, y), 5, 3), 0) * 2,
            lambda g, x, y, m, d=divisor: g.cast(m, "float16") * g.reshape(x / d(g, y), 5, 3) * 2,
        )
        assert isinstance(prove(*graphs), Equivalent) == total
        written = _product(graphs, monkeypatch)
        if total:
            replay(*graphs, written)
        else:
            with pytest.raises(ProofError, match=r"equal elements|factors to be used"):
                replay(*graphs, written)
