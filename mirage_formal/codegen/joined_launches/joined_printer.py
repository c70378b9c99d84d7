"""CUDA C++ of a joined launch: a function for a block of each Program, and the kernel that calls them.

The functions have the statements of ``emit_cuda``. What is handed over is declared without ``__restrict__``, in the
kernel and in the second function, so that no load of it can pass the ticket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirage_formal.codegen.cuda_printer import (
    CTYPES,
    JOINED_HEADER,
    block_function,
    emit_cuda,
    headers,
    index_text,
    kernel_head,
    parameter_macro,
    wrap_items,
)
from mirage_formal.codegen.joined_launches.block_groups import GROUP, ROUND, SECOND, JoinedProgram, block_name
from mirage_formal.codegen.program.access import GRID
from mirage_formal.codegen.program.integers import variables
from mirage_formal.codegen.program.program import Program

#: The counters of the groups, the last parameter of the kernel.
COUNTERS = "mf_counters"


def emit_launched(program: Program | JoinedProgram) -> str:
    """Return the CUDA C++ of what one launch runs.

    Raises:
        ValueError: It cannot be printed; says why.
    """
    return emit_joined(program) if isinstance(program, JoinedProgram) else emit_cuda(program)


def emit_joined(joined: JoinedProgram) -> str:
    """Return a joined launch as CUDA C++ text; equal ones give equal text.

    Raises:
        ValueError: Its Programs do not fit together, or one of them cannot be printed.
    """
    for what in joined.faults():
        raise ValueError(f"cannot print kernels {joined.first.name} and {joined.then.name}: {what}")
    return "\n".join(_lines(joined)) + "\n"


def _lines(joined: JoinedProgram) -> Iterator[str]:
    first, then, groups = joined.first, joined.then, joined.groups
    handed = frozenset(name for name, _ in groups.handed)
    # What a launch before may still write where the kernel starts early is awaited in both functions.
    awaited = {param.name for param in then.params if not param.written} if first.dependent else handed
    yield f"// {first.name}, and {then.name} by the last of every {groups.blocks} blocks: {groups.rounds} blocks of it."
    yield from (f'#include "{one}"' for one in dict.fromkeys((*headers(first), *headers(then), JOINED_HEADER)))
    yield ""
    yield from block_function(first, block_name(first), frozenset())
    yield ""
    yield from block_function(then, block_name(then), awaited)
    yield ""
    yield from wrap_items(kernel_head(joined.name, joined.threads, first.alone), _params(joined), ") {", "")
    own = [param.name for param in first.params]
    yield from _call(block_name(first), own, [f"blockIdx.{axis}" for axis in "xyz"], "  ")
    yield "  mf::publish();"
    for name, extent in zip(GRID, first.grid, strict=True):
        if name in variables(groups.group):
            yield f"  const int {name} = mf::below<{extent}>(blockIdx.{name[1]});"
    yield f"  const int {GROUP} = {index_text(first, groups.group)};"
    yield f"  if (mf::is_last<{groups.blocks}>({COUNTERS}, {GROUP})) {{"
    yield "    #pragma unroll 1"
    yield f"    for (int {ROUND} = 0; {ROUND} < {groups.rounds}; ++{ROUND}) {{"
    yield "      mf::reuse_shared();"
    sources = dict(groups.handed)
    given = [sources.get(param.name, f"{SECOND}{param.name}") for param in then.params]
    yield from _call(block_name(then), given, [index_text(then, one) for one in groups.then_block], "      ")
    yield "    }"
    yield f"    mf::reset({COUNTERS}, {GROUP});"
    yield "  }"
    yield "}"


def _params(joined: JoinedProgram) -> list[str]:
    """Return the declarations of the kernel's parameters."""
    macros = {
        param.name: "MF_HANDED" if param.name in joined.handed else parameter_macro(param, joined.first)
        for param in joined.params
    }
    found = [f"{macros[param.name]}({CTYPES[param.dtype]}) {param.name}" for param in joined.params]
    return [*found, f"MF_COUNTERS {COUNTERS}"]


def _call(function: str, tensors: Sequence[str], block: Sequence[str], pad: str) -> Iterator[str]:
    yield from wrap_items(f"{pad}{function}(", [*tensors, *block], ");", pad)


__all__ = ["COUNTERS", "emit_joined", "emit_launched"]
