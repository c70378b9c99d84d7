"""Searches that continue in the background: better plans for later calls, and no process that outlives its module."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.api.request import stored_results  # noqa: E402
from mirage_formal.cache.cache_directory import UNFINISHED  # noqa: E402
from mirage_formal.cache.lock import lock_holder  # noqa: E402
from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH  # noqa: E402
from mirage_formal.codegen.cost import estimate  # noqa: E402
from mirage_formal.codegen.target import load_target  # noqa: E402
from mirage_formal.run.result_cache import cache_lookup  # noqa: E402
from mirage_formal.torch.background import background_search, plan_swap  # noqa: E402
from mirage_formal.torch.background.background_search import BackgroundPhase  # noqa: E402
from mirage_formal.torch.modules import region_search  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402
from tests.kit.paths import REPOSITORY  # noqa: E402
from tests.kit.processes import HUNG_S, alive, gone  # noqa: E402
from tests.kit.torch.fake_gpu import fake_gpu  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn

#: The child at the usual priority: a busy machine leaves none of its time to one at the lowest.
BOOT = background_search._BOOT.replace(
    "import main\n", "import main\nfrom mirage_formal.torch.background import background_search as b\n{}\n"
)
AT_ONCE = BOOT.format("b._lower_priority = lambda: None")
#: Its searches begin, and never end.
ENDLESS = BOOT.format("import mirage_formal.api.request as r, time; r.search_into_store = lambda *_: time.sleep(3600)")
#: The second search ends the process.
FRAGILE = BOOT.format(
    "import os, mirage_formal.api.request as r\n"
    "b._lower_priority, search = (lambda: None), r.search_into_store\n"
    "def fragile(program, given):\n"
    "    print('out of luck', flush=True)\n"
    "    return search(program, given) if given['watch']._search == 0 else os._exit(5)\n"
    "r.search_into_store = fragile"
)
#: The first search has an error, the second none.
FAULTY = BOOT.format(
    "import mirage_formal.api.request as r\n"
    "b._lower_priority, search = (lambda: None), r.search_into_store\n"
    "def faulty(program, given):\n"
    "    return search(program, given) if given['watch']._search else {}['the key']\n"
    "r.search_into_store = faulty"
)


class Two(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """Two regions with other programs, apart by what stays with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48))
        self.second = nn.Sequential(nn.RMSNorm(48, eps=1e-6), nn.Linear(48, 32))

    def forward(self, x: Any) -> Any:
        """The layers."""
        return self.second(torch.cumsum(self.first(x), 0))


def layer() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48)).eval(), (torch.randn(4, 32),)


def two() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Two().eval(), (torch.randn(4, 32),)


def descendants(store: Path) -> list[int]:
    """Processes, but for this one, in whose environment the store is named."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            named = os.fsencode(f"{STORE_VARIABLE}={store}\0") in path.read_bytes()
        except OSError:
            continue
        if named and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which all searches of the modules here have ended."""
    store = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SWITCH)
        patch.setenv(STORE_VARIABLE, str(store))
        for module, given in (layer(), two()):
            report = mf.optimize(module, given, workers=1, time_limit=600).mirage_report()
            assert [row.kept for row in report.regions] == [""] * len(report.regions)
    return store


@pytest.fixture
def begun(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Optimize a module whose searches have no time, while the child finds their results in the store."""
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(STORE_VARIABLE, str(searched))
    cache_lookup._replayed.clear()
    made: list[Any] = []

    def begin(module: Any, given: Any, boot: str = AT_ONCE, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(region_search, "stored_results", lambda *_, **__: None)
            patch.setattr(background_search, "_BOOT", boot)
            options = {"workers": 1, "time_limit": 0.5, "continue_in_background": True, **options}
            found = mf.optimize(module, given, **options)
        assert all(row.kept.startswith("stopped by time_limit before its") for row in found.mirage_report().regions)
        made.append(found.mirage_background())
        return found

    yield begin
    for search in made:
        search.stop()
        search.wait(HUNG_S)


@pytest.mark.slow
def test_a_search_that_is_cut_gives_a_better_plan_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is the one that a longer limit finds, in a store of its own."""
    module, given = layer()
    monkeypatch.delenv(SWITCH)
    monkeypatch.setattr(background_search, "_BOOT", AT_ONCE)
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    optimized = mf.optimize(module, given, workers=1, time_limit=0.5, continue_in_background=True)
    assert optimized._mirage_plan is None
    assert "search continues in the background since 2" in str(optimized.mirage_report())
    close(optimized(*given), module(*given))
    search = optimized.mirage_background()
    assert search.wait(HUNG_S).phase is BackgroundPhase.FINISHED
    assert optimized._mirage_plan is None, "nothing is exchanged but between two calls"
    close(optimized(*given), module(*given))
    source = vars(optimized)["_mirage_plan"].source
    assert "torch.ops.mirage_formal.c" in source
    report = optimized.mirage_report()
    (row,) = report.regions
    assert not row.cut
    assert row.evidence.is_relative_to(tmp_path / "store")
    assert f"region 0: candidate {row.candidate[:12]} was found in the background" in report.background
    assert "search in the background has finished: 1 of 1 searches ended" in str(report)

    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "other"))
    longer = mf.optimize(module, given, workers=1, time_limit=600)
    assert [one.candidate for one in longer.mirage_report().regions] == [row.candidate]
    assert longer._mirage_plan.source == source


def test_a_better_candidate_takes_the_place_of_the_one_that_was_found_in_time(begun: Any) -> None:
    module, given = layer()
    region = mf.from_torch(module, given).regions[0]
    found = stored_results(region.numbered_program, {"time_limit": None, "measure": 0})
    assert found is not None
    slow = [one for one in found if one.cost < estimate(region.program, load_target("h200")).us][-1]
    assert slow.cost > found[0].cost
    cut = type(found)([slow], "its time limit ended the search after 1 of 9 units", cut=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_search, "stored_results", lambda *_, **__: cut)
        patch.setattr(background_search, "_BOOT", AT_ONCE)
        optimized = mf.optimize(module, given, workers=1, time_limit=60, continue_in_background=True)
    (row,) = optimized.mirage_report().regions
    assert (row.candidate, row.cut) == (slow.digest, True)
    assert "1 of 9 units; a longer time_limit continues it" in str(row)
    close(optimized(*given), module(*given))
    optimized.mirage_background().wait(HUNG_S)
    close(optimized(*given), module(*given))
    (better,) = optimized.mirage_report().regions
    assert (better.candidate, better.cut, better.extent) == (found[0].digest, False, "")
    assert better.estimate_us < row.estimate_us


def test_what_is_found_is_worse_and_not_taken(begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a candidate may be measured to be slower than the one that was found in time."""
    optimized = begun(*layer())
    swap = optimized._mirage_swap
    optimized.mirage_background().wait(HUNG_S)
    found = region_search.stored_operator(swap._frame.traced.imported, (0,), {"measure": 0}, swap._comparison)
    assert found is not None
    row, operator = found
    earlier = dataclasses.replace(row, candidate="f" * 64, measured_us=1.0, extent="cut", cut=True)
    swap._report = dataclasses.replace(swap._report, regions=(earlier,))
    swap._operators = {0: operator}
    monkeypatch.setattr(plan_swap.PlanSwap, "_is_timed", lambda self: True)
    timed = dataclasses.replace(row, measured_us=2.0)
    monkeypatch.setattr(
        plan_swap,
        "faster_regions",
        lambda imported, operators, report, compile: (operators, dataclasses.replace(report, regions=(timed,))),
    )
    optimized(*layer()[1])
    (after,) = optimized.mirage_report().regions
    assert (after.candidate, after.measured_us, after.cut) == ("f" * 64, 1.0, False)
    assert "region 0: nothing better was found" in optimized.mirage_report().background


def test_calls_of_several_threads_are_right_while_plans_are_exchanged(begun: Any) -> None:
    module, given = two()
    optimized = begun(module, given)
    wanted, faults = module(*given), []
    until = time.monotonic() + HUNG_S

    def call() -> None:
        try:
            while len(optimized._mirage_swap._remarks) < 2 and time.monotonic() < until:
                with torch.no_grad():
                    close(optimized(*given), wanted)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert optimized.mirage_background().state.phase is BackgroundPhase.FINISHED
    assert [row.kept for row in optimized.mirage_report().regions] == ["", ""]
    assert len(optimized._mirage_plan.operators) == 2
    close(optimized(*given), wanted)


def test_a_call_that_has_begun_ends_with_the_plan_that_it_began_with(begun: Any) -> None:
    """The exchange is made within the call here, behind the moment at which the call has read its plan."""
    module, given = two()
    optimized = begun(module, given)
    search = optimized.mirage_background()
    search.wait(HUNG_S)
    search._ended.remove(1)
    optimized(*given)
    plan = optimized._mirage_plan
    search._ended, search.arrived = [1], False
    own, ran = plan._function, []

    def function(*tensors: Any) -> Any:
        optimized._mirage_swap.install()
        ran.append(optimized._mirage_plan is not plan)
        return own(*tensors)

    plan._function = function
    close(optimized(*given), module(*given))
    assert ran == [True]
    assert optimized._mirage_plan is not plan
    close(optimized(*given), module(*given))
    assert ran == [True]


def test_modes_of_the_call_do_not_reach_the_new_plan(begun: Any) -> None:
    module, given = layer()
    optimized = begun(module, given)
    optimized.mirage_background().wait(HUNG_S)
    with torch.inference_mode(), torch.device("meta"):
        optimized(*given)
    assert optimized._mirage_plan is not None, optimized.mirage_report()
    x = given[0].clone().requires_grad_()
    found = torch.autograd.grad(optimized(x).sum(), [x, *optimized.parameters()])
    close(found, torch.autograd.grad(module(x).sum(), [x, *module.parameters()]))


def test_the_new_plan_holds_for_the_module_as_it_was_at_the_import(begun: Any) -> None:
    module, given = layer()
    optimized = begun(module, given)
    optimized.mirage_background().wait(HUNG_S)
    optimized.half()
    with pytest.warns(FallbackWarning, match="expected torch.float32"):
        assert optimized(given[0].half()).dtype is torch.float16
    assert optimized._mirage_plan is not None
    optimized.float()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        close(optimized(*given), module(*given))


def test_a_compiled_module_gets_the_new_plan(begun: Any) -> None:
    module, given = layer()
    optimized = begun(module, given)
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    compiled = torch.compile(optimized, backend=backend, fullgraph=True)
    close(compiled(*given), module(*given))
    optimized.mirage_background().wait(HUNG_S)
    close(compiled(*given), module(*given))
    assert optimized._mirage_plan is None, "compiled calls exchange nothing"
    optimized(*given)
    close(compiled(*given), module(*given))
    torch._dynamo.reset()
    assert ["torch.ops.mirage_formal.c" in code for code in graphs] == [False, True]


def test_copies_keep_their_plan(begun: Any) -> None:
    module, given = layer()
    optimized = begun(module, given)
    optimized.mirage_background().wait(HUNG_S)
    for again in (copy.deepcopy(optimized), pickle.loads(pickle.dumps(optimized))):
        close(again(*given), module(*given))
        assert again._mirage_plan is None
        assert again.mirage_background() is None
        assert again.mirage_report().background == ()
    optimized(*given)
    close(copy.deepcopy(optimized)(*given), module(*given))
    assert copy.deepcopy(optimized)._mirage_plan is not None


def test_on_a_gpu_the_caller_measures_and_builds(begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = layer()
    optimized = begun(module, given)
    optimized.mirage_background().wait(HUNG_S)
    told: list[Any] = []

    def fastest(results: Any, root: Path, wanted: Any, device: Any, place: Any = None) -> Any:
        told.append(wanted.seconds)
        return list(results)[::-1]

    monkeypatch.setattr("mirage_formal.autotune.measured_order.order_by_measurement", fastest)
    prepared = fake_gpu(monkeypatch)
    swap = optimized._mirage_swap
    monkeypatch.setitem(swap._asked, "time_limit", 40.0)
    swap.install()
    assert prepared == [0], optimized.mirage_report()
    assert len(told) == 1
    assert 1 <= told[0] <= 10  # at most a quarter of the limit
    assert [row.kept for row in optimized.mirage_report().regions] == [""]


def test_the_child_measures_nothing(begun: Any) -> None:
    text = "f\"{given['measure']} {given['time_limit']} {os.environ['CUDA_VISIBLE_DEVICES']!r}\""
    boot = BOOT.format(
        "import os, mirage_formal.api.request as r\n"
        f"def search(program, given):\n    raise RuntimeError({text})\n"
        "r.search_into_store = search"
    )
    optimized = begun(*layer(), boot, measure=16)
    state = optimized.mirage_background().wait(HUNG_S)
    assert state.reason == "RuntimeError: 0 None ''"


# --- how it ends


def test_it_runs_at_the_lowest_priority_under_the_lock_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(STORE_VARIABLE, str(store))
    module, given = layer()
    held = BOOT.format(
        "import mirage_formal.api.request as r, time\nr._search_and_measure = lambda *_: time.sleep(3600)"
    )
    monkeypatch.setattr(background_search, "_BOOT", held)
    optimized = mf.optimize(module, given, workers=1, time_limit=0.5, continue_in_background=True)
    search = optimized.mirage_background()
    until = time.monotonic() + HUNG_S
    while not (holders := unfinished_holders(store)) and time.monotonic() < until:
        time.sleep(0.05)
    assert holders == [search.pid]
    assert os.getpriority(os.PRIO_PROCESS, search.pid) == 19
    if hasattr(os, "SCHED_IDLE"):
        assert os.sched_getscheduler(search.pid) == os.SCHED_IDLE
    search.stop()
    search.wait(HUNG_S)
    assert unfinished_holders(store) == []


def unfinished_holders(store: Path) -> list[int]:
    """Processes that write unfinished runs of a store."""
    locks = (store / UNFINISHED).glob(".*.lock")
    holders = (lock_holder(path.with_name(path.name[1:-5])) for path in locks)
    return [holder.pid for holder in holders if holder is not None]


def test_stop(begun: Any, searched: Path) -> None:
    module, given = layer()
    optimized = begun(module, given, ENDLESS)
    search = optimized.mirage_background()
    search.stop()
    assert search.state.phase is BackgroundPhase.STOPPED
    search.stop()
    state = search.wait(HUNG_S)
    assert (state.phase, state.reason) == (BackgroundPhase.STOPPED, "")
    assert gone(descendants(searched))
    assert "was stopped: 0 of 1 searches ended; a longer time_limit continues it" in str(optimized.mirage_report())
    close(optimized(*given), module(*given))
    assert optimized._mirage_plan is None


@pytest.mark.slow
def test_a_search_that_was_stopped_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(STORE_VARIABLE, str(store))
    monkeypatch.setattr(background_search, "_BOOT", AT_ONCE)
    module, given = layer()
    optimized = mf.optimize(module, given, workers=1, time_limit=0.5, continue_in_background=True)
    search = optimized.mirage_background()
    until = time.monotonic() + HUNG_S
    while search.state.done == 0 and search.state.phase is BackgroundPhase.RUNNING and time.monotonic() < until:
        time.sleep(0.01)
    search.stop()
    assert search.wait(HUNG_S).phase is BackgroundPhase.STOPPED
    assert gone(descendants(store))
    journals = list((store / UNFINISHED).rglob("search.jsonl"))
    assert any(path.read_text() for path in journals), journals
    again = mf.optimize(module, given, workers=1, time_limit=600)
    assert [row.kept for row in again.mirage_report().regions] == [""]
    close(again(*given), module(*given))


def test_no_process_outlives_its_module(begun: Any, searched: Path) -> None:
    optimized = begun(*layer(), ENDLESS)
    search = optimized.mirage_background()
    assert descendants(searched) != []
    del optimized
    gc.collect()
    assert search.wait(HUNG_S).phase is BackgroundPhase.STOPPED
    assert gone(descendants(searched))


def test_a_forked_process_leaves_it_alone(begun: Any) -> None:
    module, given = layer()
    optimized = begun(module, given, ENDLESS)
    search = optimized.mirage_background()
    if (child := os.fork()) == 0:
        search.stop()
        os._exit(len(search.take()))
    assert os.waitpid(child, 0)[1] == 0
    assert search.state.phase is BackgroundPhase.RUNNING
    assert alive(search.pid)


SCRIPT = """
import os, sys, time
from tests.torch.modules import test_background as t
t.background_search._BOOT = t.ENDLESS
module, given = t.layer()
optimized = t.mf.optimize(module, given, workers=1, time_limit=0.5, continue_in_background=True)
print(optimized.mirage_background().pid, flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(3600)
"""


@pytest.mark.parametrize("ending", ["exit", "killed"])
def test_no_process_outlives_the_interpreter(ending: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    environment = {**os.environ, STORE_VARIABLE: str(store), "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    del environment[SWITCH]
    wait = ["wait"] * (ending == "killed")
    command = [sys.executable, "-c", SCRIPT, *wait]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if wait:
            assert pid in descendants(store)
            os.kill(process.pid, signal.SIGKILL)
        assert process.wait(HUNG_S) == (-signal.SIGKILL if wait else 0)
    assert gone([pid, *descendants(store)])


# --- errors


def test_a_child_that_fails_loses_nothing(begun: Any) -> None:
    """Its first search has ended before: its result is installed."""
    module, given = two()
    optimized = begun(module, given, FRAGILE)
    state = optimized.mirage_background().wait(HUNG_S)
    assert (state.phase, state.searched, state.searches) == (BackgroundPhase.FAILED, 1, 2)
    assert state.reason == "its process ended with exit code 5: out of luck"
    assert "has failed: 1 of 2 searches ended; its process ended with exit code 5" in str(optimized.mirage_report())
    close(optimized(*given), module(*given))
    first, second = sorted(row.kept for row in optimized.mirage_report().regions)
    assert (first, second[:33]) == ("", "stopped by time_limit before its ")


def test_a_search_that_fails_does_not_end_the_others(begun: Any) -> None:
    module, given = two()
    optimized = begun(module, given, FAULTY)
    state = optimized.mirage_background().wait(HUNG_S)
    assert (state.phase, state.searched) == (BackgroundPhase.FAILED, 2)
    assert state.reason == "KeyError: 'the key'"


def test_a_child_that_does_not_start(begun: Any) -> None:
    module, given = layer()
    optimized = begun(module, given, "raise SystemExit('no memory')")
    state = optimized.mirage_background().wait(HUNG_S)
    assert (state.phase, state.reason) == (BackgroundPhase.FAILED, "its process ended with exit code 1: no memory")
    close(optimized(*given), module(*given))


def test_an_error_while_plans_are_exchanged_is_a_remark(begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = layer()
    optimized = begun(module, given)
    optimized.mirage_background().wait(HUNG_S)
    monkeypatch.setattr(plan_swap, "stored_operator", lambda *_, **__: 1 // 0)
    close(optimized(*given), module(*given))
    remarks = optimized.mirage_report().background
    assert any("region 0: what was found is not used: ZeroDivisionError" in remark for remark in remarks)
    close(optimized(*given), module(*given))
    assert optimized.mirage_report().background == remarks, "it is not tried again"


def test_no_further_thread_is_no_error(begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = layer()
    optimized = begun(module, given)
    optimized.mirage_background().wait(HUNG_S)

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        close(optimized(*given), module(*given))
    assert optimized._mirage_plan is None
    close(optimized(*given), module(*given))
    assert optimized._mirage_plan is not None, "what had arrived is not lost"


def test_nothing_to_continue(begun: Any, searched: Path) -> None:
    module, given = layer()
    optimized = mf.optimize(module, given, workers=1, time_limit=60, continue_in_background=True)
    search = optimized.mirage_background()
    assert (search.pid, search.state.phase, search.state.searches) == (None, BackgroundPhase.FINISHED, 0)
    assert search.wait() == search.state
    search.stop()
    assert search.state.phase is BackgroundPhase.FINISHED
    assert mf.optimize(module, given, workers=1, time_limit=60).mirage_background() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": "somewhere"}, "in the store with continue_in_background, got out='somewhere'"),
        ({"cache": False}, "got cache=False"),
        ({"resume": True}, "got resume=True"),
        ({"accept": "probable"}, "got accept='probable', where it keeps only what is proved"),
        ({"engine": "mine:Engine"}, "an engine of one's own"),
        ({"shapes": {"x": {0: (1, 4, 2)}}}, "continue_in_background or shapes"),
    ],
)
def test_options_that_exclude_it(options: Any, message: str, begun: Any) -> None:
    with pytest.raises(mf.UnsupportedError, match=message):
        mf.optimize(*layer(), continue_in_background=True, **options)


def test_misuse() -> None:
    with pytest.raises(mf.SpaceError, match="expected True or False, got 'yes'"):
        mf.optimize(*layer(), continue_in_background="yes")
    with pytest.raises(mf.UnsupportedError, match=f"got {SWITCH} in the environment"):
        mf.optimize(*layer(), continue_in_background=True)  # the tests have no store
    module, given = layer()
    compiled = torch.compile(module, backend="mirage_formal", options={"continue_in_background": True})
    with pytest.raises(Exception, match="expected no option continue_in_background"):
        compiled(*given)
