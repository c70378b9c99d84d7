"""The front end's way to the prover, which is loaded only when somebody verifies."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from pathlib import Path

from mirage_formal import options
from mirage_formal.frontend.builder import Graph
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Verdict


def verify(
    program: Graph | KernelGraph,
    graph: Graph | KernelGraph | str | PathLike[str],
    *,
    seed: int = 0,
    time_limit: float | None = None,
) -> Verdict:
    """Whether a graph computes the same as a program over the reals: a proof, a counterexample, or neither.

    Args:
        program: The program.
        graph: The graph; or a file with one graph, in our format or a checkpoint of Mirage. Its inputs and outputs
            stand in the order of the program's.
        seed: Seed of the search for a counterexample.
        time_limit: Seconds after which the verdict is Unknown; it is then sought in a process of its own, which is
            killed. None seeks it here, for as long as it takes.

    Returns:
        Equivalent with a proof and its side conditions, Different with a counterexample, or Unknown with a reason. A
        verdict has no truth value: match on its class.

    Raises:
        FormatError: The file is at fault, or holds several graphs.
        GraphError: The graph is not well-formed, or its inputs or outputs have other shapes than the program's.
        ProgramError: The program or the graph is no kernel graph.
        SpaceError: The seed is no whole number from 0 up.
    """
    options.whole("seed", seed)
    # The pipeline loads solvers and numerical packages: only a call that verifies pays for them.
    run = import_module("mirage_formal.run.verify.verdicts").verify
    given = Path(graph) if isinstance(graph, str | PathLike) else graph
    verdict: Verdict = run(program, given, seed=seed, time_limit=time_limit)
    return verdict
