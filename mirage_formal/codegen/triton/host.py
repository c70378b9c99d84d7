"""Host code that launches the functions of a file, as lines of Python: memory, views, launches, and calls of torch.

Products outside of block graphs are torch.matmul, as they are cuBLAS calls with CUDA C++. Reductions and norms are
block graphs of one operator (``codegen.predefined_kernels``), so functions of Triton as well. Operators outside of
block graphs that map or move elements are one call of torch each: a function of their own would gain nothing from
fusion.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mirage_formal.codegen.planning.expand import maxima_of, subtracts_maximum
from mirage_formal.codegen.predefined_kernels import block_forms
from mirage_formal.codegen.program.bands import band_at
from mirage_formal.codegen.program.lines import About
from mirage_formal.codegen.target import Target
from mirage_formal.codegen.triton.elementwise_text import LOWEST, python_float
from mirage_formal.codegen.triton.function_writer import Operand, contains_name
from mirage_formal.codegen.triton.kernel_function import Function, triton_function
from mirage_formal.codegen.triton.launch_options import OWN, LaunchOptions
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op, enumerate_results
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.ops import SPECS, VALUED, Family, OpKind
from mirage_formal.graph.storage_views import launched_operators, storage_locations
from mirage_formal.graph.types import DType, Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.function_table import FUNCTION_SPECS

TORCH: Final = {dtype: f"torch.{dtype.value}" for dtype in DType}
_TAKEN: Final = frozenset(
    {"torch", "triton", "tl", "run", "main", "poison", "launch", "reference", "inputs", "BFLOAT16", "INTERPRETED"}
)
#: Operators of one or two tensors as calls of torch.
_CALLS: Final = {
    OpKind.MATMUL: "torch.matmul({0}, {1})",
    OpKind.ADD: "{0} + {1}",
    OpKind.SUB: "{0} - {1}",
    OpKind.MUL: "{0} * {1}",
    OpKind.DIV: "{0} / {1}",
    OpKind.MAXIMUM: "torch.maximum({0}, {1})",
    OpKind.MINIMUM: "torch.minimum({0}, {1})",
    **{kind: row.torch for kind, row in FUNCTION_SPECS.items()},
    OpKind.LOGICAL_NOT: "torch.logical_not({0})",
    OpKind.DIV_NO_NAN: "torch.where({1} == 0, {0} * 0, {0} / {1})",
}
_COMPARISONS: Final = {OpKind.EQ: "==", OpKind.LT: "<", OpKind.LE: "<=", OpKind.GT: ">", OpKind.GE: ">="}
_INFIX: Final = frozenset({OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV})


@dataclass(frozen=True, slots=True)
class HostCalls:
    """The host calls of a µGraph.

    Attributes:
        names: Names of the inputs that callers pass.
        functions: The functions that are launched.
        operators: For each of them, the operator of the µGraph that it computes.
        lines: The statements, in order; ``_new`` and ``poison`` are defined by the file.
        about: For each of them, the operator of the µGraph that it belongs to, as "op2", and a description.
        results: Names of the outputs.
    """

    names: tuple[str, ...]
    functions: tuple[Function, ...]
    operators: tuple[int, ...]
    lines: tuple[str, ...]
    about: tuple[About, ...]
    results: tuple[str, ...]


def host_calls(graph: KernelGraph, target: Target, options: LaunchOptions = OWN) -> HostCalls:
    """Return the calls and functions of a well-formed µGraph.

    Raises:
        UnsupportedError: A kernel has no function of Triton; names it.
    """
    return _Calls(graph, target, options).host_calls()


def input_names(inputs: Sequence[Input]) -> tuple[str, ...]:
    """Return distinct Python identifiers for the inputs."""
    found: list[str] = []
    for number, item in enumerate(inputs):
        name = re.sub(r"\W", "_", item.name, flags=re.ASCII).strip("_") or "x"
        name = f"x_{name}" if name[0].isdigit() or keyword.iskeyword(name) or name in _TAKEN else name
        # What the file makes itself is called t5, v5, out5 and kernel5.
        name = f"{name}_{number}" if name in found or re.fullmatch(r"(t|v|out|kernel)\d+", name) else name
        found.append(name)
    return tuple(found)


def mask_lines(inputs: Sequence[Input]) -> Iterator[tuple[str, str]]:
    """Yield the name of each band mask, and the statement that makes it on the device of the first other input."""
    names = input_names(inputs)
    device = next(
        (f", device={name}.device" for name, item in zip(names, inputs, strict=True) if item.band is None), ""
    )
    for name, item in zip(names, inputs, strict=True):
        if item.band is None:
            continue
        lower = "" if item.band.lower is None else f".triu({item.band.lower})"
        upper = "" if item.band.upper is None else f".tril({item.band.upper})"
        yield name, f"{name} = torch.ones({item.tensor.shape}, dtype=torch.bool{device}){lower}{upper}"


@dataclass(slots=True)
class _Calls:
    graph: KernelGraph
    target: Target
    launching: LaunchOptions
    functions: list[Function] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    about: list[About] = field(default_factory=list)
    position: int = 0
    names: dict[int, str] = field(default_factory=dict)

    def host_calls(self) -> HostCalls:
        graph, needed = self.graph, set(launched_operators(self.graph))
        given = input_names(graph.inputs)
        self.names = dict(enumerate(given))
        for self.position, (first, op) in enumerate(enumerate_results(len(graph.inputs), graph.ops)):
            if self.position not in needed:
                continue
            if isinstance(op, GraphDefined):
                self._kernel(f"kernel{self.position}", op, first)
            else:
                self._predefined(self.position, op, first)
        results: list[str] = []
        for place, number in enumerate(graph.outputs):
            if number < len(graph.inputs) or number in graph.outputs[:place]:
                results.append(f"out{place}")
                self.lines.append(f"out{place} = {self._tensor(number)}.clone(memory_format=torch.contiguous_format)")
                self.about.append(None)
            else:
                results.append(self.names[number])
        # Masks that no operator of torch reads are not made.
        masks = [
            line for name, line in mask_lines(graph.inputs) if any(contains_name(text, name) for text in self.lines)
        ]
        lines, about = (*masks, *self.lines), (*(None for _ in masks), *self.about)
        passed = tuple(name for name, item in zip(given, graph.inputs, strict=True) if item.band is None)
        return HostCalls(passed, tuple(self.functions), tuple(self.operators), lines, about, tuple(results))

    def _line(self, text: str, does: str) -> None:
        self.lines.append(text)
        self.about.append(((f"op{self.position}",), does))

    # --- tensors

    def _shape(self, number: int) -> Shape:
        return kernel_types(self.graph)[number].shape

    def _place(self, number: int) -> StorageLocation:
        return storage_locations(self.graph)[number]

    def _operand(self, number: int) -> Operand:
        place = self._place(number)
        base = kernel_types(self.graph)[place.base]
        span = base.elements
        if place.base < len(self.graph.inputs):
            strides = self.graph.inputs[place.base].strides
            span = 1 + sum((n - 1) * step for n, step in zip(base.shape, strides, strict=True))
        tensor = kernel_types(self.graph)[number]
        return Operand(self.names[place.base], tensor, place, span, band_at(self.graph.inputs, place, tensor.shape))

    def _allocate(self, number: int) -> None:
        """Allocate memory for the base of a result, unless it has some."""
        base = self._place(number).base
        if base in self.names:
            return
        self.names[base] = f"t{base}"
        tensor = kernel_types(self.graph)[base]
        first = next(self.names[i] for i, item in enumerate(self.graph.inputs) if item.band is None)
        call = f"_new({tensor.shape}, {TORCH[tensor.dtype]}, {first}.device, poison)"
        self._line(f"t{base} = {call}", "makes memory for its result")

    def _tensor(self, number: int) -> str:
        """Return a tensor as an expression of torch."""
        place, shape = self._place(number), self._shape(number)
        name = self.names[place.base]
        if place.base == number and not place.offset:
            return name
        start = f"{name}.storage_offset()" + (f" + {place.offset}" if place.offset else "")
        return f"{name}.as_strided({shape}, {place.strides}, {start})"

    # --- kernels

    def _kernel(self, name: str, op: GraphDefined, first: int) -> None:
        for number in range(first, first + op.results):
            self._allocate(number)
        reads = [self._operand(number) for number in op.operands]
        writes = [self._operand(number) for number in range(first, first + op.results)]
        tops = {place for place, number in enumerate(op.operands) if number in maxima_of(self.graph)}
        made = triton_function(name, op, reads, writes, maxima=tops)
        self._launch(made, {one.name: one.name for one in (*reads, *writes)})

    def _launch(self, made: Function, arguments: dict[str, str]) -> None:
        self.functions.append(made)
        self.operators.append(self.position)
        given = ", ".join(arguments[pointer.removesuffix("_ptr")] for pointer in made.pointers)
        warps, stages = self.launching.for_function(made)
        options = f"num_warps={warps}, num_stages={stages}, enable_fp_fusion=False"
        self._line(f"{made.name}[{made.grid}]({given}, {options})", "launches its function")

    def _predefined(self, position: int, op: Op, first: int) -> None:
        if SPECS[op.kind].family in (Family.REDUCTION, Family.NORM) and self._as_block_graph(position, op, first):
            return
        self.names[first] = f"t{first}"
        operands = [self._tensor(number) for number in op.operands]
        if subtracts_maximum(self.graph, op, first):
            x, top = operands
            dtype = TORCH[self._dtype(first)]
            self._line(
                f"t{first} = ({x}.float() - {top}.float().clamp_min({LOWEST!r})).to({dtype})", "computes by torch"
            )
            return
        text = torch_call(op, operands, [self._shape(number) for number in op.operands], self._dtype(first))
        self._line(f"t{first} = {text}", "computes by torch")

    def _dtype(self, number: int) -> DType:
        return kernel_types(self.graph)[number].dtype

    def _as_block_graph(self, position: int, op: Op, first: int) -> bool:
        """Add a reduction or norm as a function of Triton, and return whether that was possible."""
        types = kernel_types(self.graph)
        operands = tuple((types[n], self._place(n).strides, self._place(n).offset) for n in op.operands)
        if op.attrs.dim is None or types[op.operands[0]].shape[op.attrs.dim] == 1:
            return False
        found = block_forms(op, operands, types[first], self.target)
        if not found:
            return False
        self._allocate(first)
        form = found[0]
        (kernel,) = form.graph.ops
        assert isinstance(kernel, GraphDefined)
        given = [self._operand(number) for number in (*op.operands, first)]
        lying = [
            Operand(one.name, tensor, place, one.span)
            for one, tensor, place in zip(given, kernel_types(form.graph), form.known, strict=True)
        ]
        made = triton_function(
            f"kernel{position}", kernel, lying[:-1], lying[-1:], f"{op.kind.value} along dim {op.attrs.dim}"
        )
        # Its block graph is none of the µGraph's: the operator as a whole is what its lines compute.
        made = replace(made, pieces=tuple(replace(piece, nodes=()) for piece in made.pieces))
        self._launch(made, {one.name: one.name for one in given})
        return True


def torch_call(op: Op, operands: Sequence[str], shapes: Sequence[Shape], dtype: DType) -> str:
    """Return a predefined operator as a call of torch, whose result is row-major."""
    attrs, x = op.attrs, operands[0]
    dim = attrs.dim or 0
    if op.kind in _CALLS and attrs.value is None:
        return _row_major(_CALLS[op.kind].format(*operands), op.kind)
    if op.kind in VALUED or op.kind in (OpKind.SCALE, OpKind.SHIFT):
        return f"{_call_with_constant(op, operands)}.contiguous()"
    match op.kind:
        case OpKind.CAST:
            return f"{x}.to({TORCH[dtype]}, memory_format=torch.contiguous_format, copy=True)"
        case OpKind.TRANSPOSE:
            return f"{x}.permute({attrs.perm}).contiguous()"
        case OpKind.RESHAPE:
            return f"{x}.reshape({attrs.shape}).contiguous()"
        case OpKind.REPEAT:
            shape = (*shapes[0][:dim], attrs.times or 1, *shapes[0][dim + 1 :])
            return f"{x}.expand({shape}).contiguous()"
        case OpKind.SLICE:
            return f"{x}.narrow({dim}, {attrs.start}, {(attrs.stop or 0) - (attrs.start or 0)}).contiguous()"
        case OpKind.PAD:
            sides = (0, 0) * (len(shapes[0]) - 1 - dim) + (attrs.before or 0, attrs.after or 0)
            return f"torch.nn.functional.pad({x}, {sides}).contiguous()"
        case OpKind.CONCAT:
            return f"torch.cat([{', '.join(operands)}], {dim}).contiguous()"
        case OpKind.SOFTMAX:
            return f"torch.softmax({x}, {dim}).contiguous()"
        case OpKind.SUM | OpKind.MEAN:
            return f"torch.{op.kind.value}({x}, {dim}, keepdim=True, dtype=torch.float32).to({TORCH[dtype]})"
        case OpKind.MAX:
            return f"torch.amax({x}, {dim}, keepdim=True).contiguous()"
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(op, operands, dtype)
        case _:
            raise AssertionError(op.kind)


def _call_with_constant(op: Op, operands: Sequence[str]) -> str:
    """Return the call of an elementwise operator that may have a number in place of an operand."""
    attrs, x = op.attrs, operands[0]
    match op.kind:
        case OpKind.SELECT:
            last = operands[2] if attrs.value is None else python_float(float(attrs.value))
            return f"torch.where({x}, {operands[1]}, {last})"
        case OpKind.EQ | OpKind.LT | OpKind.LE | OpKind.GT | OpKind.GE:
            if attrs.value is None:
                return f"({x} {_COMPARISONS[op.kind]} {operands[1]})"
            # The number is one of float32, as in kernels, and not rounded to the element type.
            return f"({x}.float() {_COMPARISONS[op.kind]} {python_float(float(attrs.value))})"
        case OpKind.MAXIMUM | OpKind.MINIMUM:
            side = "min" if op.kind is OpKind.MAXIMUM else "max"
            return f"{x}.float().clamp_{side}({python_float(float(attrs.value or 0))}).to({x}.dtype)"
        case OpKind.SCALE:
            assert attrs.factor is not None
            return f"({x} * {python_float(float(attrs.factor))})" if attrs.factor else f"torch.zeros_like({x})"
        case OpKind.SHIFT:
            return f"({x} + {python_float(float(attrs.shift or 0))})"
        case _:
            raise AssertionError(op.kind)


def _row_major(text: str, kind: OpKind) -> str:
    return f"{text}.contiguous()" if kind not in _INFIX else f"({text}).contiguous()"


def _norm(op: Op, operands: Sequence[str], dtype: DType) -> str:
    """Return the torch expression of an RMS or layer norm, which is computed in float32 and converted to ``dtype``."""
    dim, eps = op.attrs.dim, "" if op.attrs.eps is None else f" + {float(op.attrs.eps)!r}"
    x = f"{operands[0]}.float()"
    if op.kind is OpKind.LAYER_NORM:
        x = f"({x} - {x}.mean({dim}, keepdim=True))"
    text = f"{x} * torch.rsqrt({x}.square().mean({dim}, keepdim=True){eps})"
    text += f" * {operands[1]}" if len(operands) > 1 else ""
    text += f" + {operands[2]}" if len(operands) > 2 else ""
    return f"({text}).to({TORCH[dtype]}).contiguous()"


__all__ = ["TORCH", "HostCalls", "host_calls", "input_names", "torch_call"]
