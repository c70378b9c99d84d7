"""Whether an accepted proof says something true: against another proof, or line by line in numpy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
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
    """Whether each tensor's element is what its operator term computes, at random inputs and a few positions."""
    _, program, candidate = pair
    numbers = np.random.default_rng(1)
    arrays = [
        numbers.uniform(0.3, 1.4, x.tensor.shape)
        if x.tensor.dtype.floating
        else numbers.integers(0, 2, x.tensor.shape).astype(float)
        for x in program.inputs
    ]
    steps = replayed(program, candidate, proof)
    wanted = Numbers(steps.terms, arrays)
    values = Values(steps.ring, [wanted(source) for source in steps.sources])
    for tensor in steps.tensors:
        array = wanted(tensor.term)
        for position in list(np.ndindex(array.shape))[:: max(1, array.size // 5)]:
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
