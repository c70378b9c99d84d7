"""Text of graphs: CUDA C++, Triton, and files of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.frontend.argument_checks import error_at_user_line, reject_unknown_options, warn_ignored
from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.frontend.mirage_api.table import unsupported_name_error
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import parse_acceptance
from mirage_formal.support.errors import GraphError, RunError

if TYPE_CHECKING:
    from mirage_formal.kernel_build.compile_unsearched import CudaProgram
    from mirage_formal.kernel_build.triton.triton_generator import TritonProgram

#: Options of the reference system's code generator that have no meaning here.
_CODE_OPTIONS: Final = ("num_warp_groups", "pipeline_stages", "enable_online_softmax", "file_id", "output_tensors")


def generate_cuda_program(
    graph: KernelBuilder | KernelGraph,
    *,
    target_cc: int = 90,
    input_strides: Sequence[Sequence[int]] | None = None,
    accept_kernels: str = "proved",
    **more: Any,
) -> CudaProgram:
    """Return the CUDA C++ of a graph's own kernels, without a search.

    Args:
        graph: The graph.
        target_cc: Compute capability that they are planned for, as in 80 or 90.
        input_strides: The inputs' strides, which must be those of ``new_input``.
        accept_kernels: "proved": only kernels that are proved to compute the graph are returned. "tested": also those
            without that proof; ``built.tested`` names them.
        more: Options of the reference system. ``profiling`` is refused; the others have no effect and warn.

    Returns:
        The text under ``["code"]``, with ``["buf_size"]``, ``["max_smem_size"]`` and ``["output_directives"]``.

    Raises:
        GraphError: It is no graph, or has no output.
        MirageError: It has no kernel that may run.
        SpaceError: ``accept_kernels`` is neither "proved" nor "tested".
        UnsupportedError: The strides are others, ``profiling`` is set, or there is no such option.
    """
    accept = parse_acceptance(accept_kernels)
    if not isinstance(graph, KernelBuilder | KernelGraph):
        text = f"generate_cuda_program: expected a kernel graph, got {type(graph).__name__}"
        raise error_at_user_line(GraphError, text, "give the graph itself, or result.graph for a result")
    check_code_options("generate_cuda_program", more, ())
    from mirage_formal.kernel_build.compile_unsearched import cuda_program

    program = graph.freeze() if isinstance(graph, KernelBuilder) else graph
    return cuda_program(program, "sm_90a" if target_cc == 90 else f"sm_{target_cc}", input_strides, accept)


def generate_triton_program(graph: KernelBuilder | KernelGraph, *, target_cc: int = 90) -> TritonProgram:
    """Return the Triton file of a graph as it is written, its predefined operators included, without a search.

    torch and Triton need not be installed.

    Args:
        graph: The graph, or a candidate's (``result.graph``).
        target_cc: Compute capability of the GPU whose cost model chooses the tiles of predefined operators. The file
            itself runs on any that Triton supports.

    Returns:
        The text under ``["code"]`` and as ``.code``.

    Raises:
        GraphError: It is no graph, or has no output.
        MirageError: A kernel has no function of Triton; names it.
    """
    if not isinstance(graph, KernelBuilder | KernelGraph):
        text = f"generate_triton_program: expected a kernel graph, got {type(graph).__name__}"
        raise error_at_user_line(GraphError, text, "give the graph itself, or result.graph for a result")
    from mirage_formal.kernel_build.compile_unsearched import target_of
    from mirage_formal.kernel_build.triton.triton_generator import triton_program

    program = graph.freeze() if isinstance(graph, KernelBuilder) else graph
    return triton_program(program, program, target_of("sm_90a" if target_cc == 90 else f"sm_{target_cc}"))


def check_code_options(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check the options of the reference system's code generator: refuse some, warn about others.

    Args:
        where: Name of the called function, for messages.
        given: Options of the call.
        known: Names of options that have an effect.

    Raises:
        UnsupportedError: An option is refused or unknown.
    """
    for name, value in given.items():
        if name == "profiling" and value:
            raise unsupported_name_error("compile(profiling)", f"{where}: expected profiling=False, got {value!r}")
        if name == "rank":
            raise unsupported_name_error("compile(rank)", f"{where}: expected no rank, got {value!r}")
        reject_unknown_options(where, [name], (*known, "profiling", *_CODE_OPTIONS))
        if name in (*_CODE_OPTIONS, "async_") and not (value is None or value is False or value == -1):
            warn_ignored(f"{where} option {name}")


def write_text(file_name: str | PathLike[str], ending: str, text: str) -> None:
    """Write a text to a file.

    Args:
        file_name: The file.
        ending: Suffix appended to a name without one.
        text: The text.

    Raises:
        RunError: The file cannot be written.
    """
    path = Path(file_name)
    path = path if path.suffix or not ending else path.with_suffix(ending)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"expected a file that can be written, got {path}: {error.strerror}"
        raise error_at_user_line(RunError, what, "check the path") from None
