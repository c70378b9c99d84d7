"""The work of one thread block, in the units of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from mirage_formal.codegen.device_tensors import PlanParam
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import BlockGraph, Op
from mirage_formal.graph.ops import MOVES, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape
from mirage_formal.semantics.function_table import FUNCTION_SPECS

#: Special-function results per element of the widest operand.
_SPECIAL: Final = {
    **{kind: row.special for kind, row in FUNCTION_SPECS.items() if row.special},
    OpKind.DIV: 1,
    OpKind.DIV_NO_NAN: 1,
    OpKind.SOFTMAX: 1,
}
#: Operators that pass over their operand more than once, with the number of passes.
_PASSES: Final = {OpKind.SOFTMAX: 4, OpKind.RMS_NORM: 3, OpKind.LAYER_NORM: 5}
#: Positions along its sum that a library's product takes in a step, and the most steps of a block.
_STEP: Final = 64
_STEPS: Final = 96
_WIDEST: Final = 16  # bytes of the widest load
_IN_FLIGHT: Final = 16  # elements of one thread on their way at once, as lowering/copies.py has them


class Work:
    """The work of one block: operations, shared-memory traffic and dependent latency (one object per kernel).

    ``shapes``, ``widths`` and ``times`` describe its tensors: the shape, the bytes of an element, and the number of
    computations. ``threads`` is the number of threads of a block. ``loads`` has, for each input, the bytes of the
    tensor and the bytes that one block reads. ``waste`` is the bytes of sectors beyond these; ``stage`` is the bytes
    that one iteration loads. ``piped`` tells whether tiles are copied to shared memory, from which products read them.
    """

    __slots__ = (
        *("latency", "piped", "shared", "special", "tensor", "traffic", "vector"),
        *("loads", "shapes", "stage", "threads", "times", "waste", "widths"),
    )

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads
        self.tensor = self.vector = self.special = self.traffic = 0.0
        self.shared = 0
        self.piped = False
        self.latency = self.waste = 0.0
        self.shapes: list[Shape] = []
        self.widths: list[int] = []
        self.times: list[float] = []
        self.loads: list[tuple[float, float]] = []
        self.stage = 0


def add_arithmetic(
    kind: OpKind, operands: tuple[Shape, ...], result: Shape, repeat: float, work: Work, target: Target
) -> None:
    """Add the operations of one operator, done ``repeat`` times; a product counts as one of 16-bit operands."""
    if kind is OpKind.MATMUL:
        left, right = operands
        tile = target.model.tensor_tile
        rows, columns = left[-2], right[-1]
        if rows < columns and rows < tile[0]:  # few rows: the product is done transposed if that pads less
            straight = -(-rows // tile[0]) * tile[0] * (-(-columns // tile[1]) * tile[1])
            transposed = -(-columns // tile[0]) * tile[0] * (-(-rows // tile[1]) * tile[1])
            area = min(straight, transposed)
        else:
            area = -(-rows // tile[0]) * tile[0] * (-(-columns // tile[1]) * tile[1])
        work.tensor += 2 * prod(left[:-2]) * area * (-(-left[-1] // tile[2]) * tile[2]) * repeat
    elif kind not in MOVES and kind is not OpKind.ACCUM_CONCAT:  # these only rename elements
        elements = prod(operands[0])
        if len(operands) > 1:
            elements = max(elements, prod(result))
        work.vector += elements * repeat * _PASSES.get(kind, 1)
        work.special += elements * repeat * _SPECIAL.get(kind, 0)


def add_narrow_copies(block: BlockGraph, params: Sequence[PlanParam], work: Work, target: Target) -> None:
    """Add the copies of products' operands that move fewer than 16 bytes each."""
    products = [op for op in block.ops if isinstance(op, Op) and op.kind is OpKind.MATMUL]
    for i in sorted({i for op in products for i in op.operands if i < len(params)}):
        size = params[i].copies(work.shapes[i])[1]
        if size < 16:
            elements, repeat = prod(work.shapes[i]), work.times[i]
            copies = elements // max(1, size // work.widths[i])
            work.vector += int(copies * repeat * target.model.element_copy_slots)
            if not size:
                groups = -(-elements // (work.threads * _IN_FLIGHT))
                work.latency += (groups * repeat - 1) * target.model.latency_us  # one is every kernel's


def add_scalar_product(left: Shape, result: Shape, repeat: float, work: Work, target: Target) -> None:
    """Add a product that tensor cores do not compute: the steps of a thread run one after another."""
    elements, model = prod(result), target.model
    steps = -(-elements // work.threads) * left[-1] * repeat
    work.latency += steps * model.scalar_step_clocks / (target.clock_ghz * 1e3)
    work.vector += int(elements * left[-1] * repeat * model.scalar_step_slots)


def add_library_product(operands: Sequence[DTensor], result: DTensor, work: Work, target: Target) -> None:
    """Add a product that a library computes, and the latency of its longest chain of steps, to the device's work.

    Each block takes a tile of the result and goes along the sum step by step. A sum that is too long for that, or one
    with a single result, is split, and a second kernel adds up the parts. Tensor cores read rows of whole vectors, of
    16-bit elements: float32 is multiplied as float32 (device/cublas.py).
    """
    left, right = operands
    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    width = _WIDEST // result.dtype.bytes
    scalar = left.dtype is DType.FLOAT32 or right.dtype is DType.FLOAT32
    if scalar or any(extent > 1 and extent % width for extent in (inner, columns)):
        work.vector += result.elements * inner
    else:
        add_arithmetic(OpKind.MATMUL, (left.shape, right.shape), result.shape, 1, work, target)
    steps, model = -(-inner // _STEP), target.model
    if max(rows, columns) > 1:
        work.latency += min(steps, _STEPS) * model.matmul_us
    if steps > _STEPS:
        work.latency += model.launch_us + model.latency_us


__all__ = ["Work", "add_arithmetic", "add_library_product", "add_narrow_copies", "add_scalar_product"]
