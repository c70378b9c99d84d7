"""Tensors of programs; the functions of graphs are also methods of the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from mirage_formal.frontend.argument_checks import Part
from mirage_formal.frontend.handles import Handle
from mirage_formal.frontend.matmul import Products
from mirage_formal.frontend.shared_operators import describe_method
from mirage_formal.graph.types import DTensor

P = ParamSpec("P")
Found = TypeVar("Found")


def tensor_method(function: Callable[Concatenate[Any, P], Found]) -> Callable[Concatenate[Tensor, P], Found]:
    """Return the method of tensors that calls a function of graphs, with the tensor as the first operand."""
    name, first = function.__name__, [*signature(function).parameters][1]

    def method(tensor: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Found:
        found: Found = getattr(tensor.graph, name)(tensor, *args, **kwargs)
        return found

    return describe_method(method, function, name, f"See ``Graph.{name}``; this tensor is its ``{first}``.")


#: The class of the functions of graphs. Type checkers take it for a graph, and its functions for those of tensors.
_graph = cast("Products[Tensor]", Products)


class Tensor(Handle):
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
        return self.permute(*reversed(range(self.num_dims)))

    @property
    def mT(self) -> Tensor:
        """Return the tensor with its last two dims swapped."""
        return self.transpose()

    def __getitem__(self, key: Part | tuple[Part, ...]) -> Tensor:
        found: Tensor = self.graph.index(self, key)
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(self.shape[0]))

    tanh = tensor_method(_graph.tanh)
    erf = tensor_method(_graph.erf)
    exp = tensor_method(_graph.exp)
    log = tensor_method(_graph.log)
    sqrt = tensor_method(_graph.sqrt)
    rsqrt = tensor_method(_graph.rsqrt)
    square = tensor_method(_graph.square)
    abs = tensor_method(_graph.abs)
    neg = tensor_method(_graph.neg)
    reciprocal = tensor_method(_graph.reciprocal)
    relu = tensor_method(_graph.relu)
    sigmoid = tensor_method(_graph.sigmoid)
    silu = tensor_method(_graph.silu)
    gelu = tensor_method(_graph.gelu)
    leaky_relu = tensor_method(_graph.leaky_relu)
    pow = tensor_method(_graph.pow)
    scale = tensor_method(_graph.scale)
    shift = tensor_method(_graph.shift)
    full_like = tensor_method(_graph.full_like)
    add = tensor_method(_graph.add)
    sub = tensor_method(_graph.sub)
    mul = tensor_method(_graph.mul)
    div = tensor_method(_graph.div)
    maximum = tensor_method(_graph.maximum)
    minimum = tensor_method(_graph.minimum)
    clamp = tensor_method(_graph.clamp)
    where = tensor_method(_graph.where)
    eq = tensor_method(_graph.eq)
    ne = tensor_method(_graph.ne)
    lt = tensor_method(_graph.lt)
    le = tensor_method(_graph.le)
    gt = tensor_method(_graph.gt)
    ge = tensor_method(_graph.ge)
    logical_and = tensor_method(_graph.logical_and)
    logical_or = tensor_method(_graph.logical_or)
    logical_not = tensor_method(_graph.logical_not)
    select = tensor_method(_graph.select)
    div_no_nan = tensor_method(_graph.div_no_nan)
    round_to = tensor_method(_graph.round_to)
    sum = tensor_method(_graph.sum)
    mean = tensor_method(_graph.mean)
    max = tensor_method(_graph.max)
    min = tensor_method(_graph.min)
    logsumexp = tensor_method(_graph.logsumexp)
    softmax = tensor_method(_graph.softmax)
    log_softmax = tensor_method(_graph.log_softmax)
    matmul = tensor_method(_graph.matmul)
    linear = tensor_method(_graph.linear)
    addmm = tensor_method(_graph.addmm)
    rms_norm = tensor_method(_graph.rms_norm)
    layer_norm = tensor_method(_graph.layer_norm)
    transpose = tensor_method(_graph.transpose)
    permute = tensor_method(_graph.permute)
    reshape = tensor_method(_graph.reshape)
    expand = tensor_method(_graph.expand)
    squeeze = tensor_method(_graph.squeeze)
    unsqueeze = tensor_method(_graph.unsqueeze)
    flatten = tensor_method(_graph.flatten)
    repeat_interleave = tensor_method(_graph.repeat_interleave)
    slice = tensor_method(_graph.slice)
    pad = tensor_method(_graph.pad)
    cast = tensor_method(_graph.cast)
    split = tensor_method(_graph.split)
    chunk = tensor_method(_graph.chunk)
