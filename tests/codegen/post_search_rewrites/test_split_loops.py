"""Splits of a loop: the same one is chosen whether or not second kernels that cannot win are left out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mirage_formal.codegen.cost import least_kernel_us
from mirage_formal.codegen.post_search_rewrites import split_k
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import PARTS
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import GraphDefined
from mirage_formal.graph.verifier import kernel_types
from tests.codegen.post_search_rewrites.random_loops import sums_over_the_loop

H200 = load_target("h200")


def test_second_kernels_that_cannot_win_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    finish = split_k._finish_split

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        return finish(*args, **kwargs)

    monkeypatch.setattr(split_k, "_finish_split", counted)
    counts = []
    splits = []
    for least in (least_kernel_us, lambda _: -1e9):  # with the second one, no split is left out
        monkeypatch.setattr(split_k, "least_kernel_us", least)
        made = 0
        found = []
        for seed in range(24):
            graph = sums_over_the_loop(random.Random(seed))
            op = graph.ops[-1]
            assert isinstance(op, GraphDefined)
            types = kernel_types(graph)
            found += [split_k.split_loop(op, [types[n] for n in op.operands], parts, H200) for parts in PARTS]
        splits.append(found)
        counts.append(made)
    assert splits[0] == splits[1]
    assert any(split is not None for split in splits[0])
    assert 0 < counts[0] < counts[1]
