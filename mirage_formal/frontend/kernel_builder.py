"""Front end for kernel graphs: Python code that defines a tensor program, checked line by line.

A program written for the documented Python interface of the reference system runs after changing the import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_formal.frontend.argument_checks import (
    assigned_name,
    error_at_user_line,
    parse_ints,
    parse_layout,
    parse_shape,
    user_origin,
)
from mirage_formal.frontend.block_builder import BlockBuilder, BlockTensor
from mirage_formal.frontend.handles import not_a_tensor_error, result_label, rule_error
from mirage_formal.frontend.matmul import Products
from mirage_formal.frontend.origins import Origin, Origins
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.edit import needed_items
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.type_rules import device_results
from mirage_formal.graph.types import Band, DTensor, DType, row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import DTypeError, GraphError, ShapeError, UnsupportedError


@dataclass(frozen=True, slots=True)
class _Step:
    """Operator with its tensors, and the user's line."""

    op: Op | GraphDefined
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    origin: Origin | None


class KernelBuilder(Products[Tensor]):
    """Builder of a tensor program; ``freeze`` returns it as a frozen value."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self._declared: list[Input] = []
        # Results and operators in the order of the user's lines; freeze() renumbers, since inputs may come in between.
        self._steps: list[_Step] = []
        self._input_lines: list[Origin | None] = []
        self._count = 0
        self.outputs: list[Tensor] = []

    def new_input(
        self,
        dims: Sequence[int],
        *layout: object,
        dtype: DType | str | object = None,
        strides: Sequence[int] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Add a program input.

        Args:
            dims: Its shape.
            layout: Strides, element type or both, in any order.
            dtype: float16, bfloat16 or float32, also by name; float16 if left out.
            strides: In elements; row-major if left out.
            name: Its name; if left out, the name of the variable that it is assigned to.

        Returns:
            The input as a tensor of this graph.

        Raises:
            ShapeError: The shape or the strides make no sense.
            DTypeError: The element type is not supported.
            GraphError: The name is taken or no identifier.
        """
        strides, dtype = parse_layout("new_input", layout, strides, dtype)
        shape = parse_shape("new_input", "dims", dims)
        steps = row_major(shape) if strides is None else tuple(strides)
        if len(steps) != len(shape) or any(step < 0 for step in steps):
            hint = "give one stride, in elements, for each dim"
            raise error_at_user_line(
                ShapeError, f"new_input: expected {len(shape)} strides >= 0, got {list(steps)}", hint
            )
        label = self._name(name)
        tensor = DTensor(shape, dtype)
        handle = self._tensor(tensor, label)
        self.inputs.append(handle)
        self._declared.append(Input(label, tensor, steps))
        self._input_lines.append(user_origin())
        return handle

    def band(
        self, dims: Sequence[int], lower: int | None = None, upper: int | None = None, name: str | None = None
    ) -> Tensor:
        """Return a mask that is 1 at element (..., i, j) where lower <= j - i <= upper; no caller passes it.

        The causal mask is ``graph.band((tokens, tokens), upper=0)``: query i sees the keys j up to i. Kernels compute
        its elements and skip its empty tiles.

        Args:
            dims: Its shape, of at least two dims.
            lower: The least distance j - i; None for no bound.
            upper: The largest distance j - i; None for no bound.
            name: Its name; if left out, the name of the variable that it is assigned to.

        Returns:
            The mask as a tensor of this graph.

        Raises:
            ShapeError: The shape makes no sense, or no bound is given.
            GraphError: The name is taken or no identifier.
        """
        shape, found = parse_shape("band", "dims", dims), Band(lower, upper)
        if (fault := found.fault(shape, DType.BOOL)) is not None:
            raise error_at_user_line(ShapeError, f"band: {fault}", "give two dims or more, and a bound")
        handle = self.new_input(shape, dtype=DType.BOOL, name=name)
        self._declared[-1] = replace(self._declared[-1], band=found)
        return handle

    def mark_output(self, A: Tensor, strides: Sequence[int] | None = None) -> None:
        """Declare a tensor as an output of the program.

        Args:
            A: A result of an operator.
            strides: Strides in elements; only row-major ones.

        Raises:
            GraphError: It is an input, or was marked before.
            UnsupportedError: The strides are not row-major.
        """
        a = self._own("mark_output", A)
        if strides is not None and parse_ints("mark_output", "strides", strides) != row_major(a.shape):
            text = f"mark_output: expected row-major strides {list(row_major(a.shape))}, got {list(strides)}"
            raise error_at_user_line(
                UnsupportedError, text, "leave strides out; transpose the tensor if its dims are in another order"
            )
        if a in self.inputs:
            raise error_at_user_line(
                GraphError, f"mark_output: expected a result, got the input {a!r}", "mark what operators return"
            )
        if a in self.outputs:
            raise error_at_user_line(GraphError, f"mark_output: {a!r} is marked already", "mark each output once")
        self.outputs.append(a)

    def customized(self, inputs: Sequence[Tensor], bgraph: BlockBuilder) -> list[Tensor]:
        """Add a kernel that a block graph defines.

        Args:
            inputs: One tensor for each input of the block graph, in order.
            bgraph: The block graph.

        Returns:
            One tensor for each output of the block graph.

        Raises:
            GraphError: The block graph is no block graph, has no output, or reads another number of tensors.
            ShapeError: A tensor has another shape than the one that the block graph was written for.
            DTypeError: A tensor has another element type.
        """
        if not isinstance(bgraph, BlockBuilder):
            text = f"customized: expected a block graph, got {type(bgraph).__name__}"
            raise error_at_user_line(GraphError, text, "make it with new_threadblock_graph")
        operands = tuple(self._own("customized", item) for item in inputs)
        block = bgraph.freeze()
        if len(operands) != len(bgraph.sources):
            text = f"customized: expected {len(bgraph.sources)} inputs, got {len(operands)}"
            raise error_at_user_line(
                GraphError, text, "give one tensor for each new_input of the block graph, in order"
            )
        for position, (operand, source) in enumerate(zip(operands, bgraph.sources, strict=True)):
            if operand.shape != source.shape:
                text = f"customized: input {position}: expected {source!r} as in new_input, got {operand!r}"
                raise error_at_user_line(ShapeError, text, "give the tensors in the order of the new_input lines")
            if operand.dtype is not source.dtype:
                text = f"customized: input {position}: expected {source.dtype}, got {operand!r} of {operand.dtype}"
                raise error_at_user_line(DTypeError, text, "give the tensors in the order of the new_input lines")
        op = GraphDefined(tuple(t.number for t in operands), block)
        return list(self._append(op, operands, tuple(bgraph.results), f"customized{len(self._steps)}"))

    def freeze(self) -> KernelGraph:
        """Return the program as a frozen value; operators that no output needs are left out, inputs never are.

        Raises:
            GraphError: There is no output.
        """
        if not (outputs := self.results()):
            raise error_at_user_line(
                GraphError, "expected at least one output, got none", "call graph.mark_output(tensor)"
            )
        number = {t.number: index for index, t in enumerate(self.inputs)}
        ops: list[KernelOp] = []
        for step in self._kept():
            op, renamed = step.op, tuple(number[t.number] for t in step.operands)
            ops.append(Op(op.kind, renamed, op.attrs) if isinstance(op, Op) else GraphDefined(renamed, op.graph))
            for result in step.results:
                number[result.number] = len(number)
        graph = KernelGraph(tuple(self._declared), tuple(ops), tuple(number[t.number] for t in outputs))
        kernel_types(graph)
        return graph

    def results(self) -> list[Tensor]:
        """Return the program's outputs: the marked tensors; if none is marked, the results that nothing reads."""
        read = {t.number for step in self._steps for t in step.operands}
        return self.outputs or [t for step in self._steps for t in step.results if t.number not in read]

    def origins(self) -> Origins:
        """Return the lines of the inputs and operators of ``freeze`` in the user's file."""
        return Origins(tuple(self._input_lines), tuple(step.origin for step in self._kept()))

    def _kept(self) -> list[_Step]:
        """Return the steps that some output needs, in order."""
        steps = [(step, [t.number for t in step.results], [t.number for t in step.operands]) for step in self._steps]
        return needed_items(steps, (t.number for t in self.results()))

    def _name(self, name: str | None) -> str:
        taken = {item.name for item in self._declared}
        if name is not None:
            if not isinstance(name, str) or not name.isidentifier() or name in taken:
                hint = "give every input its own identifier"
                raise error_at_user_line(
                    GraphError, f"new_input: expected a new identifier as name, got {name!r}", hint
                )
            return name
        wanted = assigned_name() or f"input{len(taken)}"
        found, copy = wanted, 2
        while found in taken:
            found, copy = f"{wanted}_{copy}", copy + 1
        return found

    def _tensor(self, tensor: DTensor, label: str) -> Tensor:
        handle = Tensor(self, self._count, tensor.shape, tensor.dtype, label)
        self._count += 1
        return handle

    def _append(
        self, op: Op | GraphDefined, operands: tuple[Tensor, ...], results: tuple[DTensor, ...], label: str
    ) -> tuple[Tensor, ...]:
        handles = tuple(self._tensor(result, label) for result in results)
        self._steps.append(_Step(op, operands, handles, user_origin()))
        return handles

    def _own(self, operator: str, value: object) -> Tensor:
        if not isinstance(value, Tensor) or value.graph is not self:
            wanted = "a tensor of this block graph" if isinstance(value, BlockTensor) else "a tensor of this graph"
            raise not_a_tensor_error(operator, value, wanted)
        return value

    def _apply(self, kind: OpKind, operands: tuple[Tensor, ...], attrs: Attrs = NO_ATTRS) -> tuple[Tensor, ...]:
        results = device_results(kind, attrs, tuple(t.type for t in operands))
        if isinstance(results, str):
            raise rule_error(kind, results, operands, attrs)
        op = Op(kind, tuple(t.number for t in operands), attrs)
        return self._append(op, operands, results, result_label(kind, operands, self._count))
