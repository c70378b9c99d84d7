"""GPU timing: one protocol for candidates and for all baselines.

A CUDA graph holds N calls over rotating sets of inputs. The sets together have at least three times the size of the L2
cache (at most 64 sets), so that inputs come from device memory as they would in a program; launch gaps of the host do
not count. Inputs are seeded random numbers (kernels run faster on zeros). Outputs are filled with NaN first and must be
finite afterwards. After a warm-up the graph is replayed at least 15 times; the median counts, and the spread is
reported with it.

A process that has launched a few thousand kernels on a stream that is not the default one, or captures its fourth
graph, has longer gaps between its kernels from then on, also in graphs captured before (0.2 to 0.4 us a kernel on an
H100; see benchmarks/launch_state.py). So that nothing gains by being measured first, SETTLING kernels are launched
before the first measurement: times are those of a process that has run for a while.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Final, Protocol

from mirage_formal.support.errors import MirageError

SETS: Final = 64
CACHE_FACTOR: Final = 3
REPLAYS: Final = 15
#: Replays of a graph whose results are compared, for each seed.
GRAPH_REPLAYS: Final = 12
#: Least number of calls in a graph.
CALLS: Final = 8
#: Kernels that a process launches on a GPU before its first measurement there.
SETTLING: Final = 4096

#: Lock that is held while something is timed on a GPU. Programs that time things in several processes set it to a lock
#: of their own, which the same thread can take again.
timing_lock: AbstractContextManager[Any] = threading.RLock()

#: The GPUs on which this process has launched these kernels.
_settled: set[int] = set()

#: Function that computes outputs from one set of inputs; it may return or overwrite them.
Call = Callable[[Sequence[Any]], Any]


class MeasureError(MirageError):
    """Error: a measurement is invalid, because outputs are not written, or the call cannot be captured."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured time of one call, in microseconds.

    Attributes:
        us: Median over the replays.
        low, high: Fastest and slowest replay.
        spread: Interquartile range over the median.
        replays, calls, sets: Number of replays of a graph, of calls in it, and of sets of inputs.
    """

    us: float
    low: float
    high: float
    spread: float
    replays: int
    calls: int
    sets: int

    def fields(self) -> dict[str, float]:
        """Return the fields as a dictionary of plain values."""
        return asdict(self)


class Recorder(Protocol):
    """Interface that captures calls in a CUDA graph and times its replays."""

    def settle(self) -> None:
        """Launch SETTLING kernels on the current GPU, unless this process has done so."""

    def cache_bytes(self) -> int:
        """Return the size of the L2 cache in bytes."""

    def capture(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], None], list[Any]]:
        """Run the calls once and capture them; return a replay function, and the return values of the capture."""

    def time(self, replay: Callable[[], None]) -> float:
        """Return the microseconds of one replay, measured between two CUDA events."""

    def poison(self, value: Any) -> None:
        """Fill a tensor with NaN."""

    def finite(self, value: Any) -> bool:
        """Return whether every element is a finite number."""


def set_count(set_bytes: int, cache_bytes: int) -> int:
    """Return the number of sets of inputs of this size that exceed the cache by ``CACHE_FACTOR``."""
    return max(2, min(SETS, math.ceil(CACHE_FACTOR * cache_bytes / max(1, set_bytes))))


def measure(
    call: Call,
    make_inputs: Callable[[int], Sequence[Any]],
    set_bytes: int,
    recorder: Recorder,
    *,
    outputs: Sequence[Any] | None = None,
    replays: int = REPLAYS,
) -> Measurement:
    """Time a call.

    Args:
        call: Function to time; it must be capturable.
        make_inputs: Function that returns the set of inputs of a seed.
        set_bytes: Bytes of one set.
        recorder: Recorder that captures and times.
        outputs: Tensors that the call writes; None if it returns them.
        replays: Timed replays.

    Raises:
        MeasureError: An output is not written in a replay.
    """
    recorder.settle()
    sets = [make_inputs(seed) for seed in range(set_count(set_bytes, recorder.cache_bytes()))]
    calls = [_bind_inputs(call, sets[i % len(sets)]) for i in range(max(CALLS, len(sets)))]
    replay, returned = recorder.capture(calls)
    results = list(outputs) if outputs is not None else [x for value in returned for x in _flat(value)]
    for value in results:
        recorder.poison(value)
    for _ in range(3):
        recorder.time(replay)
    if not all(recorder.finite(value) for value in results):
        hint = "the call must write all of its outputs every time that the graph is replayed"
        raise MeasureError("expected finite outputs, got poison or infinity", where="measure", hint=hint)
    return replay_summary([recorder.time(replay) / len(calls) for _ in range(replays)], len(calls), len(sets))


def replayed_error(
    call: Callable[[], Any],
    load: Callable[[int], None],
    error: Callable[[int], float],
    outputs: Sequence[Any],
    recorder: Recorder,
    seeds: Sequence[int] = (1, 2),
) -> float:
    """Return the largest error of a graph's replays with changing inputs and NaN in the outputs before each.

    Args:
        call: Function to capture; it reads tensors that ``load`` fills and writes ``outputs``.
        load: Function that fills the inputs with those of a seed.
        error: Function that returns the error of the outputs for a seed; NaN counts as infinite.
        outputs: Tensors that the call writes.
        recorder: Recorder that captures and replays.
        seeds: Seeds of the inputs, in turns; each is replayed GRAPH_REPLAYS times.
    """
    load(seeds[0])
    replay, _ = recorder.capture([call])
    worst = 0.0
    for _ in range(GRAPH_REPLAYS):
        for seed in seeds:
            load(seed)
            for value in outputs:
                recorder.poison(value)
            recorder.time(replay)
            found = error(seed)
            worst = max(worst, math.inf if math.isnan(found) else found)
    return worst


def replay_summary(times: Sequence[float], calls: int, sets: int) -> Measurement:
    """Return the measurement of replays with these microseconds per call."""
    ordered = sorted(times)
    count = len(ordered)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    spread = (ordered[(3 * count) // 4 if count > 1 else 0] - ordered[count // 4]) / median if median else 0.0
    return Measurement(median, ordered[0], ordered[-1], spread, count, calls, sets)


def _launch_settling_kernels(device: int, made: Callable[[], Callable[[int], Any]]) -> None:
    """Launch SETTLING kernels, at the first call for a GPU.

    Args:
        device: The GPU.
        made: Function that makes a tensor there and returns its fill method.
    """
    if device not in _settled:
        fill = made()
        for _ in range(SETTLING):
            fill(1)
        _settled.add(device)


def _bind_inputs(call: Call, inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: call(inputs)


def _flat(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


class CupyRecorder:
    """Recorder that captures with CuPy, for calls that launch on CuPy's current stream."""

    def __init__(self) -> None:
        self._cupy = import_module("cupy")
        self._stream = self._cupy.cuda.Stream(non_blocking=True)

    def settle(self) -> None:
        """Implement ``Recorder.settle``."""
        with self._stream:
            _launch_settling_kernels(
                int(self._cupy.cuda.runtime.getDevice()), lambda: self._cupy.zeros(1, self._cupy.uint16).fill
            )

    def cache_bytes(self) -> int:
        """Implement ``Recorder.cache_bytes``."""
        properties = self._cupy.cuda.runtime.getDeviceProperties(self._cupy.cuda.runtime.getDevice())
        return int(properties["l2CacheSize"])

    def capture(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], None], list[Any]]:
        """Implement ``Recorder.capture``."""
        self._cupy.cuda.Device().synchronize()
        with self._stream:
            for call in calls[:2]:
                call()
            self._stream.synchronize()
            self._stream.begin_capture()
            try:
                returned = [call() for call in calls]
            finally:
                graph = self._stream.end_capture()
        return lambda: graph.launch(stream=self._stream), returned

    def time(self, replay: Callable[[], None]) -> float:
        """Implement ``Recorder.time``."""
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record(self._stream)
        replay()
        end.record(self._stream)
        end.synchronize()
        return 1e3 * float(self._cupy.cuda.get_elapsed_time(start, end))

    def poison(self, value: Any) -> None:
        """Implement ``Recorder.poison``."""
        value.fill(float("nan"))
        self._cupy.cuda.Device().synchronize()

    def finite(self, value: Any) -> bool:
        """Implement ``Recorder.finite``."""
        self._stream.synchronize()
        return bool(self._cupy.isfinite(value).all())


class TorchRecorder:
    """Recorder that captures with torch, for calls on torch tensors."""

    def __init__(self) -> None:
        self._torch = import_module("torch")

    def settle(self) -> None:
        """Implement ``Recorder.settle``."""
        torch = self._torch
        with torch.cuda.stream(torch.cuda.Stream()):  # launches on the default stream settle nothing
            _launch_settling_kernels(torch.cuda.current_device(), lambda: torch.zeros(1, device="cuda").fill_)

    def cache_bytes(self) -> int:
        """Implement ``Recorder.cache_bytes``."""
        return int(self._torch.cuda.get_device_properties(self._torch.cuda.current_device()).L2_cache_size)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], None], list[Any]]:
        """Implement ``Recorder.capture``."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for call in calls[:2]:
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # By itself torch captures on one stream for all of a process, of the GPU that was current when it made it.
        with torch.no_grad(), torch.cuda.graph(graph, stream=side):
            returned = [call() for call in calls]
        return graph.replay, returned

    def time(self, replay: Callable[[], None]) -> float:
        """Implement ``Recorder.time``."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end))

    def poison(self, value: Any) -> None:
        """Implement ``Recorder.poison``."""
        value.fill_(float("nan"))

    def finite(self, value: Any) -> bool:
        """Implement ``Recorder.finite``."""
        return bool(self._torch.isfinite(value).all())


def host_overhead(call: Callable[[], Any], synchronise: Callable[[], None], count: int = 200) -> float:
    """Return the microseconds of host time until a call returns, median of 25 rounds of ``count`` calls."""
    from time import perf_counter

    times = []
    for _ in range(25):
        synchronise()
        start = perf_counter()
        for _ in range(count):
            call()
        times.append(1e6 * (perf_counter() - start) / count)
        synchronise()
    return sorted(times)[len(times) // 2]
