"""Alias analysis of a torch graph: the tensors that share memory, and the results that must share it as in torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch.fx import GraphModule, Node

#: Operators that return their operand in evaluation, though the graph has a separate tensor for the result.
ITSELF: Final = frozenset({torch.ops.aten.dropout.default, torch.ops.aten.feature_dropout.default})


def owners(module: GraphModule) -> dict[str, str]:
    """Return, for each node with a tensor, the node that owns its memory: itself, or the base of a view.

    Args:
        module: A torch graph whose nodes have tensors without memory, as torch.export makes them.
    """
    found: dict[str, str] = {}
    first: dict[int, str] = {}
    for node in module.graph.nodes:
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            continue
        if node.target in ITSELF and not (node.args[2] and node.args[1]):
            found[node.name] = found[node.args[0].name]
        else:
            found[node.name] = first.setdefault(tensor.untyped_storage()._cdata, node.name)
    return found


def viewed_operand(node: Node, owned: Mapping[str, str]) -> Node | None:
    """Return the operand that a node is a view of; None if the node is no view.

    Args:
        node: The node.
        owned: As returned by ``owners``.
    """
    if owned.get(node.name, node.name) == node.name:
        return None
    same = (item for item in node.all_input_nodes if _owner(item, owned) == owned[node.name])
    return next(same, None)


def _owner(node: Node, owned: Mapping[str, str]) -> str | None:
    """Return the owner of a node's memory; for a node with several tensors, the owner of the operand that they view."""
    if node.name in owned or not isinstance(node.meta.get("val"), list | tuple):
        return owned.get(node.name)
    return next((owned[item.name] for item in node.all_input_nodes if item.name in owned), None)


def aliased_results(module: GraphModule, results: Sequence[str | None], owned: Mapping[str, str]) -> dict[str, str]:
    """Return the results that are views of memory in which another result lies, each with the owner of that memory.

    Such a result must be made as a view of the owner's tensor, and cannot be computed by itself.

    Args:
        module: The torch graph.
        results: Its results, including those that are written to state or arguments.
        owned: As returned by ``owners``.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    kept = list(dict.fromkeys(name for name in results if name is not None and name in owned))
    lying = Counter(owned[name] for name in kept)
    return {
        name: owned[name]
        for name in kept
        if owned[name] != name and lying[owned[name]] > 1 and nodes[owned[name]].op == "call_function"
    }


__all__ = ["ITSELF", "aliased_results", "owners", "viewed_operand"]
