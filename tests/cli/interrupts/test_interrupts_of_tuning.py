"""Ctrl-C and SIGTERM in each phase of ``tune``, ``gpu tune``, ``gpu run`` and ``run``, on a GPU that is a process."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest

from mirage_formal import gpu
from mirage_formal.autotune import timing
from mirage_formal.autotune.timing import TimingProcess
from mirage_formal.cache.lock import lock_directory
from mirage_formal.cli.graphs import arrays
from mirage_formal.device import cupy_runner, runtime
from mirage_formal.records.answer import ProgressEvent
from mirage_formal.run.progress.progress_display import JsonLines
from tests.kit.processes import Command
from tests.kit.runs import small_runs
from tests.kit.sampling import THOROUGH

#: A kernel takes longer the later its schedule comes, and a candidate is within its tolerance.
_SCRIPT: Final = """
import json, sys
print(json.dumps({"device": "Test", "arch": "sm_80", "driver": 1}), flush=True)
for line in sys.stdin:
    job = json.loads(line)["job"]
    us = 5.0 + max(job["variant"], 0)
    print(json.dumps({"us": us, "low": us, "answer": "within"}), flush=True)
"""


class FakeGpu(TimingProcess):
    """To be put in the place of ``TimingProcess``.

    Attributes:
        made: All of them, so that a test sees whether their processes have ended.
    """

    made: ClassVar[list[FakeGpu]] = []

    def __init__(self) -> None:
        super().__init__((sys.executable, "-I", "-S", "-c", _SCRIPT))
        self.made.append(self)


TUNE = "tune run --place place --kernels 2 --finalists 1 --arch sm_80 --workers 1"
GPU_TUNE = "tools gpu tune run --place place"
#: Commands, the phases that each of them shows, and how many of the first ones need an empty place.
PHASES: dict[str, tuple[tuple[str, ...], int]] = {
    TUNE: (
        (
            "candidates described",
            "kernels made",
            "kernels timed",
            "timed again",
            "candidates built",
            "candidates measured",
        ),
        2,
    ),
    GPU_TUNE: (("timed", "again", "measured"), 0),
}
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a tuning directory whose kernels are made and not timed."""
    from mirage_formal.autotune.kernel_preparation import PRELOAD
    from mirage_formal.autotune.plans import TuningDirectory
    from mirage_formal.autotune.tune import tune_run
    from mirage_formal.autotune.tuning_result import TuningLimits, TuningResources
    from mirage_formal.workers.pool import Pool

    root = tmp_path_factory.mktemp("stopped")
    small_runs.make(root / "run", kernels=1, keep=1)
    with Pool(1, PRELOAD) as pool:
        tune_run(
            root / "run",
            TuningResources(
                TuningDirectory(root / "place"), None, pool, lambda *said: None, "sm_80", TuningLimits(2, 1)
            ),
        )
    return root


@pytest.fixture
def mirage(tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tuned / "run", "run")
    monkeypatch.setattr(timing, "TimingProcess", FakeGpu)
    monkeypatch.setattr(FakeGpu, "made", [])
    return Command(monkeypatch, capsys)


def once(number: signal.Signals) -> Callable[[], None]:
    """Sends a signal when it is first called."""
    left = [number]
    return lambda: signal.raise_signal(left.pop()) if left else None


def in_order(ended: Any, number: signal.Signals) -> None:
    """A command that was stopped has said little, and neither processes nor halves of files nor locks are left."""
    assert ended.code == 128 + number, ended
    assert len(ended.err.splitlines()) <= 20
    assert list(Path().rglob("*.tmp")) == []
    with lock_directory(Path("run")):  # nobody holds it any more
        pass
    assert all(one._process is None for one in FakeGpu.made)


CASES = [
    pytest.param(line, at, number, id=f"{line.partition(' run')[0]}-{phase}-{number.name}")
    for line, (phases, _) in PHASES.items()
    for at, phase in enumerate(phases)
    for number in (NUMBERS if THOROUGH else NUMBERS[at % 2 :][:1])  # by turns
]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("line", "at", "number"), CASES)
def test_a_signal_in_a_phase(
    line: str, at: int, number: signal.Signals, tuned: Path, mirage: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "device_count", lambda: 1)
    phases, from_nothing = PHASES[line]
    if at >= from_nothing:
        shutil.copytree(tuned / "place", "place")
    seen: list[str] = []
    press = once(number)

    def show(self: Any, event: ProgressEvent) -> None:
        seen.append(event.phase)
        if event.phase == phases[at]:
            press()

    monkeypatch.setattr(JsonLines, "show", show)
    in_order(mirage(*line.split(), "--progress", "json"), number)
    assert seen[-1] == phases[at]
    if at < from_nothing and number is not NUMBERS[0]:  # every kernel is made anew, which takes long
        return
    again = mirage(*line.split(), "--progress", "json")  # the same command goes on
    assert again.code == 0, again
    assert seen[-1] == phases[-1]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("step", ["read_arrays", "compute_outputs", "write_arrays"])
def test_a_signal_while_a_graph_is_computed(
    step: str, number: signal.Signals, mirage: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, while and after: nothing is written, or all of it."""
    press, done = once(number), getattr(arrays, step)

    def stopped(*given: Any) -> Any:
        found = done(*given)
        press()
        return found

    monkeypatch.setattr(arrays, step, stopped)
    line = "run run --on reference --out outputs.npz"
    in_order(mirage(*line.split()), number)
    assert Path("outputs.npz").exists() == (step == "write_arrays")
    assert mirage(*line.split()).code == 0
    with np.load("outputs.npz") as found:
        assert found.files == ["output0"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("step", ["DeviceRuns", "record_numerics", "record_time"])
def test_a_signal_while_kernels_run(
    step: str, number: signal.Signals, mirage: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device has said stays what it was: an interrupt is not taken for a kernel that fails."""
    press = once(number)

    def quiet(*given: Any, **options: Any) -> Any:
        return None

    def stopped(*given: Any, **options: Any) -> Any:
        press()
        raise RuntimeError("a kernel that fails")

    monkeypatch.setattr(gpu, "device_count", lambda: 1)
    monkeypatch.setattr(gpu, "current_device", lambda: None)
    monkeypatch.setattr(gpu, "arch_of", lambda device: "sm_90")
    monkeypatch.setattr(cupy_runner, "DeviceRuns", quiet)
    monkeypatch.setattr(gpu, "record_numerics", lambda *given: records()["numerics.json"])
    monkeypatch.setattr(cupy_runner if step == "DeviceRuns" else gpu, step, stopped)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    line = "tools gpu run run --numerics --measure"
    in_order(mirage(*line.split()), number)
    assert {path: path.read_bytes() for path in before} == before
    again = mirage(*line.split())
    assert again.code == 1
    assert "a kernel that fails" in again.out


def records() -> dict[str, Any]:
    """What a device has said of the run's kernels."""
    from mirage_formal.records import NumericsRecord, decode

    (path,) = Path("run").rglob("numerics.json")
    return {path.name: decode(path.read_bytes(), NumericsRecord, path.name)}
