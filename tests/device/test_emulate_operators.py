"""Operators of everyday programs on the emulator, in float16: as kernels of their own, and fused in thread graphs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mirage_formal.codegen.lowering.strided_regions import Operation
from mirage_formal.codegen.predefined_kernels import operator_program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.device import emulate
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.search.thread import fuse_threads
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals
from tests.kit.graphs import workloads as w
from tests.kit.graphs.function_values import METHODS
from tests.kit.kernels.example_kernels import compare, inputs_for

K = OpKind
A = Attrs
ALONE = [
    *((kind, A(), ((6, 40),)) for kind in METHODS),
    (K.SHIFT, A(shift=Fraction(-7, 3)), ((6, 40),)),
    (K.MAXIMUM, A(), ((6, 40), (1, 40))),
    (K.MINIMUM, A(), ((6, 1), (6, 40))),
    (K.SLICE, A(dim=1, start=3, stop=37), ((6, 40),)),
    (K.PAD, A(dim=1, before=3, after=37), ((6, 40),)),
]
#: Functions that are not defined everywhere.
POSITIVE = {kind for kind, row in FUNCTION_SPECS.items() if row.domain is not Reals.ALL}


@pytest.mark.parametrize(("kind", "attrs", "shapes"), ALONE, ids=[str(case[0]) for case in ALONE])
def test_kernels_of_their_own(kind: OpKind, attrs: Attrs, shapes: tuple[tuple[int, ...], ...]) -> None:
    op = Op(kind, tuple(range(len(shapes))), attrs)
    graph = KernelGraph(tuple(w.tensor(f"x{i}", *shape) for i, shape in enumerate(shapes)), (op,), (len(shapes),))
    operands = tuple((item.tensor, row_major(item.tensor.shape), 0) for item in graph.inputs)
    program = operator_program("op0", Operation(op), operands, kernel_types(graph)[-1], load_target("h200"))
    assert isinstance(discharge_safety(program).verdict, Safe)
    arrays = inputs_for(graph, scale=1.0, low=0.05 if kind in POSITIVE else None)
    (found,) = emulate.run_kernel(program, [np.asarray(a, np.float16).reshape(-1) for a in arrays])
    (wanted,) = float64_reference.run(graph, arrays)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-3, atol=1e-6)


def fused(*ops: Op, inputs: int = 2) -> KernelGraph:
    """Elementwise operators on tiles of 6 x 40, as one thread graph in a loop that adds up what they give."""
    tensors = tuple(w.tensor(f"x{i}", 12, 80) for i in range(inputs))
    last = inputs + len(ops) - 1
    body = [*ops, w.op(K.ACCUM_SUM, last)]
    loads = [w.load((0, None, None), 1)] * inputs
    kernel = w.kernel(range(inputs), (2, 1, 1), 2, loads, body, [(last + 1, (0, None, None))])
    return fuse_threads(KernelGraph(tensors, (kernel,), (inputs,)))


FUSED = {
    "functions": fused(w.op(K.TANH, 0), w.op(K.ERF, 1), w.op(K.MUL, 2, 3), w.op(K.ABS, 4)),
    "logarithm and reciprocal": fused(
        w.op(K.ABS, 0), w.op(K.SHIFT, 2, shift=Fraction(1, 2)), w.op(K.LOG, 3), w.op(K.RECIPROCAL, 3), w.op(K.MUL, 4, 5)
    ),
    "extremes": fused(w.op(K.MAXIMUM, 0, 1), w.op(K.SHIFT, 2, shift=Fraction(-1, 4)), w.op(K.MINIMUM, 3, 0)),
    "softplus": fused(w.op(K.EXP, 0), w.op(K.SHIFT, 1, shift=Fraction(1)), w.op(K.LOG, 2), w.op(K.TANH, 3), inputs=1),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("generic", [False, True], ids=["auto", "generic"])
def test_fused(name: str, generic: bool) -> None:
    graph = FUSED[name]
    compare(graph, generic=generic, arrays=inputs_for(graph, scale=1.0), run=emulate.run_kernel)
