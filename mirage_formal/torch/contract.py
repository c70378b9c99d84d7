"""When a result keeps what docs/torch.md promises of it: the contract, and how much results may differ.

Beside each element of PyTorch's result in its own type stand the same computed in float64, where nothing rounds but
what the module rounds itself, and how far that moves when everything is rounded at random (torch/twin.py).

- Where PyTorch's element is finite, ours is finite and near it.
- Where PyTorch's is an infinity that float64 has as well, ours is that infinity.
- Where PyTorch's is NaN and float64 has no number either, ours is no number.
- Where PyTorch's is not finite and float64's is, PyTorch has overflowed on the way: ours may be infinite or NaN, or
  else is near float64's.

Near: within twice PyTorch's own error, four times what random rounding moves, as far as the median element is moved,
eight units in which the type rounds, and its four smallest numbers. Where random rounding crosses from finite to not
finite, what PyTorch has is chance, and nothing is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

#: What rounding to nearest loses at most, relative to the number.
ROUNDOFF: Final = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
_OWN: Final = 2.0
_MOVED: Final = 4.0
_UNITS: Final = 8.0
#: Below the smallest normal float32 some GPUs and compilers have zero.
_FLUSHED: Final = 2.0**-126


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of one result.

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
    ours = found.double().reshape(-1)
    own, exact = expected.own.double().reshape(-1), expected.exact.double().reshape(-1)
    moved = [one.double().reshape(-1) for one in expected.moved]
    dtype = expected.own.dtype
    if not own.numel():
        return None
    if not dtype.is_floating_point:
        return _found(CHOSEN, ours != own, expected, ours, torch.zeros_like(own))
    largest = torch.finfo(dtype).max
    allowed = _allowed(own, exact, moved, dtype)
    settled = torch.ones_like(own, dtype=torch.bool)
    for one in moved:
        settled &= one.isfinite() == exact.isfinite()
    fine, there = own.isfinite(), ours.isfinite()
    # An overflow of the type itself is infinite whoever computes it; just below it rounding decides.
    wanted = torch.where(fine, own, exact)
    apart = torch.nan_to_num((ours - wanted).abs(), nan=torch.inf) > allowed
    near_end = settled & ((exact.abs() > largest * (1 - 4 * ROUNDOFF[dtype])) | (own.abs() + allowed > largest))
    genuine = ~fine & ~exact.isfinite() & settled
    cases = (
        (LOST, fine & ~there & settled & ~near_end),
        (OFF, (fine | exact.isfinite()) & there & apart & settled),
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
    own, exact = expected.own.double().reshape(-1), expected.exact.double().reshape(-1)
    off = (ours - torch.where(own.isfinite(), own, exact)).abs().nan_to_num(nan=0.0) / (allowed + 2.0**-1000)
    at = int(torch.where(bad, off, -1.0).argmax() if kind == OFF else bad.to(torch.uint8).argmax())
    place = tuple(int(n) for n in torch.unravel_index(torch.tensor(at), expected.own.shape))
    numbers = (float(own[at]), float(exact[at]), float(ours[at]), float(allowed[at]))
    return Difference(kind, place, int(bad.sum()), own.numel(), *numbers)


def _allowed(own: Any, exact: Any, moved: Sequence[Any], dtype: Any) -> Any:
    """Return how far each element may be off."""
    unit, least = ROUNDOFF[dtype], max(4 * torch.finfo(dtype).smallest_normal * 2 * ROUNDOFF[dtype], _FLUSHED)
    error = torch.nan_to_num((own - exact).abs(), nan=0.0, posinf=0.0)
    spread = torch.zeros_like(own)
    for one in moved:
        spread = torch.maximum(spread, torch.nan_to_num((one - exact).abs(), nan=0.0, posinf=0.0))
    size = torch.where(own.isfinite(), own, exact).abs().nan_to_num(nan=0.0, posinf=0.0)
    usual = exact.isfinite() & (size > 0)
    shares = (spread / size)[usual]
    share = float(shares.median()) if shares.numel() else 0.0
    return _OWN * error + _MOVED * (spread + share * size) + _UNITS * unit * size + least


__all__ = ["ROUNDOFF", "Difference", "Expected", "difference"]
