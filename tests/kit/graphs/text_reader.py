"""Reader of the text that ``graph.formats.text`` prints; equal graphs show that the text leaves nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final, NoReturn

from mirage_formal.graph.formats.json import from_value
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.graph_schema import SCHEMA, VERSION
from mirage_formal.graph.ops import SPECS, Attrs, OpKind
from mirage_formal.graph.types import row_major

_HEADER: Final = f"mugraph {VERSION}"
_STATEMENT: Final = re.compile(
    r"(?:(?P<results>[\w, ]+)= *)?(?P<name>\w+)\((?P<args>[^()]*)\)(?P<rest>[^{}]*)(?P<open>\{?)"
)
_ATTRIBUTE: Final = re.compile(r"(\w+)=(\[[^\]\s]*\]|[^\s\[\]]+)")
_GEOMETRY: Final = ("grid", "block", "forloop_range", "reduction_dimx")
_ATTRIBUTES: Final = tuple(field.name for field in fields(Attrs))
_INTEGER: Final = re.compile(r"[0-9]{1,18}")
_SIGNED: Final = re.compile(r"-?[0-9]{1,18}")


def from_text(text: str) -> KernelGraph:
    """The graph in a text that ``to_text`` wrote."""
    return from_value(_Reader(text).kernel(), "")


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

    def __init__(self, text: str) -> None:
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
        raise ValueError(f"line {self._line}: {what}")
