"""Mutants of Programs: one small change each of what a thread computes, named by what it touched."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Final

from mirage_formal.codegen.program.program import (
    Acquire,
    Apply,
    Await,
    BinaryFn,
    Combine,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    If,
    Int,
    IntBin,
    IntOp,
    KernelFn,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Real,
    Reg,
    Registers,
    Release,
    Select,
    SetReg,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    TileCopy,
    Var,
    WarpgroupMma,
    Where,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType


class Touched(StrEnum):
    """What a mutant touched."""

    LOAD = "load index"
    STORE = "store index"
    SHARED = "shared index"
    SWIZZLE = "swizzle"
    RING = "ring"
    BLOCK = "block index"
    LOOP = "loop bound"
    GUARD = "guard"
    MASK = "mask"
    OPERATOR = "operator"
    EXTREME = "maximum"
    CONSTANT = "constant"
    FRAGMENT = "fragment"
    SHUFFLE = "shuffle"
    VECTOR = "vector"
    REGISTER = "register"
    ORDER = "order"
    START = "start"
    NAME = "name"
    TYPE = "element type"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A Program with one change.

    Attributes:
        touched: What the change touched.
        what: The change in words: the path to it, and the change.
        program: The changed Program.
    """

    touched: Touched
    what: str
    program: Program


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one node, by the path from the Program to it.

    Attributes:
        touched: What it touches.
        path: Names of fields and positions in tuples.
        what: The change in words.
        node: What comes in place of the node.
    """

    touched: Touched
    path: tuple[str | int, ...]
    what: str
    node: Any


#: The family of an integer in a field of a statement or value.
_FIELDS: Final[dict[tuple[type, str], Touched]] = {
    (GlobalRead, "index"): Touched.LOAD,
    (GlobalVector, "index"): Touched.LOAD,
    (CopyAsync, "source"): Touched.LOAD,
    (GlobalWrite, "index"): Touched.STORE,
    (SharedRead, "index"): Touched.SHARED,
    (SharedWrite, "index"): Touched.SHARED,
    (SharedVector, "index"): Touched.SHARED,
    (CopyAsync, "index"): Touched.SHARED,
    (LoadMatrix, "index"): Touched.SHARED,
    (LoadMatrix, "at"): Touched.FRAGMENT,
    (Mma, "a_at"): Touched.FRAGMENT,
    (Mma, "b_at"): Touched.FRAGMENT,
    (Mma, "d_at"): Touched.FRAGMENT,
    (WarpgroupMma, "a_at"): Touched.FRAGMENT,
    (WarpgroupMma, "b_at"): Touched.SHARED,
    (WarpgroupMma, "d_at"): Touched.FRAGMENT,
    (ShuffleReduce, "at"): Touched.SHUFFLE,
    (SharedVector, "at"): Touched.VECTOR,
    (GlobalVector, "at"): Touched.VECTOR,
    (SetReg, "index"): Touched.REGISTER,
    (Reg, "index"): Touched.REGISTER,
    (Pack, "index"): Touched.REGISTER,
    (If, "condition"): Touched.GUARD,
    (Select, "condition"): Touched.GUARD,
    (CopyAsync, "valid"): Touched.GUARD,
    (Acquire, "item"): Touched.PIPELINE,
    (Await, "item"): Touched.PIPELINE,
    (Release, "item"): Touched.PIPELINE,
    (TileCopy, "item"): Touched.PIPELINE,
    (TileCopy, "at"): Touched.PIPELINE,
    (TileCopy, "source"): Touched.LOAD,
}
_INTEGER_OPERATORS: Final[dict[IntOp, tuple[IntOp, ...]]] = {
    IntOp.ADD: (IntOp.SUB, IntOp.MUL, IntOp.XOR),
    IntOp.SUB: (IntOp.ADD,),
    IntOp.MUL: (IntOp.ADD,),
    IntOp.DIV: (IntOp.MOD, IntOp.MUL),
    IntOp.MOD: (IntOp.DIV, IntOp.ADD),
    IntOp.XOR: (IntOp.ADD, IntOp.SUB),
    IntOp.LT: (IntOp.EQ,),
    IntOp.EQ: (IntOp.LT,),
    IntOp.AND: (IntOp.ADD,),
}
_FUNCTIONS: Final[dict[BinaryFn, tuple[BinaryFn, ...]]] = {
    BinaryFn.ADD: (BinaryFn.SUB, BinaryFn.MAX),
    BinaryFn.SUB: (BinaryFn.ADD, BinaryFn.MUL),
    BinaryFn.MUL: (BinaryFn.ADD, BinaryFn.DIV),
    BinaryFn.DIV: (BinaryFn.MUL,),
    BinaryFn.MAX: (BinaryFn.ADD, BinaryFn.MIN),
    BinaryFn.MIN: (BinaryFn.MAX,),
    BinaryFn.DIV_NO_NAN: (BinaryFn.MUL,),
    BinaryFn.EQ: (BinaryFn.LE,),
    BinaryFn.LT: (BinaryFn.GE, BinaryFn.EQ),
    BinaryFn.LE: (BinaryFn.GT,),
    BinaryFn.GT: (BinaryFn.LE,),
    BinaryFn.GE: (BinaryFn.LT,),
}
_DIRECTED: Final = frozenset({BinaryFn.SUB, BinaryFn.DIV, BinaryFn.DIV_NO_NAN, BinaryFn.LT, BinaryFn.GT, BinaryFn.LE})
_UNARY: Final[dict[Any, tuple[Any, ...]]] = {
    KernelFn.NEG: (OpKind.ABS, OpKind.RELU),
    KernelFn.RSQRT: (OpKind.SQRT, OpKind.RECIPROCAL),
    OpKind.EXP: (OpKind.SIGMOID, KernelFn.NEG),
    OpKind.SILU: (OpKind.SIGMOID, OpKind.GELU),
    OpKind.SIGMOID: (OpKind.SILU, OpKind.TANH),
    OpKind.SQRT: (KernelFn.RSQRT, OpKind.ABS),
    OpKind.RELU: (OpKind.ABS, KernelFn.NEG),
    OpKind.SQUARE: (OpKind.ABS,),
    OpKind.LOGICAL_NOT: (OpKind.ABS,),
}
_OTHER_TYPE: Final = {DType.FLOAT16: DType.BFLOAT16, DType.BFLOAT16: DType.FLOAT16}


def constants(value: int) -> list[int]:
    """Other values of a constant, none negative: neighbours, halves, doubles, one bit flipped."""
    found = (value + 1, value - 1, 2 * value, value // 2, value ^ 8, 0)
    return [n for n in dict.fromkeys(found) if n >= 0 and n != value]


class _Walk:
    """Lists all changes of a Program's body and producer.

    Attributes:
        program: The Program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.read = [param for param in program.params if not param.written]

    def changes(self) -> Iterator[Change]:
        """Yield all changes."""
        yield from self.node(self.program.body, ("body",), Touched.ORDER)
        yield from self.node(self.program.producer, ("producer",), Touched.ORDER)
        for i, pipeline in enumerate(self.program.pipelines):
            for slots in (pipeline.slots - 1, pipeline.slots + 1):
                other = replace(pipeline, slots=slots)
                yield Change(Touched.PIPELINE, ("pipelines", i), f"{pipeline.name}: {slots} slots", other)
            for count in (pipeline.bytes // 2, pipeline.bytes + 128):
                other = replace(pipeline, bytes=count)
                yield Change(Touched.PIPELINE, ("pipelines", i), f"{pipeline.name}: {count} bytes", other)
        for i, buffer in enumerate(self.program.shared):
            if buffer.dtype in _OTHER_TYPE:
                typed = replace(buffer, dtype=_OTHER_TYPE[buffer.dtype])
                yield Change(Touched.TYPE, ("shared", i), f"{buffer.name} as {typed.dtype}", typed)

    def node(self, node: Any, path: tuple[str | int, ...], touched: Touched) -> Iterator[Change]:
        """Yield the changes of a node and of all in it; ``touched`` is what an integer here would be."""
        if isinstance(node, tuple):
            if path[-1] in ("body", "producer"):
                yield from self.order(node, path)
            for i, inner in enumerate(node):
                yield from self.node(inner, (*path, i), touched)
            return
        if not is_dataclass(node):
            return
        yield from self.own(node, path, self.refined(node, touched))
        for f in fields(node):
            inner = getattr(node, f.name)
            if isinstance(inner, tuple) or is_dataclass(inner):
                family = _FIELDS.get((type(node), f.name), self.refined(node, touched))
                yield from self.node(inner, (*path, f.name), family)

    def refined(self, node: Any, touched: Touched) -> Touched:
        """The family of the parts of an expression: XORs are swizzles, remainders of loop variables stages of rings."""
        match node:
            case IntBin(op=IntOp.XOR):
                return Touched.SWIZZLE
            case IntBin(op=IntOp.MOD) if _loops(node) and touched is Touched.SHARED:
                return Touched.RING
            case IntBin(op=IntOp.MUL, a=Var("bx" | "by" | "bz")):
                return Touched.BLOCK
            case Where():
                return Touched.MASK
            case _:
                return touched

    def own(self, node: Any, path: tuple[str | int, ...], touched: Touched) -> Iterator[Change]:  # noqa: C901
        """Yield the changes of the node itself."""

        def change(what: str, other: Any, family: Touched = touched) -> Change:
            return Change(family, path, what, other)

        match node:
            case Int(value):
                yield from (change(f"{value} -> {n}", Int(n)) for n in constants(value))
            case Var(name) if name in ("bx", "by", "bz"):
                yield from (change(f"{name} -> {n}", Var(n)) for n in ("bx", "by", "bz") if n != name)
                yield change(f"{name} -> 0", Int(0))
            case Var(name):
                yield change(f"{name} -> 0", Int(0))
                yield change(f"{name} + 1", IntBin(IntOp.ADD, node, Int(1)))
            case IntBin(op, a, b):
                yield from (change(f"{op} -> {other}", IntBin(other, a, b)) for other in _INTEGER_OPERATORS[op])
                yield change(f"{op}: left only", a)
                yield change(f"{op}: right only", b)
            case Real(value):
                family = Touched.CONSTANT
                yield from (change(f"{value} -> {n}", Real(n), family) for n in (2 * value, value + 1.0, -value, 0.0))
            case Reg(array=array):
                yield from (
                    change(f"{array} -> {s.name}", replace(node, array=s.name), Touched.NAME)
                    for s in self.declared()
                    if s.name != array and not s.words
                )
            case Combine(fn, a, b):
                family = Touched.EXTREME if fn is BinaryFn.MAX else Touched.OPERATOR
                yield from (change(f"{fn} -> {f}", Combine(f, a, b), family) for f in _FUNCTIONS[fn])
                yield change(f"{fn}: left only", a, family)
                yield change(f"{fn}: right only", b, family)
                if fn in _DIRECTED:
                    yield change(f"{fn}: swapped", Combine(fn, b, a), family)
            case Apply(fn, a):
                yield from (change(f"{fn} -> {f}", Apply(f, a), Touched.OPERATOR) for f in _UNARY.get(fn, ()))
                yield change(f"without {fn}", a, Touched.OPERATOR)
            case Select(condition, a, b):
                yield change("select: swapped", Select(condition, b, a), Touched.GUARD)
                yield change("select: first", a, Touched.GUARD)
                yield change("select: second", b, Touched.GUARD)
            case Where(mask, a, b):
                yield change("where: swapped", Where(mask, b, a), Touched.MASK)
                yield change("where: first", a, Touched.MASK)
                yield change("where: second", b, Touched.MASK)
                yield change("where: not", Where(Apply(OpKind.LOGICAL_NOT, mask), a, b), Touched.MASK)
            case For(extent=extent):
                for n in {extent + 1, extent - 1, max(extent // 2, 1)} - {extent, 0}:
                    yield change(f"for {node.var} < {extent} -> {n}", replace(node, extent=n), Touched.LOOP)
            case If(body=body):
                yield change("if 1", replace(node, condition=Int(1)), Touched.GUARD)
                yield change("if 0", replace(node, condition=Int(0), body=body), Touched.GUARD)
            case Registers(initial=value) if value is not None:
                for start in (None, 1.0, 0.0, value + 0.5):
                    if start != value:
                        yield change(f"{node.name} starts with {start}", replace(node, initial=start), Touched.START)
            case GlobalRead() | GlobalVector():
                yield from self.params(node, change)
            case GlobalWrite(values=values) | SharedWrite(values=values) if len(values) > 1:
                swapped = (values[1], values[0], *values[2:])
                yield change("two values swapped", replace(node, values=swapped), Touched.VECTOR)
            case CopyAsync(valid=valid):
                if valid != Int(1):
                    yield change("copy always valid", replace(node, valid=Int(1)), Touched.GUARD)
                yield from self.params(node, change)
            case Pack(low=low, high=high):
                yield change("halves swapped", replace(node, low=high, high=low), Touched.FRAGMENT)
                if node.dtype in _OTHER_TYPE:
                    yield change("packed as other type", replace(node, dtype=_OTHER_TYPE[node.dtype]), Touched.TYPE)
            case LoadMatrix():
                yield change("other orientation", replace(node, transposed=not node.transposed), Touched.FRAGMENT)
                if node.count > 1:
                    yield change("fewer matrices", replace(node, count=node.count // 2), Touched.FRAGMENT)
            case Mma():
                other = replace(node, a=node.b, b=node.a, a_at=node.b_at, b_at=node.a_at)
                yield change("operands swapped", other, Touched.FRAGMENT)
                if node.dtype in _OTHER_TYPE:
                    yield change("product of other type", replace(node, dtype=_OTHER_TYPE[node.dtype]), Touched.TYPE)
            case WarpgroupMma():
                yield from self.warpgroup(node, change)
            case Acquire() | TileCopy() | Await() | Release():
                yield from self.of_item(node, change)
            case ShuffleReduce(fn=fn, mask=mask):
                for n in {mask ^ 1, mask * 2, mask // 2, mask ^ 4} - {mask, 0, 32}:
                    yield change(f"shuffle {mask} -> {n}", replace(node, mask=n), Touched.SHUFFLE)
                f = BinaryFn.ADD if fn is BinaryFn.MAX else BinaryFn.MAX
                yield change(f"shuffle {fn} -> {f}", replace(node, fn=f), Touched.SHUFFLE)
            case _:
                return

    def warpgroup(self, node: WarpgroupMma, change: Any) -> Iterator[Change]:
        """Yield products of warpgroups of other extents, layouts and operands."""
        changes: dict[str, dict[str, Any]] = {
            "b lies the other way": {"b_across": not node.b_across},
            "b: a further panel": {"b_panel": node.b_panel + 1},
            "accumulators": {"accumulate": not node.accumulate},
            "half the depth": {"depth": node.depth // 32 * 16},
            "half the columns": {"columns": node.columns // 2},
            "twice the columns": {"columns": node.columns * 2},
        }
        if node.a_panel:
            changes["a lies the other way"] = {"a_across": not node.a_across}
            changes["a: a further panel"] = {"a_panel": node.a_panel + 1}
            changes["operands swapped"] = {"a": node.b, "b": node.a, "a_at": node.b_at, "b_at": node.a_at}
        for what, changed_to in changes.items():
            if changed_to.get("depth", 16):
                yield change(what, replace(node, **changed_to), Touched.FRAGMENT)
        if node.dtype in _OTHER_TYPE:
            yield change("product of other type", replace(node, dtype=_OTHER_TYPE[node.dtype]), Touched.TYPE)

    def of_item(self, node: Acquire | TileCopy | Await | Release, change: Any) -> Iterator[Change]:
        """Yield the statement about an item of another pipeline, and copies of other tiles."""
        for pipeline in self.program.pipelines:
            if pipeline.name != node.pipeline:
                yield change(
                    f"{node.pipeline} -> {pipeline.name}", replace(node, pipeline=pipeline.name), Touched.PIPELINE
                )
        if isinstance(node, TileCopy):
            for rows in {node.rows - 8, node.rows + 8, node.rows // 2} - {0}:
                yield change(f"{rows} rows", replace(node, rows=rows), Touched.PIPELINE)
            yield change("twice the stride", replace(node, stride=2 * node.stride), Touched.LOAD)
            for buffer in self.program.shared:
                if buffer.name != node.buffer:
                    yield change(f"into {buffer.name}", replace(node, buffer=buffer.name), Touched.PIPELINE)
            yield from self.params(node, change)

    def params(self, node: Any, change: Any) -> Iterator[Change]:
        """Yield reads of another parameter of the same type."""
        dtypes = {param.name: param.dtype for param in self.read}
        for param in self.read:
            if param.name != node.param and param.dtype is dtypes.get(node.param):
                yield change(f"{node.param} -> {param.name}", replace(node, param=param.name), Touched.NAME)

    def declared(self) -> list[Registers]:
        """All register arrays that stand in the body itself, for all statements see them."""
        return [s for s in self.program.body if isinstance(s, Registers)]

    def order(self, body: tuple[Stmt, ...], path: tuple[str | int, ...]) -> Iterator[Change]:
        """Yield the statements with two swapped, one left out, or one done twice."""
        for i, s in enumerate(body):
            before, after = body[:i], body[i + 1 :]
            name = type(s).__name__
            if isinstance(s, Registers):
                continue
            if after and not isinstance(after[0], Registers):
                yield Change(Touched.ORDER, path, f"swap {name} at {i}", (*before, after[0], s, *after[1:]))
            yield Change(Touched.ORDER, path, f"drop {name} at {i}", (*before, *after))
            if isinstance(s, SetReg | Mma | WarpgroupMma | ShuffleReduce | Acquire | TileCopy | Await | Release):
                yield Change(Touched.ORDER, path, f"twice {name} at {i}", (*before, s, s, *after))


def _loops(e: Any) -> bool:
    """Whether an expression has the variable of a loop."""
    match e:
        case Var(name):
            return name not in ("tid", "bx", "by", "bz")
        case IntBin(_, a, b):
            return _loops(a) or _loops(b)
        case _:
            return False


def changes(program: Program) -> list[Change]:
    """Return all changes of a Program, in the order of its text."""
    return list(_Walk(program).changes())


def changed(program: Program, change: Change) -> Mutant:
    """Return the Program with a change."""
    path = ".".join(map(str, change.path))
    return Mutant(change.touched, f"{path}: {change.what}", _put(program, change.path, change.node))


def _put(node: Any, path: Sequence[str | int], new: Any) -> Any:
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*node[:step], _put(node[step], rest, new), *node[step + 1 :])
    return replace(node, **{step: _put(getattr(node, step), rest, new)})


def drawn(program: Program, count: int, seed: int) -> list[Mutant]:
    """Return mutants, as many of each family as far as there are: families by turns, changes of each at random."""
    draw = random.Random(seed)
    by_family: dict[Touched, list[Change]] = {}
    for change in changes(program):
        by_family.setdefault(change.touched, []).append(change)
    for each in by_family.values():
        draw.shuffle(each)
    turns = list(by_family)
    draw.shuffle(turns)
    found: list[Change] = []
    while turns and len(found) < count:
        for family in list(turns):
            if not by_family[family]:
                turns.remove(family)
            elif len(found) < count:
                found.append(by_family[family].pop())
    return [changed(program, change) for change in found]


__all__ = ["Change", "Mutant", "Touched", "changed", "changes", "drawn"]
