"""The numerical contract of docs/torch.md: largest allowed differences between a program and PyTorch.

For each element of PyTorch's result there are two references (comparison/node_evaluation.py): the same computed in
float64, with the roundings of the module itself only, and the movement of that value under random roundings.

- Where PyTorch's element and float64's are finite, ours is finite and near.
- Where both are the same infinity, ours is that infinity.
- Where PyTorch's is NaN and float64 has no number either, ours is no number.
- Where PyTorch's is not finite and float64's is, PyTorch has overflowed: ours may be infinite or NaN, or else is near
  float64's.

Near is the sum of four terms: twice PyTorch's own error; eight times the movement under random rounding of the element
or, on average, of its neighbours along the dim where that is least; eight units of the type's rounding; and its four
smallest numbers. Where random rounding changes a finite value to an infinite one, PyTorch's value is arbitrary and
every value is allowed. In a large tensor one element in a thousand may be further off, by no more than rounding moves
others: a maximum that two keys share goes to one of them by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

#: Unit roundoff: largest relative error of rounding to nearest.
ROUNDOFF: Final = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
_OWN: Final = 2.0
_MOVED: Final = 8.0
_UNITS: Final = 8.0
#: One element in this number may be as far off as rounding moves others.
_RARE: Final = 1000
#: Smallest normal float32, below which some GPUs and compilers flush to zero.
_FLUSHED: Final = 2.0**-126


@dataclass(frozen=True, slots=True)
class ExpectedResult:
    """Expected values of one result, computed by PyTorch.

    Attributes:
        own: Result in the module's own types.
        exact: Result in float64.
        moved: Results in float64 with random roundings.
    """

    own: Any
    exact: Any
    moved: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A violation of the contract by one result.

    Attributes:
        kind: Kind of the violation, in few words.
        index: The first violating element; for inexact elements, the one with the largest error relative to the allowed
            one.
        count: Number of violating elements.
        elements: Number of elements.
        own: PyTorch's element.
        exact: Float64's element.
        found: Our element.
        allowed: Allowed error of our element.
    """

    kind: str
    index: tuple[int, ...]
    count: int
    elements: int
    own: float
    exact: float
    found: float
    allowed: float

    def __str__(self) -> str:
        place = f"element {list(self.index)}" if self.index else "the only element"
        text = f"{self.kind}: {place}: PyTorch {self.own:.6g}, float64 {self.exact:.6g}, ours {self.found:.6g}"
        text += f", allowed {self.allowed:.2g}" if self.kind == OFF else ""
        return text + (f"; {self.count} of {self.elements} elements" if self.count > 1 else "")


LOST: Final = "not finite where PyTorch is"
OFF: Final = "too far off"
CHOSEN: Final = "another mask"
INVENTED: Final = "finite where there is no value"
TURNED: Final = "another infinity, or NaN in place of one"


def difference(found: Any, expected: ExpectedResult) -> Difference | None:
    """Return the difference by which a result breaks the contract; None if it keeps it.

    Args:
        found: The result; a tensor of the expected shape.
        expected: The expected values.
    """
    ours, own, exact = found.double(), expected.own.double(), expected.exact.double()
    dtype = expected.own.dtype
    if not own.numel():
        return None
    if not dtype.is_floating_point:
        return _find_difference(CHOSEN, ours != own, expected, ours, torch.zeros_like(own))
    largest = torch.finfo(dtype).max
    error = torch.nan_to_num((own - exact).abs(), nan=0.0, posinf=0.0)
    spread, settled = torch.zeros_like(own), torch.ones_like(own, dtype=torch.bool)
    for one in expected.moved:
        settled &= torch.where(exact.isfinite(), one.isfinite(), (one == exact) | (one.isnan() & exact.isnan()))
        spread = torch.maximum(spread, torch.nan_to_num((one - exact).abs(), nan=0.0, posinf=0.0))
    fine, there = own.isfinite(), ours.isfinite()
    wanted = torch.where(fine, own, exact)
    size = wanted.abs().nan_to_num(nan=0.0, posinf=0.0)
    allowed = (
        _OWN * error
        + _MOVED * torch.maximum(spread, _average_along_least_dim(spread))
        + _UNITS * ROUNDOFF[dtype] * size
        + _smallest_error(dtype)
    )
    off = torch.nan_to_num((ours - wanted).abs(), nan=torch.inf)
    apart = (fine | exact.isfinite()) & there & settled & (off > allowed)
    if int(apart.sum()) <= own.numel() // _RARE:
        apart &= off > _OWN * float(error.max()) + _MOVED * float(spread.max())
    # An overflow of the type itself is infinite whoever computes it; just below it rounding decides.
    near_end = (exact.abs() > largest * (1 - 4 * ROUNDOFF[dtype])) | (own.abs() + allowed > largest)
    genuine = ~fine & ~exact.isfinite() & settled
    cases = (
        (LOST, fine & exact.isfinite() & ~there & settled & ~near_end),
        (OFF, apart),
        (INVENTED, genuine & there),
        (TURNED, genuine & own.isinf() & (exact == own) & ~there & (ours != own)),
    )
    for kind, bad in cases:
        if (at := _find_difference(kind, bad, expected, ours, allowed)) is not None:
            return at
    return None


def _find_difference(kind: str, bad: Any, expected: ExpectedResult, ours: Any, allowed: Any) -> Difference | None:
    """Return the difference at elements that break the contract in one way; None if there are none."""
    if not bool(bad.any()):
        return None
    own, exact = expected.own.double(), expected.exact.double()
    off = (ours - torch.where(own.isfinite(), own, exact)).abs().nan_to_num(nan=0.0) / (allowed + 2.0**-1000)
    at = int(torch.where(bad, off, -1.0).argmax() if kind == OFF else bad.to(torch.uint8).argmax())
    place = tuple(int(n) for n in torch.unravel_index(torch.tensor(at), bad.shape))
    numbers = (float(own[place]), float(exact[place]), float(ours[place]), float(allowed[place]))
    return Difference(kind, place, int(bad.sum()), own.numel(), *numbers)


def _average_along_least_dim(spread: Any) -> Any:
    """Return the average along the dim where it is least, because few random samples say little about one element."""
    averages = [spread.mean(dim, keepdim=True) for dim in range(spread.dim()) if spread.shape[dim] > 1]
    found = averages[0] if averages else spread
    for one in averages[1:]:
        found = torch.minimum(found, one)
    return found.expand_as(spread)


def _smallest_error(dtype: Any) -> float:
    """Return four times the smallest subnormal number of a type, but at least the flush-to-zero threshold."""
    return max(8 * ROUNDOFF[dtype] * float(torch.finfo(dtype).smallest_normal), _FLUSHED)


__all__ = ["ROUNDOFF", "TURNED", "Difference", "ExpectedResult", "difference"]
