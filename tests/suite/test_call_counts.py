"""Counting calls."""

from __future__ import annotations

import sys

import pytest

from tests.kit.processes import TooMuchError, calls


def test_calls_of_python_and_of_c_are_counted_alike_every_time() -> None:
    def work() -> None:
        for n in range(10):
            square(n)

    def square(n: int) -> int:
        return abs(n)

    before = sys.getprofile()
    counts = {calls(work, 1_000) for _ in range(3)}
    assert len(counts) == 1
    assert 21 <= counts.pop() <= 25
    assert sys.getprofile() is before


def test_too_many_calls_end_at_once_and_are_no_exception_of_the_tested() -> None:
    seen: list[int] = []

    def endless() -> None:
        while True:
            try:
                seen.append(len(seen))
            except Exception:
                pytest.fail("it was held")

    with pytest.raises(TooMuchError, match="more than 100 calls"):
        calls(endless, 100)
    assert len(seen) < 100
    with pytest.raises(KeyError):
        calls(lambda: dict[int, int]()[1], 100)
    assert sys.getprofile() is None or callable(sys.getprofile())
