"""CUDA C++ of a Program: one readable kernel against gpu/include/mirage_formal/device.cuh.

The text is the same for the GPU and for the emulator: it names buffers and elements, never raw pointers, and every
statement that accesses memory starts on a line of its own, so that a fault's line names the statement.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from mirage_formal.graph.types import DType
from mirage_formal.kernels.program.program import (
    Apply,
    Barrier,
    BinaryFn,
    Combine,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    UnaryFn,
    Value,
    Var,
    WaitGroups,
)

#: Names of the element types in the device layer.
CTYPES: Final = {DType.FLOAT16: "mf::half", DType.BFLOAT16: "mf::bfloat", DType.FLOAT32: "float"}

# C++ precedence, higher binds tighter.
_PRECEDENCE: Final = {
    IntOp.MUL: 6,
    IntOp.DIV: 6,
    IntOp.MOD: 6,
    IntOp.ADD: 5,
    IntOp.SUB: 5,
    IntOp.LT: 4,
    IntOp.EQ: 3,
    IntOp.XOR: 2,
    IntOp.AND: 1,
}
_COORDINATES: Final = {"tid": "threadIdx.x", "bx": "blockIdx.x", "by": "blockIdx.y", "bz": "blockIdx.z"}
_WIDTH: Final = 110
# C++ keywords and CUDA's own names that a generator might choose by accident.
_WORDS: Final = (
    "alignas and asm auto bool break case catch char class const continue default delete do double else enum explicit "
    "extern false float for friend goto if inline int long mutable namespace new not operator or private protected "
    "public register return short signed sizeof static struct switch template this throw true try typedef union "
    "unsigned using virtual void volatile while xor mf threadIdx blockIdx blockDim gridDim warpSize"
)
_RESERVED: Final = frozenset(_WORDS.split())


def emit(program: Program) -> str:
    """The program as CUDA C++ text; equal programs give equal text.

    Raises:
        ValueError: A name is not a usable C identifier or is declared twice, a buffer or register array is unknown,
            a parameter is read although written (or the reverse), or a vector access has a size that no instruction
            has. The message names the statement.
    """
    return "\n".join(_Emitter(program).lines()) + "\n"


def param_type(dtype: DType, written: bool) -> str:
    """How a kernel's parameter is declared."""
    return f"{'MF_OUTPUT' if written else 'MF_INPUT'}({CTYPES[dtype]})"


class _StatementError(ValueError):
    """A ValueError that already names its statement, the innermost one."""


class _Emitter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.params = {param.name: param for param in program.params}
        self.shared = {buffer.name: buffer for buffer in program.shared}
        names = [program.name, *(param.name for param in program.params), *(buffer.name for buffer in program.shared)]
        for name in names:
            _check_name(name)
        if len(set(names)) != len(names) or set(names) & set(_COORDINATES):
            raise ValueError(f"kernel {program.name}: expected different names, got {names}")
        if program.threads < 1 or min(program.grid) < 1:
            raise ValueError(f"kernel {program.name}: expected positive launch dimensions")
        #: Register arrays in scope: name to whether it holds words.
        self.arrays: dict[str, bool] = {}
        self.variables = set(_COORDINATES)
        self.used: set[str] = set()

    def lines(self) -> Iterator[str]:
        program = self.program
        body = self.body(program.body, 1)  # first, because it tells which coordinates are used
        x, y, z = program.grid
        yield f"// {program.name}: {x} x {y} x {z} blocks of {program.threads} threads,"
        yield f"// {program.shared_bytes} bytes of dynamic shared memory."
        for param in program.params:
            use = "written" if param.written else "read"
            yield f"//   {param.name}: {param.elements} x {param.dtype}, {use}, aligned to {param.align} bytes"
        yield '#include "mirage_formal/device.cuh"'
        yield ""
        params = [f"{param_type(param.dtype, param.written)} {param.name}" for param in program.params]
        head = f'extern "C" __global__ void __launch_bounds__({program.threads}) {program.name}('
        yield from _wrapped(head, params, ") {", "")
        if program.shared:
            yield f"  MF_SHARED_MEMORY({program.shared_bytes});"
        for buffer in program.shared:
            last = buffer.offset + buffer.bytes - 1
            declaration = f"MF_SHARED({CTYPES[buffer.dtype]}, {buffer.name}, {buffer.elements}, {buffer.offset});"
            yield f"  {declaration}  // bytes {buffer.offset}..{last}"
        extents = dict(zip(_COORDINATES, (program.threads, x, y, z), strict=True))
        for name, source in _COORDINATES.items():
            if name in self.used:
                yield f"  const int {name} = mf::below<{extents[name]}>({source});"
        yield from body
        yield "}"

    # --- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: Sequence[Stmt], depth: int) -> list[str]:
        outer = dict(self.arrays)
        lines: list[str] = []
        for statement in statements:
            try:
                lines.extend(self.statement(statement, depth))
            except _StatementError:
                raise
            except ValueError as error:
                raise _StatementError(f"kernel {self.program.name}, statement {statement}: {error}") from None
        self.arrays = outer
        return lines

    def statement(self, statement: Stmt, depth: int) -> Iterator[str]:
        pad = "  " * depth
        match statement:
            case For(var, extent, body, unroll):
                yield from self.loop(var, extent, body, unroll, depth)
            case If(condition, body, uniform):
                yield f"{pad}if ({self.integer(condition)}) {{{'  // uniform' if uniform else ''}"
                yield from self.body(body, depth + 1)
                yield f"{pad}}}"
            case Registers(name, count, words, initial):
                _check_name(name)
                if name in self.arrays or name in self.params or name in self.shared or name in self.variables:
                    raise ValueError(f"the name {name!r} is taken")
                self.arrays[name] = words
                yield f"{pad}{'MF_WORDS' if words else 'MF_FLOATS'}({name}, {count});"
                if initial is not None and not words:
                    yield f"{pad}mf::fill({name}, {real(initial)});"
            case SharedWrite(buffer, index, values):
                yield from self.store(self.buffer(buffer), self.shared[buffer].dtype, index, values, pad)
            case GlobalWrite(param, index, values):
                yield from self.store(self.param(param, written=True), self.params[param].dtype, index, values, pad)
            case _:
                yield from _fitted(self.simple(statement), pad)

    def simple(self, statement: Stmt) -> str:
        """A statement of one line."""
        match statement:
            case SetReg(array, index, value):
                return f"{self.array(array)}[{self.integer(index)}] = {self.value(value)};"
            case Pack(words, index, low, high, dtype):
                call = f"mf::pack<{_half(dtype)}>({self.value(low)}, {self.value(high)})"
                return f"{self.array(words, words=True)}[{self.integer(index)}] = {call};"
            case SharedVector(array, at, buffer, index, count):
                return self.vector(array, at, self.buffer(buffer), self.shared[buffer].dtype, index, count)
            case GlobalVector(array, at, param, index, count):
                return self.vector(array, at, self.param(param), self.params[param].dtype, index, count)
            case CopyAsync():
                return self.copy(statement)
            case Commit():
                return "mf::commit();"
            case WaitGroups(left):
                if left < 0:
                    raise ValueError(f"expected left >= 0, got {left}")
                return f"mf::wait_groups<{left}>();"
            case Barrier():
                return "mf::barrier();"
            case LoadMatrix() | Mma() | ShuffleReduce():
                return self.collective(statement)
            case Registers() | For() | If() | SharedWrite() | GlobalWrite():  # pragma: no cover
                raise AssertionError("not a statement of one line")
            case _:
                assert_never(statement)

    def collective(self, statement: LoadMatrix | Mma | ShuffleReduce) -> str:
        if self.program.threads % 32:
            raise ValueError(f"expected whole warps, got {self.program.threads} threads")
        match statement:
            case LoadMatrix(words, at, buffer, index, count, transposed):
                _half(self.shared[self.buffer(buffer)].dtype)
                if count not in (1, 2, 4):
                    raise ValueError(f"expected 1, 2 or 4 matrices, got {count}")
                name = "load_matrix_transposed" if transposed else "load_matrix"
                target = f"{self.array(words, words=True)}, {self.integer(at)}"
                return f"mf::{name}<{count}>({target}, {buffer}, {self.integer(index)});"
            case Mma(d, d_at, a, a_at, b, b_at, dtype):
                operands = [f"{self.array(d)}, {self.integer(d_at)}"]
                operands += [f"{self.array(x, words=True)}, {self.integer(at)}" for x, at in ((a, a_at), (b, b_at))]
                return f"mf::mma<{_half(dtype)}>({', '.join(operands)});"
            case ShuffleReduce(array, at, fn, mask):
                if fn not in (BinaryFn.ADD, BinaryFn.MAX) or not 0 < mask < 32:
                    raise ValueError(f"expected ADD or MAX and a mask in 1..31, got {fn.name}, {mask}")
                return f"mf::shuffle_{fn.value}({self.array(array)}, {self.integer(at)}, {mask});"
            case _:
                assert_never(statement)

    def loop(self, var: str, extent: int, body: Sequence[Stmt], unroll: bool, depth: int) -> Iterator[str]:
        _check_name(var)
        if var in self.variables or var in self.arrays or var in self.params or var in self.shared:
            raise ValueError(f"the name {var!r} is taken")
        pad = "  " * depth
        # The compiler may unroll a loop over elements as it likes; one with barriers stays as it was planned.
        if unroll or any(_waits(inner) for inner in body):
            yield f"{pad}#pragma unroll{'' if unroll else ' 1'}"
        yield f"{pad}for (int {var} = 0; {var} < {extent}; ++{var}) {{"
        self.variables.add(var)
        yield from self.body(body, depth + 1)
        self.variables.remove(var)
        yield f"{pad}}}"

    def store(self, name: str, dtype: DType, index: IntExpr, values: Sequence[Value], pad: str) -> Iterator[str]:
        texts = [self.value(value) for value in values]
        if len(texts) == 1:
            yield from _fitted(f"mf::store({name}, {self.integer(index)}, {texts[0]});", pad)
            return
        _check_vector(len(texts), dtype)
        yield from _wrapped(f"{pad}mf::store_vector({name}, {self.integer(index)}, {{", texts, "});", pad)

    def vector(self, array: str, at: IntExpr, name: str, dtype: DType, index: IntExpr, count: int) -> str:
        _check_vector(count, dtype)
        return f"mf::load_vector<{count}>({self.array(array)}, {self.integer(at)}, {name}, {self.integer(index)});"

    def copy(self, copy: CopyAsync) -> str:
        buffer, param = self.shared[self.buffer(copy.buffer)], self.params[self.param(copy.param)]
        if buffer.dtype is not param.dtype:
            raise ValueError(f"an asynchronous copy cannot convert {param.dtype} to {buffer.dtype}")
        valid = "" if copy.valid == Int(1) else f", {self.integer(copy.valid)}"
        target, source = self.integer(copy.index), self.integer(copy.source)
        return f"mf::copy_async({buffer.name}, {target}, {param.name}, {source}{valid});"

    # --- expressions -------------------------------------------------------------------------------------------------

    def value(self, value: Value, above: int = 0) -> str:
        """The expression, parenthesised if it binds looser than its surroundings (see _PRECEDENCE)."""
        match value:
            case Real(number):
                text = real(number)
                return f"({text})" if above and text.startswith("-") else text
            case Reg(array, index):
                return f"{self.array(array)}[{self.integer(index)}]"
            case SharedRead(buffer, index):
                return f"mf::load({self.buffer(buffer)}, {self.integer(index)})"
            case GlobalRead(param, index):
                return f"mf::load({self.param(param)}, {self.integer(index)})"
            case Apply(UnaryFn.NEG, a):
                return f"(-{self.value(a, 7)})" if above else f"-{self.value(a, 7)}"
            case Apply(fn, a):
                return f"mf::{fn.value}({self.value(a)})"
            case Combine(BinaryFn.DIV | BinaryFn.MAX as fn, a, b):
                return f"mf::{fn.value}({self.value(a)}, {self.value(b)})"
            case Combine(fn, a, b):
                op = _ARITHMETIC[fn]
                own = _PRECEDENCE[op]
                text = f"{self.value(a, own)} {op.value} {self.value(b, own + 1)}"
                return f"({text})" if own < above else text
            case Select(condition, a, b):
                text = f"{self.integer(condition, 2)} ? {self.value(a, 1)} : {self.value(b, 1)}"
                return f"({text})" if above else text
            case _:
                assert_never(value)

    def integer(self, expr: IntExpr, above: int = 0) -> str:
        """The expression, parenthesised if it binds looser than its surroundings."""
        match expr:
            case Int(number):
                return str(number) if number >= 0 else f"({number})"
            case Var(name):
                if name not in self.variables:
                    raise ValueError(f"the variable {name!r} is not in scope")
                self.used.add(name)
                return name
            case IntBin(IntOp.DIV | IntOp.MOD, _, Int(0)):
                raise ValueError("division by zero")
            case IntBin(op, a, b):
                own = _PRECEDENCE[op]
                # Of equal binding only sums and chains of products stand without parentheses, for the reader's sake.
                chain = own == 5 or (op is IntOp.MUL and isinstance(a, IntBin) and a.op is IntOp.MUL)
                left = 5 if op in (IntOp.LT, IntOp.EQ) else 7 if op is IntOp.XOR else own + (not chain)
                text = f"{self.integer(a, left)} {op.value} {self.integer(b, max(left, own + 1))}"
                return f"({text})" if own < above else text
            case _:
                assert_never(expr)

    # --- names -------------------------------------------------------------------------------------------------------

    def array(self, name: str, words: bool = False) -> str:
        if self.arrays.get(name) is not words:
            raise ValueError(f"expected an array of {'words' if words else 'floats'} in scope, got {name!r}")
        return name

    def buffer(self, name: str) -> str:
        if name not in self.shared:
            raise ValueError(f"there is no shared buffer {name!r}")
        return name

    def param(self, name: str, written: bool = False) -> str:
        if name not in self.params or self.params[name].written is not written:
            raise ValueError(f"there is no parameter {name!r} that is {'written' if written else 'read'}")
        return name


_ARITHMETIC: Final = {BinaryFn.ADD: IntOp.ADD, BinaryFn.SUB: IntOp.SUB, BinaryFn.MUL: IntOp.MUL}


def real(number: float) -> str:
    """A float32 literal: the shortest decimal that reads back as the same float32."""
    if math.isnan(number):
        raise ValueError("expected a number, got NaN")
    rounded = _float32(number)
    if math.isinf(rounded):
        return "mf::infinity()" if rounded > 0 else "-mf::infinity()"
    text = next(text for digits in range(1, 18) if _float32(float(text := f"{rounded:.{digits}g}")) == rounded)
    if not re.search(r"[.e]", text):
        text += ".0"
    return f"{text}f"


def _float32(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _waits(statement: Stmt) -> bool:
    match statement:
        case For(_, _, body, _) | If(_, body, _):
            return any(_waits(inner) for inner in body)
        case _:
            return isinstance(statement, Barrier | WaitGroups | Mma | LoadMatrix)


def _wrapped(head: str, items: Sequence[str], tail: str, pad: str) -> Iterator[str]:
    """head + items + tail on one line if it is short enough, else the items on lines of their own."""
    line = head + ", ".join(items) + tail
    if len(line) <= _WIDTH:
        yield line
        return
    yield head
    for i, item in enumerate(items):
        yield f"{pad}    {item}{'' if i == len(items) - 1 else ','}"
    yield pad + tail


def _fitted(text: str, pad: str) -> Iterator[str]:
    """A statement; if it is too long and is one call, its arguments are on lines of their own."""
    head, depth, items = text.index("(") if "(" in text else -1, 0, [""]
    if len(pad) + len(text) <= _WIDTH or head < 0 or not text.endswith(");"):
        yield pad + text
        return
    for char in text[head + 1 : -2]:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:  # the last parenthesis is not that of the first call
            yield pad + text
            return
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    yield from _wrapped(pad + text[: head + 1], [item.strip() for item in items], ");", pad)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in _RESERVED or name.startswith(("__", "mf_", "MF_")):
        raise ValueError(f"expected a C identifier that is not reserved, got {name!r}")


def _check_vector(count: int, dtype: DType) -> None:
    if count * dtype.bytes not in (4, 8, 16) or count < 2:
        raise ValueError(f"expected a vector of 4, 8 or 16 bytes, got {count} x {dtype}")


def _half(dtype: DType) -> str:
    if dtype.bytes != 2:
        raise ValueError(f"expected a 16-bit element type, got {dtype}")
    return CTYPES[dtype]
