"""Launches of kernels that compute band masks: the checker judges them without the masks' memory, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda.launches import check_launches
from mirage_formal.check.cuda.manifest import BoundKernels, check_kernels
from mirage_formal.codegen.target import load_target
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.save import save_built
from mirage_formal.records import KernelLaunch, LaunchRecord
from mirage_formal.revalidate.rederive import derive_kernels
from tests.kit.graphs.text_reader import from_text

#: A kernel that computes a slice of a band mask and reads another mask; and a selection that reads the band mask.
_TEXT = """mugraph 1
d0 = input(X) dtype=float16 shape=[32,32]
d1 = input(M) dtype=bool shape=[32,64] band=[-3,0]
d2 = input(N) dtype=bool shape=[32,32]
d3 = slice(d1) dim=1 start=16 stop=48
d4 = graph_defined(d0, d3, d2) grid=[4,1,1] block=[128,1,1] forloop_range=1 reduction_dimx=64 {
  s0 = input(d0) imap=[0,-,-] fmap=-
  s1 = input(d3) imap=[0,-,-] fmap=-
  s2 = input(d2) imap=[0,-,-] fmap=-
  s3 = select(s1, s0) value=0
  s4 = select(s2, s3) value=1
  s5 = accum_sum(s4)
  output(s5) omap=[0,-,-]
}
d5 = select(d3, d4) value=2
output(d5)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> BoundKernels:
    graph = from_text(_TEXT)
    root = tmp_path_factory.mktemp("kernels") / "masked"
    save_built(build(graph, graph, load_target("h200")), root)
    return check_kernels(root)


def passed(record: LaunchRecord) -> list[list[int]]:
    return [[argument.value for argument in x.arguments] for x in record.launches if isinstance(x, KernelLaunch)]


def without(record: LaunchRecord, number: int, value: int) -> LaunchRecord:
    """The record with a launch to which a value is not passed."""
    launches = list(record.launches)
    launch = launches[number]
    assert isinstance(launch, KernelLaunch)
    kept = tuple(argument for argument in launch.arguments if argument.value != value)
    launches[number] = msgspec.structs.replace(launch, arguments=kept)
    return msgspec.structs.replace(record, launches=tuple(launches))


def test_a_launch_without_the_memory_of_a_band_mask_is_established(kernels: BoundKernels) -> None:
    assert passed(kernels.launch) == [[0, 2, 4], [3, 4, 5]]
    derive_kernels(kernels.root)


def test_no_other_operand_can_be_left_out(kernels: BoundKernels) -> None:
    for number, value in ((0, 0), (0, 2), (0, 4), (1, 3), (1, 4), (1, 5)):
        with pytest.raises(CheckFailed, match="values"):
            check_launches(kernels.root, without(kernels.launch, number, value), kernels.graph)


def test_a_mask_that_callers_pass_cannot_be_left_out(kernels: BoundKernels) -> None:
    inputs = tuple(replace(item, band=None) for item in kernels.graph.inputs)
    with pytest.raises(CheckFailed, match="values"):
        check_launches(kernels.root, kernels.launch, replace(kernels.graph, inputs=inputs))


def test_kernels_that_read_a_band_mask_are_established_as_well(tmp_path: Path) -> None:
    graph = from_text(_TEXT)
    plain = replace(graph, inputs=tuple(replace(item, band=None) for item in graph.inputs))
    save_built(build(plain, plain, load_target("h200")), tmp_path / "read")
    found = check_kernels(tmp_path / "read")
    assert passed(found.launch) == [[0, 3, 2, 4], [3, 4, 5]]
    check_launches(found.root, found.launch, graph)
