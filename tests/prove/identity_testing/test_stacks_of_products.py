"""Products of stacks of matrices modulo a prime: exact however they are grouped, and without large intermediates."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mirage_formal.prove.identity_testing import modular_arithmetic
from mirage_formal.prove.identity_testing.modular_arithmetic import Modulus, as_floats
from mirage_formal.prove.identity_testing.primes import field_pair

FIELD = Modulus(field_pair(31).p)
SHAPES = [
    ((3, 4, 5, 6), (3, 1, 6, 7)),
    ((2, 1, 5, 80), (2, 3, 80, 4)),
    ((1, 4, 3, 70), (5, 4, 70, 9)),
    ((7, 3, 2), (7, 2, 3)),
    ((1, 5, 90), (1, 90, 5)),
    ((5, 8), (8, 3)),
]


@pytest.mark.parametrize("group", [1, 40, 1 << 17])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_groups_change_no_product(
    a: tuple[int, ...], b: tuple[int, ...], group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modular_arithmetic, "GROUP", group)
    draw = np.random.default_rng(0)
    x, y = (draw.integers(FIELD.m - 1000, FIELD.m, shape).astype(np.uint64) for shape in (a, b))
    wanted = np.matmul(x.astype(object), y.astype(object)) % FIELD.m
    found = FIELD.product(as_floats(x), as_floats(y))
    assert found.dtype == np.uint64
    assert np.array_equal(found.astype(object), wanted)


def test_products_with_short_sums_take_little_more_memory_than_their_results() -> None:
    draw = np.random.default_rng(0)
    x = as_floats(draw.integers(0, FIELD.m, (32, 4, 128, 8)))
    y = as_floats(draw.integers(0, FIELD.m, (32, 1, 8, 128)))
    tracemalloc.start()
    try:
        found = FIELD.product(x, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.shape == (32, 4, 128, 128)
    assert peak < 1.5 * found.nbytes
