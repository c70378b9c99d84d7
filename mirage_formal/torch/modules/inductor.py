"""Inductor as a compiler of graphs, and as-late-as-possible scheduling of its combo kernels.

Combo kernels merge independent kernels to one launch. Inductor merges nodes of one level, and a node's level is one
more than the highest level of its operands (as soon as possible). A node without operands is on the first level. So the
conversion of a mask gets a launch of its own there, and a tensor written between two operators is on a later level,
though only the second operator reads either. With levels counted from the end, a node's level is one less than the
lowest level of its readers, and both nodes share a launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch.fx import GraphModule

from mirage_formal.device import measure
from mirage_formal.support.errors import SpaceError

_Node = TypeVar("_Node")
#: Compiler of a graph, for inputs like the given ones.
Compile: TypeAlias = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
_COMBINED: Final = "combo_kernels"
#: Configurations of Inductor for the graph around operators: as its mode says, or with independent kernels merged to
#: one launch, each as late as possible, because little is left there. Measurement decides.
_WAYS: Final[tuple[Mapping[str, Any], ...]] = ({}, {_COMBINED: True})
#: Option by which Inductor makes no CUDA graphs of its own, which copy all inputs, parameters among them.
NO_CUDA_GRAPHS: Final[Mapping[str, Any]] = {"triton.cudagraphs": False}
#: Options by which newer versions of Inductor bound the memory of combo kernels; they group without levels then.
BOUNDED: Final = ("combo_kernel_peak_memory_pct_threshold", "combo_kernel_peak_memory_increase_gb")


def schedule_late(levels: Sequence[Sequence[_Node]], needs: Callable[[_Node], Iterable[_Node]]) -> list[list[_Node]]:
    """Return the same nodes, each moved to its latest possible level.

    Sound: a node is on an earlier level than all that need it. So nodes of one level do not need one another, no level
    needs a later one, and kernels that are each made of nodes of one level can be put in order.

    Args:
        levels: All nodes; a node is on a later level than its operands.
        needs: Function that returns the operands of a node.
    """
    last = len(levels) - 1
    place: dict[_Node, int] = {}
    for level in reversed(levels):
        for node in level:
            before = place.setdefault(node, last) - 1
            for needed in needs(node):
                place[needed] = min(place.get(needed, before), before)
    found: list[list[_Node]] = [[] for _ in levels]
    for level in levels:
        for node in level:
            found[place[node]].append(node)
    return found


@contextmanager
def late_combo_kernels() -> Iterator[None]:
    """Make Inductor group combo kernels by levels counted from the end, for versions where that is possible."""
    from torch._inductor import config, scheduler

    combo: Any = getattr(scheduler, "ForeachKernelSchedulerNode", None)
    own: Any = getattr(combo, "group_algorithm_for_combo_kernels", None)
    take: Any = getattr(combo, "set_group_algorithm_for_combo_kernels", None)
    if own is None or take is None or any(getattr(config, name, None) is not None for name in BOUNDED):
        yield
        return
    take(lambda scheduled: own(_LateScheduler(scheduled)))
    try:
        yield
    finally:
        take(own)


class _LateScheduler:
    """Proxy of an Inductor scheduler whose levels are counted from the end."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _topological_sort_nodes(self) -> list[list[Any]]:
        return schedule_late(self._scheduler._topological_sort_nodes(), self._scheduler._get_unmet_dep_nodes)


def inductor_compilers(mode: str | None, **more: Any) -> tuple[Compile, ...]:
    """Return one Inductor compiler for each configuration of ``_WAYS``; see ``inductor_compiler``."""
    return tuple(inductor_compiler(mode, **more, **way) for way in _WAYS)


def inductor_compiler(mode: str | None, **more: Any) -> Compile:
    """Return Inductor as a compiler with the options of a mode and further ones.

    Raises:
        SpaceError: Inductor has no such mode.
    """
    try:
        patches = {**_options_of(mode), **more}
    except RuntimeError as error:
        raise SpaceError(f"expected a mode of Inductor's, got {mode!r}", where="mode", hint=str(error)) from None

    def compile(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        with late_combo_kernels() if patches.get(_COMBINED) else nullcontext():
            compiled: Callable[..., Any] = compile_fx(module, list(inputs), config_patches=patches or None)
        return compiled

    return compile


@functools.cache
def lock_benchmarks() -> None:
    """Make Inductor hold ``measure.timing_lock`` whenever it times a kernel, from now on in this process."""
    from torch._inductor.runtime.benchmarking import benchmarker

    cls: Any = type(benchmarker)
    timed = getattr(cls, "benchmark_gpu", None)
    if timed is None:
        return

    @functools.wraps(timed)
    def benchmark_gpu(*given: Any, **named: Any) -> Any:
        with measure.timing_lock:
            return timed(*given, **named)

    cls.benchmark_gpu = benchmark_gpu


def fastest_mode_options(mode: str | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``superoptimize`` that one of Inductor's autotuning modes, which ask for speed, stands for.

    Triton files take part only where tested kernels are accepted, because they are not proved.
    """
    fastest = str(mode).startswith("max-autotune")
    return {"backend": "auto"} if fastest and asked.get("accept_kernels") == "tested" else {}


def uses_cuda_graphs(mode: str | None) -> bool:
    """Return whether Inductor captures its own CUDA graphs in a mode."""
    from torch._inductor import config

    return bool(_options_of(mode).get("triton.cudagraphs", config.triton.cudagraphs))


def _options_of(mode: str | None) -> dict[str, Any]:
    """Return the Inductor options that a ``torch.compile`` mode sets."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode)) if mode not in (None, "default") else {}


def can_compile(inputs: Sequence[Any]) -> bool:
    """Return whether Inductor can compile: Triton for a GPU, a C++ compiler elsewhere."""
    from torch.utils._triton import has_triton

    if any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs):
        return bool(has_triton())
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return bool(get_cpp_compiler())
    except InvalidCxxCompiler:
        return False


__all__ = [
    "BOUNDED",
    "NO_CUDA_GRAPHS",
    "Compile",
    "can_compile",
    "fastest_mode_options",
    "inductor_compiler",
    "inductor_compilers",
    "late_combo_kernels",
    "lock_benchmarks",
    "schedule_late",
    "uses_cuda_graphs",
]
