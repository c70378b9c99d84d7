"""An introduction to ``mirage_formal/device``: generated kernels run on a GPU, or on the emulator on this CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import Barrier, Program
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import EmulationFault, run_kernel

X = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float16)


@pytest.fixture(scope="module")
def kernel() -> Program:
    """The root mean square norm of two rows: a block for each."""
    graph = mf.new_kernel_graph()
    graph.mark_output(graph.rms_norm(graph.new_input(dims=X.shape, dtype=mf.float16)))
    (step,) = generate(graph.freeze(), load_target("h200")).steps
    assert isinstance(step, GeneratedKernel)
    return step.program


def test_the_emulator_computes_what_the_kernel_computes(kernel: Program) -> None:
    (result,) = run_kernel(kernel, [X])
    exact = X.astype(np.float64)
    exact /= np.sqrt(np.mean(exact**2, axis=1, keepdims=True))
    np.testing.assert_allclose(result.reshape(X.shape), exact, rtol=2e-3, atol=1e-6)


def test_the_emulator_finds_a_thread_that_reads_before_another_has_written(kernel: Program) -> None:
    body = tuple(statement for statement in kernel.body if not isinstance(statement, Barrier))
    assert body != kernel.body
    with pytest.raises(EmulationFault, match="uninitialised read"):
        run_kernel(replace(kernel, body=body), [X])


def test_special_values_are_those_of_the_hardware(kernel: Program) -> None:
    (result,) = run_kernel(kernel, [np.full_like(X, np.nan)])
    assert np.isnan(result).all()
