"""Tensors of programs: what graphs offer as functions, they offer as methods of the same names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from mirage_formal.frontend.arguments import Number
from mirage_formal.frontend.handles import Handle
from mirage_formal.graph.types import DTensor, DType

if TYPE_CHECKING:
    from mirage_formal.frontend.builder import KernelBuilder
    from mirage_formal.frontend.parts import Part
    from mirage_formal.frontend.reductions import Dims


class Tensor(Handle):
    """A tensor of a program: an input or the result of an operator.

    Every method that is no property of the tensor is the function of ``KernelBuilder`` of the same name with this
    tensor as its first operand, and is described there.
    """

    __slots__ = ()

    @property
    def type(self) -> DTensor:
        """Its shape and element type."""
        return DTensor(self.shape, self.dtype)

    @property
    def T(self) -> Tensor:
        """The tensor with all dims in reverse order."""
        return self._graph.transpose(self, perm=tuple(reversed(range(self.num_dims))))

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two dims swapped."""
        return self._graph.transpose(self)

    @property
    def _graph(self) -> KernelBuilder:
        return cast("KernelBuilder", self.graph)

    def __getitem__(self, key: Part | tuple[Part, ...]) -> Tensor:
        return self._graph.index(self, key)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(self.shape[0]))

    def tanh(self) -> Tensor:
        """See ``KernelBuilder.tanh``."""
        return self._graph.tanh(self)

    def erf(self) -> Tensor:
        """See ``KernelBuilder.erf``."""
        return self._graph.erf(self)

    def exp(self) -> Tensor:
        """See ``KernelBuilder.exp``."""
        return self._graph.exp(self)

    def log(self) -> Tensor:
        """See ``KernelBuilder.log``."""
        return self._graph.log(self)

    def sqrt(self) -> Tensor:
        """See ``KernelBuilder.sqrt``."""
        return self._graph.sqrt(self)

    def rsqrt(self) -> Tensor:
        """See ``KernelBuilder.rsqrt``."""
        return self._graph.rsqrt(self)

    def square(self) -> Tensor:
        """See ``KernelBuilder.square``."""
        return self._graph.square(self)

    def abs(self) -> Tensor:
        """See ``KernelBuilder.abs``."""
        return self._graph.abs(self)

    def neg(self) -> Tensor:
        """See ``KernelBuilder.neg``."""
        return self._graph.neg(self)

    def reciprocal(self) -> Tensor:
        """See ``KernelBuilder.reciprocal``."""
        return self._graph.reciprocal(self)

    def relu(self) -> Tensor:
        """See ``KernelBuilder.relu``."""
        return self._graph.relu(self)

    def sigmoid(self) -> Tensor:
        """See ``KernelBuilder.sigmoid``."""
        return self._graph.sigmoid(self)

    def silu(self) -> Tensor:
        """See ``KernelBuilder.silu``."""
        return self._graph.silu(self)

    def gelu(self, approximate: str = "none") -> Tensor:
        """See ``KernelBuilder.gelu``."""
        return self._graph.gelu(self, approximate)

    def leaky_relu(self, negative_slope: Number = 0.01) -> Tensor:
        """See ``KernelBuilder.leaky_relu``."""
        return self._graph.leaky_relu(self, negative_slope)

    def pow(self, c: Number) -> Tensor:
        """See ``KernelBuilder.pow``."""
        return self._graph.pow(self, c)

    def scale(self, c: Number) -> Tensor:
        """See ``KernelBuilder.scale``."""
        return self._graph.scale(self, c)

    def shift(self, c: Number) -> Tensor:
        """See ``KernelBuilder.shift``."""
        return self._graph.shift(self, c)

    def full_like(self, c: Number) -> Tensor:
        """See ``KernelBuilder.full_like``."""
        return self._graph.full_like(self, c)

    def add(self, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.add``."""
        return self._graph.add(self, B)

    def sub(self, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.sub``."""
        return self._graph.sub(self, B)

    def mul(self, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.mul``."""
        return self._graph.mul(self, B)

    def div(self, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.div``."""
        return self._graph.div(self, B)

    def maximum(self, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.maximum``."""
        return self._graph.maximum(self, B)

    def minimum(self, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.minimum``."""
        return self._graph.minimum(self, B)

    def clamp(self, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
        """See ``KernelBuilder.clamp``."""
        return self._graph.clamp(self, min, max)

    def where(self, A: Tensor | Number, B: Tensor | Number) -> Tensor:
        """See ``KernelBuilder.where``; this tensor is the mask."""
        return self._graph.where(self, A, B)

    def sum(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``KernelBuilder.sum``."""
        return self._graph.sum(self, dim, keepdim)

    def mean(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``KernelBuilder.mean``."""
        return self._graph.mean(self, dim, keepdim)

    def max(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``KernelBuilder.max``."""
        return self._graph.max(self, dim, keepdim)

    def min(self, dim: Dims = None, keepdim: bool = True) -> Tensor:
        """See ``KernelBuilder.min``."""
        return self._graph.min(self, dim, keepdim)

    def logsumexp(self, dim: Dims = -1, keepdim: bool = True) -> Tensor:
        """See ``KernelBuilder.logsumexp``."""
        return self._graph.logsumexp(self, dim, keepdim)

    def softmax(self, dim: int = -1) -> Tensor:
        """See ``KernelBuilder.softmax``."""
        return self._graph.softmax(self, dim)

    def log_softmax(self, dim: int = -1) -> Tensor:
        """See ``KernelBuilder.log_softmax``."""
        return self._graph.log_softmax(self, dim)

    def matmul(self, B: Tensor) -> Tensor:
        """See ``KernelBuilder.matmul``."""
        return self._graph.matmul(self, B)

    def linear(self, w: Tensor, b: Tensor | None = None) -> Tensor:
        """See ``KernelBuilder.linear``."""
        return self._graph.linear(self, w, b)

    def transpose(self, d0: int | Sequence[int] = -2, d1: int | None = None) -> Tensor:
        """See ``KernelBuilder.transpose``."""
        return self._graph.transpose(self, d0, d1)

    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """See ``KernelBuilder.permute``."""
        return self._graph.permute(self, *dims)

    def reshape(self, shape: Sequence[int] | int, *more: int) -> Tensor:
        """See ``KernelBuilder.reshape``."""
        return self._graph.reshape(self, shape, *more)

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """See ``KernelBuilder.expand``."""
        return self._graph.expand(self, *shape)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """See ``KernelBuilder.squeeze``."""
        return self._graph.squeeze(self, dim)

    def unsqueeze(self, dim: int) -> Tensor:
        """See ``KernelBuilder.unsqueeze``."""
        return self._graph.unsqueeze(self, dim)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """See ``KernelBuilder.flatten``."""
        return self._graph.flatten(self, start_dim, end_dim)

    def repeat_interleave(self, repeats: int, dim: int) -> Tensor:
        """See ``KernelBuilder.repeat_interleave``."""
        return self._graph.repeat_interleave(self, repeats, dim)

    def slice(self, dim: int, start: int = 0, stop: int | None = None, step: int = 1) -> Tensor:
        """See ``KernelBuilder.slice``."""
        return self._graph.slice(self, dim, start, stop, step)

    def pad(self, dim: int, before: int, after: int, value: Number = 0) -> Tensor:
        """See ``KernelBuilder.pad``."""
        return self._graph.pad(self, dim, before, after, value)

    def cast(self, dtype: DType | str | object) -> Tensor:
        """See ``KernelBuilder.cast``."""
        return self._graph.cast(self, dtype)

    def split(self, size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
        """See ``KernelBuilder.split``."""
        return self._graph.split(self, size, dim)

    def chunk(self, chunks: int, dim: int = 0) -> list[Tensor]:
        """See ``KernelBuilder.chunk``."""
        return self._graph.chunk(self, chunks, dim)
