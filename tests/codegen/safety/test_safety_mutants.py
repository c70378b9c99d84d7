"""Small mistakes in Programs: each is found, or shown harmless by running every thread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from tests.kit.kernels import program_interpreter
from tests.kit.kernels import safety_programs as programs
from tests.kit.kernels.safety_programs import mutants
from tests.kit.sampling import number

#: Programs, how many of their mutants are tried (spread evenly), and how many at least of these are unsafe.
TRIED: list[tuple[Callable[[], Program], int, int]] = [
    (lambda: programs.gemm(16, 64, 192), 40, 15),
    (lambda: programs.softmax(2, 200), 50, 30),
    (lambda: programs.elementwise(4, 80), 40, 12),
    (lambda: programs.generic(8, 20, 12, 2), 60, 25),
    (lambda: programs.ring(4, 2), 60, 35),
]


def check(what: str, program: Program) -> bool:
    """Whether a mutant is unsafe; it must be so exactly if running it goes wrong."""
    verdict = discharge_safety(program, second=False).verdict
    fault = program_interpreter.fault(program)
    if isinstance(verdict, Safe):
        assert not fault, (what, fault)
        return False
    assert fault, (what, verdict)
    return True


@pytest.mark.parametrize(("make", "count", "least"), TRIED, ids=["gemm", "softmax", "elementwise", "generic", "ring"])
def test_mutants(make: Callable[[], Program], count: int, least: int) -> None:
    every = list(mutants(make()))
    assert len(every) > 2 * count
    count, least = number(count // 2, count), number(least // 2, least)
    step = len(every) / count
    found = [check(*every[int(position * step)]) for position in range(count)]
    assert sum(found) >= least


@pytest.mark.parametrize("make", [case[0] for case in TRIED], ids=["gemm", "softmax", "elementwise", "generic", "ring"])
def test_synchronisation_and_places(make: Callable[[], Program]) -> None:
    """All mutants that drop or move barriers, commits and waits, change what is waited for, or move buffers."""
    words = ("drop", "delay", "wait", " at ", "swap")
    chosen = [(what, program) for what, program in mutants(make()) if any(word in what for word in words)]
    found = [check(what, program) for what, program in islice(chosen, 40)]
    assert sum(found) >= len(found) // 3
