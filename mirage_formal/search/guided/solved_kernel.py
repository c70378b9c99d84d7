"""Graph-defined kernel without extents: its closure, its output classes, and the dims that its grid splits."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from mirage_formal.search.guided.algebra.part_numbering import Part
from mirage_formal.search.guided.extract import Dag, InputMask
from mirage_formal.search.guided.kernel_interface import Origins
from mirage_formal.search.guided.saturation import ClassId, Closure
from mirage_formal.search.guided.symbolic_tiling import KTensor, SymbolicTiling

#: For each grid leaf the output dim that concatenates it.
Placement = tuple[tuple[Part, int], ...]


@dataclass(slots=True)
class SolvedClosure:
    """The closure of one kernel, with the DAGs extracted from it on demand."""

    closure: Closure
    cost: list[int]
    reach: list[InputMask]
    dags: dict[tuple[ClassId, ...], list[Dag]] = field(default_factory=dict)


class SolvedKernel(Struct, frozen=True):
    """Graph-defined kernel without extents.

    Attributes:
        read: Its inputs with the index copies and parts under which it reads them.
        structure: Its structure.
        solved: Its closure.
        goals: The class of each output.
        placements: For each output the dims that concatenate the grid parts.
        origins: For each part carried to later kernels the parts that it consists of; none for a last kernel.
        last: True if it computes the program's output, False for intermediate tensors.
    """

    read: tuple[KTensor, ...]
    structure: SymbolicTiling
    solved: SolvedClosure
    goals: tuple[ClassId, ...]
    placements: tuple[Placement, ...]
    origins: Origins = ()
    last: bool = False
