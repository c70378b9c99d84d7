"""What an import computes, as tensors of torch: its programs in float64, everything else by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage_formal.semantics.reference import run
from mirage_formal.torch.import_result import Imported, Region


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
