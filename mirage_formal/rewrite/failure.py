"""The end of a rewriting that does not apply to a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from mirage_formal.support.errors import GraphError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MatchFailure(Exception):
    """A rewriting does not apply to a graph; the text gives the reason. ``none_on_match_failure`` catches it."""


def none_on_match_failure(function: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """Return the function with the result None where the rewriting that it makes does not apply.

    Args:
        function: It raises ``MatchFailure``, at any depth of calls, where the rewriting does not apply, and
            ``GraphError`` where the shapes of its new graph do not fit.
    """

    @wraps(function)
    def found(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return function(*args, **kwargs)
        except (MatchFailure, GraphError):
            return None

    return found


__all__ = ["MatchFailure", "none_on_match_failure"]
