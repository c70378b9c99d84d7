"""Random trials that compare a written module with the problem's module, as KernelBench describes them.

Both modules are created with the same seed, so that their parameters are equal. In each trial new inputs are drawn and
both are called; results must have the same structure, shapes and element types, and be close.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from mirage_formal.torch.integrations.kernelbench.outcome import Trials

_SEED: Final = 42
#: Absolute and relative tolerance by element type: KernelBench's for results of float32 and of narrower types.
TOLERANCES: Final = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def compare_modules(problem: Mapping[str, Any], written: Mapping[str, Any], trials: int) -> Trials:
    """Compare Model of the problem file with ModelNew of the written file.

    Args:
        problem: Global names of the problem file.
        written: Global names of the written file.
        trials: Number of trials.
    """
    given = [module_of(problem, "Model"), module_of(written, "ModelNew", problem)]
    seeds = torch.randint(0, 2**31, (trials,), generator=torch.Generator().manual_seed(_SEED)).tolist()
    worst, used = 0.0, 0.0
    for number, seed in enumerate(seeds):
        torch.manual_seed(seed)
        inputs = problem["get_inputs"]()
        results = []
        for module in given:
            torch.manual_seed(seed)
            with torch.no_grad():
                results.append(module(*pytree.tree_map_only(torch.Tensor, torch.clone, inputs)))
        error, tolerance, reason = _difference(*results)
        worst, used = max(worst, error), max(used, tolerance)
        if reason:
            return Trials(
                answer="failed", trials=number, tolerance=used, max_error=worst, reason=f"trial {number + 1}: {reason}"
            )
    return Trials(answer="passed", trials=trials, tolerance=used, max_error=worst)


def module_of(names: Mapping[str, Any], kind: str, problem: Mapping[str, Any] | None = None) -> Any:
    """Return the module of a file, created with the common seed."""
    torch.manual_seed(_SEED)
    arguments = (names if problem is None else problem)["get_init_inputs"]()
    torch.manual_seed(_SEED)
    return names[kind](*arguments)


def _difference(wanted: Any, found: Any) -> tuple[float, float, str]:
    """Return the largest difference of two results, the tolerance, and the error message or an empty string."""
    theirs, mine = (pytree.tree_flatten(each) for each in (wanted, found))
    if theirs[1] != mine[1]:
        return 0.0, 0.0, "a result of another structure"
    worst, used = 0.0, 0.0
    for a, b in zip(theirs[0], mine[0], strict=True):
        if not isinstance(a, torch.Tensor):
            if type(a) is not type(b) or a != b:
                return worst, used, f"expected {a!r}, got {b!r}"
            continue
        if not isinstance(b, torch.Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
            got = f"{b.dtype} of {list(b.shape)}" if isinstance(b, torch.Tensor) else type(b).__name__
            return worst, used, f"expected {a.dtype} of {list(a.shape)}, got {got}"
        if not a.dtype.is_floating_point:
            if not torch.equal(a, b):
                return worst, used, "other whole numbers"
            continue
        used = max(used, tolerance := TOLERANCES.get(a.dtype, TOLERANCES[torch.float32]))
        apart = (a.double() - b.double()).abs().nan_to_num(0.0)
        worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            return worst, used, f"a difference of {worst:.3g}"
    return worst, used, ""


__all__ = ["TOLERANCES", "compare_modules", "module_of"]
