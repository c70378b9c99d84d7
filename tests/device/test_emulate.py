"""The emulator computes what the GPU would, judged by numpy, however it is built."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.program.instruction_count import count_statements
from mirage_formal.codegen.program.program import (
    UNARY_FUNCTIONS,
    BinaryFn,
    GlobalRead,
    GlobalWrite,
    KernelFn,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    UnaryFn,
)
from mirage_formal.device import emulate
from mirage_formal.device.emulate import EmulatorError, run_kernel
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from tests.kit.graphs.function_values import METHODS
from tests.kit.graphs.function_values import values as values_of
from tests.kit.kernels.emulated_programs import (
    BFLOAT,
    FLOAT,
    HALF,
    conversion,
    fragments,
    functions,
    gemm,
    ix,
    masked_copy,
    program,
    reads,
    reversal,
    softmax,
    tid,
    writes,
)

ALL_HALVES = np.arange(1 << 16, dtype=np.uint16)


def bfloat(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16 by exact arithmetic: the multiple of the last bit's worth that is nearest, ties to even."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.rint(mantissa * 256), exponent - 8).astype(np.float32)


def rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    return bfloat(x) if dtype is BFLOAT else x.astype(np.float16 if dtype is HALF else np.float32)


# --- conversions -----------------------------------------------------------------------------------------------------


def test_every_half_becomes_the_right_float() -> None:
    (out,) = run_kernel(conversion(HALF, FLOAT, 1 << 16), [ALL_HALVES.view(np.float16)])
    expected = ALL_HALVES.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out), ALL_HALVES >= 0x8000)


def test_every_bfloat_becomes_the_right_float() -> None:
    (out,) = run_kernel(conversion(BFLOAT, FLOAT, 1 << 16), [ALL_HALVES])
    np.testing.assert_array_equal(out, (ALL_HALVES.astype(np.uint32) << 16).view(np.float32))


def floats_around_halves() -> np.ndarray:
    """Every positive half and every midpoint of two, each with its neighbours, as float32; then what overflows."""
    finite = ALL_HALVES[:0x7C00].view(np.float16).astype(np.float32)
    middle = (finite[1:] + finite[:-1]) / 2
    exact = np.concatenate([finite, middle])
    near = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(0))])
    rest = np.array([65519.0, 65520.0, 1e10, 3e38, np.inf, -np.inf, np.nan, 1e-40, -0.0, -1e-9], np.float32)
    out = np.concatenate([near, -near, rest]).astype(np.float32)
    return np.concatenate([out, np.zeros(-out.size % 1024, np.float32)])


def test_rounding_to_half_is_that_of_numpy() -> None:
    x = floats_around_halves()
    (out,) = run_kernel(conversion(FLOAT, HALF, x.size), [x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    expected.view(np.uint16)[np.isnan(x)] = 0x7FFF
    np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))


def test_rounding_to_bfloat_is_to_the_nearest_even() -> None:
    x = floats_around_halves()
    x = x[np.isfinite(x) & ((x == 0) | (abs(x) > 1e-30)) & (abs(x) < 1e38)]
    x = np.concatenate([x, np.linspace(-3, 3, (1 << 17) - x.size % 1024, dtype=np.float32)])
    (out,) = run_kernel(conversion(FLOAT, BFLOAT, x.size), [x])
    np.testing.assert_array_equal(out, bfloat(x))


def test_bfloat_arguments_are_rounded_or_taken_as_bits() -> None:
    x = np.linspace(-5, 5, 128, dtype=np.float32)
    expected = bfloat(x).reshape(2, 64)[:, ::-1].reshape(-1)
    (from_floats,) = run_kernel(reversal(BFLOAT), [x])
    (from_bits,) = run_kernel(reversal(BFLOAT), [(bfloat(x).view(np.uint32) >> 16).astype(np.uint16)])
    np.testing.assert_array_equal(from_floats, expected)
    np.testing.assert_array_equal(from_bits, expected)


# --- functions -------------------------------------------------------------------------------------------------------

UNARY: dict[UnaryFn, Any] = {
    **{kind: partial(values_of, kind) for kind in METHODS},
    OpKind.LOGICAL_NOT: np.logical_not,
    KernelFn.NEG: np.negative,
    KernelFn.RSQRT: lambda x: 1 / np.sqrt(x),
    KernelFn.ROUND_HALF: lambda x: x.astype(np.float16),
    KernelFn.ROUND_BFLOAT: bfloat,
}
BINARY: dict[BinaryFn, Any] = {
    BinaryFn.ADD: np.add,
    BinaryFn.SUB: np.subtract,
    BinaryFn.MUL: np.multiply,
    BinaryFn.DIV: np.divide,
    BinaryFn.MAX: np.maximum,
    BinaryFn.MIN: np.minimum,
    BinaryFn.DIV_NO_NAN: lambda a, b: np.where(b == 0, a * 0, a / b),
    BinaryFn.EQ: np.equal,
    BinaryFn.LT: np.less,
    BinaryFn.LE: np.less_equal,
    BinaryFn.GT: np.greater,
    BinaryFn.GE: np.greater_equal,
}


def test_functions() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-9, 9, (2, 64)).astype(np.float32)
    a[:4], b[:4], b[4] = [0.0, -200.0, 88.0, 1.0], [1.0, 2.0, -3.0, 0.0], a[4]
    kernel = functions()
    results = run_kernel(kernel, [a, b])
    exact, other = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = {f"Y_{fn.value}": UNARY[fn](exact) for fn in UNARY_FUNCTIONS.values()}
        expected |= {f"Y_{fn.value}": BINARY[fn](exact, other) for fn in BinaryFn}
    expected["Y_select"] = np.where(exact < other, exact, 2 * other)
    names = [param.name for param in kernel.params if param.written]
    assert set(names) == set(expected)
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_only_the_chosen_value_is_read() -> None:
    """Registers, constants and memory; X has only 16 elements for 32 threads."""
    r = Reg("r", ix(0))
    chosen = Select(ix(tid < 16), Select(ix(tid < 8), r, Real(5.0)), Select(ix(tid < 24), r, Reg("r", ix(1))))
    kernel = program(
        "select",
        [reads("X", 16), writes("Y", 32)],
        [],
        [
            Registers("r", 2, initial=-3.0),
            SetReg("r", ix(0), Select(ix(tid < 16), GlobalRead("X", ix(tid)), Real(7.0))),
            GlobalWrite("Y", ix(tid), (chosen,)),
        ],
    )
    x = np.arange(16, dtype=np.float32)
    expected = np.concatenate([x[:8], np.full(8, 5.0), np.full(8, 7.0), np.full(8, -3.0)])
    np.testing.assert_array_equal(run_kernel(kernel, [x])[0], expected)


# --- whole kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
def test_double_buffered_gemm(dtype: DType) -> None:
    m, n, k = 64, 96, 128
    rng = np.random.default_rng(2)
    a, b = rounded(rng.standard_normal((m, k)), dtype), rounded(rng.standard_normal((k, n)), dtype)
    (out,) = run_kernel(gemm(dtype, m, n, k), [a, b])
    expected = a.astype(np.float64) @ b.astype(np.float64)
    unit = 2.0**-11 if dtype is HALF else 2.0**-8
    np.testing.assert_allclose(out.reshape(m, n), expected, rtol=1.01 * unit, atol=1e-4)


def test_softmax_of_rows() -> None:
    x = (np.random.default_rng(3).standard_normal((3, 256)) * 8).astype(np.float16)
    (out,) = run_kernel(softmax(), [x])
    exact = x.astype(np.float64)
    exact = np.exp(exact - exact.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out.reshape(3, 256), exact, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_reversal_through_shared_memory(dtype: DType) -> None:
    x = rounded(np.random.default_rng(4).standard_normal(128), dtype)
    (out,) = run_kernel(reversal(dtype), [x])
    np.testing.assert_array_equal(out, x.reshape(2, 64)[:, ::-1].reshape(-1))
    assert out.dtype == x.dtype


def test_copies_that_are_not_valid_fill_with_zeros() -> None:
    x = np.arange(1, 25, dtype=np.float16)
    (out,) = run_kernel(masked_copy(), [x])
    np.testing.assert_array_equal(out, np.concatenate([x, np.zeros(40, np.float16)]))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_fragments_are_those_of_the_ptx_manual(count: int, transposed: bool) -> None:
    """ldmatrix's matrices are the quarters of mma's A: upper left, lower left, upper right, lower right."""
    x = np.arange(count * 64, dtype=np.float16).reshape(count, 8, 8)
    (out,) = run_kernel(fragments(HALF, transposed, count), [x])
    expected = np.zeros((16, 16))
    for matrix in range(count):
        row, column = matrix % 2 * 8, matrix // 2 * 8
        expected[row : row + 8, column : column + 8] = x[matrix].T if transposed else x[matrix]
    for lane, values in enumerate(out.reshape(32, 8)):
        row, column = lane // 4, lane % 4 * 2
        lines = [row, row, row + 8, row + 8] * 2
        columns = [column + step + half for half in (0, 8) for step in (0, 1, 0, 1)]
        np.testing.assert_array_equal(values, expected[lines, columns])


# --- how it is built and called --------------------------------------------------------------------------------------


def test_sanitized_builds_give_the_same() -> None:
    x = (np.random.default_rng(5).standard_normal((3, 256))).astype(np.float16)
    np.testing.assert_array_equal(run_kernel(softmax(), [x], sanitize=True)[0], run_kernel(softmax(), [x])[0])


def test_what_was_built_is_kept_and_may_be_built_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_FORMAL_CACHE", str(tmp_path))
    x = np.arange(24, dtype=np.float16)
    kernel = masked_copy()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: run_kernel(kernel, [x])[0], range(2)))
    np.testing.assert_array_equal(results[0], results[1])
    # The precompiled header, the runtime, and the kernel once; nothing half built.
    made = sorted(path.name for path in (tmp_path / "emulator").glob("*/*") if path.name != "entry.json")
    assert made == ["kernel.so", "prelude.h.gch", "runtime.o"]
    assert list((tmp_path / "parts").iterdir()) == []

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(subprocess, "run", refuse)
    np.testing.assert_array_equal(run_kernel(kernel, [x])[0], results[0])


def test_what_does_little_is_compiled_sooner_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: compilers may not take two roundings for one, however much they optimise."""
    monkeypatch.setenv("MIRAGE_FORMAL_CACHE", str(tmp_path))
    levels: list[str] = []
    own = emulate._run_compiler

    def compiled(arguments: Sequence[str], sources: Mapping[str, str], place: Path) -> bytes:
        if sources:
            levels.extend(one for one in arguments if one.startswith("-O"))
        return own(arguments, sources, place)

    monkeypatch.setattr(emulate, "_run_compiler", compiled)
    x = (np.random.default_rng(6).standard_normal((3, 256))).astype(np.float16)
    made = softmax()
    assert count_statements(made) < emulate._WORTH_IT
    (little,), (much,) = run_kernel(made, [x]), emulate.run_source(made, emit_cuda(made), [x], optimised=True)
    assert little.tobytes() == much.tobytes()
    monkeypatch.setattr(emulate, "_WORTH_IT", 1)
    monkeypatch.setenv("MIRAGE_FORMAL_CACHE", str(tmp_path / "other"))
    assert run_kernel(made, [x])[0].tobytes() == much.tobytes()
    assert levels == ["-Og", "-O2", "-O2"]


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 1 arrays, got 2"):
        run_kernel(masked_copy(), [np.zeros(24), np.zeros(24)])
    with pytest.raises(ValueError, match=r"X: expected 24 elements, got 23"):
        run_kernel(masked_copy(), [np.zeros(23)])


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    emulate._compiler.cache_clear()
    try:
        with pytest.raises(EmulatorError, match=r"g\+\+"):
            run_kernel(masked_copy(), [np.zeros(24)])
    finally:
        emulate._compiler.cache_clear()


def test_text_that_does_not_compile_is_shown() -> None:
    with pytest.raises(EmulatorError, match="nonsense"):
        emulate.run_source(masked_copy(), "nonsense", [np.zeros(24)])
