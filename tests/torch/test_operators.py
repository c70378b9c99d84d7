"""Results as operators of torch: what torch itself tests, gradients, copies, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.modules.custom_operators import TorchOperator, _RecomputedGradient, torch_operator  # noqa: E402
from mirage_formal.torch.modules.eager_execution import torch_program  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:no GPU with CuPy"),
    # What torch's own test does with a tensor that is not contiguous.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Block(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """A module with an operator inside."""

    def __init__(self, operator: TorchOperator, weight: Any) -> None:
        super().__init__()
        self.operator = operator
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Any) -> Any:
        """The block."""
        return self.operator(x, self.weight)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> TorchOperator:
    """relu(X W) + 1."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((16, 64), mf.float32), graph.new_input((64, 32), mf.float32)
    graph.mark_output(graph.relu(x @ w) + 1)
    return torch_operator(graph.superoptimize(out=tmp_path_factory.mktemp("one") / "run", workers=1))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> TorchOperator:
    """Two outputs of one input, whose rows lie transposed."""
    graph = mf.new_kernel_graph()
    x = graph.new_input((16, 32), mf.float32, strides=(1, 16))
    graph.mark_output(graph.exp(x))
    graph.mark_output(graph.exp(x) * 2)
    return torch_operator(graph.superoptimize(out=tmp_path_factory.mktemp("two") / "run", workers=1))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> TorchOperator:
    """exp(x) below the diagonal, times w: the mask is the program's first input, and no caller's."""
    graph = mf.new_kernel_graph()
    below = graph.band((16, 64), upper=0)
    x, w = graph.new_input((16, 64), mf.float32), graph.new_input((64, 32), mf.float32)
    graph.mark_output(graph.select(below, graph.exp(x), 0) @ w)
    return torch_operator(graph.superoptimize(out=tmp_path_factory.mktemp("masked") / "run", workers=1))


def given(seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 64, generator=generator), torch.randn(64, 32, generator=generator)


def expected(x: Any, w: Any) -> Any:
    return torch.relu(x @ w) + 1


@pytest.mark.parametrize("gradient", [False, True])
def test_torch_finds_nothing_wrong(one: TorchOperator, two: TorchOperator, gradient: bool) -> None:
    x, w = given()
    names = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}
    found = torch.library.opcheck(one.overload, (x.requires_grad_(gradient), w))
    assert {name for name, said in found.items() if said == "SUCCESS"} == names
    y = torch.randn(32, 16).t().detach().requires_grad_(gradient)
    assert set(torch.library.opcheck(two.overload, (y,)).values()) == {"SUCCESS"}


def test_results_and_gradients_are_those_of_the_program(one: TorchOperator) -> None:
    x, w = (value.requires_grad_() for value in given(1))
    y = one(x, w)
    torch.testing.assert_close(y, expected(x, w))
    weights = torch.randn(16, 32)
    found = torch.autograd.grad((y * weights).sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad((expected(x, w) * weights).sum(), (x, w)))
    assert not one(*given()).requires_grad
    with torch.no_grad():
        assert not one(x, w).requires_grad


def test_gradient_of_one_of_several_inputs_and_outputs(one: TorchOperator, two: TorchOperator) -> None:
    x, w = given(2)
    w.requires_grad_()
    one(x, w).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(w.grad, torch.autograd.grad(expected(x, w).sum(), w)[0])
    y = torch.randn(16, 32, requires_grad=True)
    first, _ = two(y)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), y)[0], torch.exp(y))


def test_gradients_of_gradients(one: TorchOperator) -> None:
    """Of what the program's operators have: the gradient of x w depends on w."""
    x, w = (value.requires_grad_() for value in given(7))

    def second(function: Any) -> Any:
        (first,) = torch.autograd.grad(function(x, w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, w))

    torch.testing.assert_close(second(one), second(expected), rtol=1e-4, atol=1e-2)


def test_gradcheck_of_the_recomputation(one: TorchOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, of which no operator is made: the program's own operators stand in for the candidate."""
    graph = mf.new_kernel_graph()
    a, b = graph.new_input((2, 3, 4), mf.float32), graph.new_input((2, 4, 2), mf.float32)
    normed = graph.rms_norm(a, dim=1, eps=1e-3)
    graph.mark_output(graph.softmax(graph.matmul(normed, b), 2))
    graph.mark_output(graph.silu(a))
    eager = torch_program(graph.freeze())
    monkeypatch.setattr(one, "_eager", eager)
    monkeypatch.setattr(one, "_single", False)
    monkeypatch.setattr(one, "read", [frozenset({0, 1}), frozenset({0})])
    monkeypatch.setattr(one, "_call", lambda *tensors: tuple(x.clone() for x in eager(*tensors)))
    inputs = (
        torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True),
        torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(lambda *x: _RecomputedGradient.apply(one, *x), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: _RecomputedGradient.apply(one, *x), inputs)


def test_a_band_mask_is_no_input(masked: TorchOperator) -> None:
    x, w = (value.requires_grad_() for value in given(9))

    def wanted(x: Any, w: Any) -> Any:
        return torch.tril(torch.exp(x)) @ w

    torch.testing.assert_close(masked(x, w), wanted(x, w), rtol=1e-3, atol=1e-3)
    assert masked.read == [frozenset({0, 1})]
    mine, theirs = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (masked, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-2)
    torch.library.opcheck(masked.overload, (x.detach(), w.detach()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_without_gradients(one: TorchOperator, mode: Any) -> None:
    x, w = (torch.nn.Parameter(value) for value in given(8))
    with mode():
        found = one(x, w)
        assert not found.requires_grad
        torch.testing.assert_close(found, expected(x, w))


def test_nothing_that_needs_a_gradient_is_detached(one: TorchOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (value.requires_grad_() for value in given(9))
    lost: list[Any] = []
    for name in ("detach", "detach_"):
        own = getattr(torch.Tensor, name)

        def watched(self: Any, *, own: Any = own) -> Any:
            lost.extend([self.shape] if self.requires_grad and torch.is_grad_enabled() else [])
            return own(self)

        monkeypatch.setattr(torch.Tensor, name, watched)
    x.detach()
    assert len(lost) == 1  # it is seen
    lost.clear()
    torch.autograd.grad(one(x, w).sum(), (x, w))
    torch.vmap(one, in_dims=(0, None))(torch.stack([x, x]), w).sum().backward()
    with pytest.raises(mf.MirageError):
        one.result(x, w)
    assert lost == []


def test_compiled_exported_and_mapped(one: TorchOperator) -> None:
    x, w = given(3)
    compiled = torch.compile(lambda a, b: one(a * 2, b) - 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), torch.relu(2 * x @ w))
    graph = torch.export.export(Block(one, w), (x,)).graph
    assert one.overload in {node.target for node in graph.nodes}
    many = torch.stack([x, x + 1, x - 1])
    torch.testing.assert_close(torch.vmap(one, in_dims=(0, None))(many, w), expected(many, w))


def test_modes_of_torch_and_tensors_of_subclasses_see_the_operator_and_plain_calls_pass_the_dispatcher_once(
    one: TorchOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class Log(TorchDispatchMode):  # type: ignore[misc]  # torch has no types where it is not installed
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Own(torch.Tensor):  # type: ignore[misc]  # see above
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            plain = [x.inner if isinstance(x, cls) else x for x in args]
            return function(*plain, **(kwargs or {}))

    x, w = given()
    want = one(x, w)
    with Log():
        assert torch.equal(one(x, w), want)
    assert seen.count(one.overload) == 1
    assert torch.equal(one(Own(x), w), want)
    assert seen.count(one.overload) == 2
    with FakeTensorMode() as mode:
        fake = one(mode.from_tensor(x), mode.from_tensor(w))
    assert isinstance(fake, torch._subclasses.FakeTensor)
    assert one(x.to("meta"), w.to("meta")).is_meta
    called: list[int] = []
    direct = one._run

    def counted(*tensors: Any) -> Any:
        called.append(len(tensors))
        return direct(*tensors)

    monkeypatch.setattr(one, "_run", counted)
    monkeypatch.setattr(one, "_call", lambda *tensors: pytest.fail("through the dispatcher a second time"))
    assert torch.equal(one.overload(x, w), want)
    assert called == [2]


def test_tensors_whose_memory_does_not_hold_their_elements_are_resolved_first(one: TorchOperator) -> None:
    """Torch negates and conjugates by a bit that kernels do not see."""
    x, w = given()
    want = one(x, w)
    negated = torch._neg_view(-x)
    assert negated.is_neg()
    assert torch.equal(one(negated, w), want)
    assert torch.equal(one(torch.complex(w.new_zeros(16, 64), -x).conj().imag, w), want)
    assert torch.equal(one(torch._efficientzerotensor((16, 64)), w), one(torch.zeros(16, 64), w))
    assert torch.equal(torch.func.functionalize(one)(x, w), want)


def test_modules_are_copied_and_saved(one: TorchOperator) -> None:
    x, w = given(4)
    block = Block(one, w)
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    for other in (copy.deepcopy(block), torch.load(file, weights_only=False), pickle.loads(pickle.dumps(block))):
        torch.testing.assert_close(other(x), block(x))
    assert list(block.state_dict()) == ["weight"], "an operator has no state"
    assert torch_operator(pickle.loads(pickle.dumps(one.result))) is one


@pytest.mark.parametrize(
    "change", [lambda x: x.t().contiguous().t(), lambda x: x[:1].expand(16, 64), lambda x: torch.cat([x, x])[3:19]]
)
def test_tensors_that_lie_otherwise(one: TorchOperator, two: TorchOperator, change: Any) -> None:
    x, w = given(5)
    torch.testing.assert_close(one(change(x), w), expected(change(x), w))
    y = change(x)[:, :32]
    torch.testing.assert_close(two(y), (torch.exp(y), 2 * torch.exp(y)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:8], "expected shape [16, 64], got [8, 64]"),
        (lambda x: x[:0], "expected shape [16, 64], got [0, 64]"),
        (lambda x: x[None], "expected shape [16, 64], got [1, 16, 64]"),
        (lambda x: x.double(), "expected elements of torch.float32, got torch.float64"),
    ],
)
def test_what_does_not_fit_is_said(one: TorchOperator, change: Any, said: str) -> None:
    x, w = given(6)
    with pytest.raises(mf.MirageError) as caught:
        one(change(x), w)
    assert said in str(caught.value)
    assert one.result.optimized.program.inputs[0].name in str(caught.value)
