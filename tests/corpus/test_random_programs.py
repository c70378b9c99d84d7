"""Random programs: none is refused, they compute what NumPy computes from their text, and searches answer for some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from benchmarks import fuzz_programs
from benchmarks.in_processes import Row
from benchmarks.stages import differs, searched
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.semantics.float64_reference import run as reference
from tests.kit.fuzz.random_programs import LONGEST, MOST_OPERATORS, program

#: Programs of one test case.
CHUNK = 50
#: Programs that are searched: small ones, for this is a test of the benchmark, which searches 1,000.
SEARCHED = (3, 5)


def built(text: str) -> mf.Graph:
    """What a text defines, with the front end."""
    names: dict[str, Any] = {}
    exec(text, names)
    graph: mf.Graph = names["graph"]
    return graph


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_none_is_refused_and_all_compute_what_their_text_says(first: int) -> None:
    for seed in range(first, first + CHUNK):
        written = program(seed)
        found = reference(built(written.text).freeze(), written.inputs)
        assert len(found) == len(written.outputs), seed
        for got, want in zip(found, written.outputs, strict=True):
            assert got.shape == want.shape, seed
            scale = np.abs(want).max()
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9 * (1 + scale), err_msg=f"seed {seed}")


def test_programs_are_of_all_sizes() -> None:
    written = [program(seed) for seed in range(150)]
    assert {len(one.outputs) for one in written} == {1, 2, 3}
    extents = {extent for one in written for array in one.inputs for extent in array.shape}
    assert min(extents) == 1
    assert 200 < max(extents) <= LONGEST
    lines = [sum(line.startswith("t") for line in one.text.splitlines()) for one in written]
    assert min(lines) <= 2
    assert 9 <= max(lines) <= MOST_OPERATORS


def test_a_seed_is_a_program() -> None:
    assert program(11).text == program(11).text != program(12).text


def test_every_input_is_read() -> None:
    for seed in range(50):
        graph = built(program(seed).text).freeze()
        assert {n for op in graph.ops for n in op.operands} >= set(range(len(graph.inputs))), seed


@pytest.mark.parametrize("seed", SEARCHED)
def test_a_search_answers(seed: int, tmp_path: Path) -> None:
    row = searched(built(program(seed).text), tmp_path / "run", 5.0, evaluate=True)
    assert row.ok, row.reason
    assert fuzz_programs.fault(row) == ""


def test_what_computes_something_else_is_told_apart() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input((5, 7), name="x")
    graph.mark_output(x.softmax(0))
    right = graph.freeze()
    (op,) = right.ops
    assert isinstance(op, Op)
    other = mf.new_kernel_graph()
    other.mark_output(other.new_input((5, 7), name="x").softmax(1))
    wrong: KernelGraph = other.freeze()
    assert differs(right, right) == ""
    assert "output 0 is off" in differs(right, wrong)


def test_faults_are_named() -> None:
    good = Row(program="p", stage="search", ok=True, verdict="equivalent", estimate_us=2.0, unfused_us=2.0)
    assert fuzz_programs.fault(good) == ""
    worse = Row(program="p", stage="search", ok=True, verdict="equivalent", estimate_us=2.1, unfused_us=2.0)
    assert fuzz_programs.fault(worse) == "estimated above the program"
    probable = Row(program="p", stage="search", ok=True, verdict="probable")
    assert fuzz_programs.fault(probable) == "verdict: probable"
    assert fuzz_programs.fault(Row(program="p", stage="check", ok=False, kind="check")) == "check: check"
