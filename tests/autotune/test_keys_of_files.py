"""Files of a tuning directory hold their own key: one in the place of another counts as none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mirage_formal.autotune.child import GpuMachine
from mirage_formal.autotune.plans import MeasuredTime, PreparedKernel, TuningDirectory
from mirage_formal.autotune.triton.cache import TritonResult, TritonResultCache
from mirage_formal.autotune.triton.files import TritonText
from mirage_formal.codegen.triton.options import LaunchOptions
from mirage_formal.records import TuningRecord

KEYS = ("a" * 64, "b" * 64)


def exchange(first: Path, second: Path) -> None:
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])


def test_kernels(tmp_path: Path) -> None:
    place = TuningDirectory(tmp_path)
    made = [PreparedKernel("", files={"kernel.cu": key.encode()}) for key in KEYS]
    for key, one in zip(KEYS, made, strict=True):
        place.keep_kernel(key, one)
    assert [place.prepared(key) for key in KEYS] == made
    exchange(*(tmp_path / "kernels" / key for key in KEYS))
    assert [place.prepared(key) for key in KEYS] == [None, None]
    place.keep_kernel(KEYS[0], made[0])
    assert place.prepared(KEYS[0]) == made[0]


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
    place = TuningDirectory(tmp_path)
    chosen = [
        TuningRecord(candidates=n, kernels=1, refused=0, timed=1, model_rank=1, schedule_ranks=(), composed_us=1.0)
        for n in (1, 2)
    ]
    for key, one in zip(KEYS, chosen, strict=True):
        place.keep_final(key, one)
    assert [place.final(key) for key in KEYS] == chosen
    exchange(*(tmp_path / "finals" / f"{key}.json" for key in KEYS))
    assert [place.final(key) for key in KEYS] == [None, None]


def test_what_a_gpu_said_of_triton_files(tmp_path: Path) -> None:
    kept = [
        TritonResultCache(TuningDirectory(tmp_path), run, GpuMachine("Test", "sm_90a", 13000)) for run in ("one", "two")
    ]
    file = TritonText(tmp_path, LaunchOptions(4), "text", "0" * 64, "1" * 64)
    for us, one in enumerate(kept, 1):
        one.put(file, TritonResult(us=float(us)))
    assert [one.get(file).us for one in kept] == [1.0, 2.0]
    exchange(*sorted((tmp_path / "triton").glob("*.json")))
    assert [one.get(file) for one in kept] == [TritonResult(), TritonResult()]
