"""Front end: a few lines of Python that define a tensor program, checked line by line.

A program written for the documented Python interface of the reference system runs after changing the import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_formal.errors import DTypeError, GraphError, ShapeError, UnsupportedError
from mirage_formal.frontend.arguments import (
    Number,
    assigned_name,
    fail,
    parse_dim,
    parse_dtype,
    parse_eps,
    parse_shape,
    user_origin,
    whole_tuple,
)
from mirage_formal.frontend.block_builder import BlockBuilder, BlockTensor
from mirage_formal.frontend.handles import Tensor, describe, not_a_tensor, rule_error
from mirage_formal.frontend.operators import Operators
from mirage_formal.frontend.origins import Origin, Origins
from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.edit import needed
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.rules import device_results
from mirage_formal.graph.types import DTensor, DType, Shape, row_major


@dataclass(frozen=True, slots=True)
class _Step:
    """An operator with its tensors, and the user's line."""

    op: Op | GraphDefined
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    origin: Origin | None


class KernelBuilder(Operators[Tensor]):
    """A tensor program that is being built; ``freeze`` gives it as a frozen value."""

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
        dtype: DType | str | object = DType.FLOAT16,
        strides: Sequence[int] | DType | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A program input.

        Args:
            dims: Its shape.
            dtype: float16, bfloat16 or float32, also by name.
            strides: In elements; row-major if left out.
            name: Its name; if left out, the name of the variable that it is assigned to.

        Returns:
            The input as a tensor of this graph.

        Raises:
            ShapeError: The shape or the strides make no sense.
            DTypeError: The element type is not supported.
            GraphError: The name is taken or no identifier.
        """
        if isinstance(dtype, tuple | list) or dtype is None:
            # The reference system has the strides in this place.
            dtype, strides = (strides if isinstance(strides, DType) else DType.FLOAT16), dtype
        shape = parse_shape("new_input", "dims", dims)
        steps = row_major(shape) if strides is None else whole_tuple("new_input", "strides", strides)
        if len(steps) != len(shape) or any(step < 0 for step in steps):
            hint = "give one stride, in elements, for each dim"
            raise fail(ShapeError, f"new_input: expected {len(shape)} strides >= 0, got {list(steps)}", hint)
        label = self._name(name)
        tensor = DTensor(shape, parse_dtype(dtype))
        handle = self._tensor(tensor, label)
        self.inputs.append(handle)
        self._declared.append(Input(label, tensor, steps))
        self._input_lines.append(user_origin())
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
        if strides is not None and whole_tuple("mark_output", "strides", strides) != row_major(a.shape):
            text = f"mark_output: expected row-major strides {list(row_major(a.shape))}, got {list(strides)}"
            raise fail(
                UnsupportedError, text, "leave strides out; transpose the tensor if its dims are in another order"
            )
        if a in self.inputs:
            raise fail(GraphError, f"mark_output: expected a result, got the input {a!r}", "mark what operators return")
        if a in self.outputs:
            raise fail(GraphError, f"mark_output: {a!r} is marked already", "mark each output once")
        self.outputs.append(a)

    def softmax(self, A: Tensor, dim: int = -1) -> Tensor:
        """The softmax e^x / sum of e^x along one dim.

        Args:
            A: The tensor, x in the formula.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        return self._along(OpKind.SOFTMAX, A, dim)

    def rms_norm(
        self,
        A: Tensor,
        normalized_shape: Sequence[int] | int | None = None,
        weight: Tensor | None = None,
        eps: Number | None = None,
        dim: int = -1,
    ) -> Tensor:
        """A over the root of the mean of its squares, times a weight.

        Args:
            A: The tensor.
            normalized_shape: Extents of the last dims, over which is normalised; ``dim`` is then not used.
            weight: A factor; a vector as long as the normalised dim, or anything that broadcasts to A.
            eps: An exact constant under the root; none if left out.
            dim: The dim over which is normalised.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            ShapeError: ``normalized_shape`` or the weight does not fit.
        """
        a = self._own("rms_norm", A)
        scale = None if weight is None else self._own("rms_norm", weight)
        trailing = 1 if normalized_shape is None else self._trailing("rms_norm", a, normalized_shape)
        if trailing > 1:
            kept = len(a.shape) - trailing
            flat = self._reshaped(a, (*a.shape[:kept], prod(a.shape[kept:])))
            found = self._normed(OpKind.RMS_NORM, flat, -1, () if scale is None else (self._flat(scale, a, kept),), eps)
            return self._reshaped(found, a.shape)
        axis = -1 if normalized_shape is not None else dim
        return self._normed(OpKind.RMS_NORM, a, axis, () if scale is None else (scale,), eps)

    def layer_norm(
        self,
        A: Tensor,
        dim: int = -1,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: Number | None = None,
    ) -> Tensor:
        """The layer norm (x - mean) / sqrt(variance + eps) * weight + bias along one dim.

        Args:
            A: The tensor, x in the formula.
            dim: The dim; negative ones count from the last.
            weight: A factor; a vector as long as the dim, or anything that broadcasts to A.
            bias: A summand, likewise.
            eps: An exact constant under the root; none if left out.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: There is no such dim, or the weight or bias does not fit.
        """
        a = self._own("layer_norm", A)
        factor = None if weight is None else self._own("layer_norm", weight)
        term = None if bias is None else self._own("layer_norm", bias)
        if factor is None:
            found = self._normed(OpKind.LAYER_NORM, a, dim, (), eps)
            if term is None:
                return found
            axis = parse_dim("layer_norm", dim, a.num_dims, repr(a))
            return self._one(OpKind.ADD, (found, self._beside(OpKind.LAYER_NORM, a, term, axis)))
        return self._normed(OpKind.LAYER_NORM, a, dim, (factor,) if term is None else (factor, term), eps)

    def transpose(
        self, A: Tensor, d0: int | Sequence[int] = -2, d1: int | None = None, perm: Sequence[int] | None = None
    ) -> Tensor:
        """Two dims swapped, the last two if none are named; or all dims permuted.

        Args:
            A: The tensor.
            d0: One of the two dims; or a permutation of all dims.
            d1: The other one; the last if left out.
            perm: A permutation: dim i of the result is dim perm[i] of A.

        Returns:
            A tensor with A's elements.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or it is no permutation.
        """
        a = self._own("transpose", A)
        if not isinstance(d0, int):
            perm = d0
        if perm is not None:
            axes = tuple(parse_dim("transpose", d, a.num_dims, repr(a)) for d in perm)
        else:
            first = parse_dim("transpose", d0, a.num_dims, repr(a))
            second = parse_dim("transpose", -1 if d1 is None else d1, a.num_dims, repr(a))
            axes = tuple({first: second, second: first}.get(d, d) for d in range(a.num_dims))
        return self._one(OpKind.TRANSPOSE, (a,), Attrs(perm=axes))

    def reshape(self, A: Tensor, shape: Sequence[int] | int, *more: int) -> Tensor:
        """The same elements in row-major order under another shape.

        Args:
            A: The tensor.
            shape: The extents, of which one may be -1: what is left.
            more: Further extents, where ``shape`` is the first of them.

        Returns:
            A tensor of the shape.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: The shape has another number of elements.
        """
        a = self._own("reshape", A)
        given = (*whole_tuple("reshape", "shape", shape), *whole_tuple("reshape", "shape", more))
        known = prod(d for d in given if d != -1)
        if given.count(-1) == 1 and known > 0 and a.type.elements % known == 0:
            given = tuple(a.type.elements // known if d == -1 else d for d in given)
        return self._reshaped(a, parse_shape("reshape", "shape", given))

    def concat(self, A: Tensor | Sequence[Tensor], B: Tensor | int | None = None, dim: int | None = None) -> Tensor:
        """Tensors one after another along one dim: ``concat(A, B, dim)`` or ``concat([A, B, ...], dim)``.

        Args:
            A: The first tensor, or all of them.
            B: The second tensor, or the dim.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape, but for the dim: its extent is the sum.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: There is no such dim, other extents differ, or no tensor was given.
        """
        if isinstance(A, Tensor):
            items: list[object] = [A, B]
            axis: object = dim
        else:
            items = list(A)
            axis = B if dim is None else dim
        if not items:
            raise fail(ShapeError, "concat: expected at least one tensor, got none", "give tensors")
        out = self._own("concat", items[0])
        found = parse_dim("concat", axis, out.num_dims, repr(out))
        for item in items[1:]:
            out = self._one(OpKind.CONCAT, (out, self._own("concat", item)), Attrs(dim=found))
        return out

    def cast(self, A: Tensor, dtype: DType | str | object) -> Tensor:
        """The same numbers in another element type.

        Args:
            A: The tensor.
            dtype: float16, bfloat16 or float32, also by name.

        Returns:
            A tensor of A's shape.

        Raises:
            GraphError: A is no tensor of this graph.
            DTypeError: There is no such element type.
        """
        return self._one(OpKind.CAST, (self._own("cast", A),), Attrs(dtype=parse_dtype(dtype)))

    def customized(self, inputs: Sequence[Tensor], bgraph: BlockBuilder) -> list[Tensor]:
        """A kernel that a block graph defines.

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
            raise fail(GraphError, text, "make it with new_threadblock_graph")
        operands = tuple(self._own("customized", item) for item in inputs)
        block = bgraph.freeze()
        if len(operands) != len(bgraph.sources):
            text = f"customized: expected {len(bgraph.sources)} inputs, got {len(operands)}"
            raise fail(GraphError, text, "give one tensor for each new_input of the block graph, in order")
        for position, (operand, source) in enumerate(zip(operands, bgraph.sources, strict=True)):
            if operand.shape != source.shape:
                text = f"customized: input {position}: expected {source!r} as in new_input, got {operand!r}"
                raise fail(ShapeError, text, "give the tensors in the order of the new_input lines")
            if operand.dtype is not source.dtype:
                text = f"customized: input {position}: expected {source.dtype}, got {operand!r} of {operand.dtype}"
                raise fail(DTypeError, text, "give the tensors in the order of the new_input lines")
        op = GraphDefined(tuple(t.number for t in operands), block)
        return list(self._append(op, operands, tuple(bgraph.results), f"customized{len(self._steps)}"))

    def freeze(self) -> KernelGraph:
        """The program as a frozen value; operators that no output needs are left out, inputs never are.

        Raises:
            GraphError: No output is marked.
        """
        if not self.outputs:
            raise fail(GraphError, "expected at least one output, got none", "call graph.mark_output(tensor)")
        number = {t.number: index for index, t in enumerate(self.inputs)}
        ops: list[KernelOp] = []
        for step in self._kept():
            op, renamed = step.op, tuple(number[t.number] for t in step.operands)
            ops.append(Op(op.kind, renamed, op.attrs) if isinstance(op, Op) else GraphDefined(renamed, op.graph))
            for result in step.results:
                number[result.number] = len(number)
        graph = KernelGraph(tuple(self._declared), tuple(ops), tuple(number[t.number] for t in self.outputs))
        kernel_types(graph)
        return graph

    def origins(self) -> Origins:
        """Where the inputs and operators of ``freeze`` stand in the user's file."""
        return Origins(tuple(self._input_lines), tuple(step.origin for step in self._kept()))

    def _kept(self) -> list[_Step]:
        """The steps that some output needs, in order."""
        steps = [(step, [t.number for t in step.results], [t.number for t in step.operands]) for step in self._steps]
        return needed(steps, (t.number for t in self.outputs))

    def _name(self, name: str | None) -> str:
        taken = {item.name for item in self._declared}
        if name is not None:
            if not isinstance(name, str) or not name.isidentifier() or name in taken:
                hint = "give every input its own identifier"
                raise fail(GraphError, f"new_input: expected a new identifier as name, got {name!r}", hint)
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
            raise not_a_tensor(operator, value, wanted)
        return value

    def _align(self, kind: OpKind, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        rank = max(a.num_dims, b.num_dims)
        return self._raised(a, rank), self._raised(b, rank)

    def _apply(self, kind: OpKind, operands: tuple[Tensor, ...], attrs: Attrs = NO_ATTRS) -> tuple[Tensor, ...]:
        results = device_results(kind, attrs, tuple(t.type for t in operands))
        if isinstance(results, str):
            raise rule_error(kind, results, operands)
        op = Op(kind, tuple(t.number for t in operands), attrs)
        return self._append(op, operands, results, describe(kind, operands, self._count))

    def _reshaped(self, a: Tensor, shape: Shape) -> Tensor:
        return a if a.shape == shape else self._one(OpKind.RESHAPE, (a,), Attrs(shape=shape))

    def _raised(self, a: Tensor, rank: int) -> Tensor:
        """The tensor with dims of extent 1 in front, as numpy broadcasts; messages keep its name."""
        if a.num_dims == rank:
            return a
        raised = self._reshaped(a, (*(1,) * (rank - a.num_dims), *a.shape))
        raised.label = a.label
        return raised

    def _trailing(self, operator: str, a: Tensor, normalized_shape: Sequence[int] | int) -> int:
        wanted = whole_tuple(operator, "normalized_shape", normalized_shape)
        if not wanted or wanted != a.shape[-len(wanted) :]:
            text = f"{operator}: expected normalized_shape to be the last dims of {a!r}, got {list(wanted)}"
            raise fail(ShapeError, text, f"for the last dim alone write normalized_shape=({a.shape[-1]},)")
        return len(wanted)

    def _flat(self, weight: Tensor, a: Tensor, kept: int) -> Tensor:
        """A weight of the shape of the last dims as a vector."""
        if weight.shape != a.shape[kept:]:
            text = f"rms_norm: expected a weight of shape {list(a.shape[kept:])}, got {weight!r}"
            raise fail(ShapeError, text, "the weight must have the normalised shape")
        return self._reshaped(weight, (prod(weight.shape),))

    def _beside(self, kind: OpKind, a: Tensor, extra: Tensor, axis: int) -> Tensor:
        """A weight or bias in the rank of ``a``; a vector lies along the normalised dim."""
        if extra.num_dims == 1 and extra.shape[0] == a.shape[axis]:
            shape = tuple(extra.shape[0] if d == axis else 1 for d in range(a.num_dims))
            laid = self._reshaped(extra, shape)
            laid.label = extra.label
            return laid
        if extra.num_dims > a.num_dims:
            raise rule_error(kind, "expected a weight or bias of no higher rank", (a, extra))
        return self._raised(extra, a.num_dims)

    def _normed(self, kind: OpKind, a: Tensor, dim: int, extras: tuple[Tensor, ...], eps: Number | None) -> Tensor:
        axis = parse_dim(kind.value, dim, a.num_dims, repr(a))
        operands = (a, *(self._beside(kind, a, extra, axis) for extra in extras))
        return self._one(kind, operands, Attrs(dim=axis, eps=parse_eps(kind.value, eps)))
