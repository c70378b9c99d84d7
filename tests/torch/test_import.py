"""What an import makes of views, types, aliases, state and of what it cannot import."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch
from torch import nn

import mirage_formal as mf
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.support.errors import DTypeError, ShapeError, UnsupportedError
from mirage_formal.torch.capture import capture_graph
from mirage_formal.torch.convert import import_captured
from mirage_formal.torch.import_result import Imported
from tests.kit.torch.comparison import compare, computed


def kinds(found: Imported) -> list[str]:
    """The operators of a whole import."""
    assert found.graph is not None, found.report()
    return [op.kind.value for op in found.regions[0].program.ops if isinstance(op, Op)]


def half(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float16, device="meta")


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 12, bias=False)
        self.up = nn.Linear(8, 12, bias=False)
        self.down = nn.Linear(12, 8, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def test_weights_are_read_through_their_strides_and_leading_dims_are_folded() -> None:
    x = torch.randn(1, 2, 3, 8)
    found = mf.from_torch(Mlp(), (x,))
    assert kinds(found) == ["matmul", "silu", "matmul", "mul", "matmul"]
    inputs = {item.name: item for item in found.regions[0].program.inputs}
    assert inputs["x"].tensor.shape == (6, 8)
    assert inputs["gate_weight"].tensor.shape == (8, 12)
    assert inputs["gate_weight"].strides == (1, 8)
    assert found.bindings["gate_weight"] == "parameter gate.weight"
    assert found.bindings["x"] == "argument 1"
    (output,) = found.regions[0].outputs
    assert (output.shape, output.strides) == ((1, 2, 3, 8), (48, 24, 8, 1))


def test_keys_that_are_transposed_and_keys_that_are_declared_so_are_one_program() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(1, 2) * 0.125, -1) @ v

    rows, columns = half(8, 64, 16), half(8, 16, 64).transpose(1, 2)
    first = mf.from_torch(attention, (half(8, 4, 16), rows, rows))
    assert kinds(first) == ["matmul", "scale", "softmax", "matmul"]
    second = mf.from_torch(attention, (half(8, 4, 16), columns, rows))
    assert kinds(second) == kinds(first)
    assert first.regions[0].program.inputs[1].strides == (1024, 1, 16)
    assert second.regions[0].program.inputs[1].strides == (1024, 64, 1)
    assert second.regions[0].digest != first.regions[0].digest


def test_groups_of_queries_share_keys_without_a_copy() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    given = (torch.randn(2, 8, 1, 4), torch.randn(2, 2, 16, 4), torch.randn(2, 2, 16, 4))
    found = mf.from_torch(attention, given)
    finite = ["max", "maximum"]
    assert kinds(found) == ["matmul", "scale", *finite, "sub", "exp", "sum", "div_no_nan", "matmul"]
    assert [item.tensor.shape for item in found.regions[0].program.inputs][:2] == [(4, 4, 4), (4, 4, 16)]
    compare(found, attention, given, 1e-6)


def test_an_offset_is_part_of_the_binding_and_a_split_weight_is_one_input() -> None:
    weight = torch.randn(24, 8)

    def split(x: Any, w: Any) -> Any:
        q, k, _ = w.chunk(3)
        return (x @ q.t()) * (x @ k.t())

    given = (torch.randn(5, 8), weight)
    found = mf.from_torch(split, given)
    assert len(found.regions[0].inputs) == 2
    compare(found, split, given, 1e-6)
    last = mf.from_torch(lambda x, w: x @ w[16:].t(), given)
    assert kinds(last) == ["matmul"]
    assert last.regions[0].inputs[1].layout.offset == 16 * 8
    compare(last, lambda x, w: x @ w[16:].t(), given, 1e-6)


def test_a_parameter_that_is_read_twice_is_one_input_and_aliasing_arguments_are_two() -> None:
    class Tied(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8, bias=False)
            self.b = nn.Linear(8, 8, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Any, y: Any) -> Any:
            return self.b(torch.relu(self.a(x))) + y

    x = torch.randn(3, 8)
    found = mf.from_torch(Tied(), (x, x))
    assert sorted(found.bindings.values()) == ["argument 1", "argument 2", "parameter a.weight"]


def test_layers_with_other_parameters_are_one_program() -> None:
    class Two(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Mlp(), Mlp()

        def forward(self, x: Any) -> Any:
            return self.second(torch.cumsum(self.first(x), 0))

    found = mf.from_torch(Two(), (torch.randn(4, 8),))
    first, second = found.regions
    assert first.bindings["first_gate_weight"] == "parameter first.gate.weight"
    assert second.bindings["second_gate_weight"] == "parameter second.gate.weight"
    assert first.digest == second.digest


def test_a_norm_that_is_written_out_is_one_operator_and_proved_to_be_equal() -> None:
    def norm(x: Any, w: Any) -> Any:
        wide = x.float()
        return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    found = mf.from_torch(norm, (half(4, 8), half(8)))
    assert kinds(found) == ["rms_norm"]
    assert len([note for note in found.notes if "the identity" in note.text]) == 1
    plain = mf.new_kernel_graph()
    x, w = plain.new_input((4, 8), name="x"), plain.new_input((1, 8), name="w")
    mean = plain.mean(plain.square(x), 1)
    plain.mark_output(plain.mul(w, plain.mul(x, plain.rsqrt(plain.add(mean, 1e-5)))))
    assert isinstance(prove(plain.freeze(), found.regions[0].program), Equivalent)


def test_float32_that_is_not_rounded_again_stays_float32() -> None:
    found = mf.from_torch(lambda x: torch.exp(x.float()), (half(4, 8),))
    assert kinds(found) == ["cast", "exp"]
    mixed = mf.from_torch(lambda x, w: torch.exp(x.float() * w).to(torch.float16), (half(4, 8), half(8).float()))
    assert kinds(mixed) == ["cast", "mul", "exp", "cast"]
    assert any("operands of float16, float32 are cast to float32" in note.text for note in mixed.notes)


def test_what_is_left_is_named_with_the_users_line_and_the_rest_is_regions() -> None:
    def partly(x: Any, w: Any) -> Any:
        y = torch.relu(x @ w)
        z = torch.cumsum(y, 1)
        return torch.exp(z) @ w.t() + y @ w.t(), y.t()

    given = (torch.randn(4, 8), torch.randn(8, 6))
    found = mf.from_torch(partly, given)
    assert found.graph is None
    (left,) = found.left
    assert (left.operator, left.reason) == ("aten.cumsum.default", "programs have no running sums")
    assert left.where is not None
    assert left.where.path == __file__
    assert left.where.line == partly.__code__.co_firstlineno + 2
    assert len(found.regions) == 2
    assert "aten.cumsum.default: programs have no running sums" in found.report()
    assert f"test_import.py:{left.where.line}" in found.report()
    compare(found, partly, given, 1e-6)


def test_what_depends_on_no_argument_is_computed_once_by_torch() -> None:
    class Causal(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.tril(torch.ones(8, 8)))

        def forward(self, x: Any) -> Any:
            scores = (x @ x.mT).masked_fill(self.seen[:4, :4] == 0, float("-inf"))
            return torch.softmax(scores, -1) @ x + torch.arange(4, dtype=x.dtype)[:, None]

    x = torch.randn(2, 4, 6)
    found = mf.from_torch(Causal(), (x,))
    assert found.graph is not None
    assert found.left == ()
    assert {"aten.eq.Scalar", "aten.arange.default"} <= {item.operator for item in found.ahead}
    assert any("computed by torch: aten.eq.Scalar" in what for what in found.bindings.values())
    compare(found, Causal().double(), (x,), 1e-6)


def test_minus_infinity_elsewhere_than_in_front_of_a_softmax_stays_with_torch() -> None:
    def hard(x: Any, m: Any) -> Any:
        return torch.exp(x.masked_fill(m, float("-inf")))

    given = (torch.randn(4, 6), torch.rand(4, 6) > 0.5)
    found = mf.from_torch(hard, given)
    assert any("minus infinity" in item.reason for item in found.left)
    compare(found, hard, given, 1e-6)


def test_operators_in_place_and_writes_to_buffers() -> None:
    class Counting(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.register_buffer("total", torch.zeros(6))

        def forward(self, x: Any) -> Any:
            y = nn.functional.relu(self.linear(x), inplace=True)
            y += 1
            self.total.add_(y.sum(0))
            return y * 2

    module, x = Counting(), torch.randn(4, 6)
    found = mf.from_torch(module, (x,))
    assert found.writes == ("buffer total",)
    assert "written back by torch: buffer total" in found.report()
    assert found.graph is not None
    compare(found, lambda x: ((y := torch.relu(_linear(module, x)) + 1).sum(0), y * 2), (x,), 1e-6)


def _linear(module: Any, x: Any) -> Any:
    return x @ module.linear.weight.double().t() + module.linear.bias.double()


def test_tensors_that_are_views_of_arguments_only_are_left_to_torch() -> None:
    found = mf.from_torch(lambda x, w: (x.t(), torch.relu(x) @ w), (torch.randn(4, 6), torch.randn(6, 5)))
    assert found.graph is not None
    assert found.regions[0].views == ("t",)
    assert "views and casts that torch makes: t" in found.report()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex64])
def test_other_element_types_are_named(dtype: Any) -> None:
    found = mf.from_torch(lambda x: x + x, (torch.ones(4, 6).to(dtype),))
    assert found.regions == ()
    (left,) = found.left
    assert f"got {dtype}" in left.reason


def test_logic_of_numbers_is_that_of_where_they_are_not_0() -> None:
    def negated(x: Any, y: Any) -> Any:
        return torch.where(torch.logical_not(x), y, 2 * y)

    given = (torch.tensor([0.0, 2.0, -1.0, 0.0]), torch.randn(4))
    found = mf.from_torch(negated, given)
    assert kinds(found) == ["eq", "scale", "select"]
    compare(found, negated, given, 1e-6)


def test_dropout_in_training_stays_with_torch() -> None:
    found = mf.from_torch(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).train(), (torch.randn(4, 6),))
    assert "got dropout in training" in found.left[0].reason


def test_graphs_of_dynamo_are_imported_too() -> None:
    found: list[Imported] = []

    def backend(module: Any, inputs: Any) -> Any:
        found.append(import_captured(capture_graph(module, inputs)))
        return module.forward

    torch._dynamo.reset()
    module, x = Mlp().eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.compile(module, backend=backend)(x)
    (only,) = found
    assert kinds(only) == ["matmul", "silu", "matmul", "mul", "matmul"]
    assert all(what.startswith("argument l_") for what in only.bindings.values())
    origins = only.regions[0].graph.origins()
    assert all(origin is not None and origin.path == __file__ for origin in origins.operators)


def test_a_program_has_lines_of_the_module_and_arguments_by_name() -> None:
    def scaled(x: Any, *, parts: Any) -> Any:
        return x * parts["a"][0] + parts["b"]

    found = mf.from_torch(scaled, (torch.randn(4),), {"parts": {"a": [torch.randn(4)], "b": torch.randn(4)}})
    assert list(found.bindings.values()) == ["argument 1", "argument parts['a'][0]", "argument parts['b']"]
    assert found.graph is not None
    (first, second) = found.graph.origins().operators
    assert first is not None
    assert first == second
    assert first.line == scaled.__code__.co_firstlineno + 1


def test_mistakes_are_said() -> None:
    with pytest.raises(UnsupportedError, match="expected a torch module or a function, got int"):
        mf.from_torch(3, (torch.ones(2),))
    with pytest.raises(UnsupportedError, match="expected the arguments as a tuple, got Tensor"):
        mf.from_torch(torch.relu, torch.ones(2))
    with pytest.raises(UnsupportedError, match=r"torch\.export has no graph"):
        mf.from_torch(lambda x: x.relu() if bool(x.sum() > 0) else x, (torch.ones(2),))


def test_graphs_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"torch.compile: expected a torch.fx.GraphModule, got Linear"):
        capture_graph(nn.Linear(2, 2), (torch.ones(2, 2),))
    errors: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        with pytest.raises(UnsupportedError, match="got symbolic ones") as caught:
            capture_graph(module, inputs)
        errors.append(str(caught.value))
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(Mlp(), backend=backend, dynamic=True)(torch.randn(2, 3, 8))
    assert "dynamic=False" in errors[0]


def test_operators_that_compute_nothing_are_left_to_torch() -> None:
    given = (torch.randn(1, 4), torch.randn(4, 5))
    found = mf.from_torch(lambda x, w: (x.sum(0), x @ w, torch.exp(w.amax(-1, keepdim=True)[:, :1].mean(1))), given)
    assert found.graph is not None
    compare(found, lambda x, w: (x.sum(0), x @ w, torch.exp(w.amax(-1))), given, 1e-6)
    assert found.regions[0].views == ("sum_1",)
    nothing = mf.from_torch(lambda x: x.sum(0), (torch.randn(1, 4),))
    assert nothing.regions == ()
    assert [item.operator for item in nothing.left] == ["aten.sum.dim_IntList"]


def test_empty_tensors_stay_with_torch() -> None:
    found = mf.from_torch(lambda x: torch.exp(x), (torch.randn(0, 4),))
    assert "at least one element" in found.left[0].reason


def test_an_output_is_made_once_for_all_its_views() -> None:
    def twice(x: Any) -> Any:
        y = torch.relu(x)
        return y, y.t(), y.reshape(2, 12)

    x = torch.randn(4, 6)
    found = mf.from_torch(twice, (x,))
    assert len(found.regions[0].program.outputs) == 1
    assert [output.strides for output in found.regions[0].outputs] == [(6, 1)]
    assert found.regions[0].views == ("t", "reshape"), "torch makes them, so that all lie in one memory"
    compare(found, twice, (x,), 1e-6)


def test_the_operator_kinds_that_rules_use_are_programs_ones() -> None:
    """An expanded operand of a product is read once, not repeated."""
    found = mf.from_torch(lambda a, b: a.expand(3, 4, 6) @ b, (torch.randn(1, 4, 6), torch.randn(3, 6, 5)))
    assert OpKind.REPEAT.value not in kinds(found)


def test_tensors_that_do_not_fit_are_refused_by_name() -> None:
    found = mf.from_torch(lambda x, w: x @ w.t(), (torch.randn(4, 6), torch.randn(5, 6)))
    first, second = found.regions[0].inputs
    with pytest.raises(ShapeError, match=r"argument 2 \(.*\): expected \[5, 6\], got \[5, 7\]"):
        second.read(torch.randn(5, 7))
    with pytest.raises(DTypeError, match=r"argument 1 \(.*\): expected torch.float32, got torch.float64"):
        first.read(torch.randn(4, 6).double())
    turned = torch.randn(6, 5).t()
    assert torch.equal(second.read(turned), turned.t())
    assert second.read(weight := torch.randn(5, 6)).data_ptr() == weight.data_ptr()
    repeated = mf.from_torch(lambda x: torch.exp(x) * 2, (torch.randn(1, 6).expand(4, 6),))
    with pytest.raises(ShapeError, match="repeat the same dims"):
        repeated.regions[0].inputs[0].read(torch.randn(4, 6))


def test_results_have_the_strides_that_torch_gives_them() -> None:
    def views(x: Any, w: Any) -> Any:
        y = torch.relu(x) @ w
        return y.t(), y.t().contiguous(), y[:, :2].exp(), (x * 2).transpose(0, 1).exp()

    given = (torch.randn(4, 6).t().contiguous().t(), torch.randn(6, 5))
    found = mf.from_torch(views, given)
    compare(found, views, given, 1e-6)
    for mine, theirs in zip(computed(found, given), views(*given), strict=True):
        assert mine.stride() == theirs.stride()


def test_overlapping_tensors_and_several_devices_stay_with_torch() -> None:
    windows = torch.randn(10).as_strided((4, 3), (1, 1))
    found = mf.from_torch(lambda x: torch.exp(x), (windows,))
    assert "lie apart" in found.left[0].reason
    moved = mf.from_torch(lambda x: torch.exp(x).to("meta") * 2, (torch.randn(4),))
    assert any("one device" in item.reason for item in moved.left)


def test_indices_of_an_extreme_keep_it_with_torch() -> None:
    found = mf.from_torch(lambda x: torch.max(x, 1), (torch.randn(4, 6),))
    assert {item.operator for item in found.left} == {"aten.max.dim", "getitem"}
