"""Work counted instead of timed: calls of functions, which are as many on a busy machine as on an idle one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooMuchError(BaseException):
    """More calls than a test allows; no ``except Exception`` of what is tested stops it."""


def calls(function: Callable[[], object], most: int) -> int:
    """How many functions, of Python and of C, ``function`` calls until it returns.

    Raises:
        TooMuchError: They are more than ``most``: raised there and then, so that a slow algorithm is not waited for.
    """
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1
            if count > most:
                sys.setprofile(None)
                raise TooMuchError(f"more than {most:,} calls")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
