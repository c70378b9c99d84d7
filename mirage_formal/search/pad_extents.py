"""Padding of extents that no tile divides: the program is searched at rounded extents.

A grid and a loop divide extents, so a program over 197 tokens or 50,257 columns has almost no kernels. It is searched
as P', the same operators at extents rounded up. Every candidate for P' is wrapped: zeros are appended to the inputs,
and the outputs are sliced (``graph.remainder_tiles``). Pads and slices cause no memory traffic and no kernel
(``graph.storage_views``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from msgspec import Struct

from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import resize
from mirage_formal.graph.remainder_tiles.split import BoundaryOperators
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.prove.counterexamples.definedness import check_conditions
from mirage_formal.prove.equality.prove import prove
from mirage_formal.rewrite.failure import none_on_match_failure
from mirage_formal.search.dims import Dim, DimClasses

#: Extents up to this number are one tile.
_ONE_TILE: Final = 16
#: Extents that are multiples of this number are not rounded.
_MULTIPLE: Final = 8
#: Extents are rounded up to a multiple of the first of these numbers that adds at most an eighth (1 / _WASTE).
_GRANULES: Final = (128, 64, 32, 16)
_WASTE: Final = 8


class RoundedProgram(Struct, frozen=True):
    """A program at rounded extents.

    Attributes:
        program: Its operators on longer inputs.
        wrapping: The pads and slices that turn a candidate for ``program`` into one for ``original``.
        original: The program at its own extents.
    """

    program: KernelGraph
    wrapping: BoundaryOperators
    original: KernelGraph

    def wrapped(self, candidate: KernelGraph) -> KernelGraph:
        """Return a candidate for the original program, given one for the program at the rounded extents."""
        return self.wrapping.around(self.original.inputs, candidate)


@lru_cache(maxsize=32)
def round_extents(program: KernelGraph) -> RoundedProgram | None:
    """Return the program at rounded extents; None if no extent needs rounding, or if no padding preserves the outputs.

    Dims that the operators' shape rules tie have one extent. The prover decides which classes of dims are rounded, one
    class after another: a sum over zeros keeps its value, and so does a mean with its own divisor; a softmax over zeros
    does not, nor does a quotient with zeros as divisor. Extents on which an operator's meaning depends otherwise (a dim
    that a maximum reduces, a reshape joins or a slice cuts) stay as they are.

    Sound: nothing is pruned or accepted here. Candidates for the result are wrapped, and meet the verification that all
    candidates meet.
    """
    if not program.ops:
        return None  # what only copies needs no zeros
    ties = DimClasses(program)
    types = kernel_types(program)
    found: RoundedProgram | None = None
    chosen: dict[Dim, int] = {}
    for tie in _indivisible_dims(ties):
        tensor, dim = tie
        tried = {**chosen, tie: _round_up(types[tensor].shape[dim])}
        made = _program_at(program, ties, tried)
        if made is not None and _is_proved_equal(program, made.wrapped(made.program)):
            found, chosen = made, tried
    return found


def _indivisible_dims(ties: DimClasses) -> list[Dim]:
    """Return the changeable classes of dims whose extent is above one tile and no multiple of 8, the longest first."""
    found = [tie for tie in ties.changeable() if ties.extent(tie) > _ONE_TILE and ties.extent(tie) % _MULTIPLE]
    return sorted(found, key=lambda tie: (-ties.extent(tie), tie))


def _is_proved_equal(program: KernelGraph, longer: KernelGraph) -> bool:
    """Return whether the operators between pads and slices provably compute the program, on some input at least."""
    return isinstance(prove(program, longer), Equivalent) and check_conditions(program, longer, doubtful=True) is None


def _round_up(extent: int) -> int:
    """Return an extent rounded up to a multiple of the first granule that adds at most an eighth; else to 16."""
    found = (-(-extent // granule) * granule for granule in _GRANULES)
    return next((n for n in found if (n - extent) * _WASTE <= extent), -(-extent // _ONE_TILE) * _ONE_TILE)


@none_on_match_failure
def _program_at(program: KernelGraph, ties: DimClasses, extents: dict[Dim, int]) -> RoundedProgram | None:
    """Return the program with these extents of dim classes; None if the shapes do not fit."""
    types = kernel_types(program)

    def shape(tensor: int) -> Shape:
        return tuple(extents.get(ties.root((tensor, dim)), n) for dim, n in enumerate(types[tensor].shape))

    count = len(program.inputs)
    larger = resize(program, [shape(i) for i in range(count)])
    if larger is None or [kernel_types(larger)[n].shape for n in larger.outputs] != [shape(n) for n in program.outputs]:
        return None
    front: list[Op] = []
    reads = list(range(count))
    for i in range(count):
        for dim, (have, want) in enumerate(zip(types[i].shape, shape(i), strict=True)):
            if want > have:
                front.append(Op(OpKind.PAD, (reads[i],), Attrs(dim=dim, before=0, after=want - have)))
                reads[i] = count + len(front) - 1
    back: list[Op] = []
    outputs = list(range(len(program.outputs)))
    for i, n in enumerate(program.outputs):
        for dim, (want, have) in enumerate(zip(types[n].shape, shape(n), strict=True)):
            if want < have:
                back.append(Op(OpKind.SLICE, (outputs[i],), Attrs(dim=dim, start=0, stop=want)))
                outputs[i] = len(program.outputs) + len(back) - 1
    return RoundedProgram(larger, BoundaryOperators(tuple(front), tuple(reads), tuple(back), tuple(outputs)), program)


__all__ = ["RoundedProgram", "round_extents"]
