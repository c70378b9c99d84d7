"""Which lines of a kernel's text belong together, and what they are about; nothing rests on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_formal.graph.graph import BlockGraph, Op


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a kernel's text that belong together.

    Attributes:
        first, last: From 1, in the text.
        nodes: What they are about, first what they are named after, then what is computed on the way: "it0" is an
            input iterator, "op2" an operator of the block graph, "op2.op1" one of its thread graph, "sv0" an output
            saver.
        does: In words.
    """

    first: int
    last: int
    nodes: tuple[str, ...]
    does: str


#: What one line is about: nodes, and what it does with them. None: nothing in particular.
About = tuple[tuple[str, ...], str] | None


def joined(about: Iterable[About], first: int) -> tuple[Lines, ...]:
    """Lines that follow one another and say the same are one piece.

    Args:
        about: What each line is about.
        first: Number of the first of them.
    """
    found: list[Lines] = []
    for number, one in enumerate(about, first):
        if one is None:
            continue
        nodes, does = one
        begin = number
        if found and (found[-1].nodes, found[-1].does, found[-1].last) == (nodes, does, number - 1):
            begin = found.pop().first
        found.append(Lines(begin, number, nodes, does))
    return tuple(found)


def node_names(block: BlockGraph, makers: Sequence[int]) -> tuple[str, ...]:
    """For each tensor of a flattened block graph, the node that it is a part of, as in ``Lines``.

    Args:
        block: The block graph.
        makers: As ``planning.expand.Flat`` has them.
    """
    names: list[str] = []
    for number, item in enumerate(block.ops):
        inner = () if isinstance(item, Op) else item.graph.ops
        names += [f"op{number}"] if isinstance(item, Op) else [f"op{number}.op{n}" for n in range(len(inner))]
    return tuple(f"it{n}" if maker < 0 else names[maker] for n, maker in enumerate(makers))


__all__ = ["About", "Lines", "joined", "node_names"]
