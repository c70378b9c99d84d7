"""What a call through torch.library costs beyond the call itself: host microseconds.

    python -m benchmarks.torch_call [--device cuda]

The call is one that computes nothing, of a program with two inputs and one output, so that all of it is overhead: the
dispatcher of torch, and what this package does in Python before and behind it. "checked" is without the dispatcher.

With --device cuda tensors lie on the GPU, and a candidate of the same program is called as well, directly and through
torch.library: host time until the call returns, without waiting for its kernels. The exit status is then 1 if
torch.library adds more than 6 microseconds to that. A block of attention is called as well, as it is and optimized.

"a plan" is what an optimized module does in a call beside its function: seeing that the import holds for it, and
collecting parameters.

Options:
  --device {cpu,cuda}  where tensors lie [default: cpu]
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

import mirage_formal as mf
from benchmarks.harness import options
from mirage_formal.run.results.result import Result
from mirage_formal.torch.modules.custom_operators import TorchOperator

CALLS, ROUNDS = 20_000, 7


class Nothing:
    """In place of a candidate: returns what it was made with."""

    def __init__(self, program: Any, made: torch.Tensor) -> None:
        self.program, self._made = program, made

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        return self._made

    def on_torch(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The tensor."""
        return self._made


class Empty(Result):
    """A result that computes nothing."""

    nothing: Any = None
    backend = "cuda"

    @property
    def optimized(self) -> Any:
        """What is called."""
        return Empty.nothing


class Attention(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """Projections with grouped heads, causal attention, and the output projection."""

    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.head = hidden // heads
        widths = (hidden, groups * self.head, groups * self.head, hidden)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(hidden, n, bias=False) for n in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block."""
        q, k, v = (f(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


#: What torch.library may add to a call, in microseconds.
MOST_US = 6.0


def real(graph: mf.Graph, tensors: list[torch.Tensor]) -> float:
    """Print host times of a candidate's calls on a GPU; what torch.library adds."""
    with TemporaryDirectory() as place:
        result = mf.superoptimize(graph, measure=0, time_limit=40, keep=4, out=Path(place) / "run")[0]
        return _real(result, tensors)


def _real(result: Any, tensors: list[torch.Tensor]) -> float:
    from mirage_formal.torch.modules.custom_operators import torch_operator

    operator, optimized = torch_operator(result), result.optimized
    operator(*tensors)
    calls = {"direct": lambda: optimized(*tensors), "torch.library": lambda: operator(*tensors)}
    times = in_turns(f"a candidate of {len(result.graph.ops)} kernels", calls)
    adds = median(b - a for a, b in zip(times["direct"], times["torch.library"], strict=True))
    print(f"{'torch.library adds, median of pairs':45} {adds:7.2f} us")
    return adds


def plan_of_a_module() -> None:
    """Print what a plan takes by itself, on the CPU."""
    with TemporaryDirectory() as place, torch.no_grad():
        x = torch.randn(1, 16, 64)
        module = mf.optimize(Attention(64, 4, 2).eval(), (x,), time_limit=60, workers=1, out=Path(place) / "run")
        plan = module._mirage_plan
        assert plan is not None, "attention has candidates"
        plan._function = lambda *tensors: [x]
        show("a plan, of a module with four parameters", lambda: module(x))


def module_on_the_gpu() -> None:
    """Print host times of a block of attention, as it is and optimized, in turns."""
    with TemporaryDirectory() as place, torch.no_grad():
        x = torch.randn(1, 64, 4096, dtype=torch.float16, device="cuda")
        eager = Attention(4096, 32, 8).to("cuda", torch.float16).eval()
        module = mf.optimize(eager, (x,), measure=0, time_limit=120, out=Path(place) / "run")
        # Few calls at a time: a full queue of launches would wait for the GPU.
        in_turns("a block of attention", {"eager": lambda: eager(x), "optimized": lambda: module(x)}, count=40)


def in_turns(what: str, calls: Mapping[str, Callable[[], Any]], count: int = 200) -> dict[str, list[float]]:
    """Host times of calls on a GPU, printed; in turns, because clocks of the host change."""
    from mirage_formal.device.measure import host_overhead

    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(host_overhead(call, torch.cuda.synchronize, count))
    for name, found in times.items():
        told(f"{what}, {name}", found)
    return times


def show(name: str, call: Callable[[], Any]) -> None:
    """Print what a call takes."""
    call()
    told(name, [timeit.timeit(call, number=CALLS) / CALLS * 1e6 for _ in range(ROUNDS)])


def told(name: str, times: Sequence[float]) -> None:
    """Print times."""
    print(f"{name:45} {min(times):7.2f} us least, {median(times):7.2f} us median")


def main() -> int:
    """Print the figures."""
    device = options(__doc__).device
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((16, 64), mf.float32), graph.new_input((64, 32), mf.float32)
    graph.mark_output(graph.relu(x @ w) + 1)
    program = graph.freeze()
    Empty.nothing = Nothing(program, torch.empty(16, 32, device=device))
    result: Any = object.__new__(Empty)
    operator: Any = TorchOperator("benchmark", result, program)
    a, b = torch.randn(16, 64, device=device), torch.randn(64, 32, device=device)
    needs = b.clone().requires_grad_()
    one: Any = torch.zeros(1, device=device)

    def without() -> Any:
        with torch.no_grad():
            return operator(a, needs)

    cases: dict[str, Callable[[], Any]] = {
        "direct": lambda: Empty.nothing(a, b),
        "checked": lambda: operator._run(a, b),
        "torch.library": lambda: operator(a, b),
        "torch.library, gradient": lambda: operator(a, needs),
        "torch.library, parameter under no_grad": without,
        "torch.relu_ of one element, for comparison": lambda: torch.relu_(one),
    }
    for name, call in cases.items():
        show(name, call)
    plan_of_a_module()
    if device != "cpu":
        module_on_the_gpu()
    return 0 if device == "cpu" or real(graph, [a, b]) <= MOST_US else 1


if __name__ == "__main__":
    sys.exit(main())
