"""The operators that the front end offers at kernel and at block level alike, and the tensors they work on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, Generic, NoReturn, TypeVar

from mirage_formal.errors import DTypeError, GraphError, MirageError, ShapeError, UnsupportedError
from mirage_formal.frontend.arguments import Number, exact, fail, is_number, parse_dim
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.types import DType, Shape

_LONGEST_LABEL = 24


class Handle:
    """A tensor of a graph that is being built.

    The arithmetic operators of Python stand for the operators of the graph: ``A + B``, ``A - B``, ``A * B``,
    ``A / B``, ``A @ B``, ``-A``, and a number in place of a factor or a divisor.
    """

    __slots__ = ("dtype", "graph", "label", "number", "shape")
    # Makes numpy scalars leave arithmetic with a tensor to the tensor.
    __array_ufunc__ = None

    def __init__(self, graph: Operators[Any], number: int, shape: Shape, dtype: DType, label: str) -> None:
        self.graph = graph
        self.number = number
        self.shape = shape
        self.dtype = dtype
        self.label = label

    @property
    def num_dims(self) -> int:
        """Number of dims."""
        return len(self.shape)

    def dim(self, index: int) -> int:
        """Extent of one dim."""
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


H = TypeVar("H", bound=Handle)


def describe(kind: OpKind, operands: tuple[Handle, ...], number: int) -> str:
    """A short name of a result for messages: ``matmul(Q,K)``, or ``t7`` where that gets long."""
    text = f"{kind.value}({','.join(t.label for t in operands)})"
    return text if len(text) <= _LONGEST_LABEL else f"t{number}"


def matmul_fault(a: Handle, b: Handle) -> tuple[str, str] | None:
    """What is wrong with the inner dimensions of a product, and what to do about it."""
    if a.num_dims < 2 or b.num_dims < 2 or a.shape[-1] == b.shape[-2]:
        return None
    text = f"inner dimensions differ: {a!r} has {a.shape[-1]}, {b!r} has {b.shape[-2]}"
    if b.shape[-1] == a.shape[-1]:
        return f"{text}; transpose {b.label}?", f"transpose({b.label}, -1, -2) has {a.shape[-1]} rows"
    if a.shape[-2] == b.shape[-2]:
        return f"{text}; transpose {a.label}?", f"transpose({a.label}, -1, -2) has {b.shape[-2]} columns"
    return text, "the last dim of the left operand must equal the last but one of the right"


def rule_error(kind: OpKind, text: str, operands: tuple[Handle, ...]) -> MirageError:
    """The error for a type rule's complaint about these operands."""
    if kind is OpKind.MATMUL and (found := matmul_fault(operands[0], operands[1])) is not None:
        return fail(ShapeError, f"{kind.value}: {found[0]}", found[1])
    if any(t.dtype is not operands[0].dtype for t in operands):
        given = ", ".join(f"{t!r} {t.dtype.value}" for t in operands)
        return fail(DTypeError, f"{kind.value}: expected operands of one element type, got {given}", "cast one operand")
    given = ", ".join(map(repr, operands))
    return fail(ShapeError, f"{kind.value}: {text} (operands {given})", "fix the shapes of the operands")


class Operators(ABC, Generic[H]):
    """Operators of both levels. A number may stand for a factor or a divisor, nowhere else."""

    @abstractmethod
    def _apply(self, kind: OpKind, operands: tuple[H, ...], attrs: Attrs = NO_ATTRS) -> tuple[H, ...]:
        """Append an operator and return its results; errors name the user's line."""

    @abstractmethod
    def _align(self, kind: OpKind, a: H, b: H) -> tuple[H, H]:
        """Operands of an elementwise operator, made equal in rank where the level can do that."""

    @abstractmethod
    def _own(self, operator: str, value: object) -> H:
        """The value, if it is a tensor of this graph; an error if not."""

    def _one(self, kind: OpKind, operands: tuple[H, ...], attrs: Attrs = NO_ATTRS) -> H:
        return self._apply(kind, operands, attrs)[0]

    def _unary(self, kind: OpKind, A: object) -> H:
        return self._one(kind, (self._own(kind.value, A),))

    def _pair(self, kind: OpKind, A: object, B: object) -> H:
        a, b = self._own(kind.value, A), self._own(kind.value, B)
        return self._one(kind, self._align(kind, a, b))

    def _along(self, kind: OpKind, A: object, dim: object, name: str = "") -> H:
        operator = name or kind.value
        a = self._own(operator, A)
        return self._one(kind, (a,), Attrs(dim=parse_dim(operator, dim, a.num_dims, repr(a))))

    def matmul(self, A: H, B: H) -> H:
        """Matrix product over the last two dims: A[..., m, k], B[..., k, n] give [..., m, n]; no broadcast."""
        return self._one(OpKind.MATMUL, (self._own("matmul", A), self._own("matmul", B)))

    def add(self, A: H, B: H) -> H:
        """Elementwise sum with broadcast."""
        self._no_number("add", A, B)
        return self._pair(OpKind.ADD, A, B)

    def sub(self, A: H, B: H) -> H:
        """Elementwise difference with broadcast."""
        self._no_number("sub", A, B)
        return self._pair(OpKind.SUB, A, B)

    def mul(self, A: H | Number, B: H | Number) -> H:
        """Elementwise product with broadcast; a number scales."""
        if is_number(B):
            return self._scaled("mul", A, B)
        if is_number(A):
            return self._scaled("mul", B, A)
        return self._pair(OpKind.MUL, A, B)

    def div(self, A: H, B: H | Number) -> H:
        """Elementwise quotient with broadcast; a number other than 0 divides exactly."""
        if is_number(B):
            divisor = exact("div", B)
            if divisor == 0:
                raise fail(UnsupportedError, "div: expected a divisor other than 0, got 0", "divide by another number")
            return self._scaled("div", A, 1 / divisor)
        self._no_number("div", A, B)
        return self._pair(OpKind.DIV, A, B)

    def scale(self, A: H, c: Number) -> H:
        """Every element times the exact number c; a float stands for its shortest decimal text."""
        return self._scaled("scale", A, c)

    def mul_scalar(self, A: H, scalar: Number) -> H:
        """The same as ``scale``."""
        return self._scaled("mul_scalar", A, scalar)

    def exp(self, A: H) -> H:
        """Elementwise exponential."""
        return self._unary(OpKind.EXP, A)

    def sqrt(self, A: H) -> H:
        """Elementwise square root."""
        return self._unary(OpKind.SQRT, A)

    def square(self, A: H) -> H:
        """Elementwise square."""
        return self._unary(OpKind.SQUARE, A)

    def silu(self, A: H) -> H:
        """Elementwise x / (1 + exp(-x))."""
        return self._unary(OpKind.SILU, A)

    def gelu(self, A: H) -> H:
        """Elementwise Gaussian error linear unit."""
        return self._unary(OpKind.GELU, A)

    def relu(self, A: H) -> H:
        """Elementwise maximum with 0."""
        return self._unary(OpKind.RELU, A)

    def sigmoid(self, A: H) -> H:
        """Elementwise 1 / (1 + exp(-x))."""
        return self._unary(OpKind.SIGMOID, A)

    def reduction(self, A: H, dim: int) -> H:
        """Sum over one dim, which stays with extent 1."""
        return self._along(OpKind.SUM, A, dim, "reduction")

    def mean(self, A: H, dim: int) -> H:
        """Mean over one dim, which stays with extent 1."""
        return self._along(OpKind.MEAN, A, dim)

    def max(self, A: H, dim: int) -> H:
        """Maximum over one dim, which stays with extent 1."""
        return self._along(OpKind.MAX, A, dim)

    def concat(self, A: H, B: H, dim: int) -> H:
        """A followed by B along one dim."""
        a, b = self._own("concat", A), self._own("concat", B)
        return self._one(OpKind.CONCAT, (a, b), Attrs(dim=parse_dim("concat", dim, a.num_dims, repr(a))))

    def repeat(self, A: H, dim: int, times: int) -> H:
        """A dim of extent 1 repeated to extent ``times``."""
        a = self._own("repeat", A)
        return self._one(OpKind.REPEAT, (a,), Attrs(dim=parse_dim("repeat", dim, a.num_dims, repr(a)), times=times))

    def clamp(self, *args: object, **kwargs: object) -> NoReturn:
        """Not supported: raises UnsupportedError."""
        raise fail(UnsupportedError, "clamp: this operator does not exist here", "relu is the one-sided clamp at 0")

    def pow(self, *args: object, **kwargs: object) -> NoReturn:
        """Not supported: raises UnsupportedError."""
        raise fail(UnsupportedError, "pow: this operator does not exist here", "use square, sqrt or mul")

    def _scaled(self, operator: str, A: object, c: object) -> H:
        factor: Fraction = exact(operator, c)
        return self._one(OpKind.SCALE, (self._own(operator, A),), Attrs(factor=factor))

    def _no_number(self, operator: str, *operands: object) -> None:
        for operand in operands:
            if is_number(operand):
                hint = "numbers may only be factors or divisors: scale(A, c); pass a tensor of extents 1 instead"
                raise fail(UnsupportedError, f"{operator}: expected two tensors, got the number {operand}", hint)


def not_a_tensor(operator: str, value: object, wanted: str) -> MirageError:
    """The error for an operand that is no tensor of the graph at hand."""
    if isinstance(value, Handle):
        hint = "operators take tensors of one graph; block graphs read kernel tensors through new_input"
        return fail(GraphError, f"{operator}: expected {wanted}, got {value!r} of another graph", hint)
    hint = "make tensors with new_input and the operators of the graph"
    return fail(GraphError, f"{operator}: expected {wanted}, got {type(value).__name__}", hint)
