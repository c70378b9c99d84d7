"""Which DAGs fit an assignment, asked about all at once, is what each of them says by itself; so are weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import pytest

from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import IN_PLACE, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.extent_choice import Assignment, DagFilter, ExtentAssigner, Extents, shape_of
from mirage_formal.search.guided.extract import Dag
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.guided.solved_kernel import SolvedKernel
from mirage_formal.search.space import SearchSpace, load_space
from tests.search.guided.test_guided import PROGRAMS


def _elements(kernel: SolvedKernel, dag: Dag, extents: Extents) -> int:
    closure = kernel.solved.closure
    stored = [*range(closure.inputs), *(number for number, producer in dag if producer.kind not in IN_PLACE)]
    return sum(prod(shape_of(closure.classes[number][1], extents)) for number in stored)


def _folds(kernel: SolvedKernel, dag: Dag, extents: Extents, widths: Sequence[int]) -> bool:
    classes, found = kernel.solved.closure.classes, set()
    for number, producer in dag:
        if producer.kind in (OpKind.ACCUM_SUM_TO_DIMX, OpKind.SUM_TO_DIMX):
            shape = shape_of(classes[number][1], extents)
            found.add(shape[-1 if producer.attrs.dim is None else producer.attrs.dim])
    return not found or (len(found) == 1 and found <= set(widths))


def _weight(kernel: SolvedKernel, found: Assignment, width: int) -> float:
    structure, classes = kernel.structure, kernel.solved.closure.classes
    blocks, loop = prod(found.grid), found.loop
    traffic = 0.0
    for tensor in kernel.read:
        tile = prod(found.extents[p] for leaf in tensor.leaves for p in structure.local(leaf))
        traffic += width * tile * (loop if any(leaf in structure.loops for leaf in tensor.leaves) else 1) * blocks
    for goal in kernel.goals:
        traffic += width * prod(shape_of(classes[goal][1], found.extents)) * blocks
    waves = -(-blocks // 264)
    return traffic / (4e6 * min(1.0, blocks / 128)) + 0.3 * loop * waves + 0.2 * waves


@pytest.mark.parametrize("name", ["attention", "norm"])
@pytest.mark.parametrize("most", [2, None])
def test_the_dags_that_fit_are_those_that_fit_one_by_one(
    name: str, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every kernel and assignment that a search comes to, with little and with much shared memory."""
    first, assignments = DagFilter.first, ExtentAssigner.assignments
    asked: list[tuple[int, int]] = []
    folds: list[int] = []
    made: list[SolvedKernel] = []
    current: SolvedKernel | None = None
    weighed = 0

    def watched(self: ExtentAssigner, kernel: SolvedKernel, outer: Extents) -> Iterator[Assignment]:
        nonlocal weighed, current
        current = kernel
        for found in assignments(self, kernel, outer):
            assert found.weight == _weight(kernel, found, 2)
            weighed += 1
            yield found

    def fitting(self: ExtentAssigner, kernel: SolvedKernel, dags: Sequence[Dag]) -> DagFilter:
        return _Compared(kernel, dags)

    class _Compared(DagFilter):
        def __init__(self, kernel: SolvedKernel, dags: Sequence[Dag]) -> None:
            super().__init__(kernel, dags, elements, widths)
            made.append(kernel)

        def first(self, extents: Extents, _: int | None) -> list[Dag]:
            assert current is not None  # not always the kernel that it was made for
            dags = sorted(current.solved.dags[current.goals], key=len)
            stored = [dag for dag in dags if _elements(current, dag, extents) <= elements]
            each = [dag for dag in stored if _folds(current, dag, extents, widths)]
            found = first(self, extents, most)
            assert found == each[:most]
            asked.append((len(dags), len(each)))
            folds.append(len(each) - len(stored))
            return found

    monkeypatch.setattr(ExtentAssigner, "assignments", watched)
    monkeypatch.setattr(ExtentAssigner, "fitting", fitting)
    program, space = PROGRAMS[name](), replace(load_space(name), reduction_dimx=(2, 4), fold_tiles=True)
    widths = (4,)  # fewer than the search folds to
    unit = GuidedEngine().units(program, space, SearchOptions())[0]
    for most_elements in (60, 200, 1 << 14):
        elements = most_elements
        GuidedEngine().run(program, space, SearchOptions(), unit)
    assert weighed
    assert len(made) < len(asked)
    assert name != "attention" or any(folds)
    assert any(0 < fit < dags for dags, fit in asked)
    assert any(fit == 0 for _, fit in asked)
    assert any(fit == dags > 1 for dags, fit in asked)


def _scaled(*shape: int) -> KernelGraph:
    """(x - m) w, with m and w along the middle dim."""
    middle = (1, shape[1], 1)
    inputs = tuple(
        Input(name, DTensor(own, DType.FLOAT32), row_major(own))
        for name, own in (("x", shape), ("m", middle), ("w", middle))
    )
    return KernelGraph(inputs, (Op(OpKind.SUB, (0, 1)), Op(OpKind.MUL, (3, 2))), (4,))


def _blocks(program: KernelGraph, space: SearchSpace) -> list[int]:
    """Blocks of the single kernels that are found, each of which is proved."""
    engine, options = GuidedEngine(), SearchOptions(max_kernel_ops=1)
    found = []
    for unit in engine.units(program, space, options):
        for candidate in engine.run(program, space, options, unit).candidates:
            (op,) = candidate.graph.ops
            if isinstance(op, GraphDefined):
                assert isinstance(prove(program, candidate.graph), Equivalent)
                found.append(op.graph.blocks)
    return found


def test_kernels_of_large_tensors_have_as_many_blocks_as_they_need() -> None:
    """No 4096th of 2^26 elements fits into shared memory, so with so many blocks there would be no kernel at all."""
    space = load_space("default")
    large = _blocks(_scaled(16, 64, 65536), space)
    assert large
    assert all(space.limits.max_blocks < blocks <= (1 << 26) // 4096 for blocks in large)
    assert all(blocks <= space.limits.max_blocks for blocks in _blocks(_scaled(16, 64, 4096), space))


def test_listed_extents_keep_their_most_blocks() -> None:
    space = load_space("default")
    listed = replace(space, free=replace(space.free, forloop_ranges=(2,), fmaps=(None, 2)))
    assert _blocks(_scaled(16, 64, 65536), space)
    assert not _blocks(_scaled(16, 64, 65536), listed)
