"""Padded graphs of buckets: torch graphs at a bucket's largest extents that compute the same at every length in it.

A bucket's graph has the operators of a graph at the largest extents. Its inputs are padded behind the length with
copies of their last position. Where an operator would read padding that counts, the padding is first replaced by
neutral values.

Sound: two things hold for every tensor t of the bucket's graph, whatever the length n in the bucket, and each rule
below shows them for its results if they hold for its operands.
    1. At positions below the lengths of all dims, t has the values that the tensor of the original graph has at n.
    2. Behind n along a dim, t is REPEATED (position j is position n - 1, at all other indices, those behind the length
       too), ZERO (position j is zeros), or OTHER (finite numbers, if t's values at n are finite).
So what the module returns, cut to the length, is what it returns at that length, over the real numbers. An operator for
which no rule shows this is refused, and computed at its own length.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from mirage_formal.torch.dynamic_shapes.dynamic_extents import DynamicExtent, DynamicExtents, Extent, upper_extents
from mirage_formal.torch.imported_values import unsupported_error

_aten = torch.ops.aten


class PaddingContent(Enum):
    """Content of the padding of a tensor along one of its dims."""

    REPEATED = "repeated"
    ZERO = "zero"
    OTHER = "other"


#: Padding content of each dim; None for a static dim.
Behinds = tuple[PaddingContent | None, ...]


@dataclass(frozen=True, slots=True)
class BucketTensor:
    """A tensor of a bucket's graph.

    Attributes:
        node: Its node.
        extents: Its extents in the original graph.
        behind: Content of its padding along each dim.
    """

    node: Node
    extents: tuple[Extent, ...]
    behind: Behinds

    @property
    def rank(self) -> int:
        """Return the number of dims."""
        return len(self.extents)

    def long(self, dim: int) -> bool:
        """Return whether a dim is dynamic."""
        return isinstance(self.extents[dim], DynamicExtent)


#: Result of a rule: one tensor, or one for each of several results.
Result = BucketTensor | tuple[BucketTensor, ...]


@dataclass
class BucketGraph:
    """A bucket's graph under construction.

    Attributes:
        lengths: The lengths of the original graph.
        uppers: The largest value of each length in this bucket.
        graph: The graph so far; nodes have a tensor without memory as their ``val``.
        known: Results in the bucket's graph, by node of the original graph.
        kept: For each length, the placeholder of its mask: ones below it and zeros behind.
        parts: For each length and element type, the placeholder of 1 / length.
    """

    lengths: DynamicExtents
    uppers: Mapping[DynamicExtent, int]
    graph: Graph = field(default_factory=Graph)
    known: dict[str, Result] = field(default_factory=dict)
    kept: dict[DynamicExtent, Node] = field(default_factory=dict)
    parts: dict[tuple[DynamicExtent, Any], Node] = field(default_factory=dict)
    _mode: Any = field(default_factory=FakeTensorMode)
    _trace: str = ""
    _device: Any = None

    def given(self, name: str, node: Node, strides: Sequence[int]) -> None:
        """Add a placeholder for a node: its tensor, padded with copies of the last position."""
        tensor = node.meta["val"]
        extents = self.lengths.of(tensor)
        shape = upper_extents(extents, self.uppers)
        made = self._placeholder(name, shape, strides, tensor.dtype, tensor.device)
        behind = tuple(PaddingContent.REPEATED if isinstance(n, DynamicExtent) else None for n in extents)
        self.known[node.name] = BucketTensor(made, extents, behind)

    def _placeholder(self, name: str, shape: Sequence[int], strides: Sequence[int], dtype: Any, device: Any) -> Node:
        self._device = device if self._device is None else self._device
        first = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        with nullcontext() if first is None else self.graph.inserting_before(first):
            made = self.graph.placeholder(name)
        with self._mode:
            made.meta["val"] = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=device)
        return made

    def write(self, node: Node, rule: Rule | None) -> None:
        """Write an operator by its rule, after its operands.

        Raises:
            UnsupportedError: No rule shows that positions behind the length do not matter to it.
        """
        if rule is None:
            raise unsupported_error("no rule says what it computes from positions behind a length")
        self._trace = node.meta.get("stack_trace") or ""
        found = rule(OperatorStep(self, node))
        self._checked(node, found)
        self.known[node.name] = found

    def _checked(self, node: Node, found: Result) -> None:
        """Raise an error unless a rule's result has the extents that torch gives."""
        values = node.meta["val"]
        tensors = list(values) if isinstance(values, tuple | list) else [values]
        results = found if isinstance(found, tuple) else (found,)
        for tensor, result in zip(tensors, results, strict=False):
            extents = self.lengths.of(tensor)
            shape = upper_extents(extents, self.uppers)
            long = tuple(isinstance(n, DynamicExtent) for n in extents)
            apart = extents != result.extents or shape != tuple(result.node.meta["val"].shape)
            if apart or long != tuple(b is not None for b in result.behind):
                raise unsupported_error(
                    f"expected extents {list(map(str, extents))}, got {list(map(str, result.extents))}"
                )

    def emit(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Node:
        """Add a call of an operator to the bucket's graph."""
        made: Node = self.graph.call_function(target, tuple(args), dict(kwargs or {}))
        value = torch.fx.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
        try:
            with self._mode:
                made.meta["val"] = target(*value[0], **value[1])
        except Exception as error:  # torch raises various errors for extents that do not fit
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise unsupported_error(f"torch cannot compute it at the bucket's extents: {first}") from None
        made.meta["stack_trace"] = self._trace
        return made

    def mask(self, length: DynamicExtent, shape: Sequence[int]) -> Node:
        """Return the mask of a length, ones below and zeros behind, along the only dim of a shape that is not 1."""
        if length not in self.kept:
            upper = self.uppers[length]
            self.kept[length] = self._placeholder(f"kept_{len(self.kept)}", (upper,), (1,), torch.bool, self._device)
        return self.emit(_aten.view.default, (self.kept[length], list(shape)))

    def part(self, length: DynamicExtent, dtype: Any) -> Node:
        """Return 1 / length as a tensor of one element."""
        key = length, dtype
        if key not in self.parts:
            name = f"part_{len(self.parts)}"
            self.parts[key] = self._placeholder(name, (1,), (1,), dtype, self._device)
        return self.parts[key]


#: Operators that are not defined, or not finite, everywhere: they must not read padding that is only known to be
#: finite.
_PARTIAL: Final = frozenset(
    {
        "aten.log.default",
        "aten.log1p.default",
        "aten.sqrt.default",
        "aten.rsqrt.default",
        "aten.reciprocal.default",
        "aten.pow.Tensor_Scalar",
        "aten.xlogy.Tensor",
    }
)


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """One operator of the original graph, as a padding rule receives it.

    Attributes:
        bucket: The bucket's graph.
        node: The operator.
    """

    bucket: BucketGraph
    node: Node

    @property
    def given(self) -> dict[str, Any]:
        """Return the arguments by the schema's names; tensors are ``BucketTensor``.

        Raises:
            UnsupportedError: One is a number that depends on a length.
        """
        return {item.name: self._value(arg) for item, arg in self._arguments()}

    def _arguments(self) -> list[tuple[Any, Any]]:
        found = []
        for place, item in enumerate(self.node.target._schema.arguments):
            if place < len(self.node.args):
                found.append((item, self.node.args[place]))
            else:
                default = item.default_value if item.has_default_value() else None
                found.append((item, self.node.kwargs.get(item.name, default)))
        return found

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, Node):
            found = self.bucket.known.get(arg.name)
            if found is None:
                raise unsupported_error(
                    "expected tensors and numbers that are known, got a number that depends on a length"
                )
            return found
        if isinstance(arg, tuple | list):
            return [self._value(item) for item in arg]
        if isinstance(arg, torch.SymInt):
            raise unsupported_error("expected numbers that are known, got one that depends on a length")
        return arg

    def tensor(self, name: str) -> BucketTensor:
        """Return a tensor argument.

        Raises:
            UnsupportedError: It is none.
        """
        found = self.given[name]
        if not isinstance(found, BucketTensor):
            raise unsupported_error(f"expected a tensor as {name}")
        return found

    @property
    def tensors(self) -> list[BucketTensor]:
        """Return all tensor arguments, including those in lists."""
        found = [
            self.bucket.known[n.name] for n in self.node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)
        ]
        return [item for item in found if isinstance(item, BucketTensor)]

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Return the extents of the (first) result."""
        value = self.node.meta["val"]
        return self.bucket.lengths.of(value[0] if isinstance(value, tuple | list) else value)

    @property
    def shape(self) -> list[int]:
        """Return the extents of the (first) result in the bucket."""
        return list(upper_extents(self.extents, self.bucket.uppers))

    def call(self, changed: Mapping[str, Any] | None = None) -> Node:
        """Add the operator to the bucket's graph, with some arguments replaced."""
        given = {**self.given, **(changed or {})}
        names = [item.name for item, _ in self._arguments() if not item.kwarg_only]
        more = {item.name: to_graph_argument(given[item.name]) for item, _ in self._arguments() if item.kwarg_only}
        return self.bucket.emit(self.node.target, [to_graph_argument(given[name]) for name in names], more)

    def result(self, node: Node, behind: Behinds) -> BucketTensor:
        """Return the operator's result, with its content behind the lengths."""
        return BucketTensor(node, self.extents, behind)

    def joined(self, operands: Iterable[Behinds], *, product: bool = False) -> Behinds:
        """Return the padding content of an elementwise result.

        Args:
            operands: Padding contents of the operands, aligned at the last dim; None where an operand is broadcast.
            product: Whether zeros in one operand make zeros.

        Sound: the same function of the same values is the same value, so copies of the last position give copies of it;
        a product with zeros is zeros, because all else is finite.
        """
        rows: list[Behinds] = list(operands)
        found: list[PaddingContent | None] = []
        for back in range(len(self.extents), 0, -1):
            at = [row[-back] for row in rows if len(row) >= back and row[-back] is not None]
            if not isinstance(self.extents[-back], DynamicExtent):
                found.append(None)
            elif product and PaddingContent.ZERO in at:
                found.append(PaddingContent.ZERO)
            else:
                found.append(
                    PaddingContent.REPEATED if all(b is PaddingContent.REPEATED for b in at) else PaddingContent.OTHER
                )
        return tuple(found)

    def total(self, operands: Iterable[BucketTensor]) -> None:
        """Refuse operands with padding of unknown values or zeros, for operators that are not defined everywhere."""
        if any(b in (PaddingContent.OTHER, PaddingContent.ZERO) for item in operands for b in item.behind):
            raise unsupported_error("it is not finite everywhere, and what lies behind the length is not known")

    def masked(self, value: BucketTensor, dims: Iterable[int], number: float = 0.0) -> BucketTensor:
        """Return a tensor with its padding along some dims replaced by a number.

        Sound: below the lengths the mask has ones, so the value stays; behind, whatever was there is replaced.
        """
        found = value
        for dim in dims:
            at = dim % value.rank
            length = value.extents[at]
            if not isinstance(length, DynamicExtent) or (number == 0 and found.behind[at] is PaddingContent.ZERO):
                continue
            shape = [self.bucket.uppers[length] if d == at else 1 for d in range(value.rank)]
            mask = self.bucket.mask(length, shape)
            made = self.bucket.emit(_aten.where.ScalarOther, (mask, found.node, number))
            behind = [b if b is not PaddingContent.ZERO or number == 0 else PaddingContent.OTHER for b in found.behind]
            behind[at] = PaddingContent.ZERO if number == 0 else PaddingContent.OTHER
            found = BucketTensor(made, value.extents, tuple(behind))
        return found

    @property
    def partial(self) -> bool:
        """Return whether the operator is not finite everywhere."""
        return str(self.node.target) in _PARTIAL


Rule = Callable[[OperatorStep], Result]


def operator_results(step: OperatorStep, made: Any, behinds: Sequence[Behinds]) -> tuple[BucketTensor, ...]:
    """Return the results of an operator with several, each as a ``getitem``."""
    found = []
    for number, (tensor, behind) in enumerate(zip(step.node.meta["val"], behinds, strict=True)):
        item = step.bucket.graph.call_function(operator.getitem, (made, number))
        item.meta["val"] = made.meta["val"][number]
        found.append(BucketTensor(item, step.bucket.lengths.of(tensor), behind))
    return tuple(found)


def to_graph_argument(value: Any) -> Any:
    """Return an argument with nodes of the bucket's graph in place of ``BucketTensor`` tensors."""
    if isinstance(value, BucketTensor):
        return value.node
    return [to_graph_argument(item) for item in value] if isinstance(value, list) else value


__all__ = [
    "Behinds",
    "BucketGraph",
    "BucketTensor",
    "OperatorStep",
    "PaddingContent",
    "Result",
    "Rule",
    "operator_results",
    "to_graph_argument",
]
