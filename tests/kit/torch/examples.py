"""The modules of examples/torch: taken before they are optimized, optimized once in a process, or run as they are.

Small modules are optimized for tests on a GPU. ``MIRAGE_GPU_STORE`` is a store that has their searches (python -m
benchmarks.torch_layers --prepare); without it, or if it lacks one, they are searched. ``MIRAGE_TORCH_DEVICE=cpu`` lets
these tests run where there is no GPU, as far as they need none.

python -m tests.kit.torch.examples mlp --time-limit 20    # runs one, then tries what must hold of optimized modules
"""

from __future__ import annotations

import copy
import importlib.util
import io
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

import mirage_formal as mf
from mirage_formal.torch.modules.custom_operators import TorchOperator
from mirage_formal.torch.modules.eager_execution import DTYPES
from tests.kit.graphs.moves import copies
from tests.kit.paths import REPOSITORY


class _Taken(Exception):
    """The example has made its module."""


def taken(name: str, options: Sequence[str] = (), *, dtype: Any = None, device: str = "cpu") -> tuple[Any, Any]:
    """The module that an example makes, and the arguments that it would be optimized for.

    The file runs as it is, up to its call of ``optimize``: classes, weights and arguments are its own.

    Args:
        name: The example's name.
        options: Its command line.
        dtype: The element type of what it makes; its own, if left out.
        device: Where it makes it; "meta" needs no memory.
    """
    made: list[tuple[Any, Any]] = []

    def optimize(module: Any, args: Any, **_: Any) -> Any:
        made.append((module, args))
        raise _Taken

    path = REPOSITORY / "examples" / "torch" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # classes are pickled by their module
    own, line, default = mf.optimize, sys.argv, torch.get_default_dtype()
    vars(mf)["optimize"], sys.argv = optimize, [str(path), *options]
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            spec.loader.exec_module(module)
    except _Taken:
        pass
    finally:
        vars(mf)["optimize"], sys.argv = own, line
        torch.set_default_dtype(default)
    (found,) = made
    return found


DEVICE = os.environ.get("MIRAGE_TORCH_DEVICE", "cuda")
EXAMPLES = ("attention", "llama_layer", "lora_linear", "mlp", "ngpt_layer", "norm_qkv", "qwen3_layer", "training_step")
#: Element types by the names of parameters of tests. Llama's layer has an element type of its own.
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
#: Seconds for the searches of one module, where the store has none.
LIMIT_S = 60.0
#: Kernels are the cost model's: tuning is not what these tests are about, and takes a minute.
OPTIONS: dict[str, Any] = {"measure": 0, "time_limit": LIMIT_S}
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}


@contextmanager
def stored() -> Iterator[None]:
    """The store that was prepared, which tests do not use otherwise."""
    place = os.environ.get("MIRAGE_GPU_STORE")
    if not place:
        yield
        return
    before = os.environ.pop("MIRAGE_FORMAL_NO_CACHE", None), os.environ.get("MIRAGE_FORMAL_STORE")
    os.environ["MIRAGE_FORMAL_STORE"] = place
    try:
        yield
    finally:
        for name, value in zip(("MIRAGE_FORMAL_NO_CACHE", "MIRAGE_FORMAL_STORE"), before, strict=True):
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def example(name: str, dtype: str, device: str = DEVICE) -> tuple[Any, Any]:
    """An example's module in its small size, with weights that are not random from one call to the next."""
    torch.manual_seed(0)
    given = ("--dtype", dtype) if name == "llama_layer" else ()
    module, args = taken(name, given, dtype=TYPES[dtype], device=device)
    return module, tuple(args)


@cache
def optimized(name: str, dtype: str = "float16") -> tuple[Any, Any, tuple[Any, ...]]:
    """An example's module without gradients, a copy of it that is optimized, and its arguments."""
    module, args = example(name, dtype)
    module.requires_grad_(False)
    with stored():
        return module, mf.optimize(copy.deepcopy(module), args, **OPTIONS), args


def fresh(tensor: Any) -> Any:
    """Other numbers for an argument; what holds no numbers stays."""
    return torch.randn_like(tensor) if tensor.is_floating_point() else tensor.clone()


def close(found: Any, wanted: Any, dtype: str = "float16") -> None:
    """Within what the element type allows, by norms: elements near 0 have no relative error."""
    found, wanted = found.double(), wanted.double()
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    error = float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))
    assert error <= TOLERANCE[dtype], f"relative error {error:.3g}"


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
            if item.band is not None:  # kernels compute it; no call passes it
                continue
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
