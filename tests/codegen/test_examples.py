"""An introduction to ``mirage_formal/codegen``: µGraph, Plan, Program, proof of safety, CUDA C++, estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

import mirage_formal as mf
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import Barrier, Program
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph

H200 = load_target("h200")


def program(rows: int = 64) -> KernelGraph:
    """The root mean square norm of rows."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(rows, 4096), dtype=mf.float16)
    graph.mark_output(graph.rms_norm(x))
    return graph.freeze()


@pytest.fixture(scope="module")
def kernel() -> GeneratedKernel:
    (step,) = generate(program(), H200).steps
    assert isinstance(step, GeneratedKernel)
    return step


def test_a_kernel_is_printed_as_cuda(kernel: GeneratedKernel) -> None:
    text = emit_cuda(kernel.program)
    assert "__global__" in text
    assert "mf::barrier();" in text


def test_its_safety_is_proved(kernel: GeneratedKernel) -> None:
    assert type(discharge_safety(kernel.program).verdict).__name__ == "Safe"


def test_a_kernel_without_its_barriers_is_not_safe(kernel: GeneratedKernel) -> None:
    body = tuple(statement for statement in kernel.program.body if not isinstance(statement, Barrier))
    broken: Program = replace(kernel.program, body=body)
    assert broken != kernel.program
    assert type(discharge_safety(broken).verdict).__name__ != "Safe"


def test_more_rows_take_longer() -> None:
    assert estimate(program(65536), H200).us > estimate(program(), H200).us > 0
