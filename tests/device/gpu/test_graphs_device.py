"""Graphs called as they are on a real GPU: their kernels are built there, which needs the solvers."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import mirage_formal as mi
from mirage_formal.device.runtime import device_count
from tests.kit.graphs.mirage_programs import CASES, WRITTEN, inputs_of

NEEDED = ("cupy", "torch", "z3", "cvc5", "sympy")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not all(map(find_spec, NEEDED)) or not device_count(), reason="needs a GPU, CuPy, torch and the solvers"
    ),
]


def on_gpu(graph: mi.Graph) -> tuple[list[Any], list[Any]]:
    """Torch inputs with the strides that are declared, and the same in NumPy."""
    torch: Any = import_module("torch")
    found = []
    _, values = inputs_of(graph, lambda array, dtype: array)
    for item, array in zip(graph.freeze().inputs, values, strict=True):
        dtype = mi.convert_dtype_to_torch_type(item.tensor.dtype)
        tensor = torch.empty_strided(item.tensor.shape, item.strides, dtype=dtype, device="cuda")
        found.append(tensor.copy_(torch.from_numpy(array)))
    return found, values


@pytest.mark.parametrize("name", [*CASES, *WRITTEN])
def test_a_graph_runs_on_the_gpu(name: str) -> None:
    torch: Any = import_module("torch")
    case, make = WRITTEN[name] if name in WRITTEN else (CASES[name], CASES[name].program)
    graph = make()
    tensors, values = on_gpu(graph)
    wanted = case.function(*values)
    (result,) = graph(inputs=tensors)
    torch.cuda.synchronize()
    np.testing.assert_allclose(result.float().cpu().numpy(), wanted, rtol=6e-3, atol=6e-3)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    out = torch.zeros_like(result)
    for where in (stream, stream.cuda_stream):
        out.zero_()
        stream.wait_stream(torch.cuda.current_stream())
        graph(inputs=tensors, outputs=[out], stream=where)
        stream.synchronize()
        assert torch.equal(out, result)
