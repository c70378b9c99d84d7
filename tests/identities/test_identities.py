"""Identities from textbooks and papers, as data: the prover decides each, and the checker replays each proof.

A file of this folder holds the identities of one kind. ``equal`` lists identities, and ``wrong`` statements that look
like one of them and are none. A row has ``left`` and ``right``, expressions of the frontend over the file's ``inputs``
(shapes) and ``masks``, where ``I`` makes numbers of a mask; ``source``; ``positive`` if it is about positive inputs;
and ``unknown``, the reason why a true identity is not proved.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.counterexamples.refute import find_counterexample
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference
from tests.kit.paths import REPOSITORY

FIELDS = {"left", "right", "source", "positive", "unknown"}


@dataclass(frozen=True)
class Identity:
    """One row of a file, with the file's inputs that its expressions name."""

    name: str
    equal: bool
    left: str
    right: str
    source: str
    inputs: tuple[tuple[str, tuple[int, ...], bool], ...]
    positive: bool = False
    unknown: str = ""

    def graph(self, text: str) -> KernelGraph:
        """Return the graph of one side."""
        graph = mf.new_kernel_graph()
        names: dict[str, Any] = {name: getattr(graph, name) for name in dir(graph) if not name.startswith("_")}
        names |= {"float16": mf.float16, "bfloat16": mf.bfloat16, "I": lambda mask: graph.cast(mask, mf.float32)}
        for name, shape, mask in self.inputs:
            names[name] = graph.new_input(dims=shape, dtype=mf.bool_ if mask else mf.float32, name=name)
        graph.mark_output(eval(text, {"__builtins__": {}}, names))
        return graph.freeze()

    def graphs(self) -> tuple[KernelGraph, KernelGraph]:
        """Return the graphs of both sides, over the same inputs."""
        return self.graph(self.left), self.graph(self.right)


@cache
def identities() -> tuple[Identity, ...]:
    """Return all rows of all files."""
    out = []
    for path in sorted((REPOSITORY / "tests/identities").glob("*.toml")):
        file = tomllib.loads(path.read_text())
        shapes = {name: (tuple(shape), False) for name, shape in file["inputs"].items()}
        shapes |= {name: (tuple(shape), True) for name, shape in file.get("masks", {}).items()}
        for equal, rows in ((True, file["equal"]), (False, file["wrong"])):
            for number, row in enumerate(rows):
                assert row.keys() <= FIELDS, (path.name, row)
                words = compile(f"({row['left']}, {row['right']})", path.name, "eval").co_names
                inputs = tuple((name, *shape) for name, shape in shapes.items() if name in words)
                out.append(
                    Identity(f"{path.stem}-{'equal' if equal else 'wrong'}-{number}", equal, inputs=inputs, **row)
                )
    return tuple(out)


def points(item: Identity, graph: KernelGraph) -> list[list[np.ndarray[Any, Any]]]:
    """Return some random inputs of different sizes, positive ones if the identity is about these."""
    rng = np.random.default_rng(5)
    out = []
    for _ in range(12):
        drawn = [rng.choice([0.1, 1, 2]) * rng.normal(size=source.tensor.shape) for source in graph.inputs]
        masks = [mask for _, _, mask in item.inputs]
        out.append(
            [
                np.where(x > 0, 1.0, 0.0) if m else abs(x) if item.positive else x
                for x, m in zip(drawn, masks, strict=True)
            ]
        )
    return out


def gap(item: Identity) -> float:
    """Return the largest relative difference of both sides at points where both have values; NaN without a point."""
    left, right = item.graphs()
    found = [float("nan")]
    for point in points(item, left):
        with np.errstate(all="ignore"):
            (a,), (b,) = float64_reference.run(left, point), float64_reference.run(right, point)
        if np.isfinite(a).all() and np.isfinite(b).all():
            found.append(float(np.max(np.abs(a - b) / (1 + np.abs(a)))))
    return float(np.nanmax(found))


@pytest.mark.parametrize("item", identities(), ids=lambda item: item.name)
def test_each_identity_is_decided_right(item: Identity) -> None:
    left, right = item.graphs()
    verdict = prove(left, right)
    if item.equal:
        assert gap(item) < 1e-7
        assert find_counterexample(left, right, seed=1, attempts=1) is None
        assert isinstance(verdict, Equivalent) != bool(item.unknown), verdict
        if isinstance(verdict, Equivalent):
            replay_composed(left, right, verdict.proof)
    else:
        assert not isinstance(verdict, Equivalent)
        assert not isinstance(prove(right, left), Equivalent)
        assert find_counterexample(left, right, seed=1) is not None


def test_there_are_enough_and_no_two_are_the_same() -> None:
    rows = [(item.left, item.right) for item in identities()]
    assert [row for row, count in Counter(rows).items() if count > 1] == []
    assert all(item.source for item in identities())
    counts = Counter((item.name.split("-")[0], item.equal, bool(item.unknown)) for item in identities())
    for (kind, equal, unknown), count in sorted(counts.items()):
        print(f"{kind}: {count} {'unknown' if unknown else 'equal' if equal else 'wrong'}")
    assert len(rows) >= ENOUGH
    assert sum(not item.equal for item in identities()) >= WRONG
    assert sum(bool(item.unknown) for item in identities()) <= UNKNOWN


#: Rows, wrong ones and ones that are not decided: bounds that may only become better.
ENOUGH, WRONG, UNKNOWN = 807, 278, 2
