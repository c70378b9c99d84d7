"""The checker's own table of functions of which proofs know no law.

The only rule about such a function is that equal arguments give equal values.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class NamedFunction(NamedTuple):
    """A function of one real number.

    Attributes:
        positive_domain: Whether it has a value only where its argument is above 0.
        nonnegative: Whether no value of it is below 0.
    """

    positive_domain: bool = False
    nonnegative: bool = False


NAMED: Final = {
    "erf": NamedFunction(),
    "relu": NamedFunction(nonnegative=True),
    "log": NamedFunction(positive_domain=True),
    "round_float16": NamedFunction(),
    "round_bfloat16": NamedFunction(),
}
#: Functions that steps of proofs apply to tensors, those with laws first.
UNARY: Final = ("exp", "sqrt", "square", "sigmoid", "gelu", *NAMED)
