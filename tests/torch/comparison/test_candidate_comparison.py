"""What a candidate stores between its kernels may not lose what PyTorch keeps in float32."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.codegen.numerics.rounding_simulation import simulate  # noqa: E402
from mirage_formal.run.results.result import Result  # noqa: E402
from mirage_formal.torch import from_torch  # noqa: E402
from mirage_formal.torch.comparison import candidate_comparison, import_comparison  # noqa: E402
from mirage_formal.torch.comparison.candidate_comparison import candidate_fault, clamp_values, comparison_limit  # noqa: E402
from mirage_formal.torch.comparison.import_comparison import (  # noqa: E402
    GeneratedSet,
    ImportComparison,
    RegionPiece,
    compare_with_torch,
)
from mirage_formal.torch.comparison.node_evaluation import NodeEvaluator  # noqa: E402
from mirage_formal.torch.comparison.samples import SETS  # noqa: E402
from mirage_formal.torch.modules.region_search import choose_candidate  # noqa: E402


def attention(dtype: Any) -> RegionPiece:
    tensors = tuple(torch.randn(2, 8, 16).to(dtype) for _ in range(3))
    return RegionPiece(from_torch(torch.nn.functional.scaled_dot_product_attention, tensors), 0)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The best candidate of attention in float16: one kernel, whose scores stay in registers."""
    out = tmp_path_factory.mktemp("search") / "run"
    found = mf.superoptimize(attention(torch.float16).program, out=out, cache=False, measure=0, workers=2)[0]
    assert len(found.graph.ops) == 1
    return found


@pytest.mark.parametrize("bound", [1 << 20, 0], ids=["against torch", "at smaller extents"])
def test_scores_that_are_stored_in_float16_are_refused(
    fused: Result, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of 400 x 400 overflow in float16, where PyTorch keeps them in float32; other types hold them.

    Bfloat16 loses digits of large scores, which only the comparison of values sees.
    """
    monkeypatch.setattr(candidate_comparison, "_OWN_EXTENTS", bound)
    half = attention(torch.float16)
    assert "drawn: x 4e2" in candidate_fault(half, half.program)  # a kernel for each operator
    assert candidate_fault(half, fused.graph) == ""
    limit = "" if bound else "its candidate was compared at smaller extents, for overflow alone"
    assert comparison_limit(half, fused.graph) == limit
    short, single = attention(torch.bfloat16), attention(torch.float32)
    assert ("too far off" in candidate_fault(short, short.program)) == bool(bound)
    assert candidate_fault(single, single.program) == ""


@pytest.mark.parametrize("bound", [1 << 20, 0], ids=["against torch", "at smaller extents"])
def test_what_torch_itself_stores_in_float16_may_overflow(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of two results of torch overflows in torch as well, as one of scores inside of attention does not."""
    monkeypatch.setattr(candidate_comparison, "_OWN_EXTENTS", bound)

    def gated(x: Any, g: Any, u: Any) -> Any:
        return torch.relu(x @ g) * (x @ u) * 2**-30

    given = tuple(torch.randn(shape).half() for shape in ((4, 64), (64, 96), (64, 96)))
    piece = RegionPiece(from_torch(gated, given), 0)
    assert candidate_fault(piece, piece.program) == ""
    monkeypatch.setitem(vars(piece.region), "stored", frozenset())  # as if torch stored none of them
    assert ("overflow" in candidate_fault(piece, piece.program)) == (not bound)


def test_a_wrong_candidate_is_refused(fused: Result) -> None:
    """The comparison is of values, not only of whether they are finite."""
    scaled = from_torch(
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5),
        tuple(torch.randn(2, 8, 16).half() for _ in range(3)),
    )
    assert "PyTorch" in candidate_fault(RegionPiece(scaled, 0), fused.graph)


def test_a_candidate_that_is_too_large_is_said(fused: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_comparison, "_OWN_EXTENTS", 0)
    monkeypatch.setattr(candidate_comparison, "MAX_ELEMENTS", 1)
    half = attention(torch.float16)
    candidate_comparison._smaller_pair.cache_clear()
    assert comparison_limit(half, fused.graph) == "its candidate is too large to be compared"
    candidate_comparison._smaller_pair.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mask", ["of numbers", "of booleans"])
def test_a_query_without_a_key_has_zeros_also_where_its_maximum_is_stored(dtype: Any, mask: str) -> None:
    """The bound under the maximum is a number of the scores' own type, so nothing becomes infinity less infinity."""
    q, k, v = (torch.randn(2, 8, 16).to(dtype) for _ in range(3))
    kept = torch.ones(8, 8, dtype=torch.bool).tril()
    kept[3] = False
    given = kept if mask == "of booleans" else torch.zeros(8, 8, dtype=dtype).masked_fill(~kept, -torch.inf)
    region = RegionPiece(from_torch(torch.nn.functional.scaled_dot_product_attention, (q, k, v, given)), 0).region
    names = {item.node: (q, k, v, given)[int(item.node[-1])] for item in region.inputs}
    arrays = [np.asarray(x.float().numpy()) for x in region.read(names)]
    (found,) = simulate(region.program, arrays)
    assert np.isfinite(found).all()
    assert not found.reshape(2, 8, 16)[:, 3].any()


def test_a_parameter_with_two_names_has_one_value() -> None:
    first, second = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
    second.weight = first.weight
    tied = torch.nn.Sequential(first, torch.nn.Sigmoid(), second)
    piece = RegionPiece(from_torch(tied, (torch.randn(4, 8),)), 0)
    assert candidate_fault(piece, piece.program) == ""


def test_the_first_candidate_that_keeps_the_contract_is_chosen(fused: Result) -> None:
    half = attention(torch.float16)
    plain = replace(fused, graph=half.program)
    assert choose_candidate(half, [plain, fused], inf) is fused
    said = choose_candidate(half, [plain], inf)
    assert isinstance(said, str)
    assert said.startswith("1 candidates differ from PyTorch in their element types; the first one: not finite")
    assert choose_candidate(half, [plain, fused], 0.0) == "no candidate is estimated below its operators one by one"


def test_values_of_the_promise() -> None:
    given = torch.tensor([1e-40, 1.0, -3e38, torch.inf, torch.nan])
    assert clamp_values(given).tolist()[:4] == [0.0, 1.0, -(2.0**40), torch.inf]
    assert clamp_values(given)[4].isnan()
    half = torch.tensor([6e-8, 65504.0]).half()
    assert torch.equal(clamp_values(half), half)


def test_torch_computes_each_set_once_for_all_candidates(fused: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = attention(torch.float16)
    seen: list[int] = []
    own = NodeEvaluator.own

    def counted(*given: Any) -> Any:
        seen.append(1)
        return own(*given)

    monkeypatch.setattr(NodeEvaluator, "own", counted)
    first = [candidate_fault(piece, graph) for graph in (fused.graph, piece.program)]
    count = len(seen)
    assert 0 < count <= 8
    assert [candidate_fault(piece, graph) for graph in (fused.graph, piece.program)] == first
    assert len(seen) == count


def test_sets_of_the_imports_comparison_are_those_of_candidates(fused: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of the eight styles are common to both; what a set of these holds is drawn and computed by torch once."""
    imported = from_torch(
        torch.nn.functional.scaled_dot_product_attention, tuple(torch.randn(2, 8, 16).half() for _ in range(3))
    )
    comparison = compare_with_torch(imported)
    assert [one.style for one in comparison.drawn[0]] == list(SETS)
    piece, drawn = RegionPiece(imported, 0), list(comparison.drawn[0])
    piece.earlier = comparison.drawn[0]
    styles: list[str] = []
    draw = RegionPiece.draw

    def counted(self: RegionPiece, style: str, seed: int) -> Any:
        styles.append(style)
        return draw(self, style, seed)

    monkeypatch.setattr(RegionPiece, "draw", counted)
    assert "drawn: x 4e2" in candidate_fault(piece, piece.program)
    assert candidate_fault(piece, fused.graph) == ""
    assert styles == ["rows of large numbers"] * 2
    leaves, expected = piece.drawn[next(key for key in piece.drawn if key[0] == "normal")]
    assert expected is drawn[0].expected
    assert all(leaves[name] is x for name, x in drawn[0].leaves.items())


def test_sets_of_which_nothing_is_promised_are_computed_again() -> None:
    """A set with numbers above 2^40 is compared without them."""
    imported = from_torch(lambda x, y: torch.relu(x) + y, tuple(torch.randn(4, 8) for _ in range(2)))
    piece = RegionPiece(imported, 0)
    large = {name: torch.full((4, 8), 2.0**60) for name in piece.leaves}
    piece.earlier = [GeneratedSet("normal", large, piece.expected(large))]
    assert candidate_fault(piece, piece.program) == ""
    leaves, expected = piece.drawn[next(key for key in piece.drawn if key[0] == "normal")]
    assert all(float(x.max()) == 2.0**40 for x in leaves.values())
    assert all(float(one.own.max()) == 2.0**41 for one in expected.values())


def test_few_elements_are_kept_for_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound sets are not kept; candidates are compared on sets of their own in place of these."""
    imported = from_torch(torch.nn.functional.softmax, (torch.randn(4, 8),), {"dim": -1})
    monkeypatch.setattr(import_comparison, "ImportComparison", partial(ImportComparison, room=80))
    comparison = compare_with_torch(imported)
    assert [one.style for one in comparison.drawn[0]] == list(SETS[:2])
