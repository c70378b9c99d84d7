"""On a GPU, each statement of a Program does what the interpreter says: fragments, shuffles, copies, conversions.

The functions of the device headers are compared with the meanings that the claim ``realizes`` gives to statements; the
interpreter of the tests has the same tables, and the tests of mutants hold both to each other.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.program.program import (
    Barrier,
    BinaryFn,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    Mma,
    Program,
    Reg,
    Registers,
    SetReg,
    SharedBuffer,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    WaitGroups,
)
from mirage_formal.device.compile import compile
from mirage_formal.device.runtime import device_count
from mirage_formal.graph.types import DType
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.emulated_programs import (
    BFLOAT,
    FLOAT,
    HALF,
    WARPGROUP_PRODUCTS,
    I,
    conversion,
    every_kernel,
    fragments,
    ix,
    program,
    reads,
    tid,
    writes,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("cupy") is None or not device_count(), reason="needs a GPU and CuPy"),
]


def run_on_gpu(item: Program, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The written parameters after a launch, as float32."""
    cupy = import_module("cupy")
    capability = cupy.cuda.Device().compute_capability
    code = compile(emit_cuda(item), f"sm_{capability}a" if capability == "90" else f"sm_{capability}")
    module = cupy.cuda.function.Module()
    module.load(code.cubin)
    given = iter(arrays)
    memory = []
    for param in item.params:
        if param.written:
            memory.append(cupy.full(param.elements * param.dtype.bytes, 0xFF, cupy.uint8))
        else:
            bits = program_interpreter.to_storage(np.asarray(next(given), np.float32), param.dtype)
            memory.append(cupy.asarray(np.ascontiguousarray(bits).view(np.uint8)))
    function = module.get_function(item.name)
    cupy.cuda.driver.funcSetAttribute(function.ptr, 8, item.shared_bytes)  # the largest dynamic shared memory
    function(item.grid, (item.threads, 1, 1), tuple(memory), shared_mem=item.shared_bytes)
    cupy.cuda.Device().synchronize()
    return [
        program_interpreter.from_storage(
            cupy.asnumpy(buffer).view(program_interpreter.STORAGE[param.dtype]), param.dtype
        )
        for param, buffer in zip(item.params, memory, strict=True)
        if param.written
    ]


def inputs(item: Program, seed: int = 0) -> list[NDArray[Any]]:
    """Numbers that all element types hold."""
    rng = np.random.default_rng(seed)
    read = [param for param in item.params if not param.written]
    return [
        rng.integers(0, 2, param.elements) * 1.0
        if param.dtype is DType.BOOL
        else rng.integers(-64, 65, param.elements) / 16
        for param in read
    ]


def vectors(dtype: DType, size: int) -> Program:
    """X through shared memory by copies and vector accesses of ``size`` bytes."""
    count = size // dtype.bytes
    at = ix(tid * count)
    stored = tuple(Reg("r", ix(k)) for k in range(count))
    return program(
        f"vectors_{dtype}_{size}",
        [reads("X", 32 * count, dtype), writes("Y", 32 * count, dtype), writes("Z", 32 * count, dtype)],
        [SharedBuffer("tile", dtype, 32 * count, 0), SharedBuffer("other", dtype, 32 * count, 512)],
        [
            CopyAsync("tile", at, "X", at, bytes=size),
            Registers("r", count),
            GlobalVector("r", ix(0), "X", at, count),
            SharedWrite("other", at, tuple(reversed(stored))),
            Commit(),
            WaitGroups(0),
            Barrier(),
            SharedVector("r", ix(0), "tile", ix((tid + 5) % 32 * count), count),
            GlobalWrite("Y", at, stored),
            SharedVector("r", ix(0), "other", ix((tid + 3) % 32 * count), count),
            GlobalWrite("Z", at, stored),
        ],
    )


def shuffles(fn: BinaryFn, mask: int) -> Program:
    """Each lane's value combined with that of another one."""
    return program(
        f"shuffles_{fn.value}_{mask}",
        [reads("X", 32), writes("Y", 32)],
        [],
        [
            Registers("r", 1),
            SetReg("r", ix(0), GlobalRead("X", ix(tid))),
            ShuffleReduce("r", ix(0), fn, mask),
            GlobalWrite("Y", ix(tid), (Reg("r", ix(0)),)),
        ],
    )


def float32_product() -> Program:
    """D = A B of one 16x16 and one 16x8 matrix of float32, each lane's elements as they come."""
    rows = [For("i", 8, (SetReg("a", ix(I("i")), GlobalRead("A", ix(tid * 8 + I("i")))),), unroll=True)]
    cols = [For("i", 4, (SetReg("b", ix(I("i")), GlobalRead("B", ix(tid * 4 + I("i")))),), unroll=True)]
    return program(
        "float32_product",
        [reads("A", 256), reads("B", 128), writes("D", 128)],
        [],
        [
            *(Registers("a", 8), Registers("b", 4), Registers("d", 4, initial=0.0)),
            *rows,
            *cols,
            Mma("d", ix(0), "a", ix(0), "b", ix(0), FLOAT),
            GlobalWrite("D", ix(tid * 4), tuple(Reg("d", ix(k)) for k in range(4))),
        ],
    )


EXACT = [
    *(
        fragments(dtype, transposed, count)
        for dtype in (HALF, BFLOAT)
        for transposed in (False, True)
        for count in (1, 2, 4)
    ),
    *(vectors(dtype, size) for dtype in DType for size in (4, 8, 16) if size > dtype.bytes),
    *(shuffles(fn, mask) for fn in (BinaryFn.ADD, BinaryFn.MAX) for mask in (1, 2, 4, 8, 16)),
    *(conversion(source, target, 1024) for source in (HALF, BFLOAT, FLOAT) for target in (HALF, BFLOAT, FLOAT)),
    float32_product(),
]


@pytest.mark.parametrize("item", EXACT, ids=lambda item: item.name)
def test_statements_that_move_or_multiply_short_numbers_are_exact(item: Program) -> None:
    given = inputs(item)
    for found, wanted in zip(run_on_gpu(item, given), program_interpreter.run(item, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("item", WARPGROUP_PRODUCTS, ids=lambda item: item.name)
def test_products_of_warpgroups_are_exact(item: Program) -> None:
    if import_module("cupy").cuda.Device().compute_capability != "90":
        pytest.skip("needs compute capability 9.0")
    given = inputs(item)
    for found, wanted in zip(run_on_gpu(item, given), program_interpreter.run(item, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("item", every_kernel(), ids=lambda item: item.name)
def test_kernels_with_every_statement_agree_with_the_interpreter(item: Program) -> None:
    given = [np.abs(x) + 0.125 if item.name == "functions" else x for x in inputs(item)]
    for found, wanted in zip(run_on_gpu(item, given), program_interpreter.run(item, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-3)
