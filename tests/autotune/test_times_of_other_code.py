"""Kept times and other code: a time counts for a kernel that is written as it was, and for no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mirage_formal.autotune import timing_cache
from mirage_formal.autotune.plans import KernelOrigin, MeasuredTime, TuningDirectory, is_time_valid
from mirage_formal.autotune.timing import FIRST
from mirage_formal.autotune.tune import NoTimesError
from mirage_formal.autotune.tuning_result import TuningLimits, TuningResult
from mirage_formal.device import compile as compiler
from mirage_formal.kernel_build import code_digest
from mirage_formal.run import settings
from tests.autotune.fake_tuning import KERNELS, Table, answers, last_is_best, plan_in, tuned
from tests.kit.runs import small_runs

OTHER = "1" * 64
LIMITS = TuningLimits(KERNELS, 1)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, TuningResult]:
    """A run, a tuning directory in which a GPU has timed its kernels, and what it found."""
    root = tmp_path_factory.mktemp("known")
    small_runs.make(root / "run", kernels=0)
    found = tuned(root / "run", TuningDirectory(root / "place"), Table(last_is_best), LIMITS)
    return root / "run", root / "place", found


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our code is another version, which makes the same kernels."""
    monkeypatch.setattr(settings, "kernel_code", lambda: OTHER)
    timing_cache.kernel_code_digest.cache_clear()
    yield
    timing_cache.kernel_code_digest.cache_clear()


def changed(place: TuningDirectory, change: Callable[[MeasuredTime], MeasuredTime]) -> None:
    """Change every line of the times."""
    lines = [change(one) for one in place.times("Test").values()]
    place.times_path("Test").unlink()
    place.keep_times("Test", lines)


def times_alone(timed: tuple[Path, Path, TuningResult], tmp_path: Path) -> TuningDirectory:
    """A tuning directory that has nothing but the times."""
    place = TuningDirectory(tmp_path / "there")
    shutil.copy(TuningDirectory(timed[1]).times_path("Test"), place.times_path("Test"))
    return place


def asked(device: Table, place: TuningDirectory, replays: int | None = None) -> set[str]:
    """The kernels that a GPU was asked to time, with so many replays if it is said, by key."""
    plan = plan_in(place.root)
    wanted = (job for job in device.jobs if not job.directory and replays in (None, job.replays))
    return {plan.key((job.piece, job.variant)) for job in wanted}


def victim(place: TuningDirectory) -> str:
    """A kernel that was made and timed."""
    return next(key for key in sorted(place.times("Test")) if place.kernels.get(key) is not None)


@pytest.mark.usefixtures("other_code")
def test_what_other_code_makes_alike_is_not_timed_again(timed: tuple[Path, Path, TuningResult], tmp_path: Path) -> None:
    run, place, found = timed
    shutil.copytree(place, tmp_path / "place")
    device, again = Table(last_is_best), TuningDirectory(tmp_path / "place")
    before = victim(again)
    assert answers(tuned(run, again, device, LIMITS))[0][:2] == answers(found)[0][:2]
    assert not asked(device, again), "every text is what was timed"
    made = again.kernels.get(before)
    assert made is not None
    assert made.origin.code == OTHER, "it is made, and proved safe, by the code that is here"


@pytest.mark.usefixtures("other_code")
def test_a_kernel_that_other_code_makes_differently_is_timed_again(
    timed: tuple[Path, Path, TuningResult], tmp_path: Path
) -> None:
    shutil.copytree(timed[1], tmp_path / "place")
    device, place = Table(last_is_best), TuningDirectory(tmp_path / "place")
    key = victim(place)
    changed(place, lambda one: msgspec.structs.replace(one, text="2" * 64) if one.key == key else one)
    tuned(timed[0], place, device, LIMITS)
    assert asked(device, place) == {key}
    assert place.times("Test")[key].code == OTHER


def test_what_was_timed_before_the_process_had_settled_is_timed_again(
    timed: tuple[Path, Path, TuningResult], tmp_path: Path
) -> None:
    """Times of earlier versions; where there is no GPU they count, for there is nothing else."""
    shutil.copytree(timed[1], tmp_path / "place")
    device, place = Table(last_is_best), TuningDirectory(tmp_path / "place")
    key = victim(place)
    kernels = {one for one, time in place.times("Test").items() if time.settled and place.kernels.get(one) is not None}
    assert {key} < kernels
    changed(place, lambda one: msgspec.structs.replace(one, settled=False))
    tuned(timed[0], place, device, LIMITS)
    assert asked(device, place) == kernels
    assert all(place.times("Test")[one].settled for one in kernels)
    changed(place, lambda one: msgspec.structs.replace(one, settled=one.key == key))
    device = Table(last_is_best)
    tuned(timed[0], place, device, LIMITS)
    first = asked(device, place, FIRST)
    assert first
    assert key not in first, "it has a time; it may be among those of the best that are timed for longer"
    found = answers(tuned(timed[0], place, "Test", LIMITS))
    changed(place, lambda one: msgspec.structs.replace(one, settled=False))
    assert answers(tuned(timed[0], place, "Test", LIMITS)) == found


def test_the_same_code_makes_the_same_kernels(timed: tuple[Path, Path, TuningResult], tmp_path: Path) -> None:
    """Of what it has timed, nothing is written again to be compared."""
    place = times_alone(timed, tmp_path)
    changed(place, lambda one: msgspec.structs.replace(one, text="2" * 64))
    assert answers(tuned(timed[0], place, "Test", LIMITS)) == answers(timed[2])


@pytest.mark.usefixtures("other_code")
def test_times_alone_choose_the_same_with_other_code(timed: tuple[Path, Path, TuningResult], tmp_path: Path) -> None:
    """Without a GPU each kernel, and each whole candidate, is written once more to see whether it is the same."""
    place = times_alone(timed, tmp_path)
    found = tuned(timed[0], place, "Test", LIMITS)
    assert answers(found) == answers(timed[2])
    assert found.timed == timed[2].timed
    assert not place.kernels.entries(), "none was made"


@pytest.mark.usefixtures("other_code")
def test_times_alone_of_other_kernels_choose_nothing(timed: tuple[Path, Path, TuningResult], tmp_path: Path) -> None:
    place = times_alone(timed, tmp_path)
    plan = plan_in(timed[1])
    kernels = {variant.key for piece in plan.pieces for variant in piece.variants}
    changed(place, lambda one: msgspec.structs.replace(one, text="2" * 64) if one.key not in kernels else one)
    found = tuned(timed[0], place, "Test", LIMITS)
    assert found.rows
    assert {row.us for row in found.rows} == {None}, "wholes were others, their kernels were not"
    changed(place, lambda one: msgspec.structs.replace(one, text="2" * 64))
    with pytest.raises(NoTimesError, match="the times are of other kernels"):
        tuned(timed[0], place, "Test", LIMITS)


def test_times_that_do_not_say_of_what_never_count(timed: tuple[Path, Path, TuningResult], tmp_path: Path) -> None:
    """So they were kept before texts were: not even a kernel without an origin has them."""
    place = times_alone(timed, tmp_path)
    changed(place, lambda one: msgspec.structs.replace(one, text="", code=""))
    with pytest.raises(NoTimesError, match="the times are of other kernels"):
        tuned(timed[0], place, "Test", LIMITS)
    assert not is_time_valid(next(iter(place.times("Test").values())), KernelOrigin())


def test_the_text_is_that_of_what_is_built(
    timed: tuple[Path, Path, TuningResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written alone, kernels have the digest that they are built with; another schedule or header has another."""
    place, plan = TuningDirectory(timed[1]), plan_in(timed[1])
    target = "h100"
    found = {}
    for piece in plan.pieces:
        for one in piece.variants:
            if (made := place.kernels.get(one.key)) is not None and made.launch is not None:
                ask = timing_cache.KernelRequest(bytes(piece.graph), piece.position, one.schedule, target)
                found[one.key] = timing_cache.kernel_text_digest(ask)
                sources = [text.decode() for name, text in made.files.items() if name.endswith(".cu")]
                assert found[one.key] == made.origin.text == code_digest.digest_of_text([made.launch], sources)
    assert len(found) > KERNELS // 2
    assert len(set(found.values())) > 1
    monkeypatch.setattr(compiler, "device_headers", lambda _sources: {"mirage_formal/device.cuh": "// another\n"})
    assert timing_cache.kernel_text_digest(ask) not in found.values()
