"""Values that describe a candidate's predicted numerics; the code that computes them is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictedNumerics:
    """The predicted numerics of a candidate.

    Attributes:
        outside: Scales at which its results are outside of the tolerances, and those of the program, operator by
            operator, are not.
        rounding: Its tolerances relative to the values at scale 1, in norm, to two digits; None where they are not
            estimated.
    """

    outside: tuple[float, ...]
    rounding: float | None
