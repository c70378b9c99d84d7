"""Run as the process that has the GPU, where there is none: Triton files are interpreted, times are made up.

What runs is ``mirage_formal.autotune.timing_subprocess`` with torch and Triton as they are; NumPy stands for CuPy. A
Triton file takes 4 us and CUDA kernels take 9: the results of Triton files are really computed and compared, those of
CUDA kernels are taken for right.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

TRITON_US: Final = 4.0
CUDA_US: Final = 9.0


class Recorder:
    """Calls instead of captures; a replay calls once after each poison."""

    def __init__(self) -> None:
        self._poisoned = False

    def settle(self) -> None:
        """Nothing is launched."""

    def cache_bytes(self) -> int:
        return 0

    def capture(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], None], list[Any]]:
        returned = [call() for call in calls]

        def replay() -> None:
            if self._poisoned:
                for call, value in zip(calls, returned, strict=True):
                    value.copy_(call())
            self._poisoned = False

        self._calls = len(calls)
        return replay, returned

    def time(self, replay: Callable[[], None]) -> float:
        replay()
        return TRITON_US * self._calls

    def poison(self, value: Any) -> None:
        self._poisoned = True
        value.fill_(float("nan"))

    def finite(self, value: Any) -> bool:
        return bool(value.isfinite().all())


def main() -> int:
    """The process's main function, with what a GPU has replaced."""
    warnings.simplefilter("ignore")  # padded rows overflow
    stand_in: Any = np
    stand_in.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    stand_in.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(synchronize=lambda: None))
    sys.modules["cupy"] = stand_in
    os.environ["TRITON_INTERPRET"] = "1"
    from mirage_formal.autotune import timing_subprocess
    from mirage_formal.device import cupy_runner, measure, runtime

    measure.TorchRecorder = Recorder  # type: ignore[assignment, misc]
    runtime.device_name = lambda: "Interpreter"
    cupy_runner.DeviceRuns = lambda executable: SimpleNamespace(  # type: ignore[assignment, misc]
        measure=lambda replays, inputs: SimpleNamespace(us=CUDA_US)
    )
    machine = timing_subprocess.GpuMachine("Interpreter", "sm_90a", 1, "torch and Triton, interpreted")
    timing_subprocess.describe_machine = lambda: machine
    timing_subprocess.compare_and_time = judged
    timing_subprocess._PlanKernels = Kernels  # type: ignore[assignment, misc]
    return timing_subprocess.main()


def judged(directory: Path, tuning: Any) -> Any:
    from mirage_formal.autotune.timing_subprocess import TimingAnswer
    from tests.kit.runs.small_runs import on_device

    on_device(directory)
    return TimingAnswer(CUDA_US, CUDA_US, answer="within")


class Kernels:
    """Every kernel takes a microsecond."""

    def __init__(self, plan: Any, place: Any) -> None:
        pass

    def time(self, job: Any) -> Any:
        from mirage_formal.autotune.timing_subprocess import TimingAnswer

        return TimingAnswer(1.0, 1.0)


if __name__ == "__main__":
    sys.exit(main())
