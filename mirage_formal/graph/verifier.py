"""Type inference and well-formedness check of whole graphs; every fault is reported at once.

A tensor whose operator is at fault has no type, and operators that read it are not judged, so that one mistake is
reported once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, assert_never

from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    KernelGraph,
    KernelOp,
    Op,
    ThreadDefined,
    ThreadGraph,
    cache_by_identity,
    enumerate_results,
)
from mirage_formal.graph.ops import IN_PLACE
from mirage_formal.graph.type_rules import (
    device_results,
    iterator_type,
    register_result,
    saver_type,
    shape_fault,
    shared_results,
)
from mirage_formal.graph.types import MAX_ELEMENTS, MAX_EXTENT, DTensor, RTensor, STensor
from mirage_formal.support.errors import GraphError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Limits of a device.

    Attributes:
        shared_bytes: Shared memory of one thread block.
        device_bytes: Device memory for all tensors of the graph together.
        threads: Most threads of one block.
        blocks: Most blocks of one kernel.
    """

    shared_bytes: int
    device_bytes: int
    threads: int = 1024
    blocks: int = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Block:
    """Types inferred in a block graph, None where a fault leaves a tensor without one, and its faults."""

    tensors: tuple[STensor | None, ...]
    outputs: tuple[DTensor | None, ...]
    faults: tuple[str, ...]


@cache_by_identity
def kernel_types(graph: KernelGraph) -> tuple[DTensor, ...]:
    """Return the types of all tensors of a kernel graph: its inputs, then the results of its operators.

    Raises:
        GraphError: The graph is not well-formed; all faults are listed.
    """
    out: list[str] = []
    types = _kernel(graph, out)
    _raise_faults(out)
    return _known_types(types)


def output_types(graph: KernelGraph) -> list[DTensor]:
    """Return the types of the outputs of a graph.

    Raises:
        GraphError: The graph is not well-formed; all faults are listed.
    """
    types = kernel_types(graph)
    return [types[number] for number in graph.outputs]


def block_types(block: BlockGraph, operands: tuple[DTensor, ...]) -> tuple[STensor, ...]:
    """Return the types of all tensors of a block graph: its input iterators, then the results of its operators.

    Raises:
        GraphError: The block graph is not well-formed on these operands; all faults are listed.
    """
    found = _block(block, operands)
    _raise_faults(found.faults)
    return _known_types(found.tensors)


def block_outputs(block: BlockGraph, operands: tuple[DTensor, ...]) -> tuple[DTensor, ...]:
    """Return the types of the device tensors that a block graph writes.

    Raises:
        GraphError: The block graph is not well-formed on these operands; all faults are listed.
    """
    found = _block(block, operands)
    _raise_faults(found.faults)
    return _known_types(found.outputs)


def thread_types(graph: ThreadGraph, operands: tuple[STensor, ...]) -> tuple[RTensor, ...]:
    """Return the types of all tensors of a thread graph: its inputs, then the results of its operators.

    Raises:
        GraphError: The thread graph is not well-formed on these operands; all faults are listed.
    """
    out: list[str] = []
    types = _thread(graph, operands, out)
    _raise_faults(out)
    return _known_types(types)


def faults(graph: KernelGraph, limits: DeviceLimits | None = None) -> list[str]:
    """Return every fault of a kernel graph, those against the limits included.

    Empty if it is well-formed. Never raises.

    Sound: a graph without faults has a type for every tensor, and every path through each of its block graphs crosses
    exactly one input iterator, one accumulator and one output saver.
    """
    out: list[str] = []
    types = _kernel(graph, out)
    if limits is None:
        return out
    held = sum(t.bytes for t in types if t is not None)
    if held > limits.device_bytes:
        out.append(f"expected at most {limits.device_bytes} bytes of device memory, got {held}")
    for index, op in enumerate(graph.ops):
        if isinstance(op, GraphDefined):
            operands = tuple(types[n] if 0 <= n < len(types) else None for n in op.operands)
            out += [f"op {index} (graph_defined): {text}" for text in _limit_faults(op.graph, operands, limits)]
    return out


def shared_bytes(block: BlockGraph, operands: tuple[DTensor, ...]) -> int:
    """Return the shared memory in bytes that one block needs, by the estimate of the search.

    It counts the tiles of the input iterators and the results of operators that are not computed in place. Of a
    thread graph it counts only the buffers of its outputs, and nothing where an output takes the place of an operand.
    """
    types = block_types(block, operands)
    total = sum(t.bytes for t in types[: len(block.inputs)])
    for number, op in enumerate_results(len(block.inputs), block.ops):
        match op:
            case Op():
                if op.kind not in IN_PLACE:
                    total += sum(t.bytes for t in types[number : number + op.results])
            case ThreadDefined():
                total += _thread_bytes(op.graph, tuple(types[n] for n in op.operands))
            case _:
                assert_never(op)
    return total


def _thread_bytes(graph: ThreadGraph, operands: tuple[STensor, ...]) -> int:
    """Return the bytes of a thread graph's outputs that do not overwrite an operand in place."""
    types = thread_types(graph, operands)
    shapes = [(types[n].shape, types[n].dtype) for n in output_buffers(graph)]
    return sum(DTensor(shape, dtype).bytes for shape, dtype in shapes)


def output_buffers(graph: ThreadGraph) -> set[int]:
    """Return the tensors of a thread graph with a buffer of their own that its outputs lie in."""
    found: set[int] = set()
    for number in graph.outputs:
        # Operators computed in place share the buffer of their operand: follow them to where the buffer begins.
        while number >= graph.inputs and graph.ops[number - graph.inputs].kind in IN_PLACE:
            number = graph.ops[number - graph.inputs].operands[0]
        if number >= graph.inputs:
            found.add(number)
    return found


def _raise_faults(out: Sequence[str]) -> None:
    if not out:
        return
    text = out[0] if len(out) == 1 else f"{len(out)} faults:" + "".join(f"\n  - {fault}" for fault in out)
    raise GraphError(text, hint="every fault is listed; fix the first of each operator and check again")


def _known_types(types: tuple[_T | None, ...]) -> tuple[_T, ...]:
    """Return the types, all of which are known because no fault was found."""
    return tuple(t for t in types if t is not None)


def _reference_fault(operands: tuple[int, ...], number: int) -> str | None:
    """Return the faults in operand numbers of an operator whose first result has this number."""
    for operand in operands:
        if not 0 <= operand < number:
            return f"expected operands numbered 0..{number - 1}, got {operand}"
    return None


def _input(item: Input, seen: set[str]) -> Iterator[str]:
    if not item.name.isidentifier():
        yield f"expected a name that is an identifier, got {item.name!r}"
    if item.name in seen:
        yield f"expected distinct names, got {item.name!r} twice"
    if (fault := shape_fault(item.tensor.shape)) is not None:
        yield fault
    if item.band is not None and (fault := item.band.fault(item.tensor.shape, item.tensor.dtype)) is not None:
        yield fault
    if len(item.strides) != len(item.tensor.shape) or any(stride < 0 for stride in item.strides):
        yield f"expected {len(item.tensor.shape)} strides, none negative, got {list(item.strides)}"
    elif sum(s * (n - 1) for s, n in zip(item.strides, item.tensor.shape, strict=True)) >= MAX_ELEMENTS:
        yield f"expected strides that span at most {MAX_ELEMENTS} elements, got {list(item.strides)}"


def _kernel(graph: KernelGraph, out: list[str]) -> tuple[DTensor | None, ...]:
    types: list[DTensor | None] = []
    seen: set[str] = set()
    for index, item in enumerate(graph.inputs):
        found = [f"input {index}: {text}" for text in _input(item, seen)]
        out += found
        seen.add(item.name)
        types.append(None if found else item.tensor)
    for index, op in enumerate(graph.ops):
        label = op.kind.value if isinstance(op, Op) else "graph_defined"
        own: list[str] = []
        types += _kernel_op(op, types, own)
        out += [f"op {index} ({label}): {text}" for text in own]
    if not graph.outputs:
        out.append("expected at least one output, got none")
    if len(set(graph.outputs)) != len(graph.outputs):
        out.append(f"expected distinct outputs, got {list(graph.outputs)}")
    out += [
        f"output {index}: expected a tensor numbered 0..{len(types) - 1}, got {number}"
        for index, number in enumerate(graph.outputs)
        if not 0 <= number < len(types)
    ]
    return tuple(types)


def _kernel_op(op: KernelOp, types: list[DTensor | None], out: list[str]) -> tuple[DTensor | None, ...]:
    unknown: tuple[DTensor | None, ...] = (None,) * op.results
    if (fault := _reference_fault(op.operands, len(types))) is not None:
        out.append(fault)
        return unknown
    operands = tuple(types[n] for n in op.operands)
    match op:
        case Op():
            known = _known_types(operands)
            if len(known) != len(operands):
                return unknown
            results = device_results(op.kind, op.attrs, known)
            if isinstance(results, str):
                out.append(results)
                return unknown
            return results
        case GraphDefined():
            found = _block(op.graph, operands)
            out += found.faults
            return found.outputs
        case _:
            assert_never(op)


def _geometry(block: BlockGraph, operands: int) -> Iterator[str]:
    for name, dims in (("grid", block.grid), ("block", block.block)):
        if any(not 1 <= extent <= MAX_EXTENT for extent in dims):
            yield f"expected {name} extents in 1..{MAX_EXTENT}, got {list(dims)}"
    for name, value in (("forloop_range", block.forloop_range), ("reduction_dimx", block.reduction_dimx)):
        if not 1 <= value <= MAX_EXTENT:
            yield f"expected a {name} in 1..{MAX_EXTENT}, got {value}"
    if len(block.inputs) != operands:
        yield f"expected one operand for each of {len(block.inputs)} input iterators, got {operands}"
    if not block.outputs:
        yield "expected at least one output saver, got none"


@lru_cache(maxsize=1 << 10)  # the candidates of one program have many kernels in common
def _block(block: BlockGraph, operands: tuple[DTensor | None, ...]) -> _Block:
    out = list(_geometry(block, len(operands)))
    if out:
        # Nothing below can be judged without the geometry.
        return _Block((), (None,) * len(block.outputs), tuple(out))
    types: list[STensor | None] = []
    for index, (iterator, tensor) in enumerate(zip(block.inputs, operands, strict=True)):
        tile = None if tensor is None else iterator_type(block.grid, block.forloop_range, iterator, tensor)
        if isinstance(tile, str):
            out.append(f"input iterator {index}: {tile}")
            tile = None
        types.append(tile)
    for index, op in enumerate(block.ops):
        own: list[str] = []
        label = op.kind.value if isinstance(op, Op) else "thread_defined"
        types += _block_op(block, op, types, own)
        out += [f"block op {index} ({label}): {text}" for text in own]
    outputs: list[DTensor | None] = []
    for index, saver in enumerate(block.outputs):
        if (fault := _reference_fault((saver.operand,), len(types))) is not None:
            out.append(f"output saver {index}: {fault}")
            outputs.append(None)
            continue
        source = types[saver.operand]
        result = None if source is None else saver_type(block.grid, saver, source)
        if isinstance(result, str):
            out.append(f"output saver {index}: {result}")
            result = None
        outputs.append(result)
    return _Block(tuple(types), tuple(outputs), tuple(out))


def _block_op(
    block: BlockGraph, op: Op | ThreadDefined, types: list[STensor | None], out: list[str]
) -> tuple[STensor | None, ...]:
    unknown: tuple[STensor | None, ...] = (None,) * op.results
    if (fault := _reference_fault(op.operands, len(types))) is not None:
        out.append(fault)
        return unknown
    operands = tuple(types[n] for n in op.operands)
    known = _known_types(operands)
    if len(known) != len(operands):
        return unknown
    match op:
        case Op():
            results = shared_results(op.kind, op.attrs, known, block.context)
            if isinstance(results, str):
                out.append(results)
                return unknown
            return results
        case ThreadDefined():
            registers = _thread(op.graph, known, out)
            if any(n >= len(registers) or registers[n] is None for n in op.graph.outputs) or not known:
                return unknown
            after = known[0].after_loop
            found = (registers[n] for n in op.graph.outputs)
            return tuple(None if r is None else STensor(r.shape, r.dtype, after) for r in found)
        case _:
            assert_never(op)


def _thread(graph: ThreadGraph, operands: tuple[STensor, ...], out: list[str]) -> tuple[RTensor | None, ...]:
    if graph.inputs != len(operands) or not operands:
        out.append(f"expected one operand for each of {graph.inputs} inputs, at least one, got {len(operands)}")
        return ()
    if any(t.after_loop != operands[0].after_loop for t in operands):
        out.append("expected operands on one side of the accumulators, got one inside the loop and one behind it")
    types: list[RTensor | None] = [RTensor(t.shape, t.dtype) for t in operands]
    for index, op in enumerate(graph.ops):
        label = f"thread op {index} ({op.kind.value})"
        result: RTensor | str | None = _reference_fault(op.operands, len(types))
        if result is None:
            sources = tuple(types[n] for n in op.operands)
            known = _known_types(sources)
            result = register_result(op.kind, op.attrs, known) if len(known) == len(sources) else None
        if isinstance(result, str):
            out.append(f"{label}: {result}")
            result = None
        types += (result, *(None,) * (op.results - 1))
    if not graph.outputs or len(set(graph.outputs)) != len(graph.outputs):
        out.append(f"expected distinct thread outputs, at least one, got {list(graph.outputs)}")
    if any(not graph.inputs <= n < len(types) for n in graph.outputs):
        wanted = f"{graph.inputs}..{len(types) - 1}"
        out.append(f"expected thread outputs to be results numbered {wanted}, got {list(graph.outputs)}")
        return ()
    return tuple(types)


def _limit_faults(block: BlockGraph, operands: tuple[DTensor | None, ...], limits: DeviceLimits) -> Iterator[str]:
    """Yield the demands of a block graph that exceed the limits."""
    if block.threads > limits.threads:
        yield f"expected at most {limits.threads} threads in a block, got {block.threads}"
    if block.blocks > limits.blocks:
        yield f"expected at most {limits.blocks} blocks, got {block.blocks}"
    known = _known_types(operands)
    if len(known) != len(operands):
        return
    if not _block(block, known).faults and (needed := shared_bytes(block, known)) > limits.shared_bytes:
        yield f"expected at most {limits.shared_bytes} bytes of shared memory in a block, got {needed}"
