"""A graph-defined kernel whose structure is solved: its closure, what it writes, and where its grid parts go."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_formal.search.guided.algebra.parts import Part
from mirage_formal.search.guided.extract import Dag, InputMask
from mirage_formal.search.guided.kernel_interface import Origins
from mirage_formal.search.guided.saturation import ClassId, Closure
from mirage_formal.search.guided.symbolic_tiling import KTensor, Structure

#: For each grid leaf the output dim that concatenates it.
Placement = tuple[tuple[Part, int], ...]


@dataclass(slots=True)
class Solved:
    """The closure of one kernel, with what is derived from it on demand."""

    closure: Closure
    cost: list[int]
    reach: list[InputMask]
    dags: dict[tuple[ClassId, ...], list[Dag]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A graph-defined kernel without extents.

    Attributes:
        read: Its inputs as it reads them.
        structure: Its structure.
        solved: Its closure.
        goals: The class of each output.
        placements: Where each output's grid parts go.
        origins: What the parts carried behind it are made of; none behind a last kernel.
        last: Whether it computes the program's output, and not intermediate tensors.
    """

    read: tuple[KTensor, ...]
    structure: Structure
    solved: Solved
    goals: tuple[ClassId, ...]
    placements: tuple[Placement, ...]
    origins: Origins = ()
    last: bool = False
