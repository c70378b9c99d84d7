"""What an import computes in the element types of the module, beside what torch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mirage_formal.meaning.typed import run_typed
from mirage_formal.torch.imported import Imported, Region
from tests.kit.torch.compare import computed

#: Relative and absolute, for results of each element type.
TOLERANCES = {torch.float16: (4e-3, 1e-5), torch.bfloat16: (3e-2, 1e-5), torch.float32: (2e-5, 1e-6)}


def typed(imported: Imported, arguments: Sequence[Any]) -> list[Any]:
    """The results of an import, in order; ``arguments`` are its tensors, flattened."""
    return computed(imported, arguments, region_typed)


def region_typed(region: Region, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors that one region gives."""
    arrays = [x.detach().float().numpy() for x in region.read(tensors)]
    found = [torch.from_numpy(np.array(x, order="C")) for x in run_typed(region.program, arrays, stored=False)]
    return {output.node: output.present(found) for output in region.outputs}


def faults(mine: Any, theirs: Any) -> str:
    """Where a result breaks the contract; nothing if it does not.

    Where torch is finite it is finite and near; where torch has NaN or an infinity, it has no other number.
    """
    relative, absolute = TOLERANCES[theirs.dtype]
    a, b = mine.detach().double(), theirs.detach().double()
    assert a.shape == b.shape
    wrong = torch.where(b.isnan(), ~a.isnan(), ~torch.isclose(a, b, relative, absolute))
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{int(wrong.sum())} of {wrong.numel()} differ, first {place}: expected {b[place]}, got {a[place]}"
