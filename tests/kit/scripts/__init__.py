"""Scripts in the style of the reference system's benchmarks, demos, tutorials and tests, written for its interface.

A script gets the module under the name ``mi``, as one that has changed its import does, and a function that draws
inputs. It returns what it computed and what NumPy says. ``stops`` is the row of docs/mirage_api.md that ends one that
cannot run here. Extents are small; grids, loops and maps have the form of those that such scripts have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray
#: Computed and expected outputs, pair by pair.
Found = list[tuple[Any, Array]]
Draw = Callable[..., list[Array]]
Script = Callable[[Any, Draw], Found]


@dataclass(frozen=True, slots=True)
class Entry:
    """One script.

    Attributes:
        name: What it is.
        run: Runs it.
        searches: Whether it asks for a search.
        ignores: Options that it is told are without effect.
        stops: The row that refuses it, or "".
    """

    name: str
    run: Script
    searches: bool
    ignores: tuple[str, ...]
    stops: str


SCRIPTS: Final[dict[str, Entry]] = {}


def script(
    name: str, *, searches: bool = False, ignores: Sequence[str] = (), stops: str = ""
) -> Callable[[Script], Script]:
    """Adds a function to the table."""

    def add(run: Script) -> Script:
        assert name not in SCRIPTS
        SCRIPTS[name] = Entry(name, run, searches, tuple(ignores), stops)
        return run

    return add


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def normed(a: Array) -> Array:
    return a / np.sqrt((a * a).mean(axis=-1, keepdims=True))


def silu(a: Array) -> Array:
    return a / (1 + np.exp(-a))


def attention(q: Array, k: Array, v: Array) -> Array:
    e = np.exp(wide(q) @ wide(k))
    return (e / e.sum(axis=-1, keepdims=True)) @ wide(v)


def exp_over_sum(graph: Any, q: Any, k: Any, v: Any) -> Any:
    e = graph.exp(graph.matmul(q, k))
    return graph.matmul(graph.div(e, graph.reduction(e, 2)), v)
