"""Paths of moves, followed back, against NumPy; and which neighbours stay neighbours."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.program.index import DigitBuilder, IndexBuilder
from mirage_formal.codegen.program.integers import evaluate_expression
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.memory.storage_location import INTEGERS, StorageLocation
from mirage_formal.graph.storage_views import moved_tensors, storage_locations
from mirage_formal.graph.verifier import kernel_types

SEEDS = range(150)


def chain(seed: int) -> KernelGraph:
    """Moves of one input, rolls and pads too; then a square, so that a kernel reads what comes out."""
    draw = random.Random(seed)
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=tuple(draw.choice([2, 3, 4, 6, 8, 16]) for _ in range(draw.randint(1, 3))), name="x")
    for _ in range(draw.randint(2, 6)):
        shape = x.shape
        dim = draw.randrange(len(shape))
        match draw.choice(["transpose", "reshape", "slice", "pad", "roll", "repeat"]):
            case "transpose":
                x = graph.transpose(x, perm=draw.sample(range(len(shape)), len(shape)))
            case "reshape":
                factor = draw.choice([d for d in range(1, shape[dim] + 1) if shape[dim] % d == 0])
                split = (*shape[:dim], shape[dim] // factor, factor, *shape[dim + 1 :])
                at = draw.randrange(len(split) - 1)
                x = graph.reshape(x, split)
                x = graph.reshape(x, (*split[:at], split[at] * split[at + 1], *split[at + 2 :]))
            case "slice" if shape[dim] > 2:
                start = draw.randrange(shape[dim] // 2)
                x = graph.slice(x, dim, start, draw.randint(start + 1, shape[dim]))
            case "pad":
                x = graph.pad(x, dim, draw.randint(0, 2), draw.randint(1, 8))
            case "roll" if shape[dim] > 1:
                cut = draw.randrange(1, shape[dim])
                x = graph.concat([graph.slice(x, dim, cut, shape[dim]), graph.slice(x, dim, 0, cut)], dim=dim)
            case "repeat" if 1 in shape:
                x = graph.repeat(x, shape.index(1), 2)
            case _:
                pass
    graph.mark_output(graph.square(x))
    return graph.freeze()


def read(graph: KernelGraph) -> tuple[StorageLocation, np.ndarray]:
    """Where the tensor lies that is squared, and for each element its place in the input's memory; -1 for zeros."""
    known = moved_tensors(graph)
    (tensor,) = graph.ops[-1].operands
    moves = []
    while tensor in known:
        tensor, move = known[tensor]
        moves.append(move)
    shape = graph.inputs[0].tensor.shape
    where = np.arange(np.prod(shape)).reshape(shape)
    for move in reversed(moves):
        attrs: Any = move.attrs
        dim: Any = attrs.dim
        match move.kind.value:
            case "reshape":
                where = where.reshape(attrs.shape)
            case "transpose":
                where = where.transpose(attrs.perm)
            case "slice":
                where = np.take(where, range(attrs.start, attrs.stop), axis=dim)
            case "repeat":
                where = np.repeat(where, attrs.times, axis=dim)
            case "concat":
                where = np.roll(where, -attrs.start, axis=dim)
            case _:
                widths = [(0, 0)] * where.ndim
                widths[dim] = (attrs.before, attrs.after)
                where = np.pad(where, widths, constant_values=-1)
    return storage_locations(graph, kernels=True)[graph.ops[-1].operands[0]], where


@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_leads_back_to_where_an_element_was(seed: int) -> None:
    graph = chain(seed)
    place, where = read(graph)
    if place.base != 0 or place.path is None:
        return  # a copy, or at strides, which the tests of views look at
    path = place.path
    source = path.source
    ix = IndexBuilder({f"x{d}": extent for d, extent in enumerate(where.shape)})
    named = [ix.named(f"x{d}", extent) for d, extent in enumerate(where.shape)]
    expressions, conditions = path.back(named, DigitBuilder(ix))
    for at in np.ndindex(where.shape):
        found, inside = path.back(at, INTEGERS)
        values = {f"x{d}": n for d, n in enumerate(at)}
        assert all(evaluate_expression(e, values) for e in conditions) == all(inside)
        starts, ends = source.starts or (0,) * len(found), source.extents or path.given
        kept = all(inside) and all(low <= n < high for low, n, high in zip(starts, found, ends, strict=True))
        assert kept == (where[at] >= 0)
        if kept:
            assert [evaluate_expression(e, values) for e in expressions] == found
            assert source.offset + INTEGERS.ravel(found, source.strides) == where[at]
    assert place.span(where.shape) > where.max()


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_are_neighbours_from_multiples_of_their_length_on(seed: int) -> None:
    place, where = read(chain(seed))
    if place.base != 0 or place.path is None:
        return
    for dim, extent in enumerate(where.shape):
        run = place.path.run(dim)
        assert extent % run == 0
        rows = np.moveaxis(where, dim, -1).reshape(-1, extent // run, run)
        for piece in rows.reshape(-1, run):
            inside = piece >= 0
            assert inside.all() or not inside.any()
            assert not inside.any() or (piece[0] % run == 0 and (np.diff(piece) == 1).all())


def test_there_are_paths_with_every_move_and_with_vectors() -> None:
    kinds, wide = set(), 0
    for seed in SEEDS:
        place, where = read(chain(seed))
        if place.base == 0 and place.path is not None:
            kinds |= {move.kind.value for move in place.path.moves}
            wide += place.path.run(where.ndim - 1) > 1
    assert {"concat", "pad", "reshape", "slice", "transpose"} <= kinds
    assert wide > 5


def test_digits_are_what_quotients_and_remainders_are() -> None:
    draw = random.Random(3)
    for _ in range(60):
        ranges = {"a": draw.randint(1, 6), "b": draw.randint(1, 9), "c": draw.randint(1, 7)}
        ix = IndexBuilder(ranges)
        names = [ix.named(name, extent) for name, extent in ranges.items()]
        e = ix.add(*(ix.mul(name, draw.choice([1, 2, 3, 6, 12, 24])) for name in names))
        shape = tuple(draw.choice([1, 2, 3, 4, 6]) for _ in range(3))
        parts = DigitBuilder(ix).unravel(e, (1 + ix.most(e), *shape))
        rest = DigitBuilder(ix).mod(e, shape[0])
        for at in product(*map(range, ranges.values())):
            values = dict(zip(ranges, at, strict=True))
            number = evaluate_expression(e, values)
            assert number is not None
            wanted = np.unravel_index(number, (1 + ix.most(e), *shape))
            assert tuple(evaluate_expression(part, values) for part in parts) == tuple(map(int, wanted))
            assert evaluate_expression(rest, values) == number % shape[0]


def test_what_lies_far_apart_is_a_copy_and_so_is_what_an_operator_reads() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(64, 8, 64), name="x")
    far = graph.reshape(graph.transpose(x, perm=(2, 1, 0)), (512, 64))
    graph.mark_output(graph.square(far))
    program = graph.freeze()
    assert storage_locations(program, kernels=True)[2].base == 1
    assert kernel_types(program)[2].shape == (512, 64)
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 2, 8, 2, 32), name="x")
    rows = graph.reshape(graph.transpose(x, perm=(0, 2, 1, 3, 4)), (64, 128))
    graph.mark_output(graph.square(rows))
    program = graph.freeze()
    assert storage_locations(program)[2].base == 2
    assert storage_locations(program, kernels=True)[2].base == 0
