"""Masks in graph-defined kernels on the emulator, beside float64: what is not chosen has no influence."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.device import emulate
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.float64_reference import run as reference
from tests.codegen.lowering.masked_kernels import masked_inputs, masked_kernel
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels.example_kernels import ROUND, alone, laid_out, planned, stored

K = OpKind
FLOATS = [dtype for dtype in DType if dtype.floating]
BOTH = pytest.mark.parametrize("generic", [True, False], ids=["generic", "auto"])
LOWEST = Fraction(2**104 - 2**128)


def results(program: Program, graph: KernelGraph, arrays: Sequence[Any]) -> list[Any]:
    """What the kernel computes, which has to be safe."""
    assert isinstance(discharge_safety(program).verdict, Safe)
    found = emulate.run_kernel(program, [laid_out(a, item) for a, item in zip(arrays, graph.inputs, strict=True)])
    shapes = [tensor.shape for tensor in kernel_types(graph)[len(graph.inputs) :]]
    return [np.asarray(a, np.float64).reshape(shape) for a, shape in zip(found, shapes, strict=True)]


@BOTH
@pytest.mark.parametrize("seed", range(30))
def test_random_kernels(seed: int, generic: bool) -> None:
    """Finite where the reference is, and NaN where it is NaN; products of float32 make NaN of infinities."""
    graph = masked_kernel(seed, FLOATS[seed % 3])
    arrays = masked_inputs(graph, seed)
    _, program = planned(graph, generic=generic)
    products = any(one.kind is K.MATMUL for kernel in graph.ops for one in kernel.graph.ops)  # type: ignore[union-attr]
    types = kernel_types(graph)[len(graph.inputs) :]
    for found, exact, tensor in zip(results(program, graph, arrays), reference(graph, arrays), types, strict=True):
        wanted = stored(exact, tensor.dtype).astype(np.float64)
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(found), finite)
        if not products:
            np.testing.assert_array_equal(found[~finite], wanted[~finite])
        scale = np.abs(wanted[finite]).max(initial=1.0)
        worst = 8 * ROUND[tensor.dtype] * scale + 2e-5 if tensor.dtype.floating else 0.0
        np.testing.assert_allclose(found[finite], wanted[finite], rtol=0, atol=worst)


# --- attention -------------------------------------------------------------------------------------------------------


def attention(rows: int, keys: int, loop: int, dtype: DType, *, masked: bool, single: bool = False) -> KernelGraph:
    """Attention in one kernel with maxima of the scores: with a mask of booleans, or with one that is added.

    With ``single`` the maximum is that of the one iteration there is, and no running one.
    """
    depth, width = 16, 32
    mask = DTensor((rows, keys), DType.BOOL if masked else dtype)
    tensors = [DTensor((rows, depth), dtype), DTensor((depth, keys), dtype), DTensor((keys, width), dtype), mask]
    ops: list[Op] = [op(K.MATMUL, 0, 1)]
    scores = number = 4

    def then(kind: OpKind, *operands: int, **attrs: Any) -> int:
        nonlocal number
        ops.append(op(kind, *operands, **attrs))
        number += 2 if kind is K.RUNNING_MAX else 1
        return number - (1 if kind is K.RUNNING_MAX else 0)

    if masked:
        below = then(K.SELECT, 3, scores, value=LOWEST)
    else:
        scores = below = then(K.ADD, scores, 3)
    top = then(K.MAX if single else K.RUNNING_MAX, below, dim=1)
    weight = then(K.EXP, then(K.SUB, scores, top))
    if masked:
        weight = then(K.SELECT, 3, weight, value=Fraction(0))
    if single:
        total, value = then(K.ACCUM_SUM_LAST, weight), then(K.ACCUM_SUM, then(K.MATMUL, weight, 2))
    else:
        total = then(K.ACCUM_RESCALED_SUM_LAST, weight, top + 1)
        value = then(K.ACCUM_RESCALED_SUM, then(K.MATMUL, weight, 2), top + 1)
    result = then(K.DIV_NO_NAN, value, total)
    none = (None, None, None)
    inputs = (load(none), *(load(none, dim if loop > 1 else None) for dim in (1, 0, 1)))
    block = BlockGraph((1, 1, 1), (64, 1, 1), loop, 1, inputs, tuple(ops), (OutputSaver(result, none),))
    return alone(GraphDefined((0, 1, 2, 3), block), tensors)


def attended(q: Any, k: Any, v: Any, keep: Any) -> Any:
    """The same of PyTorch: zeros for a query without a key, and what is left out has no influence."""
    scores = np.where(keep, q @ k, -np.inf)
    top = np.maximum(scores.max(axis=1, keepdims=True), -1e300)
    weight = np.exp(scores - top)
    total = weight.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0.0, weight / np.where(total == 0, 1.0, total)) @ v


@BOTH
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("masked", [True, False], ids=["selected", "added"])
@pytest.mark.parametrize(("rows", "keys", "loop"), [(16, 64, 4), (5, 24, 3), (16, 32, 1)])
@pytest.mark.parametrize("single", [True, False], ids=["maximum", "running"])
def test_attention(rows: int, keys: int, loop: int, dtype: DType, masked: bool, single: bool, generic: bool) -> None:
    """Queries without a key, and iterations in which a query has none, before and behind those in which it has."""
    if single and loop > 1:
        pytest.skip("a maximum of one iteration is none of all")
    graph = attention(rows, keys, loop, dtype, masked=masked, single=single)
    rng = np.random.default_rng(rows + keys)
    keep = rng.random((rows, keys)) < 0.5
    keep[0] = False
    keep[1, : keys // 2] = False
    keep[2, keys // 2 :] = False
    q, k, v = (stored(rng.standard_normal(item.tensor.shape), dtype).astype(np.float64) for item in graph.inputs[:3])
    _, program = planned(graph, generic=generic)
    mask = keep * 1.0 if masked else np.where(keep, 0.0, -np.inf)
    if masked:
        k[:, 3], keep[:, 3] = np.nan, False  # scores of a key that nobody reads
        v[3] = 0.0
        mask = keep * 1.0
    (found,) = results(program, graph, [q, k, v, mask])
    wanted = attended(q, np.nan_to_num(k), v, keep)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * ROUND[dtype] * np.abs(wanted).max() + 2e-5)
    assert not found[0].any()


def bytes_read(plan: Plan, name: str) -> int:
    return next(param.dtype.bytes for param in plan.params if param.name == name)


def test_masks_are_read_as_bytes() -> None:
    """In device memory and in shared memory, in vectors: 16 bytes of a copy are 16 elements."""
    plan, program = planned(attention(16, 64, 4, DType.FLOAT16, masked=True))
    (mask,) = [param for param in plan.params if param.dtype is DType.BOOL]
    (buffer,) = [buffer for buffer in program.shared if buffer.dtype is DType.BOOL]
    placement = plan.tensors[3].placement.shared
    assert placement is not None
    assert (buffer.name, placement.pitch) == ("s3", 16)
    assert buffer.bytes == 16 * 16 * placement.stages
    assert bytes_read(plan, mask.name) == 1


@BOTH
@pytest.mark.parametrize("dtype", FLOATS)
def test_zero_times_anything_is_zero(dtype: DType, generic: bool) -> None:
    """A constant reads nothing: exp overflows in what it was scaled from."""
    none = (None, None, None)
    ops = (
        op(K.EXP, 0),
        op(K.SCALE, 1, factor=Fraction(0)),
        op(K.SHIFT, 2, shift=Fraction(5, 2)),
        op(K.MINIMUM, 1, 3),
        op(K.ACCUM_SUM, 4),
        op(K.ACCUM_SUM, 2),
    )
    block = BlockGraph((1, 1, 1), (64, 1, 1), 2, 1, (load(none, 1),), ops, (OutputSaver(5, none), OutputSaver(6, none)))
    graph = alone(GraphDefined((0,), block), [DTensor((4, 16), dtype)])
    values = np.full((4, 16), 1000.0)
    values[0, :4] = np.nan, np.inf, -np.inf, 0.0
    values = stored(values, dtype).astype(np.float64)
    _, program = planned(graph, generic=generic)
    clamped, zeros = results(program, graph, [values])
    assert not zeros.any()
    np.testing.assert_array_equal(clamped, stored(reference(graph, [values])[0], dtype))


@BOTH
@pytest.mark.parametrize("kind", [K.MAX, K.ACCUM_MAX])
def test_maxima_are_those_of_pytorch(kind: OpKind, generic: bool) -> None:
    """NaN of a row that has one, and -inf of a row of -inf, in float32."""
    none = (None, None, None)
    ops = (op(K.MAX, 0, dim=1), op(K.ACCUM_SUM, 1)) if kind is K.MAX else (op(K.ACCUM_MAX, 0),)
    loop = 1 if kind is K.MAX else 4
    inputs = (load(none, None if loop == 1 else 1),)
    block = BlockGraph((1, 1, 1), (64, 1, 1), loop, 1, inputs, ops, (OutputSaver(len(ops), none),))
    graph = alone(GraphDefined((0,), block), [DTensor((4, 64), DType.FLOAT32)])
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32).astype(np.float64)
    values[1, 7], values[2], values[3, 9] = np.nan, -np.inf, np.inf
    _, program = planned(graph, generic=generic)
    (found,) = results(program, graph, [values])
    np.testing.assert_array_equal(found, reference(graph, [values])[0])
