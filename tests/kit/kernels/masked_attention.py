"""Programs with masks, comparisons and roundings as µGraphs: attention in one kernel, and what it does one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

import mirage_formal as mf
from mirage_formal.codegen.numerics.rounding import quantize
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType

LOWEST = -3.4028234663852886e38


def _body(g: Any, m: Any, s: Any, v: Any) -> list[Any]:
    top = g.max(g.select(m, s, LOWEST), 1)
    p = g.select(m, g.exp(g.sub(s, top)), 0)
    total, o = g.reduction(p, 1), g.matmul(p, v)
    kept = g.select(g.logical_or(g.logical_not(m), g.gt(s, 0.1)), g.round_to(s, mf.bfloat16), g.relu(s))
    between = g.select(g.ge(s, g.scale(s, 0.5)), g.maximum(s, g.scale(s, 0)), g.minimum(s, 2 * s))
    some = g.select(g.logical_and(g.max(m, 0), g.le(s, 1)), g.shift(g.scale(s, 0), 3), g.select(g.eq(s, 1), s, s * s))
    return [g.div_no_nan(o, total), g.div(o, total), kept, between, some]


def _inputs(g: mf.Graph, dtype: object) -> list[mf.Tensor]:
    shapes = {"M": ((12, 20), mf.bool_), "S": ((12, 20), dtype), "V": ((20, 24), dtype)}
    return [g.new_input(shape, dtype=kind, name=name) for name, (shape, kind) in shapes.items()]


def apart(dtype: object) -> KernelGraph:
    """A kernel for each operator."""
    g = mf.new_kernel_graph()
    for output in _body(g, *_inputs(g, dtype)):
        g.mark_output(output)
    return g.freeze()


def fused(dtype: object) -> KernelGraph:
    """All of it in one kernel on one block."""
    g = mf.new_kernel_graph()
    given = _inputs(g, dtype)
    block = mf.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, 64)
    tiles = [block.new_input(one, (-1, -1, -1), -1) for one in given]
    for output in _body(block, *tiles):
        block.new_output(block.forloop_accum(output), (-1, -1, -1))
    for output in g.customized(given, block):
        g.mark_output(output)
    return g.freeze()


def arrays(drawn: list[Any], dtype: DType) -> list[Any]:
    """Inputs with rows without a key, discarded and chosen NaN, infinities, and ties of bfloat16."""
    m, s, v = drawn
    m[3], m[7] = 0.0, 0.0
    m[4], m[4, 5], s[4, 5] = 1.0, 0.0, np.nan
    m[5, 6], s[5, 6] = 1.0, np.nan
    m[6], m[6, 1], s[6, 1] = 1.0, 0.0, np.inf
    m[8, 2], s[8, 2] = 1.0, -np.inf
    s[9, :4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1.0, 0.0
    m[9] = 0.0
    m[9, 0] = 1.0
    return [m, quantize(s, dtype, np), v]
