"""Execution on the emulator: comparison with float64, and the amount of work of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.numerics.result_comparison import NumericsRecord
from mirage_formal.codegen.program.instruction_count import count_statements
from mirage_formal.device import emulate
from mirage_formal.device.elements import bits_to_floats, floats_to_bits
from mirage_formal.graph.types import DTensor, row_major
from mirage_formal.kernel_build.built_kernels import BuiltKernels


@dataclass(frozen=True, slots=True)
class EmulatedExecutable:
    """An executable on the emulator; products outside of block graphs are NumPy's with float32 sums.

    Attributes:
        made: The built kernels.
        sanitize: Whether it is built with AddressSanitizer and UBSan.
        optimised: Whether kernels with little work are compiled with -O2, too.
        seed: Seed of the order of the blocks of joined launches.
    """

    made: BuiltKernels
    sanitize: bool = False
    optimised: bool = False
    seed: int = 0

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the outputs for inputs, both float64; see codegen.numerics.result_comparison.Runner.

        Raises:
            EmulationFault: The emulator or a sanitizer found a fault.
            EmulatorError: There is no compiler.
        """
        executable = self.made.executable
        values: dict[int, Any] = dict(enumerate(arrays))
        types = executable.values
        for launch in executable.launches:
            if isinstance(launch, KernelLaunch):
                self._kernel(launch, values, types)
                continue
            a, b = (self._value(i, values).astype(np.float32) for i in (launch.a, launch.b))
            with np.errstate(over="ignore", invalid="ignore"):
                found = np.matmul(a, b).astype(np.float64)
                dtype = types[launch.result].dtype
                values[launch.result] = bits_to_floats(floats_to_bits(found, dtype, np), dtype, np)
        return [values[number].reshape(types[number].shape).astype(np.float64) for number in executable.outputs]

    def _memory(self, number: int, values: dict[int, Any]) -> Any:
        """Return the elements of a value's base tensor, in memory order."""
        executable = self.made.executable
        base = executable.base(number)
        array = values[base].reshape(executable.values[base].shape)
        return arrange_by_strides(array, executable.strides(base)).reshape(-1)

    def _value(self, number: int, values: dict[int, Any]) -> Any:
        """Return a value, which may be a view, as an array of its shape."""
        executable, memory = self.made.executable, self._memory(number, values)
        steps = [step * memory.itemsize for step in executable.strides(number)]
        first = memory[executable.place(number).offset :]
        return np.lib.stride_tricks.as_strided(first, executable.values[number].shape, steps)

    def _kernel(self, launch: KernelLaunch, values: dict[int, Any], types: Sequence[DTensor]) -> None:
        executable = self.made.executable
        program = self.made.joins.get(launch.name) or self.made.programs[launch.name]
        given, written = [], []
        for argument in launch.passed:
            if argument.written:
                written.append(argument.value)
            else:
                given.append(self._memory(argument.value, values)[: argument.elements])
        text = executable.files[launch.source].decode()
        more = {"sanitize": self.sanitize, "optimised": self.optimised}
        found = emulate.run_source(program, text, given, **more, seed=self.seed)
        for number, array in zip(written, found, strict=True):
            base = executable.base(number)
            values[base] = array.reshape(types[base].shape)


def arrange_by_strides(array: Any, strides: Sequence[int]) -> Any:
    """Return an array's elements in the memory order of strides; gaps are zero."""
    if tuple(strides) == row_major(array.shape):
        return array
    steps = zip(array.shape, strides, strict=True)
    flat = np.zeros(1 + sum((n - 1) * step for n, step in steps), array.dtype)
    np.lib.stride_tricks.as_strided(flat, array.shape, [step * flat.itemsize for step in strides])[...] = array
    return flat


def compare_on_emulator(
    made: BuiltKernels,
    *,
    seed: int = 0,
    sanitize: bool = False,
    optimised: bool = False,
    scales: Sequence[float] = result_comparison.SCALES,
) -> NumericsRecord:
    """Run an executable on the emulator and compare its results with the program's exact ones.

    Args:
        made: The executable.
        seed: Seed of the inputs, and of the order of the blocks of joined launches.
        sanitize: Whether it is built with AddressSanitizer and UBSan.
        optimised: Whether kernels with little work are compiled with -O2, too.
        scales: Standard deviations of the inputs.

    Raises:
        EmulationFault: The emulator or a sanitizer found a fault.
        EmulatorError: There is no compiler.
    """
    executable = made.executable
    run = EmulatedExecutable(made, sanitize, optimised, seed)
    inputs = result_comparison.Inputs(seed, scales)
    return result_comparison.check(
        executable.program, executable.graph, executable.digest, run, device="emulator", inputs=inputs
    )


def amount_of_work(made: BuiltKernels) -> float:
    """Return the work of its generated kernels, in statements of one thread; compares kernels of equal tiles."""
    launches = [launch for launch in made.executable.launches if isinstance(launch, KernelLaunch)]
    return sum(count_statements(made.programs[one.name]) for launch in launches for one in launch.kernels)


__all__ = ["EmulatedExecutable", "amount_of_work", "arrange_by_strides", "compare_on_emulator"]
