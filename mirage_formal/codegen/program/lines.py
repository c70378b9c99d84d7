"""A map from lines of a kernel's text to graph nodes, for display; nothing rests on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_formal.graph.graph import BlockGraph, Op


@dataclass(frozen=True, slots=True)
class LineRange:
    """A run of lines of a kernel's text that belong together.

    Attributes:
        first, last: Line numbers in the text, from 1.
        nodes: The graph nodes of these lines, the one that names them first, then those computed on the way: "it0" is
            an input iterator, "op2" an operator of the block graph, "op2.op1" one of its thread graph, "sv0" an output
            saver.
        does: A description in words.
    """

    first: int
    last: int
    nodes: tuple[str, ...]
    does: str


#: The annotation of one line: nodes, and a description; None if there is none.
About = tuple[tuple[str, ...], str] | None


def merge_lines(about: Iterable[About], first: int) -> tuple[LineRange, ...]:
    """Merge consecutive lines with the same annotation.

    Args:
        about: The annotation of each line.
        first: The number of the first line.
    """
    found: list[LineRange] = []
    for number, one in enumerate(about, first):
        if one is None:
            continue
        nodes, does = one
        begin = number
        if found and (found[-1].nodes, found[-1].does, found[-1].last) == (nodes, does, number - 1):
            begin = found.pop().first
        found.append(LineRange(begin, number, nodes, does))
    return tuple(found)


def node_names(block: BlockGraph, makers: Sequence[int]) -> tuple[str, ...]:
    """Return the node of each tensor of a flattened block graph, named as in ``LineRange``.

    Args:
        block: The block graph.
        makers: For each tensor the position of its operator, as in ``planning.expand.FlatGraph``.
    """
    names: list[str] = []
    for number, item in enumerate(block.ops):
        inner = () if isinstance(item, Op) else item.graph.ops
        names += [f"op{number}"] if isinstance(item, Op) else [f"op{number}.op{n}" for n in range(len(inner))]
    return tuple(f"it{n}" if maker < 0 else names[maker] for n, maker in enumerate(makers))


__all__ = ["About", "LineRange", "merge_lines", "node_names"]
