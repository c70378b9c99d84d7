"""Programs as a search sees them: maxima that do not matter are gone, all others stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal import records
from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.preprocess import preprocess
from mirage_formal.semantics import float64_reference

Body = Callable[[mf.Graph, mf.Tensor], list[mf.Tensor]]


def program(body: Body, shape: tuple[int, ...] = (4, 6, 8)) -> KernelGraph:
    graph = mf.new_kernel_graph()
    for tensor in body(graph, graph.new_input(shape)):
        graph.mark_output(tensor)
    return graph.freeze()


def maxima(graph: KernelGraph) -> int:
    return sum(not isinstance(op, GraphDefined) and op.kind in (OpKind.MAX, OpKind.MAXIMUM) for op in graph.ops)


def softmax(g: mf.Graph, x: mf.Tensor) -> list[mf.Tensor]:
    e = g.exp(x - g.max(x, dim=-1))
    return [e / g.sum(e, dim=-1)]


def minus_first(g: mf.Graph, x: mf.Tensor) -> list[mf.Tensor]:
    """Both shifted by the same row's maximum, which cancels in their quotient."""
    m = g.max(x, dim=-1)
    return [g.exp(x - m) / g.exp(2 * x - m)]


def scaled(g: mf.Graph, x: mf.Tensor) -> list[mf.Tensor]:
    """The maximum of what is scaled afterwards: (x - m) / 8."""
    e = g.exp((x - g.max(x, dim=-1)) / 8)
    return [e / g.sum(e, dim=-1)]


def two_softmaxes(g: mf.Graph, x: mf.Tensor) -> list[mf.Tensor]:
    (a,) = softmax(g, x)
    return softmax(g, a + x)


def beside(g: mf.Graph, x: mf.Tensor) -> list[mf.Tensor]:
    """One maximum that does not matter, and one that does."""
    (a,) = softmax(g, x)
    return [a, x - g.max(x, dim=1)]


def bounded(g: mf.Graph, x: mf.Tensor) -> mf.Tensor:
    """A softmax whose maximum is at least a number, so that it is finite of rows that are -inf."""
    largest = g.max(x, dim=-1)
    e = g.exp(x - g.maximum(largest, g.full_like(largest, -1e4)))
    return e / g.sum(e, dim=-1)


def of_two(g: mf.Graph, x: mf.Tensor) -> list[mf.Tensor]:
    """Two parts that are put together: kernels compute no running maximum of two tensors."""
    a, b = g.chunk(x, 2, dim=1)
    largest = g.maximum(a, b)
    first, second = g.exp(a - largest), g.exp(b - largest)
    return [first / (first + second)]


GONE: dict[str, Body] = {
    "softmax": softmax,
    "along another dim": lambda g, x: [(e := g.exp(x - g.max(x, dim=1))) / g.sum(e, dim=1)],
    "log_softmax": lambda g, x: [g.log_softmax(x, dim=-1)],
    "logsumexp": lambda g, x: [g.logsumexp(x, dim=-1)],
    "over two dims": lambda g, x: [g.logsumexp(x, dim=(1, 2))],
    "no dim left": lambda g, x: [g.logsumexp(x, dim=-1, keepdim=False)],
    "scaled": scaled,
    "two": two_softmaxes,
    "both outputs": lambda g, x: [*softmax(g, x), g.logsumexp(x, dim=-1)],
    "a quotient": minus_first,
    "at least a number": lambda g, x: [bounded(g, x)],
}
STAY: dict[str, Body] = {
    "the maximum itself": lambda g, x: [g.max(x, dim=-1)],
    "shifted only": lambda g, x: [g.exp(x - g.max(x, dim=-1))],
    "a range": lambda g, x: [x / g.max(g.abs(x), dim=-1)],
    "minimum and maximum": lambda g, x: [(x - (low := g.min(x, dim=-1))) / (g.max(x, dim=-1) - low)],
    "subtracted from": lambda g, x: [g.exp(g.max(x, dim=-1) - x)],
    "wrong row": lambda g, x: [(e := g.exp(x - g.max(x, dim=1))) / g.sum(e, dim=-1)],
    "also an output": lambda g, x: [(m := g.max(x, dim=-1)), (e := g.exp(x - m)) / g.sum(e, dim=-1)],
    "none": lambda g, x: [g.softmax(x)],
    "of two tensors": of_two,
}


@pytest.mark.parametrize("name", GONE)
def test_what_does_not_matter_is_not_sought(name: str) -> None:
    given = program(GONE[name])
    plain = preprocess(given).whole
    assert maxima(given) > 0
    assert maxima(plain) == 0
    assert isinstance(prove(given, plain), Equivalent)
    x = np.random.default_rng(1).standard_normal((4, 6, 8))
    for wanted, got in zip(float64_reference.run(given, [x]), float64_reference.run(plain, [x]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", STAY)
def test_what_matters_stays(name: str) -> None:
    given = program(STAY[name])
    assert maxima(preprocess(given).whole) == maxima(given)


def test_only_the_maximum_that_matters_is_left() -> None:
    given = program(beside)
    assert (maxima(given), maxima(preprocess(given).whole)) == (2, 1)


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_a_program_with_its_maximum_has_fused_candidates_that_check_accepts(tmp_path: Path) -> None:
    graph = mf.new_kernel_graph()
    graph.mark_output(softmax(graph, graph.new_input((16, 32)))[0])
    best = mf.superoptimize(graph, out=tmp_path / "run", workers=1, keep=2)[0]
    assert isinstance(best.verdict, Equivalent)
    assert [type(op) for op in best.graph.ops] == [GraphDefined]
    assert check([str(tmp_path / "run")]) == 0

    # The certificates are about what was sought: about another program they are worth nothing.
    path = best.directory / records.VERIFICATION_FILE
    log = json.loads(path.read_bytes())
    assert log["sought"] is not None
    log["sought"] = None
    path.write_text(json.dumps(log, indent=1) + "\n")
    assert check([str(tmp_path / "run")]) == 1


@pytest.mark.parametrize("operator", ["softmax", "log_softmax", "logsumexp"])
def test_exponentials_of_a_row_of_one_element_stay_in_range(operator: str) -> None:
    """Its largest element is itself. No running maximum is derived where there is no sum, so none may be needed."""
    given = program(lambda g, x: [getattr(g, operator)(x, dim=1) * 2], (4, 1, 8))
    found = preprocess(given).whole
    assert maxima(found) == 0
    x = np.linspace(-1000, 1000, 32).reshape(given.inputs[0].tensor.shape)
    (wanted,) = float64_reference.run(given, [x])
    (value,) = float64_reference.run(found, [x])
    np.testing.assert_allclose(value.ravel(), wanted.ravel())
