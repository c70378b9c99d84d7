"""Compilation of a user's graph without a search: as a callable on tensors, and as CUDA C++ text."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from mirage_formal.codegen.executable import Executable, workspace
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.device.launch import Optimized
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import row_major
from mirage_formal.kernel_build.build import KernelWarning, build
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels
from mirage_formal.support.errors import UnsupportedError

#: Target that kernels are planned for, by architecture. A device with less shared memory than its target refuses a
#: kernel that needs more when it is loaded.
_TARGETS: Final = {"sm_90a": "h200", "sm_80": "a100"}
#: Target of all other architectures: the one with the least shared memory.
_SMALLEST: Final = "rtx4090"


def make_callable(graph: KernelGraph, accept: Acceptance = Acceptance.PROVED) -> Optimized:
    """Return a graph as a callable; its kernels are built at the first call on a GPU.

    Sound: the kernels are of the graph itself, or of its running-maximum form, which is proved equal to it; their
    obligations are discharged, see ``kernel_build.build.build``.

    Args:
        graph: A program or a µGraph.
        accept: Whether kernels may run that are not proved to realize their operators.

    Returns:
        The callable, of the same class as that of a search result. It warns where exponentials are summed without a
        running maximum, and of each kernel that is only tested.
    """

    def build_executable(arch: str) -> Executable:
        built = build(graph, graph, target_of(arch), (arch,), accept=accept)
        for note in (built.stable.note, *built.tested):
            if note:
                warnings.warn(note, KernelWarning, stacklevel=2)
        return built.executable

    return Optimized(graph, build_executable)


def target_of(arch: str) -> Target:
    """Return the target that kernels for an architecture, as in "sm_80", are planned for."""
    return load_target(_TARGETS.get(arch, _SMALLEST))


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """CUDA C++ of a graph's kernels; ``program["code"]`` works too, as with the reference system's dictionary.

    Attributes:
        code: CUDA C++ of all generated kernels; products outside of block graphs are cuBLAS calls, and have none.
        buf_size: Bytes of the tensors between kernels.
        max_smem_size: Most bytes of shared memory of a block of one kernel.
        profiler_buf_size: Always 0: there is no profiling.
        output_directives: Number of elements, shape and strides of each output.
        built: The kernels, with their obligations.
    """

    code: str
    buf_size: int
    max_smem_size: int
    profiler_buf_size: int
    output_directives: tuple[dict[str, Any], ...]
    built: BuiltKernels

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name."""
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the reference system's dictionary."""
        return ("code", "buf_size", "max_smem_size", "profiler_buf_size", "output_directives")


def cuda_program(
    graph: KernelGraph,
    arch: str,
    input_strides: Sequence[Sequence[int]] | None,
    accept: Acceptance = Acceptance.PROVED,
) -> CudaProgram:
    """Build the kernels of a graph for an architecture, and return their text.

    Args:
        graph: A program or a µGraph.
        arch: Architecture, as in "sm_80".
        input_strides: Strides of the inputs, which must be the graph's; None for the graph's own.
        accept: Whether kernels are returned that are not proved to realize their operators.

    Raises:
        KernelRejected: It has no kernel that may run; says why.
        UnsupportedError: The strides are others.
    """
    own = [item.strides for item in graph.inputs]
    if input_strides is not None and [tuple(steps) for steps in input_strides] != own:
        what = f"expected the inputs' strides {[list(s) for s in own]}, got {[list(s) for s in input_strides]}"
        hint = "declare them in new_input, or leave input_strides out"
        raise UnsupportedError(what, where="generate_cuda_program", hint=hint)
    built = build(graph, graph, target_of(arch), accept=accept)
    programs: list[Program] = list(built.programs.values())
    shapes = [built.executable.values[number].shape for number in built.executable.outputs]
    return CudaProgram(
        code=built.executable.source,
        buf_size=workspace(built.executable)[1],
        max_smem_size=max((program.shared_bytes for program in programs), default=0),
        profiler_buf_size=0,
        output_directives=tuple(
            {"alloc_size": prod(shape), "shape": tuple(shape), "strides": row_major(shape)} for shape in shapes
        ),
        built=built,
    )
