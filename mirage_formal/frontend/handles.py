"""Tensors of graphs that are being built, and error messages for unfit operands."""

from __future__ import annotations

from typing import Any, TypeVar

from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.type_rules import result_dtype
from mirage_formal.graph.types import DType, Shape
from mirage_formal.support.errors import DTypeError, GraphError, MirageError, ShapeError

_LONGEST_LABEL = 24


class Handle:
    """A tensor of a graph that is being built.

    The arithmetic operators of Python stand for the operators of the graph: ``A + B``, ``A - B``, ``A * B``,
    ``A / B``, ``A @ B``, ``-A``, ``abs(A)`` and ``A ** c``; a number may take the place
    of one tensor in the first four.
    """

    __slots__ = ("dtype", "graph", "label", "number", "shape")
    # Makes numpy scalars leave arithmetic with a tensor to the tensor.
    __array_ufunc__ = None

    def __init__(self, graph: Any, number: int, shape: Shape, dtype: DType, label: str) -> None:
        self.graph = graph
        self.number = number
        self.shape = shape
        self.dtype = dtype
        self.label = label

    @property
    def num_dims(self) -> int:
        """Return the number of dims."""
        return len(self.shape)

    def dim(self, index: int) -> int:
        """Return the extent of one dim.

        Args:
            index: Number of the dim; negative ones count from the last.

        Returns:
            Elements along it.

        Raises:
            IndexError: There is no such dim.
        """
        return self.shape[index]

    def __repr__(self) -> str:
        return f"{self.label}[{','.join(map(str, self.shape))}]"

    def __add__(self, other: Any) -> Any:
        return self.graph.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return self.graph.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return self.graph.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.graph.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return self.graph.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.graph.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.graph.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.graph.div(other, self)

    def __matmul__(self, other: Any) -> Any:
        return self.graph.matmul(self, other)

    def __neg__(self) -> Any:
        return self.graph.scale(self, -1)

    def __abs__(self) -> Any:
        return self.graph.abs(self)

    def __pow__(self, other: Any) -> Any:
        return self.graph.pow(self, other)


#: Class of a graph's tensors: of a program's, or of a block's.
AnyTensor = TypeVar("AnyTensor", bound=Handle)


def result_label(kind: OpKind, operands: tuple[Handle, ...], number: int) -> str:
    """Return a short name of a result for messages: ``matmul(Q,K)``, or ``t7`` if that is too long."""
    text = f"{kind.value}({','.join(t.label for t in operands)})"
    return text if len(text) <= _LONGEST_LABEL else f"t{number}"


def matmul_fault(a: Handle, b: Handle) -> tuple[str, str] | None:
    """Return the message for unequal inner dimensions of a product, with a hint."""
    if a.num_dims < 2 or b.num_dims < 2 or a.shape[-1] == b.shape[-2]:
        return None
    text = f"inner dimensions differ: {a!r} has {a.shape[-1]}, {b!r} has {b.shape[-2]}"
    if b.shape[-1] == a.shape[-1]:
        return f"{text}; transpose {b.label}?", f"transpose({b.label}, -1, -2) has {a.shape[-1]} rows"
    if a.shape[-2] == b.shape[-2]:
        return f"{text}; transpose {a.label}?", f"transpose({a.label}, -1, -2) has {b.shape[-2]} columns"
    return text, "the last dim of the left operand must equal the last but one of the right"


def rule_error(kind: OpKind, text: str, operands: tuple[Handle, ...], attrs: Attrs = NO_ATTRS) -> MirageError:
    """Return the error for a type rule's fault with these operands."""
    if kind is OpKind.MATMUL and (found := matmul_fault(operands[0], operands[1])) is not None:
        return error_at_user_line(ShapeError, f"{kind.value}: {found[0]}", found[1])
    typed = result_dtype(kind, attrs, tuple(t.dtype for t in operands))
    if not isinstance(typed, DType):
        given = ", ".join(f"{t!r} {t.dtype.value}" for t in operands)
        fault = typed if kind is OpKind.CAST else f"{typed.partition(', got')[0]}, got {given}"
        masks = any(t.dtype is DType.BOOL for t in operands) or kind is OpKind.LOGICAL_NOT
        hint = "cast a mask to count with it; compare a tensor to make a mask" if masks else "cast one operand"
        return error_at_user_line(DTypeError, f"{kind.value}: {fault}", hint)
    given = ", ".join(map(repr, operands))
    return error_at_user_line(ShapeError, f"{kind.value}: {text} (operands {given})", "fix the shapes of the operands")


def not_a_tensor_error(operator: str, value: object, wanted: str) -> MirageError:
    """Return the error for an operand that is no tensor of the given graph."""
    if isinstance(value, Handle):
        hint = "operators take tensors of one graph; block graphs read kernel tensors through new_input"
        return error_at_user_line(GraphError, f"{operator}: expected {wanted}, got {value!r} of another graph", hint)
    hint = "make tensors with new_input and the operators of the graph"
    return error_at_user_line(GraphError, f"{operator}: expected {wanted}, got {type(value).__name__}", hint)
