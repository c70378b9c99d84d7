"""Writing checkpoints of Mirage: every operator is written or refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from mirage_formal.graph.formats.mirage.checkpoint_reader import from_mirage
from mirage_formal.graph.formats.mirage.checkpoint_writer import to_mirage
from mirage_formal.graph.formats.mirage.operator_names import BLOCK_ROWS, KERNEL_ROWS
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Attrs, Family, Level, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import GraphError, UnsupportedError
from tests.kit.checkpoints.mirage_files import SMALL
from tests.kit.graphs import workloads


def _attrs(kind: OpKind) -> Attrs:
    values: dict[str, Any] = {
        "dim": 1,
        "factor": 2,
        "shape": (8, 2),
        "perm": (1, 0),
        "times": 2,
        "dtype": DType.FLOAT16,
        "shift": 2,
        "start": 1,
        "stop": 3,
        "before": 1,
        "after": 0,
    }
    return Attrs(**{name: values[name] for name in SPECS[kind].required})


def _graph_with(kind: OpKind, level: Level) -> KernelGraph:
    """A graph of 4x4 tensors, 4x1 where a dim is repeated, with one operator of a kind."""
    n, spec = None, SPECS[kind]
    shape = (4, 1) if kind is OpKind.REPEAT else (4, 4)
    value = Fraction(1, 2) if "value" in spec.optional else None
    one = Op(kind, tuple(range(spec.min_arity)), replace(_attrs(kind), value=value))
    shapes = [shape, (4, 1)] if kind is OpKind.ACCUM_RESCALED_SUM_LAST else [shape] * spec.min_arity
    inputs = tuple(workloads.tensor(f"X{i}", *own) for i, own in enumerate(shapes))
    if kind in (OpKind.SELECT, OpKind.LOGICAL_NOT):
        inputs = (replace(inputs[0], tensor=replace(inputs[0].tensor, dtype=DType.BOOL)), *inputs[1:])
    if level is Level.KERNEL:
        return KernelGraph(inputs, (one,), (len(inputs),))
    loads = [workloads.load((n, n, n))] * len(inputs)
    ops = [one]
    if not spec.accumulator:
        mask = spec.family is Family.COMPARISON or kind is OpKind.LOGICAL_NOT
        ops.append(Op(OpKind.ACCUM_MAX if mask else OpKind.ACCUM_SUM, (len(inputs),)))
    last = len(inputs) + sum(op.results for op in ops) - 1
    block = workloads.kernel(range(len(inputs)), (1, 1, 1), 1, loads, ops, [(last, (n, n, n))], dimx=2)
    return KernelGraph(inputs, (block,), (len(inputs),))


LEVELS = [(kind, level) for kind in OpKind for level in (Level.KERNEL, Level.BLOCK) if level in SPECS[kind].levels]


@pytest.mark.parametrize(("kind", "level"), LEVELS, ids=[f"{k.value}-{v.value}" for k, v in LEVELS])
def test_every_operator_is_written_or_refused_by_name(kind: OpKind, level: Level) -> None:
    graph = _graph_with(kind, level)
    kernel_types(graph)
    rows = KERNEL_ROWS if level is Level.KERNEL else BLOCK_ROWS
    if any(row.kind is kind for row in rows.values()):
        assert from_mirage(to_mirage([graph])) == (graph,)
        return
    with pytest.raises(UnsupportedError) as raised:
        to_mirage([SMALL["lora"][0], graph])
    assert raised.value.where.startswith("graph 1, op 0")
    assert f"at {level.value} level, got {kind.value}" in raised.value.what
    assert raised.value.hint


def test_attributes_and_ranks_without_a_place_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="rms_norm over the last dim without eps and weight, got dim 0"):
        to_mirage([KernelGraph((workloads.tensor("X", 4, 4),), (workloads.op(OpKind.RMS_NORM, 0, dim=0),), (1,))])
    with pytest.raises(UnsupportedError, match="at most 4 dims"):
        to_mirage([KernelGraph((workloads.tensor("X", 1, 1, 1, 2, 2),), (workloads.op(OpKind.EXP, 0),), (1,))])
    with pytest.raises(UnsupportedError, match="got sum over dim 3"):
        to_mirage([KernelGraph((workloads.tensor("X", 1, 1, 2, 2),), (workloads.op(OpKind.SUM, 0, dim=3),), (1,))])
    with pytest.raises(GraphError):
        to_mirage([KernelGraph((), (), ())])


def test_masks_are_refused_by_the_name_of_their_input() -> None:
    mask = replace(workloads.tensor("keep", 4, 4), tensor=DTensor((4, 4), DType.BOOL))
    moved = KernelGraph((workloads.tensor("X", 4, 4), mask), (workloads.op(OpKind.EXP, 0),), (2,))
    with pytest.raises(UnsupportedError, match="got bool") as raised:
        to_mirage([moved])
    assert raised.value.where == "graph 0, input keep"


def test_shared_memory_offsets_do_not_overlap() -> None:
    """Every tensor has its place of a multiple of 16 bytes; operators computed in place share their operand's."""
    (graph,) = json.loads(to_mirage([SMALL["gated_mlp"][1]]))
    block = next(op for op in graph if op["op_type"] == "kn_customized_op")["bgraph"]
    places = {}
    for op in block["operators"]:
        for tensor in op["output_tensors"]:
            if op["op_type"] == "tb_silu_op":
                assert tensor["smem_offset"] == op["input_tensors"][0]["smem_offset"]
                continue
            size = math.prod(tensor["dim"][: tensor["num_dims"]]) * 2
            places[tensor["smem_offset"]] = -(-size // 16) * 16
    ends = [0]
    for start in sorted(places):
        assert start == ends[-1]
        ends.append(start + places[start])
    assert block["smem_offset"] == ends[-1]
