"""What the constants of tuning are fitted to, on plans and times that are small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.tuning_replay import completed, noise, recorded, replayed, wholes
from mirage_formal.autotune.plans import CandidatePlan, MeasuredTime, PiecePlan, ScheduleVariant, TuningPlan
from mirage_formal.autotune.tuning_space import ComposedCandidate, whole_key


def plan() -> TuningPlan:
    """Four candidates of one kernel with four schedules, and one of two kernels, of which one is that of the first."""
    pieces = tuple(
        PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"{n}.{at}", None) for at in range(4)))
        for n in range(5)
    )
    candidates = tuple(CandidatePlan(f"{n}", "", 1.0 + n, (n,), (0,)) for n in range(4))
    return TuningPlan("run", "sm_90a", (*candidates, CandidatePlan("two", "", 9.0, (0, 4), (0, 1))), pieces)


def test_kernels_without_a_time_are_left_out_or_as_slow_as_the_slowest() -> None:
    times = {"0.0": 5.0, "0.3": 7.0, "2.1": 4.0}
    left = recorded(plan(), times)
    assert [[one.key for one in piece.variants] for piece in left.pieces] == [["0.0", "0.3"], ["2.1"]]
    assert [(one.name, one.pieces) for one in left.candidates] == [("0", (0,)), ("2", (1,))]
    every = completed(plan(), times)
    assert [every[f"0.{at}"] for at in range(4)] == [5.0, 7.0, 7.0, 7.0]
    assert [every[f"2.{at}"] for at in range(4)] == [4.0] * 4
    assert every["1.0"] is None


@pytest.mark.parametrize(("kernels", "rungs", "found"), [(20, 2, 1.0), (20, 1, 1.0), (10, 2, 1.0), (10, 1, 2.0)])
def test_what_is_found_over_the_best(kernels: int, rungs: int, found: float) -> None:
    """A later schedule of the candidate that is fastest with its first one: times lead there, the model does not."""
    times = {one.key: 9.0 for piece in plan().pieces for one in piece.variants} | {"3.0": 8.0, "3.2": 4.0}
    assert replayed(plan(), times, kernels, rungs) == found


def test_wholes_are_found_by_their_keys() -> None:
    times = {"0.0": 5.0, "0.1": 6.0, "4.0": 2.0}
    keys = [
        whole_key(plan(), ComposedCandidate(0, (0,), 0.0)),
        whole_key(plan(), ComposedCandidate(4, (1, 0), 0.0, frozenset({0}))),
    ]
    assert dict(wholes(plan(), times, keys)) == {keys[0]: 5.0, keys[1]: 8.0}


def test_noise_is_the_ratio_of_two_times_of_one_text(tmp_path: Path) -> None:
    for name, times in {"one": {"a": 10.0, "b": 5.0, "c": 1.0}, "other": {"a": 11.0, "b": 4.0, "d": 1.0}}.items():
        lines = [MeasuredTime(key, us, us, 4, 1, text=key, settled=True) for key, us in times.items()]
        (tmp_path / name).write_bytes(b'{"device":"x"}\n' + b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    files = [tmp_path / "one", tmp_path / "other"]
    assert noise(files, 4) == [1.1, 1.25]
    assert noise(files, 15) == []
