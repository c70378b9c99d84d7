"""Launch options of a Triton file: the choices for its functions beside their text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirage_formal.codegen.triton.kernel_function import Function

#: Warps that a program may have.
_MOST_WARPS: Final = 16


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The launch options of all functions of a file.

    Attributes:
        warps: The factor on each function's own number of warps: a power of two, or 1 over one.
        stages: The stages of loops whose loads Triton pipelines; None: each function's own.
    """

    warps: float = 1.0
    stages: int | None = None

    def for_function(self, made: Function) -> tuple[int, int]:
        """Return the warps and stages of a function."""
        warps = min(_MOST_WARPS, max(1, int(made.warps * self.warps)))
        return warps, made.stages if self.stages is None or not made.piped else self.stages

    def __str__(self) -> str:
        stages = "own stages" if self.stages is None else f"{self.stages} stages"
        return f"warps x{self.warps:g}, {stages}"


#: The options that keep each function's own warps and stages.
OWN: Final = LaunchOptions()

__all__ = ["OWN", "LaunchOptions"]
