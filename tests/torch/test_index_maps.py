"""Index maps: what each view of torch makes of them, compared with numpy on random ones."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.torch import index_maps
from mirage_formal.torch.analysis.regions import convex_parts
from mirage_formal.torch.index_maps import View


def indices(view: View) -> NDArray[np.int64]:
    """The place in the base of each element."""
    found = np.full((), view.offset)
    for digits in view.dims:
        dim = np.zeros((), dtype=np.int64)
        for extent, stride in digits:
            dim = np.add.outer(dim, np.arange(extent) * stride)
        found = np.add.outer(found, dim.reshape(-1))
    return found


def shapes(draw: random.Random, elements: int) -> list[int]:
    found = []
    while elements > 1:
        part = draw.choice([n for n in range(2, elements + 1) if elements % n == 0])
        found.append(part)
        elements //= part
    found += [1] * draw.randrange(2)
    draw.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_chains_of_views_are_those_of_numpy(seed: int) -> None:
    draw = random.Random(seed)
    shape = shapes(draw, draw.choice((12, 24, 36, 60)))
    view, array = index_maps.row_major_view(shape), np.arange(prod(shape)).reshape(shape)
    for _ in range(6):
        rank = array.ndim
        match draw.randrange(4):
            case 0:
                perm = draw.sample(range(rank), rank)
                view, array = index_maps.permute_view(view, perm), array.transpose(perm)
            case 1:
                wanted = shapes(draw, array.size)
                found = index_maps.reshape_view(view, wanted)
                view, array = (view, array) if found is None else (found, array.reshape(wanted))
            case 2:
                wide = [draw.choice((2, 3)) if n == 1 else n for n in (1, *array.shape)]
                if prod(wide) < 3000:
                    view, array = index_maps.expand_view(view, wide), np.broadcast_to(array, wide)
            case _:
                axis = draw.randrange(rank)
                start = draw.randrange(array.shape[axis])
                stop, step = draw.randint(start + 1, array.shape[axis]), draw.choice((1, 1, 2))
                found = index_maps.slice_view(view, axis, start, stop, step)
                if found is not None:
                    view, array = found, array[(slice(None),) * axis + (slice(start, stop, step),)]
        assert view.shape == array.shape
        np.testing.assert_array_equal(indices(view), array)
        whole = sorted(array.reshape(-1).tolist()) == list(range(prod(shape)))
        assert view.onto(prod(shape)) == whole


@pytest.mark.parametrize("seed", range(30))
def test_digits_are_cut_alike_and_along_dims(seed: int) -> None:
    draw = random.Random(seed)
    elements = draw.choice((12, 24, 64))
    rows = []
    for _ in range(3):
        view = index_maps.row_major_view(shapes(draw, elements))
        order = draw.sample(range(len(view.dims)), len(view.dims))
        merged = index_maps.reshape_view(index_maps.permute_view(view, order), [elements])
        assert merged is not None
        rows.append(merged.dims[0])
    found = index_maps.refine_dims(rows)
    if found is not None:
        assert len({tuple(extent for extent, _ in digits) for digits in found}) == 1
        for before, after in zip(rows, found, strict=True):
            np.testing.assert_array_equal(indices(View((before,))), indices(View((after,))))
    shape = tuple(shapes(draw, elements))
    for digits in rows:
        cut = tuple(piece for digit in digits for piece in index_maps.split_digit(digit, shape))
        np.testing.assert_array_equal(indices(View((digits,))), indices(View((cut,))))


@pytest.mark.parametrize("seed", range(60))
def test_regions_are_convex_maximal_and_complete(seed: int) -> None:
    draw = random.Random(seed)
    order = [f"n{i}" for i in range(draw.randrange(3, 16))]
    reads = {n: sorted(set(draw.choices([*order[:i], "x"], k=draw.randint(1, 3)))) for i, n in enumerate(order)}
    taken = {n for n in order if draw.random() < 0.65}
    parts = convex_parts(order, reads, taken)
    assert sorted(n for part in parts for n in part) == sorted(taken)

    def beyond(part: set[str]) -> bool:
        """Whether a path leads from the part over another node back to it."""
        left: set[str] = set()
        for node in order:
            if node in part:
                if left & set(reads[node]):
                    return True
            elif (left | part) & set(reads[node]):
                left.add(node)
        return False

    for part in parts:
        assert not beyond(set(part))
    for i, first in enumerate(parts):
        for second in parts[i + 1 :]:
            joined = set(first) | set(second)
            inputs = [{n for node in part for n in reads[node]} for part in (first, second)]
            linked = inputs[0] & set(second) or inputs[1] & set(first) or inputs[0] & inputs[1]
            assert not linked or beyond(joined)
