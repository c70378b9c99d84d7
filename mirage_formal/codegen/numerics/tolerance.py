"""Factor between the standard deviation of a result's rounding error and the error that is tolerated.

The tolerance of an element is ``LAMBDA`` times the root of the variance that ``rounding.RoundingDomain`` computes
(``result_comparison.output_tolerances``). Propagation through nonlinear functions uses the same factor
(``nonlinear_error``). The checker has a copy of its own (``check.cuda.gpu_record_check``).
"""

from __future__ import annotations

from typing import Final

#: Standard deviations of an error that are tolerated.
LAMBDA: Final = 6.0

__all__ = ["LAMBDA"]
