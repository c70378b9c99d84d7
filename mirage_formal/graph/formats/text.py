"""µGraphs as readable text, one statement a line with types as comments.

    mugraph 1
    d0 = input(X) dtype=float16 shape=[16,64]
    d1 = graph_defined(d0) grid=[4,1,1] block=[128,1,1] forloop_range=2 reduction_dimx=64 {
      s0 = input(d0) imap=[0,-,-] fmap=1      ; float16[4,32]
      s1 = accum_sum_last(s0)                 ; float16[4,1] behind the loop
      output(s1) omap=[0,-,-]
    }
    output(d1)

d, s and r number device, shared and register tensors of their own graph; ``-`` in a map means replicated. Strides are
written where they are not row-major.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, ThreadDefined, enumerate_results
from mirage_formal.graph.graph_schema import VERSION, ratio_text
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.types import DTensor, RTensor, STensor, row_major
from mirage_formal.graph.verifier import block_types, kernel_types, thread_types
from mirage_formal.support.errors import GraphError

_HEADER: Final = f"mugraph {VERSION}"
_COLUMN: Final = 60

_Types = tuple[DTensor, ...] | tuple[STensor, ...] | tuple[RTensor, ...]


def to_text(graph: KernelGraph) -> str:
    """Return readable text of a graph."""
    types: tuple[DTensor, ...]
    try:
        types = kernel_types(graph)
    except GraphError:
        types = ()
    lines = [_HEADER]
    for number, item in enumerate(graph.inputs):
        strides = "" if item.strides == row_major(item.tensor.shape) else f" strides={_ints(item.strides)}"
        shape = _ints(item.tensor.shape)
        band = "" if item.band is None else f" band={_ints((item.band.lower, item.band.upper))}"
        lines.append(f"d{number} = input({item.name}) dtype={item.tensor.dtype.value} shape={shape}{strides}{band}")
    for number, op in enumerate_results(len(graph.inputs), graph.ops):
        match op:
            case Op():
                lines.append(_comment(_op_text(op, number, "d"), types, number, op.results))
            case GraphDefined():
                lines += _block_lines(op, number, types)
            case _:
                assert_never(op)
    lines += [f"output(d{number})" for number in graph.outputs]
    return "\n".join(lines) + "\n"


def _ints(values: tuple[int | None, ...]) -> str:
    return "[" + ",".join("-" if value is None else str(value) for value in values) + "]"


def _attributes(attrs: Attrs) -> Iterator[str]:
    if attrs.dim is not None:
        yield f" dim={attrs.dim}"
    if attrs.factor is not None:
        yield f" factor={ratio_text(attrs.factor)}"
    if attrs.eps is not None:
        yield f" eps={ratio_text(attrs.eps)}"
    if attrs.shape is not None:
        yield f" shape={_ints(attrs.shape)}"
    if attrs.perm is not None:
        yield f" perm={_ints(attrs.perm)}"
    if attrs.times is not None:
        yield f" times={attrs.times}"
    if attrs.dtype is not None:
        yield f" dtype={attrs.dtype.value}"
    if attrs.shift is not None:
        yield f" shift={ratio_text(attrs.shift)}"
    for name in ("start", "stop", "before", "after"):
        if (value := getattr(attrs, name)) is not None:
            yield f" {name}={value}"
    if attrs.value is not None:
        yield f" value={ratio_text(attrs.value)}"


def _call(name: str, operands: tuple[int, ...], number: int, results: int, letters: str) -> str:
    """Return ``s4, s5 = name(d0, d1)``: ``letters`` are those of operands and of results."""
    made = ", ".join(f"{letters[-1]}{number + r}" for r in range(results))
    return f"{made} = {name}({', '.join(f'{letters[0]}{n}' for n in operands)})"


def operator_text(graph: KernelGraph, position: int) -> str:
    """Return readable text of one operator of a well-formed graph, as in ``to_text``."""
    types = kernel_types(graph)
    number, op = list(enumerate_results(len(graph.inputs), graph.ops))[position]
    if isinstance(op, GraphDefined):
        return "\n".join(_block_lines(op, number, types))
    return _comment(_op_text(op, number, "d"), types, number, op.results)


def _op_text(op: Op, number: int, letter: str) -> str:
    return _call(op.kind.value, op.operands, number, op.results, letter) + "".join(_attributes(op.attrs))


def _comment(line: str, types: _Types, number: int, results: int) -> str:
    if number + results > len(types) or not results:
        return line
    found = []
    for tensor in types[number : number + results]:
        behind = " behind the loop" if isinstance(tensor, STensor) and tensor.after_loop else ""
        found.append(f"{tensor.dtype.value}{_ints(tensor.shape)}{behind}")
    return f"{line:<{_COLUMN}} ; {', '.join(found)}"


def _block_lines(op: GraphDefined, number: int, outer: tuple[DTensor, ...]) -> Iterator[str]:
    block = op.graph
    types = block_types(block, tuple(outer[n] for n in op.operands)) if outer else ()
    head = _call("graph_defined", op.operands, number, op.results, "d")
    numbers = f"forloop_range={block.forloop_range} reduction_dimx={block.reduction_dimx}"
    line = f"{head} grid={_ints(block.grid)} block={_ints(block.block)} {numbers} {{"
    yield _comment(line, outer, number, op.results)
    for index, iterator in enumerate(block.inputs):
        # A graph that is not well-formed may have more iterators than operands.
        source = op.operands[index : index + 1]
        line = f"  {_call('input', source, index, 1, 'ds')} imap={_ints(iterator.imap)} fmap={_dim(iterator.fmap)}"
        yield _comment(line, types, index, 1)
    for first, item in enumerate_results(len(block.inputs), block.ops):
        match item:
            case Op():
                yield _comment("  " + _op_text(item, first, "s"), types, first, item.results)
            case ThreadDefined():
                yield from _thread_lines(item, first, types)
            case _:
                assert_never(item)
    yield from (f"  output(s{saver.operand}) omap={_ints(saver.omap)}" for saver in block.outputs)
    yield "}"


def _thread_lines(op: ThreadDefined, number: int, outer: tuple[STensor, ...]) -> Iterator[str]:
    graph = op.graph
    types = thread_types(graph, tuple(outer[n] for n in op.operands)) if outer else ()
    line = "  " + _call("thread_defined", op.operands, number, op.results, "s") + " {"
    yield _comment(line, outer, number, op.results)
    for index in range(graph.inputs):
        yield f"    {_call('input', op.operands[index : index + 1], index, 1, 'sr')}"
    for first, item in enumerate_results(graph.inputs, graph.ops):
        yield _comment("    " + _op_text(item, first, "r"), types, first, item.results)
    yield from (f"    output(r{n})" for n in graph.outputs)
    yield "  }"


def _dim(dim: int | None) -> str:
    return "-" if dim is None else str(dim)
