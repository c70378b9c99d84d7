"""When a result keeps what docs/torch.md promises of it: the contract, and how much results may differ.

Beside each element of PyTorch's result in its own type stand the same computed in float64, where nothing rounds but
what the module rounds itself, and how far that moves when everything is rounded at random (comparison/reference.py).

- Where PyTorch's element is finite, and float64's is, ours is finite and near it.
- Where PyTorch's is an infinity that float64 has as well, ours is that infinity.
- Where PyTorch's is NaN and float64 has no number either, ours is no number.
- Where PyTorch's is not finite and float64's is, PyTorch has overflowed on the way: ours may be infinite or NaN, or
  else is near float64's.

Near: within twice PyTorch's own error, eight times what random rounding moves the element or, on average, its
neighbours along the dim where that is least, eight units in which the type rounds, and its four smallest numbers. Where
random rounding crosses from finite to not finite, what PyTorch has is chance, and nothing is asked. In a large tensor
one element in a thousand may be further off, by no more than rounding moves others: a maximum that two keys share goes
to one of them by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

#: What rounding to nearest loses at most, relative to the number.
ROUNDOFF: Final = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
_OWN: Final = 2.0
_MOVED: Final = 8.0
_UNITS: Final = 8.0
#: One element in so many may be as far off as rounding moves others.
_RARE: Final = 1000
#: Below the smallest normal float32 some GPUs and compilers have zero.
_FLUSHED: Final = 2.0**-126


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected values of one result, computed by PyTorch.

    Attributes:
        own: PyTorch's, in the module's own types.
        exact: PyTorch's in float64.
        moved: The same with random roundings, several times.
    """

    own: Any
    exact: Any
    moved: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a result breaks the contract.

    Attributes:
        kind: How, in few words.
        index: The first element that does, or of those that are off the one that is by most of what is allowed.
        count: How many do.
        elements: How many elements there are.
        own: PyTorch's.
        exact: Float64's.
        found: Ours.
        allowed: How far ours may be off.
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


def difference(found: Any, expected: Expected) -> Difference | None:
    """Return how a result breaks the contract; None if it keeps it.

    Args:
        found: The result; a tensor of the shape of what is expected.
        expected: What is expected.
    """
    ours, own, exact = found.double(), expected.own.double(), expected.exact.double()
    dtype = expected.own.dtype
    if not own.numel():
        return None
    if not dtype.is_floating_point:
        return _found(CHOSEN, ours != own, expected, ours, torch.zeros_like(own))
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
        _OWN * error + _MOVED * torch.maximum(spread, _around(spread)) + _UNITS * ROUNDOFF[dtype] * size + _least(dtype)
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
        if (at := _found(kind, bad, expected, ours, allowed)) is not None:
            return at
    return None


def _found(kind: str, bad: Any, expected: Expected, ours: Any, allowed: Any) -> Difference | None:
    """Return the difference at elements that break the contract in one way; None if there are none."""
    if not bool(bad.any()):
        return None
    own, exact = expected.own.double(), expected.exact.double()
    off = (ours - torch.where(own.isfinite(), own, exact)).abs().nan_to_num(nan=0.0) / (allowed + 2.0**-1000)
    at = int(torch.where(bad, off, -1.0).argmax() if kind == OFF else bad.to(torch.uint8).argmax())
    place = tuple(int(n) for n in torch.unravel_index(torch.tensor(at), bad.shape))
    numbers = (float(own[place]), float(exact[place]), float(ours[place]), float(allowed[place]))
    return Difference(kind, place, int(bad.sum()), own.numel(), *numbers)


def _around(spread: Any) -> Any:
    """Return the average along the dim where it is least: few random numbers say little about one element."""
    averages = [spread.mean(dim, keepdim=True) for dim in range(spread.dim()) if spread.shape[dim] > 1]
    found = averages[0] if averages else spread
    for one in averages[1:]:
        found = torch.minimum(found, one)
    return found.expand_as(spread)


def _least(dtype: Any) -> float:
    """Return four times the smallest number of a type, or below what may be zero."""
    return max(8 * ROUNDOFF[dtype] * float(torch.finfo(dtype).smallest_normal), _FLUSHED)


__all__ = ["ROUNDOFF", "TURNED", "Difference", "Expected", "difference"]
