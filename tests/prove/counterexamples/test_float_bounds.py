"""float64 with bounds on what is lost: the values are the reference's, in the reference's shapes."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_formal import BlockBuilder, BlockTensor
from mirage_formal.prove.counterexamples.rounding_bounds import run_bounded
from mirage_formal.semantics.float64_reference import run
from tests.kit.proofs.claims import Saved, kernel, on, program


@pytest.mark.parametrize("loop", [1, 3])
def test_a_state_that_differs_between_blocks_in_its_factor_alone(loop: int) -> None:
    def body(b: BlockBuilder, x: BlockTensor, f: BlockTensor) -> Saved:
        return b.forloop_accum_rescale(x, f), on(x=0)

    graph = program(
        {"X": (2, 6), "F": (4, 1)},
        lambda g, x, f: kernel(g, (2, 1, 1), [(x, on(), 1), (f, on(x=0), None)], body, loop=loop),
    )
    arrays = [np.random.default_rng(1).uniform(0.5, 1.5, item.tensor.shape) for item in graph.inputs]
    (wanted,) = run(graph, arrays)
    ((value, bound),) = run_bounded(graph, arrays)
    assert value.shape == wanted.shape == (4, 6 // loop)
    assert (np.abs(value - wanted) <= bound + 1e-12).all()
