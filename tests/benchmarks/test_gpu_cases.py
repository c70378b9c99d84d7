"""What a child measures, with a clock that counts what is called instead of a GPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_cases, read_only
from benchmarks.gpu_cases import Case
from benchmarks.read_only import Variant
from mirage_formal.device import measure

CLOCK = {"us": 0.0}


def takes(us: float) -> None:
    CLOCK["us"] += us


class Recorder:
    """Replays call what was captured; time is what the calls say they take."""

    def settle(self) -> None:
        """Nothing is launched."""

    def cache_bytes(self) -> int:
        return 1 << 20

    def capture(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], None], list[Any]]:
        def replay() -> None:
            for call in calls:
                call()

        return replay, [call() for call in calls]

    def time(self, replay: Callable[[], None]) -> float:
        begin = CLOCK["us"]
        replay()
        return CLOCK["us"] - begin

    def poison(self, value: Any) -> None:
        """Peers return nothing here."""

    def finite(self, value: Any) -> bool:
        return True


class Tensor:
    """What comparisons of results need of a torch tensor."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, np.float64)
        self.shape = self.values.shape

    def double(self) -> Tensor:
        return self

    def reshape(self, shape: Any) -> Tensor:
        return Tensor(self.values.reshape(shape))

    def __sub__(self, other: Tensor) -> Tensor:
        return Tensor(self.values - other.values)

    def norm(self) -> Tensor:
        return Tensor(np.linalg.norm(self.values))

    def clamp(self, min: float) -> Tensor:
        return Tensor(np.maximum(self.values, min))

    def __truediv__(self, other: Tensor) -> Tensor:
        return Tensor(self.values / other.values)

    def __float__(self) -> float:
        return float(self.values)


class Ours:
    """A candidate of 1024 bytes that takes 10 us."""

    size = 1024

    def __init__(self, case: Case, directory: Path) -> None:
        assert directory == Path("k")
        self.case = case

    def measure(self) -> Any:
        return measure.measure(lambda x: takes(10.0), self.case.draw, self.size, Recorder())

    def replays_error(self) -> float:
        return 5e-4


class Reader:
    """Two plain variants and a bulk one; the slower plain one comes first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.variants = [Variant("read_plain", 1, 256), Variant("read_plain", 2, 256), Variant("read_bulk", 1, 32, 3)]

    def inputs(self, seed: int) -> list[Any]:
        return [seed]

    def call(self, variant: Variant) -> Callable[[Sequence[Any]], None]:
        return lambda inputs: takes(3.0 if variant.stages else 8.0 / variant.blocks)

    def verified(self) -> list[Variant]:
        return self.variants


def test_a_row_measures_each_peer_with_its_own_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TorchRecorder", Recorder)
    monkeypatch.setattr(gpu_cases, "cuda_call", Ours)
    monkeypatch.setattr(read_only, "Reader", Reader)
    prepared: list[tuple[str, Any]] = []

    def peer(name: str, us: float) -> Any:
        def prepare(given: Any) -> Any:
            prepared.append((name, given))
            return [(name, value) for value in given]

        def call(x: Any) -> Any:
            assert x[0] == name
            if us < 0:
                raise RuntimeError("cannot be captured")
            takes(us)
            return [Tensor([1.0, 2.0])]

        return SimpleNamespace(name=name, prepare=prepare, call=call)

    peers = [peer("eager", 30.0), peer("compile", 20.0), peer("autotune", 15.0), peer("flash", -1.0)]
    case = Case(lambda seed: [seed], lambda given: [Tensor([1.0, 2.0])], peers)
    job = {"kernels": "k", "peers": ["eager", "compile", "flash"], "rounds": 3}
    found = gpu_cases.row(case, job)
    us = {name: one["us"] for name, one in found["cells"].items()}
    assert us == pytest.approx({"ours": 10.0, "eager": 30.0, "compile": 20.0, "read_plain": 4.0, "read_bulk": 3.0})
    assert all(len(one["runs"]) == 3 for one in found["cells"].values())
    assert found["notes"]["flash"] == {"error": "RuntimeError: cannot be captured"}
    assert found["notes"]["read_plain"] == {"variant": "read_plain, 2 blocks of 256"}
    assert found["notes"]["eager"]["error_norm"] == 0.0
    assert found["replays_error"] == 5e-4
    assert len(found["read_only_tried"]) == 3
    assert not any(name == "autotune" for name, _ in prepared)
    assert "read_plain" not in gpu_cases.row(case, {**job, "read_only": False})["cells"]


def test_a_reader_that_fails_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(size: int) -> Any:
        raise ValueError("expected the fold 0x1, got 0x2")

    monkeypatch.setattr(measure, "TorchRecorder", Recorder)
    monkeypatch.setattr(gpu_cases, "cuda_call", Ours)
    monkeypatch.setattr(read_only, "Reader", failing)
    found = gpu_cases.row(Case(lambda seed: [seed], lambda given: [], []), {"kernels": "k", "peers": []})
    assert list(found["cells"]) == ["ours"]
    assert "0x2" in found["notes"]["read_only"]["error"]


def test_errors_are_norms_over_norms_and_nan_is_kept() -> None:
    want = [Tensor([[3.0, 4.0]]), Tensor([0.0])]
    assert gpu_cases._apart([Tensor([3.0, 4.0]), Tensor([0.0])], want) == 0.0
    assert gpu_cases._apart([Tensor([3.0, 4.5]), Tensor([0.0])], want) == pytest.approx(0.1)
    assert math.isnan(gpu_cases._apart([Tensor([math.nan, 4.0]), Tensor([0.0])], want))
    assert math.isnan(gpu_cases._apart([Tensor([9.0, 9.0]), Tensor([math.nan])], want))
    with pytest.raises(ValueError, match="zip"):
        gpu_cases._apart([Tensor([3.0, 4.0])], want)


def test_a_job_is_answered_by_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    fake = SimpleNamespace(
        set_grad_enabled=lambda on: None, cuda=SimpleNamespace(empty_cache=lambda: emptied.append(1))
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    case = Case(lambda seed: [], lambda given: [], [])
    monkeypatch.setattr(gpu_cases, "bandwidth", lambda: {"gbs": 1.0})
    monkeypatch.setattr(gpu_cases, "numerics", lambda place: {"of": str(place)})
    monkeypatch.setattr(gpu_cases, "row", lambda given, job: {"row": given is case})
    assert gpu_cases.answer(lambda job: case, {"do": "bandwidth"}) == {"gbs": 1.0}
    assert gpu_cases.answer(lambda job: case, {"do": "numerics", "kernels": "k"}) == {"of": "k"}
    assert gpu_cases.answer(lambda job: case, {"do": "row"}) == {"row": True}
    with pytest.raises(KeyError):
        gpu_cases.answer(lambda job: case, {"do": "nothing"})
    assert len(emptied) == 4
