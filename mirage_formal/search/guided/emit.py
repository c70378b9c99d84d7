"""Construction of a block graph from a solved kernel and an assignment of extents."""

from __future__ import annotations

from mirage_formal.graph.graph import BlockGraph, InputIterator, Op, OutputSaver
from mirage_formal.graph.types import Dim3
from mirage_formal.search.guided.extent_choice import Assignment, dimx_of, input_map, loop_dim, output_map
from mirage_formal.search.guided.extract import Dag
from mirage_formal.search.guided.saturation import ClassId
from mirage_formal.search.guided.solved_kernel import SolvedKernel


def block_graph(
    kernel: SolvedKernel,
    dag: Dag,
    assignment: Assignment,
    block: Dim3,
    dimx: tuple[int, ...],
) -> BlockGraph:
    """Return the block graph of one DAG of a kernel under an assignment.

    Args:
        kernel: The kernel.
        dag: One of its DAGs, one of ``ExtentAssigner.fitting``.
        assignment: Its extents.
        block: The block dimensions.
        dimx: The widths, reduction_dimx, that the space lists.

    Returns:
        The block graph, whose tensors are its inputs and then its operators' results in the order of computation.
    """
    producers, tensors = dict(dag), kernel.read
    numbers = {ClassId(i): i for i in range(len(tensors))}
    ops: list[Op] = []

    def place(number: ClassId) -> int:
        if number not in numbers:
            producer = producers[number]
            operands = tuple(place(i) for i in producer.operands)
            ops.append(Op(producer.kind, operands, producer.attrs))
            numbers[number] = len(tensors) + len(ops) - 1
        return numbers[number]

    savers = tuple(
        OutputSaver(place(goal), output_map(placement, assignment.axis))
        for goal, placement in zip(kernel.goals, kernel.placements, strict=True)
    )
    kept = dimx_of(kernel, dag, assignment.extents, dimx)
    assert kept is not None, "checked by ExtentAssigner.fitting"
    loops = kernel.structure.loops
    return BlockGraph(
        grid=assignment.grid,
        block=block,
        forloop_range=assignment.loop,
        reduction_dimx=kept,
        inputs=tuple(InputIterator(input_map(t.dims, assignment.axis), loop_dim(t.dims, loops)) for t in tensors),
        ops=tuple(ops),
        outputs=savers,
    )
