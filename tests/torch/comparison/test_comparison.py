"""Imports beside torch: what differs is found and named, stays with torch, and looking at it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
import mirage_formal.torch.comparison.import_comparison as module  # noqa: E402
from mirage_formal.torch import from_torch  # noqa: E402
from mirage_formal.torch.call import OperatorCall, Written  # noqa: E402
from mirage_formal.torch.comparison.contract import ExpectedResult, difference  # noqa: E402
from mirage_formal.torch.comparison.import_comparison import GIVEN, ImportComparison, arguments_of, compare_with_torch  # noqa: E402
from mirage_formal.torch.comparison.node_evaluation import NodeEvaluator  # noqa: E402
from mirage_formal.torch.comparison.samples import SETS, STYLES, draw_tensors  # noqa: E402
from mirage_formal.torch.modules.backend import REPORTS  # noqa: E402
from mirage_formal.torch.modules.module_report import ModuleReport  # noqa: E402
from mirage_formal.torch.op_table import rules  # noqa: E402

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


def compared(call: Callable[..., Any], *given: Any, sets: tuple[str, ...] = SETS) -> ImportComparison:
    found = from_torch(call, given)
    return compare_with_torch(found, arguments_of(found, given), sets)


def wrong(monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[OperatorCall], Written]) -> None:
    """Another rule in the place of an operator's."""
    monkeypatch.setitem(rules(), name, replace(rules()[name], write=write))


# --- the contract -----------------------------------------------------------------------------------------------------


def expected(own: list[float], exact: list[float] | None = None, off: float = 1e-7) -> ExpectedResult:
    """What PyTorch has in float32, float64, and the same moved by a share."""
    value = torch.tensor(own if exact is None else exact, dtype=torch.float64)
    moved = [value * (1 + off), value * (1 - off)]
    return ExpectedResult(torch.tensor(own), value, moved)


@pytest.mark.parametrize(
    ("own", "exact", "ours", "kind"),
    [
        (1.0, 1.0, 1.0 + 3e-7, None),
        (1.0, 1.0, 1.0 + 1e-4, "too far off"),
        (1.0, 1.0 + 1e-4, 1.0 + 1.5e-4, None),  # PyTorch itself is as far off
        (0.0, 0.0, 1e-39, None),
        (0.0, 0.0, 1e-30, "too far off"),
        (1.0, 1.0, NAN, "not finite where PyTorch is"),
        (1.0, 1.0, INF, "not finite where PyTorch is"),
        (3.4e38, 3.4e38, INF, "not finite where PyTorch is"),
        (3.4028234e38, 3.4028236e38, INF, None),  # rounding decides
        (NAN, NAN, 0.0, "finite where there is no value"),
        (NAN, NAN, INF, None),
        (INF, INF, INF, None),
        (INF, INF, 1e38, "finite where there is no value"),
        (INF, INF, NAN, "another infinity, or NaN in place of one"),
        (-INF, -INF, INF, "another infinity, or NaN in place of one"),
        (NAN, INF, NAN, None),
        (INF, 89.0, 89.0, None),  # an overflow on the way was removed
        (INF, 89.0, INF, None),
        (NAN, 89.0, NAN, None),
        (INF, 89.0, 88.0, "too far off"),
        (INF, 1e39, INF, None),  # of the type itself
        (INF, 1e39, 1e38, "too far off"),
        (5.0, NAN, NAN, None),  # PyTorch has a number by chance
    ],
)
def test_one_element_under_the_contract(own: float, exact: float, ours: float, kind: str | None) -> None:
    found = difference(torch.tensor([ours]), expected([own], [exact]))
    assert (found and found.kind) == kind


def test_what_rounding_decides_is_not_asked() -> None:
    one = torch.tensor([1.0, NAN], dtype=torch.float64)
    other = torch.tensor([INF, 2.0], dtype=torch.float64)
    asked = ExpectedResult(one.float(), one, [other, one])
    assert difference(torch.tensor([INF, 3.0]), asked) is None
    assert difference(torch.tensor([INF, 3.0]), ExpectedResult(one.float(), one, [one, one])) is not None


def test_the_worst_element_is_named_with_its_numbers() -> None:
    own = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    ours = own.clone()
    ours[1, 2] += 0.001
    ours[2, 1] += 0.1
    found = difference(ours, ExpectedResult(own, own.double(), [own.double()]))
    assert found is not None
    assert (found.index, found.count, found.elements, found.own) == ((2, 1), 2, 12, 9.0)
    assert "element [2, 1]: PyTorch 9, float64 9, ours 9.1" in str(found)
    assert "2 of 12 elements" in str(found)


def test_in_a_large_tensor_one_in_a_thousand_may_be_as_far_off_as_others_are_moved() -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = exact.clone()
    moved[5] += 0.5
    asked = ExpectedResult(exact.float(), exact, [moved])
    ours = exact.clone()
    ours[7, 3] += 1.0
    assert difference(ours, asked) is None
    ours[8, 3] += 100.0
    assert difference(ours, asked) is not None
    ours = exact.clone()
    ours[7] += 1.0
    assert difference(ours, asked) is not None


# --- torch in float64 -------------------------------------------------------------------------------------------------


def evaluator_of(call: Callable[..., Any], *given: Any) -> tuple[Any, NodeEvaluator]:
    found = from_torch(call, given)
    nodes = [node for node in found.module.graph.nodes if node.op == "call_function"]
    return arguments_of(found, given), NodeEvaluator(nodes, [nodes[-1].name])


def twins(call: Callable[..., Any], *given: Any) -> tuple[Any, Any, list[Any]]:
    known, reference = evaluator_of(call, *given)
    (own,), (exact,) = reference.own(known).values(), reference.exact(known).values()
    return own, exact, [next(iter(reference.exact(known, seed).values())) for seed in (1, 2)]


def _products(x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.linear(torch.relu(x), w, b) @ w


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_bounded_products_have_the_same_references(style: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the largest factors are looked at before partial sums are bounded changes no value."""
    given = (torch.empty(4, 16, dtype=dtype), torch.empty(16, 16, dtype=dtype), torch.empty(16, dtype=dtype))
    known, reference = evaluator_of(_products, *given)
    known = draw_tensors(known, style, 7)
    bounded: list[bool] = []
    own = NodeEvaluator._is_bounded

    def noted(*given: Any) -> bool:
        bounded.append(own(*given))
        return bounded[-1]

    def values() -> list[Any]:
        found = [reference.own(known), reference.exact(known), *(reference.exact(known, seed) for seed in (1, 2))]
        return [next(iter(one.values())) for one in found]

    monkeypatch.setattr(NodeEvaluator, "_is_bounded", noted)
    found = values()
    monkeypatch.setattr(NodeEvaluator, "_is_bounded", lambda *_: False)
    for a, b in zip(found, values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert all(bounded) or style not in ("normal", "zeros", "denormal")
    assert not all(bounded) or style != "special"


def test_without_a_comparison_or_a_cast_nothing_depends_on_who_decides() -> None:
    """The evaluation with float64's own decisions is left out where it would be the first one again."""
    x = torch.randn(4, 8).half()
    for call, rounds in (
        (lambda x: torch.softmax(x @ x.mT, -1), False),
        (lambda x: torch.where(x > 0, x, -x), True),
        (lambda x: x.float().half() * 2, True),
    ):
        known, reference = evaluator_of(call, x)
        reference.own(known)
        assert reference.rounds == rounds
        (exact,), (free,) = reference.exact(known).values(), reference.exact(known, decided=False).values()
        assert rounds or torch.equal(exact, free)


def test_a_rounding_of_the_module_is_one_in_float64_and_is_not_moved_where_it_is_seen_again() -> None:
    x = torch.tensor([1.001, 2.003, -3.007])
    own, exact, moved = twins(lambda x: (x - x.bfloat16().float()) * 256, x)
    assert torch.allclose(own.double(), exact, atol=1e-4)
    assert exact.abs().min() > 0.2
    assert all(torch.allclose(one, exact, rtol=1e-3) for one in moved)


def test_torch_is_arbitrary_where_the_order_of_a_sum_decides_whether_the_sum_overflows_or_its_squares() -> None:
    a = torch.tensor([[3e38, 3e38, -3e38, -3e38, -1e38, 0.0]])
    known, reference = evaluator_of(lambda a: ((a - a.mean(-1, True)) / (a.var(-1, keepdim=True) + 1).sqrt()).sqrt(), a)
    (own,), (exact,) = reference.own(known).values(), reference.exact(known).values()
    (added,) = reference.exact(known, 1, poisoned=False).values()
    (poisoned,) = reference.exact(known, 1).values()
    assert exact[0, 3].isnan()
    assert poisoned[0, 3].isnan()
    assert added[0, 3] == 0
    ours = torch.where(exact.isnan(), 0.0, exact)
    lost = ExpectedResult(torch.full_like(own, torch.nan), exact, [poisoned])
    found = difference(ours, lost)
    assert found is not None
    assert found.kind == "finite where there is no value"
    assert difference(ours, ExpectedResult(lost.own, exact, [poisoned, added])) is None


def test_a_rounding_that_nothing_wider_reads_may_be_left_out() -> None:
    x = torch.full((64,), 1.001)
    _, exact, moved = twins(lambda x: x.bfloat16() * 1, x)
    assert torch.equal(exact, x.bfloat16().double())
    assert max(float((one - exact).abs().max()) for one in moved) > 2.0**-9


def test_comparisons_are_those_of_the_modules_own_types() -> None:
    x = torch.tensor([2048.0, 2050.0]).half()
    own, exact, _ = twins(lambda x: torch.where(x + 1 > 2048, x, -x), x)
    assert own.tolist() == exact.tolist() == [-2048.0, 2050.0]


def test_what_a_comparison_decides_only_by_rounding_is_not_asked_and_a_tie_is() -> None:
    """exp(-20) is 0 in float16."""

    def chosen(x: Any) -> Any:
        y = torch.exp(x)
        return torch.where(y > 0, torch.log(y), 2.0)

    x = torch.tensor([[-20.0, 1.0]]).half()
    assert chosen(x)[0, 0] == 2
    assert compared(chosen, x, sets=()).faults == {}
    found = from_torch(lambda x: torch.where(x > 1, x, -x), (x,))
    piece = module.RegionPiece(found, 0)
    leaves = arguments_of(found, (x,))
    asked = piece.expected(leaves)["where"]
    assert asked.own[0, 1] == -1
    assert difference(torch.tensor([[20.0, 1.0]]), asked) is not None


def test_a_cast_between_half_types_is_a_rounding_in_range_and_in_digits() -> None:
    own, exact, _ = twins(lambda x: x.half().float(), torch.tensor([1e-30, 1e30, 1.0]).bfloat16())
    assert own.tolist() == exact.tolist() == [0.0, INF, 1.0]
    own, exact, _ = twins(lambda x: x.bfloat16().float(), torch.tensor([1.001, 65504.0]).half())
    assert own.tolist() == exact.tolist() == [1.0, 65536.0]


def test_roundings_differ_by_seed_and_are_the_same_again() -> None:
    _, _, first = twins(lambda x: torch.exp(x) @ x.mT, torch.randn(8, 8))
    assert not torch.equal(*first)
    torch.manual_seed(3)
    x = torch.randn(4, 4)
    assert torch.equal(twins(torch.exp, x)[2][0], twins(torch.exp, x)[2][0])


def test_sums_that_overflow_in_some_order_are_not_asked() -> None:
    x = torch.tensor([[3e38, 3e38, -3e38, -3e38], [1.0, 2.0, 3.0, INF]])
    _, exact, moved = twins(lambda x: x.sum(-1), x)
    assert torch.isfinite(exact).tolist() == [True, False]
    assert all(torch.isfinite(one).tolist() == [False, False] for one in moved)


def test_a_product_that_overflows_beside_an_infinity_is_not_asked_and_an_infinity_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inf - 2 * 3e38 is infinite if the product is not rounded, as in a fused operation, and NaN if it is."""
    x, y = torch.tensor([[INF, 1.0, INF]]), torch.tensor([[-3e38, 2.0, 1.0]])

    def chosen(x: Any, y: Any) -> Any:
        z = torch.add(x, y, alpha=2)
        return torch.where(torch.isinf(z), 1.0, z)

    def call(x: Any, y: Any) -> Any:
        return torch.add(x, y, alpha=2)

    def lost(call: OperatorCall) -> Written:
        return call.map(
            lambda g, x, y: g.add(g.sub(g.scale(x, 2), x), g.scale(y, 2)), call.value(), call.value("other")
        )

    for one in (call, chosen):
        assert compared(one, x, y, sets=()).faults == {}
    wrong(monkeypatch, "aten.add.Tensor", lost)
    (fault,) = compared(call, x, y, sets=()).faults.values()
    assert (fault.difference.kind, fault.difference.index) == ("another infinity, or NaN in place of one", (0, 2))


def test_what_is_not_asked_stays_so_behind_what_is_not_asked_either() -> None:
    """A variance that float32 cannot hold, and values of attention of which it may not hold the sum."""
    largest = float(torch.finfo(torch.bfloat16).max)
    x = torch.tensor([[-largest, 0.0], [0.0, -largest]]).bfloat16()
    k = torch.tensor([[1.0, largest], [1.0, 2.0]]).bfloat16()
    _, exact, moved = twins(lambda x, k: F.scaled_dot_product_attention(F.layer_norm(x, (2,)), k, k), x, k)
    assert exact.isfinite().all()
    assert all(one.isnan().all() for one in moved)


def test_values_at_keys_that_a_mask_leaves_out_do_not_keep_others_from_being_asked() -> None:
    q, k = torch.ones(2, 2), torch.tensor([[1.0, 2.0], [1.0, 3e38]])
    _, exact, moved = twins(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), q, k)
    assert all(torch.allclose(one[0], exact[0], rtol=1e-5) for one in moved)
    assert all(one[1, 1].isnan() for one in moved)


def test_scores_that_may_overflow_are_not_asked_where_minus_infinity_is_added_to_them() -> None:
    """A product that may be infinite, plus -inf, may be NaN; a mask of booleans leaves the product out."""
    q, k = torch.tensor([[1.3, 1.0], [0.0, 0.0]]), torch.tensor([[3e38, -2e38], [1.0, 2.0]])
    keep = torch.zeros(2, 2, dtype=torch.bool)
    added = torch.zeros(2, 2).masked_fill(~keep, -INF)
    for mask, asked in ((keep, True), (added, False)):
        call = lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m)  # noqa: E731
        _, exact, moved = twins(call, q, k, mask)
        assert not exact.any()
        assert all(bool((one[0] == 0).all()) is asked and not one[1].any() for one in moved)


def test_a_query_that_overflows_has_no_weights_where_torch_adds_minus_infinity_to_nan() -> None:
    """The score of the first query's only key is -inf, its result 0, and NaN if -inf is added to a masked NaN."""

    def call(x: Any, w: Any, b: Any, k: Any) -> Any:
        return F.scaled_dot_product_attention(F.linear(x, w, b), k, torch.ones_like(k), is_causal=True)

    x, w, b = torch.tensor([[-3e38], [1.0]]), torch.tensor([[2.0]]), torch.zeros(1)
    assert call(x, w, b, torch.tensor([[1.0], [NAN]]))[0].isnan().all()
    assert compared(call, x, w, b, torch.tensor([[1.0], [NAN]]), sets=()).faults == {}


def test_what_a_comparison_of_rounded_sums_decides_is_not_asked_of_sums_that_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float16 65504 / 3 is 21840, and 10 more are 21856; 21845 before it is rounded once, which is 21840."""

    def call(x: Any) -> Any:
        y = x / 3
        z = y + 10
        return torch.where(z == y, z, -z)

    x = torch.tensor([[65504.0, 2.0], [2.0, 2.0]]).half()
    assert call(x)[0, 0] < 0
    assert compared(call, x, sets=()).faults == {}
    wrong(monkeypatch, "aten.eq.Tensor", rules()["aten.ge.Tensor"].write)
    (fault,) = compared(call, x, sets=()).faults.values()
    assert fault.difference.index == (1, 0)


def test_the_sign_of_a_zero_is_asked_unless_an_extreme_of_zeros_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: Any) -> Any:
        return torch.reciprocal(torch.relu(x))

    x = torch.tensor([[-0.0, 0.0, -1.0]])
    assert compared(call, x, sets=()).faults == {}
    with monkeypatch.context() as patch:
        turned = lambda call: call.map(lambda g, x: g.neg(g.minimum(g.neg(x), 0)), call.value())  # noqa: E731
        wrong(patch, "aten.relu.default", turned)
        (fault,) = compared(call, x, sets=()).faults.values()
        assert fault.difference.index == (0, 1)
    unsigned = lambda call: call.map(lambda g, x: g.reciprocal(g.select(g.eq(x, 0), 0, x)), call.value())  # noqa: E731
    wrong(monkeypatch, "aten.reciprocal.default", unsigned)
    (fault,) = compared(lambda x: torch.reciprocal(x), x, sets=()).faults.values()
    assert fault.difference.index == (0, 0)


def test_a_function_that_is_zero_only_by_rounding_at_one_is_moved_to_both_sides_of_it() -> None:
    x = torch.linspace(-30, -12, 64)
    own, exact, moved = twins(lambda x: F.gelu(x, approximate="tanh"), x)
    assert not own.any()
    assert not exact.any()
    assert (moved[0] * moved[1] < 0).all()


def test_a_variance_of_equal_numbers_is_as_far_from_zero_as_their_mean_is_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(x: Any, c: Any) -> Any:
        return torch.var(x * 1e-9 + c, 1)

    def cancelling(call: OperatorCall) -> Written:
        from mirage_formal.torch.reduction_rules import _drop_reduced_dims, _reduce_dims

        squares = _reduce_dims(call, call.map(lambda graph, x: graph.square(x), call.value()), (1,), "mean")
        mean = _reduce_dims(call, call.value(), (1,), "mean")
        return _drop_reduced_dims(
            call, call.map(lambda graph, s, m: graph.sub(s, graph.square(m)), squares, mean), (1,)
        )

    x, c = torch.zeros(64, 6), torch.linspace(1e4, 2e4, 64)[:, None]
    assert compared(call, x, c, sets=()).faults == {}
    wrong(monkeypatch, "aten.var.dim", cancelling)
    assert compared(call, x, c, sets=()).faults != {}


def test_what_torch_has_lost_is_not_asked_beside_what_float32_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exp(20) is infinite in float16; exp(400) is in float32 as well, which makes the norm of the row infinite."""

    def call(x: Any) -> Any:
        y = torch.log(torch.exp(x) + 1e-5).float()
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 2.0)

    x = torch.tensor([[20.0, 400.0], [20.0, 1.0], [2.0, 1.0]]).half()
    assert call(x)[:, 0].isnan().tolist() == [True, True, False]
    assert compared(call, x, sets=()).faults == {}
    wrong(monkeypatch, "aten.log.default", _near)
    (fault,) = compared(call, x, sets=()).faults.values()
    assert fault.difference.index[0] in (1, 2)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", [*STYLES, "mixed"])
def test_values_of_a_style_fit_and_are_the_same_again(style: str) -> None:
    forms = {
        "x": torch.empty(3, 4, dtype=torch.float16),
        "y": torch.empty(4, 3, dtype=torch.bfloat16).t(),
        "m": torch.empty(2, 1, 4, 5, dtype=torch.bool, device="meta"),
        "w": torch.empty(1, 6, device="meta").expand(4, 6),
        "z": torch.empty(()),
    }
    first, again = draw_tensors(forms, style, 5), draw_tensors(forms, style, 5)
    for name, form in forms.items():
        assert (first[name].shape, first[name].stride(), first[name].dtype) == (form.shape, form.stride(), form.dtype)
        assert torch.equal(first[name].nan_to_num(nan=7.0), again[name].nan_to_num(nan=7.0))


def test_masks_have_rows_and_columns_without_a_key() -> None:
    masks = [draw_tensors({"m": torch.empty(4, 8, 8, dtype=torch.bool)}, "normal", seed)["m"] for seed in range(8)]
    assert any(not mask.any(-1).all() for mask in masks)
    assert any(not mask.any(-2).all() for mask in masks)
    assert not draw_tensors({"m": masks[0]}, "zeros", 0)["m"].any()


# --- imports that are wrong -------------------------------------------------------------------------------------------


def _relu(call: OperatorCall) -> Written:
    return call.map(lambda graph, x: graph.relu(x), call.value())


def _weighted(call: OperatorCall) -> Written:
    """m a + (1 - m) b, as a selection would be written without one."""
    mask, a, b = (call.value(name) for name in ("condition", "self", "other"))

    def made(graph: Any, m: Any, x: Any, y: Any) -> Any:
        return graph.add(
            graph.mul(graph.cast(m, x.dtype), x), graph.mul(graph.shift(graph.neg(graph.cast(m, x.dtype)), 1), y)
        )

    from mirage_formal.torch.view_propagation import emit_broadcast_operator

    return emit_broadcast_operator(call.program, [mask, a, b], lambda graph, tensors, axes: made(graph, *tensors))


def _near(call: OperatorCall) -> Written:
    return call.map(lambda graph, x: graph.scale(graph.exp(x), 1.001), call.value())


@pytest.mark.parametrize(
    ("name", "write", "call", "kind"),
    [
        ("aten.exp.default", _relu, lambda x, y: torch.exp(torch.tanh(x)) + y, "too far off"),
        ("aten.exp.default", _near, lambda x, y: torch.exp(torch.tanh(x)) * y, "too far off"),
        ("aten.where.self", _weighted, lambda x, y: torch.where(y > 0, x / y, x), "not finite where PyTorch is"),
    ],
    ids=["another function", "one part in a thousand", "a selection by arithmetic"],
)
def test_a_wrong_rule_is_found_and_the_operator_is_named(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    write: Callable[[OperatorCall], Written],
    call: Callable[..., Any],
    kind: str,
) -> None:
    given = (torch.randn(4, 6), torch.randn(4, 6))
    assert compared(call, *given).faults == {}
    wrong(monkeypatch, name, write)
    (fault,) = compared(call, *given).faults.values()
    assert (fault.operator, fault.difference.kind, fault.alone) == (name, kind, True)
    assert fault.where is not None
    assert (fault.where.path, fault.where.line) == (__file__, call.__code__.co_firstlineno)
    assert str(fault).startswith(f"the import differs from PyTorch in {name} at ")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_overflows_in_half_precision_inside_of_an_operator_is_found(
    monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    """The 2-norm of 400: its squares are stored where PyTorch keeps float32."""

    def stored(call: OperatorCall) -> Written:
        from mirage_formal.torch.reduction_rules import _drop_reduced_dims, _reduce_dims

        value, kind = call.value(), str(dtype).removeprefix("torch.")
        squares = call.map(lambda graph, x: graph.round_to(graph.square(x), kind), value)
        total = call.map(lambda graph, x: graph.round_to(graph.sqrt(x), kind), _reduce_dims(call, squares, (1,), "sum"))
        return _drop_reduced_dims(call, total, (1,))

    def length(x: Any) -> Any:
        return torch.linalg.vector_norm(x, dim=1)

    x = torch.randn(4, 6).to(dtype)
    assert compared(length, x).faults == {}
    wrong(monkeypatch, "aten.linalg_vector_norm.default", stored)
    assert bool(compared(length, x).faults) is (dtype is torch.float16)


def test_the_arguments_are_a_set_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def above(call: OperatorCall) -> Written:
        return call.map(lambda graph, x: graph.minimum(graph.exp(x), 5000), call.value())

    wrong(monkeypatch, "aten.exp.default", above)
    call = lambda x: torch.exp(x) * 2  # noqa: E731
    assert compared(call, torch.zeros(4, 6), sets=("from 0 to 1",)).faults == {}
    (fault,) = compared(call, torch.full((4, 6), 9.0), sets=("from 0 to 1",)).faults.values()
    assert fault.values == GIVEN


def test_the_arguments_reach_regions_behind_what_stays_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def above(call: OperatorCall) -> Written:
        return call.map(lambda graph, x: graph.minimum(graph.exp(x), 5000), call.value())

    wrong(monkeypatch, "aten.exp.default", above)

    def call(x: Any) -> Any:
        return torch.exp(torch.cumsum(torch.relu(x), 0)) * 2

    assert compared(call, torch.full((4, 6), 1.0), sets=()).faults == {}
    found = compared(call, torch.full((4, 6), 3.0), sets=())
    assert list(found.faults) == [1]
    assert found.faults[1].operator == "aten.exp.default"


def test_a_difference_that_only_several_operators_make_is_named_behind_what_they_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm that is written out becomes one operator; that this is right depends on all of them."""
    from mirage_formal.torch.imported_values import ImportedGraph

    own = ImportedGraph._is_square
    monkeypatch.setattr(ImportedGraph, "_is_square", lambda self, square, tensor: True)

    def call(x: Any, w: Any) -> Any:
        return w * (x * torch.rsqrt(x.exp().pow(2).mean(-1, keepdim=True) + 1e-3))

    given = (torch.randn(4, 6), torch.randn(6))
    (fault,) = compared(call, *given).faults.values()
    assert not fault.alone
    assert fault.operator == "aten.mul.Tensor"
    assert "behind the operators that it reads" in str(fault)
    monkeypatch.setattr(ImportedGraph, "_is_square", own)
    assert compared(call, *given).faults == {}


# --- bounds, and what looking changes ---------------------------------------------------------------------------------


def test_tensors_without_memory_are_compared_by_drawn_sets_only() -> None:
    found = compared(lambda x: torch.exp(x) + 1, torch.empty(4, 6, device="meta"))
    assert found.sets == {0: len(SETS)}
    assert found.said(0) == f"compared with PyTorch on {len(SETS)} sets of tensors"


def test_a_large_region_has_fewer_sets_and_a_larger_one_says_that_it_was_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(4, 6)
    monkeypatch.setattr(module, "_BUDGET", 200)
    found = compared(lambda x: torch.exp(x) @ x.mT, x)
    assert found.sets == {0: 2}
    assert "1 of 10 drawn sets" in found.said(0)
    for name, bound in (("MOST_ELEMENTS", 50), ("MOST_PRODUCTS", 90)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, bound)
            patch.setattr(module, "run_typed", lambda *_, **__: pytest.fail("it was evaluated"))
            found = compared(lambda x: torch.exp(x) @ x.mT, x)
            assert found.sets == {}
            assert found.said(0).startswith("not compared with PyTorch: ")


def test_layers_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    own = module._compare

    def compare_with_torch(*given: Any) -> None:
        seen.append(given[1])
        own(*given)

    monkeypatch.setattr(module, "_compare", compare_with_torch)

    def call(x: Any) -> Any:
        for _ in range(3):
            x = torch.cumsum(torch.tanh(x) * 2, 0)
        return x

    found = compared(call, torch.randn(4, 6), sets=("normal", "special"))
    assert set(seen) == {0}
    assert found.sets == {0: 3, 1: 3, 2: 3}


def test_random_numbers_stay_and_what_writes_is_not_called() -> None:
    class Noisy(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(6))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return torch.exp(F.dropout(x, 0.5, self.training) * 2) + self.count

    noisy, x = Noisy(), torch.randn(4, 6)
    found = from_torch(noisy, (x,))
    state = torch.get_rng_state()
    result = compare_with_torch(found, arguments_of(found, (x,)))
    assert torch.equal(torch.get_rng_state(), state)
    assert noisy.count.tolist() == [0.0] * 6
    assert result.faults == {}
    assert all(count == len(SETS) + 1 for count in result.sets.values())


def test_an_operator_of_the_users_is_not_called_and_what_it_makes_is_drawn() -> None:
    calls: list[int] = []

    @torch.library.custom_op("judge_test::told", mutates_args=())  # type: ignore[misc,untyped-decorator,unused-ignore]
    def told(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    told.register_fake(lambda x: torch.empty_like(x))
    found = compared(lambda x: torch.exp(told(x)) * 3, torch.randn(4, 6))
    assert calls == []
    assert found.sets == {0: len(SETS)}


# --- modules ----------------------------------------------------------------------------------------------------------


def test_optimize_keeps_a_region_that_differs_and_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong(monkeypatch, "aten.exp.default", _relu)

    def call(x: Any, w: Any) -> Any:
        return torch.tanh(x @ w) * torch.exp(x[:, :1])

    given = (torch.randn(16, 32), torch.randn(32, 16))
    optimized = mf.optimize(call, given, workers=1, time_limit=600, out=tmp_path)
    torch.testing.assert_close(optimized(*given), call(*given))
    report = optimized.mirage_report()
    (region,) = report.regions
    assert region.candidate == ""
    assert "stays with torch: the import differs from PyTorch in aten.exp.default at" in str(report)
    assert f"{Path(__file__).name}:{call.__code__.co_firstlineno + 1}" in str(report)
    assert list(tmp_path.iterdir()) == []


def test_regions_that_agree_are_replaced_beside_one_that_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong(monkeypatch, "aten.exp.default", _relu)

    def call(x: Any, w: Any) -> Any:
        y = torch.cumsum(torch.tanh(x @ w) * 2, 0)
        return torch.exp(y) * 3 + y

    given = (torch.randn(16, 32), torch.randn(32, 16))
    optimized = mf.optimize(call, given, workers=1, time_limit=600, out=tmp_path)
    torch.testing.assert_close(optimized(*given), call(*given), rtol=1e-4, atol=1e-5)
    first, second = optimized.mirage_report().regions
    assert (first.kept, bool(first.candidate)) == ("", True)
    assert first.compared == f"compared with PyTorch on {len(SETS) + 1} sets of tensors"
    assert second.kept.startswith("the import differs from PyTorch in aten.exp.default")


def test_the_backend_keeps_a_region_that_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong(monkeypatch, "aten.exp.default", _relu)

    def call(x: Any, w: Any) -> Any:
        return torch.tanh(x @ w) * torch.exp(x[:, :1])

    given = (torch.randn(16, 32), torch.randn(32, 16))
    asked = {"workers": 1, "time_limit": 600, "out": str(tmp_path), "rest": "eager"}
    compiled = torch.compile(call, backend="mirage_formal", options=asked)
    torch.testing.assert_close(compiled(*given), call(*given))
    report = REPORTS[-1]
    assert isinstance(report, ModuleReport)
    (region,) = report.regions
    assert region.kept.startswith("the import differs from PyTorch in aten.exp.default")
