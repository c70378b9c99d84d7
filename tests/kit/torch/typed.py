"""What an import computes in the element types of the module: each tensor is rounded to what it is stored as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import Op
from mirage_formal.graph.types import DType
from mirage_formal.meaning.operators import RULES, Level, Value
from mirage_formal.meaning.reference import FloatDomain
from mirage_formal.torch.imported import Imported, Region
from tests.kit.torch.compare import computed

#: Relative and absolute, for results of each element type.
TOLERANCES = {torch.float16: (4e-3, 1e-5), torch.bfloat16: (3e-2, 1e-5), torch.float32: (2e-5, 1e-6)}


def typed(imported: Imported, arguments: Sequence[Any]) -> list[Any]:
    """The results of an import, in order; ``arguments`` are its tensors, flattened."""
    return computed(imported, arguments, region_typed)


def region_typed(region: Region, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors that one region gives: every operator in float64, its result rounded to its element type.

    Results that torch has in float32 inside of its operators are rounded to float32, as kernels do.
    """
    program = region.program
    types = [item.tensor.dtype for item in program.inputs]
    given = [item.read(tensors[item.node]).detach().to(torch.float64).numpy() for item in region.inputs]
    values = [Value(np.asarray(a), (), s.tensor.shape) for a, s in zip(given, program.inputs, strict=True)]
    every = kernel_types(program)
    level: Level[Any] = Level(FloatDomain(), None)
    with np.errstate(all="ignore"):
        for op in program.ops:
            assert isinstance(op, Op)
            for result in RULES[op.kind](level, op.attrs, tuple(values[n] for n in op.operands)):
                number = len(values)
                dtype = DType.FLOAT32 if number in region.wide else every[number].dtype
                values.append(Value(rounded(result.value, dtype), (), result.shape))
                types.append(dtype)
    results = []
    for number in program.outputs:
        array = np.array(np.broadcast_to(values[number].value, every[number].shape), order="C")
        results.append(torch.from_numpy(array).to(getattr(torch, every[number].dtype.value)))
    return {output.node: output.present(results) for output in region.outputs}


def rounded(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Float64 numbers rounded to an element type; masks are 0 and 1 already."""
    if not dtype.floating:
        return array
    found: NDArray[Any] = torch.from_numpy(np.array(array)).to(getattr(torch, dtype.value)).double().numpy()
    return found


def faults(mine: Any, theirs: Any, tolerance: tuple[float, float] | None = None) -> str:
    """Where a result breaks the contract; nothing if it does not.

    Where torch is finite it is finite and near; where torch has NaN or an infinity, it has the same or another number
    that is not finite.
    """
    assert mine.shape == theirs.shape
    assert mine.dtype is theirs.dtype
    relative, absolute = tolerance or TOLERANCES[theirs.dtype]
    a, b = mine.detach().double(), theirs.detach().double()
    finite = b.isfinite()
    near = torch.isclose(a, b, relative, absolute)
    wrong = torch.where(finite, ~near, a.isfinite())
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{int(wrong.sum())} of {wrong.numel()} differ, first {place}: expected {b[place]}, got {a[place]}"
