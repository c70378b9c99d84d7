"""Launches with tensor maps: the checker judges them by the µGraph, and derives them again from the Program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda.launches import check_launches, check_plans
from mirage_formal.check.cuda.manifest import BoundKernels, check_kernels
from mirage_formal.codegen.generate import plan_record
from mirage_formal.codegen.generated_launches import GeneratedKernel, GeneratedLaunch, GeneratedLaunches
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.save import save_built
from mirage_formal.records import KernelLaunch, LaunchRecord, PlanRecord
from mirage_formal.revalidate import rederive
from tests.kit.graphs import workloads as w
from tests.kit.runs.fake_devices import with_tensor_maps

PROGRAM = KernelGraph(
    (w.tensor("X", 64, 256), w.tensor("Y", 64, 256)),
    (Op(OpKind.RMS_NORM, (0,), Attrs(dim=1)), Op(OpKind.ADD, (2, 1))),
    (3,),
)


@dataclass(frozen=True)
class Mapped:
    """Kernels with maps, and the directory of the same kernels without.

    Attributes:
        bound: The directory, with the launches and plans of kernels with maps.
        made: What is derived.
        texts: The texts of the kernels.
    """

    bound: BoundKernels
    made: GeneratedLaunches
    texts: dict[str, str]


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Mapped:
    root = tmp_path_factory.mktemp("kernels") / "mapped"
    plain = build(PROGRAM, PROGRAM, load_target("h200"))
    save_built(plain, root)
    bound, programs = check_kernels(root), with_tensor_maps(plain).programs
    steps = [
        replace(one, program=programs[one.program.name])
        for one in rederive._generated(bound).steps
        if isinstance(one, GeneratedKernel)
    ]
    made = GeneratedLaunches(tuple(steps), (3,))
    records, texts = [], {}
    for one, theirs in zip(made.launches, bound.launch.launches, strict=True):
        assert isinstance(one, GeneratedLaunch)
        assert isinstance(theirs, KernelLaunch)
        texts[one.program.name] = (root / one.source).read_text()
        records.append(one.record(texts[one.program.name], theirs.cubins))
    launch = msgspec.structs.replace(bound.launch, launches=tuple(records))
    plans = PlanRecord(kernels=tuple(plan_record(one, {}) for one in steps))
    return Mapped(replace(bound, launch=launch, plans=plans), made, texts)


def changed(record: LaunchRecord, change: Callable[[dict[str, Any]], object]) -> LaunchRecord:
    """The record with an edit of its second launch, whose arguments are two values that it reads and its result."""
    data = msgspec.json.decode(msgspec.json.encode(record))
    change(data["launches"][1])
    return msgspec.json.decode(msgspec.json.encode(data), type=LaunchRecord)


def derive(mapped: Mapped, record: LaunchRecord) -> None:
    rederive._check_launches(replace(mapped.bound, launch=record), mapped.made, mapped.texts)


def test_launches_with_maps_are_established(mapped: Mapped) -> None:
    record = changed(mapped.bound.launch, lambda _: None)
    assert record.launches == mapped.bound.launch.launches
    check_launches(mapped.bound.root, record, PROGRAM)
    check_plans(mapped.bound.root, mapped.bound.plans, record.launches, PROGRAM)
    derive(mapped, record)


DERIVED: dict[str, Callable[[dict[str, Any]], object]] = {
    "rows": lambda launch: launch["maps"][0].update(rows=16),
    "stride": lambda launch: launch["maps"][0].update(stride=128),
    "argument": lambda launch: launch["maps"][0].update(argument=1),
    "order": lambda launch: launch["maps"].reverse(),
    "one too few": lambda launch: launch["maps"].pop(),
    "one too many": lambda launch: launch["maps"].append(launch["maps"][0]),
    "none": lambda launch: launch.pop("maps"),
}


@pytest.mark.parametrize("name", DERIVED)
def test_other_maps_than_those_of_the_program_are_refused(mapped: Mapped, name: str) -> None:
    record = changed(mapped.bound.launch, DERIVED[name])
    check_launches(mapped.bound.root, record, PROGRAM)
    with pytest.raises(CheckFailed, match="launch 1: maps"):
        derive(mapped, record)


def test_threads_are_those_of_the_launch_and_of_the_plan(mapped: Mapped) -> None:
    record = changed(mapped.bound.launch, lambda launch: launch.update(threads=launch["threads"] - 128))
    with pytest.raises(CheckFailed, match="launch 1: threads"):
        derive(mapped, record)
    with pytest.raises(CheckFailed, match="expected"):
        check_plans(mapped.bound.root, mapped.bound.plans, record.launches, PROGRAM)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a result": (lambda launch: launch["maps"][0].update(argument=2), "argument of a tensor map"),
    "no argument": (lambda launch: launch["maps"][0].update(argument=3), "argument of a tensor map"),
    "another type": (lambda launch: launch["maps"][0].update(dtype="bfloat16"), "elements of a tensor map"),
    "half a row": (lambda launch: launch["maps"][0].update(stride=96), "last row of a tensor map"),
    "alignment": (lambda launch: launch["arguments"][0].update(align=8), "alignment of a tensor map"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_maps_that_contradict_the_graph_are_refused(mapped: Mapped, name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(CheckFailed, match=message):
        check_launches(mapped.bound.root, changed(mapped.bound.launch, change), PROGRAM)


@pytest.mark.parametrize("field", [{"rows": 12}, {"rows": 264}, {"rows": 0}, {"stride": 68}, {"stride": 56}])
def test_maps_that_no_driver_encodes_are_no_records(mapped: Mapped, field: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError, match="maps"):
        changed(mapped.bound.launch, lambda launch: launch["maps"][0].update(field))
    with pytest.raises(msgspec.ValidationError, match="maps"):
        changed(mapped.bound.launch, lambda launch: launch.update(maps=[]))
