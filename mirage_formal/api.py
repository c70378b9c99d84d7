"""What users call: programs, the search for a faster equal one, and whether two graphs are equal.

Solvers and numerical packages are loaded by the first call that searches or proves, never by an import.
"""

from __future__ import annotations

import sys
import time
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from mirage_formal import options as rules
from mirage_formal.errors import GraphError, UnsupportedError
from mirage_formal.frontend.arguments import fail, ignore
from mirage_formal.frontend.builder import KernelBuilder
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Verdict

if TYPE_CHECKING:
    from mirage_formal.run.driver import Result
    from mirage_formal.run.progress import Progress
    from mirage_formal.run.request import Options

#: Options of the reference system that have no meaning here.
_IGNORED: Final = (
    "warmup_iters",
    "profile_iters",
    "use_graph_dataset",
    "use_cached_graphs",
    "save_codes",
    "is_formal_verified",
    "previous_checkpoint",
    "use_symbolic_search",
    "symbolic_checkpoint",
)
_SECONDS_BETWEEN_LINES: Final = 2.0


class Graph(KernelBuilder):
    """A tensor program under construction, made by ``new_kernel_graph``; see ``frontend.builder.KernelBuilder``."""

    def superoptimize(self, *, verbose: bool = False, backend: str | None = None, **options: Unpack[Options]) -> Result:
        """The best candidate for this program.

        Args:
            verbose: Whether to print progress to stderr.
            backend: See ``superoptimize``.
            options: See ``superoptimize``, which returns all candidates.

        Returns:
            The first of ``superoptimize``'s results.

        Raises:
            NothingFoundError: No candidate was found; says why, and what to try.
        """
        return superoptimize(self, verbose=verbose, backend=backend, **options)[0]


def new_kernel_graph() -> Graph:
    """A new, empty tensor program."""
    return Graph()


def superoptimize(
    graph: Graph | KernelGraph, *, verbose: bool = False, backend: str | None = None, **options: Unpack[Options]
) -> list[Result]:
    """Search, verify and rank candidates for a program.

    Args:
        graph: The program.
        verbose: Whether to print progress to stderr.
        backend: "cuda" or "triton"; has no effect here, because candidates are ranked by the cost model.
        options: See ``run.request.Options``. Options of the reference system that have no meaning here are accepted
            with a warning.

    Returns:
        The results, best first; never an empty list.

    Raises:
        NothingFoundError: There is no candidate to return; says why, and what to try.
        UnsupportedError: The backend or an option does not exist here.
        MirageError: The program or an option is at fault.
    """
    if not isinstance(graph, KernelBuilder | KernelGraph):
        text = f"superoptimize: expected a kernel graph, got {type(graph).__name__}"
        raise fail(GraphError, text, "make it with new_kernel_graph")
    if backend not in (None, "cuda", "triton"):
        raise fail(UnsupportedError, f"superoptimize: expected backend cuda or triton, got {backend!r}", "leave it out")
    if backend is not None:
        ignore(f"superoptimize option backend={backend!r}")
    given: dict[str, Any] = dict(options)
    for name in _IGNORED:
        if name in given:
            del given[name]
            ignore(f"superoptimize option {name}")
    if isinstance(graph, KernelBuilder):
        graph.freeze()  # what is wrong with it is said before anything is loaded
    from mirage_formal.run import request

    if unknown := sorted(set(given) - set(request.Options.__annotations__)):
        hint = "the options are " + ", ".join(request.Options.__annotations__)
        raise fail(UnsupportedError, f"superoptimize: no option is called {', '.join(unknown)}", hint)
    if verbose:
        given.setdefault("watch", _Lines())
    return request.superoptimize(graph, **cast("Options", given))


def equivalence(
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
    rules.whole("seed", seed)
    from mirage_formal.run.verify import verdicts

    given = Path(graph) if isinstance(graph, str | PathLike) else graph
    return verdicts.verify(program, given, seed=seed, time_limit=time_limit)


def set_gpu_device_id(device_id: int) -> None:
    """Accepted for programs written for the reference system; warns that it has no effect here.

    Args:
        device_id: Not used.
    """
    ignore("set_gpu_device_id")


def bypass_compile_errors(value: bool = True) -> None:
    """Accepted for programs written for the reference system; warns that it has no effect here.

    Args:
        value: Not used.
    """
    ignore("bypass_compile_errors")


class _Lines:
    """Prints where a run stands: at the start of each phase, and every few seconds."""

    def __init__(self) -> None:
        self._phase: object = None
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.phase == self._phase and now < self._next:
            return
        self._phase, self._next = progress.phase, now + _SECONDS_BETWEEN_LINES
        print(
            f"{progress.phase}: {progress.done}/{progress.total}, {progress.states} states, {progress.pruned} pruned, "
            f"{progress.candidates} candidates, {progress.elapsed_s:.1f} s",
            file=sys.stderr,
        )
