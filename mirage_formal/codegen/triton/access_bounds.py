"""Bounds of each load and store of a Triton file, decided from the index expressions in its text.

The text is read as Python: ids of programs, ranges of lanes, counters of loops, masks and offsets become integer
expressions, and one question for each access is decided as those of CUDA kernels are: does its index lie within the
memory behind its pointer, for all programs, iterations and lanes at which its mask holds? Nothing is claimed about
races, nor that the functions compute their µGraph.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mirage_formal.codegen.program.integers import (
    add,
    fold,
    implied_bounds,
    intermediates,
    interval,
    less_than,
    make_binary,
    negate,
)
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligations,
    Obligation,
    ObligationKind,
    UndecidedObligation,
    ViolatedObligation,
)
from mirage_formal.codegen.safety.safety import bounds_obligation, lower_bound_obligation, solve_obligations
from mirage_formal.codegen.triton.address import PIDS
from mirage_formal.support.limits import SAFETY_MS

if TYPE_CHECKING:
    from mirage_formal.codegen.triton.file import TritonFile
    from mirage_formal.codegen.triton.kernel_function import Function

#: Operators of integers in the text of a function.
_BINARY: Final = {
    ast.Add: IntOp.ADD,
    ast.Sub: IntOp.SUB,
    ast.Mult: IntOp.MUL,
    ast.FloorDiv: IntOp.DIV,
    ast.Mod: IntOp.MOD,
    ast.BitAnd: IntOp.AND,
}
AccessKind = Literal["load", "store", "use"]


class _NotRead(Exception):
    """A part of the text is no expression of integers that is read here."""


@dataclass(frozen=True, slots=True)
class AccessBounds:
    """A load or store of a Triton file, and what is known about its bounds.

    Attributes:
        function: Name of the function.
        line: Line of the file.
        access: "load" or "store"; "use" where a pointer occurs in another way.
        discharged: The obligation that its index lies within the memory behind its pointer, with the finding.
    """

    function: str
    line: int
    access: AccessKind
    discharged: DischargedObligations


def discharge_access_bounds(file: TritonFile, timeout_ms: int = SAFETY_MS) -> tuple[AccessBounds, ...]:
    """Decide for each load and store of a file whether it is in bounds.

    Sound: an access is held only if the index of its text, evaluated without overflow, lies in 0..size-1 for all values
    of ids, counters and lanes at which the mask of its text holds. What is not read, may overflow, or divides what may
    be negative is undecided; so is what reads a name that has another value at another time, because it is bound again
    by something else than loops. A pointer that occurs anywhere else in a function is undecided too.

    Args:
        file: The file. The sizes of the memory behind its pointers and the grids are those of its ``functions``.
        timeout_ms: Time limit of each question to a solver.
    """
    functions = {one.name: one for one in file.functions}
    found: list[AccessBounds] = []
    for node in ast.parse(file.text).body:
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            for line, access, stated in _Reader(functions[node.name], node).obligations():
                found += [AccessBounds(node.name, line, access, one) for one in solve_obligations(stated, timeout_ms)]
    return tuple(found)


def find_violated_bounds(accesses: Sequence[AccessBounds]) -> AccessBounds | None:
    """Return the first access that is out of bounds at known values; None if there is none, which proves nothing."""
    return next((one for one in accesses if isinstance(one.discharged.finding, ViolatedObligation)), None)


@dataclass(slots=True)
class _Reader:
    """Reader of the text of a function.

    Attributes:
        function: The function, with its pointers, sizes and grid.
        node: Its text.
        sizes: Extents of all variables: ids, counters, and lanes along each axis.
        values: Integers that have a name in the text.
        lanes: Extents of ranges of lanes by name.
        bits: Bits of the integers: 64 if all ids and ranges are converted, else 32.
        rebound: Names that are bound more than once, and not by loops alone.
    """

    function: Function
    node: ast.FunctionDef
    sizes: dict[str, int] = field(default_factory=dict)
    values: dict[str, IntExpr] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)
    bits: int = 64
    rebound: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        names = (one for one in ast.walk(self.node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
        loops = (one.target for one in ast.walk(self.node) if isinstance(one, ast.For))
        bound = Counter(one.id for one in names)
        counters = Counter(one.id for one in loops if isinstance(one, ast.Name))
        self.rebound = frozenset(name for name, count in bound.items() if count > 1 and count != counters[name])

    def obligations(self) -> Iterator[tuple[int, AccessKind, list[Obligation]]]:
        """Yield line, kind and obligations of each access, in the order of the text."""
        yield from self._statements(self.node.body)

    def _statements(self, body: Sequence[ast.stmt]) -> Iterator[tuple[int, AccessKind, list[Obligation]]]:
        for statement in body:
            if isinstance(statement, ast.For):
                self._loop(statement)
                yield from self._statements(statement.body)
                continue
            if isinstance(statement, ast.Assign):
                self._assign(statement)
            yield from self._accesses(statement)

    def _loop(self, loop: ast.For) -> None:
        """Note the value of a loop's counter if it runs from 0 to a number; forget an earlier one otherwise."""
        match loop:
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))], keywords=[]),
            ) if name not in self.rebound:
                # Values that were computed from the counter of an earlier loop keep that one's bounds.
                variable = f"{name}_{loop.lineno}" if name in self.sizes else name
                self.sizes[variable], self.values[name] = count, Var(variable)
            case ast.For(target=ast.Name(id=name)):
                self.values.pop(name, None)

    def _assign(self, statement: ast.Assign) -> None:
        """Note the value of a name, if it is an integer or a range of lanes, and the only one that the name has."""
        (target,) = statement.targets
        if not isinstance(target, ast.Name):
            return
        name, value = target.id, statement.value
        if name in self.rebound:
            return
        bits = 32
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr="to"), args=[kind]):
                bits, value = 64 if ast.unparse(kind) == "tl.int64" else 32, inner
        match value:
            case ast.Call(func=ast.Attribute(attr="program_id"), args=[ast.Constant(value=int(axis))]):
                self.sizes[PIDS[axis]], self.values[name] = self.function.grid[axis], Var(PIDS[axis])
                self.bits = min(self.bits, bits)
            case ast.Call(func=ast.Attribute(attr="arange"), args=[ast.Constant(value=0), ast.Constant(value=int(n))]):
                self.lanes[name], self.bits = n, min(self.bits, bits)
            case ast.Call(func=ast.Attribute(attr="full"), args=[ast.Tuple(elts=[]), ast.Constant(value=int(n)), _]):
                self.values[name] = Int(n)
            case ast.BinOp():
                with suppress(_NotRead):
                    self.values[name] = self._integer(value)

    def _accesses(self, statement: ast.stmt) -> Iterator[tuple[int, AccessKind, list[Obligation]]]:
        read: set[ast.AST] = set()
        for node in ast.walk(statement):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="tl"), attr="load" | "store" as attr), args=[address, *_]
                ):
                    kind: AccessKind = "load" if attr == "load" else "store"
                    read |= set(ast.walk(address))
                    mask = next((one.value for one in node.keywords if one.arg == "mask"), None)
                    yield node.lineno, kind, list(self._bounds(node.lineno, kind, address, mask))
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in self.function.pointers and node not in read:
                said = UndecidedObligation("the pointer is used in another way than by a load or a store")
                yield node.lineno, "use", [self._stated(node.lineno, "use", node.id, said)]

    def _stated(self, line: int, kind: str, pointer: str, finding: UndecidedObligation | None = None) -> Obligation:
        spans = dict(zip(self.function.pointers, self.function.spans, strict=True))
        claim = f"a {kind} lies within {spans.get(pointer, 'its')} elements"
        return Obligation(ObligationKind.BOUNDS, f"{self.node.name}, line {line}", pointer, claim, None, finding)

    def _bounds(self, line: int, kind: str, address: ast.expr, mask: ast.expr | None) -> Iterator[Obligation]:
        """Yield the obligations of an access: one, or another one for the lower end where that is not seen at once."""
        terms = list(_terms(address))
        pointers = [one.id for one in terms if isinstance(one, ast.Name) and one.id in self.function.pointers]
        stated = self._stated(line, kind, pointers[0] if pointers else ast.unparse(address)[:80])
        try:
            if len(pointers) != 1:
                raise _NotRead(f"expected one pointer in an address, got {len(pointers)}")
            offsets = [one for one in terms if not (isinstance(one, ast.Name) and one.id == pointers[0])]
            index: IntExpr = Int(0)
            for one in offsets:
                index = add(index, self._integer(one))
            guards = () if mask is None else (self._integer(mask),)
            self._expect_exact(index, guards)
        except _NotRead as error:
            yield self._stated(line, kind, stated.subject, UndecidedObligation(str(error)))
            return
        size = self.function.spans[self.function.pointers.index(pointers[0])]
        yield bounds_obligation(self.sizes, guards, index, 1, size, stated)
        below = lower_bound_obligation(self.sizes, guards, index, stated)
        if below is not None:
            yield below

    def _expect_exact(self, index: IntExpr, guards: Sequence[IntExpr]) -> None:
        """Refuse expressions whose value on a device may be another than that of the integers.

        Sound: every intermediate of index and mask lies within the type of the text, at all lanes, and no dividend is
        negative, where division rounds in another way. The bounds of a mask are used for the index alone, which is
        read only where the mask holds.

        Raises:
            _NotRead: Says which.
        """
        most = (1 << self.bits - 1) - 1
        ranges = {name: (0, extent - 1) for name, extent in self.sizes.items()}
        facts: Mapping[IntExpr, tuple[int, int]] = {}
        for e in (*guards, index):
            if e is index:
                facts = implied_bounds(guards, ranges)
            for part in intermediates(e):
                low, high = interval(part, ranges)
                if low < -most or high > most:
                    raise _NotRead(f"an intermediate may leave {self.bits} bits")
                match part:
                    case IntBin(IntOp.DIV | IntOp.MOD, a, _) if interval(a, ranges, facts)[0] < 0:
                        raise _NotRead("a dividend may be negative")

    def _integer(self, node: ast.expr) -> IntExpr:
        """Return an expression of the text as one of integers.

        Raises:
            _NotRead: It is another one.
        """
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int(value)):
                return Int(value)
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.Name(id=name) if name in self.lanes:
                return self._lane(name, 1)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=axes)) if name in self.lanes:
                kept = [axis for axis, one in enumerate(axes) if isinstance(one, ast.Slice)]
                if len(kept) == 1:
                    return self._lane(name, len(axes) - kept[0])
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return make_binary(IntOp.SUB, Int(0), self._integer(inner))
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
                x, y = self._integer(a), self._integer(b)
                kind = _BINARY[type(op)]
                if kind in (IntOp.DIV, IntOp.MOD) and not (isinstance(y, Int) and y.value > 0):
                    raise _NotRead("a divisor is no positive constant")
                return make_binary(kind, x, y)
            case ast.Compare(left=a, ops=[op], comparators=[b]):
                return self._comparison(op, self._integer(a), self._integer(b))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="zeros")):
                return Int(0)
        raise _NotRead(f"not an expression of ids, counters and lanes: {ast.unparse(node)[:200]}")

    def _lane(self, name: str, axis: int) -> IntExpr:
        """Return the lanes of a range as a variable; axes are counted from the last, as blocks are broadcast."""
        variable = f"{name}_{axis}"
        self.sizes[variable] = self.lanes[name]
        return fold(Var(variable), {variable: Int(0)} if self.lanes[name] == 1 else {})

    def _comparison(self, op: ast.cmpop, a: IntExpr, b: IntExpr) -> IntExpr:
        match op:
            case ast.Lt():
                return less_than(a, b)
            case ast.Gt():
                return less_than(b, a)
            case ast.GtE():
                return negate(less_than(a, b))
            case ast.LtE():
                return negate(less_than(b, a))
        raise _NotRead(f"not a comparison that is read: {type(op).__name__}")


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the terms of a sum."""
    match node:
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            yield from _terms(a)
            yield ast.UnaryOp(ast.USub(), b)
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            yield from _terms(a)
            yield from _terms(b)
        case _:
            yield node


__all__ = ["AccessBounds", "discharge_access_bounds", "find_violated_bounds"]
