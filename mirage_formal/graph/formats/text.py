"""µGraphs as readable text, one statement a line with types as comments; writer and parser.

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

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final, NoReturn, assert_never

from mirage_formal.graph.check import block_types, kernel_types, thread_types
from mirage_formal.graph.formats.json import MAX_BYTES, from_value
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, ThreadDefined, enumerate_results
from mirage_formal.graph.ops import SPECS, Attrs, OpKind
from mirage_formal.graph.types import DTensor, RTensor, STensor, row_major
from mirage_formal.graph.wire import SCHEMA, VERSION, ratio_text
from mirage_formal.support.errors import FormatError, GraphError

_HEADER: Final = f"mugraph {VERSION}"
_COLUMN: Final = 60
_STATEMENT: Final = re.compile(
    r"(?:(?P<results>[\w, ]+)= *)?(?P<name>\w+)\((?P<args>[^()]*)\)(?P<rest>[^{}]*)(?P<open>\{?)"
)
_ATTRIBUTE: Final = re.compile(r"(\w+)=(\[[^\]\s]*\]|[^\s\[\]]+)")
_GEOMETRY: Final = ("grid", "block", "forloop_range", "reduction_dimx")
_ATTRIBUTES: Final = tuple(field.name for field in fields(Attrs))
_INTEGER: Final = re.compile(r"[0-9]{1,18}")
_SIGNED: Final = re.compile(r"-?[0-9]{1,18}")
_HINT: Final = "the text must be as graph.formats.text.to_text writes it"

_Types = tuple[DTensor, ...] | tuple[STensor, ...] | tuple[RTensor, ...]


def to_text(graph: KernelGraph) -> str:
    """Return readable text of a graph; of a well-formed one, ``from_text`` gives the same graph back, exactly."""
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


def from_text(text: str, where: str = "") -> KernelGraph:
    """Return the graph in a text that ``to_text`` wrote.

    Raises:
        FormatError: The text is no µGraph; the line or field at fault is named.
    """
    if len(text) > MAX_BYTES:
        raise FormatError(f"expected at most {MAX_BYTES} characters, got {len(text)}", where=where, hint=_HINT)
    return from_value(_Reader(text, where).kernel(), where)


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


@dataclass(frozen=True, slots=True)
class _Statement:
    line: int
    results: tuple[str, ...]
    name: str
    args: tuple[str, ...]
    attributes: dict[str, str]
    opens: bool


@dataclass(slots=True)
class _Scope:
    """Tensors of one graph while it is parsed: their letter and their number."""

    letter: str
    count: int = 0
    operands: list[int] = field(default_factory=list)
    inputs: list[object] = field(default_factory=list)
    ops: list[object] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)


class _Reader:
    """Parser from text to the plain values of the JSON format, which are then checked like those of a file."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._line = 0
        self._lines = enumerate((line.partition(";")[0].strip() for line in text.splitlines()), start=1)

    def kernel(self) -> dict[str, object]:
        """Return the plain values of the whole graph."""
        self._line, header = next((item for item in self._lines if item[1]), (1, ""))
        if header != _HEADER:
            self._fail(f"expected {_HEADER!r}, got {header[:40]!r}")
        scope = _Scope("d")
        for s in self._statements(last=None):
            if s.name == "input" and scope.ops:
                self._fail("expected inputs before operators, got one behind them")
            if s.name == "input":
                self._results(s, scope, 1)
                scope.inputs.append(self._input(s))
            elif s.name == "output":
                self._keys(s)
                scope.outputs += self._numbers(s.args, scope.letter, 1)
            elif s.name == "graph_defined":
                scope.ops.append(self._block(s, scope))
            else:
                scope.ops.append(self._op(s, scope))
        head: dict[str, object] = {"schema": SCHEMA, "version": VERSION}
        return head | {"inputs": scope.inputs, "ops": scope.ops, "outputs": scope.outputs}

    def _block(self, head: _Statement, outer: _Scope) -> dict[str, object]:
        scope = _Scope("s")
        for s in self._inner(head):
            if s.name == "input" and scope.ops:
                self._fail("expected inputs before operators, got one behind them")
            if s.name == "input":
                self._keys(s, "imap", "fmap")
                self._results(s, scope, 1)
                scope.operands += self._numbers(s.args, outer.letter, 1)
                scope.inputs.append({"imap": self._value(s, "imap"), "fmap": self._value(s, "fmap")})
            elif s.name == "output":
                self._keys(s, "omap")
                (operand,) = self._numbers(s.args, scope.letter, 1)
                scope.outputs.append({"operand": operand, "omap": self._value(s, "omap")})
            elif s.name == "thread_defined":
                scope.ops.append(self._thread(s, scope))
            else:
                scope.ops.append(self._op(s, scope))
        operands = self._same_operands(head, scope, outer)
        self._keys(head, *_GEOMETRY)
        numbers = {key: self._value(head, key) for key in _GEOMETRY}
        graph = numbers | {"inputs": scope.inputs, "ops": scope.ops, "outputs": scope.outputs}
        self._results(head, outer, len(scope.outputs))
        return {"type": "graph_defined", "operands": operands, "graph": graph}

    def _thread(self, head: _Statement, outer: _Scope) -> dict[str, object]:
        scope = _Scope("r")
        for s in self._inner(head):
            if s.name == "input" and scope.ops:
                self._fail("expected inputs before operators, got one behind them")
            if s.name == "input":
                self._keys(s)
                self._results(s, scope, 1)
                scope.operands += self._numbers(s.args, outer.letter, 1)
            elif s.name == "output":
                self._keys(s)
                scope.outputs += self._numbers(s.args, scope.letter, 1)
            else:
                scope.ops.append(self._op(s, scope))
        operands = self._same_operands(head, scope, outer)
        self._keys(head)
        graph = {"inputs": len(operands), "ops": scope.ops, "outputs": scope.outputs}
        self._results(head, outer, len(scope.outputs))
        return {"type": "thread_defined", "operands": operands, "graph": graph}

    def _input(self, s: _Statement) -> dict[str, object]:
        if len(s.args) != 1:
            self._fail(f"expected input(NAME), got {len(s.args)} names")
        self._keys(s, "dtype", "shape", "strides", "band")
        shape = self._value(s, "shape")
        if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
            self._fail(f"expected shape=[...] of integers, got {shape!r}")
        strides = self._value(s, "strides") if "strides" in s.attributes else list(row_major(tuple(shape)))
        found = {"name": s.args[0], "dtype": self._value(s, "dtype"), "shape": shape, "strides": strides}
        if "band" not in s.attributes:
            return found
        band = self._value(s, "band")
        if not isinstance(band, list) or len(band) != 2:
            self._fail(f"expected band=[lower,upper], got {band!r}")
        return found | {"band": dict(zip(("lower", "upper"), band, strict=True))}

    def _op(self, s: _Statement, scope: _Scope) -> dict[str, object]:
        kind = next((kind for kind in OpKind if kind.value == s.name), None)
        if kind is None or s.opens:
            self._fail(f"expected an operator, got {s.name[:40]}")
        self._keys(s, *_ATTRIBUTES)
        operands = self._numbers(s.args, scope.letter)
        self._results(s, scope, SPECS[kind].outputs)
        values = {key: self._value(s, key) for key in s.attributes}
        return {"type": "op", "kind": s.name, "operands": operands} | values

    def _same_operands(self, head: _Statement, scope: _Scope, outer: _Scope) -> list[int]:
        operands = self._numbers(head.args, outer.letter)
        if operands != scope.operands:
            self._line = head.line
            self._fail(f"expected inputs to read {', '.join(head.args)} in order, as the graph's head says")
        return operands

    def _inner(self, head: _Statement) -> Iterator[_Statement]:
        if not head.opens:
            self._fail(f"expected {{ after {head.name}(...)")
        yield from self._statements(last="}")

    def _statements(self, last: str | None) -> Iterator[_Statement]:
        """Yield the statements up to the closing line."""
        for number, line in self._lines:
            self._line = number
            if line == last:
                return
            if line:
                yield self._statement(line)
        if last is not None:
            self._fail(f"expected {last!r}, got the end of the text")

    def _statement(self, line: str) -> _Statement:
        match = _STATEMENT.fullmatch(line)
        if match is None:
            self._fail(f"expected 'results = operator(operands) key=value', got {line[:60]!r}")
        rest = match["rest"].strip()
        found = _ATTRIBUTE.findall(rest)
        if " ".join(f"{key}={value}" for key, value in found) != " ".join(rest.split()):
            self._fail(f"expected key=value pairs, got {rest[:60]!r}")
        if len({key for key, _ in found}) != len(found):
            self._fail(f"expected each key once, got {rest[:60]!r}")
        results, args = (
            tuple(part.strip() for part in text.split(",")) if text and text.strip() else ()
            for text in (match["results"], match["args"])
        )
        return _Statement(self._line, results, match["name"], args, dict(found), bool(match["open"]))

    def _keys(self, s: _Statement, *allowed: str) -> None:
        for key in s.attributes:
            if key not in allowed:
                self._fail(f"expected no {key} in {s.name}(...), got {key}={s.attributes[key][:40]}")

    def _results(self, s: _Statement, scope: _Scope, count: int) -> None:
        """Check that results carry the next numbers, and count them."""
        wanted = tuple(f"{scope.letter}{scope.count + i}" for i in range(count))
        if s.results != wanted:
            self._line = s.line
            got = ", ".join(s.results)[:40] or "none"
            self._fail(f"expected results {', '.join(wanted) or 'none'}, got {got}")
        scope.count += len(wanted)

    def _numbers(self, args: tuple[str, ...], letter: str, count: int | None = None) -> list[int]:
        for arg in args:
            if not arg.startswith(letter) or _INTEGER.fullmatch(arg[1:]) is None:
                self._fail(f"expected a tensor such as {letter}0, got {arg[:40]!r}")
        if count is not None and len(args) != count:
            self._fail(f"expected {count} tensor, got {len(args)}")
        return [int(arg[1:]) for arg in args]

    def _value(self, s: _Statement, key: str) -> object:
        """Return an attribute's value as JSON has it: an integer, null for ``-``, a list of those, or text."""
        if key not in s.attributes:
            self._fail(f"expected {key}=..., got none")
        text = s.attributes[key]
        if text.startswith("["):
            return [self._scalar(part) for part in text[1:-1].split(",")] if text != "[]" else []
        return text if key in ("factor", "eps", "dtype", "shift", "value") else self._scalar(text)

    def _scalar(self, text: str) -> int | None:
        if text == "-":
            return None
        if _SIGNED.fullmatch(text) is None:
            self._fail(f"expected an integer or -, got {text[:40]!r}")
        return int(text)

    def _fail(self, what: str) -> NoReturn:
        where = f"{self._where}:{self._line}" if self._where else f"line {self._line}"
        raise FormatError(what, where=where, hint=_HINT)
