"""Predefined operators at awkward extents and strides: safe, right, and 16 bytes at a time where that is possible."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest

from mirage_formal.codegen import predefined_kernels
from mirage_formal.codegen.lowering.strided_regions import Operation
from mirage_formal.codegen.predefined_kernels import operator_program
from mirage_formal.codegen.program.access import Mode, list_accesses
from mirage_formal.codegen.program.program import Param, Program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import run_kernel as emulate
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import EXTREMES, SPECS, Attrs, Family, Level, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics import float64_reference
from tests.kit.kernels.program_interpreter import from_storage, to_storage
from tests.kit.kernels.program_interpreter import run as interpret

K, A = OpKind, Attrs
TARGET = load_target("h200")
HALF, SINGLE = DType.FLOAT16, DType.FLOAT32
FLOATS = [dtype for dtype in DType if dtype.floating]
#: Extents that no tile divides, ranks up to the most, dims of extent 1 between others.
SHAPES: tuple[Shape, ...] = (
    (1,),
    (7,),
    (131,),
    (3, 1, 5),
    (17, 33),
    (5, 8, 24),
    (2, 31, 1, 16),
    (1, 2, 1, 3, 2, 1, 4, 5),
)
#: Beyond what is computed here: they must be planned and safe.
LARGE: tuple[Shape, ...] = (
    (1_000_000,),
    (1_000_003,),
    (3, 1_000_000),
    (1_000_003, 3),
    (1024, 50257),
    (31, 255, 4097),
    (64, 16, 1000),
    (7, 4097, 2, 129),
)


def attributes(kind: OpKind, shape: Shape, dim: int) -> tuple[Attrs, list[Shape]]:  # noqa: C901 - one case per operator
    """Attributes and operands of an operator on a tensor of this shape, along a dim where it has one."""
    extent = shape[dim]

    def other(n: int) -> Shape:
        return (*shape[:dim], n, *shape[dim + 1 :])

    match kind:
        case _ if SPECS[kind].family is Family.ARITHMETIC and kind not in EXTREMES:
            return A(), [shape, other(1)]
        case _ if kind in EXTREMES or SPECS[kind].family is Family.COMPARISON:
            return (A(), [shape, other(1)]) if dim else (A(value=Fraction(1, 3)), [shape])
        case K.SELECT:
            return (A(), [other(1), shape, shape]) if dim else (A(value=Fraction(-2)), [shape, other(1)])
        case K.SCALE:
            return A(factor=Fraction(-1, 3)), [shape]
        case K.SHIFT:
            return A(shift=Fraction(-1, 3)), [shape]
        case K.CAST:
            return A(dtype=SINGLE), [shape]
        case K.SUM | K.MEAN | K.MAX | K.SOFTMAX:
            return A(dim=dim), [shape]
        case K.RMS_NORM:
            return A(dim=dim, eps=Fraction(1, 100)), [shape, other(1)]
        case K.LAYER_NORM:
            weight = tuple(n if d == dim else 1 for d, n in enumerate(shape))
            return A(dim=dim, eps=Fraction(1, 100)), [shape, weight, weight]
        case K.TRANSPOSE:
            return A(perm=tuple((d + dim + 1) % len(shape) for d in range(len(shape)))), [shape]
        case K.RESHAPE:
            return A(shape=tuple(reversed(shape))), [shape]
        case K.CONCAT:
            return A(dim=dim), [shape, other(9)]
        case K.REPEAT:
            return A(dim=dim, times=extent), [other(1)]
        case K.SLICE:
            return A(dim=dim, start=extent // 3, stop=extent), [shape]
        case K.PAD:
            return A(dim=dim, before=dim % 2 * 8, after=3), [shape]
        case _:
            return A(), [shape]


def masked(kind: OpKind, number: int) -> bool:
    """Whether an operand of an operator is a mask."""
    return kind is K.LOGICAL_NOT or (kind is K.SELECT and number == 0)


KINDS = sorted(kind for kind, spec in SPECS.items() if Level.KERNEL in spec.levels and kind is not K.MATMUL)
Laid = tuple[tuple[int, ...], int]


def laid(shape: Shape, way: int) -> Laid:
    """Strides and offset: row-major, column-major behind some elements, or rows with gaps."""
    if way == 1:
        return tuple(reversed(row_major(tuple(reversed(shape))))), 3
    if way == 2:
        return row_major((*shape[:-1], shape[-1] + 8)), 8
    return row_major(shape), 0


def program_of(
    kind: OpKind, attrs: Attrs, shapes: list[Shape], dtype: DType, ways: list[Laid] | None = None
) -> tuple[KernelGraph, Program]:
    """The graph of one operator, and its kernel."""
    types = [DType.BOOL if masked(kind, i) else dtype for i in range(len(shapes))]
    inputs = tuple(Input(f"x{i}", DTensor(s, types[i]), row_major(s)) for i, s in enumerate(shapes))
    op = Op(kind, tuple(range(len(shapes))), attrs)
    graph = KernelGraph(inputs, (op,), (len(shapes),))
    places = [laid(s, 0) for s in shapes] if ways is None else ways
    operands = tuple((item.tensor, *place) for item, place in zip(inputs, places, strict=True))
    return graph, operator_program("op0", Operation(op), operands, kernel_types(graph)[-1], TARGET)


def in_memory(array: np.ndarray, place: Laid) -> np.ndarray:
    """A tensor's elements where its strides and offset put them."""
    strides, offset = place
    flat = np.zeros(1 + offset + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)), np.float32)
    view = np.lib.stride_tricks.as_strided(flat[offset:], array.shape, tuple(4 * s for s in strides))
    view[...] = array
    return flat


def widths(program: Program, mode: Mode) -> set[int]:
    """Bytes of all accesses to device memory of one mode."""
    return {
        access.bytes
        for access in list_accesses(program).accesses
        if isinstance(access.target, Param) and access.mode is mode
    }


@pytest.mark.parametrize("kind", KINDS)
def test_awkward_extents(kind: OpKind) -> None:
    for number, shape in enumerate(SHAPES):
        for dim in {0, len(shape) // 2, len(shape) - 1}:
            attrs, shapes = attributes(kind, shape, dim)
            ways = [laid(s, (number + dim + i) % 3) for i, s in enumerate(shapes)]
            graph, program = program_of(kind, attrs, shapes, SINGLE, ways)
            assert isinstance(discharge_safety(program).verdict, Safe), (shape, dim)
            random = np.random.default_rng(number)
            arrays = [random.standard_normal(s).astype(np.float32).astype(np.float64) for s in shapes]
            if kind in (K.SQRT, K.LOG, K.DIV, K.RECIPROCAL):
                arrays = [np.abs(a) + 0.1 for a in arrays]
            arrays = [np.sign(np.maximum(a, 0)) if masked(kind, i) else a for i, a in enumerate(arrays)]
            (found,) = interpret(program, [in_memory(a, place) for a, place in zip(arrays, ways, strict=True)])
            (wanted,) = float64_reference.run(graph, arrays)
            np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=3e-5, atol=3e-5, err_msg=str(shape))


@pytest.mark.parametrize("kind", [K.SILU, K.ADD, K.CONCAT, K.TRANSPOSE, K.SUM, K.MAX, K.SOFTMAX, K.LAYER_NORM])
def test_large_extents(kind: OpKind) -> None:
    for number, shape in enumerate(LARGE):
        dim = (number * 2 + 1) % len(shape)
        attrs, shapes = attributes(kind, shape, dim)
        _, program = program_of(kind, attrs, shapes, HALF, [laid(s, number % 3) for s in shapes])
        assert isinstance(discharge_safety(program).verdict, Safe), (shape, dim)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("kind", "attrs", "shapes"),
    [
        (K.SOFTMAX, A(dim=1), [(3, 100)]),
        (K.SOFTMAX, A(dim=1), [(2, 40000)]),
        (K.MEAN, A(dim=1), [(2, 30001)]),
        (K.LAYER_NORM, A(dim=1), [(5, 48), (1, 48), (1, 48)]),
        (K.TRANSPOSE, A(perm=(1, 0)), [(64, 96)]),
        (K.CONCAT, A(dim=1), [(3, 5, 16), (3, 1, 16)]),
        (K.PAD, A(dim=1, before=8, after=16), [(3, 40)]),
    ],
)
def test_on_the_emulator(kind: OpKind, attrs: Attrs, shapes: list[Shape], dtype: DType) -> None:
    graph, program = program_of(kind, attrs, shapes, dtype)
    random = np.random.default_rng(1)
    arrays = [to_storage(random.standard_normal(s), dtype) for s in shapes]
    (found,) = emulate(program, [a.reshape(-1) for a in arrays])
    (wanted,) = float64_reference.run(graph, [from_storage(a, dtype).astype(np.float64) for a in arrays])
    tolerance = {SINGLE: 1e-5, HALF: 1e-3, DType.BFLOAT16: 8e-3}[dtype]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("dim", "first", "second"),
    [(0, (2, 5, 7, 16), (3, 5, 7, 16)), (1, (2, 5, 7, 16), (2, 1, 7, 16)), (2, (2, 8, 4096, 64), (2, 8, 1, 64))],
)
def test_concatenations_move_16_bytes(dim: int, first: Shape, second: Shape) -> None:
    _, program = program_of(K.CONCAT, A(dim=dim), [first, second], HALF)
    assert widths(program, Mode.READ) == widths(program, Mode.WRITE) == {16}
    assert {param.align for param in program.params} == {16}
    elements = prod(first) + prod(second)
    assert program.grid[0] * program.threads * 8 >= elements / 4  # no more than 4 vectors a thread


def test_concatenations_are_as_wide_as_the_boundary_allows() -> None:
    _, program = program_of(K.CONCAT, A(dim=1), [(4, 12), (4, 20)], HALF)
    assert widths(program, Mode.WRITE) == {8}
    _, program = program_of(K.CONCAT, A(dim=1), [(4, 3), (4, 5)], HALF)
    assert widths(program, Mode.WRITE) == {2}


@pytest.mark.parametrize("repeated", [0, 1])
@pytest.mark.parametrize("dim", [0, 1])
def test_concatenations_of_what_is_repeated_along_rows(dim: int, repeated: int) -> None:
    shapes: list[Shape] = [(4, 16), (4, 16)]
    ways: list[Laid] = [((16, 1), 0), ((16, 1), 0)]
    ways[repeated] = ((1, 0), 0)
    graph, program = program_of(K.CONCAT, A(dim=dim), shapes, SINGLE, ways)
    assert isinstance(discharge_safety(program).verdict, Safe)
    arrays = [np.arange(64, dtype=np.float32).reshape(4, 16) for _ in shapes]
    arrays[repeated] = np.broadcast_to(-np.arange(4, dtype=np.float32).reshape(4, 1), (4, 16))
    given = [a[:, 0] if i == repeated else a.reshape(-1) for i, a in enumerate(arrays)]
    (found,) = emulate(program, given)
    (wanted,) = float64_reference.run(graph, [a.astype(np.float64) for a in arrays])
    assert np.array_equal(found.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not K.TRANSPOSE])
def test_aligned_shapes_have_no_scalar_access(kind: OpKind) -> None:
    """But for operands that are repeated along rows, and for results that have one element for each row."""
    shape = (48, 256)
    attrs, shapes = attributes(kind, shape, 1)
    families = Family.ARITHMETIC, Family.COMPARISON, Family.SELECTION
    if SPECS[kind].family in families or kind in (K.CONCAT, K.REPEAT, K.RMS_NORM, K.PAD, K.SLICE):
        attrs, shapes = attributes(kind, shape, 0)
    for dtype in (HALF, SINGLE):
        result = HALF if dtype is SINGLE and kind is K.CAST else None
        _, program = program_of(kind, A(dtype=result) if result else attrs, shapes, dtype)
        mask = 16 // dtype.bytes  # of masks as many elements as of the numbers beside them
        assert widths(program, Mode.READ) == ({16, mask} if kind is K.SELECT else {16})
        if SPECS[kind].family is not Family.REDUCTION:
            assert widths(program, Mode.WRITE) == {mask if SPECS[kind].family is Family.COMPARISON else 16}


def test_transposed_copies_read_and_store_whole_vectors() -> None:
    _, program = program_of(K.TRANSPOSE, A(perm=(1, 0)), [(256, 512)], HALF)
    assert widths(program, Mode.READ) == widths(program, Mode.WRITE) == {16}


@pytest.mark.parametrize("dtype", FLOATS)
def test_maxima_may_be_infinite(dtype: DType) -> None:
    _, program = program_of(K.MAX, A(dim=1), [(2, 70)], dtype)
    (found,) = emulate(program, [to_storage(np.full(140, -np.inf), dtype)])
    assert (found == -np.inf).all()


@pytest.mark.parametrize("kind", [K.SUM, K.MEAN, K.MAX, K.SOFTMAX, K.RMS_NORM, K.LAYER_NORM])
def test_fibre_by_fibre(kind: OpKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left for fibres that no block graph fits takes all others too."""
    monkeypatch.setattr(predefined_kernels, "_plan_program", lambda *_: None)
    test_awkward_extents(kind)
    for long in ((300, 7, 6000, 1), (1_000_003, 1, 3)):  # beyond what is looked at element by element
        _, program = program_of(kind, attributes(kind, long, long.index(1))[0], [long], HALF)
        assert isinstance(discharge_safety(program).verdict, Safe)
    attrs, (shape, *_) = attributes(kind, (3, 2048), 1)
    _, program = program_of(kind, attrs, [shape], HALF)
    assert widths(program, Mode.READ) == {16}
    assert isinstance(discharge_safety(program).verdict, Safe)


def test_small_tiles_leave_no_thread_without_a_row() -> None:
    """Short rows share a block: a block for each would have 3 elements."""
    _, program = program_of(K.SUM, A(dim=1), [(1_000_003, 3)], HALF)
    assert program.grid[0] * program.threads < 1_000_003
