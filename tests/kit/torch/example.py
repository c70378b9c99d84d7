"""An example of modules, run as it is; then what must hold of every optimized module is tried on it.

python -m tests.kit.torch.example mlp --time-limit 20
"""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import sys
import warnings
from typing import Any

import torch

import mirage_formal as mf
from mirage_formal.torch.modules.eager import DTYPES
from mirage_formal.torch.modules.operators import TorchOperator
from tests.kit.paths import REPOSITORY
from tests.kit.torch.copies import copies

UTILITIES = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def ran(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Run an example; the optimized module that it makes, and the arguments that it is made for."""
    made: list[tuple[Any, tuple[Any, ...]]] = []
    own = mf.optimize

    def optimize(module: Any, args: Any, **options: Any) -> Any:
        made.append((own(module, args, **options), args))
        return made[-1][0]

    path = REPOSITORY / "examples" / "torch" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # classes are pickled by their module
    vars(mf)["optimize"] = optimize
    try:
        spec.loader.exec_module(module)
    finally:
        vars(mf)["optimize"] = own
    (found,) = made
    return found


def operators(optimized: Any) -> tuple[TorchOperator, ...]:
    """The operators of an optimized module."""
    found: tuple[TorchOperator, ...] = optimized._mirage_plan.operators
    return found


def checked(operator: TorchOperator) -> None:
    """Torch's own tests of an operator find nothing wrong, with and without gradients."""
    for gradient in (False, True):
        given = []
        for item in operator.result.optimized.program.inputs:
            dtype = DTYPES[item.tensor.dtype]
            span = 1 + sum((n - 1) * s for n, s in zip(item.tensor.shape, item.strides, strict=True))
            memory = torch.randn(span, dtype=dtype) / 8 if dtype.is_floating_point else torch.rand(span) < 0.5
            found = memory.as_strided(item.tensor.shape, item.strides).detach()
            given.append(found.requires_grad_(gradient and dtype.is_floating_point))
        with warnings.catch_warnings():
            # What torch's own test does with a tensor that is not contiguous.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            # Narrow types are rounded between other operators where torch decomposes some.
            wide = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
            found = torch.library.opcheck(operator.overload, tuple(given), **wide)
        assert found == dict.fromkeys(UTILITIES, "SUCCESS"), found


def kept(optimized: Any, args: tuple[Any, ...]) -> None:
    """It stays what it is through torch.compile, torch.export, copies, files and state_dict."""
    wanted = optimized(*args)

    def same(found: Any) -> None:
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)

    explained = torch._dynamo.explain(optimized)(*args)
    assert explained.graph_break_count == 0, explained.break_reasons
    torch._dynamo.reset()
    same(torch.compile(optimized, fullgraph=True, backend="aot_eager")(*args))
    exported = torch.export.export(optimized, args)
    targets = {node.target for node in exported.graph.nodes}
    assert {operator.overload for operator in operators(optimized)} <= targets
    same(exported.module()(*args))
    file = io.BytesIO()
    torch.save(optimized, file)
    file.seek(0)
    for other in (
        copy.deepcopy(optimized),
        pickle.loads(pickle.dumps(optimized)),
        torch.load(file, weights_only=False),
    ):
        assert operators(other) == operators(optimized)
        state = {name: torch.zeros_like(value) for name, value in optimized.state_dict().items()}
        own = {name: value.clone() for name, value in optimized.state_dict().items()}
        same(other(*args))
        other.load_state_dict(state)
        other.load_state_dict(own)
        same(other(*args))


def main() -> None:
    """Run the example that the command line names, with the options behind its name."""
    name, sys.argv = sys.argv[1], sys.argv[1:]
    optimized, args = ran(name)
    for operator in operators(optimized):
        checked(operator)
    kept(optimized, args)
    found = [kind.value for operator in operators(optimized) for kind in copies(operator.result.graph)]
    print("candidates:", len(operators(optimized)), "copies:", found)


if __name__ == "__main__":
    main()
