"""Products of float32 on tensor cores: how exact they are, and how long they are estimated to take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.codegen.cost import block_cost
from mirage_formal.codegen.cuda_printer import FLOAT32_HEADER, emit_cuda
from mirage_formal.codegen.target import load_target
from mirage_formal.device import emulate
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from tests.codegen.lowering.test_lower_operators import NONE, kernel
from tests.codegen.test_cost import block
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels.example_kernels import planned

H200 = load_target("h200")
K = OpKind
#: Unit roundoff of float32.
U = 2.0**-24

#: Tiles and times of relu(A B), A[1024,8192], B[8192,8192] with columns first, of float32, on an H200.
FLOAT32 = [
    ((128, 128), 32, 256, 2183.3),
    ((128, 128), 64, 256, 2128.4),
    ((64, 128), 32, 128, 2109.4),
    ((128, 64), 32, 128, 2031.0),
    ((64, 64), 32, 128, 2220.3),
]


@pytest.mark.parametrize(("tile", "deep", "threads", "measured"), FLOAT32)
def test_products_of_float32_are_near_their_measured_times(
    tile: tuple[int, int], deep: int, threads: int, measured: float
) -> None:
    """Three products of TF32; cuBLAS, which has no tensor cores for it, took 2,706 us."""
    shapes = ((1024, 8192), (8192, 8192))
    grid = (1024 // tile[0], 8192 // tile[1], 1)
    ops = [Op(OpKind.MATMUL, (0, 1)), Op(OpKind.ACCUM_SUM, (2,)), Op(OpKind.RELU, (3,))]
    loads = [((0, None, None), 1), ((None, 1, None), 0)]
    graph = replace(block(grid, 8192 // deep, loads, ops, [(4, (0, 1, None))]), block=(threads, 1, 1))
    types = [DTensor(shape, DType.FLOAT32) for shape in shapes]
    cost, _ = block_cost(graph, types, H200)
    assert 0.65 * measured <= cost.us <= 1.3 * measured


def product(a: NDArray[np.float32], b: NDArray[np.float32], loop: int = 1) -> NDArray[np.float64]:
    """Of two matrices, on the emulator."""
    split = (load(NONE, 1 if loop > 1 else None), load(NONE, 0 if loop > 1 else None))
    ops = [op(K.MATMUL, 0, 1), op(K.ACCUM_SUM, 2)]
    graph = kernel([a.shape, b.shape], list(split), ops, [(3, NONE)], loop=loop, dtype=DType.FLOAT32)
    _, program = planned(graph)
    assert f'#include "{FLOAT32_HEADER}"' in emit_cuda(program)
    (found,) = emulate.run_kernel(program, [a.reshape(-1), b.reshape(-1)])
    return np.asarray(found, np.float64).reshape(a.shape[0], b.shape[1])


def drawn(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Numbers of many magnitudes, all of whose 24 bits count."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)).astype(np.float32)


@pytest.mark.parametrize("seed", range(6))
def test_each_term_is_off_by_a_few_units_of_float32(seed: int) -> None:
    """One term each: |error| <= 2^-22 + 2^-23 + 2^-23 of it, from l l' and e of both, and the rounding of sums."""
    rng = np.random.default_rng(seed)
    a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
    a[:, seed], b[seed] = drawn(rng, 16), drawn(rng, 8)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(product(a, b) / wanted - 1).max() <= 10 * U


@pytest.mark.parametrize("signs", ["both", "one"])
def test_long_sums_are_as_good_as_those_of_float32(signs: str) -> None:
    """Against the bound of recursive summation in float32, and without the drift of sums that are cut off."""
    rng = np.random.default_rng(7)
    a, b = drawn(rng, 16, 2048), drawn(rng, 2048, 8)
    if signs == "one":
        a, b = np.abs(a), np.abs(b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    error = np.abs(product(a, b, loop=32) - exact) / size
    assert error.max() < 2048 / 16 * U
    assert np.sqrt((error**2).mean()) < 4 * U


def test_parts_of_an_operand_lose_nothing_that_matters() -> None:
    """Powers of two, 0 and numbers of 11 bits are exact, and so are numbers of 22 bits by those."""
    rng = np.random.default_rng(3)
    eleven = rng.integers(-2047, 2048, (16, 16)).astype(np.float32)
    many = rng.integers(-(2**21), 2**21, (16, 8)).astype(np.float32)
    unit = np.eye(16, dtype=np.float32)
    assert (product(unit, many) == many).all()
    assert (product(unit * 2.0**-100, many) == many * 2.0**-100).all()
    few = np.zeros((16, 16), np.float32)
    few[range(16), range(16)] = eleven[:, 0]
    wanted = few.astype(np.float64) @ (many // 2**9).astype(np.float64)
    assert (product(few, many // 2**9) == wanted).all()


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_infinities_are_those_of_the_product(left: bool) -> None:
    """Infinite where that is, of its sign, and NaN where it is: infinity times 0, or less another."""
    rng = np.random.default_rng(11)
    a, b = drawn(rng, 16, 32), drawn(rng, 32, 8)
    special = a if left else b.T
    special[3, 5], special[4, 9], special[6, 2:4] = np.inf, -np.inf, (np.inf, -np.inf)
    (b if left else a.T)[5, 1] = 0.0
    special[7, 20] = np.nan
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    found = product(a, b, loop=2)
    finite = np.isfinite(wanted)
    assert not finite.all()
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-4)


def test_infinities_and_nan_are_not_hidden() -> None:
    for value in (np.inf, -np.inf, np.nan):
        a, b = np.ones((16, 16), np.float32), np.ones((16, 8), np.float32)
        a[3, 5] = value
        found = product(a, b)
        assert not np.isfinite(found[3]).any()
        assert (np.delete(found, 3, 0) == 16).all()


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_the_largest_numbers_are_finite(left: bool) -> None:
    """Operands that round to infinity in TF32: times 0 they are 0, and else near the product."""
    largest = np.finfo(np.float32).max
    special = np.array([largest, -largest, np.nextafter(largest, np.float32(0)), 2.0**128 - 2.0**116])
    other = np.array([0.0, 1.0, -1.0, 0.5, 2.0**-20, 2.0**-120])
    for value in special.astype(np.float32):
        a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
        a[:6, 2] = value if left else other
        b[2] = (np.resize(other, 8) if left else value).astype(np.float32)
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(product(a, b), wanted, rtol=4 * U)
