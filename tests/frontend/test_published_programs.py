"""The programs of the reference system's two READMEs, its demos and its article: what runs, and what names its mistake.

They are the same calls on the same shapes, written here. `docs/mirage_api.md` says how their checkpoints are read.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mi
from mirage_formal.api import request
from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.compile_unsearched import make_callable
from tests.kit.checkpoints.first_checkpoints import ATTENTION, LORA, FirstGraph, file_of


def first_readme() -> mi.Graph:
    """Group-query attention, as in the first README and its demo."""
    graph = mi.new_graph()
    Q = graph.new_input(dims=(2, 256, 64), dtype=mi.float16)
    K = graph.new_input(dims=(2, 64, 4096), dtype=mi.float16)
    V = graph.new_input(dims=(2, 4096, 64), dtype=mi.float16)
    E = graph.exp(graph.matmul(Q, K))
    D = graph.div(E, graph.reduction(E, 2))
    graph.matmul(D, V)
    return graph


def first_demo() -> mi.Graph:
    """The low-rank adapter of the second demo."""
    graph = mi.new_graph()
    X = graph.new_input(dims=(16, 256), dtype=mi.float16)
    W = graph.new_input(dims=(256, 4096), dtype=mi.float16)
    A = graph.new_input(dims=(256, 16), dtype=mi.float16)
    B = graph.new_input(dims=(16, 4096), dtype=mi.float16)
    low = graph.matmul(graph.matmul(X, A), B)
    graph.add(graph.matmul(X, W), low)
    return graph


def second_readme(rows: int) -> mi.Graph:
    """A norm and a product; the README's weight has 406 rows, where 4096 are meant."""
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 4096), dtype=mi.float16)
    W = graph.new_input(dims=(rows, 4096), dtype=mi.float16)
    graph.mark_output(graph.matmul(graph.rms_norm(X), W))
    return graph


def article() -> mi.Graph:
    """Attention for one row of a head, with the operator softmax."""
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(64, 1, 128), dtype=mi.float16)
    K = graph.new_input(dims=(64, 128, 4096), dtype=mi.float16)
    V = graph.new_input(dims=(64, 4096, 128), dtype=mi.float16)
    graph.matmul(graph.softmax(graph.matmul(Q, K)), V)
    return graph


@pytest.fixture
def not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of a search, the program computes itself."""

    def superoptimize(program: KernelBuilder | KernelGraph, **options: Any) -> list[Any]:
        assert set(options) <= set(request.Options.__annotations__)
        return [make_callable(program.freeze() if isinstance(program, KernelBuilder) else program)]

    monkeypatch.setattr(request, "superoptimize", superoptimize)


def write_programs(found: list[Any]) -> list[str]:
    """The loop over results as in the first README; the texts that were written."""
    for i, mugraph in enumerate(found):
        mugraph.generate_triton_program(f"generated_program_{i}.py")
    return [Path(f"generated_program_{i}.py").read_text() for i in range(len(found))]


@pytest.mark.parametrize(
    ("program", "graphs"), [(first_readme, ATTENTION), (first_demo, LORA)], ids=["attention", "lora"]
)
def test_the_checkpoint_of_a_demo_gives_its_programs(
    program: Any, graphs: dict[str, FirstGraph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No search: every graph of the file is proved, and has a Triton file."""
    monkeypatch.chdir(tmp_path)
    graphs = {
        name: graph for name, graph in graphs.items() if name not in ("divided by an operator", "another grid and loop")
    }
    Path("checkpoint.json").write_text(json.dumps(file_of(*graphs.values())))
    found = mi.superoptimize(program(), checkpoint="checkpoint.json", workers=1)
    assert len(found) == len(graphs)
    assert all(isinstance(one.verdict, mi.Equivalent) for one in found)
    texts = write_programs(found)
    for text in texts:
        ast.parse(text)
    assert "@triton.jit" in texts[0]


@pytest.mark.usefixtures("searched_once")
@pytest.mark.slow
def test_the_first_readme_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = mi.superoptimize(first_readme(), griddims=[(2, 16, 1), (2, 16, 4)], workers=1)
    assert found
    assert len(write_programs(list(found))) == len(found)


def test_the_second_readmes_weight_is_named() -> None:
    with pytest.raises(mi.ShapeError) as raised:
        second_readme(406)
    assert "matmul: inner dimensions differ: rms_norm(X)[16,4096] has 4096, W[406,4096] has 406" in raised.value.what
    assert "test_published_programs.py:" in raised.value.where


@pytest.mark.usefixtures("not_searched")
@pytest.mark.filterwarnings("ignore::mirage_formal.device.launch.NoDeviceWarning")
def test_the_second_readme_with_the_weight_that_is_meant() -> None:
    optimized_graph: Any = second_readme(4096).superoptimize()
    rng = np.random.default_rng(0)
    x, w = (rng.random(shape).astype(np.float16) for shape in [(16, 4096), (4096, 4096)])
    result = optimized_graph([x, w])[0]
    a, b = x.astype(np.float64), w.astype(np.float64)
    wanted = a / np.sqrt(np.mean(a * a, axis=-1, keepdims=True)) @ b
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=4e-3)


@pytest.mark.usefixtures("not_searched")
def test_tensors_of_the_article_do_not_fit_the_readmes_program() -> None:
    """The second README calls attention on tensors of the article's shapes: the input and both shapes are named."""
    optimized_graph: Any = first_readme().superoptimize(config="attention")
    given = [np.zeros(item.tensor.shape, np.float16) for item in article().freeze().inputs]
    with pytest.raises(mi.ShapeError, match=r"input Q: expected shape \[2, 256, 64\], got \[64, 1, 128\]"):
        optimized_graph(given)


@pytest.mark.usefixtures("not_searched")
def test_the_articles_program() -> None:
    """It has one output without mark_output, and a wrong shape is named where it is."""
    optimized_graph: Any = article().superoptimize()
    (output,) = article().freeze().outputs
    assert output == 5
    with pytest.raises(mi.ShapeError, match=r"input K: expected shape \[64, 128, 4096\], got \[64, 4096, 128\]"):
        optimized_graph([np.zeros(shape, np.float16) for shape in [(64, 1, 128), (64, 4096, 128), (64, 4096, 128)]])
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(64, 1, 128))
    K = graph.new_input(dims=(64, 4096, 128))
    with pytest.raises(
        mi.ShapeError, match=r"matmul: inner dimensions differ: Q\[64,1,128\] has 128, K\[64,4096,128\]"
    ):
        graph.matmul(Q, K)
