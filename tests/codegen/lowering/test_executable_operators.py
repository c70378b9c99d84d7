"""Predefined operators as kernels: every kind against float64, safe by its obligations; a few on the emulator."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mirage_formal.codegen.lowering.strided_regions import Operation
from mirage_formal.codegen.matrix_sides import MatrixSide, matrix_side
from mirage_formal.codegen.predefined_kernels import SUPPORTED, copy_program, operator_program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.device.cublas import StridedBatch, strided_batches
from mirage_formal.device.emulate import run_kernel as emulate
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Attrs, Level, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import UnsupportedError
from tests.kit.graphs.function_values import METHODS
from tests.kit.kernels.program_interpreter import run as interpret

K = OpKind
TARGET = load_target("h200")
A = Attrs
CASES = [
    *((kind, A(), ((2, 3, 40),)) for kind in METHODS),
    (K.MAXIMUM, A(), ((2, 3, 40), (2, 1, 40))),
    (K.MINIMUM, A(), ((4, 1), (1, 33))),
    (K.SHIFT, A(shift=Fraction(-1, 3)), ((6, 6),)),
    (K.SLICE, A(dim=1, start=2, stop=9), ((3, 12, 5),)),
    (K.SLICE, A(dim=0, start=4, stop=5), ((5, 4),)),
    (K.PAD, A(dim=1, before=5, after=2), ((3, 4, 2),)),
    (K.PAD, A(dim=0, before=0, after=9), ((5, 4),)),
    (K.PAD, A(dim=1, before=1, after=0), ((5, 4),)),
    (K.ADD, A(), ((2, 3, 40), (2, 1, 40))),
    (K.SUB, A(), ((4, 1), (1, 33))),
    (K.MUL, A(), ((128,), (128,))),
    (K.DIV, A(), ((3, 7), (3, 7))),
    (K.SCALE, A(factor=Fraction(-1, 3)), ((6, 6),)),
    (K.SUM, A(dim=1), ((3, 50, 4),)),
    (K.SUM, A(dim=0), ((200,),)),
    (K.MEAN, A(dim=2), ((2, 2, 300),)),
    (K.MAX, A(dim=0), ((65, 3),)),
    (K.SOFTMAX, A(dim=1), ((3, 200),)),
    (K.RMS_NORM, A(dim=1), ((3, 130),)),
    (K.RMS_NORM, A(dim=0, eps=Fraction(1, 100)), ((40, 3), (40, 1))),
    (K.LAYER_NORM, A(dim=1, eps=Fraction(1, 1000)), ((2, 256), (1, 256), (1, 256))),
    (K.TRANSPOSE, A(perm=(2, 0, 1)), ((2, 3, 5),)),
    (K.RESHAPE, A(shape=(6, 5)), ((2, 3, 5),)),
    (K.CONCAT, A(dim=1), ((2, 3, 2), (2, 5, 2))),
    (K.CONCAT, A(dim=0), ((5, 2), (1, 2))),
    (K.REPEAT, A(dim=1, times=7), ((3, 1, 4),)),
    (K.CAST, A(dtype=DType.FLOAT32), ((9,),)),
    (K.SCALE, A(factor=Fraction(0)), ((6, 6),)),
    (K.DIV_NO_NAN, A(), ((3, 7), (3, 7))),
    (K.ROUND_FLOAT16, A(), ((3, 7),)),
    (K.ROUND_BFLOAT16, A(), ((3, 7),)),
    *((kind, A(), ((2, 3, 40), (2, 1, 40))) for kind in (K.EQ, K.LT, K.LE, K.GT, K.GE)),
    *((kind, A(value=Fraction(1, 3)), ((2, 3, 40),)) for kind in (K.EQ, K.LT, K.LE, K.GT, K.GE)),
]
#: Operators of masks, with those of their operands that are none.
MASKS = [
    *(
        (K.SELECT, A(), shapes, (1, 2))
        for shapes in (((4, 33),) * 3, ((1, 33), (4, 33), (4, 1)), ((4, 1), (1, 33), (4, 33)))
    ),
    (K.SELECT, A(value=Fraction(-5)), ((4, 1), (4, 64)), (1,)),
    (K.LOGICAL_NOT, A(), ((7, 9),), ()),
    (K.CAST, A(dtype=DType.FLOAT32), ((7, 16),), ()),
    (K.CAST, A(dtype=DType.FLOAT16), ((7, 9),), ()),
    (K.CAST, A(dtype=DType.BOOL), ((7, 9),), ()),
    *((kind, A(), ((4, 64), (1, 64)), ()) for kind in (K.MUL, K.MAXIMUM, K.EQ)),
    (K.MAX, A(dim=1), ((3, 200),), ()),
    (K.MAX, A(dim=0), ((200, 24),), ()),
    (K.TRANSPOSE, A(perm=(2, 0, 1)), ((2, 3, 5),), ()),
    (K.TRANSPOSE, A(perm=(1, 0)), ((96, 80),), ()),
    (K.RESHAPE, A(shape=(6, 5)), ((2, 3, 5),), ()),
    (K.SLICE, A(dim=1, start=2, stop=9), ((3, 12, 5),), ()),
    (K.CONCAT, A(dim=1), ((2, 3, 2), (2, 5, 2)), ()),
    (K.REPEAT, A(dim=1, times=7), ((3, 1, 4),), ()),
    (K.PAD, A(dim=1, before=5, after=2), ((3, 4, 2),), ()),
]


def strided(shape: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    """Row-major strides, or those of a tensor whose dims lie in the opposite order in memory."""
    return tuple(reversed(row_major(tuple(reversed(shape))))) if transposed else row_major(shape)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("kind", "attrs", "shapes"), CASES, ids=[str(case[0]) for case in CASES])
def test_operators(kind: OpKind, attrs: Attrs, shapes: tuple[tuple[int, ...], ...], transposed: bool) -> None:
    dtype = DType.FLOAT32
    inputs = tuple(Input(f"x{i}", DTensor(s, dtype), strided(s, transposed)) for i, s in enumerate(shapes))
    op = Op(kind, tuple(range(len(shapes))), attrs)
    graph = KernelGraph(inputs, (op,), (len(shapes),))
    result = kernel_types(graph)[-1]
    program = operator_program("op0", Operation(op), tuple((x.tensor, x.strides, 0) for x in inputs), result, TARGET)
    assert isinstance(discharge_safety(program).verdict, Safe)
    random = np.random.default_rng(5)
    arrays = [random.standard_normal(s).astype(np.float32).astype(np.float64) for s in shapes]
    if kind in (K.SQRT, K.LOG):
        arrays = [np.abs(a) for a in arrays]
    memory = []
    for item, array in zip(inputs, arrays, strict=True):
        flat = np.zeros(array.size, np.float32)
        np.lib.stride_tricks.as_strided(flat, item.tensor.shape, tuple(4 * s for s in item.strides))[...] = array
        memory.append(flat)
    (got,) = interpret(program, memory)
    (want,) = float64_reference.run(graph, arrays)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("kind", "attrs", "shapes", "numbers"), MASKS, ids=[str(case[0]) for case in MASKS])
def test_operators_of_masks(
    kind: OpKind, attrs: Attrs, shapes: tuple[tuple[int, ...], ...], numbers: tuple[int, ...], transposed: bool
) -> None:
    """What is not chosen is NaN or infinite; masks are bytes."""
    types = [DType.FLOAT32 if i in numbers else DType.BOOL for i in range(len(shapes))]
    inputs = tuple(
        Input(f"x{i}", DTensor(s, dtype), strided(s, transposed))
        for i, (s, dtype) in enumerate(zip(shapes, types, strict=True))
    )
    op = Op(kind, tuple(range(len(shapes))), attrs)
    graph = KernelGraph(inputs, (op,), (len(shapes),))
    result = kernel_types(graph)[-1]
    program = operator_program("op0", Operation(op), tuple((x.tensor, x.strides, 0) for x in inputs), result, TARGET)
    assert [param.dtype for param in program.params] == [*types, result.dtype]
    assert isinstance(discharge_safety(program).verdict, Safe)
    random = np.random.default_rng(5)
    arrays = [random.random(s) < 0.5 for s in shapes]
    for number in numbers:
        own = random.standard_normal(shapes[number])
        arrays[number] = np.where(random.random(own.shape) < 0.2, [np.nan, np.inf][number % 2], own.astype(np.float32))
    memory = []
    for item, array in zip(inputs, arrays, strict=True):
        flat = np.zeros(array.size, np.float32)
        np.lib.stride_tricks.as_strided(flat, item.tensor.shape, tuple(4 * s for s in item.strides))[...] = array
        memory.append(flat)
    (want,) = float64_reference.run(graph, [np.asarray(a, np.float64) for a in arrays])
    for run in (interpret, emulate):
        (got,) = run(program, memory)
        np.testing.assert_array_equal(np.asarray(got, np.float64).reshape(want.shape), want)


def test_every_kernel_operator_has_a_kernel() -> None:
    kernel_level = {kind for kind, spec in SPECS.items() if Level.KERNEL in spec.levels}
    assert {case[0] for case in (*CASES, *MASKS)} == SUPPORTED
    assert kernel_level - SUPPORTED == {K.MATMUL}


def test_half_precision_is_rounded_once() -> None:
    """A mean over 4096 halves is right to half precision, so it was not summed in it."""
    tensor = DTensor((1, 4096), DType.FLOAT16)
    op = Op(K.MEAN, (0,), A(dim=1))
    program = operator_program("op0", Operation(op), ((tensor, (4096, 1), 0),), DTensor((1, 1), DType.FLOAT16), TARGET)
    x = (1 + np.random.default_rng(0).random(4096)).astype(np.float16)
    (got,) = emulate(program, [x])
    assert got[0] == np.float16(x.astype(np.float64).mean())


def test_copies_and_refusals() -> None:
    tensor = DTensor((4, 3), DType.FLOAT16)
    x = np.arange(12, dtype=np.float16)
    (got,) = emulate(copy_program("copy0", (tensor, (1, 4), 0), TARGET), [x])
    assert np.array_equal(got.reshape(4, 3), x.reshape(3, 4).T)
    with pytest.raises(UnsupportedError, match="kernel-level operator"):
        operator_program("op0", Operation(Op(K.MATMUL, (0, 1))), ((tensor, (3, 1), 0),), tensor, TARGET)
    huge = DTensor((1 << 16, 1 << 15), DType.FLOAT16)
    with pytest.raises(UnsupportedError, match="fewer than 2\\^31"):
        copy_program("copy0", (huge, row_major(huge.shape), 0), TARGET)


# --- products --------------------------------------------------------------------------------------------------------


def test_sides() -> None:
    assert matrix_side((8, 5), (5, 1)) == MatrixSide(False, 5)
    assert matrix_side((8, 5), (9, 1)) == MatrixSide(False, 9)
    assert matrix_side((8, 5), (1, 8)) == MatrixSide(True, 8)
    assert matrix_side((1, 5), (77, 1)) == MatrixSide(False, 5)
    assert matrix_side((1, 5), (1, 3)) == MatrixSide(True, 3)
    assert matrix_side((5, 1), (2, 1)) == MatrixSide(False, 2)
    assert matrix_side((2, 3, 1), (3, 1, 1)) == MatrixSide(False, 1)
    with pytest.raises(UnsupportedError, match="contiguous"):
        matrix_side((8, 5), (10, 2))
    with pytest.raises(UnsupportedError, match="contiguous"):
        matrix_side((8, 5), (0, 0))


def test_batches() -> None:
    assert strided_batches((), ((), (), ())) == (StridedBatch(1, (0, 0, 0), (0, 0, 0)),)
    assert strided_batches((3,), ((10,), (20,), (40,))) == (StridedBatch(3, (0, 0, 0), (10, 20, 40)),)
    assert strided_batches((2, 3), ((30, 10), (60, 20), (120, 40))) == (StridedBatch(6, (0, 0, 0), (10, 20, 40)),)
    assert strided_batches((2, 3), ((31, 10), (60, 20), (120, 40))) == (
        StridedBatch(3, (0, 0, 0), (10, 20, 40)),
        StridedBatch(3, (31, 60, 120), (10, 20, 40)),
    )
    assert strided_batches((2, 1), ((5, 99), (7, 99), (9, 99))) == (StridedBatch(2, (0, 0, 0), (5, 7, 9)),)
