"""The front end's methods on NumPy arrays, as the manual of PyTorch says: a second meaning of a line of a program.

Nothing here knows how the front end composes its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dims = int | Sequence[int]


class Values:
    """A tensor that has numbers: methods and operators of ``mirage_formal.Tensor``."""

    __array_ufunc__ = None

    def __init__(self, graph: NumpyGraph, array: Array) -> None:
        self.graph = graph
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def mT(self) -> Values:
        return self.graph.transpose(self, -1, -2)

    def __getitem__(self, parts: Any) -> Values:
        return self._made(self.array[parts])

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self.graph), name)
        return lambda *args, **kwargs: method(self.graph, self, *args, **kwargs)

    def __add__(self, other: Any) -> Values:
        return self._made(self.array + _array(other))

    def __sub__(self, other: Any) -> Values:
        return self._made(self.array - _array(other))

    def __mul__(self, other: Any) -> Values:
        return self._made(self.array * _array(other))

    def __truediv__(self, other: Any) -> Values:
        return self._made(self.array / _array(other))

    def __radd__(self, other: Any) -> Values:
        return self._made(_array(other) + self.array)

    def __rsub__(self, other: Any) -> Values:
        return self._made(_array(other) - self.array)

    def __rmul__(self, other: Any) -> Values:
        return self._made(_array(other) * self.array)

    def __rtruediv__(self, other: Any) -> Values:
        return self._made(_array(other) / self.array)

    def __pow__(self, power: float) -> Values:
        return self._made(np.power(self.array, float(power)))

    def __matmul__(self, other: Values) -> Values:
        return self._made(self.array @ other.array)

    def __neg__(self) -> Values:
        return self._made(-self.array)

    def __abs__(self) -> Values:
        return self._made(np.abs(self.array))

    def _made(self, array: Array) -> Values:
        return Values(self.graph, np.asarray(array))


def _array(value: Any) -> Any:
    return value.array if isinstance(value, Values) else value


def _function(compute: Callable[..., Any]) -> Callable[..., Values]:
    """A method of arrays; operands are tensors or numbers, and keep their places."""

    def method(self: NumpyGraph, *operands: Any) -> Values:
        return Values(self, np.asarray(compute(*map(_array, operands)), dtype=np.float64))

    return method


def _reduction(compute: Callable[..., Any]) -> Callable[..., Values]:
    def method(self: NumpyGraph, a: Values, dim: Dims, keepdim: bool = True) -> Values:
        axes = dim if isinstance(dim, int) else tuple(dim)
        return Values(self, np.asarray(compute(a.array, axis=axes, keepdims=keepdim)))

    return method


def _sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def _softmax(x: Array, dim: int) -> Array:
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


_erf = np.vectorize(erf, otypes=[np.float64])


class NumpyGraph:
    """Methods of ``mirage_formal.Graph``, on Values."""

    add = _function(np.add)
    sub = _function(np.subtract)
    mul = _function(np.multiply)
    div = _function(np.divide)
    maximum = _function(np.maximum)
    minimum = _function(np.minimum)
    matmul = _function(np.matmul)
    exp = _function(np.exp)
    log = _function(np.log)
    sqrt = _function(np.sqrt)
    rsqrt = _function(lambda x: 1 / np.sqrt(x))
    square = _function(np.square)
    reciprocal = _function(lambda x: 1 / x)
    abs = _function(np.abs)
    neg = _function(np.negative)
    tanh = _function(np.tanh)
    erf = _function(_erf)
    silu = _function(lambda x: x * _sigmoid(x))
    sigmoid = _function(_sigmoid)
    relu = _function(lambda x: np.where(x > 0, x, 0))
    leaky_relu = _function(lambda x, slope=0.01: np.where(x > 0, x, slope * x))
    where = _function(lambda mask, a, b: np.where(mask != 0, a, b))
    sum = _reduction(np.sum)
    mean = _reduction(np.mean)
    max = _reduction(np.max)
    min = _reduction(np.min)

    def gelu(self, a: Values, approximate: str = "none") -> Values:
        return Values(self, _gelu(a.array, approximate))

    def clamp(self, a: Values, lo: float | None = None, hi: float | None = None) -> Values:
        return Values(self, np.clip(a.array, lo, hi))

    def softmax(self, a: Values, dim: int = -1) -> Values:
        return Values(self, _softmax(a.array, dim))

    def log_softmax(self, a: Values, dim: int = -1) -> Values:
        return Values(self, np.log(_softmax(a.array, dim)))

    def logsumexp(self, a: Values, dim: int, keepdim: bool = True) -> Values:
        most = a.array.max(dim, keepdims=True)
        found = most + np.log(np.exp(a.array - most).sum(dim, keepdims=True))
        return Values(self, found if keepdim else found.squeeze(dim))

    def layer_norm(
        self, a: Values, dim: int = -1, weight: Any = None, bias: Any = None, eps: float | None = None
    ) -> Values:
        x = a.array
        found = (x - x.mean(dim, keepdims=True)) / np.sqrt(x.var(dim, keepdims=True) + (eps or 0))
        return Values(self, self._affine(found, dim, weight, bias))

    def rms_norm(self, a: Values, dim: int = -1, weight: Any = None, eps: float | None = None) -> Values:
        found = a.array / np.sqrt((a.array**2).mean(dim, keepdims=True) + (eps or 0))
        return Values(self, self._affine(found, dim, weight, None))

    @staticmethod
    def _affine(x: Array, dim: int, weight: Values | None, bias: Values | None) -> Array:
        """A weight and a bias that are vectors lie along the dim."""
        along = [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
        if weight is not None:
            x = x * weight.array.reshape(along)
        return x if bias is None else x + bias.array.reshape(along)

    def concat(self, parts: Sequence[Values], dim: int) -> Values:
        return Values(self, np.concatenate([part.array for part in parts], dim))

    def split(self, a: Values, size: Dims, dim: int = 0) -> list[Values]:
        extent = a.shape[dim]
        sizes = [min(size, extent - at) for at in range(0, extent, size)] if isinstance(size, int) else list(size)
        return [Values(self, part) for part in np.split(a.array, np.cumsum(sizes)[:-1], dim)]

    def chunk(self, a: Values, count: int, dim: int = 0) -> list[Values]:
        return self.split(a, -(-a.shape[dim] // count), dim)

    def pad(self, a: Values, dim: int, before: int, after: int, value: float = 0) -> Values:
        widths = [(before, after) if d == dim % a.array.ndim else (0, 0) for d in range(a.array.ndim)]
        return Values(self, np.pad(a.array, widths, constant_values=value))

    def transpose(self, a: Values, d0: int, d1: int) -> Values:
        return Values(self, np.swapaxes(a.array, d0, d1))

    def permute(self, a: Values, dims: Sequence[int]) -> Values:
        return Values(self, a.array.transpose(dims))

    def reshape(self, a: Values, shape: Sequence[int]) -> Values:
        return Values(self, a.array.reshape(shape))

    def squeeze(self, a: Values, dim: int) -> Values:
        return Values(self, a.array.squeeze(dim))

    def unsqueeze(self, a: Values, dim: int) -> Values:
        return Values(self, np.expand_dims(a.array, dim))

    def expand(self, a: Values, shape: Sequence[int]) -> Values:
        return Values(self, np.broadcast_to(a.array, tuple(shape)))

    def repeat_interleave(self, a: Values, count: int, dim: int) -> Values:
        return Values(self, np.repeat(a.array, count, dim))

    def linear(self, x: Values, w: Values, b: Values | None = None) -> Values:
        found = x.array @ w.array.T
        return Values(self, found if b is None else found + b.array)

    def addmm(self, b: Values, x: Values, w: Values) -> Values:
        return Values(self, b.array + x.array @ w.array)

    def cast(self, a: Values, dtype: object) -> Values:
        return a
