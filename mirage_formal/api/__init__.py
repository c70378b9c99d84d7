"""Public API: programs, the search for a faster equivalent program, and the equivalence check of two graphs.

Takes programs in Python, or a graph and keyword options. Returns results with evidence and kernels, or a verdict.
Imports autotune, cache, device, frontend, graph, kernel_build, partition, records, report, run, run_directory, search
and support.

Solvers and numerical packages are loaded by the first call that searches or proves, never by an import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from mirage_formal.frontend.argument_checks import (
    error_at_user_line,
    parse_dim3,
    parse_dtype,
    reject_unknown_options,
    warn_ignored,
)
from mirage_formal.frontend.handles import Handle
from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.frontend.mirage_api.table import missing_attribute_error, unsupported_name_error
from mirage_formal.graph.formats.dot import to_dot
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Verdict
from mirage_formal.report.pretty_printers import ProgramPrinter
from mirage_formal.support.errors import GraphError, UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.api.request import Options
    from mirage_formal.device.launch import Optimized
    from mirage_formal.kernel_build.triton.triton_generator import TritonProgram
    from mirage_formal.run.progress import Progress
    from mirage_formal.run.results.result import Result

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
    "max_num_threadblock_graph_op",
    "max_num_kernel_graph_op",
)
#: Options of the reference system that have another name here; there, -1 stands for an option that is left out.
_RENAMED: Final = {"num_search_thread": "workers", "search_time_limit_sec": "time_limit"}


class Graph(ProgramPrinter, KernelBuilder):
    """A tensor program under construction, made by ``new_kernel_graph``; see ``frontend.kernel_builder.KernelBuilder``.

    It can be called on tensors as it is, block graphs included.
    """

    def __init__(self) -> None:
        super().__init__()
        #: What calls run, and the number of tensors and the outputs of which it was made.
        self._called: tuple[object, Optimized] | None = None

    def __call__(
        self,
        *tensors: Any,
        out: Any = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        stream: Any = None,
        accept_kernels: str = "proved",
        **more: Any,
    ) -> Any:
        """Compute the outputs of the graph itself; no search comes before.

        On a GPU its own kernels run: made at the first call, with their safety obligations discharged, and kept.
        Without one the reference semantics in float64 compute it, rounded to the element type of the outputs.

        Args:
            tensors: The inputs in order; see ``device.launch.Optimized``.
            out: Where to write.
            inputs: The inputs as a list.
            outputs: The same as ``out``; or those of the graph's outputs that are wanted, as tensors of the graph.
            stream: Where to launch.
            accept_kernels: See ``compile``.
            more: Options of the reference system; see ``compile``.

        Returns:
            The output, or a tuple of them; for inputs given as a list, a list of all outputs.

        Raises:
            MirageError: The graph has no output or no kernel that may run, or a tensor does not fit.
            UnsupportedError: ``profiling`` or ``rank`` is set, or there is no such option.
        """
        from mirage_formal.kernel_build.generated_text import check_code_options

        check_code_options("a call", more, ("target_cc",))
        if outputs is not None and any(isinstance(tensor, Handle) for tensor in outputs):
            places = [self._place(tensor) for tensor in outputs]
            given = list(tensors) if inputs is None else inputs
            found = self._optimized(accept_kernels)(out=out, inputs=given, stream=stream)
            return [found[place] for place in places]
        return self._optimized(accept_kernels)(*tensors, out=out, inputs=inputs, outputs=outputs, stream=stream)

    @property
    def cygraph(self) -> Graph:
        """The graph itself: there is none below it."""
        return self

    def _place(self, tensor: object) -> int:
        """Return the position of a graph's tensor among the outputs."""
        found = self.results()
        if tensor not in found:
            text = f"expected one of the graph's outputs, {', '.join(map(repr, found))}, got {tensor!r}"
            raise error_at_user_line(GraphError, text, "mark it with mark_output, or leave outputs out")
        return found.index(tensor)

    def compile(self, async_: bool = False, *, accept_kernels: str = "proved", **more: Any) -> None:
        """Do what the first call on a GPU does; nothing where there is none. No call needs it.

        Args:
            async_: Has no effect; warns.
            accept_kernels: "proved": only kernels that are proved to compute the graph run. "tested": also those
                without that proof; a warning names each. A call has to say it as well.
            more: Options of the reference system. ``profiling`` is refused; ``inputs`` and ``target_cc`` are what calls
                have; the others have no effect and warn.

        Raises:
            MirageError: The graph has no output or no kernel that may run.
            SpaceError: ``accept_kernels`` is neither "proved" nor "tested".
            UnsupportedError: ``profiling`` is set, or there is no such option.
        """
        from mirage_formal.kernel_build.generated_text import check_code_options

        check_code_options("compile", {"async_": async_, **more}, ("async_", "inputs", "target_cc"))
        found = self._optimized(accept_kernels)
        from mirage_formal.device.runtime import device_count

        if device_count():
            found.prepare()

    def equivalence(self, program: Graph | KernelGraph, *, seed: int = 0, time_limit: float | None = None) -> Verdict:
        """Return whether this graph, with block graphs written by hand or not, computes what a program does.

        Args:
            program: The program.
            seed: See ``mirage_formal.equivalence``.
            time_limit: See ``mirage_formal.equivalence``.

        Returns:
            Equivalent with a proof, Different with a counterexample, or Unknown with a reason.

        Raises:
            MirageError: See ``mirage_formal.equivalence``.
        """
        return equivalence(program, self, seed=seed, time_limit=time_limit)

    def visualize(self, file_name: str | PathLike[str]) -> None:
        """Write the graph as text of Graphviz, from which ``dot -Tpng`` draws a picture.

        Args:
            file_name: File to write; ".dot" is appended if it has no ending.

        Raises:
            GraphError: The graph has no output.
            RunError: The file cannot be written.
        """
        from mirage_formal.kernel_build.generated_text import write_text

        write_text(file_name, ".dot", to_dot(self.freeze()))

    def to_json(self, filename: str | PathLike[str]) -> None:
        """Write the graph in the reference system's checkpoint format.

        Args:
            filename: File to write.

        Raises:
            UnsupportedError: The format has no place for an operator; names it.
            GraphError: The graph has no output.
            RunError: The file cannot be written.
        """
        from mirage_formal.graph.formats.mirage.checkpoint_writer import to_mirage
        from mirage_formal.kernel_build.generated_text import write_text

        write_text(filename, "", to_mirage([self.freeze()]))

    def generate_triton_program(self, path: str | PathLike[str] | None = None, *, target_cc: int = 90) -> TritonProgram:
        """The Triton file of the graph's own kernels; no search comes before.

        Args:
            path: File to write; ".py" is appended if it has no ending. None writes none.
            target_cc: See ``mirage_formal.generate_triton_program``.

        Returns:
            See ``mirage_formal.generate_triton_program``.

        Raises:
            MirageError: See there; or the file cannot be written.
        """
        from mirage_formal.kernel_build.generated_text import generate_triton_program, write_text

        made = generate_triton_program(self, target_cc=target_cc)
        if path is not None:
            write_text(path, ".py", made.code)
        return made

    def _optimized(self, accept_kernels: str) -> Optimized:
        from mirage_formal.kernel_build.built_kernels import parse_acceptance

        accept = parse_acceptance(accept_kernels)
        made_of = (self._count, tuple(tensor.number for tensor in self.outputs), accept)
        if self._called is None or self._called[0] != made_of:
            from mirage_formal.kernel_build.compile_unsearched import make_callable

            self._called = (made_of, make_callable(self.freeze(), accept))
        return self._called[1]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Names of the reference system that graphs here have not: refused by their row of the table."""
            raise missing_attribute_error("KNGraph", name, type(self).__name__)

    def superoptimize(self, *, verbose: bool = False, **options: Unpack[Options]) -> Result:
        """The best candidate for this program.

        Args:
            verbose: Whether to print progress to stderr; in a notebook, bars below the cell.
            options: See ``superoptimize``, which returns all candidates.

        Returns:
            The first of ``superoptimize``'s results.

        Raises:
            NothingFoundError: No candidate was found; says why, and what to try.
        """
        return superoptimize(self, verbose=verbose, **options)[0]


def new_kernel_graph(gpu_dim: object = (1, 1, 1)) -> Graph:
    """A new, empty tensor program.

    Args:
        gpu_dim: GPUs along x, y, z: one of each.

    Returns:
        A graph without inputs.

    Raises:
        UnsupportedError: More GPUs are asked for.
    """
    if (gpus := parse_dim3("new_kernel_graph", "gpu_dim", gpu_dim)) != (1, 1, 1):
        raise unsupported_name_error(
            "new_kernel_graph(gpu_dim)", f"new_kernel_graph: expected gpu_dim (1, 1, 1), got {gpus}"
        )
    return Graph()


def superoptimize(graph: Graph | KernelGraph, *, verbose: bool = False, **options: Unpack[Options]) -> list[Result]:
    """Search, verify and rank candidates for a program.

    Args:
        graph: The program.
        verbose: Whether to print progress to stderr; in a notebook, bars below the cell.
        options: See ``api.request.Options``. Options of the reference system that have no meaning here are accepted
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
        raise error_at_user_line(GraphError, text, "make it with new_kernel_graph")
    given: dict[str, Any] = {name: value for name, value in options.items() if (name, value) != ("backend", None)}
    if given.get("backend", "cuda") not in ("cuda", "triton", "auto"):
        text = f"superoptimize: expected backend cuda, triton or auto, got {given['backend']!r}"
        raise unsupported_name_error("superoptimize(backend)", text)
    for name, own in _RENAMED.items():
        if given.get(name, -1) != -1:
            given.setdefault(own, given[name])
        given.pop(name, None)
    for name in _IGNORED:
        if given.pop(name, None) not in (None, -1):  # both leave it out there
            warn_ignored(f"superoptimize option {name}")
    if isinstance(graph, KernelBuilder):
        graph.freeze()  # what is wrong with it is said before anything is loaded
    from mirage_formal.api import request

    reject_unknown_options("superoptimize", given, request.Options.__annotations__)
    if verbose:
        given.setdefault("watch", _watch())
    return request.superoptimize(graph, **cast("Options", given))


def equivalence(
    program: Graph | KernelGraph,
    graph: Graph | KernelGraph | str | PathLike[str],
    *,
    seed: int = 0,
    time_limit: float | None = None,
) -> Verdict:
    """Return whether a graph computes the same as a program over the reals: a proof, a counterexample, or neither.

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
    from mirage_formal.run.verify import verdicts
    from mirage_formal.support.options import Natural, check_value

    check_value("seed", seed, Natural)
    given = Path(graph) if isinstance(graph, str | PathLike) else graph
    return verdicts.verify(program, given, seed=seed, time_limit=time_limit)


def convert_dtype_to_torch_type(dtype: DType) -> Any:
    """The element type of torch that an element type here stands for.

    Args:
        dtype: float16, bfloat16 or float32, also by name.

    Returns:
        As in ``torch.float16``.

    Raises:
        DTypeError: There is no such element type.
        UnsupportedError: torch is not installed.
    """
    try:
        torch = import_module("torch")
    except ImportError:
        text = "convert_dtype_to_torch_type: expected torch, got none"
        raise error_at_user_line(UnsupportedError, text, "install torch, or use the element types here") from None
    return getattr(torch, parse_dtype(dtype).value)


def convert_torch_type_to_dtype(dtype: Any) -> DType:
    """The element type here that one of torch stands for.

    Args:
        dtype: As in ``torch.float16``.

    Returns:
        As in ``mirage_formal.float16``.

    Raises:
        DTypeError: There is none.
    """
    return parse_dtype(dtype)


def set_gpu_device_id(device_id: int) -> None:
    """Accepted for programs written for the reference system; warns that it has no effect here.

    Args:
        device_id: Not used.
    """
    warn_ignored("set_gpu_device_id")


def bypass_compile_errors(value: bool = True) -> None:
    """Accepted for programs written for the reference system; warns that it has no effect here.

    Args:
        value: Not used.
    """
    warn_ignored("bypass_compile_errors")


def _watch() -> Callable[[Progress], None]:
    """Shows where a run stands: as bars in a notebook, and as lines on standard error elsewhere."""
    from mirage_formal.run.progress.display_choice import in_notebook
    from mirage_formal.run.progress.progress_display import ProgressLines

    if not in_notebook():
        return ProgressLines("superoptimize", sys.stderr).watch("")
    from mirage_formal.run.progress.bars import NotebookBars

    return NotebookBars("superoptimize").watch("")
