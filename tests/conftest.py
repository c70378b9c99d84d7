"""Hypothesis profile of the test suite."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits that: tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this test suite."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests run without tracing: coverage makes searches several times slower, and fast tests cover the code."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker("no_cover")
