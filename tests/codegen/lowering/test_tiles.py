"""Operands that lie across in other tiles than the usual one, as tuning tries them: right, safe, by their numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from mirage_formal.codegen.generate import (
    NONE_EARLY,
    NONE_JOINED,
    alternative_tiles,
    generate,
    schedule_from_record,
    schedule_record,
)
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import run_kernel as emulate
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.kernel_build.build import build_form
from mirage_formal.kernel_build.stable_forms import StableForm
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import UnsupportedError
from tests.kit.kernels.program_interpreter import from_storage, to_storage
from tests.kit.kernels.program_interpreter import run as interpret

H200 = load_target("h200")
HALF = DType.FLOAT16


def transposition(shape: Shape, perm: tuple[int, ...] = (1, 0), dtype: DType = HALF) -> KernelGraph:
    x = Input("x", DTensor(shape, dtype), row_major(shape))
    return KernelGraph((x,), (Op(OpKind.TRANSPOSE, (0,), Attrs(perm=perm)),), (1,))


def programs(graph: KernelGraph) -> list[Program]:
    """The kernel in each of its tiles, the usual one first."""
    found = []
    for schedule in (None, *alternative_tiles(graph, 0, H200)):
        (kernel,) = generate(graph, H200, {} if schedule is None else {0: schedule}).steps
        assert isinstance(kernel, GeneratedKernel)
        assert kernel.asked == schedule
        found.append(kernel.program)
    return found


SHAPES = [((130, 74), (1, 0)), ((96, 64), (1, 0)), ((5, 37, 40), (2, 1, 0)), ((3, 700), (1, 0))]


@pytest.mark.parametrize("dtype", [HALF, DType.FLOAT32])
@pytest.mark.parametrize(("shape", "perm"), SHAPES)
def test_every_tile_has_the_values_of_the_operator(shape: Shape, perm: tuple[int, ...], dtype: DType) -> None:
    graph = transposition(shape, perm, dtype)
    x = to_storage(np.random.default_rng(0).standard_normal(shape), dtype)
    exact = from_storage(x, dtype).astype(np.float64)
    (wanted,) = float64_reference.run(graph, [exact])
    made = programs(graph)
    assert len({repr(program) for program in made}) == len(made)
    for number, program in enumerate(made):
        for run in (interpret, emulate) if dtype is HALF and number < 2 else (interpret,):
            (found,) = run(program, [exact.reshape(-1)])
            np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("shape", [(30522, 768), (768, 30522), (97, 4099)])
def test_every_tile_is_safe(shape: Shape) -> None:
    made = programs(transposition(shape))
    assert len(made) > 3
    assert all(isinstance(discharge_safety(program).verdict, Safe) for program in made)


def test_rows_of_no_whole_sectors_have_longer_runs_among_their_tiles() -> None:
    """Each end of a run is a part of a sector there; with longer runs there are fewer of them."""
    usual, *others = programs(transposition((30522, 768)))
    blocks = [int(np.prod(program.grid)) for program in (usual, *others)]
    assert min(blocks[1:]) < blocks[0] / 3
    assert max(blocks[1:]) > blocks[0]


def test_a_tile_is_recorded_and_built_again() -> None:
    graph = transposition((130, 74))
    (first, *_) = alternative_tiles(graph, 0, H200)
    assert schedule_from_record(schedule_record(first)) == first
    usual = build_form(StableForm(graph), graph, H200)
    other = build_form(StableForm(graph), graph, H200, options=({0: first}, NONE_EARLY, NONE_JOINED))
    assert usual.programs != other.programs
    assert (
        build_form(StableForm(graph), graph, H200, options=({0: first}, NONE_EARLY, NONE_JOINED)).programs
        == other.programs
    )


def test_what_is_no_tile_is_refused() -> None:
    graph = transposition((130, 74))
    known = alternative_tiles(graph, 0, H200)
    beyond = replace(known[-1], tile=next(n for n in count(1) if n > len(known)))
    for wrong in (beyond, replace(known[0], threads=2 * known[0].threads), replace(known[0], stages=2)):
        with pytest.raises(UnsupportedError):
            generate(graph, H200, {0: wrong})
    x = graph.inputs[0]
    summed = KernelGraph((x,), (Op(OpKind.SUM, (0,), Attrs(dim=1)),), (1,))
    assert alternative_tiles(summed, 0, H200) == []
    with pytest.raises(UnsupportedError):
        generate(summed, H200, {0: known[0]})
    mapped = KernelGraph((x,), (Op(OpKind.EXP, (0,)),), (1,))
    assert alternative_tiles(mapped, 0, H200) == []
