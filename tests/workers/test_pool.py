"""Workers, in processes here or on a dask cluster: nothing is lost when they die, hang, grow or raise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.support.errors import ShapeError
from mirage_formal.workers import dispatch
from mirage_formal.workers.cluster import Cluster
from mirage_formal.workers.dispatch import TRIES, Executor, TaskDone, TaskFailed, TaskOverdue
from mirage_formal.workers.pool import Pool
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S, alive, clock_of, first_try, gone

#: Seconds after which a task counts as hung where one is made to hang.
HANGS_S = 10


def square(x: int) -> int:
    return x * x


def die_once(path: str) -> str:
    if first_try(path):
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def hang_once(path: str) -> str:
    if first_try(path):
        time.sleep(600)
    return path


def die_on_odd(x: int) -> int:
    if x % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def fault(x: int) -> int:
    raise ValueError(f"no {x}")


def mistake(x: int) -> int:
    raise ShapeError("expected 4, got 5", where="here", hint="do this")


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def nap_or_wait(task: float | str) -> None:
    if isinstance(task, str):
        wait_for(task)
    else:
        nap(task)


def process_id(_: int) -> int:
    return os.getpid()


def wait_for(path: str) -> None:
    while path and not Path(path).exists():
        time.sleep(0.02)


def grow(mebibytes: int) -> int:
    """Use so much memory; hang if that is much, so that somebody else has to end it."""
    block = bytearray(os.urandom(1 << 20) * mebibytes)
    time.sleep(600 if mebibytes > 100 else 0)
    return len(block) >> 20


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Address of a dask scheduler with two workers."""
    command = [sys.executable, "-m", "mirage_formal.workers.cluster_host", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.stdin.close()
        process.wait(HUNG_S)


@pytest.fixture(scope="module", params=["pool", "cluster"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor[Any]]:
    """Two workers of either kind."""
    if request.param == "pool":
        yield request.getfixturevalue("pool")
    else:
        with Cluster(request.getfixturevalue("scheduler")) as cluster:
            yield cluster


def outcomes(
    executor: Executor[Any], function: Callable[[Any], Any], tasks: Sequence[Any], limit_s: float = 60
) -> dict[int, TaskDone[Any] | TaskFailed]:
    found = [o for o in executor.run(function, tasks, limit_s=limit_s) if isinstance(o, TaskDone | TaskFailed)]
    assert len(found) == len({o.index for o in found}) == len(tasks)
    return {o.index: o for o in found}


def test_tasks_may_be_appended_and_come_before_those_that_wait(executor: Executor[Any]) -> None:
    tasks = list(range(40))
    found: dict[int, int] = {}
    for outcome in executor.run(square, tasks, limit_s=60):
        if isinstance(outcome, TaskDone):
            found[outcome.index] = outcome.value
            if len(tasks) == 40:
                tasks += [100, 200]
    assert found == {index: task * task for index, task in enumerate(tasks)}
    order = list(found)
    assert max(order.index(40), order.index(41)) < order.index(39)


def value(outcome: TaskDone[Any] | TaskFailed) -> Any:
    assert isinstance(outcome, TaskDone)
    return outcome.value


@pytest.mark.parametrize("workers", [1, 3])
def test_every_task_is_computed(workers: int) -> None:
    with Pool(workers) as own:
        found = outcomes(own, square, list(range(20)))
        assert [value(found[i]) for i in range(20)] == [i * i for i in range(20)]
        assert all(o.attempts == 1 for o in found.values())
        assert len(own.pids()) == workers


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Pool(0)


def test_killed_workers_lose_nothing(executor: Executor[Any], tmp_path: Path) -> None:
    found = outcomes(executor, die_once, [str(tmp_path / str(i)) for i in range(4)])
    assert [o.attempts for o in found.values()] == [2, 2, 2, 2]
    assert all(isinstance(o, TaskDone) for o in found.values())


def test_a_hanging_worker_is_killed_and_its_task_tried_again(executor: Executor[Any], tmp_path: Path) -> None:
    # What is tried again is done in milliseconds: a limit of so many seconds is not reached twice.
    found = outcomes(executor, hang_once, [str(tmp_path / "a"), str(tmp_path / "b")], limit_s=HANGS_S)
    assert [(type(o), o.attempts) for o in found.values()] == [(TaskDone, 2), (TaskDone, 2)]


def test_a_hanging_task_that_would_hang_again_is_given_up_at_once(executor: Executor[Any], tmp_path: Path) -> None:
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    found = {
        o.index: o
        for o in executor.run(hang_once, paths, limit_s=3.0, once=True)
        if isinstance(o, TaskDone | TaskFailed)
    }
    assert [(type(o), o.attempts) for o in found.values()] == [(TaskFailed, 1), (TaskFailed, 1)]
    assert all(isinstance(o, TaskFailed) and o.overdue for o in found.values())


def test_a_poison_task_is_given_up_and_the_others_go_on(executor: Executor[Any]) -> None:
    found = outcomes(executor, die_on_odd, [0, 1, 2, 4, 6])
    poison = found.pop(1)
    assert isinstance(poison, TaskFailed)
    assert poison.attempts == TRIES
    assert "exit code -9" in poison.reason
    assert [value(o) for _, o in sorted(found.items())] == [0, 2, 4, 6]


def test_an_exception_fails_after_all_tries_with_its_text(executor: Executor[Any]) -> None:
    found = outcomes(executor, fault, [7])[0]
    assert isinstance(found, TaskFailed)
    assert found.attempts == TRIES
    assert "ValueError: no 7" in found.reason


def test_a_users_mistake_comes_through_whole(executor: Executor[Any]) -> None:
    with pytest.raises(ShapeError) as caught:
        list(executor.run(mistake, [1], limit_s=60))
    assert (caught.value.where, caught.value.what, caught.value.hint) == ("here", "expected 4, got 5", "do this")


def test_workers_killed_while_idle_are_replaced(pool: Pool) -> None:
    outcomes(pool, square, [1, 2])
    pids = pool.pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert gone(pids)
    assert value(outcomes(pool, square, [3])[0]) == 9


def test_the_deadline_stops_and_yields_what_is_done(executor: Executor[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, dispatch)
    deadline = clock.monotonic() + HUNG_S
    found = []
    for outcome in executor.run(nap, [0.0, 0.0, 1e6], limit_s=1e6, deadline=deadline):
        found += [outcome.index] if isinstance(outcome, TaskDone) else []
        if len(found) == 2:
            assert clock.ahead == 0, "the deadline has passed"
            clock.ahead = HUNG_S
    assert sorted(found) == [0, 1]


def test_leaving_the_iteration_kills_busy_workers(executor: Executor[Any]) -> None:
    running = executor.run(nap, [0.0, 600.0, 600.0], limit_s=1000)
    assert next(o for o in running if o is not None).index == 0
    running.close()  # type: ignore[attr-defined]
    assert value(outcomes(executor, square, [5])[0]) == 25


class Pressed(Pool):
    """Ctrl-C comes once, right after a task was sent."""

    pressed = False

    def _send(self, *arguments: Any) -> bool:
        sent = super()._send(*arguments)
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return sent


def test_an_interrupt_while_a_task_is_sent_leaves_no_worker_busy_with_it() -> None:
    with Pressed(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            list(pool.run(nap, [1e6], limit_s=1e6))
        found = outcomes(pool, square, [5], limit_s=HANGS_S)[0]
        assert (value(found), found.attempts) == (25, 1)


def test_a_task_that_grows_too_large_is_killed_and_the_others_go_on(scheduler: str) -> None:
    bound = 250 << 20
    with Pool(2, memory=bound) as pool, Cluster(scheduler, memory=bound) as cluster:
        for executor in (pool, cluster):
            found = outcomes(executor, grow, [1, 400, 2])
            assert [type(found[i]) for i in range(3)] == [TaskDone, TaskFailed, TaskDone]
            killed = found[1]
            assert isinstance(killed, TaskFailed)
            assert killed.attempts == TRIES
            assert "GiB of at most 0.24 and was killed" in killed.reason


def test_an_executor_is_used_again_after_all_that(executor: Executor[Any]) -> None:
    assert [value(o) for o in outcomes(executor, square, list(range(12))).values()]
    assert executor.workers == 2
    assert executor.remarks == []


def test_a_slow_task_is_reported_once(tmp_path: Path) -> None:
    go = tmp_path / "go"
    found: list[object] = []
    with Pool(1, slow_factor=2, slow_after_s=0.3) as pool:
        for outcome in pool.run(wait_for, ["", "", "", str(go)], limit_s=HUNG_S):
            found.append(outcome)
            # Not at once: it is not reported again.
            if found.count(None) > 5 and any(isinstance(o, TaskOverdue) for o in found[:-3]):
                go.touch()
    [slow] = [o for o in found if isinstance(o, TaskOverdue)]
    assert (slow.index, slow.again) == (3, False)
    assert slow.seconds >= max(0.3, 2 * slow.typical_s)
    assert sum(isinstance(o, TaskDone) for o in found) == 4


SCRIPT = """
import os, sys, time
print("main", flush=True)
from mirage_formal.workers.pool import Pool
pool = Pool(2)
for outcome in pool.run(time.sleep, {naps}, limit_s=1000):
    if outcome is None and len(pool.pids()) == 2:
        print(*pool.pids(), flush=True)
pool.close()
print("end", flush=True)
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(naps=[0.1, 0.1]))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HUNG_S, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n").count("main") == 1
    assert done.stdout.endswith("end\n")


def test_workers_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(naps=[600, 600]))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as supervisor:
        assert supervisor.stdout is not None
        lines = (line.split() for line in supervisor.stdout)
        pids = [int(pid) for pid in next(words for words in lines if len(words) == 2)]
        assert all(alive(pid) for pid in pids)
        supervisor.kill()
    assert gone(pids)


def test_steps_are_taken_here_while_workers_compute(tmp_path: Path) -> None:
    """The worker waits for a file that the last step writes."""
    taken: list[int] = []
    file = tmp_path / "file"
    with Pool(1) as pool:
        pool.work_meanwhile([lambda: taken.append(1), lambda: taken.append(2), file.touch])
        assert taken == []
        [found] = [one for one in pool.run(wait_for, [str(file)], limit_s=60) if isinstance(one, TaskDone)]
        assert found.attempts == 1
    assert taken == [1, 2]


def test_a_task_that_a_place_refuses_goes_to_another_one_or_to_it_if_no_other_works() -> None:
    def done(workers: Pool, refuses: Callable[[int, int, Sequence[int]], bool]) -> list[TaskDone[float]]:
        with workers.leaving_tasks(refuses):
            return [one for one in workers.run(nap, [0.05] * 4, limit_s=60) if isinstance(one, TaskDone)]

    with Pool(2) as workers:
        assert {one.place for one in done(workers, lambda _, place, __: place == 0)} == {1}
        assert {one.place for one in done(workers, lambda _, place, __: place == 1)} == {0}
        assert sorted(one.index for one in done(workers, lambda *_: True)) == [0, 1, 2, 3]


def test_a_run_does_not_wait_for_a_task_that_outlasts_it(tmp_path: Path) -> None:
    """Its worker gets no other task meanwhile, and its outcome comes in a later run."""
    received = list[TaskDone[Any] | TaskFailed]()
    gate = tmp_path / "gate"
    with Pool(2) as workers:
        tasks: list[Any] = [0.0, str(gate)]
        with workers.outlasting_tasks({1: received.append}):
            found = list(workers.run(nap_or_wait, tasks, limit_s=HUNG_S))
        assert [one.index for one in found if isinstance(one, TaskDone)] == [0]
        assert not received
        pids = {value(one) for one in workers.run(process_id, range(4), limit_s=HUNG_S) if isinstance(one, TaskDone)}
        assert len(pids) == 1
        gate.touch()
        while not received:
            list(workers.run(nap, [0.05], limit_s=HUNG_S))
        assert [(type(one), one.index) for one in received] == [(TaskDone, 1)]
        assert len(workers.pids()) == 2


def test_the_failure_of_a_task_that_outlasts_its_run_is_received(tmp_path: Path) -> None:
    received = list[TaskDone[Any] | TaskFailed]()
    with Pool(2) as workers:
        tasks: list[Any] = [0.0, str(tmp_path / "never")]
        with workers.outlasting_tasks({1: received.append}):
            list(workers.run(nap_or_wait, tasks, limit_s=2.0))
        while not received:
            list(workers.run(nap, [0.05], limit_s=HUNG_S))
        assert [(type(one), one.index) for one in received] == [(TaskFailed, 1)]
        assert list(workers.run(square, [3], limit_s=HUNG_S))


def test_a_pool_is_closed_while_a_task_outlasts_its_run(tmp_path: Path) -> None:
    with Pool(2) as workers:
        tasks: list[Any] = [0.0, str(tmp_path / "never")]
        with workers.outlasting_tasks({1: lambda _: None}):
            list(workers.run(nap_or_wait, tasks, limit_s=HUNG_S))
        left = workers.pids()
    assert gone(left)


def test_dismissed_workers_leave_and_a_later_task_starts_others() -> None:
    with Pool(2) as workers:
        first = {value(one) for one in workers.run(process_id, range(4), limit_s=HUNG_S) if isinstance(one, TaskDone)}
        workers.dismiss()
        assert not workers.pids()
        assert gone(first)
        later = {value(one) for one in workers.run(process_id, range(4), limit_s=HUNG_S) if isinstance(one, TaskDone)}
        assert later
        assert not first & later
