"""Search spaces of a program's parts: whether a search takes a part, and which space it gets."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mirage_formal.errors import UnsupportedError
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.run.settings import Job, Settings, choose_config
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_mirrored
from mirage_formal.search.preprocess import preprocess
from mirage_formal.search.space import SearchSpace, load_space

#: Operators that only rename or move elements: a space has to list them before a search can propose them.
_MOVES: Final = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE})


def takes(part: KernelGraph, job: Job, settings: Settings) -> bool:
    """Return whether a search takes a part: its engine does, and its digest can be computed.

    Sound: a part that is refused stays as it is.
    """
    plain = preprocess(part).program
    kinds = _kinds(plain)
    listed = _operators(job.space) if settings.config is not None else _listed(part_config(part, settings))
    if job.engine == "guided" and not settings.narrowed and is_mirrored(plain):
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


def part_config(part: KernelGraph, settings: Settings) -> str:
    """The search space of a part.

    The default one has two graph-defined kernels and more: parts that are no attention gain little by it, so they get
    the smaller one, unless that lacks an operator of theirs.
    """
    config = settings.config or choose_config(preprocess(part).program)
    if config != "default" or settings.config is not None:
        return config
    return "default" if _kinds(preprocess(part).program) & (_listed("default") - _listed("mlp")) else "mlp"


def part_kernels(part: KernelGraph, settings: Settings, *, single: bool) -> int | None:
    """Most kernels of a part's candidates; None leaves its space's own.

    A merged part is one kernel, or it is no part; so is one for a cover of few kernels, and one that is larger than
    what a kernel may be and is put together (search/horizontal_fusion). Candidates of several kernels for these take
    long to find and are no better than the parts that they consist of. Where the user named a space or a number, that
    holds.

    Args:
        part: The part.
        settings: What was asked for.
        single: Whether it was made by merging, or for a cover of few kernels.
    """
    one = single or is_long(part, settings)
    return 1 if one and settings.config is None and settings.max_kernel_ops is None else settings.max_kernel_ops


def is_long(part: KernelGraph, settings: Settings) -> bool:
    """Return whether a part is too large for one kernel of its space, and its own operators can be one."""
    plain = preprocess(part).program
    most = settings.max_block_ops or load_space(part_config(part, settings)).max_block_ops
    return len(plain.ops) + len(plain.outputs) > most and is_mirrored(plain)


def _kinds(part: KernelGraph) -> set[OpKind]:
    return {op.kind for op in part.ops if not isinstance(op, GraphDefined)}


def _operators(space: SearchSpace) -> frozenset[OpKind]:
    return frozenset({*space.kernel_ops, *space.block_ops})


@lru_cache(maxsize=64)
def _listed(preset: str) -> frozenset[OpKind]:
    """Operators that a preset lists."""
    return _operators(load_space(preset))


__all__ = ["is_long", "part_config", "part_kernels", "takes"]
