"""Rewritten torch graphs, whose regions are computed by torch from the programs, compared with what was imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.torch.import_result import Imported
from mirage_formal.torch.modules.eager import torch_program
from mirage_formal.torch.modules.rewrite import rewrite
from tests.kit.torch.compare import widened


def compare_rewritten(imported: Imported, call: Callable[..., Any], arguments: Sequence[Any], tolerance: float) -> None:
    """Compare the rewritten graph with the call, in float64; inputs of programs must lie as the programs say."""
    graph = rewrite(imported, {number: _operator(region.program) for number, region in enumerate(imported.regions)})
    module = GraphModule(torch.nn.Module(), graph)
    flat = iter(widened(tree_leaves(tuple(arguments))))
    given = []
    for node in graph.nodes:
        if node.op == "placeholder":
            constant = imported.given.get(node.name)
            given.append(next(flat) if constant is None else widened([constant])[0])
    with torch.no_grad():
        found = module(*given)
        wanted = tree_leaves(call(*torch.utils._pytree.tree_map(lambda x: widened([x])[0], arguments)))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, check_dtype=False)


def _operator(program: KernelGraph) -> Callable[..., Any]:
    function = torch_program(program)

    def compute(*tensors: Any) -> Any:
        for tensor, item in zip(tensors, program.inputs, strict=True):
            assert tuple(tensor.shape) == item.tensor.shape
            alike = zip(tensor.shape, tensor.stride(), item.strides, strict=True)
            assert all(n <= 1 or a == b for n, a, b in alike), (tensor.stride(), item)
        found = function(*tensors)
        return found[0] if len(found) == 1 else found

    return compute
