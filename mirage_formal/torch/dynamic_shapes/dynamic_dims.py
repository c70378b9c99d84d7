"""Dynamic dims of a module's arguments: those that a user names, and those that must be equal to them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage_formal.support.errors import ShapeError, UnsupportedError
from mirage_formal.torch.capture import CapturedGraph, _separate_shared_arguments
from mirage_formal.torch.dynamic_shapes.dynamic_extents import (
    Buckets,
    DynamicExtent,
    DynamicExtents,
    Extent,
    buckets,
    dense_strides,
    stride_order,
)
from mirage_formal.torch.dynamic_shapes.guards import is_valid_at_one, lengths_failing_guards
from mirage_formal.torch.modules.function_plan import FunctionPlan, TensorForm
from mirage_formal.torch.modules.trace import FunctionModule, capture_with_structure

_HINT = "write shapes={'k': {2: (1, 4096, 128)}}, with the name or the number of an argument that is a tensor"

#: A dim of an argument: number of the tensor among all leaves of the arguments, and number of its dim.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DynamicForm(TensorForm):
    """Form required of an argument with dynamic dims: dense, with the memory order of dims as at the import.

    Attributes:
        extents: Its extents.
        order: Its dims, the outermost first.
    """

    extents: tuple[Extent, ...] = ()
    order: tuple[int, ...] = ()

    def fits(self, value: Any, place: Any = None) -> bool:
        """Return whether a value is such a tensor, for any lengths; see ``Form.fits``."""
        if not isinstance(value, torch.Tensor) or value.dtype is not self.dtype or value.dim() != len(self.extents):
            return False
        if value.device != (self.device if place is None else place) or value.layout is not torch.strided:
            return False
        if any(isinstance(n, int) and n != m for n, m in zip(self.extents, value.shape, strict=True)):
            return False
        strides = dense_strides(value.shape, self.order)
        return all(n <= 1 or a == b for n, a, b in zip(value.shape, value.stride(), strides, strict=True))

    def __str__(self) -> str:
        extents = ", ".join(str(n) for n in self.extents)
        return f"{self.dtype} of [{extents}] without gaps, dims in the order {list(self.order)}, on {self.device}"


@dataclass(eq=False)
class DynamicPlan(FunctionPlan):
    """A plan for calls with dynamic lengths.

    Attributes:
        buckets: Supported lengths of each symbol.
        without: Lengths among these, of each symbol, for which the import does not hold.
    """

    buckets: tuple[tuple[str, Buckets], ...] = ()
    without: tuple[tuple[str, frozenset[int]], ...] = ()

    def _unfit(self, leaves: Sequence[Any], place: Any) -> str:
        return super()._unfit(leaves, place) or self._apart_from_buckets(leaves)

    def _apart_from_buckets(self, leaves: Sequence[Any]) -> str:
        known: dict[str, int] = {}
        for number, (value, wanted) in enumerate(zip(leaves, self.leaves, strict=True), 1):
            if not isinstance(wanted, DynamicForm):
                continue
            for dim, extent in enumerate(wanted.extents):
                if isinstance(extent, DynamicExtent):
                    found = value.shape[dim] - extent.more
                    if known.setdefault(extent.symbol, found) != found:
                        return f"argument {number}: expected extent {known[extent.symbol] + extent.more} of dim {dim}"
        for symbol, where in self.buckets:
            if where.upper(known[symbol]) is None:
                return f"a length outside of the buckets: expected {where}, got {known[symbol]}"
        for symbol, without in self.without:
            if known[symbol] in without:
                return f"a length at which the module does something else: {known[symbol]}"
        return ""


@dataclass(frozen=True)
class DynamicTrace:
    """A module's forward with dynamic dims.

    Attributes:
        captured: Its graph.
        out: Structure of its return value.
        stops: Whether it stops gradients.
        lengths: The graph's lengths.
        buckets: Buckets of each symbol.
        forms: Required forms of the arguments with dynamic dims, by their numbers.
        without: Lengths of each symbol at which the module takes another path.
    """

    captured: CapturedGraph
    out: Any
    stops: bool
    lengths: DynamicExtents
    buckets: Mapping[str, Buckets]
    forms: Mapping[int, DynamicForm]
    without: Mapping[str, frozenset[int]]


def trace_dynamic(module: Any, given: tuple[tuple[Any, ...], dict[str, Any]], shapes: Any) -> DynamicTrace:
    """Return a module's graph for arguments with dynamic dims.

    Args:
        module: The module.
        given: Its positional and keyword arguments.
        shapes: (lowest, highest, step) by name or number of an argument, then by dim.

    Returns:
        The graph, in which dims that the module requires to be equal to named ones are dynamic too.

    Raises:
        ShapeError: Shapes are not of that form, or the module needs one extent.
        UnsupportedError: torch.export has no graph of it.
    """
    args, kwargs = _separate_shared_arguments(module, given)
    given = args, kwargs
    leaves, _ = pytree.tree_flatten(given)
    named = _named_dims(module, given, leaves, shapes)
    extents = {leaves[leaf].shape[dim] for leaf, dim in named}
    near = {n + more for n in extents for more in (-1, 0, 1)}
    tensors = {i: x for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)}
    wide = {(i, d) for i, x in tensors.items() for d, n in enumerate(x.shape) if n in near and n > 1}
    follow = set(named)
    if wide - follow:
        try:
            follow = _equal_dims(_captured(module, given, leaves, wide | follow), leaves, named)
        except UnsupportedError:
            follow = set(named)  # some of the other dims cannot be dynamic
    found = _captured(module, given, leaves, follow)
    captured, out, stops = found
    lengths, tensors = DynamicExtents(captured.module.graph), _tensors(captured, leaves)
    symbols: dict[str, Buckets] = {}
    for (leaf, dim), where in named.items():
        label = f"dim {dim} of argument {leaf + 1}"
        extent = lengths.of(tensors[leaf])[dim]
        if not isinstance(extent, DynamicExtent) or extent.more:
            text = f"shapes: expected an extent that may vary, but the module needs {extent}"
            raise ShapeError(text, where=label, hint="name the dims of the other arguments that depend on it as well")
        _expect_lengths(tensors[leaf].shape[dim], where, label)
        if symbols.setdefault(extent.symbol, where) != where:
            text = (
                f"shapes: expected the same buckets for dims that are equal, got {where} and {symbols[extent.symbol]}"
            )
            raise ShapeError(text, where=label, hint="name one of them only")
    forms = {}
    for leaf, tensor in tensors.items():
        own = lengths.of(tensor)
        if any(isinstance(n, DynamicExtent) for n in own):
            plain = TensorForm.of(leaves[leaf])
            order = stride_order(leaves[leaf])
            forms[leaf] = DynamicForm(plain.shape, plain.strides, plain.dtype, plain.device, own, order)
    return DynamicTrace(
        captured, out, stops, lengths, symbols, forms, _failing_lengths(found, lengths, symbols, module, given, forms)
    )


def _failing_lengths(
    found: tuple[CapturedGraph, Any, bool],
    lengths: DynamicExtents,
    symbols: Mapping[str, Buckets],
    module: Any,
    given: Any,
    forms: Mapping[int, DynamicForm],
) -> dict[str, frozenset[int]]:
    """Return the lengths of each symbol for which the graph is not the module's."""
    wanted = {symbol: range(max(where.lowest, 2), where.highest + 1) for symbol, where in symbols.items()}
    failed = lengths_failing_guards(found[0], lengths, wanted)
    short = [symbol for symbol, where in symbols.items() if where.lowest == 1]
    if short and not _holds_at_one(found[0], module, given, forms):
        failed |= {symbol: failed[symbol] | {1} for symbol in short}
    return failed


def _holds_at_one(captured: CapturedGraph, module: Any, given: Any, forms: Mapping[int, DynamicForm]) -> bool:
    """Return whether the graph is valid for lengths of 1."""
    leaves, spec = pytree.tree_flatten(given)
    for leaf, form in forms.items():
        for dim, extent in enumerate(form.extents):
            if isinstance(extent, DynamicExtent):
                leaves[leaf] = leaves[leaf].narrow(dim, 0, min(1 + extent.more, leaves[leaf].shape[dim]))
        strides = dense_strides(leaves[leaf].shape, form.order)
        made = torch.empty_strided(leaves[leaf].shape, strides, dtype=form.dtype, device=form.device)
        leaves[leaf] = made.copy_(leaves[leaf])
    try:
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return is_valid_at_one(captured, capture_with_structure(module, args, kwargs)[0])
    except UnsupportedError:
        return False


def _captured(module: Any, given: Any, leaves: Sequence[Any], places: set[Place]) -> tuple[CapturedGraph, Any, bool]:
    wanted = torch.export.ShapesCollection()
    for leaf in sorted({leaf for leaf, _ in places}):
        wanted[leaves[leaf]] = {dim: torch.export.Dim.AUTO for other, dim in sorted(places) if other == leaf}
    args, kwargs = given
    return capture_with_structure(module, args, kwargs, wanted)


def _tensors(captured: CapturedGraph, leaves: Sequence[Any]) -> dict[int, Any]:
    """Return the tensors of the graph's arguments, by the numbers of the leaves."""
    nodes = [n for n in captured.module.graph.nodes if n.op == "placeholder"]
    values = [n.meta.get("val") for n in nodes if captured.arguments.get(n.name, "argument").startswith("argument")]
    assert len(values) == len(leaves), "torch.export has a placeholder for each argument"
    return {i: value for i, value in enumerate(values) if isinstance(value, torch.Tensor)}


def _equal_dims(
    found: tuple[CapturedGraph, Any, bool], leaves: Sequence[Any], named: Mapping[Place, Buckets]
) -> set[Place]:
    """Return the named dims and all dims that are equal to them."""
    captured = found[0]
    lengths, tensors = DynamicExtents(captured.module.graph), _tensors(captured, leaves)
    symbols = {n.symbol for leaf, dim in named if isinstance(n := lengths.of(tensors[leaf])[dim], DynamicExtent)}
    follow = set(named)
    for leaf, tensor in tensors.items():
        for dim, extent in enumerate(lengths.of(tensor)):
            if isinstance(extent, DynamicExtent) and extent.symbol in symbols:
                follow.add((leaf, dim))
    return follow


def _expect_lengths(number: Any, where: Buckets, label: str) -> None:
    """Raise an error unless the module accepts all lengths of the buckets."""
    bounds = number.node.shape_env.var_to_range[number.node.expr]
    low, high = max(where.lowest, 2), where.highest
    if not (bounds.lower <= low and high <= bounds.upper):
        text = f"shapes: expected lengths that the module takes, {bounds.lower} to {bounds.upper}, got {where}"
        raise ShapeError(text, where=label, hint="give buckets within these lengths")


def _named_dims(
    module: Any, given: tuple[tuple[Any, ...], dict[str, Any]], leaves: Sequence[Any], shapes: Any
) -> dict[Place, Buckets]:
    """Return the dims that a user names, with their buckets."""
    if not isinstance(shapes, Mapping) or not shapes:
        raise ShapeError(f"expected shapes as a dict, got {shapes!r}", where="shapes", hint=_HINT)
    args, kwargs = given
    function = module.function if isinstance(module, FunctionModule) else type(module).forward
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    names = names if isinstance(module, FunctionModule) else names[1:]
    places = {id(x): i for i, x in enumerate(leaves)}
    found: dict[Place, Buckets] = {}
    for key, dims in shapes.items():
        where = f"shapes[{key!r}]"
        value = kwargs.get(key) if isinstance(key, str) else None
        number = names.index(key) if isinstance(key, str) and value is None and key in names else key
        if value is None and isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(args):
            value = args[number]
        if not isinstance(value, torch.Tensor):
            raise ShapeError(f"expected an argument that is a tensor, got {key!r}", where=where, hint=_HINT)
        if not isinstance(dims, Mapping) or not dims:
            raise ShapeError(f"expected buckets by the numbers of dims, got {dims!r}", where=where, hint=_HINT)
        for dim, wanted in dims.items():
            if not isinstance(dim, int) or not -value.dim() <= dim < value.dim():
                text = f"expected a dim of {list(value.shape)}, got {dim!r}"
                raise ShapeError(text, where=where, hint=_HINT)
            if value.shape[dim] < 2:
                text = f"expected an example of at least 2 positions, got {list(value.shape)}"
                raise ShapeError(text, where=where, hint="give arguments of a length that is not 1")
            found[places[id(value)], dim % value.dim()] = buckets(wanted, f"{where}[{dim}]")
    return found


__all__ = ["DynamicForm", "DynamicPlan", "DynamicTrace", "trace_dynamic"]
