"""Numerical comparison of a candidate with torch, before it replaces a region.

An import is compared with torch as if no intermediate tensor were rounded (comparison/import_comparison.py). A
candidate stores tensors between its kernels, such as the scores of attention or partial sums of a product, and what
torch keeps in float32 may overflow there in float16. So a candidate is simulated kernel by kernel in its element types
(codegen/numerics/rounding_simulation.py), on a few generated sets of tensors, and its results are held against the
contract (comparison/contract.py) like the import's.

The work is bounded. A region above the bound is compared at smaller extents of the program's inputs
(codegen/numerics/shrink.py), where torch has no results: there the candidate has to be finite where the program is,
both if no intermediate tensor is rounded, and if each result of one of torch's operators is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Final

import numpy as np
import torch

from mirage_formal.codegen.numerics.result_comparison import draw_input
from mirage_formal.codegen.numerics.rounding_simulation import MAX_ELEMENTS, overflowed_elements, simulate
from mirage_formal.codegen.numerics.shrink import ShrunkPair, evaluation_size, shrink
from mirage_formal.codegen.online_softmax.stabilize import stable_form
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.typed_evaluation import run_typed
from mirage_formal.torch.comparison.contract import TURNED, ExpectedResult
from mirage_formal.torch.comparison.import_comparison import RegionPiece
from mirage_formal.torch.comparison.samples import draw_tensors
from mirage_formal.torch.comparison.thread_limits import limit_threads

#: Most elements that an evaluation of the candidate may hold at the region's own extents.
_OWN_EXTENTS: Final = 1 << 22
#: Styles of the generated sets. Rows of large numbers make scores of attention that are nearly equal and large, whose
#: differences a narrow type loses.
_STYLES: Final = ("x 4e2", *("rows of large numbers",) * 2, "normal", *("mixed",) * 4)
#: Most work, in elements or 16 multiplications, of all sets of a region; at least three sets are evaluated.
_BUDGET: Final = 1 << 23
#: Largest finite number of the sets: a product of three such numbers, and sums of these, are finite in float32.
_LARGEST: Final = 2.0**40


def clamp_values(x: torch.Tensor) -> torch.Tensor:
    """Return values of a tensor without those about which docs/torch.md promises nothing for candidates.

    Denormal float32 becomes zero; finite numbers of float32 and bfloat16 are at most 2^40. A tensor without such
    values is returned itself.
    """
    found = x
    if x.dtype == torch.float32:
        found = torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, x)
    if x.dtype in (torch.float32, torch.bfloat16):
        found = torch.where(found.isfinite(), found.clamp(-_LARGEST, _LARGEST), found)
        bits = torch.int32 if x.dtype == torch.float32 else torch.int16
        return x if torch.equal(found.view(bits), x.view(bits)) else found
    return found


def candidate_fault(piece: RegionPiece, candidate: KernelGraph) -> str:
    """Return how a candidate breaks the contract where it replaces a region; empty if it does not.

    Sound: a candidate is only refused here. One that is not has kept the contract on every set for which torch has
    results, unless ``comparison_limit`` says otherwise.

    Args:
        piece: The region with its torch nodes.
        candidate: A µGraph with the inputs and outputs of the region's program.

    Raises:
        DeadlineReachedError: The piece's deadline has ended the comparison.
    """
    piece.deadline.check()
    seed = int.from_bytes(sha256(repr(piece.text).encode()).digest()[:4], "big")
    if _has_own_extents(piece, candidate):
        return next(_differences(piece, stable_form(candidate), seed), "")
    pair = _smaller_pair(piece.program, candidate)
    if pair is None:
        return ""
    return next(_overflows(piece, pair.program, stable_form(pair.candidate), seed), "")


def comparison_limit(piece: RegionPiece, candidate: KernelGraph) -> str:
    """Return a remark for a report on what the comparison of a candidate leaves out; empty if it is nothing."""
    if _has_own_extents(piece, candidate):
        return ""
    if _smaller_pair(piece.program, candidate) is None:
        return "its candidate is too large to be compared"
    return "its candidate was compared at smaller extents, for overflow alone"


def _has_own_extents(piece: RegionPiece, candidate: KernelGraph) -> bool:
    return piece.drawable and evaluation_size(piece.program, candidate) <= _OWN_EXTENTS


@lru_cache(maxsize=4)
def _smaller_pair(program: KernelGraph, candidate: KernelGraph) -> ShrunkPair | None:
    """Return a program and a candidate at smaller extents; None if they are still too large to be evaluated."""
    pair = shrink(program, candidate, MAX_ELEMENTS)
    return pair if evaluation_size(pair.program, pair.candidate) <= MAX_ELEMENTS else None


def _differences(piece: RegionPiece, candidate: KernelGraph, seed: int) -> Iterator[str]:
    for place, style in enumerate(_STYLES[: max(3, _BUDGET // piece.work)]):
        leaves, expected = _drawn_set(piece, style, seed + place)
        if expected is None:
            continue
        for _, how in piece.differences(leaves, expected, partial(simulate, candidate)):
            if how.kind != TURNED:
                yield f"{how} (drawn: {style})"


def _drawn_set(piece: RegionPiece, style: str, seed: int) -> tuple[dict[str, Any], Mapping[str, ExpectedResult] | None]:
    """Return generated tensors and torch's results for them, None if it has none; all candidates are given the same.

    They are those of the import's comparison where it has kept some of this style.
    """
    if (style, seed) not in piece.drawn:
        earlier = next((one for one in piece.earlier if one.style == style), None)
        if earlier is not None:
            piece.earlier.remove(earlier)
        with limit_threads(piece.work):
            given = piece.draw(style, seed) if earlier is None else earlier.leaves
            leaves = {name: clamp_values(x) for name, x in given.items()}
        if earlier is not None and all(leaves[name] is x for name, x in given.items()):
            piece.drawn[style, seed] = leaves, earlier.expected
            return leaves, earlier.expected
        try:
            piece.drawn[style, seed] = leaves, piece.expected(leaves)
        except RuntimeError:  # torch has no result
            piece.drawn[style, seed] = leaves, None
    return piece.drawn[style, seed]


def _overflows(piece: RegionPiece, program: KernelGraph, candidate: KernelGraph, seed: int) -> Iterator[str]:
    stored = piece.region.stored
    types = kernel_types(program)
    forms: dict[str, Any] = {
        str(number): torch.empty(item.tensor.shape, dtype=getattr(torch, item.tensor.dtype.value), device="meta")
        for number, item in enumerate(program.inputs)
        if item.tensor.dtype.floating
    }
    for place, style in enumerate(_STYLES):
        piece.deadline.check()
        drawn = {name: clamp_values(x) for name, x in draw_tensors(forms, style, seed + place).items()}
        arrays = [draw_input(item, number, place, 1.0) for number, item in enumerate(program.inputs)]  # masks stay
        for name, x in drawn.items():
            arrays[int(name)] = x.double().numpy()
        with limit_threads(evaluation_size(program, candidate)):
            expected = zip(*(run_typed(program, arrays, stored=which) for which in (False, stored)), strict=True)
            found = simulate(candidate, arrays)
        for output, (wide, got) in enumerate(zip(expected, found, strict=True)):
            want = np.where(np.isfinite(wide[1]), wide[0], np.inf).astype(np.float64)
            lost = overflowed_elements(got, want, types[program.outputs[output]].dtype)
            if bool(lost.any()):
                yield f"{int(lost.sum())} of {lost.size} elements of output {output} overflow (drawn: {style})"
