"""Sentences on how a candidate splits the sums of its program, from the split and sum steps of a replayed proof.

A sum step runs over digits. The input elements in its summand show the input dim of each digit, and its stride there.
So a sum of the program is matched with the sums of the candidate that compose it by the dims that they run over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from mirage_formal.check.proof.operator_terms import LOOP
from mirage_formal.check.proof.ring import Mono, Ring
from mirage_formal.check.proof.tensor_steps import TensorReplay
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.report.proofs.proof_formulas import OperatorLocation

#: A dim of an input.
Dim = tuple[int, int]
#: Sum or maximum, and the input dims of its digits.
_Key = tuple[str, frozenset[Dim]]
_MOST_SUMS: Final = 8


@dataclass(frozen=True, slots=True)
class _Piece:
    """Digits over which one step sums: number of elements, stride in the dim, and operator."""

    extent: int
    stride: int
    place: OperatorLocation
    axis: int


@dataclass(frozen=True, slots=True)
class ExplanationData:
    """Data from which the sentences are made.

    Attributes:
        steps: Steps of a replay.
        raw: The steps as in the proof object.
        names: Names of inputs and atoms.
        places: Operators by term.
        candidate: The candidate's graph, whose grid axes are named; None where the proof is of a part of it.
    """

    steps: TensorReplay
    raw: Sequence[tuple[Any, ...]]
    names: Sequence[str]
    places: Mapping[int, Sequence[OperatorLocation]]
    candidate: KernelGraph | None


def explain_sums(told: ExplanationData) -> tuple[str, ...]:
    """Return sentences on how the candidate splits each sum and maximum of the program over a dim of an input."""
    steps = told.steps
    mine: dict[_Key, int] = {}
    theirs: dict[_Key, dict[Dim, list[_Piece]]] = {}
    for number, entry in enumerate(told.raw):
        found = _summed(steps, entry)
        if found is None or not found[1]:
            continue
        word, digits, axis, operands = found
        dims = {digit: _dims(steps, operands, digit) for digit in digits}
        key = (word, frozenset(dim for held in dims.values() for dim in held))
        for place in told.places.get(steps.tensors[number].term, ()):
            if place.graph == "program":
                mine.setdefault(key, prod(steps.ring.extents[d] for d in digits))
            elif place.graph == "candidate":
                for digit, held in dims.items():
                    for dim, stride in held.items():
                        piece = _Piece(steps.ring.extents[digit], stride, place, axis)
                        theirs.setdefault(key, {}).setdefault(dim, []).append(piece)
    return tuple(_write_sentences(told, mine, theirs))


def _write_sentences(
    told: ExplanationData, mine: Mapping[_Key, int], theirs: Mapping[_Key, Mapping[Dim, list[_Piece]]]
) -> Iterator[str]:
    """Yield the sentences; sums that are split in the same way share one."""
    alike: dict[tuple[str, int, tuple[object, ...]], list[tuple[_Key, list[_Piece]]]] = {}
    for key, total in [one for one in mine.items() if one[0][1]][:_MOST_SUMS]:
        pieces = _choose_pieces(list(theirs.get(key, {}).values()), total)
        form = tuple((one.extent, one.stride, _kernel(one.place), one.axis == LOOP) for one in pieces)
        alike.setdefault((key[0], total, form), []).append((key, pieces))
    for (word, total, _), sums in alike.items():
        overs = [
            " = ".join(f"dim {dim} of {told.names[number]}" for number, dim in sorted(dims)) for (_, dims), _ in sums
        ]
        dims = frozenset(dim for (_, held), _ in sums for dim in held)
        yield from _sentences((word, overs, total), sums[0][1], _axes(told.candidate, dims))


def _choose_pieces(each: Sequence[list[_Piece]], total: int) -> list[_Piece]:
    """Return the candidate's pieces of a sum, from the dim that covers all of it, outermost first."""
    for pieces in each:
        distinct: dict[tuple[int, int], _Piece] = {}
        for piece in pieces:
            distinct.setdefault((piece.stride, piece.extent), piece)
        if prod(extent for _, extent in distinct) == total:
            return [distinct[key] for key in sorted(distinct, reverse=True)]
    return []


def _axes(graph: KernelGraph | None, dims: frozenset[Dim]) -> tuple[str, int]:
    """Return the grid axes that split such a dim in the first kernel that reads it, and the number of blocks."""
    for op in graph.ops if graph is not None else ():
        if isinstance(op, GraphDefined):
            for number, how in zip(op.operands, op.graph.inputs, strict=True):
                axes = [
                    axis for axis, dim in zip("xyz", how.imap, strict=True) if dim is not None and (number, dim) in dims
                ]
                if axes:
                    extents = dict(zip("xyz", op.graph.grid, strict=True))
                    return f", one from each block along grid axis {' and '.join(axes)}", prod(
                        extents[axis] for axis in axes
                    )
    return "", 0


def _sentences(what: tuple[str, Sequence[str], int], pieces: list[_Piece], axes: tuple[str, int]) -> Iterator[str]:
    word, overs, total = what
    noun, verb = "sum" if word == "sum" else "maximum", "is"
    takes = "adds" if word == "sum" else "takes the largest of"
    head = f"The {noun} over {overs[0]}, {total} elements,"
    if len(overs) > 1:
        each = ", ".join(f"over {over}" for over in overs)
        head, verb = f"The {'sums' if word == 'sum' else 'maxima'} {each}, {total} elements each,", "are"
    if not pieces:
        yield f"{head} {verb} not split in one way: the steps below say how."
        return
    kernels = sorted({_kernel(piece.place) for piece in pieces})
    if len(pieces) == 1:
        (piece,) = pieces
        place, iterations = _describe_place(piece.place), _describe_iterations(piece)
        yield f"{head} {verb} not split: {place} {takes} all of them{iterations}."
        return
    yield f"{head} {verb} split in {' × '.join(str(piece.extent) for piece in pieces)}."
    first = [piece for piece in pieces if _kernel(piece.place) == kernels[0]]
    inside = ", then ".join(f"{piece.extent}{_describe_iterations(piece)}" for piece in reversed(first))
    if "." in first[0].place.node:
        yield f"Each block of kernel {kernels[0]} {takes} its part: {inside}."
    else:
        yield f"Kernel {kernels[0]} {takes} {inside}."
    for number in kernels[1:]:
        later = [piece for piece in pieces if _kernel(piece.place) == number]
        count = prod(piece.extent for piece in later)
        yield f"Kernel {number} {takes} the {count} parts{axes[0] if count == axes[1] else ''}."


def _kernel(place: OperatorLocation) -> int:
    head = place.node.partition(".")[0].removeprefix("op")
    return int(head) if head.isdecimal() else 0


def _describe_place(place: OperatorLocation) -> str:
    return f"{'each block of kernel' if '.' in place.node else 'kernel'} {_kernel(place)}"


def _describe_iterations(piece: _Piece) -> str:
    if "." not in piece.place.node:
        return ""
    if piece.axis == LOOP:
        return " over the iterations of its loop"
    return " inside a tile"


def _summed(steps: TensorReplay, entry: tuple[Any, ...]) -> tuple[str, tuple[int, ...], int, tuple[int, ...]] | None:
    """Return the word of a sum step, its digits, its axis, and the steps whose product it sums; None for others."""
    match entry:
        case ("sum", a, axis, kept):
            string = steps.tensors[a].strings[axis]
            cut = len(string)
            while cut and prod(steps.ring.extents[d] for d in string[cut:]) < kept:
                cut -= 1
            return "sum", string[:cut], axis, (a,)
        case ("matmul", a, b):
            return "sum", steps.tensors[a].strings[-1], -1, (a, b)
        case ("rescaled", x, _):
            return "sum", steps.tensors[x].strings[LOOP], LOOP, (x,)
        case ("max", a, axis):
            return "max", steps.tensors[a].strings[axis], axis, (a,)
    return None


def _dims(steps: TensorReplay, operands: Iterable[int], digit: int) -> dict[Dim, int]:
    """Return the input dims whose indices contain a digit, with its stride there."""
    found: dict[Dim, int] = {}
    for operand in operands:
        for mono in steps.tensors[operand].poly:
            _find_digit(steps.ring, mono, digit, found)
    return found


def _find_digit(ring: Ring, mono: Mono, digit: int, found: dict[Dim, int]) -> None:
    for factor, _ in mono:
        if digit not in ring.free[factor]:
            continue
        if ring.kinds[factor] == "in" and ring.payloads[factor][0] >= 0:
            number, indices = ring.payloads[factor]
            for dim, (_, terms) in enumerate(indices):
                for d, stride in terms:
                    if d == digit:
                        found.setdefault((number, dim), stride)
        for inner in ring.inside(factor)[2]:
            _find_digit(ring, inner, digit, found)
