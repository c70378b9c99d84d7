"""Elements of band masks are computed from their indices: kernels read none, and compute what the reference does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.executable import moved_bytes
from mirage_formal.codegen.generate import NO_SCHEDULES, generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.planning.planner import schedules
from mirage_formal.codegen.program.access import list_accesses
from mirage_formal.codegen.program.bands import band_at
from mirage_formal.codegen.program.integers import variables
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.program.program import If, Int, IntBin, IntOp, Program, Select, Var
from mirage_formal.codegen.program.serialization import decode_programs, encode_programs
from mirage_formal.codegen.safety import enumerate as enumerate_
from mirage_formal.codegen.safety.happens_before import BlockClass
from mirage_formal.codegen.safety.obligation_types import DischargedObligation, ObligationKind, Safe, Unsafe
from mirage_formal.codegen.safety.safety import discharge_safety, safety_obligations
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import loaded_bytes, run_kernel
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import storage_locations
from mirage_formal.graph.types import Band, DTensor, DType, Shape, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import GraphError
from tests.kit.graphs.text_reader import from_text
from tests.kit.kernels.band_graphs import BANDS, FLASH, PADDED, SELECTION, SPLIT, TWO, bounds

H200 = load_target("h200")


def mask(band: Band, shape: Shape) -> np.ndarray:
    """The mask by NumPy's triangles."""
    found = np.ones(shape[-2:], bool)
    found = found if band.upper is None else np.tril(found, min(band.upper, shape[-1]))
    found = found if band.lower is None else np.triu(found, band.lower)
    return np.broadcast_to(found, shape)


def inputs(graph: KernelGraph, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [
        mask(item.band, item.tensor.shape)
        if item.band is not None
        else (0.5 * random.standard_normal(item.tensor.shape)).astype(np.float16)
        for item in graph.inputs
    ]


def kernels(graph: KernelGraph, chosen: Mapping[int, Schedule] = NO_SCHEDULES) -> Iterator[GeneratedKernel]:
    for step in generate(graph, H200, chosen).steps:
        assert isinstance(step, GeneratedKernel)
        yield step


def emulated(
    graph: KernelGraph, arrays: list[np.ndarray], chosen: Mapping[int, Schedule] = NO_SCHEDULES, *, count: bool = False
) -> tuple[np.ndarray, int]:
    """The first output of a µGraph whose views are reshapes, pads from behind and cuts, and the bytes loaded.

    Every kernel is safe and survives its file, and none has a parameter in the memory of a band mask.
    """
    values: dict[int, np.ndarray] = dict(enumerate(arrays))
    known, types, loaded = storage_locations(graph), kernel_types(graph), 0
    for step in kernels(graph, chosen):
        pairs = list(zip(step.values, step.program.params, strict=True))
        read = [known[value].base for value, param in pairs if not param.written]
        written = [known[value].base for value, param in pairs if param.written]
        assert not any(base < len(arrays) and graph.inputs[base].band for base in read)
        given = [values[base] for base in read]
        values |= dict(zip(written, run_kernel(step.program, given), strict=True))
        loaded += loaded_bytes(step.program, given) if count else 0
        assert isinstance(discharge_safety(step.program).verdict, Safe)
        assert decode_programs(encode_programs([step.program])) == (step.program,)
    number = graph.outputs[0]
    return values[known[number].base].reshape(types[number].shape).astype(np.float64), loaded


def check(graph: KernelGraph, chosen: Mapping[int, Schedule] = NO_SCHEDULES) -> None:
    """Compare the kernels of a µGraph with its operators in float64."""
    arrays = inputs(graph, 11)
    (want,) = reference(graph, arrays)
    np.testing.assert_allclose(emulated(graph, arrays, chosen)[0], want, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (32, 96), (96, 32), (4, 128)])
def test_attention(rows: int, columns: int, band: Band) -> None:
    check(from_text(FLASH.format(band=bounds(band), rows=rows, columns=columns, grid=2, loop=4, value=0)))


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_tiles_that_are_not_skipped(band: Band) -> None:
    """What is not selected counts, so no iteration is left out, and every element of the mask is asked for."""
    check(from_text(FLASH.format(band=bounds(band), rows=32, columns=64, grid=2, loop=4, value="1/4")))


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_keys_split_by_the_grid(band: Band) -> None:
    check(from_text(SPLIT.format(band=bounds(band), rows=32, columns=128, grid=2, loop=2)))


@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(52, 52), (61, 40)])
def test_tiles_that_overhang(rows: int, columns: int, band: Band) -> None:
    more = {"more_rows": 64 - rows, "more_columns": 64 - columns}
    check(from_text(PADDED.format(band=bounds(band), rows=rows, columns=columns, grid=4, loop=4, **more)))


@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize(("rows", "loop"), [(20, 1), (32, 3)])
def test_kernels_without_products(rows: int, loop: int, band: Band) -> None:
    check(from_text(SELECTION.format(band=bounds(band), rows=rows, loop=loop, value=2)))


@pytest.mark.parametrize("band", [Band(None, 0), Band(3, None), Band(-20, 5)], ids=str)
@pytest.mark.parametrize("value", ["0", "1/4"])
def test_every_schedule(band: Band, value: str) -> None:
    graph = from_text(FLASH.format(band=bounds(band), rows=64, columns=64, grid=2, loop=4, value=value))
    every = list(schedules(graph, 0, H200))
    assert len({(one.threads, one.stages, one.cut) for one in every}) > 5
    for schedule in every:
        check(graph, {0: schedule})
    check(graph, {0: Schedule(128, 1, registers=False, resident=False)})


@pytest.mark.parametrize(
    "pair", [(Band(None, 0), Band(1, None)), (Band(-9, 3), Band(-9, 4)), (Band(None, 0), Band(None, 0))], ids=str
)
def test_two_masks_of_one_shape_in_one_kernel(pair: tuple[Band, Band]) -> None:
    graph = from_text(TWO.format(band=bounds(pair[0]), other=bounds(pair[1])))
    check(graph)
    (kernel,) = kernels(graph)
    assert [param.name for param in kernel.program.params] == ["in0_X", "out0_d3"]


# --- bytes


def test_no_byte_of_a_mask_is_loaded() -> None:
    """Where nothing is skipped, blocks load their tiles of the other inputs, and no byte more."""
    graph = from_text(FLASH.format(band="[-20,0]", rows=64, columns=64, grid=2, loop=4, value="1/4"))
    q, k, v, m = (item.tensor.bytes for item in graph.inputs)
    assert emulated(graph, inputs(graph, 3), count=True)[1] == q + 2 * (k + v)
    plain = without_bands(graph)
    (kernel,) = kernels(plain)
    assert loaded_bytes(kernel.program, inputs(graph, 3)) == q + 2 * (k + v) + 2 * m  # for both heads


def test_bytes_of_masks_are_not_estimated() -> None:
    graph = from_text(FLASH.format(band="[-,0]", rows=64, columns=64, grid=2, loop=4, value=0))
    q, k, v, m = (item.tensor.bytes for item in graph.inputs)
    cost, plain = (estimate(one, H200).kernels[0] for one in (graph, without_bands(graph)))
    assert (cost.device_bytes, plain.device_bytes) == (q + k + v, q + k + v + m)
    assert cost.shared_bytes == plain.shared_bytes - 32 * 16
    assert moved_bytes(graph) == moved_bytes(without_bands(graph)) - m


@pytest.mark.parametrize("band", [Band(None, 0), Band(-20, 0)], ids=str)
def test_masked_programs_have_the_kernels_and_parameters_of_those_without_a_mask(band: Band) -> None:
    sizes = {"band": bounds(band), "rows": 32, "columns": 128, "grid": 2, "loop": 2}
    for graph in (
        from_text(FLASH.format(**sizes, value=0)),
        from_text(SPLIT.format(**sizes)),
        from_text(PADDED.format(**sizes, more_rows=32, more_columns=128)),
    ):
        masked, plain = list(kernels(graph)), list(kernels(without_bands(graph)))
        assert len(masked) == len(plain)
        assert [one.program.grid for one in masked] == [one.program.grid for one in plain]
        params = [[param for param in one.program.params if not param.name.startswith("in3_")] for one in plain]
        assert [[param.name for param in one.program.params] for one in masked] == [
            [param.name for param in own] for own in params
        ]


def without_bands(graph: KernelGraph) -> KernelGraph:
    return replace(graph, inputs=tuple(replace(item, band=None) for item in graph.inputs))


# --- predicates


def _comparisons(found: object) -> Iterator[IntBin]:
    """The comparisons of a Program's predicates for elements, each once."""
    if isinstance(found, Select):
        yield from (one for one in _parts(found.condition) if one.op is IntOp.LT)
    for inner in found if isinstance(found, tuple) else _own(found):
        yield from _comparisons(inner)


def _parts(found: object) -> Iterator[IntBin]:
    if isinstance(found, IntBin):
        yield found
        yield from _parts(found.a)
        yield from _parts(found.b)


def _own(found: object) -> list[Any]:
    return [getattr(found, one.name) for one in fields(found)] if is_dataclass(found) else []


def _replaced(found: Any, old: object, new: object) -> Any:
    if found == old:
        return new
    if isinstance(found, tuple):
        return tuple(_replaced(one, old, new) for one in found)
    if is_dataclass(found) and not isinstance(found, type):
        return replace(found, **{one.name: _replaced(getattr(found, one.name), old, new) for one in fields(found)})
    return found


@pytest.mark.parametrize("band", [Band(None, 0), Band(3, None), Band(-11, 25)], ids=str)
@pytest.mark.parametrize("text", [FLASH, PADDED, SELECTION], ids=["attention", "overhang", "selection"])
def test_a_predicate_that_is_off_by_one_is_found(text: str, band: Band) -> None:
    sizes = {"band": bounds(band), "rows": 52, "columns": 60, "grid": 4, "loop": 4, "value": "0"}
    graph = from_text(text.format(**sizes, more_rows=12, more_columns=4))
    arrays = inputs(graph, 11)
    (want,) = reference(graph, arrays)
    (kernel,) = kernels(graph)
    given = [arrays[int(param.name[2])] for param in kernel.program.params if not param.written]
    whole = [item.tensor.elements for item in graph.inputs if item.band is None]
    assert [one.size for one in given] == whole
    compared = {one for one in _comparisons(kernel.program.body) if not isinstance(one.b, Int)}
    assert len(compared) >= (band.lower is not None) + (band.upper is not None)
    for one in compared:
        for changed in (replace(one, a=_next(one.a)), replace(one, b=_next(one.b))):
            body = _replaced(kernel.program.body, one, changed)
            wrong = values_of(replace(kernel.program, body=body), given, want.shape)
            assert not np.allclose(wrong, want, rtol=2e-2, atol=2e-3), (one, changed)
    np.testing.assert_allclose(values_of(kernel.program, given, want.shape), want, rtol=2e-2, atol=2e-3)


def _next(e: Any) -> IntBin:
    return IntBin(IntOp.ADD, e, Int(1))


def values_of(program: Program, given: list[np.ndarray], shape: Shape) -> np.ndarray:
    (found,) = run_kernel(program, given)
    return found.reshape(shape).astype(np.float64)


def test_predicates_have_obligations() -> None:
    """Every comparison is asked to be computed within 32 bits, and a kernel with one that is not is refused."""
    graph = from_text(SELECTION.format(band="[-20,5]", rows=32, loop=3, value=2))
    (kernel,) = kernels(graph)
    compared = set(_comparisons(kernel.program.body))
    assert len(compared) == 2
    asked = {part for one in safety_obligations(kernel.program) if one.query is not None for part in one.query.broken}
    assert compared <= asked
    for one in compared:
        far = replace(one, b=IntBin(IntOp.ADD, one.b, Int(2**31 - 1)))
        verdict = discharge_safety(replace(kernel.program, body=_replaced(kernel.program.body, one, far))).verdict
        assert isinstance(verdict, Unsafe)
        assert verdict.obligation.kind is ObligationKind.ARITHMETIC


def _copies(found: object) -> Iterator[If]:
    """The conditionals of a Program that make copies and synchronise nothing."""
    if isinstance(found, If) and "CopyAsync" in repr(found.body) and "Barrier" not in repr(found.body):
        yield found
        return
    for inner in found if isinstance(found, tuple) else _own(found):
        yield from _copies(inner)


def _settled(program: Program) -> dict[str, bool]:
    """Whether each read of shared memory returns what was written for it."""
    found = enumerate_.check_liveness(program, list_accesses(program))
    return {path: isinstance(finding, DischargedObligation) for path, finding in found.items()}


def _one_by_one(tree: object, extents: Mapping[str, int]) -> Iterator[BlockClass]:
    """Every block as a class of its own."""
    for block in product(*(range(n) for n in extents.values())):
        yield BlockClass({name: Int(n) for name, n in zip(extents, block, strict=True)}, {})


@pytest.mark.parametrize("band", [Band(None, 0), Band(-300, 0)], ids=str)
def test_classes_of_blocks_that_skip_differently_say_what_all_blocks_say(
    band: Band, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are told apart along two axes, and some lack copies: where others need them, that is found."""
    graph = from_text(SPLIT.format(band=bounds(band), rows=512, columns=1024, grid=8, loop=4))
    program = next(kernels(graph)).program
    assert isinstance(discharge_safety(program).verdict, Safe)
    copies = [one for one in _copies(program.body) if variables(one.condition) & {"by", "bz"}]
    assert copies
    changed = [program]
    for one, (name, limit) in product(copies, [("by", 7), ("bz", 3), ("bz", 1)]):
        rest = IntBin(IntOp.AND, one.condition, IntBin(IntOp.LT, Var(name), Int(limit)))
        changed.append(replace(program, body=_replaced(program.body, one, replace(one, condition=rest))))
    mine = [_settled(one) for one in changed]
    monkeypatch.setattr(enumerate_, "MAX_BLOCKS", 1 << 20)
    monkeypatch.setattr(enumerate_, "distinct_blocks", _one_by_one)
    assert mine == [_settled(one) for one in changed]
    assert all(mine[0].values())
    assert sum(not all(one.values()) for one in mine) > 2


# --- views

#: Moves of a mask: their operators, each with the shape that it is applied to.
_MOVES = (
    Op(OpKind.SLICE, (0,), Attrs(dim=1, start=3, stop=11)),
    Op(OpKind.SLICE, (0,), Attrs(dim=2, start=5, stop=14)),
    Op(OpKind.TRANSPOSE, (0,), Attrs(perm=(0, 2, 1))),
    Op(OpKind.PAD, (0,), Attrs(dim=1, before=2, after=3)),
    Op(OpKind.PAD, (0,), Attrs(dim=2, before=4, after=1)),
    Op(OpKind.REPEAT, (0,), Attrs(dim=0, times=2)),
    Op(OpKind.RESHAPE, (0,), Attrs(shape=(1, 8, 18))),
    Op(OpKind.RESHAPE, (0,), Attrs(shape=(1, 192, 1))),
    Op(OpKind.SLICE, (0,), Attrs(dim=1, start=7, stop=8)),
    Op(OpKind.SLICE, (0,), Attrs(dim=2, start=2, stop=3)),
)


def test_views_of_a_mask_have_the_bands_of_their_elements() -> None:
    found = 0
    for first, second in product(_MOVES, repeat=2):
        item = Input("M", DTensor((1, 12, 16), DType.BOOL), row_major((1, 12, 16)), Band(-4, 2))
        moved = Op(second.kind, (1,), second.attrs)
        graph = KernelGraph((item,), (first, moved, _reader(2)), (3,))
        try:
            types = kernel_types(graph)
        except GraphError:  # the second does not fit behind the first
            continue
        place, shape = storage_locations(graph)[2], types[2].shape
        band = band_at(graph.inputs, place, shape)
        if place.base != 0 or band is None:
            continue
        found += 1
        views = KernelGraph((item,), (first, moved), (2,))
        (wanted,) = reference(views, [mask(Band(-4, 2), (1, 12, 16)).astype(np.float64)])
        starts, ends = place.starts or (0, 0, 0), place.extents or shape
        inside = np.zeros(shape, bool)
        inside[tuple(slice(*pair) for pair in zip(starts, ends, strict=True))] = True
        np.testing.assert_array_equal(mask(band, shape) & inside, wanted != 0, str((first, second)))
    assert found > 15


def _reader(number: int) -> GraphDefined:
    """A kernel that reads a mask."""
    (op,) = from_text(
        """mugraph 1
d0 = input(M) dtype=bool shape=[1,4,4]
d1 = graph_defined(d0) grid=[1,1,1] block=[128,1,1] forloop_range=1 reduction_dimx=64 {
  s0 = input(d0) imap=[-,-,-] fmap=-
  s1 = logical_not(s0)
  s2 = accum_max(s1)
  output(s2) omap=[-,-,-]
}
output(d1)
"""
    ).ops
    assert isinstance(op, GraphDefined)
    return GraphDefined((number,), op.graph)


def test_bounds_are_the_nearest_with_the_same_mask() -> None:
    for rows, columns, lower, upper in product(
        (1, 3), (1, 4), (None, -(2**40), -3, 0, 3, 5, 2**40), (None, -5, -2, 3, 2**40)
    ):
        item = Input("M", DTensor((rows, columns), DType.BOOL), row_major((rows, columns)), Band(lower, upper))
        found = band_at((item,), StorageLocation(0, item.strides), (rows, columns))
        assert found is not None
        np.testing.assert_array_equal(found.mask((rows, columns)), mask(Band(lower, upper), (rows, columns)))
        assert all(one is None or -rows <= one <= columns for one in (found.lower, found.upper))


def test_other_tensors_have_no_band() -> None:
    item = Input("M", DTensor((4, 6), DType.BOOL), (8, 1), Band(None, 0))
    assert band_at((item,), StorageLocation(0, item.strides), (4, 6)) is None
    item = replace(item, strides=(6, 1))
    assert band_at((item,), StorageLocation(0, (6, 1)), (4, 6)) == Band(None, 0)
    assert band_at((item,), StorageLocation(0, (6, 2)), (4, 3)) is None  # every second column
    assert band_at((item,), StorageLocation(0, (4, 1)), (6, 4)) is None  # rows that begin elsewhere
    assert band_at((item,), StorageLocation(0, (6, 1), 3), (3, 6)) is None  # rows beyond the end of a row
    assert band_at((item,), StorageLocation(0, (2, 6, 1)), (3, 4, 2)) is None  # another dim steps along a row
    assert band_at((item,), StorageLocation(0, (0, 6, 1)), (3, 4, 6)) == Band(None, 0)
    assert band_at((replace(item, band=None),), StorageLocation(0, (6, 1)), (4, 6)) is None
    assert band_at((item,), StorageLocation(1, (6, 1)), (4, 6)) is None
