"""mirage_formal: a superoptimizer for tensor programs that verifies what it returns.

Importing it is light: solvers and numerical packages are loaded by the first search.

    import mirage_formal as mf

    graph = mf.new_kernel_graph()
    X = graph.new_input(dims=(16, 4096), dtype=mf.float16)
    W = graph.new_input(dims=(4096, 4096), dtype=mf.float16)
    graph.mark_output(graph.matmul(graph.rms_norm(X), W))
    best = graph.superoptimize(config="mlp")
"""

from __future__ import annotations

from mirage_formal.support.guard import at_start

at_start()  # before anything else: a command may be stopped while the rest is imported

from typing import TYPE_CHECKING  # noqa: E402

from mirage_formal.api import (  # noqa: E402
    Graph,
    bypass_compile_errors,
    convert_dtype_to_torch_type,
    convert_torch_type_to_dtype,
    equivalence,
    new_kernel_graph,
    set_gpu_device_id,
    superoptimize,
)
from mirage_formal.frontend.argument_checks import IgnoredOptionWarning  # noqa: E402
from mirage_formal.frontend.block_builder import BlockBuilder, BlockTensor, new_threadblock_graph  # noqa: E402
from mirage_formal.frontend.tensor import Tensor  # noqa: E402
from mirage_formal.graph.types import DType  # noqa: E402
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown, Verdict  # noqa: E402
from mirage_formal.report.pretty_printers import install_printers  # noqa: E402
from mirage_formal.support.errors import (  # noqa: E402
    ClusterError,
    DTypeError,
    FormatError,
    GraphError,
    MirageError,
    NothingFoundError,
    ProgramError,
    RunError,
    ShapeError,
    SpaceError,
    TargetError,
    UnsupportedError,
    WorkerError,
)

install_printers()

if TYPE_CHECKING:
    from mirage_formal.api.request import Options
    from mirage_formal.kernel_build.generated_text import generate_cuda_program, generate_triton_program
    from mirage_formal.run.result_cache.loading import load
    from mirage_formal.run.results.result import Result
    from mirage_formal.torch import from_torch, optimize

__version__ = "0.1.0"

float16 = DType.FLOAT16
bfloat16 = DType.BFLOAT16
float32 = DType.FLOAT32
bool_ = DType.BOOL

new_graph = new_kernel_graph  # the reference system's first name of it

__all__ = [
    "BlockBuilder",
    "BlockTensor",
    "ClusterError",
    "DType",
    "DTypeError",
    "Different",
    "Equivalent",
    "FormatError",
    "Graph",
    "GraphError",
    "IgnoredOptionWarning",
    "MirageError",
    "NothingFoundError",
    "Options",
    "Probable",
    "ProgramError",
    "Result",
    "RunError",
    "ShapeError",
    "SpaceError",
    "TargetError",
    "Tensor",
    "Unknown",
    "UnsupportedError",
    "Verdict",
    "WorkerError",
    "__version__",
    "bfloat16",
    "bypass_compile_errors",
    "convert_dtype_to_torch_type",
    "convert_torch_type_to_dtype",
    "equivalence",
    "float16",
    "float32",
    "from_torch",
    "generate_cuda_program",
    "generate_triton_program",
    "load",
    "new_graph",
    "new_kernel_graph",
    "new_threadblock_graph",
    "optimize",
    "set_gpu_device_id",
    "superoptimize",
]


def __getattr__(name: str) -> object:
    """Names whose modules load numerical packages, and those of the reference system that have a row but no place."""
    if name == "Result":
        from mirage_formal.run.results.result import Result

        return Result
    if name in ("generate_cuda_program", "generate_triton_program"):
        from mirage_formal.kernel_build import generated_text

        return getattr(generated_text, name)
    if name == "Options":
        from mirage_formal.api.request import Options

        return Options
    if name == "load":
        from mirage_formal.run.result_cache.loading import load

        return load
    if name == "from_torch":
        from mirage_formal.torch import from_torch

        return from_torch
    if name == "optimize":
        from mirage_formal.torch import optimize

        return optimize
    if name == "hf":
        import mirage_formal.hf as hf

        return hf
    from mirage_formal.frontend.mirage_api.table import missing_attribute_error

    raise missing_attribute_error("", name, f"module {__name__}")
