"""One block graph as a function of Triton.

Everything is computed in float32. Tensors are rounded to their element type where they are stored and where they are
operands of ``tl.dot``. The order is that of the flattened block graph: loop-invariant operators, the loop, and the
operators after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Final

from mirage_formal.codegen.planning.expand import NO_MAXIMA, flatten
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    MapFn,
    Product,
    Reduce,
    Repeat,
    RunningMax,
    defined_tensors,
    operands_of,
)
from mirage_formal.codegen.program.lines import LineRange, merge_lines, node_names
from mirage_formal.codegen.program.plan import Phase
from mirage_formal.codegen.program.program import BinaryFn, UnaryFn
from mirage_formal.codegen.triton.address import PIDS, STEP, BlockTile
from mirage_formal.codegen.triton.block_padding import next_power_of_two, on_tensor_cores, pad_tensors
from mirage_formal.codegen.triton.elementwise_text import (
    LOWEST,
    NEEDED,
    STRICT,
    ZERO_AT_ZERO,
    apply_function,
    python_float,
)
from mirage_formal.codegen.triton.function_writer import NEUTRAL, Operand, TritonWriter, contains_name
from mirage_formal.graph.graph import GraphDefined
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

#: Descriptions of lines.
_STARTS: Final = "starts at the neutral element"
_ADDS: Final = "adds an iteration's part"
#: Elements of a block that are summed over a dim after the loop, not in each iteration.
_LOOPED: Final = 8192
_GRID: Final = (2**31 - 1, 65535, 65535)
#: Elements of the largest block from which on a program has twice as many warps.
_LARGE: Final = 1 << 13
#: Elements that a block of Triton may have.
_MOST: Final = 1 << 20
#: Bytes of shared memory that the stages of a loop may have; every GPU of compute capability 8.0 or more has them.
_STAGED: Final = 96 << 10


@dataclass(frozen=True, slots=True)
class Function:
    """A function of Triton with its launch parameters.

    Attributes:
        name: Its name.
        text: Its lines.
        pointers: Names of its parameters, in order.
        types: The element types that they point to.
        spans: Elements of the memory behind each of them, from the pointer on.
        grid: Programs along each axis.
        warps: Warps of a program.
        stages: Stages of its loop.
        helpers: Names of the file's helpers that it calls.
        piped: Whether its loop loads operands of products, whose loads Triton pipelines.
        pieces: Its lines by part of its block graph.
    """

    name: str
    text: str
    pointers: tuple[str, ...]
    types: tuple[DType, ...]
    spans: tuple[int, ...]
    grid: tuple[int, int, int]
    warps: int
    stages: int
    helpers: frozenset[str]
    piped: bool
    pieces: tuple[LineRange, ...]


def triton_function(
    name: str,
    op: GraphDefined,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    about: str = "",
    maxima: Set[int] = NO_MAXIMA,
) -> Function:
    """Return the function of a graph-defined kernel.

    Args:
        name: Its name.
        op: The kernel.
        reads: The tensors that its input iterators read, in order; band masks are computed, and no parameters.
        writes: The tensors that its output savers write, in order.
        about: A description, for its docstring.
        maxima: Positions of operands that are maxima; see ``planning.expand.maxima_of``.

    Raises:
        UnsupportedError: It has no such function; the text gives the reason.
    """
    graph = op.graph
    if any(extent > most for extent, most in zip(graph.grid, _GRID, strict=True)):
        raise UnsupportedError(f"expected a grid of at most {_GRID}, got {graph.grid}", where="triton")
    flat = flatten(op, tuple(one.tensor for one in reads), maxima)
    nodes = node_names(graph, flat.makers)
    return _Kernel(name, graph, flat, pad_tensors(flat), tuple(reads), tuple(writes), about, nodes).function()


@dataclass(slots=True)
class _Kernel(TritonWriter):
    def function(self) -> Function:
        for op in self.flat.ops:
            for number in operands_of(op):
                self.readers.setdefault(number, []).append(op)
        for number, (iterator, operand) in enumerate(zip(self.graph.inputs, self.reads, strict=True)):
            tile = BlockTile(
                operand.place, operand.tensor, self.flat.tensors[number].shape, iterator.imap, iterator.fmap
            )
            self._begin((number,), "reads" if operand.band is None else "computes")
            if operand.band is None:
                self._load(number, tile, operand)
            else:
                self._compute_mask(number, tile, operand, operand.band)
        for op in self.flat.ops:
            self._begin(self._computed_tensors(op), "computes")
            self._operator(op)
        stores = zip(self.graph.outputs, self.flat.outputs, self.writes, strict=True)
        for position, (saver, number, operand) in enumerate(stores):
            tile = BlockTile(operand.place, operand.tensor, self.flat.tensors[number].shape, saver.omap)
            self.owner = ((f"sv{position}",), "writes to device memory")
            self._store(number, tile, operand)
        return self._finished()

    def _finished(self) -> Function:
        passed = [one for one in (*self.reads, *self.writes) if one.band is None]
        types = {f"{one.name}_ptr": one.tensor.dtype for one in passed}
        pointers = tuple(types)
        body, about = [*self.lines[Phase.BEFORE]], [*self.owners[Phase.BEFORE]]
        if self.lines[Phase.LOOP]:
            # The counter is a Python integer in the interpreter and one of 32 bits on a GPU.
            lap = (
                ["for lap in range({0}):", f"    {STEP} = lap * one"] if self.wide else [f"for {STEP} in range({{0}}):"]
            )
            body += [line.format(self.flat.iterations) for line in lap]
            body += [f"    {line}" for line in self.lines[Phase.LOOP]]
            about += [*[None] * len(lap), *self.owners[Phase.LOOP]]
        body += self.lines[Phase.AFTER]
        about += self.owners[Phase.AFTER]
        text = "\n".join(body)
        long = ".to(tl.int64)" if self.wide else ""
        head = [f'"""{self.about}"""'] if self.about else []
        head += [f"{pid} = tl.program_id({axis}){long}" for axis, pid in enumerate(PIDS) if contains_name(text, pid)]
        head += [
            f"r{extent} = tl.arange(0, {extent}){long}"
            for extent in sorted(self.ranges)
            if contains_name(text, f"r{extent}")
        ]
        head += ["one = tl.full((), 1, tl.int64)"] if contains_name(text, "lap") else []
        lines = ["@triton.jit", f"def {self.name}({', '.join(pointers)}):", *(f"    {line}" for line in head + body)]
        largest = max(prod(self.pad.block(number)) for number in range(len(self.flat.tensors)))
        if largest > _MOST:
            raise UnsupportedError(f"expected blocks of at most {_MOST} elements, got {largest}", where="triton")
        warps = 4 if largest < _LARGE else 8
        stages = 1 if not self.staged else max(1, min(4, _STAGED // self.staged))
        helpers = frozenset(self.helpers)
        text, known = "\n".join(lines) + "\n", tuple(types.values())
        spans = tuple({f"{one.name}_ptr": one.span for one in passed}.values())
        pieces = merge_lines(about, len(lines) - len(body) + 1)
        piped = bool(self.staged)
        return Function(self.name, text, pointers, known, spans, self.graph.grid, warps, stages, helpers, piped, pieces)

    # --- operators

    def _computed_tensors(self, op: FlatOp) -> Iterator[int]:
        """Yield the tensors computed at an operator: its result, then concatenations that only its terms read."""
        makers = {number: one for one in self.flat.ops for number in defined_tensors(one)}
        yield defined_tensors(op)[0]
        left = [makers.get(number) for number in operands_of(op)] if isinstance(op, Product) else []
        while left:
            one = left.pop(0)
            if isinstance(one, Concat) and self._dissolved(one):
                yield one.result
                left += [makers.get(number) for number in operands_of(one)]

    def _operator(self, op: FlatOp) -> None:
        match op:
            case Elementwise():
                self._elementwise(op)
            case Reduce():
                zero = op.fn is BinaryFn.ADD and op.operand in self.zeros
                text = self._reduced(self._value(op.operand), op, zero=op.operand in self.zeros)
                self._define("sum" if op.fn is BinaryFn.ADD else "max", op.result, text, zero=zero)
            case Product():
                if not self._is_fused(op):
                    self._define("dot", op.result, self._product(op, ""))
            case Concat():
                if not self._dissolved(op):
                    self._define("concat", op.result, self._concat(op))
            case Repeat():
                block = list(self.pad.block(op.result))
                self._define("repeat", op.result, f"tl.broadcast_to({self._value(op.operand)}, {block})")
            case Accumulate():
                self._accumulate(op)
            case LoopConcat():
                self._loop_concat(op)
            case RunningMax():
                self._running(op)

    def _elementwise(self, op: Elementwise) -> None:
        if op.fn is MapFn.CONSTANT:
            assert op.constant is not None
            text = f"tl.full({list(self.pad.block(op.result))}, {op.constant!r}, tl.float32)"
            self._define(op.fn.value, op.result, text, zero=op.constant == 0)
            return
        operands = [self._value(number) for number in op.operands]
        if op.constant is not None:
            operands.append(python_float(op.constant))
        if isinstance(op.fn, UnaryFn) and op.fn in NEEDED:
            self.helpers.add(NEEDED[op.fn])
        text = apply_function(op.fn, *operands, finite=op.finite)
        self._define(op.fn.value, op.result, text, zero=self._zero_elementwise(op))

    def _zero_elementwise(self, op: Elementwise) -> bool:
        """Return whether the padding of the result is known to be zeros."""
        if not all(number in self.zeros for number in op.operands):
            return False
        if isinstance(op.fn, UnaryFn):
            return op.fn in ZERO_AT_ZERO
        padded = self._padded(op.result)
        full = [all(dim in self._padded(number) for dim in padded) for number in op.operands]
        match op.fn:
            case MapFn.SELECT:
                return all(full[1:]) and not op.constant
            case BinaryFn.MUL:
                return all(full)  # 0 times an infinity that is the same along the dim would be NaN
            case BinaryFn.DIV:
                return op.constant is not None and op.constant != 0
            case BinaryFn.DIV_NO_NAN:
                return False
            case BinaryFn.ADD | BinaryFn.SUB | BinaryFn.MAX | BinaryFn.MIN:
                return op.constant is None and all(full)
            case BinaryFn.EQ | BinaryFn.LT | BinaryFn.LE | BinaryFn.GT | BinaryFn.GE:
                return op.constant is None and all(full) and op.fn in STRICT
            case _:
                raise AssertionError(op.fn)

    def _reduced(self, text: str, op: Reduce | Accumulate, *, zero: bool) -> str:
        """Return the text of an operator's reduction along its dim."""
        assert op.dim is not None
        number, kept = op.operand, op.kept
        text = self._neutral(text, number, op.dim, op.fn, zero=zero)
        axis, block = self.pad.axis(number, op.dim), list(self.pad.block(number))
        if op.fn is BinaryFn.MAX:
            assert kept == 1
            self.helpers.add("_largest")
            return f"_largest({text}, {axis})"
        if kept == 1:
            return f"tl.sum({text}, {axis}, keep_dims=True)"
        if next_power_of_two(kept) != kept:
            what = f"expected a reduction to a power of two of elements, got {kept}"
            raise UnsupportedError(what, where="triton", hint="CUDA C++ has it")
        split = [*block[:axis], block[axis] // kept, kept, *block[axis + 1 :]]
        return f"tl.sum(tl.reshape({text}, {split}), {axis})"

    # --- products

    def _is_fused(self, op: Product) -> bool:
        """Return whether a product is added to an accumulator, and to nothing else."""
        readers = self.readers.get(op.result, [])
        if op.result in self.flat.outputs or len(readers) != 1:
            return False
        (reader,) = readers
        if not isinstance(reader, Accumulate) or reader.operand != op.result:
            return False
        return reader.fn is BinaryFn.ADD and reader.dim is None and self._phase(op.result) is Phase.LOOP

    def _product(self, op: Product, into: str) -> str:
        """Return the sum of a product's terms, added to ``into`` if that is given."""
        dots = [pair for pair in self.pad.terms[op.result] if on_tensor_cores(self.flat, *pair)]
        others = [self._elementwise_product(pair) for pair in self.pad.terms[op.result] if pair not in dots]
        shape = list(self.pad.block(op.result))
        for pair in dots:
            wide = self.flat.tensors[pair[0]].dtype is DType.FLOAT32
            how = f'input_precision="{"tf32x3" if wide else "ieee"}", out_dtype=tl.float32'
            a, b = (self._matrix(number, dim) for number, dim in zip(pair, (-1, -2), strict=True))
            if len(shape) > 2:
                others.append(f"tl.reshape(tl.dot({a}, {b}, {how}), {shape})")
            else:
                so_far = f", {into}" if into else ""
                into = f"tl.dot({a}, {b}{so_far}, {how})"
        return " + ".join(([into] if into else []) + others)

    def _matrix(self, number: int, dim: int) -> str:
        """Return an operand of tl.dot as a matrix, with zeros in the padding of the summed dim."""
        text = self._operand(number)
        block, rank = self.pad.block(number), len(self.flat.tensors[number].shape)
        shape, extents = self.flat.tensors[number].shape, self.pad.extents[number]
        if number not in self.zeros and shape[dim] < extents[dim]:
            inside = f"{self._range(number, self.pad.axis(number, rank + dim)).text} < {shape[dim]}"
            text = f"tl.where({inside}, {text}, 0.0)"
        return text if len(block) == 2 else f"tl.reshape({text}, {list(block[-2:])})"

    def _elementwise_product(self, pair: tuple[int, int]) -> str:
        """Return a product of a row, of a column or of two vectors: elementwise, and summed."""
        (a, b), (left, right) = pair, (self._value(pair[0]), self._value(pair[1]))
        rank = len(self.flat.tensors[a].shape)
        (*_, rows, inner), columns = self.flat.tensors[a].shape, self.flat.tensors[b].shape[-1]
        axis = self.pad.axis(a, rank - 1)
        if inner == 1:
            return f"{left} * {right}"
        left = self._neutral(left, a, rank - 1, BinaryFn.ADD, zero=a in self.zeros)
        right = self._neutral(right, b, rank - 2, BinaryFn.ADD, zero=b in self.zeros)
        swap = [*range(axis - 1), axis, axis - 1]
        if rows == 1:
            return f"tl.sum(tl.permute({left}, {swap}) * {right}, {axis - 1}, keep_dims=True)"
        assert columns == 1
        return f"tl.sum({left} * tl.permute({right}, {swap}), {axis}, keep_dims=True)"

    # --- concatenations

    def _concat(self, op: Concat) -> str:
        """Return a followed by b, gathered from both."""
        axis, block = self.pad.axis(op.result, op.dim), list(self.pad.block(op.result))
        at = self._along(block[axis], axis, len(block))
        first, second = (self.flat.tensors[number].shape[op.dim] for number in (op.a, op.b))
        one = self._gather(self._value(op.a), f"tl.minimum({at}, {first - 1})", axis, block)
        behind = f"tl.minimum(tl.maximum({at} - {first}, 0), {second - 1})"
        other = self._gather(self._value(op.b), behind, axis, block)
        return f"tl.where({at} < {first}, {one}, {other})"

    def _gather(self, text: str, at: str, axis: int, block: Sequence[int]) -> str:
        return f"tl.gather({text}, tl.broadcast_to({at}, {list(block)}).to(tl.int32), {axis})"

    def _loop_concat(self, op: LoopConcat) -> None:
        """Concatenate the iterations' tensors: keep them in a block with an axis for the iterations."""
        name = f"parts_{op.result}"
        axis, block = self.pad.axis(op.operand, op.dim), list(self.pad.block(op.operand))
        count, chunk = next_power_of_two(self.flat.iterations), self.flat.tensors[op.operand].shape[op.dim]
        state = [*block[:axis], count, *block[axis:]]
        self._emit(Phase.BEFORE, f"{name} = tl.zeros({state}, tl.float32)", _STARTS)
        here = f"{self._along(count, axis, len(state))} == {STEP}"
        text = f"tl.where({here}, tl.expand_dims({self._value(op.operand)}, {axis}), {name})"
        self._emit(Phase.LOOP, f"{name} = {text}", "keeps an iteration's part")
        merged = [*block[:axis], count * block[axis], *block[axis + 1 :]]
        wanted = list(self.pad.block(op.result))
        text = f"tl.reshape({name}, {merged})"
        if chunk != block[axis] or merged != wanted:
            at, whole = self._along(wanted[axis], axis, len(wanted)), chunk * self.flat.iterations
            at = at if whole == wanted[axis] else f"tl.minimum({at}, {whole - 1})"
            at = at if chunk == block[axis] else f"{at} // {chunk} * {block[axis]} + {at} % {chunk}"
            text = self._gather(text, at, axis, wanted)
        self._define("concat", op.result, text)

    # --- what the loop carries

    def _accumulate(self, op: Accumulate) -> None:
        """Write a sum or maximum over the iterations; small tensors are reduced after the loop, not in it."""
        name = f"acc_{op.result}"
        whole = self.pad.block(op.operand)
        late = op.dim is not None and prod(whole) <= _LOOPED
        block = list(whole if late else self.pad.block(op.result))
        self._emit(Phase.BEFORE, f"{name} = tl.full({block}, {NEUTRAL[op.fn]}, tl.float32)", _STARTS)
        product = next((one for one in self.flat.ops if isinstance(one, Product) and one.result == op.operand), None)
        so_far = name if op.factor is None else f"{name} * {self._value(op.factor)}"
        fused = product is not None and self._is_fused(product)
        if product is not None and fused:
            # The padding of a product may be NaN: a row of zeros times an infinity.
            text, zero = self._product(product, so_far), False
        else:
            given, zero = self._value(op.operand), op.operand in self.zeros
            if op.dim is not None and not late:
                given = self._reduced(given, op, zero=zero)
            text = apply_function(op.fn, so_far, given)
        own = self.owner
        if product is not None and fused:
            self._begin((*self._computed_tensors(product), op.result), "")
        self._emit(Phase.LOOP, f"{name} = {text}", f"computes and {_ADDS}" if fused else _ADDS)
        self.owner = own
        self.values[op.result] = name
        # A maximum that starts at -inf is what its terms are; a sum of zeros is zero, unless a factor spoils it.
        zero = zero and op.factor is None
        if late:
            self._define("total" if op.fn is BinaryFn.ADD else "max", op.result, self._reduced(name, op, zero=zero))
        if zero or not self._padded(op.result):
            self.zeros.add(op.result)

    def _running(self, op: RunningMax) -> None:
        """Write a running maximum and the factor that rescales the sums so far."""
        state = f"before_{op.operand}"
        self._emit(
            Phase.BEFORE, f"{state} = tl.full({list(self.pad.block(op.largest))}, {LOWEST!r}, tl.float32)", _STARTS
        )
        self._define("largest", op.largest, f"tl.maximum({state}, {self._value(op.operand)})")
        if op.rescale in self.readers:
            self._define("rescale", op.rescale, f"tl.exp({state} - {self._value(op.largest)})")
        self._emit(Phase.LOOP, f"{state} = {self._value(op.largest)}")
