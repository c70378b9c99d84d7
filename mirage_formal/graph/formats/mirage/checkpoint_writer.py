"""Writer of Mirage's checkpoint JSON (docs/mirage_json.md); the reader is in checkpoint_reader.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from math import prod
from typing import Any, Final, assert_never

from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.formats.mirage.operator_names import (
    LAST,
    RANK,
    SAVED,
    Dialect,
    OperatorName,
    block_name,
    kernel_name,
)
from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Family, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, Shape, STensor, row_major
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.support.errors import UnsupportedError

_DEVICE_GUID: Final = 10_000_000
_SHARED_GUID: Final = 20_000_000
_ALIGNMENT: Final = 16
#: Operators with an attribute that their names in the format hold or imply.
_WITH_DIM: Final = frozenset({OpKind.SUM, OpKind.SUM_TO_DIMX, OpKind.CONCAT, OpKind.RMS_NORM})

_Json = dict[str, Any]

#: The map of a tensor that is not split.
_WHOLE: Final[_Json] = {"x": -1, "y": -1, "z": -1}


def to_mirage(graphs: Sequence[KernelGraph], *, dialect: Dialect = SAVED) -> str:
    """Return the text of a checkpoint with these graphs; ``from_mirage`` gives them back, up to the names of inputs.

    Thread graphs, which the format does not have, are written as the block operators that they hold.

    Args:
        graphs: Well-formed graphs.
        dialect: SAVED as in the published files, or CURRENT as later versions write.

    Raises:
        UnsupportedError: An operator, an attribute or a rank has no place in the format; the operator is named.
        GraphError: A graph is not well-formed.
    """
    writer = _Writer(dialect)
    items: list[object] = []
    for index, graph in enumerate(graphs):
        try:
            items.append(writer.graph(graph))
        except UnsupportedError as error:
            raise UnsupportedError(error.what, where=f"graph {index}, {error.where}", hint=error.hint) from None
    return json.dumps(items, separators=(",", ":"), sort_keys=True) + "\n"


class _Writer:
    """Writer of graphs with guids that are distinct in a file."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._device_guids = count(_DEVICE_GUID)
        self._shared_guids = count(_SHARED_GUID)

    def graph(self, graph: KernelGraph) -> list[_Json]:
        """Return a graph as the list of operators of a checkpoint: for inputs, for kernels, for outputs."""
        types = kernel_types(graph)
        self._check_supported(graph, types)
        tensors = [self._device(tensor) for tensor in types]
        out = [_input(item, tensor) for item, tensor in zip(graph.inputs, tensors, strict=False)]
        number = len(graph.inputs)
        for index, op in enumerate(graph.ops):
            operands = [tensors[n] for n in op.operands]
            results = tensors[number : number + op.results]
            number += op.results
            match op:
                case Op():
                    out.append(self._kernel_op(op, operands, results, f"op {index}"))
                case GraphDefined():
                    found = tuple(types[n] for n in op.operands)
                    block = self._block(op.graph, found, operands, results, f"op {index}")
                    out.append(_record("kn_customized_op", operands, results, bgraph=block))
                case _:
                    assert_never(op)
        for item in graph.outputs:
            strides = list(row_major(types[item].shape))
            out.append(_record("kn_output_op", [tensors[item]], [], output_map=_WHOLE, output_strides=strides))
        return out

    def _check_supported(self, graph: KernelGraph, types: tuple[DTensor, ...]) -> None:
        """Refuse a graph with an operator or an element type that the format does not have; the first one is named.

        Raises:
            UnsupportedError: It has one.
        """
        for index, op in enumerate(graph.ops):
            given, at = tuple(types[n] for n in op.operands), f"op {index}"
            if isinstance(op, Op):
                self._name(op, len(given[0].shape), at)
                continue
            plain = inline_blocks(op.graph)
            ranks = [len(tile.shape) for tile in block_types(plain, given)]
            for number, inner in enumerate(plain.ops):
                assert isinstance(inner, Op)
                self._block_name(inner, ranks[inner.operands[0]], f"{at}, block op {number}")
        for item in graph.inputs:
            if item.tensor.dtype not in self._dialect.dtypes.values():
                what = f"expected an element type that the format has, got {item.tensor.dtype.value}"
                raise UnsupportedError(what, where=f"input {item.name}", hint="mugraph.json takes every type")

    def _name(self, op: Op, rank: int, at: str) -> str:
        name = kernel_name(_row(op, rank, at))
        if name is None:
            raise _missing_operator(op, "kernel", at)
        return name

    def _block_name(self, op: Op, rank: int, at: str) -> str:
        name = block_name(_row(op, rank, at), self._dialect)
        if name is None:
            raise _missing_operator(op, "block", at)
        return name

    def _device(self, tensor: DTensor) -> _Json:
        dim, rank = _pad_dims(tensor.shape, "tensors")
        return {
            "data_type": self._dialect.code(tensor.dtype),
            "dim": dim,
            "guid": next(self._device_guids),
            "layout": "DmemRowMajor",
            "num_dims": rank,
        }

    def _kernel_op(self, op: Op, operands: list[_Json], results: list[_Json], at: str) -> _Json:
        rank = operands[0]["num_dims"]
        name = self._name(op, rank, at)
        if op.kind is OpKind.RMS_NORM:
            return _record(name, operands, results, normalized_size=operands[0]["dim"][rank - 1])
        return _record(name, operands, results)

    def _block(
        self, block: BlockGraph, types: tuple[DTensor, ...], operands: list[_Json], results: list[_Json], at: str
    ) -> _Json:
        plain = inline_blocks(block)
        memory = _SharedAllocator()
        tensors: list[_Json] = []
        operators: list[_Json] = []
        shared = block_types(plain, types)
        for number, (iterator, device) in enumerate(zip(block.inputs, operands, strict=True)):
            tensors.append(self._shared(shared[number], memory.allocate(shared[number])))
            fmap = -1 if iterator.fmap is None else iterator.fmap
            fields = {"dtensor": device, "forloop_dim": fmap, "input_map": _map(iterator.imap)}
            operators.append(_record("tb_input_op", [], tensors[-1:], **fields))
        for index, op in enumerate(plain.ops):
            assert isinstance(op, Op)
            name = self._block_name(op, len(shared[op.operands[0]].shape), f"{at}, block op {index}")
            uses = [tensors[n] for n in op.operands]
            mine = shared[len(tensors)]
            offset = uses[0]["smem_offset"] if _in_place(op) else memory.allocate(mine)
            tensors.append(self._shared(mine, offset))
            operators.append(_record(name, uses, tensors[-1:]))
        for saver, device in zip(plain.outputs, results, strict=True):
            fields = {"dtensor": device, "output_map": _map(saver.omap)}
            operators.append(_record("tb_output_op", [tensors[saver.operand]], [], **fields))
        return {
            "block_dim": _dim3(block.block),
            "forloop_range": block.forloop_range,
            "graph_level": "thread_block_graph",
            "grid_dim": _dim3(block.grid),
            "operators": operators,
            "reduction_dimx": block.reduction_dimx,
            "smem_offset": memory.top,
        }

    def _shared(self, tensor: STensor, offset: int) -> _Json:
        dim, rank = _pad_dims(tensor.shape, "block tensors")
        return {
            "after_accum": tensor.after_loop,
            "data_type": self._dialect.code(tensor.dtype),
            "dim": dim,
            "guid": next(self._shared_guids),
            "layout": "SmemRowMajor",
            "num_dims": rank,
            "smem_offset": offset,
        }


class _SharedAllocator:
    """Allocator of shared memory: tensors one behind the other, without reuse."""

    def __init__(self) -> None:
        self.top = 0

    def allocate(self, tensor: STensor) -> int:
        """Return the offset of a newly allocated tensor."""
        offset = self.top
        self.top += -(-prod(tensor.shape) * tensor.dtype.bytes // _ALIGNMENT) * _ALIGNMENT
        return offset


def _row(op: Op, rank: int, at: str) -> OperatorName:
    """Return the table row of an operator, attributes included.

    Raises:
        UnsupportedError: It has an attribute or an operand that the format has no place for.
    """
    attrs = op.attrs
    if op.kind is OpKind.RMS_NORM:
        if attrs.eps is not None or len(op.operands) > 1 or attrs.dim != rank - 1:
            what = f"expected rms_norm over the last dim without eps and weight, got {_describe_operator(op)}"
            raise UnsupportedError(what, where=at, hint="write the norm with square, sums, sqrt and div")
        return OperatorName(op.kind, LAST)
    return OperatorName(op.kind, attrs.dim if op.kind in _WITH_DIM else None)


def _describe_operator(op: Op) -> str:
    parts = [f"{name} {value}" for name in ("dim", "eps") if (value := getattr(op.attrs, name)) is not None]
    return ", ".join([*parts, f"{len(op.operands)} operands"])


def _missing_operator(op: Op, level: str, at: str) -> UnsupportedError:
    dim = "" if op.attrs.dim is None else f" over dim {op.attrs.dim}"
    what = f"expected an operator that the format has at {level} level, got {op.kind.value}{dim}"
    return UnsupportedError(what, where=at, hint="mugraph.json takes every operator")


def _in_place(op: Op) -> bool:
    return SPECS[op.kind].family is Family.FUNCTION


def _input(item: Input, tensor: _Json) -> _Json:
    strides = list(item.strides)
    if len(strides) > 1 and strides[-1] != 1 and strides[-2] == 1:
        tensor["layout"] = "DmemColumnMajor"
    return _record("kn_input_op", [], [tensor], input_map=_WHOLE, input_strides=strides)


def _record(name: str, operands: list[_Json], results: list[_Json], **fields: object) -> _Json:
    return {"op_type": name, "input_tensors": operands, "output_tensors": results, **fields}


def _pad_dims(shape: Shape, what: str) -> tuple[list[int], int]:
    if len(shape) > RANK:
        text = f"expected {what} of at most {RANK} dims, got {list(shape)}"
        raise UnsupportedError(text, where="tensors", hint="mugraph.json takes more dims")
    return [*shape, *([0] * (RANK - len(shape)))], len(shape)


def _dim3(dims: Dim3) -> _Json:
    return dict(zip("xyz", dims, strict=True))


def _map(dims: DimMap) -> _Json:
    return {axis: -1 if dim is None else dim for axis, dim in zip("xyz", dims, strict=True)}
