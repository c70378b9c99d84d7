"""File schema of a µGraph: bounded, typed records, and their conversion to and from the frozen values.

The JSON schema in docs/schemas is generated from these records. Bounds here only keep a hostile file from costing
time or memory; graph/verifier.py decides whether a graph is well-formed.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Final, Literal, assert_never

import msgspec
from msgspec import Meta, Struct

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    ThreadDefined,
    ThreadGraph,
)
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.type_rules import shape_fault
from mirage_formal.graph.types import MAX_ELEMENTS, MAX_EXTENT, MAX_RANK, Band, DTensor, DType

SCHEMA: Final = "mirage_formal/mugraph"
VERSION: Final = 1
MAX_OPS: Final = 4096
MAX_TENSORS: Final = 1 << 20
_DIGITS: Final = 1100
_FRACTION: Final = re.compile(r"(-?[0-9]+)(?:/([0-9]+))?")

Extent = Annotated[int, Meta(ge=1, le=MAX_EXTENT)]
Bound = Annotated[int, Meta(ge=0, le=MAX_EXTENT)]
Distance = Annotated[int, Meta(ge=-MAX_EXTENT, le=MAX_EXTENT)]
Extents = Annotated[tuple[Extent, ...], Meta(max_length=MAX_RANK)]
Dim = Annotated[int, Meta(ge=0, lt=MAX_RANK)]
Map = tuple[Dim | None, Dim | None, Dim | None]
Number = Annotated[int, Meta(ge=0, lt=MAX_TENSORS)]
Numbers = Annotated[tuple[Number, ...], Meta(max_length=MAX_OPS)]
Ratio = Annotated[str, Meta(max_length=2 * _DIGITS, pattern="^-?[0-9]+(/[0-9]+)?$")]


class OpRecord(Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="op"):
    """A predefined operator."""

    kind: OpKind
    operands: Numbers
    dim: Dim | None = None
    factor: Ratio | None = None
    eps: Ratio | None = None
    shape: Extents | None = None
    perm: Annotated[tuple[Dim, ...], Meta(max_length=MAX_RANK)] | None = None
    times: Extent | None = None
    dtype: DType | None = None
    shift: Ratio | None = None
    start: Bound | None = None
    stop: Bound | None = None
    before: Bound | None = None
    after: Bound | None = None
    value: Ratio | None = None


class ThreadGraphRecord(Struct, forbid_unknown_fields=True):
    """A thread graph; its tensors are numbered inputs first."""

    inputs: Number
    ops: Annotated[tuple[OpRecord, ...], Meta(max_length=MAX_OPS)]
    outputs: Numbers


class ThreadDefinedRecord(Struct, forbid_unknown_fields=True, tag_field="type", tag="thread_defined"):
    """A block-level operator defined by a thread graph."""

    operands: Numbers
    graph: ThreadGraphRecord


class IteratorRecord(Struct, forbid_unknown_fields=True):
    """An input iterator; null in a map means replicated."""

    imap: Map
    fmap: Dim | None


class SaverRecord(Struct, forbid_unknown_fields=True):
    """An output saver."""

    operand: Number
    omap: Map


class BlockGraphRecord(Struct, forbid_unknown_fields=True):
    """A block graph; its tensors are numbered input iterators first."""

    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    forloop_range: Extent
    reduction_dimx: Extent
    inputs: Annotated[tuple[IteratorRecord, ...], Meta(max_length=MAX_OPS)]
    ops: Annotated[tuple[OpRecord | ThreadDefinedRecord, ...], Meta(max_length=MAX_OPS)]
    outputs: Annotated[tuple[SaverRecord, ...], Meta(max_length=MAX_OPS)]


class GraphDefinedRecord(Struct, forbid_unknown_fields=True, tag_field="type", tag="graph_defined"):
    """A kernel defined by a block graph."""

    operands: Numbers
    graph: BlockGraphRecord


class BandRecord(Struct, forbid_unknown_fields=True):
    """A band mask: element (..., i, j) is 1 where lower <= j - i <= upper; null is no bound."""

    lower: Distance | None
    upper: Distance | None


class InputRecord(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A program input; strides are counted in elements."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    shape: Extents
    dtype: DType
    strides: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)], ...], Meta(max_length=MAX_RANK)]
    band: BandRecord | None = None


class GraphRecord(Struct, forbid_unknown_fields=True):
    """A µGraph: tensors are numbered inputs first, then the results of the operators in order."""

    schema: Literal["mirage_formal/mugraph"]
    version: Literal[1]
    inputs: Annotated[tuple[InputRecord, ...], Meta(max_length=MAX_OPS)]
    ops: Annotated[tuple[OpRecord | GraphDefinedRecord, ...], Meta(max_length=MAX_OPS)]
    outputs: Numbers


class FieldError(Exception):
    """Error about an invalid field of a record; ``path`` names it as in ``$.ops[0].operands``."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what


def record_of(graph: KernelGraph) -> GraphRecord:
    """Return a graph as the record that its JSON has (``mirage_formal/mugraph``, version 1)."""
    return GraphRecord(
        schema="mirage_formal/mugraph",
        version=1,
        inputs=tuple(_input_record(i) for i in graph.inputs),
        ops=tuple(_kernel_record(op) for op in graph.ops),
        outputs=graph.outputs,
    )


def _input_record(item: Input) -> InputRecord:
    band = None if item.band is None else BandRecord(item.band.lower, item.band.upper)
    return InputRecord(item.name, item.tensor.shape, item.tensor.dtype, item.strides, band)


def _input(record: InputRecord) -> Input:
    band = None if record.band is None else Band(record.band.lower, record.band.upper)
    return Input(record.name, DTensor(record.shape, record.dtype), record.strides, band)


def graph_of(record: GraphRecord) -> KernelGraph:
    """Return the graph of a record.

    Raises:
        FieldError: An operand is not the number of an earlier tensor, or a number is not in its normal form.
    """
    for index, given in enumerate(record.inputs):
        if (fault := shape_fault(given.shape)) is not None:
            raise FieldError(f"$.inputs[{index}].shape", fault)
    inputs = tuple(_input(i) for i in record.inputs)
    ops: list[KernelOp] = []
    number = len(inputs)
    for index, item in enumerate(record.ops):
        path = f"$.ops[{index}]"
        _check_operands(item.operands, number, path)
        op = _op(item, path) if isinstance(item, OpRecord) else GraphDefined(item.operands, _block(item.graph, path))
        ops.append(op)
        number += op.results
    if any(output >= number for output in record.outputs):
        raise FieldError("$.outputs", f"expected tensors numbered below {number}, got {list(record.outputs)}")
    return KernelGraph(inputs, tuple(ops), record.outputs)


def ratio_text(value: Fraction) -> str:
    """Return a fraction in lowest terms as text, such as "1/64" or "-3"."""
    return str(value)


def ratio(text: str) -> Fraction:
    """Return the fraction that a text stands for.

    Raises:
        ValueError: The text is no fraction in lowest terms, or is too long.
    """
    match = _FRACTION.fullmatch(text)
    if match is None or len(text) > 2 * _DIGITS or int(match[2] or 1) == 0:
        raise ValueError(f"expected a fraction such as 1/64, got {text[:40]!r}")
    value = Fraction(int(match[1]), int(match[2] or 1))
    if str(value) != text:
        raise ValueError(f"expected a fraction in lowest terms, {str(value)[:40]!r}, got {text[:40]!r}")
    return value


def _op_record(op: Op) -> OpRecord:
    a = op.attrs
    return OpRecord(
        kind=op.kind,
        operands=op.operands,
        dim=a.dim,
        factor=None if a.factor is None else ratio_text(a.factor),
        eps=None if a.eps is None else ratio_text(a.eps),
        shape=a.shape,
        perm=a.perm,
        times=a.times,
        dtype=a.dtype,
        shift=None if a.shift is None else ratio_text(a.shift),
        start=a.start,
        stop=a.stop,
        before=a.before,
        after=a.after,
        value=None if a.value is None else ratio_text(a.value),
    )


def _kernel_record(op: KernelOp) -> OpRecord | GraphDefinedRecord:
    match op:
        case Op():
            return _op_record(op)
        case GraphDefined():
            return GraphDefinedRecord(op.operands, _block_record(op.graph))
        case _:
            assert_never(op)


def _block_record(block: BlockGraph) -> BlockGraphRecord:
    return BlockGraphRecord(
        grid=block.grid,
        block=block.block,
        forloop_range=block.forloop_range,
        reduction_dimx=block.reduction_dimx,
        inputs=tuple(IteratorRecord(i.imap, i.fmap) for i in block.inputs),
        ops=tuple(_block_op_record(op) for op in block.ops),
        outputs=tuple(SaverRecord(s.operand, s.omap) for s in block.outputs),
    )


def _block_op_record(op: BlockOp) -> OpRecord | ThreadDefinedRecord:
    match op:
        case Op():
            return _op_record(op)
        case ThreadDefined():
            g = op.graph
            return ThreadDefinedRecord(
                op.operands, ThreadGraphRecord(g.inputs, tuple(_op_record(o) for o in g.ops), g.outputs)
            )
        case _:
            assert_never(op)


def _check_operands(operands: tuple[int, ...], number: int, path: str) -> None:
    for index, operand in enumerate(operands):
        if operand >= number:
            raise FieldError(f"{path}.operands[{index}]", f"expected an earlier tensor, below {number}, got {operand}")


def _op(record: OpRecord, path: str) -> Op:
    attrs = Attrs(
        dim=record.dim,
        factor=_ratio(record.factor, f"{path}.factor"),
        eps=_ratio(record.eps, f"{path}.eps"),
        shape=record.shape,
        perm=record.perm,
        times=record.times,
        dtype=record.dtype,
        shift=_ratio(record.shift, f"{path}.shift"),
        start=record.start,
        stop=record.stop,
        before=record.before,
        after=record.after,
        value=_ratio(record.value, f"{path}.value"),
    )
    return Op(record.kind, record.operands, NO_ATTRS if attrs == NO_ATTRS else attrs)


def _ratio(text: str | None, path: str) -> Fraction | None:
    if text is None:
        return None
    try:
        return ratio(text)
    except ValueError as error:
        raise FieldError(path, str(error)) from error


def _block(record: BlockGraphRecord, path: str) -> BlockGraph:
    ops: list[BlockOp] = []
    number = len(record.inputs)
    for index, item in enumerate(record.ops):
        own = f"{path}.graph.ops[{index}]"
        _check_operands(item.operands, number, own)
        op = _op(item, own) if isinstance(item, OpRecord) else ThreadDefined(item.operands, _thread(item.graph, own))
        ops.append(op)
        number += op.results
    for index, saver in enumerate(record.outputs):
        if saver.operand >= number:
            at = f"{path}.graph.outputs[{index}].operand"
            raise FieldError(at, f"expected a tensor below {number}, got {saver.operand}")
    return BlockGraph(
        grid=record.grid,
        block=record.block,
        forloop_range=record.forloop_range,
        reduction_dimx=record.reduction_dimx,
        inputs=tuple(InputIterator(i.imap, i.fmap) for i in record.inputs),
        ops=tuple(ops),
        outputs=tuple(OutputSaver(s.operand, s.omap) for s in record.outputs),
    )


def _thread(record: ThreadGraphRecord, path: str) -> ThreadGraph:
    number = record.inputs
    ops: list[Op] = []
    for index, item in enumerate(record.ops):
        own = f"{path}.graph.ops[{index}]"
        _check_operands(item.operands, number, own)
        ops.append(_op(item, own))
        number += ops[-1].results
    if any(output >= number for output in record.outputs):
        raise FieldError(f"{path}.graph.outputs", f"expected tensors below {number}, got {list(record.outputs)}")
    return ThreadGraph(record.inputs, tuple(ops), record.outputs)


def graph_schema() -> dict[str, object]:
    """Return the JSON schema of a µGraph file."""
    made = msgspec.json.schema(GraphRecord)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{SCHEMA} version {VERSION}"}
    return head | made
