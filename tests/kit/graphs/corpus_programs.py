"""The programs of examples/corpus, by name, and the formulas that say in NumPy what they compute."""

from __future__ import annotations

import inspect
import runpy
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

import mirage_formal as mf
from mirage_formal.cli.graphs.user_file import RUN_NAME
from mirage_formal.graph.graph import KernelGraph
from tests.kit.graphs import corpus_formulas
from tests.kit.graphs.corpus_formulas import Array
from tests.kit.paths import REPOSITORY

CORPUS: Final = REPOSITORY / "examples" / "corpus"
#: Files by the name of their program.
FILES: Final[dict[str, Path]] = {path.stem: path for path in sorted(CORPUS.rglob("*.py"))}
#: Inputs that hold ones and zeros, by program.
_BITS: Final = {"masked_where": {"mask"}, "cross_entropy_rows": {"target"}}


def build(name: str, *, small: bool = False) -> mf.Graph:
    """A program at its real extents, which its file defines, or at the small ones of ``SMALL``.

    Raises:
        Exception: What the file raises: every Mirage error, and whatever a name that does not exist gives.
    """
    names = _names(name)
    graph = names["program"](**names["SMALL"]) if small else names[name]
    assert isinstance(graph, mf.Graph)
    return graph


def sizes(name: str, *, small: bool = False) -> dict[str, int]:
    """The arguments of a program."""
    names = _names(name)
    given = {p.name: p.default for p in inspect.signature(names["program"]).parameters.values()}
    return {**given, **names["SMALL"]} if small else given


def draw(name: str, graph: KernelGraph, seed: int = 0) -> dict[str, Array]:
    """Seeded numbers for the inputs, by their names; most are normal, with deviation 0.7."""
    found = {}
    for item in graph.inputs:
        rng = np.random.default_rng([seed, zlib.crc32(item.name.encode())])
        bits = item.name in _BITS.get(name, ())
        shape = item.tensor.shape
        found[item.name] = rng.integers(0, 2, shape).astype(np.float64) if bits else 0.7 * rng.standard_normal(shape)
    return found


def formula(name: str) -> Callable[[Mapping[str, Array]], tuple[Array, ...]]:
    """What a program computes, from its inputs by name, at small extents.

    Raises:
        KeyError: Nobody wrote it down.
    """
    written = vars(corpus_formulas)[name]

    def call(given: Mapping[str, Array]) -> tuple[Array, ...]:
        known: dict[str, Any] = dict(given)
        if "sizes" in inspect.signature(written).parameters:
            known["sizes"] = sizes(name, small=True)
        found = written(**known)
        return found if isinstance(found, tuple) else (found,)

    return call


def _names(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FILES[name]), run_name=RUN_NAME)
