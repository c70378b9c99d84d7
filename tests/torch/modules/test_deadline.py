"""The time limit of a call: what is not verified when it has come is not installed, and nothing long begins behind it.

Time is a clock that only the patched steps move, so no test depends on the machine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.codegen.numerics.rounding_simulation import simulate  # noqa: E402
from mirage_formal.semantics.typed_evaluation import run_typed  # noqa: E402
from mirage_formal.support.garbage import pause_garbage_collection  # noqa: E402
from mirage_formal.torch import capture, deadline  # noqa: E402
from mirage_formal.torch.comparison import candidate_comparison, import_comparison  # noqa: E402
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch  # noqa: E402
from mirage_formal.torch.comparison.node_evaluation import NodeEvaluator  # noqa: E402
from mirage_formal.torch.comparison.thread_limits import limit_threads, openblas_functions  # noqa: E402
from mirage_formal.torch.deadline import Deadline, DeadlineReachedError  # noqa: E402
from mirage_formal.torch.modules import region_search  # noqa: E402
from mirage_formal.torch.modules.backend import REPORTS  # noqa: E402
from mirage_formal.torch.modules.module_report import ModuleReport  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn
SETS = ("normal", "special")


class Clock:
    """A clock that stands still but for the steps that move it."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0

    def monotonic(self) -> float:
        return self.seconds

    def slow(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """The function, which takes some seconds and is counted."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.seconds, self.steps = self.seconds + seconds, self.steps + 1
            return function(*args, **kwargs)

        return called


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(deadline, "time", found)
    return found


def layer() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return nn.Sequential(nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48)).eval(), torch.randn(4, 32)


def kept(optimized: Any) -> list[str]:
    report = optimized.mirage_report()
    assert isinstance(report, ModuleReport)
    return [region.kept for region in report.regions]


def is_the_module(optimized: Any, module: Any, x: Any) -> bool:
    return vars(optimized)["_mirage_plan"] is None and torch.equal(optimized(x), module(x))


def test_a_slow_comparison_with_torch_ends_with_the_time_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(NodeEvaluator, "_run", clock.slow(NodeEvaluator._run, 10.0))
    module, x = layer()
    optimized = mf.optimize(module, (x,), workers=1, time_limit=60, out=tmp_path)
    assert clock.steps <= 6
    assert clock.seconds <= 60
    (why,) = kept(optimized)
    assert why.startswith("stopped by time_limit before its comparison with PyTorch was complete")
    assert why in str(optimized.mirage_report())
    assert is_the_module(optimized, module, x)
    assert list(tmp_path.iterdir()) == [], "what is not compared is not searched"


def test_a_slow_comparison_of_candidates_ends_with_the_time_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(candidate_comparison, "simulate", clock.slow(simulate, 400.0))
    module, x = layer()
    optimized = mf.optimize(module, (x,), workers=1, time_limit=600, out=tmp_path)
    assert clock.steps == 1, "the second is expected to take as long as the first, and has no time for it"
    assert kept(optimized) == ["stopped by time_limit before a candidate had been compared with PyTorch"]
    assert optimized.mirage_report().regions[0].cut
    assert is_the_module(optimized, module, x)


def test_whenever_it_comes_a_region_is_compared_on_all_sets_or_stays_with_torch(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = layer()
    found = mf.from_torch(module, (x,))
    monkeypatch.setattr(NodeEvaluator, "_run", clock.slow(NodeEvaluator._run, 1.0))
    whole = compare_with_torch(found, arguments_of(found, (x,)), SETS)
    steps, outcomes = clock.steps, list[bool]()
    assert whole.sets == {0: len(SETS) + 1}
    for seconds in range(1, 5 * steps, 3):
        begin = clock.seconds
        some = compare_with_torch(found, arguments_of(found, (x,)), SETS, Deadline(begin + seconds))
        assert clock.seconds <= begin + seconds
        outcomes.append(0 not in some.stopped)
        assert some.sets == whole.sets if outcomes[-1] else some.sets.get(0, 0) < whole.sets[0]
        assert bool(some.values) != outcomes[-1]
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


def test_a_region_that_differs_before_the_deadline_says_so(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the operator that differs has no time, so it is that of the result."""
    module, x = layer()
    found = mf.from_torch(module, (x,))
    wrong = clock.slow(lambda *given, **named: [array + 1 for array in run_typed(*given, **named)], 100.0)
    monkeypatch.setattr(import_comparison, "run_typed", wrong)
    result = compare_with_torch(found, arguments_of(found, (x,)), SETS, Deadline(50.0))
    assert result.stopped == {}
    assert "the import differs from PyTorch in aten.linear.default" in result.kept(0)


def test_a_region_whose_comparison_was_ended_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = layer()
    found = mf.from_torch(module, (x,))
    comparison = compare_with_torch(found, arguments_of(found, (x,)), SETS, Deadline(deadline.now()))
    assert set(comparison.stopped) == {0}
    for name in ("stored_results", "search_into_store"):
        monkeypatch.setattr(region_search, name, lambda *_, **__: pytest.fail("it was searched"))
    operators, report = region_search.choose_operators(found, {"time_limit": 600.0}, comparison=comparison)
    assert operators == {}
    assert report.regions[0].kept == comparison.stopped[0]
    assert report.regions[0].cut


def test_what_is_found_in_the_background_is_compared_when_it_is_installed() -> None:
    module, x = layer()
    found = mf.from_torch(module, (x,))
    comparison = compare_with_torch(found, arguments_of(found, (x,)), deadline=Deadline(deadline.now()))
    region_search._complete_comparison(found, (0,), comparison)
    assert (comparison.stopped, comparison.values) == ({}, {})
    assert comparison.sets == compare_with_torch(found, arguments_of(found, (x,))).sets


def test_the_import_of_a_slow_module_ends_with_the_time_limit(clock: Clock) -> None:
    class Slow(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            for _ in range(100):
                clock.seconds, clock.steps = clock.seconds + 1.0, clock.steps + 1
                x = torch.tanh(x)
            return x

    x = torch.randn(4, 8)
    optimized = mf.optimize(Slow(), (x,), time_limit=10)
    assert clock.steps <= 11
    report = str(optimized.mirage_report())
    assert report.startswith("stopped by time_limit before the module was imported (import): nothing was searched")
    assert "loading torch.export" in report
    assert is_the_module(optimized, Slow(), x)


@pytest.mark.parametrize(("limit", "loaded"), [(0.5, 0), (1.5, 2), (7.5, 2), (9.0, 3), (None, 3)])
def test_modules_that_torch_export_needs_are_not_imported_behind_the_deadline(
    limit: float | None, loaded: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is expected to take three times as long as the others together: 2 s here."""
    names = ("mirage_test_a", "mirage_test_b", "mirage_test_c")
    seen: list[str] = []
    monkeypatch.setattr(capture, "_EXPORT", names)
    monkeypatch.setattr(capture, "import_module", clock.slow(seen.append, 1.0))
    end = Deadline.after(0.0, limit)
    if loaded == len(names):
        capture.load_export(end)
    else:
        if not loaded:
            clock.seconds = 1.0
        with pytest.raises(DeadlineReachedError):
            capture.load_export(end)
    assert seen == list(names[:loaded])


def test_a_call_that_torchs_modules_leave_no_time_says_how_long_they_took(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_EXPORT", ("mirage_test_a", "mirage_test_b"))
    monkeypatch.setattr(capture, "import_module", clock.slow(lambda name: None, 5.8))
    module, x = layer()
    optimized = mf.optimize(module, (x,), time_limit=2)
    report = str(optimized.mirage_report())
    assert "stopped by time_limit before the module was imported (loading torch.export)" in report
    assert "loading torch.export 5.8" in report
    assert is_the_module(optimized, module, x)


def test_the_backend_keeps_the_limit(clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NodeEvaluator, "_run", clock.slow(NodeEvaluator._run, 10.0))
    module, x = layer()
    options = {"workers": 1, "time_limit": 60, "out": str(tmp_path), "rest": "eager"}
    compiled = torch.compile(module, backend="mirage_formal", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert clock.steps <= 6
    report = REPORTS[-1]
    assert isinstance(report, ModuleReport)
    assert report.regions[0].kept.startswith("stopped by time_limit before its comparison with PyTorch")


def test_threads_of_torch_and_numpy_are_what_they_were() -> None:
    blas = openblas_functions()
    counts = [torch.get_num_threads, *([blas[0]] if blas else [])]
    before = [count() for count in counts]
    with limit_threads(1):
        assert {count() for count in counts} == {1}
    assert [count() for count in counts] == before
    with limit_threads(1 << 40):
        assert [count() for count in counts] == before
    with pytest.raises(KeyError), limit_threads(1):
        raise KeyError
    assert [count() for count in counts] == before


def test_the_garbage_collector_is_what_it_was() -> None:
    """Blocks may be nested, as those of two threads; what the user has frozen stays so."""
    assert gc.isenabled()
    with pause_garbage_collection():
        with pause_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with pause_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with pause_garbage_collection():
            pass
        assert gc.get_freeze_count() >= frozen - 1000 > 0
    finally:
        gc.unfreeze()
