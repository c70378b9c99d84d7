"""Every operator has a meaning in every domain, or a stated reason why it has none."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Attrs, Lax, Level, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import faults
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.prove.identity_testing.draw import field_point
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.prove.identity_testing.tape_evaluation import run_tape
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.straight_line_trace import NotLax, lax_class, needed_parts, record_tape
from tests.kit.graphs import workloads as w
from tests.kit.graphs.random_graphs import READS_MASK, with_masks

ATTRS: dict[str, Any] = {
    "dim": 1,
    "factor": Fraction(3, 7),
    "shape": (6, 8),
    "perm": (1, 0),
    "times": 3,
    "dtype": DType.FLOAT32,
    "shift": Fraction(-2, 7),
    "start": 3,
    "stop": 8,
    "before": 2,
    "after": 1,
}


def example(kind: OpKind, *, value: bool = False) -> KernelGraph:
    """The smallest program around one operator, with a number in place of its last operand if that is asked for."""
    spec = SPECS[kind]
    attrs = Attrs(**{name: ATTRS[name] for name in spec.required}, value=Fraction(4, 3) if value else None)
    shapes = [(4, 12)] * (spec.max_arity - value)
    if kind is OpKind.MATMUL:
        shapes = [(4, 12), (12, 4)]
    elif kind is OpKind.REPEAT:
        shapes = [(4, 1)]
    elif "rescaled" in kind:
        shapes = [(4, 12), (4, 2)]  # The loop of two leaves a factor of last extent 1.
    inputs = tuple(w.tensor(f"t{i}", *shape) for i, shape in enumerate(shapes))
    if kind in READS_MASK:
        inputs = (replace(inputs[0], tensor=replace(inputs[0].tensor, dtype=DType.BOOL)), *inputs[1:])
    op = Op(kind, tuple(range(len(shapes))), attrs)
    if Level.KERNEL in spec.levels:
        return KernelGraph(inputs, (op,), (len(shapes),))
    last = len(shapes) + spec.outputs - 1
    ops = [op] if spec.accumulator else [op, Op(OpKind.ACCUM_SUM, (last,))]
    last += not spec.accumulator
    loads = [w.load((0, None, None), 1) for _ in shapes]
    block = w.kernel(range(len(shapes)), (2, 1, 1), 2, loads, ops, [(last, (0, None, None))], dimx=2)
    return KernelGraph(inputs, (block,), (len(shapes),))


FORMS = [(kind, False) for kind in OpKind] + [(kind, True) for kind, spec in SPECS.items() if "value" in spec.optional]
every_form = pytest.mark.parametrize(("kind", "value"), FORMS, ids=[f"{k}{'-value' * v}" for k, v in FORMS])


@every_form
def test_examples_are_well_formed(kind: OpKind, value: bool) -> None:
    assert faults(example(kind, value=value)) == []


@every_form
def test_float64(kind: OpKind, value: bool) -> None:
    graph = example(kind, value=value)
    numbers = np.random.default_rng(1)
    arrays = with_masks(graph, [numbers.uniform(1, 2, source.tensor.shape) for source in graph.inputs])
    (out,) = float64_reference.run(graph, arrays)
    assert np.isfinite(out).all()


@every_form
def test_finite_fields(kind: OpKind, value: bool) -> None:
    """A picture exactly where the operator table promises one, of the class that the table states."""
    graph = example(kind, value=value)
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    if SPECS[kind].lax is Lax.NONE:
        assert isinstance(wanted, NotLax)
        assert "order" in wanted.reason
        return
    assert not isinstance(wanted, NotLax)
    assert lax_class(tape, wanted) is SPECS[kind].lax
    point = field_point(3, 0, field_pair(20))
    # Small integers are residues; sums of their squares are, every other time.
    numbers = np.random.default_rng(1)
    for _ in range(200):
        drawn = [numbers.integers(1, 11, source.tensor.shape, dtype=np.uint64) for source in graph.inputs]
        values = with_masks(graph, drawn)
        out = run_tape(tape, wanted, point, partial(lambda values, index, part: values[index], values))
        if isinstance(out, tuple):
            assert out[0].shape == tape.steps[tape.outputs[0]].shape
            assert int(out[0].max()) < point.pair.p
            return
    pytest.fail("no point with a value in 200 draws")


@every_form
def test_abstract_expressions(kind: OpKind, value: bool) -> None:
    graph = example(kind, value=value)
    assert len(expressions(graph).outputs) == 1
