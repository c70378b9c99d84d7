"""Functions of the device layer on special values, beside PyTorch: finite, infinite and NaN at the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.program.program import UNARY_FUNCTIONS, BinaryFn, KernelFn, UnaryFn
from mirage_formal.device import emulate
from mirage_formal.device.tensors import floats_of
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.semantics.function_table import FUNCTION_SPECS
from tests.kit.graphs.function_values import METHODS
from tests.kit.kernels import emulated_programs as programs

torch: Any = pytest.importorskip("torch")

LARGEST = float(np.finfo(np.float32).max)
SPECIAL = [0.0, 1e-40, 1.0, 1e2, 4e2, 1e4, LARGEST, float("inf")]
VALUES = np.array([*SPECIAL, *(-x for x in SPECIAL), float("nan")], np.float32)


def _function(kind: OpKind) -> Callable[[Any], Any]:
    text = FUNCTION_SPECS[kind].torch.format("x")
    return lambda x: eval(text, {"torch": torch, "x": x})


UNARY: dict[UnaryFn, Callable[[Any], Any]] = {
    **{kind: _function(kind) for kind in METHODS},
    # In float32 on the CPU it gives NaN of infinity, and infinity of the largest number; on a GPU it does not.
    OpKind.GELU: lambda x: torch.nn.functional.gelu(x.double()).float(),
    OpKind.LOGICAL_NOT: torch.logical_not,
    KernelFn.NEG: torch.neg,
    KernelFn.RSQRT: torch.rsqrt,
    KernelFn.ROUND_HALF: lambda x: x.half().float(),
    KernelFn.ROUND_BFLOAT: lambda x: x.bfloat16().float(),
}
BINARY: dict[BinaryFn, Callable[[Any, Any], Any]] = {
    BinaryFn.ADD: torch.add,
    BinaryFn.SUB: torch.sub,
    BinaryFn.MUL: torch.mul,
    BinaryFn.DIV: torch.div,
    BinaryFn.MAX: torch.maximum,
    BinaryFn.MIN: torch.minimum,
    BinaryFn.DIV_NO_NAN: lambda a, b: torch.where(b == 0, a * 0, a / b),
    BinaryFn.EQ: torch.eq,
    BinaryFn.LT: torch.lt,
    BinaryFn.LE: torch.le,
    BinaryFn.GT: torch.gt,
    BinaryFn.GE: torch.ge,
}


def computed(a: Any, b: Any) -> dict[str, Any]:
    """What each function gives, by its name."""
    program = programs.functions(len(a))
    found = emulate.run_kernel(program, [a, b])
    names = [param.name.removeprefix("Y_") for param in program.params if param.written]
    return dict(zip(names, found, strict=True))


def pairs() -> tuple[Any, Any]:
    """All pairs of the values, and zeros up to an even number."""
    first, second = (grid.reshape(-1) for grid in np.meshgrid(VALUES, VALUES, indexing="ij"))
    rest = np.zeros(-len(first) % 64, np.float32)
    return np.append(first, rest), np.append(second, rest)


def beside(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(wanted, np.float32), rtol=2e-6, atol=1e-37, equal_nan=True)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return computed(*pairs())


def test_every_function_is_looked_at() -> None:
    assert (set(UNARY), set(BINARY)) == (set(UNARY_FUNCTIONS.values()), set(BinaryFn))


@pytest.mark.parametrize("fn", UNARY)
def test_functions_of_one_number(fn: UnaryFn, results: dict[str, Any]) -> None:
    beside(results[fn.value], UNARY[fn](torch.from_numpy(pairs()[0])).numpy())


@pytest.mark.parametrize("fn", BINARY)
def test_functions_of_two_numbers(fn: BinaryFn, results: dict[str, Any]) -> None:
    a, b = (torch.from_numpy(x) for x in pairs())
    beside(results[fn.value], BINARY[fn](a, b).numpy())


def test_a_selection_is_of_one_of_both(results: dict[str, Any]) -> None:
    a, b = pairs()
    with np.errstate(over="ignore"):
        beside(results["select"], np.where(a < b, a, b * np.float32(2)))


def test_a_mask_of_any_byte_is_one() -> None:
    """torch and NumPy write 1; a tensor that was made of bytes may have others."""
    assert floats_of(np.array([0, 1, 2, 255], np.uint8), DType.BOOL).tolist() == [0.0, 1.0, 1.0, 1.0]
