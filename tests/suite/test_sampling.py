"""Sampled cases: as many as asked, the same in any order, and no value of a parameter is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.kit.paths import REPOSITORY
from tests.kit.sampling import chosen


def cases(*extents: int) -> list[tuple[str, dict[str, int]]]:
    """Every combination of the values of so many parameters."""
    names = [f"p{n}" for n in range(len(extents))]
    return [
        (f"test[{'-'.join(map(str, at))}]", dict(zip(names, at, strict=True))) for at in product(*map(range, extents))
    ]


@pytest.mark.parametrize("extents", [(9,), (8, 3), (6, 2), (4, 4, 4), (5, 1), (1, 1)])
@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_one_in_so_many_and_every_value(extents: tuple[int, ...], of: int) -> None:
    every = cases(*extents)
    left = chosen(every, of)
    assert left == chosen(every[::-1], of)
    assert len(left) >= -(-len(every) // of)
    assert len(left) <= max(-(-len(every) // of), sum(extents))
    if of == 1:
        assert len(left) == len(every)
    if len(extents) > 1:
        for name, extent in zip(every[0][1], extents, strict=True):
            assert {values[name] for case, values in every if case in left} == set(range(extent))
    else:
        assert len(left) == -(-len(every) // of)


SAMPLED = """
import pytest

@pytest.mark.sampled(3)
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("operands", ["a", "b", "c"])
def test_cases(operands, depth):
    pass
"""


def collected(root: Path, *arguments: str, thorough: str = "") -> list[list[str]]:
    """Parameters of the cases that pytest collects of a file, as this suite's plugin has it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    environment = {**os.environ, "MIRAGE_THOROUGH": thorough, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([*command, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=True)
    ids = [line.partition("test_cases[")[2] for line in done.stdout.splitlines()]
    return [one.rstrip("]").split("-") for one in ids if one]


def test_pytest_leaves_every_value_and_whoever_names_a_test_gets_all_cases(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_file.py").write_text(SAMPLED)
    every = collected(tmp_path, "test_file.py", thorough="1")
    assert len(every) == 24
    assert collected(tmp_path, "test_file.py::test_cases") == every
    left = collected(tmp_path, "test_file.py")
    assert len(left) < 12
    assert [set(values) for values in zip(*left, strict=True)] == [set(v) for v in zip(*every, strict=True)]
