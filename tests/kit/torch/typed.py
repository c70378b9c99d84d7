"""What an import computes in the element types of the module, held to the contract of docs/torch.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mirage_formal.graph.check import kernel_types
from mirage_formal.semantics.typed import run_typed
from mirage_formal.torch import from_torch
from mirage_formal.torch.comparison.compare import arguments_of, compare_with_torch
from mirage_formal.torch.comparison.contract import Expected, difference
from mirage_formal.torch.import_result import Imported, Region
from tests.kit.torch.compare import computed, widened

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
        broken = difference(mine, Expected(own, exact, (exact,)))
        assert broken is None, str(broken)
        return found
    comparison = compare_with_torch(found, arguments_of(found, given), ())
    assert not comparison.faults, str(comparison.faults[0])
    assert comparison.sets == {0: 1}
    return found
