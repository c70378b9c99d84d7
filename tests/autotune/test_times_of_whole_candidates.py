"""Times of whole candidates: what they decide on a GPU, they decide without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.autotune import finalists
from mirage_formal.autotune.plans import TuningDirectory
from mirage_formal.autotune.tuning_result import TuningLimits
from mirage_formal.autotune.tuning_space import ComposedCandidate, whole_key
from mirage_formal.device.sealed_records import manifest_digest
from mirage_formal.kernel_build.save import move_built
from mirage_formal.records import MeasureRecord, PlanRecord
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.support.errors import MirageError
from tests.autotune.fake_tuning import KERNELS, Table, answers, last_is_best, plan_in, shorter, tuned
from tests.kit.runs import small_runs


def flags(directory: Path) -> tuple[bool, ...]:
    """Of each kernel of a candidate, whether it is early."""
    plans = msgspec.json.decode((directory / "plan.json").read_bytes(), type=PlanRecord)
    return tuple(one.early for one in plans.kernels)


#: These tests ask which launches of a candidate are early, not which schedule a kernel has.
FEW = TuningLimits(KERNELS, 2)


class Wholes(Table):
    """A GPU whose times of whole candidates a function of their early kernels gives."""

    def __init__(self, us: Callable[[tuple[bool, ...]], float]) -> None:
        super().__init__(last_is_best)
        self.asked: list[tuple[str, tuple[bool, ...]]] = []
        self._us = us

    def whole(self, directory: Path) -> float:
        self.asked.append((directory.name, flags(directory)))
        return self._us(self.asked[-1][1])


def early_ones(early: tuple[bool, ...]) -> float:
    """More kernels are faster, and so are early ones, most so if the first is none of them."""
    return 9.0 - len(early) - (0.0 if not any(early) else 0.5 if early[0] else 0.7)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wholes") / "run"
    small_runs.make(root, kernels=0)
    return root


@pytest.fixture(scope="module")
def made(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning directory of the run, with its first kernels: there is at least one for each place in a candidate."""
    place = tmp_path_factory.mktemp("wholes") / "place"
    assert tuned(run, TuningDirectory(place), None, FEW).left
    return place


@pytest.mark.slow
def test_times_of_wholes_choose_the_same_elsewhere(run: Path, made: Path, tmp_path: Path) -> None:
    """Without the GPU the same finalists come first, with the same kernels early, from the file of times alone."""
    for name in ("here", "there", "without"):
        shutil.copytree(run, tmp_path / name)
    shutil.copytree(made, tmp_path / "place-here")
    here, there, without = (TuningDirectory(tmp_path / f"place-{name}") for name in ("here", "there", "without"))
    found = tuned(tmp_path / "here", here, Wholes(early_ones), FEW)
    best = found.rows[0].name
    assert any(flags(tmp_path / "here" / "kernels" / best))
    shutil.copy(here.times_path("Test"), there.times_path("Test"))
    again = tuned(tmp_path / "there", there, "Test", FEW)
    assert again.left
    assert answers(again) == answers(found)
    assert list(again.built) == list(found.built)
    for name in found.built:
        first, second = (tmp_path / at / "kernels" / name for at in ("here", "there"))
        files = [path.name for path in first.iterdir() if path.suffix == ".cu"]
        for file in ("plan.json", "launch.json", *files):
            assert (first / file).read_bytes() == (second / file).read_bytes()
    derive_kernels(tmp_path / "there" / "kernels" / best, recompile=False)
    keys = {variant.key.encode() for piece in plan_in(here.root).pieces for variant in piece.variants}
    whose, *lines = here.times_path("Test").read_bytes().splitlines(keepends=True)
    kernels = [line for line in lines if any(key in line for key in keys)]
    assert len(kernels) < len(lines)
    without.times_path("Test").write_bytes(b"".join([whose, *kernels]))
    alone = tuned(tmp_path / "without", without, "Test", FEW)
    assert {row.us for row in alone.rows} == {None}, "no whole is known"
    assert not any(any(flags(tmp_path / "without" / "kernels" / name)) for name in alone.built)


@pytest.mark.slow
@pytest.mark.parametrize("more_exact", [False, True])
def test_what_rounds_less_overlaps_as_well(
    run: Path, made: Path, tmp_path: Path, more_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest of all and the fastest that moves factors; no other one."""
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(made, tmp_path / "place")
    names = [one.name for one in plan_in(made).candidates]
    before = Wholes(early_ones)
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    shutil.copytree(tmp_path / "place", tmp_path / "place-before")
    first, *rest = tuned(
        tmp_path / "before", TuningDirectory(tmp_path / "place-before"), before, TuningLimits(2 * KERNELS, 8)
    ).rows
    second = next(row for row in rest if len(flags(tmp_path / "before" / "kernels" / row.name)) > 1)
    assert first.name in names
    monkeypatch.setattr(finalists, "moves_factors", lambda one: more_exact and one.name == second.name)
    found = tuned(
        tmp_path / "run", TuningDirectory(tmp_path / "place"), Wholes(early_ones), TuningLimits(2 * KERNELS, 8)
    )
    early = {row.name for row in found.rows if any(flags(tmp_path / "run" / "kernels" / row.name))}
    assert early == ({first.name, second.name} if more_exact else {first.name})


class Roomy(Table):
    """A GPU on which schedules are the faster alone the likelier they are, and two launches if the first has room."""

    def __init__(self) -> None:
        super().__init__(lambda plan, job: 10.0 + 0.01 * job.variant)

    def whole(self, directory: Path) -> float:
        kernels = msgspec.json.decode((directory / "plan.json").read_bytes(), type=PlanRecord).kernels
        two, loop = len(kernels) == 2, kernels[0].loop
        room = two and loop is not None and loop.stages == 1 and kernels[0].early
        return 9.0 - 3.0 * two - room


@pytest.mark.slow
def test_kernels_leave_room_for_the_next_where_the_whole_is_faster_so(run: Path, made: Path, tmp_path: Path) -> None:
    """A shallower pipeline than is best alone, beside an early launch; elsewhere the same, from the times alone.

    With only the candidate whose first kernel has schedules of several depths, beside the operators one by one, few
    kernels are needed until there is a shallow one.
    """
    for name in ("here", "there"):
        shutil.copytree(run, tmp_path / name)
        shutil.copytree(made, tmp_path / f"place-{name}")
        plan = plan_in(made)
        deep = next(one for one in plan.candidates if len(one.pieces) == 2 and not one.form)
        shorter(TuningDirectory(tmp_path / f"place-{name}"), lambda one: one == deep or one.unfused)  # noqa: B023
    here, there = (TuningDirectory(tmp_path / f"place-{name}") for name in ("here", "there"))
    found = tuned(tmp_path / "here", here, Roomy(), TuningLimits(40, 8))
    best = found.rows[0]
    assert best.us == 5.0
    kernels = tmp_path / "here" / "kernels" / best.name
    first = msgspec.json.decode((kernels / "plan.json").read_bytes(), type=PlanRecord).kernels[0]
    assert first.loop is not None
    assert (first.loop.stages, first.early) == (1, True)
    shutil.copy(here.times_path("Test"), there.times_path("Test"))
    again = tuned(tmp_path / "there", there, "Test", TuningLimits(40, 8))
    assert answers(again) == answers(found)
    other = tmp_path / "there" / "kernels" / best.name
    assert (other / "plan.json").read_bytes() == (kernels / "plan.json").read_bytes()


class Beside(Roomy):
    """A GPU on which two launches are the faster the fewer threads the first one has, whatever it takes alone."""

    def whole(self, directory: Path) -> float:
        kernels = msgspec.json.decode((directory / "plan.json").read_bytes(), type=PlanRecord).kernels
        return 9.0 - 3.0 * (len(kernels) == 2) + 0.001 * kernels[0].threads


@pytest.mark.slow
def test_other_threads_where_the_whole_is_faster_so(run: Path, made: Path, tmp_path: Path) -> None:
    """Schedules that are slower alone, one kernel after the other; elsewhere the same, from the times alone."""
    for name in ("here", "there"):
        shutil.copytree(run, tmp_path / name)
        shutil.copytree(made, tmp_path / f"place-{name}")
        deep = next(one for one in plan_in(made).candidates if len(one.pieces) == 2 and not one.form)
        shorter(TuningDirectory(tmp_path / f"place-{name}"), lambda one: one == deep or one.unfused)  # noqa: B023
    here, there = (TuningDirectory(tmp_path / f"place-{name}") for name in ("here", "there"))
    found = tuned(tmp_path / "here", here, Beside(), TuningLimits(60, 8))
    best = found.rows[0]
    plans = [tmp_path / name / "kernels" / best.name / "plan.json" for name in ("here", "there")]
    first = msgspec.json.decode(plans[0].read_bytes(), type=PlanRecord).kernels[0]
    timed = {variant.schedule.threads for variant in plan_in(here.root).pieces[0].variants if variant.schedule}
    assert first.threads == min(timed) < max(timed)
    shutil.copy(here.times_path("Test"), there.times_path("Test"))
    again = tuned(tmp_path / "there", there, "Test", TuningLimits(60, 8))
    assert answers(again) == answers(found)
    assert plans[1].read_bytes() == plans[0].read_bytes()


def test_a_form_that_is_not_built_in_time_changes_nothing(
    run: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms of a finalist beside it are built in a directory of their own, and a deadline may end that."""
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(made, tmp_path / "place")
    make = finalists.Finalists._build_kernels

    def late(self: finalists.Finalists, *asked: Any) -> Iterator[Any]:
        yield from make(self, *asked) if self.root == tmp_path / "run" else ()

    monkeypatch.setattr(finalists.Finalists, "_build_kernels", late)
    found = tuned(tmp_path / "run", TuningDirectory(tmp_path / "place"), Wholes(early_ones), FEW)
    assert found.rows[0].us is not None
    assert not any(flags(tmp_path / "run" / "kernels" / found.rows[0].name))


@pytest.mark.slow
def test_what_is_known_to_be_slower_is_not_built_again(run: Path, made: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(made, tmp_path / "place")
    place = TuningDirectory(tmp_path / "place")
    first, second = Wholes(early_ones), Wholes(early_ones)
    found = tuned(tmp_path / "run", place, first, FEW)
    again = tuned(tmp_path / "run", place, second, FEW)
    assert answers(again) == answers(found)
    assert set(second.asked) < set(first.asked)
    assert len([one for one in second.asked if any(one[1])]) == 2, "all, then all but the first: each is faster"


@pytest.mark.slow
def test_another_driver_measures_anew(run: Path, made: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(made, tmp_path / "place")
    place = TuningDirectory(tmp_path / "place")
    slower, faster = Wholes(lambda early: 9.0 - len(early) + 0.5 * any(early)), Wholes(early_ones)
    faster.machine = msgspec.structs.replace(faster.machine, driver=2)
    tuned(tmp_path / "run", place, slower, FEW)
    found = tuned(tmp_path / "run", place, faster, FEW)
    assert any(any(early) for _, early in slower.asked)
    assert any(flags(tmp_path / "run" / "kernels" / found.rows[0].name))


def test_a_whole_is_its_form_kernels_and_early_ones(made: Path) -> None:
    plan = plan_in(made)
    at = next(at for at, one in enumerate(plan.candidates) if len(one.pieces) > 1)
    other = next(number for number, one in enumerate(plan.candidates) if one.pieces != plan.candidates[at].pieces)
    zeros = (0,) * len(plan.candidates[at].pieces)
    one = ComposedCandidate(at, zeros, 1.0)
    key = whole_key(plan, one)
    assert key == whole_key(plan, ComposedCandidate(at, zeros, 2.0)), "what it is expected to take is no part of it"
    more = next(i for i, piece in enumerate(plan.candidates[at].pieces) if len(plan.pieces[piece].variants) > 1)
    schedules = tuple(int(i == more) for i in range(len(zeros)))
    others = [
        ComposedCandidate(at, schedules, 1.0),
        ComposedCandidate(at, zeros, 1.0, frozenset({0})),
        ComposedCandidate(at, zeros, 1.0, frozenset({1})),
        ComposedCandidate(other, (0,) * len(plan.candidates[other].pieces), 1.0),
    ]
    assert len({key, *(whole_key(plan, one) for one in others)}) == 5
    named = msgspec.structs.replace(plan.candidates[at], form="split-2")
    formed = (*plan.candidates[:at], named, *plan.candidates[at + 1 :])
    assert whole_key(msgspec.structs.replace(plan, candidates=formed), one) != key


def test_kernels_are_moved_with_what_was_measured_of_them(tmp_path: Path) -> None:
    small_runs.make(tmp_path / "one", kernels=1)
    (source,) = (tmp_path / "one" / "kernels").iterdir()
    assert (source / "measure.json").is_file()
    target = tmp_path / "two" / source.name
    shutil.copytree(source, target)
    (target / "measure.json").unlink()
    manifest = manifest_digest(source)
    (target / "mine.txt").write_text("notes")
    with pytest.raises(MirageError, match=r"mine\.txt"):
        move_built(source, target)
    assert manifest_digest(source) == manifest, "nothing is lost"
    (target / "mine.txt").unlink()
    move_built(source, target)
    assert not source.exists()
    assert manifest_digest(target) == manifest
    msgspec.json.decode((target / "measure.json").read_bytes(), type=MeasureRecord)
    assert [path.name for path in target.parent.iterdir()] == [source.name]
