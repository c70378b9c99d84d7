"""A test of kernels as data: seeded inputs, exact results, and the tolerance of each element.

Exact results and tolerances are those of ``codegen.numerics.result_comparison``, which also compares kernels on a
device.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mirage_formal.codegen.executable import Executable
from mirage_formal.codegen.numerics.correlated_rounding import rounding_drift
from mirage_formal.codegen.numerics.result_comparison import draw_all, expected_results, nonfinite_reference_elements
from mirage_formal.codegen.numerics.rounding import LARGEST, unit_roundoff
from mirage_formal.device.elements import floats_to_bits
from mirage_formal.export.launch_table import NUMPY_TYPES, call_inputs
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

#: Standard deviations of the inputs, in the order in which they are tried.
SCALES: Final = (1.0, 0.1)
#: Bytes of the inputs that are stored; larger ones are drawn by the test.
MOST_INPUT_BYTES: Final = 64 << 20
#: Elements of an output that are stored.
MOST_ELEMENTS: Final = 1 << 20

Array = Any


@dataclass(frozen=True, slots=True)
class StoredTest:
    """Inputs and results of a test.

    Attributes:
        inputs: Raw elements of the inputs that a caller passes.
        numbers: Numbers of these inputs in the program, from which they are drawn.
        scale: Standard deviation of the inputs.
        values: Exact value of each stored element of each output.
        tolerances: Largest error of each; NaN where no value is known, or the element type cannot hold it.
        steps: Of each output, every element whose number is a multiple of this is stored.
    """

    inputs: tuple[Array, ...]
    numbers: tuple[int, ...]
    scale: float
    values: tuple[Array, ...]
    tolerances: tuple[Array, ...]
    steps: tuple[int, ...]


def stored_test(executable: Executable) -> StoredTest:
    """Return a test of an executable, on seeded inputs at its own extents.

    The first scale is taken at which all elements are known, otherwise the last one.

    Raises:
        UnsupportedError: No element of an output is known at any scale.
    """
    program, numbers = executable.program, call_inputs(executable)
    dtypes = [executable.values[value].dtype for value in executable.outputs]
    known = [np.zeros(1, bool)]
    for scale in SCALES:
        arrays = draw_all(program, 0, scale)
        wanted = expected_results(program, executable.graph, arrays)
        drift = rounding_drift(executable.graph, arrays)
        tolerances = [one + more for one, more in zip(wanted.tolerances, drift, strict=True)]
        lost = nonfinite_reference_elements(program, arrays)
        known = [
            _is_comparable(value, tolerance, dtype) & ~gone
            for value, tolerance, dtype, gone in zip(wanted.values, tolerances, dtypes, lost, strict=True)
        ]
        if all(one.all() for one in known):
            break
    if not all(one.any() for one in known):
        what = "expected outputs whose exact values are known and can be held, got one without any"
        raise UnsupportedError(what, where="export", hint="choose another candidate, or larger element types")
    steps = tuple(-(-value.size // MOST_ELEMENTS) | 1 for value in wanted.values)
    marked = [np.where(one, tolerance, np.nan) for one, tolerance in zip(known, tolerances, strict=True)]
    items = program.inputs
    return StoredTest(
        tuple(
            floats_to_bits(arrays[i], items[i].tensor.dtype, np).view(NUMPY_TYPES[items[i].tensor.dtype])
            for i in numbers
        ),
        numbers,
        scale,
        tuple(value.reshape(-1)[::step] for value, step in zip(wanted.values, steps, strict=True)),
        tuple(one.reshape(-1)[::step] for one, step in zip(marked, steps, strict=True)),
        steps,
    )


def _is_comparable(value: Array, tolerance: Array, dtype: DType) -> Array:
    """Return the elements whose value is known, and that the element type holds with any error within tolerance."""
    with np.errstate(all="ignore"):
        most = LARGEST[dtype] * (1 - unit_roundoff(dtype)) if dtype.floating else np.inf
        return np.isfinite(value) & np.isfinite(tolerance) & (np.abs(value) + tolerance <= most)


def write_stored_test(test: StoredTest, folder: Path) -> dict[str, Any]:
    """Write the arrays of a test to the folders ``inputs`` and ``expected``.

    Small inputs are stored first, until MOST_INPUT_BYTES are reached; of the others only masks are.

    Returns:
        What the test's code has to know of them: seed, scale, numbers, digests and steps.
    """
    for name in ("inputs", "expected"):
        (folder / name).mkdir()
    room = MOST_INPUT_BYTES
    for place, bits in sorted(enumerate(test.inputs), key=lambda pair: pair[1].nbytes):
        if bits.nbytes <= room or bits.dtype == np.uint8:
            np.save(folder / "inputs" / f"{place}.npy", bits)
            room -= bits.nbytes
    for place, (value, tolerance) in enumerate(zip(test.values, test.tolerances, strict=True)):
        np.save(folder / "expected" / f"{place}.npy", value)
        np.save(folder / "expected" / f"{place}-tolerance.npy", tolerance)
    return {
        "seed": 0,
        "scale": test.scale,
        "inputs": [
            {"number": number, "sha256": hashlib.sha256(bits.tobytes()).hexdigest()}
            for number, bits in zip(test.numbers, test.inputs, strict=True)
        ],
        "outputs": [{"step": step} for step in test.steps],
    }


__all__ = ["StoredTest", "stored_test", "write_stored_test"]
