"""Acceptance policies of candidates, by name; ``certify`` implements them."""

from __future__ import annotations

from enum import StrEnum


class Policy(StrEnum):
    """Policy that says which candidates are accepted.

    EQUIVALENT: candidates that are proved equal to the program over the reals.
    PROBABLE: these, and candidates that agree with the program at random points of a finite field.
    """

    EQUIVALENT = "equivalent"
    PROBABLE = "probable"
