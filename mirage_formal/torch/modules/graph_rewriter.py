"""Rewriting of torch graphs: operators made of candidates compute regions, and torch everything else."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from mirage_formal.graph.types import row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.analysis.aliases import ITSELF, owners, viewed_operand
from mirage_formal.torch.import_result import Binding, Imported, Output, Region
from mirage_formal.torch.modules.custom_operators import expect_conditions

_aten = torch.ops.aten


def rewrite(
    imported: Imported, chosen: Mapping[int, Any], *, guard: bool = False, all_constants: bool = False
) -> Graph:
    """Return the torch graph of an import with some of its regions computed by operators.

    Args:
        imported: The import.
        chosen: Operators by the numbers of the regions that they compute.
        guard: Whether the graph raises ``conditions.UnmetConditionError`` where a condition of a region does not hold.
            It has written nothing then.
        all_constants: Whether constants that nothing reads keep their placeholders, so that all graphs of an import
            have the same ones.

    Returns:
        A graph with a placeholder for each entry of ``imported.arguments``, by its name and in order, and for each that
        is no tensor; without ``all_constants``, constants that nothing reads have none. Its result is the list of the
        module's results. The
        module's writes are part of the graph.

    Raises:
        UnsupportedError: The torch graph calls graphs of its own.
    """
    graph = _Rewrite(imported, chosen, guard=guard).run()
    for node in graph.find_nodes(op="placeholder"):
        if not all_constants and imported.arguments.get(node.name) == "constant" and not node.users:
            graph.erase_node(node)
    return graph


def region_alone(imported: Imported, number: int, chosen: Mapping[int, Any]) -> tuple[Graph, list[Any]]:
    """Return one region as a graph of its own, and a tensor for each of its placeholders, mostly without memory.

    Args:
        imported: The import.
        number: The region's number.
        chosen: Operators by the numbers of regions; without one for this region, torch computes it.
    """
    return _Rewrite(imported, chosen).alone(number)


class _Rewrite:
    def __init__(self, imported: Imported, chosen: Mapping[int, Any], *, guard: bool = False) -> None:
        self._imported = imported
        self._guard = guard
        self._chosen = chosen
        self._nodes: dict[str, Node] = {node.name: node for node in imported.module.graph.nodes}
        regions = {number: imported.regions[number] for number in chosen}
        self._made = {output.node: number for number, region in regions.items() for output in region.outputs}
        self._inside = {name for region in regions.values() for name in region.nodes}
        self._graph = Graph()
        self._known: dict[str, Node] = {}
        self._in_place: dict[str, Any] = {}
        self._written: dict[str, Node] = {}
        self._copied: set[str] = set()
        self._owned = owners(imported.module)

    def run(self) -> Graph:
        placeholders = [node.name for node in self._nodes.values() if node.op == "placeholder"]
        for name in (*placeholders, *(name for name in self._imported.arguments if name not in placeholders)):
            self._known[name] = self._graph.placeholder(name)
        checks = {note.node for note in self._imported.notes}
        (results,) = (node.args[0] for node in self._nodes.values() if node.op == "output")
        if not self._guard:  # otherwise all writes come after all regions
            self._in_place = dict(filter(None, (self._replaced(*pair) for pair in self._targets(results))))
        self._copied = {target for result, target in self._targets(results) if result.name not in self._in_place}
        for name, node in self._nodes.items():
            if node.op == "get_attr":
                raise UnsupportedError("expected a graph of operators, got one that calls other graphs", where=name)
            if node.op == "call_function" and name not in self._inside and name not in checks:
                self._compute(name)
        for result in results:
            if isinstance(result, Node):
                self._compute(result.name)
        for result, target in self._targets(results):
            if result.name not in self._in_place:
                self._call(_aten.copy_.default, self._known[target], self._known[result.name])
                self._written[result.name] = self._known[target]
        self._graph.output(self._apart(results[len(self._imported.writes) :]))
        self._graph.eliminate_dead_code()
        self._graph.lint()
        return self._graph

    def alone(self, number: int) -> tuple[Graph, list[Any]]:
        """Implement the module's function ``region_alone``."""
        region = self._imported.regions[number]
        inputs: list[Any] = []
        # Torch may read more nodes, such as a view of a region's input that is also used outside.
        read = {item.node for item in region.passed_inputs}
        stack, seen = [output.node for output in region.outputs], set()
        while stack:
            name = stack.pop()
            if name in seen or name in read:
                continue
            seen.add(name)
            if self._nodes[name].op == "placeholder":
                read.add(name)
            stack += [node.name for node in self._nodes[name].all_input_nodes]
        places = {self._nodes[name].meta["val"].device for name in read if name in self._nodes}
        for name in sorted(read):
            known = name in self._nodes
            inputs.append(self._nodes[name].meta["val"] if known else self._imported.given[name].to(*places))
            self._known[name] = self._graph.placeholder(name)
        for output in region.outputs:
            self._compute(output.node)
        self._graph.output([self._known[output.node] for output in region.outputs])
        self._graph.lint()
        return self._graph, inputs

    def _compute(self, wanted: str) -> None:
        """Add a node and everything that it needs to the graph; iterative, because graphs are deep."""
        stack = [wanted]
        while stack:
            name = stack[-1]
            if name in self._known:
                stack.pop()
                continue
            number = self._made.get(name)
            if number is None:
                needed = [node.name for node in self._nodes[name].all_input_nodes]
            else:
                needed = [item.node for item in self._imported.regions[number].passed_inputs]
            missing = [n for n in needed if n not in self._known]
            if missing:
                stack += missing
                continue
            stack.pop()
            if number is not None:
                self._region(self._imported.regions[number], self._chosen[number])
            elif name in self._in_place:
                node = self._nodes[name]
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda node: self._known[node.name])
                self._known[name] = self._graph.call_function(self._in_place[name], args, kwargs)
            else:
                self._known[name] = self._graph.node_copy(self._nodes[name], lambda node: self._known[node.name])

    def _apart(self, results: Sequence[Any]) -> list[Any]:
        """Return the results: views of written memory as in the module, and as many distinct tensors as in torch.

        Sound: a tensor that is a view of what was written is made again as the same views of where it was written to.
        Two results that lie apart in torch and in one tensor here, as a copy and what it is a copy of, are two.
        """
        found: list[Any] = []
        lying: dict[Node, str] = {}
        for result in results:
            if not isinstance(result, Node):
                found.append(result)
                continue
            made = self._remake_view(result)
            root, own = _root(made), self._owned.get(result.name, result.name)
            own = f"written {own}" if made is not self._known[result.name] else own
            if lying.setdefault(root, own) != own:
                made = self._call(_aten.clone.default, made)
            found.append(made)
        return found

    def _remake_view(self, result: Node) -> Node:
        """Return a result; a view of a written value becomes a view of the argument or buffer that was written."""
        chain: list[Node] = []
        node: Node | None = result
        while node is not None and node.name not in self._written:
            chain.append(node)
            node = viewed_operand(node, self._owned)
        if node is None:
            return self._known[result.name]
        made = {node: self._written[node.name]}
        for view in reversed(chain):
            made[view] = self._graph.node_copy(
                view, lambda item: made[item] if item in made else self._known[item.name]
            )
        return made[result]

    def _targets(self, results: Sequence[Any]) -> list[tuple[Node, str]]:
        """Return the results that are written, each with the placeholder that it is written to."""
        return list(zip(results, mutated_inputs(self._imported), strict=False))

    def _replaced(self, result: Node, target: str) -> tuple[str, Any] | None:
        """Return the in-place operator that writes a result to its target directly, as the module does, or None.

        Sound: nothing else reads what was there before.
        """
        node = self._nodes[target]
        if not isinstance(result.target, torch._ops.OpOverload) or result.args[:1] != (node,) or len(node.users) > 1:
            return None
        namespace, name = result.target._schema.name.split("::")
        packet = getattr(getattr(torch.ops, namespace), f"{name}_", None)
        found = getattr(packet, result.target._overloadname, None)
        if found is None or result.name in self._made or result.name in self._inside:
            return None
        same = [a.name for a in found._schema.arguments] == [a.name for a in result.target._schema.arguments]
        return (result.name, found) if same and self._occurs_once(result, node) else None

    @staticmethod
    def _occurs_once(user: Node, node: Node) -> bool:
        return sum(arg is node for arg in (*user.args, *user.kwargs.values())) == 1

    def _region(self, region: Region, overload: Any) -> None:
        given = [self._read(item) for item in region.passed_inputs]
        if self._guard:
            self._call(expect_conditions, overload._schema.name.partition("::")[2], *given)
        found = self._call(overload, *given)
        count = len(region.program.outputs)
        results = [found] if count == 1 else [self._call(operator.getitem, found, i) for i in range(count)]
        for output in region.outputs:
            self._known[output.node] = self._present(output, results[output.number])

    def _read(self, item: Binding) -> Node:
        layout, node = item.layout, self._known[item.node]
        if self._owned.get(item.node) in self._copied:  # its write comes after all regions
            node = self._call(keep_before_write, node)
        source = MemoryLayout(node, item.shape, item.strides, item.node in self._imported.arguments)
        return self._laid(source, layout.shape, layout.strides, layout.offset)

    def _present(self, output: Output, node: Node) -> Node:
        shape = self._dense_shape(output)
        return self._laid(MemoryLayout(node, shape, row_major(shape), True), output.shape, output.strides, 0)

    def _dense_shape(self, output: Output) -> tuple[int, ...]:
        number = self._made[output.node]
        program = self._imported.regions[number].program
        return tuple(kernel_types(program)[program.outputs[output.number]].shape)

    def _laid(self, source: MemoryLayout, shape: Sequence[int], strides: Sequence[int], offset: int) -> Node:
        """Return another view of the memory of a tensor.

        It is made of permutations, views and expansions where possible, because torch.compile and autograd handle these
        better than ``as_strided``.
        """
        node, span = source.node, 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if not prod(shape) or _is_same_view(source, shape, strides, offset):
            return node
        dims = [d for d, n in enumerate(source.shape) if n > 1 and source.strides[d]]
        for d in reversed(range(len(source.shape))):
            if d not in dims:
                node = self._call(_aten.select.int, node, d, 0)
        order = sorted(range(len(dims)), key=lambda i: -source.strides[dims[i]])
        extents = [source.shape[dims[i]] for i in order]
        if [source.strides[dims[i]] for i in order] != list(row_major(tuple(extents))):
            return self._call(restride, source.node, list(source.strides), list(shape), list(strides), offset)
        if order != sorted(order):
            node = self._call(_aten.permute.default, node, order)
        if not source.sure:
            node = self._call(_aten.contiguous.default, node)
        wide = [d for d, n in enumerate(shape) if n > 1 and strides[d]]
        wide.sort(key=lambda d: -strides[d])
        ordered, steps = [shape[d] for d in wide], [strides[d] for d in wide]
        if span != prod(extents):
            node = self._call(_aten.view.default, node, [-1])
            node = self._call(_aten.slice.Tensor, node, 0, offset, offset + span)
            extents = [span]
        if steps != list(row_major(tuple(ordered))):
            node = self._call(_aten.view.default, node, [-1])
            node = self._call(_aten.as_strided.default, node, ordered, steps)
        elif ordered != extents:
            node = self._call(_aten.view.default, node, ordered)
        back = [wide.index(d) for d in sorted(wide)]
        if back != sorted(back):
            node = self._call(_aten.permute.default, node, back)
        for d in range(len(shape)):
            if d not in wide:
                node = self._call(_aten.unsqueeze.default, node, d)
        if any(shape[d] > 1 for d in range(len(shape)) if d not in wide):
            node = self._call(_aten.expand.default, node, list(shape))
        return node

    def _call(self, target: Any, *args: Any) -> Node:
        return self._graph.call_function(target, args)


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """A node and the memory layout of its tensor.

    Attributes:
        node: The node.
        shape: The tensor's extents.
        strides: Its strides, in elements.
        sure: Whether the strides are certain; torch's own results may have other strides than at the import.
    """

    node: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sure: bool


def _root(node: Node) -> Node:
    """Return the node that owns the memory of a tensor in a rewritten graph.

    The results of an operator are ``getitem`` nodes; those of a view operator are parts of the viewed tensor.
    """
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        first = node.args[0]
        parts = node.target is operator.getitem and _is_view(first.target)
        if not (parts or node.target is restride or _is_view(node.target)):
            break
        node = first
    return node


def _is_view(target: Any) -> bool:
    """Return whether an operator may return a view of its first operand."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    returns = target._schema.returns
    return (bool(returns) and returns[0].alias_info is not None) or target in ITSELF


def mutated_inputs(imported: Imported) -> list[str]:
    """Return the placeholders that a module writes, in the order of ``imported.writes``."""
    names: dict[str, str] = {}
    for name, what in imported.arguments.items():
        names.setdefault(what, name)
    # Arguments of a graph of Dynamo's are named after its placeholders, and written by their numbers.
    for number, name in enumerate((name for name in imported.arguments if name not in imported.given), 1):
        names.setdefault(f"argument {number}", name)
    return [names[what] for what in imported.writes]


def keep_before_write(tensor: Any) -> Any:
    """Return a tensor that is unaffected by later writes to its memory: a copy where gradients are recorded."""
    if not torch.is_grad_enabled():
        return tensor
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def restride(tensor: Any, own: Sequence[int], shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Return another view of the memory of a tensor that has gaps in it.

    Args:
        tensor: The tensor; one with other strides is copied.
        own: Its required strides.
        shape: The extents of the view.
        strides: Its strides, in elements.
        offset: Its first element, counted from the tensor's first.
    """
    if any(n > 1 and a != b for n, a, b in zip(tensor.shape, tensor.stride(), own, strict=True)):
        tensor = torch.empty_strided(tensor.shape, own, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _is_same_view(source: MemoryLayout, shape: Sequence[int], strides: Sequence[int], offset: int) -> bool:
    alike = source.shape == tuple(shape) and offset == 0
    return alike and all(n == 1 or a == b for n, a, b in zip(shape, source.strides, strides, strict=True))


__all__ = ["keep_before_write", "mutated_inputs", "region_alone", "restride", "rewrite"]
