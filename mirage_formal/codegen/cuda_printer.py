"""CUDA C++ of a Program: one readable kernel against gpu/include/mirage_formal/device.cuh.

The text is the same for the GPU and for the emulator: it names buffers and elements, never raw pointers, and every
statement that accesses memory starts on a line of its own, so that a fault's line names the statement. The CUDA C++ of
the functions of one element that it calls (exp, silu, ...) is in ``device.cuh`` and the headers beside it, not here.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, assert_never

from mirage_formal.codegen.program.access import WARP, list_accesses
from mirage_formal.codegen.program.program import (
    Acquire,
    Apply,
    Await,
    Barrier,
    BinaryFn,
    Combine,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    GridWait,
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    KernelFn,
    LaunchDependents,
    LoadMatrix,
    Mma,
    Pack,
    Param,
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
    TensorMap,
    TileCopy,
    Value,
    Var,
    WaitGroups,
    WarpgroupMma,
    WarpgroupWait,
    Where,
    all_statements,
)
from mirage_formal.graph.types import DType

#: Names of the element types in the device layer.
CTYPES: Final = {
    DType.FLOAT16: "mf::half",
    DType.BFLOAT16: "mf::bfloat",
    DType.FLOAT32: "float",
    DType.BOOL: "mf::mask",
}

#: The device layer, and the parts of it that products of float32, products of warpgroups and producers need.
DEVICE_HEADER: Final = "mirage_formal/device.cuh"
FLOAT32_HEADER: Final = "mirage_formal/float32.cuh"
WARPGROUP_HEADER: Final = "mirage_formal/wgmma.cuh"
PIPELINE_HEADER: Final = "mirage_formal/pipeline.cuh"
#: The part of it that joined launches need.
JOINED_HEADER: Final = "mirage_formal/joined.cuh"

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
#: Parameters of a function of one block, and the sources of its coordinates.
BLOCK_PARAMS: Final = ("unsigned mf_x", "unsigned mf_y", "unsigned mf_z")
_BLOCK_COORDINATES: Final = {"tid": "threadIdx.x", "bx": "mf_x", "by": "mf_y", "bz": "mf_z"}
_WIDTH: Final = 110
# C++ keywords and CUDA's own names that a generator might choose by accident.
_WORDS: Final = (
    "alignas and asm auto bool break case catch char class const continue default delete do double else enum explicit "
    "extern false float for friend goto if inline int long mutable namespace new not operator or private protected "
    "public register return short signed sizeof static struct switch template this throw true try typedef union "
    "unsigned using virtual void volatile while xor mf threadIdx blockIdx blockDim gridDim warpSize"
)
_RESERVED: Final = frozenset(_WORDS.split())


def emit_cuda(program: Program) -> str:
    """Return the Program as CUDA C++ text; equal Programs give equal text.

    Raises:
        ValueError: The program has a fault of form (see ``list_accesses``), a name is not a usable C identifier, a
            constant is no number, or a divisor is 0.
    """
    check_printable(program)
    return "\n".join(_Emitter(program).lines()) + "\n"


def check_printable(program: Program) -> None:
    """Raise a ValueError where a Program has a fault of form."""
    for path, subject, what in list_accesses(program).faults:
        where = f"statement {path}" if path else "header"
        raise ValueError(f"cannot print kernel {program.name}: {where}, {subject}: {what}")


def headers(program: Program) -> tuple[str, ...]:
    """Return the headers of the device layer that a program includes."""
    statements = list(all_statements(program.body))
    floats = any(isinstance(one, Mma) and one.dtype is DType.FLOAT32 for one in statements)
    warpgroups = any(isinstance(one, WarpgroupMma) for one in statements)
    return (
        DEVICE_HEADER,
        *((FLOAT32_HEADER,) if floats else ()),
        *((WARPGROUP_HEADER,) if warpgroups else ()),
        *((PIPELINE_HEADER,) if program.producer else ()),
    )


def line_counts(program: Program, statements: Sequence[Stmt], depth: int) -> list[int]:
    """Return the number of lines of each statement in ``emit(program)`` at a nesting depth; the body has depth 1."""
    emitter = _Emitter(program)
    return [sum(1 for _ in emitter.statement(one, depth)) for one in statements]


def index_text(program: Program, expression: IntExpr) -> str:
    """Return an integer expression of a Program as CUDA C++ text."""
    return _Emitter(program).integer(expression)


def value_text(program: Program, value: Value) -> str:
    """Return a value of a Program as CUDA C++ text."""
    return _Emitter(program).value(value)


def block_function(program: Program, name: str, awaited: Set[str]) -> list[str]:
    """Return the lines of a function that runs one block of a Program, whose coordinates are its last arguments.

    Args:
        program: The Program.
        name: Name of the function.
        awaited: Parameters that other blocks of the same launch write, or launches before it.

    Raises:
        ValueError: As ``emit_cuda``; or the Program has a producer, whose threads such a function has not.
    """
    check_printable(program)
    if program.producer:
        raise ValueError(f"cannot print a block of kernel {program.name}: expected no producer")
    return list(_Emitter(program).block_function(name, awaited))


def kernel_head(name: str, threads: int, alone: bool) -> str:
    """Return the head of a kernel's definition up to its parameters."""
    return f'extern "C" __global__ void __launch_bounds__({threads}{", 1" if alone else ""}) {name}('


def parameter_macro(param: Param, program: Program) -> str:
    """Return the macro that declares a parameter.

    A parameter that the previous launch may still be writing when a dependent kernel starts is declared as awaited.
    """
    if param.written:
        return "MF_OUTPUT"
    return "MF_AWAITED" if program.dependent and not param.given else "MF_INPUT"


class _Emitter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.params = {param.name: param for param in program.params}
        self.shared = {buffer.name: buffer for buffer in program.shared}
        #: Names of the tensor maps.
        self.maps: dict[TensorMap, str] = {one: f"map{number}" for number, one in enumerate(program.maps)}
        pipelines = [pipeline.name for pipeline in program.pipelines]
        for name in (program.name, *self.params, *self.shared, *pipelines):
            _check_name(name)
        own = [*pipelines, *self.maps.values()]
        for name in own:
            if own.count(name) > 1 or name in self.params or name in self.shared or name == program.name:
                raise ValueError(f"expected distinct names of pipelines, maps and tensors, got {name!r} twice")
        self.used: set[str] = set()

    def lines(self) -> Iterator[str]:
        program = self.program
        body, producer = self.body(program.body, 1), self.body(program.producer, 2)  # tells which coordinates are used
        yield from self.comment()
        yield from (f'#include "{header}"' for header in headers(program))
        yield ""
        params = [f"{parameter_macro(param, program)}({CTYPES[param.dtype]}) {param.name}" for param in program.params]
        params += [f"MF_TENSOR_MAP {name}" for name in self.maps.values()]
        yield from wrap_items(kernel_head(program.name, program.launch_threads, program.alone), params, ") {", "")
        if not program.producer:
            yield from self.declarations(_COORDINATES)
        else:
            yield from self.declarations({name: source for name, source in _COORDINATES.items() if name != "tid"})
            yield from self.roles(producer)
        yield from body
        yield "}"

    def comment(self) -> Iterator[str]:
        program = self.program
        x, y, z = program.grid
        yield f"// {program.name}: {x} x {y} x {z} blocks of {program.launch_threads} threads,"
        yield f"// {program.shared_bytes} bytes of dynamic shared memory."
        for param in program.params:
            use = "written" if param.written else "read"
            yield f"//   {param.name}: {param.elements} x {param.dtype}, {use}, aligned to {param.align} bytes"
        for one, name in self.maps.items():
            yield f"//   {name}: {one.param} in rows of {one.stride} elements, {one.rows} rows copied at once"

    def declarations(self, coordinates: Mapping[str, str]) -> Iterator[str]:
        """Yield the declarations of shared buffers, and of the coordinates that are used, which have these sources."""
        program = self.program
        if program.shared:
            yield f"  MF_SHARED_MEMORY({program.shared_bytes});"
        for buffer in program.shared:
            last = buffer.offset + buffer.bytes - 1
            declaration = f"MF_SHARED({CTYPES[buffer.dtype]}, {buffer.name}, {buffer.elements}, {buffer.offset});"
            yield f"  {declaration}  // bytes {buffer.offset}..{last}"
        for pipeline in program.pipelines:
            numbers = f"{pipeline.slots}, {pipeline.bytes}, {program.threads // WARP}"
            yield f"  MF_PIPELINE({pipeline.name}, {numbers});  // slots, bytes of an item, warps that consume it"
        extents = dict(zip(_COORDINATES, (program.threads, *program.grid), strict=True))
        for name, source in coordinates.items():
            if name in self.used:
                yield f"  const int {name} = mf::below<{extents[name]}>({source});"

    def roles(self, producer: Sequence[str]) -> Iterator[str]:
        """Yield the lines between the declarations and the body: the producer, then what only consumers pass."""
        threads = self.program.threads
        yield f"  mf::start_pipelines({', '.join(one.name for one in self.program.pipelines)});"
        yield f"  if (mf::is_producer<{threads}>()) {{"
        yield from producer
        yield "  }"
        yield f"  MF_CONSUMERS({threads});"
        if "tid" in self.used:
            yield f"  const int tid = mf::below<{threads}>({_COORDINATES['tid']});"

    def block_function(self, name: str, awaited: Set[str]) -> Iterator[str]:
        program = self.program
        body = self.body(program.body, 1)
        yield from self.comment()
        macros = {
            param.name: "MF_AWAITED" if param.name in awaited else parameter_macro(param, program)
            for param in program.params
        }
        params = [f"{macros[param.name]}({CTYPES[param.dtype]}) {param.name}" for param in program.params]
        yield from wrap_items(f"MF_DEVICE void {name}(", [*params, *BLOCK_PARAMS], ") {", "")
        yield from self.declarations(_BLOCK_COORDINATES)
        yield from body
        yield "}"

    # --- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: Sequence[Stmt], depth: int) -> list[str]:
        return [line for statement in statements for line in self.statement(statement, depth)]

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
                yield f"{pad}{'MF_WORDS' if words else 'MF_FLOATS'}({name}, {count});"
                if initial is not None and not words:
                    yield f"{pad}mf::fill({name}, {float_literal(initial)});"
            case SharedWrite(buffer, index, values):
                yield from self.store(buffer, index, values, pad)
            case GlobalWrite(param, index, values):
                yield from self.store(param, index, values, pad)
            case _:
                yield from _wrap_call(self.simple(statement), pad)

    def simple(self, statement: Stmt) -> str:
        """Return the text of a statement of one line."""
        match statement:
            case SetReg(array, index, value):
                return f"{array}[{self.integer(index)}] = {self.value(value)};"
            case Pack(words, index, low, high, dtype):
                call = f"mf::pack<{CTYPES[dtype]}>({self.value(low)}, {self.value(high)})"
                return f"{words}[{self.integer(index)}] = {call};"
            case SharedVector(array, at, buffer, index, count):
                return self.vector(array, at, buffer, index, count)
            case GlobalVector(array, at, param, index, count):
                return self.vector(array, at, param, index, count)
            case CopyAsync():
                return self.copy(statement)
            case Commit() | WaitGroups() | Barrier() | GridWait() | LaunchDependents():
                return self.synchronisation(statement)
            case LoadMatrix() | Mma() | WarpgroupMma() | WarpgroupWait() | ShuffleReduce():
                return self.collective(statement)
            case Acquire() | TileCopy() | Await() | Release():
                return self.item(statement)
            case Registers() | For() | If() | SharedWrite() | GlobalWrite():  # pragma: no cover
                raise AssertionError("not a statement of one line")
            case _:
                assert_never(statement)

    def synchronisation(self, statement: Commit | WaitGroups | Barrier | GridWait | LaunchDependents) -> str:
        match statement:
            case Commit():
                return "mf::commit();"
            case WaitGroups(left):
                return f"mf::wait_groups<{left}>();"
            case Barrier(fenced) if self.program.producer:
                return f"mf::{'fenced_' if fenced else ''}consumer_barrier<{self.program.threads}>();"
            case Barrier(fenced):
                return "mf::fenced_barrier();" if fenced else "mf::barrier();"
            case GridWait():
                return "mf::grid_wait();"
            case LaunchDependents():
                return "mf::launch_dependents();"
            case _:
                assert_never(statement)

    def collective(self, statement: LoadMatrix | Mma | WarpgroupMma | WarpgroupWait | ShuffleReduce) -> str:
        match statement:
            case LoadMatrix(words, at, buffer, index, count, transposed):
                name = "load_matrix_transposed" if transposed else "load_matrix"
                return f"mf::{name}<{count}>({words}, {self.integer(at)}, {buffer}, {self.integer(index)});"
            case Mma(d, d_at, a, a_at, b, b_at, dtype):
                operands = (f"{array}, {self.integer(at)}" for array, at in ((d, d_at), (a, a_at), (b, b_at)))
                return f"mf::mma<{CTYPES[dtype]}>({', '.join(operands)});"
            case WarpgroupMma(d, d_at, a, a_at, b, b_at):
                one = statement
                layouts = (one.a_panel, int(one.a_across), one.b_panel, int(one.b_across))
                ways = int(one.accumulate), int(one.deferred)
                operands = (f"{array}, {self.integer(at)}" for array, at in ((d, d_at), (a, a_at), (b, b_at)))
                numbers = ", ".join(map(str, (one.columns, one.depth, *layouts, *ways)))
                return f"mf::warpgroup_mma<{numbers}>({', '.join(operands)});"
            case WarpgroupWait(d, d_at, columns):
                return f"mf::warpgroup_wait<{columns}>({d}, {self.integer(d_at)});"
            case ShuffleReduce(array, at, fn, mask):
                return f"mf::shuffle_{fn.value}({array}, {self.integer(at)}, {mask});"
            case _:
                assert_never(statement)

    def loop(self, var: str, extent: int, body: Sequence[Stmt], unroll: bool, depth: int) -> Iterator[str]:
        _check_name(var)
        pad = "  " * depth
        # The compiler may unroll a loop over elements as it likes; one with barriers stays as it was planned.
        if unroll or any(_synchronises(inner) for inner in body):
            yield f"{pad}#pragma unroll{'' if unroll else ' 1'}"
        yield f"{pad}for (int {var} = 0; {var} < {extent}; ++{var}) {{"
        yield from self.body(body, depth + 1)
        yield f"{pad}}}"

    def store(self, name: str, index: IntExpr, values: Sequence[Value], pad: str) -> Iterator[str]:
        texts = [self.value(value) for value in values]
        if len(texts) == 1:
            yield from _wrap_call(f"mf::store({name}, {self.integer(index)}, {texts[0]});", pad)
            return
        yield from wrap_items(f"{pad}mf::store_vector({name}, {self.integer(index)}, {{", texts, "});", pad)

    def vector(self, array: str, at: IntExpr, name: str, index: IntExpr, count: int) -> str:
        return f"mf::load_vector<{count}>({array}, {self.integer(at)}, {name}, {self.integer(index)});"

    def copy(self, copy: CopyAsync) -> str:
        valid = "" if copy.valid == Int(1) else f", {self.integer(copy.valid)}"
        target, source = self.integer(copy.index), self.integer(copy.source)
        size = "" if copy.bytes == 16 else f"<{copy.bytes}>"
        return f"mf::copy_async{size}({copy.buffer}, {target}, {copy.param}, {source}{valid});"

    def item(self, statement: Acquire | TileCopy | Await | Release) -> str:
        own = f"{statement.pipeline}, {self.integer(statement.item)}"
        if not isinstance(statement, TileCopy):
            return f"mf::{type(statement).__name__.lower()}({own});"
        copy, at, source = statement, self.integer(statement.at), self.integer(statement.source)
        name = self.maps[TensorMap(copy.param, copy.rows, copy.stride)]
        given = f"{own}, {copy.buffer}, {at}, {name}, {copy.param}, {source}"
        return f"mf::copy_tile<{copy.rows}, {copy.stride}>({given});"

    # --- expressions -------------------------------------------------------------------------------------------------

    def value(self, value: Value, above: int = 0) -> str:
        """Return the text of a value, parenthesised if it binds looser than its surroundings (see _PRECEDENCE)."""
        match value:
            case Real(number):
                text = float_literal(number)
                return f"({text})" if above and text.startswith("-") else text
            case Reg(array, index):
                return f"{array}[{self.integer(index)}]"
            case SharedRead(buffer, index):
                return f"mf::load({buffer}, {self.integer(index)})"
            case GlobalRead(param, index):
                return f"mf::load({param}, {self.integer(index)})"
            case Apply(KernelFn.NEG, a):
                return f"(-{self.value(a, 7)})" if above else f"-{self.value(a, 7)}"
            case Apply(fn, a):
                return f"mf::{fn.value}({self.value(a)})"
            case Combine(fn, a, b) if fn not in _ARITHMETIC:
                return f"mf::{fn.value}({self.value(a)}, {self.value(b)})"
            case Combine(fn, a, b):
                op = _ARITHMETIC[fn]
                own = _PRECEDENCE[op]
                text = f"{self.value(a, own)} {op.value} {self.value(b, own + 1)}"
                return f"({text})" if own < above else text
            case Select(condition, a, b):
                text = f"{self.integer(condition, 2)} ? {self.value(a, 1)} : {self.value(b, 1)}"
                return f"({text})" if above else text
            case Where(mask, a, b):
                return f"mf::select({self.value(mask)}, {self.value(a)}, {self.value(b)})"
            case _:
                assert_never(value)

    def integer(self, expr: IntExpr, above: int = 0) -> str:
        """Return the text of an integer expression, parenthesised if it binds looser than its surroundings."""
        match expr:
            case Int(number):
                return str(number) if number >= 0 else f"({number})"
            case Var(name):
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


_ARITHMETIC: Final = {BinaryFn.ADD: IntOp.ADD, BinaryFn.SUB: IntOp.SUB, BinaryFn.MUL: IntOp.MUL}


def float_literal(number: float) -> str:
    """Return a float32 literal: the shortest decimal that reads back as the same float32."""
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


def _synchronises(statement: Stmt) -> bool:
    match statement:
        case For(_, _, body, _) | If(_, body, _):
            return any(_synchronises(inner) for inner in body)
        case _:
            waits = Barrier | WaitGroups | Acquire | TileCopy | Await | Release
            return isinstance(statement, waits | Mma | WarpgroupMma | LoadMatrix)


def wrap_items(head: str, items: Sequence[str], tail: str, pad: str) -> Iterator[str]:
    """Yield head + items + tail on one line if it is short enough, else the items on lines of their own."""
    line = head + ", ".join(items) + tail
    if len(line) <= _WIDTH:
        yield line
        return
    yield head
    for i, item in enumerate(items):
        yield f"{pad}    {item}{'' if i == len(items) - 1 else ','}"
    yield pad + tail


def _wrap_call(text: str, pad: str) -> Iterator[str]:
    """Yield the lines of a statement; the arguments of a long single call are on lines of their own."""
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
    yield from wrap_items(pad + text[: head + 1], [item.strip() for item in items], ");", pad)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in _RESERVED or name.startswith(("__", "mf_", "MF_")):
        raise ValueError(f"expected a C identifier that is not reserved, got {name!r}")
