"""Results of optimized modules lie in memory as the module's: together, apart, or in what the module was given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch.nn.functional as F  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.analysis.aliases import aliased_results, owners  # noqa: E402
from mirage_formal.torch.capture import capture  # noqa: E402
from mirage_formal.torch.import_result import Region  # noqa: E402
from mirage_formal.torch.modules.eager_execution import torch_program  # noqa: E402
from mirage_formal.torch.modules.graph_rewriter import rewrite  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


def _of(a: Any, *results: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(result(a) for result in results)


def itself(a: Any) -> Any:
    return a


#: Functions of x[4,4] and w[4,6].
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "a row of a result": lambda x, w: _of(torch.softmax(x @ w, -1), itself, lambda a: a[0]),
    "the same twice": lambda x, w: _of(torch.exp(x @ w), itself, itself),
    "a transposition": lambda x, w: _of(torch.exp(x @ w), itself, torch.t),
    "two rows of what is no result": lambda x, w: _of(torch.exp(x @ w), lambda a: a[0], lambda a: a[2]),
    "halves": lambda x, w: torch.exp(x @ w).chunk(2, 1),
    "every second column, and what is computed of it": lambda x, w: _of(
        torch.exp(x @ w), itself, lambda a: a[:, ::2], lambda a: torch.relu(a[:, ::2] - 1)
    ),
    "views of views": lambda x, w: _of(
        torch.exp(x @ w), lambda a: a.view(2, 12), lambda a: a.t()[1:3], lambda a: a[None]
    ),
    "contiguous": lambda x, w: _of(torch.exp(x @ w), itself, lambda a: a.contiguous(), lambda a: a.t().contiguous()),
    "a copy": lambda x, w: _of(torch.exp(x @ w), itself, torch.clone),
    "a row of a copy": lambda x, w: _of(torch.exp(x @ w), itself, lambda a: a.clone()[1], lambda a: a[1]),
    "a cast to its own type": lambda x, w: _of(
        torch.exp(x @ w), itself, lambda a: a.to(a.dtype), lambda a: a.type_as(w)
    ),
    "a reshape that copies": lambda x, w: _of(torch.exp(x @ w), itself, lambda a: a.t().reshape(-1)),
    "dropout in evaluation": lambda x, w: _of(torch.exp(x @ w), itself, lambda a: F.dropout(a, 0.5, False)),
    "detached": lambda x, w: _of(torch.exp(x @ w), itself, lambda a: a.detach()),
    "repeated": lambda x, w: _of((x @ w).sum(1, keepdim=True), itself, lambda a: a.expand(4, 3)),
    "an argument": lambda x, w: (torch.exp(x @ w), x, x[0], w.t()),
    "an argument made contiguous": lambda x, w: (torch.exp(x @ w), x.contiguous(), x.t().contiguous()),
    "a copy of an argument": lambda x, w: (torch.exp(x @ w), x.clone(), x),
    "a row that was written": lambda x, w: (lambda a: (a[0].relu_(), a))(x @ w),
    "an argument that was written": lambda x, w: (x.add_(1), torch.exp(x @ w)),
    "an argument that was written by itself": lambda x, w: (torch.exp(w), x.mul_(2), x.t()),
    "a row of an argument that was written": lambda x, w: (x[0].add_(1), x[1], torch.exp(x @ w)),
    "a copy of what was written": lambda x, w: (x.add_(1).clone(), x, torch.exp(x @ w)),
}  # fmt: skip


def lying(tensors: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Pairs of tensors in one memory, and how far they begin apart."""
    return [
        (i, j, tensors[i].storage_offset() - tensors[j].storage_offset())
        for i, j in combinations(range(len(tensors)), 2)
        if tensors[i].untyped_storage()._cdata == tensors[j].untyped_storage()._cdata
    ]


def drawn() -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(4, 4), torch.randn(4, 6)]


def check(call: Callable[..., Any], optimized: Callable[..., Any]) -> list[tuple[int, int, int]]:
    """Compare a call's tensors and results with torch's, and what becomes of them when each is written."""
    mine, theirs = drawn(), drawn()
    wanted, found = [*theirs, *call(*theirs)], [*mine, *optimized(*mine)]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert lying(found) == lying(wanted)
    for number in range(len(wanted)):
        for tensors in (found, wanted):
            if 0 not in tensors[number].stride() or tensors[number].numel() == 1:
                tensors[number].fill_(number)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return lying(wanted)


def rewritten(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call's rewritten graph; what its operators compute lies in new memory, as what kernels do."""
    found = mf.from_torch(call, tuple(drawn()))
    assert found.regions

    def operator(region: Region) -> Callable[..., Any]:
        function = torch_program(region.program)

        def compute(*tensors: Any) -> Any:
            made = tuple(x.clone(memory_format=torch.contiguous_format) for x in function(*tensors))
            return made[0] if len(made) == 1 else made

        return compute

    graph = rewrite(found, {number: operator(region) for number, region in enumerate(found.regions)})
    module = torch.fx.GraphModule(torch.nn.Module(), graph)

    def run(*given: Any) -> Any:
        with torch.no_grad():
            return module(*given)

    return run


@pytest.mark.parametrize("name", CASES)
def test_results_lie_as_those_of_the_module(name: str) -> None:
    check(CASES[name], rewritten(CASES[name]))


@pytest.mark.parametrize("name", ["a row of a result", "a copy of what was written"])
def test_those_of_an_optimized_module(name: str, tmp_path: Path) -> None:
    call = CASES[name]
    optimized = mf.optimize(call, tuple(drawn()), workers=1, time_limit=600, out=tmp_path)
    assert optimized._mirage_plan is not None, optimized.mirage_report()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        check(call, optimized)


def test_some_lie_together_and_some_apart() -> None:
    """The cases have both, of results and of arguments."""
    found = {name: check(call, call) for name, call in CASES.items()}
    assert sum(bool(pairs) for pairs in found.values()) >= 15
    assert sum(not pairs for pairs in found.values()) >= 2
    assert any(i < 2 <= j for pairs in found.values() for i, j, _ in pairs)


def test_through_torch_compile() -> None:
    call = CASES["a row of a result"]
    compiled = torch.compile(call, backend="mirage_formal", options={"rest": "eager", "workers": 1, "time_limit": 600})
    assert check(call, compiled)
    torch._dynamo.reset()


def test_which_results_are_made_of_others() -> None:
    captured = capture(CASES["views of views"], drawn(), None)
    owned = owners(captured.module)
    assert aliased_results(captured.module, captured.results, owned) == dict.fromkeys(captured.results, "exp")
    captured = capture(lambda x, w: (torch.exp(x @ w)[0], x[0], x[1]), drawn(), None)
    assert not aliased_results(captured.module, captured.results, owners(captured.module)), "alone, and of an argument"


class Counted(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """Reads a buffer in a region and writes it afterwards, as a norm in training does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.weight = torch.nn.Parameter(torch.ones(6))

    def forward(self, x: Any) -> Any:
        """What differs from the mean so far."""
        found = torch.tanh(x - self.mean) * self.weight
        self.mean.mul_(0.5).add_(x.mean(0))
        return found


def test_gradients_of_a_module_that_writes_what_it_reads(tmp_path: Path) -> None:
    x, found = torch.randn(4, 6), []
    modules = [Counted(), mf.optimize(Counted(), (x,), workers=1, time_limit=600, out=tmp_path)]
    assert modules[1]._mirage_plan is not None
    for module in modules:
        for _ in range(2):
            module(x).sum().backward()
        found.append((module.weight.grad, module.mean))
    torch.testing.assert_close(*found)
