"""Reader of Mirage's checkpoint JSON; checkpoint_writer.py writes it, operator_names.py has the names of both.

A file is a list of graphs, or one graph, or a first checkpoint (checkpoint_conversion.py); a graph is a list of kernel
operators in topological order, whose tensors are matched by guid. Everything that a file says twice (copies of tensors,
shapes of results, stages) must agree with what follows from the operators. Unknown fields are refused, because they
could change the meaning. Layouts, shared memory offsets and strides of outputs only say where elements lie, so they are
ignored. docs/mirage_json.md describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from mirage_formal.graph.formats.json import field_message, load_json
from mirage_formal.graph.formats.mirage.checkpoint_conversion import GRAPHS_FIELD, convert_graph
from mirage_formal.graph.formats.mirage.checkpoint_schema import (
    BLOCK_RECORDS,
    KERNEL_RECORDS,
    AnyBlock,
    AnyKernel,
    BlockConcat,
    BlockInput,
    BlockOutput,
    Customized,
    DeviceRecord,
    Dim3Record,
    KernelInput,
    KernelNorm,
    KernelOutput,
    MapRecord,
    SharedRecord,
)
from mirage_formal.graph.formats.mirage.operator_names import (
    BLOCK_ROWS,
    CURRENT,
    KERNEL_ROWS,
    LAST,
    REFUSED,
    SAVED,
    OperatorName,
)
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
)
from mirage_formal.graph.graph_schema import MAX_OPS, FieldError
from mirage_formal.graph.ops import NO_ATTRS, SPECS, Attrs, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, Shape, STensor
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.support.errors import FormatError, GraphError

#: Most graphs of one file.
MAX_GRAPHS: Final = 4096
_HINT: Final = "the file must be a checkpoint as Mirage writes it"

_S = TypeVar("_S", bound=Struct)


def from_mirage(text: str | bytes, where: str = "", *, half: DType = DType.FLOAT16) -> tuple[KernelGraph, ...]:
    """Return the graphs of a checkpoint; their inputs are called X0, X1, ... because the format has no names.

    Args:
        text: The text; at most serialize.MAX_BYTES long.
        where: Name of the file, for messages.
        half: Meaning of the codes 940 and 941: one of them is float16 and one bfloat16, but which one changed
            between versions of the format. 920, 921, 930 and 950 mean the same in all of them.

    Raises:
        FormatError: The text is no such checkpoint, contradicts itself, is not well-formed, or has an operator without
            counterpart here; the field at fault is named.
    """
    graphs: list[KernelGraph] = []
    for item in graphs_of(load_json(text, where), where, half=half):
        if isinstance(item, FormatError):
            raise item
        graphs.append(item)
    return tuple(graphs)


def is_mirage(value: object) -> bool:
    """Return whether plain JSON values look like a checkpoint of Mirage rather than like our own format."""
    if not isinstance(value, list):
        return isinstance(value, dict) and GRAPHS_FIELD in value
    return not value or isinstance(value[0], list) or (isinstance(value[0], dict) and "op_type" in value[0])


def graphs_of(
    value: object, where: str = "", *, half: DType = DType.FLOAT16, names: Sequence[str] = ()
) -> Iterator[KernelGraph | FormatError]:
    """Yield the graphs in plain JSON values; for a graph that cannot be read, yield the error with the reason.

    Args:
        value: The values.
        where: Name of the file, for messages.
        half: See ``from_mirage``.
        names: Names of the inputs, in order, for graphs with this number of inputs; the format has no names.

    Raises:
        FormatError: The values are no list of graphs at all.
    """
    root, first = "$", isinstance(value, dict) and GRAPHS_FIELD in value
    if isinstance(value, dict) and first:
        root, value = f"$.{GRAPHS_FIELD}", value[GRAPHS_FIELD]
    if not isinstance(value, list) or not value:
        got = type(value).__name__ if not isinstance(value, list) else "an empty one"
        raise FormatError(
            f"field {root}: expected a list of graphs or of operators, got {got}", where=where, hint=_HINT
        )
    many = first or isinstance(value[0], list)
    if len(value) > MAX_GRAPHS and many:
        what = f"field {root}: expected at most {MAX_GRAPHS} graphs, got {len(value)}"
        raise FormatError(what, where=where, hint="split the file")
    for path, item in [(f"{root}[{i}]", item) for i, item in enumerate(value)] if many else [(root, value)]:
        try:
            yield _Reader(half, names, first=first).graph(convert_graph(item, path) if first else item, path)
        except FieldError as error:
            about = _operator_of(item, error.path.removeprefix(path))
            yield FormatError(f"field {error.path}: {error.what}{about}", where=where, hint=_HINT)


def _operator_of(graph: object, steps: str) -> str:
    """Return the names of the operators that a path within a graph leads to, in brackets; nothing if there are none."""
    found, at = [], graph
    for number in re.findall(r"(?:^|\.bgraph\.operators)\[(\d+)\]", steps):
        at = at["bgraph"]["operators"] if isinstance(at, dict) else at
        at = at[int(number)] if isinstance(at, list) else None
        name = at.get("op_type") if isinstance(at, dict) else None
        if isinstance(name, str):
            found.append(name[:60])
    return f" (in {', '.join(found)})" if found else ""


@dataclass(frozen=True, slots=True)
class _TensorDefinition:
    """Definition of a tensor in a file."""

    number: int
    shape: Shape
    dtype: DType
    after: bool
    path: str


class _TensorTable:
    """The tensors of one graph by guid, numbered in the order of definition."""

    def __init__(self, codes: _DTypeCodes) -> None:
        self._codes = codes
        self._seen: dict[int, _TensorDefinition] = {}

    def define(self, record: DeviceRecord | SharedRecord, path: str) -> int:
        """Add a new tensor and return its number."""
        if record.guid in self._seen:
            raise FieldError(
                f"{path}.guid", f"expected a new guid, got {record.guid} of {self._seen[record.guid].path}"
            )
        number = len(self._seen)
        self._seen[record.guid] = _TensorDefinition(number, *self._facts(record, path), path)
        return number

    def use(self, record: DeviceRecord | SharedRecord, path: str) -> int:
        """Return the number of the earlier tensor that the record is a copy of."""
        seen = self._seen.get(record.guid)
        if seen is None:
            raise FieldError(f"{path}.guid", f"expected the guid of an earlier tensor, got {record.guid}")
        facts = self._facts(record, path)
        if facts != (seen.shape, seen.dtype, seen.after):
            says, said = (_describe_type(*f) for f in (facts, (seen.shape, seen.dtype, seen.after)))
            raise FieldError(path, f"expected a copy of {seen.path}, which is {said}, got {says}")
        return seen.number

    def agree(self, types: Sequence[DTensor | STensor]) -> None:
        """Check that the file's shape, type and stage of every tensor agree with those inferred from the operators."""
        for seen, found in zip(self._seen.values(), types, strict=True):
            facts = (found.shape, found.dtype, isinstance(found, STensor) and found.after_loop)
            if facts != (seen.shape, seen.dtype, seen.after):
                said = _describe_type(seen.shape, seen.dtype, seen.after)
                raise FieldError(
                    seen.path, f"expected {_describe_type(*facts)}, as follows from the operators, got {said}"
                )

    def _facts(self, record: DeviceRecord | SharedRecord, path: str) -> tuple[Shape, DType, bool]:
        rank = record.num_dims
        if rank > len(record.dim) or not all(record.dim[:rank]) or any(record.dim[rank:]):
            what = f"expected {rank} positive extents and then zeros, got {list(record.dim)}"
            raise FieldError(f"{path}.dim", what)
        dtype = self._codes.dtype(record.data_type, f"{path}.data_type")
        return record.dim[:rank], dtype, isinstance(record, SharedRecord) and record.after_accum


def _describe_type(shape: Shape, dtype: DType, after: bool) -> str:
    return f"{dtype.value} {list(shape)}{' after the loop' if after else ''}"


class _DTypeCodes:
    """Codes of element types, which changed between versions: those of one graph must be of one version."""

    def __init__(self, half: DType) -> None:
        self._half = half
        self._family: Mapping[int, DType] | None = None
        self._half_code: int | None = None

    def dtype(self, code: int, path: str) -> DType:
        families = [family.dtypes for family in (SAVED, CURRENT) if code in family.dtypes]
        if not families:
            known = sorted({*SAVED.dtypes, *CURRENT.dtypes})
            raise FieldError(path, f"expected a code of float16, bfloat16 or float32, one of {known}, got {code}")
        if self._family is not None and self._family is not families[0]:
            raise FieldError(path, f"expected a code of one version, {sorted(self._family)}, got {code}")
        self._family = families[0]
        if self._family is SAVED.dtypes or self._family[code] is DType.FLOAT32:
            return self._family[code]
        if self._half_code not in (None, code):
            what = f"expected one 16-bit type in a graph, {self._half_code}, got {code}: which is which is not known"
            raise FieldError(path, what)
        self._half_code = code
        return self._half


class _Reader:
    """Reader of one graph."""

    def __init__(self, half: DType, names: Sequence[str], *, first: bool) -> None:
        self._codes = _DTypeCodes(half)
        self._names = names
        self._first = first
        self._tensors = _TensorTable(self._codes)
        self._blocks: list[tuple[int, _TensorTable]] = []

    def graph(self, value: object, path: str) -> KernelGraph:
        """Return the graph of a list of kernel operators.

        Raises:
            FieldError: See ``from_mirage``.
        """
        records = list(_records(value, path, KERNEL_RECORDS))
        given = list(_records_of_kind(records, KernelInput))
        names = self._names if len(self._names) == len(given) else [f"X{n}" for n in range(len(given))]
        inputs = tuple(self._input(r, at, name) for name, (at, r) in zip(names, given, strict=True))
        ops: list[KernelOp] = []
        outputs: list[int] = []
        for at, record in records:
            match record:
                case KernelInput():
                    pass
                case KernelOutput():
                    outputs.append(self._output(record, at))
                case Customized():
                    ops.append(self._customized(record, at, len(ops)))
                    _each(self._tensors.define, record.output_tensors, f"{at}.output_tensors")
                case _:
                    ops.append(self._kernel_op(record, at))
                    _each(self._tensors.define, record.output_tensors, f"{at}.output_tensors")
        if not any(isinstance(record, KernelOutput) for _, record in records):
            outputs = _unread_results(len(inputs), ops)
        graph = KernelGraph(inputs, tuple(ops), tuple(outputs))
        self._agree(graph, path)
        return graph

    def _agree(self, graph: KernelGraph, path: str) -> None:
        try:
            types = kernel_types(graph)
        except GraphError as error:
            raise FieldError(path, error.what) from error
        # Block graphs first: where both disagree, the cause is inside.
        for index, tensors in self._blocks:
            op = graph.ops[index]
            assert isinstance(op, GraphDefined)
            tensors.agree(block_types(op.graph, tuple(types[n] for n in op.operands)))
        self._tensors.agree(types)

    def _input(self, record: KernelInput, at: str, name: str) -> Input:
        _expect_counts(record, at, 0, 1)
        _whole(record.input_map, f"{at}.input_map")
        (tensor,) = record.output_tensors
        self._tensors.define(tensor, f"{at}.output_tensors[0]")
        shape = tensor.dim[: tensor.num_dims]
        if len(record.input_strides) != len(shape):
            what = f"expected {len(shape)} strides, got {list(record.input_strides)}"
            raise FieldError(f"{at}.input_strides", what)
        dtype = self._codes.dtype(tensor.data_type, at)
        return Input(name, DTensor(shape, dtype), record.input_strides)

    def _output(self, record: KernelOutput, at: str) -> int:
        _expect_counts(record, at, 1, 0)
        _whole(record.output_map, f"{at}.output_map")
        rank = record.input_tensors[0].num_dims
        if record.output_strides is not None and len(record.output_strides) != rank:
            raise FieldError(f"{at}.output_strides", f"expected {rank} strides, got {list(record.output_strides)}")
        return self._tensors.use(record.input_tensors[0], f"{at}.input_tensors[0]")

    def _kernel_op(self, record: AnyKernel, at: str) -> Op:
        row = KERNEL_ROWS[record.op_type]
        _expect_counts(record, at, SPECS[row.kind].min_arity, 1)
        if isinstance(record, KernelNorm):
            tensor = record.input_tensors[0]
            _check_last_dim(record, tensor.dim[: tensor.num_dims], at)
        operands = _each(self._tensors.use, record.input_tensors, f"{at}.input_tensors")
        return _op(row, operands, record.input_tensors[0].num_dims)

    def _customized(self, record: Customized, at: str, index: int) -> GraphDefined:
        operands = _each(self._tensors.use, record.input_tensors, f"{at}.input_tensors")
        block = record.bgraph
        inside = _TensorTable(self._codes)
        records = list(_records(block.operators, f"{at}.bgraph.operators", BLOCK_RECORDS))
        loads, savers = list(_records_of_kind(records, BlockInput)), list(_records_of_kind(records, BlockOutput))
        _check_copies([(f"{p}.dtensor", r.dtensor) for p, r in loads], record.input_tensors, f"{at}.input_tensors")
        _check_copies([(f"{p}.dtensor", r.dtensor) for p, r in savers], record.output_tensors, f"{at}.output_tensors")
        iterators: list[InputIterator] = []
        for path, load in loads:
            _expect_counts(load, path, 0, 1)
            inside.define(load.output_tensors[0], f"{path}.output_tensors[0]")
            iterators.append(InputIterator(_dim_map(load.input_map), _optional(load.forloop_dim)))
        ops: list[Op] = []
        outputs: list[OutputSaver] = []
        for path, inner in records:
            if isinstance(inner, BlockInput):
                continue
            uses = _each(inside.use, inner.input_tensors, f"{path}.input_tensors")
            if isinstance(inner, BlockOutput):
                _expect_counts(inner, path, 1, 1 if self._first else 0)
                if self._first:  # it adds to a tensor of its own over the loop
                    ops.append(Op(OpKind.ACCUM_SUM, uses, NO_ATTRS))
                    uses = _each(inside.define, inner.output_tensors, f"{path}.output_tensors")
                outputs.append(OutputSaver(uses[0], _dim_map(inner.output_map)))
                continue
            ops.append(_block_op(inner, uses, path))
            _each(inside.define, inner.output_tensors, f"{path}.output_tensors")
        graph = BlockGraph(
            grid=_dim3(block.grid_dim),
            block=_dim3(block.block_dim),
            forloop_range=block.forloop_range,
            reduction_dimx=block.reduction_dimx,
            inputs=tuple(iterators),
            ops=tuple(ops),
            outputs=tuple(outputs),
        )
        self._blocks.append((index, inside))
        return GraphDefined(operands, graph)


def _block_op(record: AnyBlock, operands: tuple[int, ...], at: str) -> Op:
    row = BLOCK_ROWS[record.op_type]
    _expect_counts(record, at, SPECS[row.kind].min_arity, 1)
    if isinstance(record, BlockConcat) and record.concat_dim not in (None, row.dim):
        raise FieldError(f"{at}.concat_dim", f"expected {row.dim} as in {record.op_type}, got {record.concat_dim}")
    return _op(row, operands, record.input_tensors[0].num_dims)


def _op(row: OperatorName, operands: tuple[int, ...], rank: int) -> Op:
    if row.dim is None:
        return Op(row.kind, operands, NO_ATTRS)
    return Op(row.kind, operands, Attrs(dim=rank - 1 if row.dim == LAST else row.dim))


def _records(value: object, path: str, kinds: Mapping[str, type[_S]]) -> Iterator[tuple[str, _S]]:
    """Yield the operators of a graph with their paths, each as the record of its op_type."""
    if not isinstance(value, list):
        raise FieldError(path, f"expected a list of operators, got {type(value).__name__}")
    if not 1 <= len(value) <= MAX_OPS:
        raise FieldError(path, f"expected 1..{MAX_OPS} operators, got {len(value)}")
    for index, item in enumerate(value):
        at = f"{path}[{index}]"
        name = item.get("op_type") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise FieldError(at, "expected an operator with a text op_type, got none")
        if name not in kinds:
            why = f": {REFUSED[name]}" if name in REFUSED else ""
            raise FieldError(f"{at}.op_type", f"expected an operator with a counterpart here, got {name[:60]!r}{why}")
        try:
            yield at, msgspec.convert(item, kinds[name])
        except msgspec.ValidationError as error:
            field, _, what = field_message(error).removeprefix("field $").partition(": ")
            raise FieldError(f"{at}{field}", what) from error


def _records_of_kind(records: Sequence[tuple[str, Any]], kind: type[_S]) -> Iterator[tuple[str, _S]]:
    return ((at, record) for at, record in records if isinstance(record, kind))


def _each(action: Any, tensors: Sequence[DeviceRecord | SharedRecord], path: str) -> tuple[int, ...]:
    return tuple(action(tensor, f"{path}[{i}]") for i, tensor in enumerate(tensors))


def _check_copies(found: list[tuple[str, DeviceRecord]], wanted: Sequence[DeviceRecord], path: str) -> None:
    """Refuse iterators or savers whose device tensors are not those of the kernel, one by one."""
    if len(found) != len(wanted):
        what = f"expected {len(found)} tensors, as many as the block graph has, got {len(wanted)}"
        raise FieldError(path, what)
    for index, ((at, mine), other) in enumerate(zip(found, wanted, strict=True)):
        for name in ("guid", "data_type", "num_dims", "dim"):
            if getattr(mine, name) != getattr(other, name):
                want, got = (_plain(getattr(one, name)) for one in (other, mine))
                raise FieldError(f"{at}.{name}", f"expected {want} as in {path}[{index}], got {got}")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _expect_counts(record: AnyKernel | AnyBlock, at: str, inputs: int, outputs: int) -> None:
    for name, wanted in (("input_tensors", inputs), ("output_tensors", outputs)):
        got = len(getattr(record, name))
        if got != wanted:
            raise FieldError(f"{at}.{name}", f"expected {wanted} tensors for {record.op_type}, got {got}")


def _check_last_dim(record: KernelNorm, shape: Shape, at: str) -> None:
    """Refuse a norm over more than the last dim, or over unknown dims.

    The published writers leave the size out; where all other extents are 1 it makes no difference.
    """
    if record.normalized_size is None and any(extent != 1 for extent in shape[:-1]):
        what = f"expected normalized_size {shape[-1]}, got none: the file does not say which dims are normalized"
        raise FieldError(at, what)
    if record.normalized_size not in (None, shape[-1]):
        what = f"expected {shape[-1]}, because only the last dim can be normalized, got {record.normalized_size}"
        raise FieldError(f"{at}.normalized_size", what)


def _whole(given: MapRecord | None, path: str) -> None:
    if given is not None and _dim_map(given) != (None, None, None):
        raise FieldError(path, "expected -1 for x, y and z, got a tensor that is split over several GPUs")


def _unread_results(inputs: int, ops: Sequence[KernelOp]) -> list[int]:
    """Return the results that nothing reads: the outputs of a file that marks none."""
    used = {number for op in ops for number in op.operands}
    total = inputs + sum(op.results for op in ops)
    return [number for number in range(inputs, total) if number not in used]


def _dim3(given: Dim3Record) -> Dim3:
    return (given.x, given.y, given.z)


def _dim_map(given: MapRecord) -> DimMap:
    return (_optional(given.x), _optional(given.y), _optional(given.z))


def _optional(dim: int) -> int | None:
    return None if dim == -1 else dim
