"""An introduction to ``mirage_formal/torch``: modules become programs, and programs become operators of torch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch
from torch import nn

import mirage_formal as mf
from mirage_formal.graph.graph import Op
from mirage_formal.torch.modules.eager_execution import torch_program


def imported(module: nn.Module, x: Any) -> Any:
    return mf.from_torch(module, (x,))


def test_a_module_becomes_a_program() -> None:
    found = imported(nn.Sequential(nn.Linear(8, 4, bias=False), nn.SiLU()), torch.randn(2, 8))
    (region,) = found.regions
    assert [op.kind.value for op in region.program.ops if isinstance(op, Op)] == ["matmul", "silu"]


def test_weights_are_inputs_that_are_read_through_their_strides() -> None:
    found = imported(nn.Linear(8, 4, bias=False), torch.randn(2, 8))
    (weight,) = [item for item in found.regions[0].program.inputs if item.name == "weight"]
    assert weight.tensor.shape == (8, 4)
    assert weight.strides == (1, 8)  # the transposed view that a linear layer multiplies by


def test_a_program_computes_what_the_module_computes() -> None:
    module, x = nn.Linear(8, 4, bias=False), torch.randn(2, 8)
    program = imported(module, x).regions[0].program
    tensors = {"x": x, "input": x, "weight": module.weight.T}
    (result,) = torch_program(program)(*[tensors[item.name] for item in program.inputs])
    torch.testing.assert_close(result, module(x))
