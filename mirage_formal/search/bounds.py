"""Search spaces: every bound of a search, as one frozen value.

Rules that hold in every space, whatever its bounds; both engines keep them:

- a graph-defined kernel reads distinct tensors, and its block graph is connected;
- every grid axis of extent > 1 splits at least one input, no two grid axes split one dim of one tensor, and every
  output depends on every grid axis of extent > 1 and concatenates it by its omap;
- a grid axis that splits one and the same dim of every input that it splits is concatenated along that dim;
- at most ``max_reread`` tensors of a kernel have been read by an earlier graph-defined kernel;
- the loop runs once if no input is split by it, and more than once otherwise; a tensor that does not depend on the
  loop meets an accumulator only when the loop runs once (otherwise it would be scaled by the range);
- a matmul inside a block has leading dims 1; sum, rms_norm, accum_sum_last and the reductions to dimx work on a dim of
  extent > 1;
- scale factors, shifts, eps, maximum, minimum and elementwise functions of one operand (exp, tanh and so on; a square
  is a product) are those that the program uses, a softmax counting as exp; norms stay one operator;
- a block graph writes every result behind the accumulators that it does not read itself, and possibly others;
- every tensor of a candidate is used, and no operator appears twice with equal operands and attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from math import prod
from typing import Any, Final, Unpack

from msgspec.structs import fields

from mirage_formal.graph.ops import SPECS, Lax, OpKind
from mirage_formal.graph.types import Dim3, DimMap, Shape
from mirage_formal.support.options import Overrides, Settings, check_value

#: Operators that searches can propose. The others are for programs and graphs that a user writes: their attributes or
#: operands cannot be guessed, or they have no abstract expression. ``accum_max`` is proposed for inputs that the loop
#: does not change, to carry them behind the loop.
SEARCHABLE: Final = frozenset(
    kind
    for kind, spec in SPECS.items()
    if spec.required <= {"dim", "factor", "shift", "dtype"}
    and spec.outputs == 1
    and (spec.lax is not Lax.NONE or kind is OpKind.ACCUM_MAX)
    and kind not in {OpKind.CONCAT, OpKind.ACCUM_CONCAT}
)


class Extents(StrEnum):
    """Source of grids, maps and loop ranges: every divisor within the limits, or the paper's lists."""

    FREE = "free"
    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """Hardware bounds: shared memory of a block, thread blocks of a kernel (from, to), device memory of a candidate."""

    shared_bytes: int
    device_bytes: int
    min_blocks: int
    max_blocks: int


@dataclass(frozen=True, slots=True)
class ExtentRules:
    """Values of grids, maps and loop ranges for one kind of extents; None stands for all values that fit.

    Attributes:
        grids: Exactly these grids, or None for those that the divisors below (paper) or every divisor (free) give.
        grid_divisors: Paper: p of the grids (d/p, 1, 1) over every input dim d.
        batch_divisors: Paper: y of the grids (b, d/y, 1).
        batch_grids: Paper: (y, z) of the grids (b, y, z), tried for kernels of more than two inputs.
        imaps: Candidates for one input's map.
        omaps: Candidates for one output's map.
        fmaps: Candidates for the dim that the loop splits; None inside stands for "not split".
        forloop_ranges: Ranges above 1; a kernel without a split input runs its loop once in any case.
        min_blocks: Fewest thread blocks of a kernel.
        max_blocks: Most thread blocks of a kernel. Where nothing is listed, more may be if each writes a large tile.
    """

    grids: tuple[Dim3, ...] | None
    grid_divisors: tuple[int, ...]
    batch_divisors: tuple[int, ...]
    batch_grids: tuple[tuple[int, int], ...]
    imaps: tuple[DimMap, ...] | None
    omaps: tuple[DimMap, ...] | None
    fmaps: tuple[int | None, ...] | None
    forloop_ranges: tuple[int, ...] | None
    min_blocks: int
    max_blocks: int


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """All bounds of a search.

    Operator limits do not count inputs (the reference system does count them). ``keep`` is the number of candidates
    that are reported. ``max_axes_per_split`` bounds two numbers of the guided engine: the axes of the program that one
    loop iterates over, in inputs that meet only behind accumulators, and the ways in which it splits one axis.
    ``fold_tiles`` says whether the guided engine also splits one index of a tile for a reduction to dimx; the indices
    that an earlier kernel concatenated in one dim are always folded. ``free`` and ``paper`` hold the rules of both
    kinds of extents; ``extents`` says which are in force. ``max_states`` is the number of states after which a unit of
    the guided search ends with its results so far; None is no bound.
    """

    name: str
    kernel_ops: tuple[OpKind, ...]
    block_ops: tuple[OpKind, ...]
    max_kernel_ops: int
    max_block_ops: int
    max_graph_defined: int
    max_block_inputs: int
    max_reread: int
    max_axes_per_split: int
    fold_tiles: bool
    max_block_outputs: int
    extents: Extents
    free: ExtentRules
    paper: ExtentRules
    block_dims: tuple[Dim3, ...]
    reduction_dimx: tuple[int, ...]
    shared_bytes: int
    device_bytes: int
    keep: int
    max_states: int | None = None

    @property
    def rules(self) -> ExtentRules:
        """Return the rules in force."""
        return self.free if self.extents is Extents.FREE else self.paper

    @property
    def limits(self) -> SpaceLimits:
        """Return the hardware bounds in force."""
        return SpaceLimits(self.shared_bytes, self.device_bytes, self.rules.min_blocks, self.rules.max_blocks)

    @property
    def most_operators(self) -> int:
        """Return the most operators of a candidate, over all its kernels."""
        defined = min(self.max_graph_defined, self.max_kernel_ops)
        return defined * self.max_block_ops + self.max_kernel_ops - defined

    @property
    def grids(self) -> tuple[Dim3, ...] | None:
        """Return exactly these grids, or None for all that ``grid_candidates`` gives."""
        return self.rules.grids

    @property
    def imaps(self) -> tuple[DimMap, ...] | None:
        """Return the candidates for one input's map, or None for all."""
        return self.rules.imaps

    @property
    def omaps(self) -> tuple[DimMap, ...] | None:
        """Return the candidates for one output's map, or None for all."""
        return self.rules.omaps

    @property
    def fmaps(self) -> tuple[int | None, ...] | None:
        """Return the candidates for one input's loop dim, or None for all."""
        return self.rules.fmaps

    @property
    def forloop_ranges(self) -> tuple[int, ...] | None:
        """Return the candidates for the loop range, or None for all divisors."""
        return self.rules.forloop_ranges

    def with_overrides(self, **overrides: Unpack[Overrides]) -> SearchSpace:
        """Return the space with a user's own lists and limits in place of its own; None leaves a bound as it is.

        The lists are used exactly as given (grids are not held to the space's numbers of blocks).

        Raises:
            SpaceError: A list or number that makes no sense, named by its parameter.
        """
        unknown = sorted(overrides.keys() - Overrides.__annotations__.keys())
        if unknown:
            raise TypeError(f"with_overrides() got an unexpected keyword argument {unknown[0]!r}")
        given = {name: check_value(name, value, _KINDS[name]) for name, value in overrides.items() if value is not None}
        space = replace(self, extents=Extents(given.pop("extents", self.extents)))
        lists: dict[str, Any] = {field: as_tuples(given.pop(name)) for name, field in _LISTS.items() if name in given}
        if "blockdims" in given:
            given["block_dims"] = as_tuples(given.pop("blockdims"))
        given[space.extents.value] = replace(space.rules, **lists)
        return replace(space, **given)

    def grid_candidates(self, shapes: Sequence[Shape]) -> tuple[Dim3, ...]:
        """Return the grids to try for a kernel that reads tensors of these shapes, without repetition.

        With free extents the axes come in non-increasing order, for the order of grid axes carries no meaning.
        """
        rules = self.rules
        if rules.grids is not None:
            return tuple(dict.fromkeys(rules.grids))
        found = _free_grids(rules, shapes) if self.extents is Extents.FREE else _paper_grids(rules, shapes)
        return tuple(dict.fromkeys(found))

    def imap_candidates(self, grid: Dim3, shape: Shape) -> tuple[DimMap, ...]:
        """Return the maps that can split a tensor over this grid: axes of extent 1 unmapped, no dim split twice."""
        listed = self.rules.imaps
        every = listed if listed is not None else _all_maps(grid, len(shape))
        return tuple(dict.fromkeys(m for m in every if _splits_evenly(grid, m, shape)))

    def omap_candidates(self, grid: Dim3, rank: int) -> tuple[DimMap, ...]:
        """Return the maps that can concatenate an output of this rank: each axis of extent > 1 to a dim of its own."""
        listed = self.rules.omaps
        every = listed if listed is not None else _all_maps(grid, rank)
        return tuple(dict.fromkeys(m for m in every if _concatenates_all_axes(grid, m, rank)))

    def fmap_candidates(self, shape: Shape) -> tuple[int | None, ...]:
        """Return the dims (of extent > 1, after the grid's split) of a tensor that the loop may split, None first."""
        dims = [d for d, extent in enumerate(shape) if extent > 1]
        listed = self.rules.fmaps
        if listed is None:
            return (None, *dims)
        return tuple(dict.fromkeys(f for f in listed if f is None or f in dims))

    def loop_candidates(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the loop ranges for a kernel whose loop splits dims of these extents (after the grid's split)."""
        if not extents:
            return (1,)
        listed = self.rules.forloop_ranges
        every = divisors(extents[0]) if listed is None else listed
        return tuple(dict.fromkeys(r for r in every if r > 1 and all(e % r == 0 for e in extents)))


#: Types of what a user may override.
_KINDS: Final = {field.name: field.type for field in fields(Settings)}
#: Fields of the rules that lists of the user replace.
_LISTS: Final = {
    **{name: name for name in ("imaps", "omaps", "fmaps")},
    **{"griddims": "grids", "franges": "forloop_ranges"},
}


def as_tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return numbers, or triples of them, as tuples with None in place of -1."""
    return tuple(as_tuples(one) if isinstance(one, tuple) else None if one == -1 else one for one in values)


#: Hint for a program that no search takes as a whole.
IN_PARTS: Final = "name no space, engine and limits: then it is covered by parts; what no search takes stays as it is"


def divisors(n: int) -> tuple[int, ...]:
    """Return all positive divisors of n, ascending."""
    low = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(dict.fromkeys([*low, *(n // d for d in reversed(low))]))


def _all_maps(grid: Dim3, rank: int) -> Iterator[DimMap]:
    axes = [(None, *range(rank)) if extent > 1 else (None,) for extent in grid]
    yield from product(*axes)


def _all_distinct(mapped: list[int]) -> bool:
    return len(set(mapped)) == len(mapped)


def _splits_evenly(grid: Dim3, mapping: DimMap, shape: Shape) -> bool:
    mapped = [(extent, dim) for extent, dim in zip(grid, mapping, strict=True) if dim is not None]
    if not _all_distinct([dim for _, dim in mapped]):
        return False
    return all(extent > 1 and dim < len(shape) and shape[dim] % extent == 0 for extent, dim in mapped)


def _concatenates_all_axes(grid: Dim3, mapping: DimMap, rank: int) -> bool:
    if any((extent > 1) != (dim is not None) for extent, dim in zip(grid, mapping, strict=True)):
        return False
    mapped = [dim for dim in mapping if dim is not None]
    return _all_distinct(mapped) and all(dim < rank for dim in mapped)


def _free_grids(rules: ExtentRules, shapes: Sequence[Shape]) -> Iterator[Dim3]:
    dims = {extent for shape in shapes for extent in shape}
    axis = sorted({d for extent in dims for d in divisors(extent)} | {1}, reverse=True)
    for x, y, z in product(axis, repeat=3):
        if x >= y >= z and rules.min_blocks <= x * y * z <= rules.max_blocks:
            yield (x, y, z)


def _paper_grids(rules: ExtentRules, shapes: Sequence[Shape]) -> Iterator[Dim3]:
    """Yield the grids of the paper's implementation; see ExtentRules."""
    dims = list(dict.fromkeys(extent for shape in shapes for extent in shape))
    ranks = {len(shape) for shape in shapes}
    batch = shapes[0][0] if shapes and ranks in ({2}, {3}) else None
    found: list[Dim3] = [(d // p, 1, 1) for p in rules.grid_divisors for d in dims if d % p == 0]
    if batch is not None:
        found += [(batch, d // y, 1) for y in rules.batch_divisors for d in dims if d % y == 0]
        if len(shapes) > 2:
            found += [(batch, y, z) for y, z in rules.batch_grids]
    yield from (g for g in found if rules.min_blocks <= prod(g) <= rules.max_blocks)
    if batch is not None:
        yield (batch, 1, 1)
