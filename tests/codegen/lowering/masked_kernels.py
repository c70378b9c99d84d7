"""Random kernels with masks: comparisons, selections, constants and roundings beside sums and products."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DimMap, DTensor, DType, Shape, broadcast
from tests.kit.kernels.example_kernels import alone, stored

K = OpKind
_ROWS: DimMap = (0, None, None)
_NONE: DimMap = (None, None, None)
_NUMBERS = (Fraction(0), Fraction(1, 2), Fraction(-1), Fraction(3))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the kernel; ``exact`` if no rounding has come near it, so that it may be compared."""

    number: int
    shape: Shape
    mask: bool
    exact: bool


@dataclass(slots=True)
class Maker:
    """A block graph that grows.

    Attributes:
        chosen: The source of chance.
        dtype: The element type of what is no mask.
        count: Tensors so far.
    """

    chosen: random.Random
    dtype: DType
    count: int
    ops: list[Op] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def add(
        self, kind: OpKind, operands: Sequence[Tensor], shape: Shape, *, mask: bool, exact: bool, **attrs: Any
    ) -> Tensor:
        """The result of one more operator."""
        self.ops.append(Op(kind, tuple(t.number for t in operands), Attrs(**attrs)))
        self.used |= {t.number for t in operands}
        self.count += 1
        return Tensor(self.count - 1, shape, mask, exact)

    def step(self, found: Sequence[Tensor]) -> Tensor | None:  # noqa: C901 - one case per operator
        """A random operator on what there is; None if the operands that were drawn do not fit."""
        pick = self.chosen.choice
        masks, numbers = [t for t in found if t.mask], [t for t in found if not t.mask]
        exact = [t for t in numbers if t.exact]
        way = pick(("compare", "mask", "select", "select", "map", "exact", "binary", "cast", "reduce"))
        if way == "compare" and exact:
            a, b = pick(exact), pick(exact)
            kind = pick((K.EQ, K.LT, K.LE, K.GT, K.GE))
            if self.chosen.random() < 0.5:
                return self.add(kind, (a,), a.shape, mask=True, exact=True, value=pick(_NUMBERS))
            shape = broadcast(a.shape, b.shape)
            return None if shape is None else self.add(kind, (a, b), shape, mask=True, exact=True)
        if way == "mask" and masks:
            a, b = pick(masks), pick(masks)
            if self.chosen.random() < 0.3:
                return self.add(K.LOGICAL_NOT, (a,), a.shape, mask=True, exact=True)
            shape = broadcast(a.shape, b.shape)
            kind = pick((K.MUL, K.MAXIMUM, K.EQ))
            return None if shape is None else self.add(kind, (a, b), shape, mask=True, exact=True)
        if way == "select" and masks and numbers:
            m, a, b = pick(masks), pick(numbers), pick(numbers)
            shape = broadcast(m.shape, a.shape)
            if shape is not None and self.chosen.random() < 0.6:
                return self.add(K.SELECT, (m, a), shape, mask=False, exact=a.exact, value=pick(_NUMBERS))
            shape = None if shape is None else broadcast(shape, b.shape)
            return (
                None if shape is None else self.add(K.SELECT, (m, a, b), shape, mask=False, exact=a.exact and b.exact)
            )
        if way == "map" and exact:
            a = pick(exact)
            kind = pick((K.EXP, K.TANH, K.SIGMOID, K.SILU, K.GELU, K.SHIFT))
            attrs = {"shift": Fraction(1, 3)} if kind is K.SHIFT else {}
            return self.add(kind, (a,), a.shape, mask=False, exact=False, **attrs)
        if way == "exact" and numbers:
            a = pick(numbers)
            kind = pick((K.ABS, K.RELU, K.SCALE, K.SCALE, K.ROUND_FLOAT16, K.ROUND_BFLOAT16))
            attrs = {"factor": Fraction(pick((0, -1)))} if kind is K.SCALE else {}
            rounds = kind in (K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
            if rounds and not a.exact:
                return None  # what is near a boundary rounds to either side
            return self.add(kind, (a,), a.shape, mask=False, exact=a.exact or attrs.get("factor") == 0, **attrs)
        if way == "binary" and numbers:
            a, b = pick(numbers), pick(exact or numbers)
            shape = broadcast(a.shape, b.shape)
            kind = pick((K.ADD, K.SUB, K.MUL, K.MAXIMUM, K.MINIMUM, K.DIV_NO_NAN))
            if shape is None or (kind is K.DIV_NO_NAN and not b.exact):
                return None
            kept = kind in (K.MAXIMUM, K.MINIMUM) and a.exact and b.exact
            return self.add(kind, (a, b), shape, mask=False, exact=kept)
        if way == "cast" and masks:
            a = pick(masks)
            return self.add(K.CAST, (a,), a.shape, mask=False, exact=True, dtype=self.dtype)
        if way == "reduce":
            a = pick(found)
            if a.shape[1] > 1:
                kind = K.MAX if a.mask else pick((K.MAX, K.SUM))
                exact_ = a.exact and kind is K.MAX
                return self.add(kind, (a,), (a.shape[0], 1), mask=a.mask, exact=exact_, dim=1)
        return None


def masked_kernel(seed: int, dtype: DType) -> KernelGraph:
    """A random kernel of one or two blocks, with a loop or without, and with a product or without."""
    chosen = random.Random(seed)
    rows, cols = chosen.choice((1, 4, 16, 5)), chosen.choice((8, 16, 40, 64, 7))
    loop = chosen.choice((1, 1, 2, 3))
    shapes: list[Shape] = [(rows, cols)]
    types = [dtype]
    for element in (dtype, DType.BOOL, DType.BOOL):
        shapes.append(chosen.choice(((rows, cols), (1, cols), (rows, 1))))
        types.append(element)
    product = chosen.random() < 0.4
    if product:
        shapes.append((cols, 16))
        types.append(dtype)
    tensors = [Tensor(i, s, t is DType.BOOL, exact=True) for i, (s, t) in enumerate(zip(shapes, types, strict=True))]
    maker = Maker(chosen, dtype, len(tensors))
    found = tensors[:4]
    for _ in range(chosen.randint(3, 9)):
        if (made := maker.step(found)) is not None:
            found.append(made)
    if product:
        left = chosen.choice([t for t in found if not t.mask and t.shape == (rows, cols)])
        found.append(maker.add(K.MATMUL, (left, tensors[4]), (rows, 16), mask=False, exact=False))
    after: list[Tensor] = []
    for t in found:
        if t.number in maker.used:
            continue
        kind = K.ACCUM_MAX if t.mask or chosen.random() < 0.3 else K.ACCUM_SUM
        if kind is K.ACCUM_MAX and chosen.random() < 0.3:
            after.append(
                maker.add(K.ACCUM_CONCAT, (t,), (t.shape[0], t.shape[1] * loop), mask=t.mask, exact=t.exact, dim=1)
            )
            continue
        kept = t.exact and kind is K.ACCUM_MAX
        after.append(maker.add(kind, (t,), t.shape, mask=t.mask, exact=kept))
    for _ in range(chosen.randint(0, 4)):
        if (made := maker.step(after)) is not None:
            after.append(made)
    leaves = [t for t in after if t.number not in maker.used]
    grid = 2 if rows > 1 and all(t.shape[0] == rows for t in leaves) and chosen.random() < 0.5 else 1
    iterators, operands = [], []
    for i, (shape, element) in enumerate(zip(shapes, types, strict=True)):
        own = i < 4 and shape[0] == rows and grid == 2
        fmap = (0 if i == 4 else 1 if shape[1] == cols and cols > 1 else None) if loop > 1 else None
        iterators.append(InputIterator(_ROWS if own else _NONE, fmap))
        whole = [shape[0] * (2 if own else 1), shape[1]]
        if fmap is not None:
            whole[fmap] *= loop
        operands.append(DTensor((whole[0], whole[1]), element))
    savers = tuple(OutputSaver(t.number, _ROWS if grid == 2 else _NONE) for t in leaves)
    block = BlockGraph((grid, 1, 1), (64, 1, 1), loop, 1, tuple(iterators), tuple(maker.ops), savers)
    return alone(GraphDefined(tuple(range(len(shapes))), block), operands)


def masked_inputs(graph: KernelGraph, seed: int) -> list[NDArray[Any]]:
    """Numbers with zeros, and for every other seed infinities and NaN; masks with empty rows."""
    rng = np.random.default_rng(seed)
    out = []
    for item in graph.inputs:
        shape = item.tensor.shape
        if not item.tensor.dtype.floating:
            out.append(((rng.random(shape) < 0.6) & (rng.random((shape[0], 1)) < 0.8)).astype(np.float64))
            continue
        values = rng.standard_normal(shape)
        values[rng.random(shape) < 0.1] = 0.0
        if seed % 2:
            for number in (np.nan, np.inf, -np.inf):
                values[rng.random(shape) < 0.01] = number
        out.append(stored(values, item.tensor.dtype).astype(np.float64))
    return out
