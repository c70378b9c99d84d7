"""Files of a tuning directory hold their own key: one in the place of another counts as none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.autotune.plans import MeasuredTime, PreparedKernel, TritonResult, TuningDirectory, TuningPlan
from mirage_formal.autotune.timing_subprocess import GpuMachine
from mirage_formal.autotune.triton.compare_backends import result_key
from mirage_formal.autotune.triton.launch_variants import TritonText
from mirage_formal.cache.cache_directory import Cache, CacheWarning
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.records import TuningRecord

KEYS = ("a" * 64, "b" * 64)


def exchange(first: Path, second: Path) -> None:
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])


def exchange_entries(cache: Cache[Any, Any], first: object, second: object) -> None:
    """Exchange the entries of two keys; both are refused, once, and count as none then."""
    exchange(*(cache.path(key) / "entry.json" for key in (first, second)))
    for key in (first, second):
        with pytest.warns(CacheWarning, match="expected an answer to what is asked, got another key"):
            assert cache.get(key) is None
        assert cache.get(key) is None


def test_kernels(tmp_path: Path) -> None:
    kernels = TuningDirectory(tmp_path).kernels
    made = [PreparedKernel("", files={"kernel.cu": key.encode()}) for key in KEYS]
    for key, one in zip(KEYS, made, strict=True):
        kernels.put(key, one)
    assert [kernels.get(key) for key in KEYS] == made
    exchange_entries(kernels, *KEYS)
    kernels.put(KEYS[0], made[0])
    assert kernels.get(KEYS[0]) == made[0]


def test_plans(tmp_path: Path) -> None:
    """Two plans of one architecture, which their files alone would not tell apart."""
    plans = TuningDirectory(tmp_path).plans
    keys = [(run, "sm_90a") for run in KEYS]
    for run, arch in keys:
        plans.put((run, arch), TuningPlan(run, arch, (), ()))
    assert plans.get(keys[1]) == TuningPlan(*keys[1], (), ())
    exchange_entries(plans, *keys)


def test_times(tmp_path: Path) -> None:
    place = TuningDirectory(tmp_path)
    times = [
        MeasuredTime(key, us, us, 15, 13000, text=key, compiler="13.0", settled=True)
        for key, us in zip(KEYS, (1.0, 2.0), strict=True)
    ]
    place.keep_times("GPU One", times[:1])
    place.keep_times("GPU Two", times[1:])
    place.keep_times("GPU One", times[1:])
    assert place.times("GPU One") == dict(zip(KEYS, times, strict=True))
    assert place.times("GPU Two", 13000, "13.0") == {KEYS[1]: times[1]}
    paths = [place.times_path(name) for name in ("GPU One", "GPU Two")]
    exchange(*paths)
    assert [place.times(name) for name in ("GPU One", "GPU Two")] == [{}, {}]
    # Both, one behind the other, are those of each.
    paths[0].write_bytes(paths[0].read_bytes() + paths[1].read_bytes())
    assert place.times("GPU One") == dict(zip(KEYS, times, strict=True))
    # Times without a line that says whose they are count for no GPU.
    paths[0].write_bytes(msgspec.json.encode(times[0]) + b"\n")
    assert place.times("GPU One") == {}


def test_what_was_chosen(tmp_path: Path) -> None:
    choices = TuningDirectory(tmp_path).choices
    chosen = [
        TuningRecord(candidates=n, kernels=1, refused=0, timed=1, model_rank=1, schedule_ranks=(), composed_us=1.0)
        for n in (1, 2)
    ]
    for key, one in zip(KEYS, chosen, strict=True):
        choices.put(key, one)
    assert [choices.get(key) for key in KEYS] == chosen
    exchange_entries(choices, *KEYS)


def test_what_a_gpu_said_of_triton_files(tmp_path: Path) -> None:
    results = TuningDirectory(tmp_path).triton
    file = TritonText(tmp_path, LaunchOptions(4), "text", "0" * 64, "1" * 64)
    keys = [result_key(file, run, GpuMachine("Test", "sm_90a", 13000)) for run in ("one", "two")]
    for us, key in enumerate(keys, 1):
        results.put(key, TritonResult(us=float(us)))
    assert [results.get(key) for key in keys] == [TritonResult(us=1.0), TritonResult(us=2.0)]
    exchange_entries(results, *keys)
