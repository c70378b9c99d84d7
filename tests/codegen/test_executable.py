"""Executables as files: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.codegen.executable import (
    ALIGN,
    LAUNCH_FILE,
    Executable,
    KernelLaunch,
    describe,
    load_executable,
    moved_bytes,
    save_executable,
    without_dependent_launches,
    workspace,
)
from mirage_formal.codegen.program.program import LaunchDependents, Program
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.support.errors import FormatError, MirageError, RunError
from tests.kit.graphs import workloads as w
from tests.kit.kernels.device_kernels import predefined
from tests.kit.runs.fake_devices import with_tensor_maps

SIZE = {"b": 2, "m": 16, "d": 16, "n": 64, "e": 16}


@pytest.fixture(scope="module")
def split() -> Executable:
    program = w.attention(**SIZE)
    return build(w.attention_split(**SIZE, split=2, loop=2), program, load_target("h200")).executable


@pytest.fixture(scope="module")
def mixed() -> BuiltKernels:
    return build(predefined(), predefined(), load_target("h200"))


def test_round_trip(tmp_path: Path, split: Executable, mixed: BuiltKernels) -> None:
    for name, executable in (("split", split), ("mixed", mixed.executable)):
        save_executable(executable, tmp_path / name)
        assert load_executable(tmp_path / name) == executable
        save_executable(executable, tmp_path / name)
        assert load_executable(tmp_path / name) == executable


def test_predefined_products_are_cublas_and_the_rest_is_generated(mixed: BuiltKernels) -> None:
    executable = mixed.executable
    assert [describe(x, executable.graph).split(":")[0] for x in executable.launches] == [
        "op0_rms_norm (predefined)",
        "matmul (cuBLAS)",
        "op2_softmax (predefined)",
        "matmul (cuBLAS)",
        "op4_silu (predefined)",
        "op5_add (predefined)",
    ]
    assert sorted(executable.sources) == [f"kernel{i}.cu" for i in range(4)]
    assert all(text in executable.source for text in executable.sources.values())
    assert {record.kernel for record in mixed.obligations} == set(mixed.programs)
    assert {record.finding for record in mixed.obligations} == {"held"}


def test_only_a_kernel_behind_a_kernel_is_dependent(split: Executable, mixed: BuiltKernels) -> None:
    """Nothing overlaps between calls, and products of the library are in the order of the stream on both sides."""

    def flags(executable: Executable) -> list[bool]:
        return [isinstance(launch, KernelLaunch) and launch.dependent for launch in executable.launches]

    def signals(built: Mapping[str, Program]) -> list[bool]:
        return [LaunchDependents() in program.body for program in built.values()]

    assert flags(split) == [False, True]
    assert flags(mixed.executable) == [False] * 5 + [True]
    assert signals(mixed.programs) == [False, False, True, False]
    assert [program.dependent for program in mixed.programs.values()] == [False, False, False, True]
    for program in mixed.programs.values():
        if LaunchDependents() in program.body:
            behind = repr(program.body[program.body.index(LaunchDependents()) :])
            assert not any(name in behind for name in ("CopyAsync", "GlobalRead", "GlobalVector", "Mma"))
            assert "GlobalWrite" in behind, "nothing waits beside what works, and stores are not waited for"
    assert flags(without_dependent_launches(split)) == [False, False]
    assert without_dependent_launches(split).sources == split.sources
    chain = KernelGraph(
        (w.tensor("X", 4, 8),), tuple(Op(OpKind.EXP, (i,), Attrs()) for i in range(3)), (3, 0)
    )  # the second output is a copy
    made = build(chain, chain, load_target("h200"))
    assert flags(made.executable) == [False, True, True, True]
    assert signals(made.programs) == [True, True, True, False]
    assert describe(made.executable.launches[3], chain).endswith(", dependent")


def test_an_output_that_is_an_input_is_copied() -> None:
    x = w.tensor("X", 4, 8)
    graph = KernelGraph((x,), (Op(OpKind.EXP, (0,), Attrs()),), (0, 1))
    executable = build(graph, graph, load_target("h200")).executable
    assert executable.outputs == (2, 1)
    assert executable.values[2] == x.tensor


def test_workspace(split: Executable) -> None:
    offsets, size = workspace(split)
    assert sorted(offsets) == [3, 4, 5]
    spans = sorted((start, start + split.values[number].bytes) for number, start in offsets.items())
    assert all(start % ALIGN == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] <= size
    assert moved_bytes(split.program) == 2 * sum((2 * 16 * 16, 2 * 16 * 64, 2 * 64 * 16, 2 * 16 * 16))


def edited(tmp_path: Path, executable: Executable, change: Callable[[dict[str, Any]], None]) -> Path:
    save_executable(executable, tmp_path)
    path = tmp_path / LAUNCH_FILE
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return tmp_path


def _argument(record: dict[str, Any], launch: int, argument: int, **values: Any) -> None:
    record["launches"][launch]["arguments"][argument].update(values)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a later version": (lambda r: r.update(version=2), "version 1"),
    "another schema": (lambda r: r.update(schema="x"), "mirage_formal.launch"),
    "an unknown field": (lambda r: r.update(shell="rm"), "unknown field"),
    "no such value": (lambda r: _argument(r, 0, 0, value=99), "values below"),
    "a negative value": (lambda r: _argument(r, 0, 0, value=-1), "arguments.0..value"),
    "another value": (lambda r: _argument(r, 0, 0, value=1), "elements of value 1"),
    "fewer elements": (lambda r: _argument(r, 0, 0, elements=8), "elements of value 0"),
    "an odd alignment": (lambda r: _argument(r, 0, 0, align=3), "aligned to 3"),
    "an input is written": (lambda r: _argument(r, 0, 0, written=True), "a second time"),
    "reads before writes": (lambda r: r["launches"].reverse(), "nothing has written"),
    "no launch": (lambda r: r["launches"].pop(), "no launch writes output"),
    "too many threads": (lambda r: r["launches"][0].update(threads=4096), "launch dimensions"),
    "an empty grid": (lambda r: r["launches"][0].update(grid=[0, 1, 1]), "grid.0."),
    "a name with code": (lambda r: r["launches"][0].update(name="k<int>()"), "launches.0..name"),
    "a path": (lambda r: r["launches"][0].update(source="../x.cu"), "launches.0..source"),
    "a missing file": (lambda r: r["launches"][0].update(source="none.cu"), "file of this directory"),
    "another digest": (lambda r: r["launches"][0].update(sha256="0" * 64), "launch.json was written with"),
    "an output too many": (lambda r: r["outputs"].append(3), "value for each output"),
    "an output beyond": (lambda r: r.update(outputs=[77]), "value for each output"),
    "the first launch is dependent": (lambda r: r["launches"][0].update(dependent=True), "got it of the first launch"),
    "another graph": (lambda r: r["graph"].update(schema="x"), "schema"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_refused(tmp_path: Path, split: Executable, name: str) -> None:
    change, message = CHANGES[name]
    with pytest.raises(FormatError, match=message):
        load_executable(edited(tmp_path, split, change))


@pytest.fixture(scope="module")
def mapped() -> Executable:
    """A kernel whose launch passes tensor maps of two inputs."""
    graph = KernelGraph((w.tensor("X", 64, 256), w.tensor("Y", 64, 256)), (Op(OpKind.ADD, (0, 1)),), (2,))
    return with_tensor_maps(build(graph, graph, load_target("h200"))).executable


def _map(record: dict[str, Any], **values: Any) -> None:
    record["launches"][0]["maps"][3].update(values)


MAPS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a result": (lambda r: _map(r, argument=2), "argument that is read and aligned to 16 bytes, got argument 2"),
    "no argument": (lambda r: _map(r, argument=3), "argument that is read and aligned to 16 bytes, got argument 3"),
    "an odd place": (lambda r: _argument(r, 0, 1, align=8), "aligned to 16 bytes, got argument 1"),
    "another type": (lambda r: _map(r, dtype="bfloat16"), "256 elements of bfloat16, got 16384 of float16"),
    "half a row": (lambda r: _map(r, stride=96), "rows of 96 elements of float16, got 16384"),
    "rows that no copy has": (lambda r: _map(r, rows=12), "maps.*rows"),
    "no list": (lambda r: r["launches"][0].update(maps=[]), "maps"),
    "an unknown field": (lambda r: _map(r, swizzle=0), "unknown field"),
}


def test_maps_are_read_back_and_stand_only_where_there_are_some(
    tmp_path: Path, mapped: Executable, split: Executable
) -> None:
    save_executable(mapped, tmp_path / "mapped")
    assert load_executable(tmp_path / "mapped") == mapped
    (launch,) = json.loads((tmp_path / "mapped" / LAUNCH_FILE).read_text())["launches"]
    assert launch["maps"] == [
        {"argument": argument, "dtype": "float16", "rows": rows, "stride": 256}
        for argument in (0, 1)
        for rows in (8, 64)
    ]
    assert describe(mapped.launches[0], mapped.graph).endswith(f"blocks of {launch['threads']}, 0 bytes shared")
    save_executable(split, tmp_path / "split")
    assert '"maps"' not in (tmp_path / "split" / LAUNCH_FILE).read_text()


@pytest.mark.parametrize("name", MAPS)
def test_wrong_maps_are_refused(tmp_path: Path, mapped: Executable, name: str) -> None:
    change, message = MAPS[name]
    with pytest.raises(FormatError, match=message):
        load_executable(edited(tmp_path, mapped, change))


def test_a_launch_behind_a_product_is_not_dependent(tmp_path: Path, mixed: BuiltKernels) -> None:
    """That is: a change that says so is refused."""
    with pytest.raises(FormatError, match="launch 2: expected dependent only behind a generated kernel"):
        load_executable(edited(tmp_path, mixed.executable, lambda r: r["launches"][2].update(dependent=True)))


def test_a_flipped_bit_is_refused(tmp_path: Path, split: Executable) -> None:
    save_executable(split, tmp_path)
    path = tmp_path / "kernel0.cu"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(FormatError, match=r"kernel0\.cu"):
        load_executable(tmp_path)


def test_links_and_missing_directories_are_refused(tmp_path: Path, split: Executable) -> None:
    with pytest.raises(RunError, match="expected generated kernels"):
        load_executable(tmp_path / "none")
    save_executable(split, tmp_path)
    (tmp_path / "kernel1.cu").rename(tmp_path / "elsewhere")
    (tmp_path / "kernel1.cu").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MirageError, match="file of this directory"):
        load_executable(tmp_path)
    (tmp_path / LAUNCH_FILE).write_text("{")
    with pytest.raises(FormatError, match="expected JSON"):
        load_executable(tmp_path)
