"""How many blocks a multiprocessor holds, and what a compiler is told where that is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate, resident_blocks
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import Program, SharedBuffer
from mirage_formal.codegen.target import load_target
from tests.kit.graphs import workloads as w
from tests.kit.kernels import example_kernels, safety_programs

TARGET = load_target("h200")
MANY = 16 * TARGET.sms


def of(blocks: int, threads: int, shared: int) -> Program:
    """A Program with a grid, a block and shared memory of these sizes."""
    program = safety_programs.elementwise()
    buffers = (SharedBuffer("s", program.params[0].dtype, shared // 4, 0),) if shared else ()
    made = replace(program, grid=(blocks, 1, 1), threads=threads, shared=buffers)
    return replace(made, shared=tuple(replace(one, elements=shared // one.dtype.bytes) for one in buffers))


@pytest.mark.parametrize(
    ("blocks", "threads", "shared", "count"),
    [
        (TARGET.sms, 128, 0, 1),  # there are no more
        (TARGET.sms + 1, 128, 0, 2),
        (MANY, 128, 0, 16),  # threads
        (MANY, 1024, 0, 2),
        (MANY, 128, 116_736 - 1024, 2),  # 228 KiB, and 1 KiB of each is the driver's
        (MANY, 128, 116_736 - 1024 + 16, 1),
        (MANY, 128, 72 << 10, 3),
        (MANY, 128, 227 << 10, 1),
    ],
)
def test_blocks_of_a_multiprocessor(blocks: int, threads: int, shared: int, count: int) -> None:
    assert resident_blocks(of(blocks, threads, shared), TARGET) == count


def test_the_compiler_is_told_where_it_is_one() -> None:
    program = of(MANY, 128, 227 << 10)
    assert "__launch_bounds__(128) " in emit_cuda(program)
    assert "__launch_bounds__(128, 1) " in emit_cuda(replace(program, alone=True))


def test_generated_kernels_say_so() -> None:
    found = set()
    graphs = [example_kernels.real(name) for name in example_kernels.EXAMPLES]
    for graph in [*graphs, w.rmsnorm_fused(4, 64, 64, grid=2, loop=2)]:
        for step in generate(graph, TARGET).steps:
            if isinstance(step, GeneratedKernel):
                assert step.program.alone == (resident_blocks(step.program, TARGET) == 1)
                found.add(step.program.alone)
    assert found == {False, True}
