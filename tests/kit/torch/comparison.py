"""What an import computes, compared with torch: in float64, rewritten into graphs of torch, or in element types.

Programs are computed in float64 and everything else by torch; regions of rewritten graphs are computed by torch from
the programs; results in the element types of the module are held to the contract of docs/torch.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.float64_reference import run
from mirage_formal.semantics.typed_evaluation import run_typed
from mirage_formal.torch import from_torch
from mirage_formal.torch.comparison.contract import ExpectedResult, difference
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch
from mirage_formal.torch.import_result import Imported, Region
from mirage_formal.torch.modules.eager_execution import torch_program
from mirage_formal.torch.modules.graph_rewriter import rewrite


def computed(
    imported: Imported,
    arguments: Sequence[Any],
    run_one: Callable[[Region, dict[str, Any]], dict[str, Any]] | None = None,
) -> list[Any]:
    """The results of an import, in order.

    Args:
        imported: The import.
        arguments: Its tensors, flattened.
        run_one: Computes the tensors that a region gives; in float64 if left out.
    """
    placeholders = [name for name in imported.arguments if name not in imported.given]
    known: dict[str, Any] = dict(zip(placeholders, arguments, strict=True))
    left = list(imported.regions)
    while left:
        region = next(item for item in left if ready(item, imported, known, left))
        left.remove(region)
        tensors = imported.tensors({item.node for item in region.inputs}, known)
        known.update((run_one or one)(region, tensors))
    names = [name for name in imported.results if name is not None]
    return list(imported.tensors(names, known).values())


def ready(region: Region, imported: Imported, known: dict[str, Any], left: Sequence[Region]) -> bool:
    """Whether nothing that a region reads waits for another region."""
    made = {output.node for other in left if other is not region for output in other.outputs}
    nodes = {node.name: node for node in imported.module.graph.nodes}
    stack, seen = [item.node for item in region.inputs], set[str]()
    while stack:
        name = stack.pop()
        if name in made:
            return False
        if name not in seen and name not in known and name in nodes:
            seen.add(name)
            stack += [node.name for node in nodes[name].all_input_nodes]
    return True


def one(region: Region, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors that one region gives."""
    import torch

    given = dict(tensors)
    for item in region.inputs:  # what torch has computed in float64 may be read
        given[item.node] = given[item.node].to(getattr(torch, item.dtype.value))
    arrays = [tensor.detach().to(torch.float64).numpy() for tensor in region.read(given)]
    for item, declared in zip(region.inputs, region.program.inputs, strict=True):
        assert item.name == declared.name
    results = [torch.from_numpy(np.array(array, order="C")) for array in run(region.program, arrays)]
    return {output.node: output.present(results) for output in region.outputs}


def widened(values: Sequence[Any]) -> list[Any]:
    """Tensors with their floating-point numbers in float64."""
    return [value.double() if value.is_floating_point() else value for value in values]


def compare(imported: Imported, call: Callable[..., Any], arguments: Sequence[Any], tolerance: float) -> None:
    """Assert that an import computes what torch computes in float64.

    Args:
        imported: The import of ``call``, or of the same in a narrower type.
        call: What torch calls.
        arguments: Its arguments, all of them tensors.
        tolerance: Of the largest difference, as a part of the largest element.
    """
    import torch

    with torch.no_grad():
        wanted = call(*widened(arguments))
    wanted = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    found = computed(imported, arguments)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape
        largest = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
        difference = float((mine.detach().double() - theirs.detach().double()).abs().max())
        assert difference <= tolerance * max(largest, 1.0), (difference, largest)


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
        for tensor, item in zip(tensors, (one for one in program.inputs if one.band is None), strict=True):
            assert tuple(tensor.shape) == item.tensor.shape
            alike = zip(tensor.shape, tensor.stride(), item.strides, strict=True)
            assert all(n <= 1 or a == b for n, a, b in alike), (tensor.stride(), item)
        found = function(*tensors)
        return found[0] if len(found) == 1 else found

    return compute


TYPES = (torch.float16, torch.bfloat16, torch.float32)


def typed(imported: Imported, arguments: Sequence[Any]) -> list[Any]:
    """The results of an import, in order; ``arguments`` are its tensors, flattened."""
    return computed(imported, arguments, region_typed)


def region_typed(region: Region, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors that one region gives."""
    arrays = [x.detach().float().numpy() for x in region.read(tensors)]
    program = region.program
    dtypes = [getattr(torch, kernel_types(program)[number].dtype.value) for number in program.outputs]
    results = run_typed(program, arrays, stored=False)
    found = [torch.from_numpy(np.array(x, order="C")).to(t) for x, t in zip(results, dtypes, strict=True)]
    return {output.node: output.present(found) for output in region.outputs}


def held(call: Callable[..., Any], *given: Any, rounding: str = "fused", moved: bool = True) -> Imported:
    """Import a function whole, and assert that it keeps the contract on these tensors.

    Args:
        call: The function.
        given: Its arguments, all of them tensors.
        rounding: Of the import.
        moved: Whether random roundings say what may be off; torch may refuse the numbers that these make.

    Returns:
        The import.
    """
    found = from_torch(call, given, rounding=rounding)
    assert found.graph is not None, found.report()
    if not moved:
        own, exact = call(*given), call(*widened(given))
        (mine,) = typed(found, given)
        broken = difference(mine, ExpectedResult(own, exact, (exact,)))
        assert broken is None, str(broken)
        return found
    comparison = compare_with_torch(found, arguments_of(found, given), ())
    assert not comparison.faults, str(comparison.faults[0])
    assert comparison.sets == {0: 1}
    return found
