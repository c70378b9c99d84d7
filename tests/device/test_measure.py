"""The timing protocol, on a recorder whose clock is scripted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mirage_formal.device import measure as measuring
from mirage_formal.device.measure import MeasureError, host_overhead, measure, replay_summary, replayed_error, set_count

MB = 1 << 20


class Scripted:
    """Replays run the captured calls; the n-th replay takes ``times[n]`` microseconds."""

    def __init__(self, times: Sequence[float] = (), cache: int = 60 * MB) -> None:
        self.times = list(times)
        self.cache = cache
        self.captured: list[Callable[[], Any]] = []
        self.order: list[str] = []

    def settle(self) -> None:
        self.order.append("settle")

    def cache_bytes(self) -> int:
        return self.cache

    def capture(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], None], list[Any]]:
        self.captured = list(calls)
        self.order.append("capture")
        returned = [call() for call in calls]

        def replay() -> None:
            for call in self.captured:
                call()

        return replay, returned

    def time(self, replay: Callable[[], None]) -> float:
        replay()
        return self.times.pop(0) if self.times else 1.0

    def poison(self, value: Any) -> None:
        value.fill(np.nan)

    def finite(self, value: Any) -> bool:
        return bool(np.isfinite(value).all())


def test_sets_exceed_the_cache() -> None:
    assert set_count(1 * MB, 60 * MB) == 64
    assert set_count(4 * MB, 60 * MB) == 45
    assert set_count(50 * MB, 60 * MB) == 4
    assert set_count(500 * MB, 60 * MB) == 2
    assert set_count(0, 60 * MB) == 64


def test_the_median_of_the_replays_counts_per_call() -> None:
    out = np.zeros(3)
    seen: list[float] = []

    def call(inputs: Sequence[Any]) -> None:
        seen.append(inputs[0])
        out[:] = 1.0

    warm = [1e6] * 3
    times = [800.0, 100.0, *[400.0] * 12, 10.0]
    recorder = Scripted([*warm, *times], cache=10 * MB)
    found = measure(call, lambda seed: [float(seed)], 10 * MB, recorder, outputs=[out])
    assert (found.sets, found.calls, found.replays) == (3, 8, 15)
    assert found.us == 400.0 / 8
    assert (found.low, found.high, found.spread) == (10.0 / 8, 800.0 / 8, 0.0)
    # Sets rotate.
    assert seen[:8] == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0]
    assert found.fields()["us"] == 50.0


def test_a_process_settles_before_it_captures_and_once_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, out = Scripted(), np.zeros(1)
    measure(lambda inputs: out.fill(1.0), lambda seed: [], MB, recorder, outputs=[out])
    assert recorder.order == ["settle", "capture"]

    monkeypatch.setattr(measuring, "_settled", set())
    launched: list[int] = []
    for device in (0, 1, 0, 1):
        measuring._launch_settling_kernels(device, lambda device=device: lambda value: launched.append(device))  # type: ignore[misc]
    assert launched == [0] * measuring.SETTLING + [1] * measuring.SETTLING


def test_outputs_that_are_not_written_are_found() -> None:
    out = np.zeros(4)

    def half(inputs: Sequence[Any]) -> None:
        out[:2] = 1.0

    with pytest.raises(MeasureError, match="poison"):
        measure(half, lambda seed: [], MB, Scripted(), outputs=[out])

    def returned(inputs: Sequence[Any]) -> Any:
        return returned.__dict__.setdefault("made", np.ones(2))

    with pytest.raises(MeasureError, match="poison"):
        measure(returned, lambda seed: [], MB, Scripted())


def test_replays_of_one_graph_are_compared_with_what_its_inputs_say_now() -> None:
    given, out = np.zeros(2), np.zeros(2)
    loaded: list[int] = []
    recorder = Scripted()

    def load(seed: int) -> None:
        loaded.append(seed)
        given[:] = seed

    def error(seed: int) -> float:
        return float(np.abs(out - 2.0 * seed).max())

    def good() -> None:
        np.multiply(given, 2.0, out=out)

    assert replayed_error(good, load, error, [out], recorder) == 0.0
    assert loaded == [1, *[1, 2] * 12]
    assert len(recorder.captured) == 1

    # What is remembered from the capture is wrong for the other seed.
    kept = np.array([2.0, 2.0])
    assert replayed_error(lambda: np.copyto(out, kept), load, error, [out], recorder) == 2.0
    # An element that no replay writes stays NaN; one wrong replay counts.
    half = lambda: np.multiply(given[:1], 2.0, out=out[:1])  # noqa: E731
    assert replayed_error(half, load, error, [out], recorder) == math.inf
    calls = []

    def seldom() -> None:
        calls.append(1)
        np.multiply(given, 2.0 if len(calls) != 20 else 2.5, out=out)

    assert replayed_error(seldom, load, error, [out], recorder) > 0.0


def test_summary() -> None:
    found = replay_summary([4.0, 1.0, 3.0, 2.0], 7, 2)
    assert found.us == 2.5
    assert found.spread == (4.0 - 2.0) / 2.5
    assert replay_summary([5.0], 1, 1).spread == 0.0


def test_host_overhead_counts_calls() -> None:
    calls = []
    waits = []
    assert host_overhead(lambda: calls.append(1), lambda: waits.append(1), count=3) >= 0.0
    assert len(calls) == 75
    assert len(waits) == 50
