"""Search spaces of a program's subgraphs: whether a search takes a subgraph, and which space it gets."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.run.settings import Job, Settings, choose_config
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_fusible
from mirage_formal.search.preprocess import preprocess
from mirage_formal.search.space import SearchSpace, load_space
from mirage_formal.support.errors import UnsupportedError

#: Operators that only rename or move elements: a space has to list them before a search can propose them.
_MOVES: Final = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE})


def is_searchable(part: KernelGraph, job: Job, settings: Settings, *, proved: bool = True) -> bool:
    """Return whether a search takes a subgraph: its engine supports it, and its digest can be computed.

    Sound: a part that is refused stays as it is.

    Args:
        part: The subgraph.
        job: Job of the whole program.
        settings: Settings of the user.
        proved: Whether its preprocessing is proved, as it is before a search; costs are estimated without.
    """
    plain = preprocess(part, proved=proved).program
    kinds = _operator_kinds(plain)
    listed = (
        _listed_operators(job.space)
        if settings.config is not None
        else _preset_operators(part_config(part, settings, proved=proved))
    )
    if job.engine == "guided" and not settings.narrowed and is_fusible(plain):
        return _has_digest(part)
    if job.engine == "exhaustive" and not kinds <= listed:
        return False
    if job.engine == "guided" and kinds & (_MOVES - listed):
        return False
    try:
        if job.engine == "guided":
            from mirage_formal.search.horizontal_fusion.outputs import require_outputs

            require_outputs(plain)
    except UnsupportedError:
        return False
    return _has_digest(part)


def _has_digest(part: KernelGraph) -> bool:
    try:
        digest(part)
    except UnsupportedError:
        return False
    return True


def part_config(part: KernelGraph, settings: Settings, *, proved: bool = True) -> str:
    """Return the search space of a subgraph.

    The default space has two graph-defined kernels and more, which only attention needs. Other subgraphs get the
    smaller "mlp" space, unless it lacks one of their operators.

    Args:
        part: The subgraph.
        settings: Settings of the user.
        proved: As for ``is_searchable``.
    """
    config = settings.config or choose_config(part)
    if config != "default" or settings.config is not None:
        return config
    kinds = _operator_kinds(preprocess(part, proved=proved).program)
    return "default" if kinds & (_preset_operators("default") - _preset_operators("mlp")) else "mlp"


def part_kernels(part: KernelGraph, settings: Settings, *, single: bool) -> int | None:
    """Return the most kernels of a subgraph's candidates; None leaves the number of its space.

    The result is 1 for a merged subgraph, for a cover with few kernels, and for a subgraph larger than a kernel's
    limits that is fused by search/horizontal_fusion. For these, candidates with several kernels take long to find and
    are no better than the smaller subgraphs. A space or a number that the user named is kept.

    Args:
        part: The subgraph.
        settings: Settings of the user.
        single: Whether it was made by merging, or for a cover of few kernels.
    """
    one = single or exceeds_one_kernel(part, settings)
    return 1 if one and settings.config is None and settings.max_kernel_ops is None else settings.max_kernel_ops


def exceeds_one_kernel(part: KernelGraph, settings: Settings) -> bool:
    """Return whether a subgraph is too large for one kernel of its space, but its own operators can form one."""
    plain = preprocess(part).program
    most = settings.max_block_ops or load_space(part_config(part, settings)).max_block_ops
    return len(plain.ops) + len(plain.outputs) > most and is_fusible(plain)


def _operator_kinds(part: KernelGraph) -> set[OpKind]:
    return {op.kind for op in part.ops if not isinstance(op, GraphDefined)}


def _listed_operators(space: SearchSpace) -> frozenset[OpKind]:
    return frozenset({*space.kernel_ops, *space.block_ops})


@lru_cache(maxsize=64)
def _preset_operators(preset: str) -> frozenset[OpKind]:
    """Return the kinds of operators that the search space of a preset may use."""
    return _listed_operators(load_space(preset))


__all__ = ["exceeds_one_kernel", "is_searchable", "part_config", "part_kernels"]
