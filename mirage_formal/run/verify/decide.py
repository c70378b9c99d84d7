"""Decision of equality: the prover first, then the search for a counterexample."""

from __future__ import annotations

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Unknown
from mirage_formal.prove.counterexamples.refute import find_counterexample
from mirage_formal.prove.equality.prove import prove


def decide_equality(program: KernelGraph, candidate: KernelGraph, *, seed: int = 0) -> Equivalent | Different | Unknown:
    """Decide whether a candidate equals the program, differs from it, or neither is known.

    Sound: Equivalent only with a proof, in which no number was evaluated; Different only with inputs on which float64
    tells the outputs apart. Different normal forms alone are Unknown.

    Raises:
        GraphError: A graph is not well-formed, or the two have other inputs or outputs.
    """
    proved = prove(program, candidate)
    if isinstance(proved, Equivalent):
        return proved
    found = find_counterexample(program, candidate, seed=seed)
    if found is None:
        return proved
    return Different(seed, found.output, found.index, found.expected, found.got, found)
