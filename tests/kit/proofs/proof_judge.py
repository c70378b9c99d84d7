"""Whether an accepted proof says something true: against another proof, or line by line in numpy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.check.proof.tensor_steps import Steps
from mirage_formal.graph.graph import KernelGraph
from tests.kit.graphs.random_graphs import with_masks
from tests.kit.proofs.kernel_values import Numbers, Values, replayed
from tests.kit.proofs.proof_edits import Normal, Proof

#: A name, the program and the candidate.
Pair = tuple[str, KernelGraph, KernelGraph]


def accepts(pair: Pair, proof: Proof | str) -> bool:
    try:
        replay(pair[1], pair[2], proof if isinstance(proof, str) else json.dumps(proof))
    except ProofError:
        return False
    return True


def lines_are_true(pair: Pair, proof: Proof) -> bool:
    """Whether each tensor's element is what its operator term computes, at random inputs and a few positions.

    Inputs are positive, and negative too where some element has no value at positive ones.
    """
    steps = replayed(*pair[1:], proof)
    numbers = np.random.default_rng(1)
    drawn = [numbers.uniform(0.3, 1.4, x.tensor.shape) for x in pair[1].inputs]
    for sign in (1, -1):
        wanted = Numbers(steps.terms, with_masks(pair[1], [sign * array for array in drawn]))
        with np.errstate(all="ignore"):
            arrays = [wanted(tensor.term) for tensor in steps.tensors]
            good = _have_their_values(steps, wanted)
        if not good or not any(np.isnan(array).any() for array in arrays):
            return good
    return True


def _have_their_values(steps: Steps, wanted: Numbers) -> bool:
    """Whether elements are what their terms compute, where these have values."""
    values = Values(steps.ring, [wanted(source) for source in steps.sources])
    for tensor in steps.tensors:
        array = wanted(tensor.term)
        places = [position for position in np.ndindex(array.shape) if not np.isnan(array[position])]
        for position in places[:: max(1, array.size // 5)]:
            env: dict[int, int] = {}
            for i, string in zip(position, tensor.strings, strict=True):
                for digit in reversed(string):
                    i, env[digit] = divmod(i, steps.ring.extents[digit])
            if not abs(values.poly(tensor.poly, env) - array[position]) < 1e-8 * (1 + abs(array[position])):
                return False
    return True


def kind(old: Proof, new: Proof) -> str:
    """What an accepted edit did."""
    normal = Normal()
    if normal(old) != normal(new):
        return "other lines"
    return "other order" if _multipliers(old) == _multipliers(new) else "other multiplier"


def _multipliers(proof: Proof) -> list[list[Any]]:
    return [sorted(zip(m[::2], m[1::2], strict=True)) for entry in proof["outputs"] for m in entry[2:]]
