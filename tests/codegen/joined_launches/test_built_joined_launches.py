"""Joined launches from the build to the device: files, check, loaded counters, export and choice by tuning."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.codegen.executable import counter_offsets, load_executable, workspace
from mirage_formal.codegen.generate import NO_OPTIONS, LaunchOptions, schedule_from_record
from mirage_formal.codegen.joined_launches.joined_kernels import joinable_kernels
from mirage_formal.codegen.joined_launches.joined_printer import emit_joined
from mirage_formal.codegen.program.program import GridWait, all_statements
from mirage_formal.codegen.target import load_target
from mirage_formal.device import tensors
from mirage_formal.device.launch import Optimized
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.export.launch_table import launch_table
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind as K
from mirage_formal.kernel_build.build import build_form
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels
from mirage_formal.kernel_build.candidate_forms import form, forms
from mirage_formal.kernel_build.code_digest import digest_of_launches, digest_of_text
from mirage_formal.kernel_build.save import save_built
from mirage_formal.kernel_build.stable_forms import StableForm, stabilize_proved
from mirage_formal.kernel_build.validation import validate_kernels
from mirage_formal.records import KernelLaunch, LaunchRecord, PlanRecord, TargetRecord
from mirage_formal.report.kernels.directory_explanation import explain_kernels
from mirage_formal.report.reading.kernel_reader import lines_of
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.support.errors import FormatError, UnsupportedError
from tests.kit.graphs import workloads as w
from tests.kit.runs.fake_devices import FakeCupy, aligned, ndarray, with_code
from tests.kit.runs.tampering import edit, sign_kernels

H200 = load_target("h200")
N = None
SIZES = {"b": 2, "m": 32, "d": 16, "n": 128, "e": 16}
JOINED: LaunchOptions = ({}, frozenset(), frozenset({1}))


def built(options: LaunchOptions = JOINED, stable: StableForm | None = None) -> BuiltKernels:
    candidate = w.attention_split(**SIZES, split=4, loop=2, rows=2)
    made = build_form(stable or stabilize_proved(candidate), w.attention(**SIZES), H200, (), options)
    return replace(validate_kernels(made, Acceptance.PROVED), candidate=digest(candidate))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("joined") / "kernels"
    save_built(built(), root)
    return root


def test_it_is_proved_and_close_to_float64() -> None:
    made = built()
    assert made.may_run(Acceptance.PROVED)
    assert [one.kernel for one in made.realized] == ["kernel0", "kernel1"]
    assert [one.joined is True for one in made.plans] == [False, True]
    assert len(made.executable.launches) == 1
    for seed in range(2):
        assert compare_on_emulator(made, seed=seed).answer == "within"


def test_attention_at_real_tiles_is_close_to_float64() -> None:
    """Tiles of attention at full size, with fewer batches and blocks; also on two tiles for each block to combine."""
    sizes = {"b": 1, "m": 256, "d": 64, "n": 512, "e": 64}
    (whole,) = w.attention_one(**sizes, rows=2, loop=8).ops
    candidate = KernelGraph(w.attention(**sizes).inputs, (whole,), (3,))
    for name in ("split-2 whole", "split-4"):
        one = form(candidate, H200, name)
        made = build_form(one, w.attention(**sizes), H200, (), JOINED)
        assert made.joins
        assert compare_on_emulator(made, scales=(1.0,)).answer == "within"


def three() -> KernelGraph:
    """Squares, sums of their rows on another grid, and what these are less than one."""
    first = w.kernel(
        (0,), (4, 2, 1), 1, [w.load((0, 1, N))], [w.op(K.SQUARE, 0), w.op(K.ACCUM_SUM, 1)], [(2, (0, 1, N))]
    )
    sums = [w.op(K.SUM, 0, dim=1), w.op(K.ACCUM_SUM, 1)]
    second = w.kernel((1,), (8, 1, 1), 1, [w.load((0, N, N))], sums, [(2, (0, N, N))])
    last = w.kernel(
        (2, 0), (2, 1, 1), 1, [w.load((0, N, N))] * 2, [w.op(K.SUB, 1, 0), w.op(K.ACCUM_SUM, 2)], [(3, (0, N, N))]
    )
    return KernelGraph((w.tensor("X", 64, 64),), (first, second, last), (3,))


@pytest.mark.parametrize(("position", "dependent"), [(1, [False, True]), (2, [False, True])])
def test_a_launch_before_or_behind_a_joined_one_is_waited_for(
    tmp_path: Path, position: int, dependent: list[bool]
) -> None:
    graph = three()
    made = build_form(StableForm(graph), graph, H200, (), ({}, frozenset(), frozenset({position})))
    made = replace(validate_kernels(made, Acceptance.PROVED), candidate=digest(graph))
    launches = [one for one in made.executable.launches if isinstance(one, KernelLaunch)]
    assert [one.dependent for one in launches] == dependent
    assert [bool(one.counters) for one in launches] == [position == 1, position == 2]
    (joined,) = made.joins.values()
    waits = [isinstance(one, GridWait) for one in all_statements(joined.then.body)]
    assert not any(waits)
    assert joined.first.dependent == (position == 2)
    assert compare_on_emulator(made).answer == "within"
    text = emit_joined(joined)
    if position == 2:
        assert "MF_AWAITED(mf::half) in0_d1" in text
        assert "MF_INPUT(mf::half) in1_X" not in text[text.index(f"void {joined.then.name}_block") :]
    save_built(made, tmp_path / "kernels")
    assert derive_kernels(tmp_path / "kernels", recompile=False).kernels == 3


def test_files_say_what_is_joined_and_check_derives_them_again(directory: Path) -> None:
    made = built()
    assert load_executable(directory) == made.executable
    found = derive_kernels(directory, recompile=False)
    assert (found.kernels, found.realized) == (2, 2)
    assert not found.recorded or set(found.recorded) == {"no solver is here"}
    assert [one.name for one in explain_kernels(directory)] == ["kernel0", "kernel1"]
    assert digest_of_launches(made.stable.graph, H200, *JOINED) == digest_of_text(
        made.executable.launches, made.executable.sources.values()
    )


def test_lines_of_both_kernels_are_those_of_their_own_texts() -> None:
    made = built()
    text = made.executable.source.splitlines()
    target = msgspec.convert(msgspec.to_builtins(H200), TargetRecord)
    plans = PlanRecord(kernels=made.plans)
    found = lines_of(made.executable.graph, target, plans, made.executable.sources)
    alone = built(
        ({one.operator: schedule_from_record(one.schedule) for one in made.plans if one.schedule}, *NO_OPTIONS[1:])
    )
    own = lines_of(alone.executable.graph, target, PlanRecord(kernels=alone.plans), alone.executable.sources)
    assert [operator for _, operator in found] == [operator for _, operator in own] == [0, 1]
    for (_, operator), pieces in found.items():
        ((source, others),) = ((s, p) for (s, o), p in own.items() if o == operator)
        other = alone.executable.sources[source].splitlines()
        stated = {one.does: text[one.first - 1 : one.last] for one in pieces}
        expected = {one.does: other[one.first - 1 : one.last] for one in others}
        same = [does for does in stated if stated[does] == expected.get(does)]
        assert len(same) >= len(stated) - 2, "but for statements that order launches"


def test_launches_of_before_are_read_and_written_as_they_were(tmp_path: Path) -> None:
    save_built(built(NO_OPTIONS), tmp_path / "kernels")
    text = (tmp_path / "kernels" / "launch.json").read_text()
    assert '"joined"' not in text
    record = msgspec.json.decode(text, type=LaunchRecord)
    assert all(isinstance(one, KernelLaunch) and one.counters == 0 and one.kernels == (one,) for one in record.launches)


def _joined(launches: dict[str, Any]) -> dict[str, Any]:
    return launches["launches"][0]["joined"]


#: Changes of launch.json and plan.json.
TAMPERED: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "fewer counters": ("launch.json", lambda d: _joined(d).update(counters=1)),
    "more counters": ("launch.json", lambda d: _joined(d).update(counters=17)),
    "no joined kernel": ("launch.json", lambda d: d["launches"][0].pop("joined")),
    "another grid": ("launch.json", lambda d: _joined(d).update(grid=[1, 1, 1])),
    "another operator": ("launch.json", lambda d: _joined(d).update(operator=0)),
    "another name": ("launch.json", lambda d: _joined(d).update(name="kernel0")),
    "an argument less": ("launch.json", lambda d: _joined(d)["arguments"].pop(0)),
    "a plan that says nothing": ("plan.json", lambda d: d["kernels"][1].update(joined=False)),
    "the first one joined": ("plan.json", lambda d: d["kernels"][0].update(joined=True)),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_other_files_are_refused_though_they_are_signed_again(directory: Path, tmp_path: Path, name: str) -> None:
    import shutil

    file, change = TAMPERED[name]
    copy = Path(shutil.copytree(directory, tmp_path / "kernels"))
    edit(copy / file, change)
    sign_kernels(copy)
    with pytest.raises((CheckFailed, FormatError)):
        derive_kernels(copy, recompile=False)


@pytest.mark.parametrize("name", ["more counters", "an argument less"])
def test_launches_that_contradict_themselves_are_not_loaded(directory: Path, tmp_path: Path, name: str) -> None:
    import shutil

    file, change = TAMPERED[name]
    copy = Path(shutil.copytree(directory, tmp_path / "kernels"))
    text = json.loads((copy / file).read_text())
    change(text)
    if name == "an argument less":
        _joined(text)["arguments"] = [a for a in _joined(text)["arguments"] if a["written"]]
    (copy / file).write_text(json.dumps(text))
    with pytest.raises(FormatError):
        load_executable(copy)


def test_counters_are_zeroed_memory_of_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_code(built())
    fake = FakeCupy({**made.programs, **made.joins})
    monkeypatch.setitem(sys.modules, "cupy", fake)
    tensors.adapter.cache_clear()
    addresses = []
    given = [ndarray(aligned(np.full(s, 0.1, np.float16))) for s in ((2, 32, 16), (2, 16, 128), (2, 128, 16))]
    for _ in range(2):
        optimized = Optimized.of(made.executable)
        for _ in range(2):
            (out,) = np.unique(optimized(*given).host)
            assert abs(float(out) - 0.1) < 1e-3
        found = [entry for entry in fake.log if entry[0] == "counters"]
        assert [entry[2] for entry in found] == [[0, 0]] * 2
        addresses += sorted({entry[1] for entry in found})
        assert sum(entry[0] == "launch" for entry in fake.log) == 2
        fake.log.clear()
    assert len(set(addresses)) == 2, "no two objects share counters"
    tensors.adapter.cache_clear()


def test_counters_lie_behind_the_workspace() -> None:
    executable = built().executable
    _, end = workspace(executable)
    assert counter_offsets(executable, end) == ({0: end}, end + 256)


def test_export_refuses_joined_launches() -> None:
    with pytest.raises(UnsupportedError, match="kernel0 and kernel1 in one"):
        launch_table(built().executable, "attention", ())


def test_forms_combine_splits_on_the_tiles_of_the_first_kernel() -> None:
    found = {one.name: one for one in forms(w.attention_one(16, 256, 64, 4096, 64, rows=4, loop=64), H200, whole=True)}
    whole = [name for name in found if name.endswith(" whole")]
    assert whole
    for name in whole:
        first, then = (op.graph for op in found[name].graph.ops)  # type: ignore[union-attr]
        assert then.blocks * int(name.split()[0].removeprefix("split-")) == first.blocks
        assert found[name].proof is not None
    assert not set(whole) & {one.name for one in forms(w.attention_one(16, 256, 64, 4096, 64, rows=4, loop=64), H200)}


def test_kernels_behind_others_may_be_joined() -> None:
    assert joinable_kernels(built(NO_OPTIONS).executable) == (1,)
    assert joinable_kernels(built().executable) == ()
