"""Tensors of programs; the functions of graphs are also methods of the same names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirage_formal.frontend.argument_checks import Dims, Number, Part
from mirage_formal.frontend.elementwise_functions import FunctionMethods
from mirage_formal.graph.types import DTensor, DType


class Tensor(FunctionMethods):
    """A tensor of a program: an input or the result of an operator.

    Every method that is no property of the tensor is the function of ``Graph`` of the same name with this
    tensor as its first operand, and is described there.
    """

    __slots__ = ()

    @property
    def type(self) -> DTensor:
        """Return its shape and element type."""
        return DTensor(self.shape, self.dtype)

    @property
    def T(self) -> Tensor:
        """Return the tensor with all dims in reverse order."""
        return self._call("permute", *reversed(range(self.num_dims)))

    @property
    def mT(self) -> Tensor:
        """Return the tensor with its last two dims swapped."""
        return self._call("transpose")

    def _list(self, name: str, *arguments: object) -> list[Tensor]:
        return list(getattr(self.graph, name)(self, *arguments))

    def __getitem__(self, key: Part | tuple[Part, ...]) -> Tensor:
        return self._call("index", key)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(self.shape[0]))

    def gelu(self, approximate: str = "none") -> Tensor:
        """See ``Graph.gelu``."""
        return self._call("gelu", approximate)

    def leaky_relu(self, negative_slope: Number = 0.01) -> Tensor:
        """See ``Graph.leaky_relu``."""
        return self._call("leaky_relu", negative_slope)

    def pow(self, c: Number) -> Tensor:
        """See ``Graph.pow``."""
        return self._call("pow", c)

    def scale(self, c: Number) -> Tensor:
        """See ``Graph.scale``."""
        return self._call("scale", c)

    def shift(self, c: Number) -> Tensor:
        """See ``Graph.shift``."""
        return self._call("shift", c)

    def full_like(self, c: Number) -> Tensor:
        """See ``Graph.full_like``."""
        return self._call("full_like", c)

    def add(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.add``."""
        return self._call("add", B)

    def sub(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.sub``."""
        return self._call("sub", B)

    def mul(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.mul``."""
        return self._call("mul", B)

    def div(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.div``."""
        return self._call("div", B)

    def maximum(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.maximum``."""
        return self._call("maximum", B)

    def minimum(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.minimum``."""
        return self._call("minimum", B)

    def clamp(self, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
        """See ``Graph.clamp``."""
        return self._call("clamp", min, max)

    def where(self, A: Tensor | Number, B: Tensor | Number) -> Tensor:
        """See ``Graph.where``; this tensor is the mask."""
        return self._call("where", A, B)

    def eq(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.eq``."""
        return self._call("eq", B)

    def ne(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.ne``."""
        return self._call("ne", B)

    def lt(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.lt``."""
        return self._call("lt", B)

    def le(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.le``."""
        return self._call("le", B)

    def gt(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.gt``."""
        return self._call("gt", B)

    def ge(self, B: Tensor | Number) -> Tensor:
        """See ``Graph.ge``."""
        return self._call("ge", B)

    def logical_and(self, B: Tensor) -> Tensor:
        """See ``Graph.logical_and``."""
        return self._call("logical_and", B)

    def logical_or(self, B: Tensor) -> Tensor:
        """See ``Graph.logical_or``."""
        return self._call("logical_or", B)

    def logical_not(self) -> Tensor:
        """See ``Graph.logical_not``."""
        return self._call("logical_not")

    def select(self, A: Tensor | Number, B: Tensor | Number) -> Tensor:
        """See ``Graph.select``; this tensor is the mask."""
        return self._call("select", A, B)

    def div_no_nan(self, B: Tensor) -> Tensor:
        """See ``Graph.div_no_nan``."""
        return self._call("div_no_nan", B)

    def round_to(self, dtype: object) -> Tensor:
        """See ``Graph.round_to``."""
        return self._call("round_to", dtype)

    def sum(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``Graph.sum``."""
        return self._call("sum", dim, keepdim)

    def mean(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``Graph.mean``."""
        return self._call("mean", dim, keepdim)

    def max(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``Graph.max``."""
        return self._call("max", dim, keepdim)

    def min(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``Graph.min``."""
        return self._call("min", dim, keepdim)

    def logsumexp(self, dim: Dims = -1, keepdim: bool = True) -> Tensor:
        """See ``Graph.logsumexp``."""
        return self._call("logsumexp", dim, keepdim)

    def softmax(self, dim: int = -1) -> Tensor:
        """See ``Graph.softmax``."""
        return self._call("softmax", dim)

    def log_softmax(self, dim: int = -1) -> Tensor:
        """See ``Graph.log_softmax``."""
        return self._call("log_softmax", dim)

    def matmul(self, B: Tensor) -> Tensor:
        """See ``Graph.matmul``."""
        return self._call("matmul", B)

    def linear(self, w: Tensor, b: Tensor | None = None) -> Tensor:
        """See ``Graph.linear``."""
        return self._call("linear", w, b)

    def addmm(self, x: Tensor, w: Tensor) -> Tensor:
        """See ``Graph.addmm``; this tensor is the summand."""
        return self._call("addmm", x, w)

    def rms_norm(
        self,
        normalized_shape: Sequence[int] | int | Tensor | None = None,
        weight: Tensor | None = None,
        eps: Number | None = None,
        dim: int = -1,
    ) -> Tensor:
        """See ``Graph.rms_norm``."""
        return self._call("rms_norm", normalized_shape, weight, eps, dim)

    def layer_norm(
        self,
        dim: int | Sequence[int] = -1,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: Number | None = None,
    ) -> Tensor:
        """See ``Graph.layer_norm``."""
        return self._call("layer_norm", dim, weight, bias, eps)

    def transpose(self, d0: int | Sequence[int] = -2, d1: int | None = None) -> Tensor:
        """See ``Graph.transpose``."""
        return self._call("transpose", d0, d1)

    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """See ``Graph.permute``."""
        return self._call("permute", *dims)

    def reshape(self, shape: Sequence[int] | int, *more: int) -> Tensor:
        """See ``Graph.reshape``."""
        return self._call("reshape", shape, *more)

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """See ``Graph.expand``."""
        return self._call("expand", *shape)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """See ``Graph.squeeze``."""
        return self._call("squeeze", dim)

    def unsqueeze(self, dim: int) -> Tensor:
        """See ``Graph.unsqueeze``."""
        return self._call("unsqueeze", dim)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """See ``Graph.flatten``."""
        return self._call("flatten", start_dim, end_dim)

    def repeat_interleave(self, repeats: int, dim: int) -> Tensor:
        """See ``Graph.repeat_interleave``."""
        return self._call("repeat_interleave", repeats, dim)

    def slice(self, dim: int, start: int = 0, stop: int | None = None, step: int = 1) -> Tensor:
        """See ``Graph.slice``."""
        return self._call("slice", dim, start, stop, step)

    def pad(self, dim: int, before: int, after: int, value: Number = 0) -> Tensor:
        """See ``Graph.pad``."""
        return self._call("pad", dim, before, after, value)

    def cast(self, dtype: DType | str | object) -> Tensor:
        """See ``Graph.cast``."""
        return self._call("cast", dtype)

    def split(self, size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
        """See ``Graph.split``."""
        return self._list("split", size, dim)

    def chunk(self, chunks: int, dim: int = 0) -> list[Tensor]:
        """See ``Graph.chunk``."""
        return self._list("chunk", chunks, dim)
