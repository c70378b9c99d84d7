"""Interface between a graph-defined kernel and later kernels: its output tensors, and the parts of each axis.

Parts that no output distinguishes are merged. Parts that stay split take new names, 1, 2, ... in order of significance
(algebra/part_numbering.py). So later kernels do not depend on the number of earlier ones, and kernels that split an
axis differently but leave the same parts have the same interface.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.part_masks import Frame, PartMask, mask
from mirage_formal.search.guided.algebra.part_numbering import (
    CARRIED,
    SLOTS,
    Axis,
    Part,
    Parts,
    carried_parts,
    is_unsplit,
    part_axis,
    unsplit_part,
)
from mirage_formal.search.guided.symbolic_tiling import KTensor, SymbolicTiling

#: For each part carried to later kernels the parts that it consists of, before and inside the kernel.
Origins = tuple[tuple[Part, Parts], ...]


class KernelInterface(Struct, frozen=True):
    """Interface of a kernel to those after it.

    Attributes:
        outputs: Its outputs.
        frame: The frame behind it.
        moves: The parts carried before it whose names change, each with the parts that replace it behind the kernel.
    """

    outputs: tuple[KTensor, ...]
    frame: Frame
    moves: Origins

    def moved(self, algebra: Algebra, tensor: KTensor) -> KTensor | None:
        """Return a tensor from before the kernel, with its parts renamed to those behind it.

        Args:
            algebra: The algebra that interns the normal forms.
            tensor: The tensor.

        Returns:
            The tensor; None where its form has no such names.
        """
        if not self.moves:
            return tensor
        renaming = tuple((PartMask(1 << part), mask(now)) for part, now in self.moves)
        form = algebra.rename(tensor.form, renaming)
        now = dict(self.moves)
        dims = tuple(tuple(q for p in dim for q in now.get(p, (p,))) for dim in tensor.dims)
        return None if form is None else KTensor(form, dims)


def merge_parts(
    algebra: Algebra, outputs: list[KTensor], structure: SymbolicTiling, frame: Frame, *, merge: bool = True
) -> tuple[KernelInterface, Origins] | None:
    """Return the handover of some outputs: parts that none of them distinguishes are merged.

    Args:
        algebra: The algebra that interns the normal forms.
        outputs: The outputs, over the parts inside the kernel.
        structure: The kernel's split of its leaves.
        frame: The frame before the kernel.
        merge: Whether parts of a leaf that is left split are merged; if not, it is merged wholly or not at all.

    Returns:
        The handover, and the origins of the parts carried behind the kernel; None if an axis would be carried in too
        many parts, or in two ways at once.

    Sound: merged are only adjacent parts that each output holds side by side or not at all, and that are bound
    together wherever one of them is; so no operator behind needs to tell them apart, and a later split of the merged
    part has every split of them that keeps the order grid, loop, rest.
    """
    masks = [m for output in outputs for m in algebra.bound_masks(output.form)]
    runs: dict[Part, tuple[Parts, ...]] = {}
    for leaf, _ in structure.splits:
        for twin in structure.names.twin_parts(leaf):
            runs[twin] = _indistinct_runs(structure.children(twin), outputs, masks)
            if len(runs[twin]) > 1 and not merge:
                runs[twin] = tuple((part,) for part in structure.children(twin))
            if twin != leaf and len(runs[twin]) > 1:
                return None
    names = _CarriedNames(frame)
    for axis in dict.fromkeys(part_axis(leaf) for leaf, pieces in runs.items() if len(pieces) > 1):
        if not names.split(axis, runs):
            return None
    for leaf, pieces in runs.items():
        if len(pieces) == 1 and leaf not in names.now:
            names.now[leaf] = (leaf,)
            names.origins[leaf] = pieces[0]
    merged = {origin: part for part, origin in names.origins.items()}
    renaming = tuple((mask(origin), PartMask(1 << part)) for origin, part in merged.items() if not is_unsplit(part))
    handed = []
    for output in outputs:
        form = algebra.rename(output.form, renaming)
        if form is None:
            return None
        handed.append(KTensor(form, tuple(_merge_dim(dim, merged) for dim in output.dims)))
    moves = tuple(sorted((p, now) for p, now in names.now.items() if not is_unsplit(p) and now != (p,)))
    origins = tuple(sorted((p, o) for p, o in names.origins.items() if not is_unsplit(p)))
    return KernelInterface(tuple(handed), tuple(names.frame), moves), origins


class _CarriedNames:
    """New names for the parts of split axes, and the frame behind the kernel."""

    def __init__(self, frame: Frame) -> None:
        self.frame = list(frame)
        self.now: dict[Part, Parts] = {}
        self.origins: dict[Part, Parts] = {}

    def split(self, axis: Axis, runs: dict[Part, tuple[Parts, ...]]) -> bool:
        """Name the parts of an axis that is left split; return False if they are too many or do not nest."""
        before = parts_of_axis(self.frame, axis)
        if any(part_axis(leaf) == axis and len(pieces) > 1 and leaf not in before for leaf, pieces in runs.items()):
            return False
        pieces = [runs.get(part, ((part,),)) for part in before]
        count = sum(map(len, pieces))
        if count > CARRIED:
            return False
        fresh = iter(carried_parts(axis, count))
        for part, made_of in zip(before, pieces, strict=True):
            self.now[part] = tuple(next(fresh) for _ in made_of)
            self.origins |= dict(zip(self.now[part], made_of, strict=True))
        self.frame[axis] = mask(carried_parts(axis, count))
        return True


def parts_of_axis(frame: Sequence[PartMask], axis: Axis) -> Parts:
    """Return the parts in which an axis is carried, most significant first.

    Args:
        frame: For each axis the mask of its parts.
        axis: The axis.
    """
    return tuple(
        Part(part) for part in range(unsplit_part(axis), unsplit_part(axis) + SLOTS) if frame[axis] >> part & 1
    )


def _indistinct_runs(children: Parts, outputs: list[KTensor], masks: list[PartMask]) -> tuple[Parts, ...]:
    """Return the children grouped into runs of neighbours that no output distinguishes."""
    runs: list[list[Part]] = [[children[0]]]
    for part in children[1:]:
        before = runs[-1][-1]
        bound = all((m >> before ^ m >> part) & 1 == 0 for m in masks)
        if bound and all(_are_adjacent(output, before, part) for output in outputs):
            runs[-1].append(part)
        else:
            runs.append([part])
    return tuple(tuple(run) for run in runs)


def _are_adjacent(output: KTensor, a: Part, b: Part) -> bool:
    """Return whether every dim of the output holds neither part, or b directly behind a."""
    for dim in output.dims:
        if a in dim:
            at = dim.index(a) + 1
            return at < len(dim) and dim[at] == b
        if b in dim:
            return False
    return True


def _merge_dim(dim: Parts, merged: dict[Parts, Part]) -> Parts:
    """Return a dim with each group of merged parts replaced by the group's name."""
    by_first = {origin[0]: (part, len(origin)) for origin, part in merged.items()}
    out = []
    at = 0
    while at < len(dim):
        part, length = by_first.get(dim[at], (dim[at], 1))
        out.append(part)
        at += length
    return tuple(out)
