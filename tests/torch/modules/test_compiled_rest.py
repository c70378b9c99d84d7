"""What optimize installs on a GPU: operators, what torch.compile makes of the rest, or torch.compile's graph alone.

There is no GPU here: times are made up, and what is timed is compared, as it has to compute the same.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.support.errors import SpaceError  # noqa: E402
from mirage_formal.torch.deadline import Deadline  # noqa: E402
from mirage_formal.torch.modules import function_plan, optimize, profitability  # noqa: E402
from mirage_formal.torch.modules.graph_timing import TimedPair, draw_inputs  # noqa: E402
from mirage_formal.torch.modules.inductor import NO_CUDA_GRAPHS, can_compile, inductor_compiler  # noqa: E402
from tests.kit.processes import HUNG_S  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn


class Cumulated(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """A region, and an operator behind it that no program has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48)

    def forward(self, x: Any) -> Any:
        """Compute both."""
        return torch.cumsum(torch.relu(self.first(self.norm(x))) * 2, -1)


class Region(Cumulated):
    """The region alone."""

    def forward(self, x: Any) -> Any:
        """Compute the region."""
        return torch.relu(self.first(self.norm(x))) * 2


class Compiled:
    """What a made-up compiler returns: the graph, its mode, and a count of its calls."""

    def __init__(self, graph: Any, mode: str) -> None:
        self.graph, self.mode, self.calls = graph, mode, 0

    def __call__(self, *tensors: Any) -> Any:
        self.calls += 1
        return self.graph(*tensors)


@pytest.fixture(autouse=True, scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what one test has searched for the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MIRAGE_FORMAL_NO_CACHE")
        patch.setenv("MIRAGE_FORMAL_STORE", str(tmp_path_factory.mktemp("store")))
        yield


def times(us: dict[str, float | None], made: list[Compiled]) -> Callable[..., TimedPair | None]:
    """Return a timer: "ours" and "torch" operator by operator, "compiled ours" and "compiled torch"."""

    def name(call: Any) -> str:
        graph = call.graph if isinstance(call, Compiled) else call.__self__
        ours = any("mirage_formal" in str(node.target) for node in graph.graph.nodes)
        if isinstance(call, Compiled) and f"{call.mode} torch" in us and not ours:
            return f"{call.mode} torch"
        return ("compiled " if isinstance(call, Compiled) else "") + ("ours" if ours else "torch")

    def compared(ours: Any, theirs: Any, inputs: Any) -> TimedPair | None:
        given = draw_inputs(inputs)
        for mine, its in zip(ours(*given), theirs(*given), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
        pair = us[name(ours)], us[name(theirs)]
        return None if None in pair else TimedPair(*pair)  # type: ignore[arg-type]

    return compared


def optimized(
    monkeypatch: pytest.MonkeyPatch, us: dict[str, float | None], model: Any, **more: Any
) -> tuple[Any, list[Compiled]]:
    """Return a module that was optimized with these times, and what was compiled."""
    made: list[Compiled] = []

    def compiler(mode: Any, **patches: Any) -> Any:
        assert patches in ({}, NO_CUDA_GRAPHS)

        def compile(module: Any, inputs: Any) -> Any:
            made.append(Compiled(module, mode))
            return made[-1]

        return compile

    monkeypatch.setattr(optimize, "has_gpu_tensors", lambda inputs: True)
    monkeypatch.setattr(optimize, "can_compile", lambda inputs: True)
    monkeypatch.setattr(optimize, "inductor_compiler", compiler)
    monkeypatch.setattr(profitability, "time_interleaved", times(us, made))
    x = torch.randn(4, 32)
    found = mf.optimize(model, (x,), workers=1, time_limit=600, **more)
    for one in made:
        one.calls = 0
    y = torch.randn(4, 32)
    torch.testing.assert_close(found(y), model(y), rtol=1e-4, atol=1e-5)
    return found, made


def model_of(kind: Any) -> Any:
    torch.manual_seed(0)
    return kind().requires_grad_(False)


ROWS: list[tuple[dict[str, float | None], str, bool]] = [
    # us of ours, torch, compiled ours, compiled torch; what is called; whether the region is ours
    ({"ours": 4.0, "torch": 9.0, "compiled ours": 3.0, "compiled torch": 5.0}, "compiled ours", True),
    ({"ours": 4.0, "torch": 9.0, "compiled ours": 3.0, "compiled torch": 2.0}, "compiled torch", False),
    ({"ours": 9.5, "torch": 9.0, "compiled ours": 3.0, "compiled torch": 5.0}, "compiled torch", False),
    ({"ours": 3.0, "torch": 9.0, "compiled ours": 3.0, "compiled torch": 5.0}, "ours", True),
    ({"ours": 9.5, "torch": 3.0, "compiled ours": 3.0, "compiled torch": 3.0}, "torch", False),
    ({"ours": 4.0, "torch": 9.0, "compiled ours": None, "compiled torch": 5.0}, "ours", True),
]


@pytest.mark.parametrize(("us", "called", "kept"), ROWS)
def test_the_fastest_is_installed(
    monkeypatch: pytest.MonkeyPatch, us: dict[str, float | None], called: str, kept: bool
) -> None:
    found, made = optimized(monkeypatch, us, model_of(Cumulated))
    calls = [one for one in made if one.calls]
    assert len(calls) == called.startswith("compiled")
    report = found.mirage_report()
    assert [not region.kept for region in report.regions] == [kept]
    assert bool(report.rest) == called.startswith("compiled")
    for one in calls:
        ours = any("mirage_formal" in str(node.target) for node in one.graph.graph.nodes)
        assert called == ("compiled ours" if ours else "compiled torch")


def test_the_report_has_all_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = optimized(monkeypatch, ROWS[0][0], model_of(Cumulated))
    text = str(found.mirage_report())
    assert "the whole, measured: 3.0 us, without operators 5.0 us, not compiled 9.0 us" in text
    assert "what stays with torch is compiled by torch.compile, mode default" in text


def test_a_module_of_one_region_is_not_compiled_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = optimized(monkeypatch, ROWS[0][0], model_of(Region))
    assert not any(one.calls for one in made)
    assert not found.mirage_report().rest


def test_a_compilation_that_is_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real, late = profitability.compile_alone, threading.Event()

    def compile_alone(module: Any, inputs: Any, compile: Any) -> Any:
        return real(module, inputs, compile) if compile is profitability.eager_compile else late.wait(HUNG_S)

    own = profitability.CompilationThread.fastest
    monkeypatch.setattr(profitability, "compile_alone", compile_alone)
    monkeypatch.setattr(profitability.CompilationThread, "fastest", lambda self, _: own(self, Deadline(0.0)))
    try:
        found, made = optimized(monkeypatch, ROWS[0][0], model_of(Cumulated))
    finally:
        late.set()
    assert not made
    report = found.mirage_report()
    assert (report.measured_us, [region.kept for region in report.regions]) == (None, [""])
    assert "not compared with torch.compile: no time was left" in str(report)


def test_an_interrupted_call_begins_no_further_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    first, made, threads = threading.Event(), list[str](), list[Any]()

    def compiler(mode: str, **patches: Any) -> Any:
        def compile(module: Any, inputs: Any) -> Any:
            made.append(mode)
            first.wait(HUNG_S)

        return compile

    class Kept(profitability.CompilationThread):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            threads.append(self)

    def interrupted(*given: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimize, "has_gpu_tensors", lambda inputs: True)
    monkeypatch.setattr(optimize, "can_compile", lambda inputs: True)
    monkeypatch.setattr(optimize, "inductor_compiler", compiler)
    monkeypatch.setattr(optimize, "CompilationThread", Kept)
    monkeypatch.setattr(optimize, "choose_operators", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            mf.optimize(model_of(Cumulated), (torch.randn(4, 32),), mode="max-autotune")
    finally:
        first.set()
    threads[0]._executor.shutdown(wait=True)
    assert made in ([], ["default"])


def test_the_faster_mode_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    us = {"ours": 9.5, "torch": 9.0, "compiled ours": 3.0, "default torch": 5.0}
    for other, called in ((2.0, "max-autotune"), (4.95, "default"), (None, "default")):
        found, made = optimized(
            monkeypatch, {**us, "max-autotune torch": other}, model_of(Cumulated), mode="max-autotune"
        )
        assert [one.mode for one in made if one.calls] == [called]
        assert f"compiled by torch.compile, mode {called}" in str(found.mirage_report())


def test_calls_that_record_gradients_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cumulated)
    found, made = optimized(monkeypatch, ROWS[1][0], model)
    compiled = next(one for one in made if one.calls)
    before, x = compiled.calls, torch.randn(4, 32, requires_grad=True)
    found(x).sum().backward()
    want = x.grad.clone()
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(want, x.grad, rtol=1e-4, atol=1e-5)
    assert compiled.calls == before
    with torch.no_grad():
        found(x)
    assert compiled.calls == before + 1


def test_a_loaded_module_is_compiled_again_and_a_copied_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Inductor, on the CPU."""
    x = torch.randn(4, 32)
    if not can_compile([x]):
        pytest.skip("there is no compiler of C++")
    model = model_of(Cumulated)
    us: dict[str, float | None] = {"ours": 9.5, "torch": 9.0, "default torch": 5.0, "max-autotune torch": 1.0}
    found, made = optimized(monkeypatch, us, model, mode="max-autotune")
    real, modes = inductor_compiler, []

    def seen(mode: Any, **patches: Any) -> Any:
        modes.append((mode, patches))
        return real(mode, **patches)

    monkeypatch.setattr(function_plan, "inductor_compiler", seen)
    before = sum(one.calls for one in made)
    for again in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        for _ in range(2):
            torch.testing.assert_close(again(x), model(x), rtol=1e-4, atol=1e-5)
    assert modes == [("max-autotune", NO_CUDA_GRAPHS)]
    assert sum(one.calls for one in made) == before + 2


def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 32)
    with pytest.raises(SpaceError, match="expected a mode of Inductor's, got 'fastest'"):
        mf.optimize(model_of(Cumulated), (x,), mode="fastest")
    with pytest.warns(UserWarning, match="mode without a GPU"):
        mf.optimize(model_of(Cumulated), (x,), mode="max-autotune", workers=1, time_limit=600)
