"""The claim that a Program realizes its operator of a µGraph, decided by evaluation at random points of prime fields.

One block of each class of blocks is evaluated twice: as the Program says, thread by thread, and as the µGraph says,
operator by operator. Inputs are independent random elements, named by their address in device memory. The claim holds
if the block writes exactly the elements of its tile that lie in memory, each equal to the µGraph's at all points.

The classes of blocks and the comparison of written elements are in block_comparison.py; the two evaluations are in
program_evaluation.py, and in graph_defined_blocks.py and predefined_blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from mirage_formal.codegen.program.bands import band_at
from mirage_formal.codegen.translation_validation.block_comparison import (
    Deviates,
    DeviationError,
    KernelBlocks,
    KernelTensor,
    UndecidedError,
)
from mirage_formal.codegen.translation_validation.field_points import UndefinedPointError, ValueRangeError
from mirage_formal.codegen.translation_validation.graph_defined_blocks import GraphDefinedBlocks
from mirage_formal.codegen.translation_validation.predefined_blocks import PredefinedBlocks
from mirage_formal.codegen.translation_validation.program_evaluation import EvaluationFault
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import StorageLocation, storage_locations
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verdict import NoTruthValue, Unknown
from mirage_formal.graph.verifier import kernel_types

if TYPE_CHECKING:
    from mirage_formal.codegen.generated_launches import GeneratedKernel

#: Draws after which a divisor that is 0 at every point is Unknown.
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class Realizes(NoTruthValue):
    """Verdict: each element that the Program stores is the µGraph's, but for a small probability of error.

    Attributes:
        classes: Classes of blocks, one of each of which was evaluated.
        elements: Elements that were compared.
        seconds: Time taken.
    """

    classes: int
    elements: int
    seconds: float


RealizesVerdict = Realizes | Deviates | Unknown


def decide_realizes(graph: KernelGraph, kernel: GeneratedKernel, seed: int | None = None) -> RealizesVerdict:
    """Decide whether a kernel's Program realizes its operator of a µGraph.

    Sound: the Program is safe, so any order of its threads has one result, and lockstep is such an order. Blocks of a
    class differ only by the offsets of their accesses to device memory (``BlockClasses``), by the same offset for all
    elements of an access and for the tile of the µGraph that has the same family; so an identity between the values of
    one block, in which elements of each family are independent variables, is the identity of each block. Values that
    are equal as rational functions of inputs, exponentials and values of other functions are equal everywhere. Two
    that are not are equal at a random point with a probability of at most their degree over 2^29 (Schwartz, Zippel;
    the README says what is assumed of exponentials), and independently at each of ``field_points.POINTS`` points. A
    quotient by 0 is poison, every operation with a poison operand is, and no poison element is accepted, whatever it is
    compared with: so a division by 0 in a thread whose result no stored element depends on changes nothing.

    Args:
        graph: A well-formed µGraph.
        kernel: A generated kernel of it, found safe.
        seed: The seed of the draws; None draws afresh.
    """
    begin, reason = perf_counter(), ""
    try:
        work = _blocks_of(graph, kernel)
        for attempt in range(_ATTEMPTS):
            try:
                random = np.random.default_rng(None if seed is None else (seed, attempt))
                elements = work.compare(random)
                if not elements:
                    return Unknown("no block that was evaluated writes an element")
                return Realizes(len(work.members), elements, perf_counter() - begin)
            except UndefinedPointError as error:
                reason = str(error)  # the next attempt tells whether what is stored depends on it
        return Unknown(f"{reason} at {_ATTEMPTS} points")
    except DeviationError as error:
        return error.found
    except (UndecidedError, EvaluationFault, ValueRangeError, ZeroDivisionError) as error:
        return Unknown(str(error))


def copies_of(graph: KernelGraph) -> list[tuple[int, int]]:
    """Return the copies of outputs that are inputs or repeated outputs: the tensor, and the value of the copy."""
    copied = [x for i, x in enumerate(graph.outputs) if x < len(graph.inputs) or x in graph.outputs[:i]]
    return [(tensor, len(kernel_types(graph)) + i) for i, tensor in enumerate(copied)]


def _blocks_of(graph: KernelGraph, kernel: GeneratedKernel) -> KernelBlocks:
    """Return a generated kernel with the operator of the µGraph that it must compute, for their comparison.

    Raises:
        UndecidedError: The kernel is launched with other tensors than the operator's.
    """
    types, places = kernel_types(graph), storage_locations(graph)
    if kernel.operator < 0:  # the copy of a tensor to an output
        if kernel.values not in copies_of(graph):
            raise UndecidedError("the kernel copies another value than the graph's outputs say")
        source = kernel.values[0]
        copy = Op(OpKind.RESHAPE, (0,), Attrs(shape=types[source].shape))
        own = StorageLocation(kernel.values[1], row_major(types[source].shape))
        operand, result = KernelTensor(types[source], places[source]), KernelTensor(types[source], own)
        return PredefinedBlocks(copy, kernel.program, [operand], [result])
    op = graph.ops[kernel.operator]
    first = len(graph.inputs) + sum(one.results for one in graph.ops[: kernel.operator])
    results = [KernelTensor(types[first + j], places[first + j]) for j in range(op.results)]
    passed = list(op.operands)
    if isinstance(op, GraphDefined):
        operands = [
            KernelTensor(types[i], places[i], band_at(graph.inputs, places[i], types[i].shape)) for i in op.operands
        ]
        passed = [i for i, operand in zip(op.operands, operands, strict=True) if operand.band is None]
    if kernel.values != (*passed, *range(first, first + op.results)):
        raise UndecidedError("the kernel is launched with other values than its operator has")
    if isinstance(op, GraphDefined):
        return GraphDefinedBlocks(op.graph, kernel.program, operands, results)
    return PredefinedBlocks(op, kernel.program, [KernelTensor(types[i], places[i]) for i in op.operands], results)


__all__ = ["Deviates", "Realizes", "RealizesVerdict", "decide_realizes"]
