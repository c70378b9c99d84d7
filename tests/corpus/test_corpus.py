"""The programs of examples/corpus: well-formed at real extents, and what their formulas say at small ones."""

from __future__ import annotations

import inspect
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.cli.graphs.user_file import RUN_NAME
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.float64_reference import run as reference
from tests.kit.graphs.corpus_programs import CORPUS, FILES, build, draw, formula, sizes
from tests.kit.graphs.moves import zeros

NAMES = sorted(FILES)
#: Small programs are emulated, on a processor.
MOST_ELEMENTS = 1 << 14


def test_there_are_sixty_programs_or_more_in_small_folders() -> None:
    assert len(NAMES) == len(list(CORPUS.rglob("*.py"))) >= 60
    assert max(Counter(path.parent for path in FILES.values()).values()) <= 14


@pytest.mark.parametrize("name", NAMES)
def test_files_say_what_they_are_and_how_they_are_searched(name: str) -> None:
    path = FILES[name]
    names = runpy.run_path(str(path))
    title, _, rest = names["__doc__"].partition("\n\n")
    assert title.endswith((".", ".\n"))
    assert f"python -m mirage_formal.search {path.relative_to(CORPUS.parents[1])}" in rest
    assert set(names["SMALL"]) <= set(inspect.signature(names["program"]).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_programs_are_well_formed_at_real_extents(name: str) -> None:
    program = build(name).freeze()
    types = kernel_types(program)
    assert {types[i].dtype for i in program.outputs} <= {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32}
    assert {item.tensor.dtype for item in program.inputs} in ({DType.FLOAT16}, {DType.BFLOAT16})
    read = {number for op in program.ops for number in op.operands}
    assert read >= set(range(len(program.inputs))), "an input is never read"


@pytest.mark.parametrize("name", NAMES)
def test_no_program_makes_a_constant_of_a_tensor(name: str) -> None:
    assert not zeros(build(name).freeze())


@pytest.mark.parametrize("path", sorted(CORPUS.parent.glob("*.py")), ids=lambda path: path.stem)
def test_no_example_makes_a_constant_of_a_tensor(path: Path) -> None:
    if path.stem == "tour_marimo":
        pytest.skip("it needs marimo")
    graphs = [found for found in runpy.run_path(str(path), run_name=RUN_NAME).values() if isinstance(found, mf.Graph)]
    assert graphs
    assert not any(zeros(graph.freeze()) for graph in graphs)


@pytest.mark.parametrize("name", NAMES)
def test_small_programs_have_the_operators_of_the_real_ones(name: str) -> None:
    small, real = build(name, small=True).freeze(), build(name).freeze()
    kinds = [[op.kind for op in graph.ops if hasattr(op, "kind")] for graph in (small, real)]
    assert kinds[0] == kinds[1]
    assert sizes(name, small=True) != sizes(name)
    assert max(tensor.elements for tensor in kernel_types(small)) <= MOST_ELEMENTS


@pytest.mark.parametrize("name", NAMES)
def test_programs_compute_their_formulas(name: str) -> None:
    program = build(name, small=True).freeze()
    given = draw(name, program)
    found = reference(program, list(given.values()))
    wanted = formula(name)(given)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11 * np.abs(want).max())
