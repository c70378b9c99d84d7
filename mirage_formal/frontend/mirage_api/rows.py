"""Table of the reference system's Python interface: one row for each name, with its support here.

docs/mirage_api.md is printed from these rows, errors name them, and tests try every one. A name without a row is not
known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SupportLevel(StrEnum):
    """Degree of support for a name of the reference system."""

    YES = "yes"
    #: The use of the name raises UnsupportedError, with the row's name.
    NO = "no"
    #: The option is accepted with an IgnoredOptionWarning, and has no effect.
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class InterfaceName:
    """One name of the reference system's interface.

    Attributes:
        name: As there; methods with their class.
        offer: Whether it is offered.
        difference: The difference here, or the alternative.
    """

    name: str
    offer: SupportLevel
    difference: str = ""


@dataclass(frozen=True, slots=True)
class ObjectRows:
    """Rows of one object.

    Attributes:
        owner: The class of the reference system, or "" for the module itself.
        title: Heading.
        rows: Its names.
    """

    owner: str
    title: str
    rows: tuple[InterfaceName, ...]


def _rows(offer: SupportLevel, difference: str, *names: str) -> Iterator[InterfaceName]:
    return (InterfaceName(name, offer, difference) for name in names)


_YES, _NO, _IGNORED = SupportLevel.YES, SupportLevel.NO, SupportLevel.IGNORED
_TILES: Final = ("matmul", "add", "mul", "div", "sub", "exp", "silu", "relu", "square", "sqrt", "concat", "reduction")
_DTYPE: Final = "element types are float16, bfloat16 and float32"
_PERSISTENT: Final = "persistent kernels (MPK) are another system; here each kernel is launched"
_ONE_GPU: Final = "programs are of one GPU"
_CLUSTERS: Final = "blocks form no clusters: a second kernel joins what they compute"
_STAGES: Final = "planning chooses stages and warps"
_FRESH: Final = "a search whose directory is there is not made again: `out=`"

MODULE: Final = ObjectRows(
    "",
    "Names of the module",
    (
        InterfaceName("new_kernel_graph", _YES),
        InterfaceName("new_graph", _YES, "an older name of `new_kernel_graph`"),
        InterfaceName("new_threadblock_graph", _YES, "`reduction_dimx` may be left out: 64"),
        *_rows(_YES, "", "float16", "bfloat16", "float32"),
        *_rows(_NO, _DTYPE, "float64", "float8", "float8_e4m3", "int8", "int16", "int32", "int64"),
        *_rows(_NO, _DTYPE, "uint8", "uint16", "uint32", "uint64"),
        InterfaceName("convert_dtype_to_torch_type", _YES),
        InterfaceName("convert_torch_type_to_dtype", _YES),
        InterfaceName(
            "generate_cuda_program",
            _YES,
            "takes the graph itself; kernels whose safety obligations hold; `input_strides` must be the graph's; no "
            "`profiling`",
        ),
        InterfaceName(
            "generate_triton_program",
            _YES,
            "takes the graph itself; one file for all of it, which checks itself when it is run",
        ),
        InterfaceName("generate_nki_program", _NO, "kernels are CUDA C++: `generate_cuda_program`"),
        InterfaceName("set_gpu_device_id", _IGNORED, "calls run on the device of their tensors"),
        InterfaceName("bypass_compile_errors", _IGNORED, "a candidate without kernels is passed over, with a warning"),
        InterfaceName(
            "global_config", _NO, "there are no settings of the process: `verbose=` is an option of `superoptimize`"
        ),
        InterfaceName("graph_dataset", _NO, _FRESH),
        InterfaceName("search_symbolic", _NO, '`superoptimize` searches by expressions already: `engine="guided"`'),
        InterfaceName("InputNotFoundError", _NO, "every mistake is a `MirageError`"),
        *_rows(_NO, _PERSISTENT, "PersistentKernel", "MPK", "MPKMetadata", "MirageModelConfig", "spec_decode_class"),
        InterfaceName("visualizer", _NO, "`graph.visualize(file_name)`"),
        InterfaceName("profiler", _NO, "no profile is taken within kernels"),
        *_rows(_NO, "`superoptimize(measure=N)` measures, and Triton files check themselves", "TritonProfiler"),
        *_rows(_NO, "`superoptimize(measure=N)` measures", "profile_and_select_best_graph"),
        InterfaceName("get_shared_memory_capacity", _NO, "`target=` names a GPU, whose file has its limits"),
        InterfaceName("core", _NO, "there is no extension module below the graphs"),
        InterfaceName(
            "optimize", _NO, "of a graph, `superoptimize`, which returns all candidates; here it is for torch modules"
        ),
    ),
)
MAKING: Final = ObjectRows(
    "new_",
    "Options of `new_kernel_graph`, of `new_threadblock_graph` and of a block graph's `new_output`",
    (
        InterfaceName("new_kernel_graph(gpu_dim)", _NO, _ONE_GPU),
        InterfaceName("new_threadblock_graph(cluster_dim)", _NO, _CLUSTERS),
        *_rows(_IGNORED, _STAGES, *(f"new_threadblock_graph({n})" for n in ("pipe_stage", "num_warp_groups"))),
        InterfaceName("new_output(epilogue)", _NO, _ONE_GPU),
    ),
)
GRAPH: Final = ObjectRows(
    "KNGraph",
    "Methods of a kernel graph, which is a `Graph` here",
    (
        InterfaceName(
            "KNGraph.new_input", _YES, "`(dims, strides, dtype)` and `(dims, dtype, strides)`; inputs have names"
        ),
        InterfaceName(
            "KNGraph.mark_output",
            _YES,
            "row-major strides only; where nothing is marked, the outputs are the results that nothing reads",
        ),
        *_rows(_YES, "", *(f"KNGraph.{n}" for n in ("matmul", "exp", "silu", "relu", "sqrt", "square"))),
        InterfaceName("KNGraph.gelu", _YES, "with erf"),
        InterfaceName("KNGraph.reduction", _YES, "negative dims count from the last"),
        *_rows(_YES, "ranks may differ, as in numpy", *(f"KNGraph.{n}" for n in ("add", "mul", "div"))),
        InterfaceName("KNGraph.clamp", _YES, "bounds belong to the operator"),
        InterfaceName("KNGraph.pow", _YES),
        InterfaceName("KNGraph.rms_norm", _YES, "`normalized_shape` may be left out, or a weight; `weight=`, `eps=`"),
        InterfaceName("KNGraph.customized", _YES, "types are checked at once"),
        InterfaceName("KNGraph.chunk", _YES),
        InterfaceName("KNGraph.allreduce", _NO, _ONE_GPU),
        InterfaceName(
            "KNGraph.superoptimize",
            _YES,
            "what it returns is called as there; the function `superoptimize` returns all candidates",
        ),
        InterfaceName(
            "KNGraph.__call__",
            _YES,
            "`g(X, W)` too; nothing has to be compiled before; inputs must be as they were declared; without a GPU the "
            "reference semantics in float64 compute it; `outputs=` is where to write, or which of the graph's outputs",
        ),
        InterfaceName(
            "KNGraph.compile", _YES, "builds kernels where there is a GPU, and is not needed; no `profiling`"
        ),
        InterfaceName("KNGraph.visualize", _YES, "writes Graphviz text and draws nothing"),
        InterfaceName(
            "KNGraph.to_json", _YES, "writes its checkpoint format (mirage_json.md), of the operators that it has"
        ),
        InterfaceName(
            "KNGraph.from_json", _NO, "`mf.equivalence(program, file)` and `mirage-formal verify` read such files"
        ),
        InterfaceName("KNGraph.valid_kernels", _NO, "a graph without kernels says why when it is called"),
        InterfaceName("KNGraph.get_error_message", _NO, "a graph without kernels says why when it is called"),
        InterfaceName("KNGraph.get_owner_independent_hash", _NO, "`digest` of a result"),
        InterfaceName("KNGraph.cygraph", _YES, "the graph itself; of a result, `graph`"),
        *_rows(_NO, "`graph.freeze().inputs` has shapes and strides", "KNGraph.get_input_dtensors"),
        *_rows(_NO, "`graph.freeze().inputs` has shapes and strides", "KNGraph.get_input_dtensor_layout"),
        InterfaceName(
            "KNGraph.generate_triton_program", _YES, "takes the file to write, and returns its text under `code`"
        ),
        *_rows(
            _NO,
            _PERSISTENT,
            *(f"KNGraph.{name}" for name in ("attach_torch_tensor", "attach_cuda_tensor", "attach_nvshmem_tensor")),
            *(f"KNGraph.{name}" for name in ("fuse_tensors", "shuffle_tensors", "register_task")),
            "KNGraph.generate_task_graph",
        ),
    ),
)
OPTIONS: Final = ObjectRows(
    "superoptimize",
    "Options of `superoptimize`",
    (
        *_rows(
            _YES, "", *(f"superoptimize({n})" for n in ("imaps", "omaps", "griddims", "blockdims", "fmaps", "franges"))
        ),
        InterfaceName(
            "superoptimize(config)", _YES, "the presets here, or a TOML file; left out, chosen by the operators"
        ),
        InterfaceName("superoptimize(verbose)", _YES),
        InterfaceName("superoptimize(backend)", _YES, '`"cuda"`, `"triton"` or `"auto"`; `"nki"` is refused'),
        InterfaceName("superoptimize(num_search_thread)", _YES, "`workers`; -1 leaves it out"),
        InterfaceName("superoptimize(search_time_limit_sec)", _YES, "`time_limit`; -1 leaves it out"),
        *_rows(_IGNORED, "`measure=N`", "superoptimize(warmup_iters)", "superoptimize(profile_iters)"),
        *_rows(_IGNORED, _FRESH, "superoptimize(use_graph_dataset)", "superoptimize(use_cached_graphs)"),
        *_rows(_IGNORED, "`checkpoint=FILE` takes the graphs of a file", "superoptimize(previous_checkpoint)"),
        *_rows(_IGNORED, _FRESH, "superoptimize(symbolic_checkpoint)"),
        InterfaceName("superoptimize(save_codes)", _IGNORED, "`mirage-formal tools build` writes them"),
        InterfaceName("superoptimize(is_formal_verified)", _IGNORED, "every candidate is proved"),
        InterfaceName("superoptimize(use_symbolic_search)", _IGNORED, "`engine=` chooses"),
        *_rows(
            _IGNORED,
            "inputs count there: `max_block_ops`, `max_kernel_ops`",
            "superoptimize(max_num_threadblock_graph_op)",
            "superoptimize(max_num_kernel_graph_op)",
        ),
    ),
)
CODE: Final = ObjectRows(
    "compile",
    "Options of calls, of `compile` and of `generate_cuda_program`",
    (
        InterfaceName("compile(inputs)", _YES, "of `compile`: what calls have"),
        InterfaceName(
            "compile(target_cc)", _YES, "of `generate_cuda_program`; calls run on the device of their tensors"
        ),
        InterfaceName("compile(input_strides)", _YES, "of `generate_cuda_program`: must be the graph's"),
        *_rows(_IGNORED, _STAGES, "compile(num_warp_groups)", "compile(pipeline_stages)"),
        InterfaceName(
            "compile(enable_online_softmax)", _IGNORED, "sums of exponentials have running maxima wherever they can"
        ),
        InterfaceName("compile(file_id)", _IGNORED, "`mirage-formal tools build` writes files"),
        InterfaceName("compile(output_tensors)", _IGNORED, "the outputs are what is marked"),
        InterfaceName("compile(async_)", _IGNORED, "of `compile`, which waits"),
        InterfaceName("compile(profiling)", _NO, "no profile is taken within kernels"),
        InterfaceName("compile(rank)", _NO, _ONE_GPU),
    ),
)
BLOCK: Final = ObjectRows(
    "TBGraph",
    "Methods of a block graph, which is a `BlockBuilder` here",
    (
        InterfaceName("TBGraph.new_input", _YES, "all inputs come before the operators; no `store_in_dmem`"),
        InterfaceName("TBGraph.new_output", _YES, "no `forloop_dim`"),
        InterfaceName("TBGraph.cluster_accum", _NO, _CLUSTERS),
        InterfaceName("TBGraph.assign_task", _NO, _STAGES),
        *_rows(_YES, "", *(f"TBGraph.{n}" for n in _TILES)),
        InterfaceName("TBGraph.gelu", _YES, "with erf"),
        InterfaceName("TBGraph.mul_scalar", _YES, "the number is kept exactly"),
        InterfaceName("TBGraph.clamp", _YES, "bounds belong to the operator"),
        InterfaceName("TBGraph.rms_norm", _YES, "`dim=`, `eps=`"),
        InterfaceName(
            "TBGraph.reduction_max", _YES, "the difference of maxima is good for `exp` only, and 0 comes of the first"
        ),
        InterfaceName("TBGraph.forloop_accum", _YES, '`acc` is None, "sum", "mean", "rms" or "sum_todimx"'),
        InterfaceName("TBGraph.forloop_accum_rescale", _YES),
        InterfaceName("TBGraph.forloop_accum_max", _YES),
    ),
)
SECTIONS: Final = (MODULE, MAKING, GRAPH, OPTIONS, CODE, BLOCK)
