"""The front end's way to the pipeline, which is loaded only when somebody searches."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Final

from mirage_formal.errors import GraphError, UnsupportedError
from mirage_formal.frontend.arguments import fail, ignore
from mirage_formal.frontend.builder import Graph
from mirage_formal.graph.graph import KernelGraph

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


def superoptimize(
    graph: Graph | KernelGraph, *, verbose: bool = False, backend: str | None = None, **options: Any
) -> Any:
    """Search, verify and rank candidates for a program.

    Args:
        graph: The program.
        verbose: Whether to print progress to stderr.
        backend: "cuda" or "triton"; has no effect here, because candidates are ranked by the cost model.
        options: config, griddims, blockdims, imaps, omaps, fmaps, franges and the other options of
            ``mirage_formal.run.superoptimize``. Options of the reference system that have no meaning here are
            accepted with a warning.

    Returns:
        The list of results, best first; never an empty one.

    Raises:
        NothingFoundError: There is no candidate to return; says why, and what to try.
        UnsupportedError: The backend or an option does not exist here.
        MirageError: The program or an option is at fault.
    """
    if not isinstance(graph, Graph | KernelGraph):
        text = f"superoptimize: expected a kernel graph, got {type(graph).__name__}"
        raise fail(GraphError, text, "make it with new_kernel_graph")
    if backend not in (None, "cuda", "triton"):
        raise fail(UnsupportedError, f"superoptimize: expected backend cuda or triton, got {backend!r}", "leave it out")
    if backend is not None:
        ignore(f"superoptimize option backend={backend!r}")
    for name in _IGNORED:
        if name in options:
            del options[name]
            ignore(f"superoptimize option {name}")
    if isinstance(graph, Graph):
        graph.freeze()  # what is wrong with it is said before anything is loaded
    # The pipeline loads solvers and numerical packages: only a call that searches pays for them.
    run = import_module("mirage_formal.run").superoptimize
    parameters = signature(run).parameters
    unknown = sorted(set(options) - set(parameters))
    if unknown and all(p.kind is not Parameter.VAR_KEYWORD for p in parameters.values()):
        hint = "the options are " + ", ".join(name for name in parameters if name != "program")
        raise fail(UnsupportedError, f"superoptimize: no option is called {', '.join(unknown)}", hint)
    if verbose:
        options.setdefault("watch", _Lines())
    return run(graph, **options)


class _Lines:
    """Prints where a run stands: at the start of each phase, and every few seconds."""

    def __init__(self) -> None:
        self._phase: object = None
        self._next = 0.0

    def __call__(self, progress: Any) -> None:
        now = time.monotonic()
        if progress.phase == self._phase and now < self._next:
            return
        self._phase, self._next = progress.phase, now + _SECONDS_BETWEEN_LINES
        print(
            f"{progress.phase}: {progress.done}/{progress.total}, {progress.states} states, {progress.pruned} pruned, "
            f"{progress.candidates} candidates, {progress.elapsed_s:.1f} s",
            file=sys.stderr,
        )
