"""An independent, literal evaluator of µGraphs for tests: block by block, iteration by iteration.

It shares nothing with the walk: tiles are cut by index arithmetic, accumulators are running state, and every operator
(macro operators too) has its own formula. ``Arithmetic`` says how numbers behave: float64 here, galois fields in the
field tests.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import erf

import numpy as np

from mirage_formal.graph.graph import GraphDefined, ThreadDefined
from mirage_formal.graph.ops import SPECS, OpKind


class FloatArithmetic:
    """numpy float64."""

    def constant(self, value: Fraction):
        return np.float64(float(value))

    def sqrt(self, x):
        return np.sqrt(x)

    def exp(self, x):
        return np.exp(x)

    def silu(self, x):
        return x / (1.0 + np.exp(-x))

    def opaque(self, kind, x):
        match kind:
            case OpKind.RELU:
                return np.where(x > 0, x, 0.0)
            case OpKind.SIGMOID:
                return 1.0 / (1.0 + np.exp(-x))
            case OpKind.GELU:
                return np.array([v * (1 + erf(v / 2**0.5)) / 2 for v in x.ravel()]).reshape(x.shape)
        raise AssertionError(kind)

    def matmul(self, a, b):
        return np.matmul(a, b)

    def sum(self, x, axis):
        return x.sum(axis=axis, keepdims=True)


def evaluate(graph, inputs, arithmetic):
    """Outputs of a kernel graph."""
    tensors = list(inputs)
    for op in graph.ops:
        args = [tensors[i] for i in op.operands]
        if isinstance(op, GraphDefined):
            tensors += _kernel(op.graph, args, arithmetic)
        else:
            tensors.append(_apply(op, args, arithmetic, None))
    return [tensors[i] for i in graph.outputs]


def _ranges(shape, maps, coordinates, extents, loop, iteration, iterations):
    """The slice of every dim that one block reads in one iteration."""
    low, size = [0] * len(shape), list(shape)
    for axis, dim in enumerate(maps):
        if dim is not None:
            size[dim] //= extents[axis]
            low[dim] += coordinates[axis] * size[dim]
    if loop is not None:
        size[loop] //= iterations
        low[loop] += iteration * size[loop]
    return tuple(slice(a, a + n) for a, n in zip(low, size, strict=True))


def _kernel(block, args, arithmetic):
    results = [None] * len(block.outputs)
    for where in product(*(range(extent) for extent in block.grid)):
        final = _one_block(block, args, where, arithmetic)
        for number, saver in enumerate(block.outputs):
            tile = final[saver.operand]
            shape = list(tile.shape)
            for axis, dim in enumerate(saver.omap):
                if dim is not None:
                    shape[dim] *= block.grid[axis]
            if results[number] is None:
                results[number] = [None, shape, tile]
                results[number][0] = np.zeros(shape, dtype=tile.dtype).view(type(tile))
            at = _ranges(shape, saver.omap, where, block.grid, None, 0, 1)
            results[number][0][at] = tile
    return [result[0] for result in results]


def _one_block(block, args, where, arithmetic):
    """All tensors of one block after its loop: in-loop ones of the last iteration, accumulators when complete."""
    state = {}
    values = []
    for iteration in range(block.forloop_range):
        values = [
            arg[_ranges(arg.shape, it.imap, where, block.grid, it.fmap, iteration, block.forloop_range)]
            for arg, it in zip(args, block.inputs, strict=True)
        ]
        last = iteration == block.forloop_range - 1
        waiting = set()
        for op in block.ops:
            number = len(values)
            if waiting & set(op.operands):
                values.append(None)
                waiting.add(number)
                continue
            operands = [values[i] for i in op.operands]
            if isinstance(op, ThreadDefined):
                registers = list(operands)
                for inner in op.graph.ops:
                    registers.append(_apply(inner, [registers[i] for i in inner.operands], arithmetic, block))
                values += [registers[i] for i in op.graph.outputs]
            elif op.kind is OpKind.RUNNING_MAX:
                largest = operands[0].max(axis=op.attrs.dim, keepdims=True)
                before = state.get(number)
                now = largest if before is None else np.maximum(before, largest)
                state[number] = now
                values += [now, np.zeros_like(now) if before is None else np.exp(before - now)]
            elif SPECS[op.kind].accumulator:
                state[number] = _accumulate(op, operands, state.get(number), arithmetic, block)
                if last:
                    values.append(_finish(op, operands, state[number], arithmetic, block))
                else:
                    values.append(None)
                    waiting.add(number)
            else:
                values.append(_apply(op, operands, arithmetic, block))
    return values


def _accumulate(op, operands, state, arithmetic, block):
    x = operands[0]
    axis = x.ndim - 1
    match op.kind:
        case OpKind.ACCUM_SUM:
            new = x
        case OpKind.ACCUM_SUM_LAST | OpKind.ACCUM_MEAN_LAST | OpKind.ACCUM_RESCALED_SUM_LAST:
            new = arithmetic.sum(x, axis)
        case OpKind.ACCUM_RMS_LAST:
            new = arithmetic.sum(x * x, axis)
        case OpKind.ACCUM_SUM_TO_DIMX:
            new = _fold(x, axis if op.attrs.dim is None else op.attrs.dim, block.reduction_dimx)
        case OpKind.ACCUM_CONCAT:
            return x if state is None else np.concatenate([state, x], axis=op.attrs.dim)
        case OpKind.ACCUM_MAX:
            return x if state is None else np.maximum(state, x)
        case OpKind.ACCUM_RESCALED_SUM:
            return x if state is None else state * operands[1] + x
    if op.kind is OpKind.ACCUM_RESCALED_SUM_LAST:
        return new if state is None else state * operands[1] + new
    return new if state is None else state + new


def _finish(op, operands, state, arithmetic, block):
    count = Fraction(1, operands[0].shape[-1] * block.forloop_range)
    if op.kind is OpKind.ACCUM_MEAN_LAST:
        return state * arithmetic.constant(count)
    if op.kind is OpKind.ACCUM_RMS_LAST:
        return arithmetic.sqrt(state * arithmetic.constant(count))
    return state


def _fold(x, dim, kept):
    pieces = np.split(x, x.shape[dim] // kept, axis=dim)
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


def _apply(op, args, arithmetic, block):  # noqa: C901
    x = args[0]
    attrs = op.attrs
    match op.kind:
        case OpKind.MATMUL:
            return arithmetic.matmul(x, args[1])
        case OpKind.ADD:
            return x + args[1]
        case OpKind.SUB:
            return x - args[1]
        case OpKind.MUL:
            return x * args[1]
        case OpKind.DIV:
            return x / args[1]
        case OpKind.EXP:
            return arithmetic.exp(x)
        case OpKind.SQRT:
            return arithmetic.sqrt(x)
        case OpKind.SQUARE:
            return x * x
        case OpKind.SILU:
            return arithmetic.silu(x)
        case OpKind.GELU | OpKind.RELU | OpKind.SIGMOID:
            return arithmetic.opaque(op.kind, x)
        case OpKind.SCALE:
            return x * arithmetic.constant(attrs.factor)
        case OpKind.SUM:
            return arithmetic.sum(x, attrs.dim)
        case OpKind.MEAN:
            return arithmetic.sum(x, attrs.dim) * arithmetic.constant(Fraction(1, x.shape[attrs.dim]))
        case OpKind.MAX:
            return x.max(axis=attrs.dim, keepdims=True)
        case OpKind.SUM_TO_DIMX:
            return _fold(x, attrs.dim, block.reduction_dimx)
        case OpKind.SOFTMAX:
            e = arithmetic.exp(x)
            return e / arithmetic.sum(e, attrs.dim)
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(op, args, arithmetic)
        case OpKind.TRANSPOSE:
            return np.transpose(x, attrs.perm)
        case OpKind.RESHAPE:
            return x.reshape(attrs.shape)
        case OpKind.CONCAT:
            return np.concatenate(args, axis=attrs.dim)
        case OpKind.REPEAT:
            return np.repeat(x, attrs.times, axis=attrs.dim)
        case OpKind.CAST:
            return x
    raise AssertionError(op.kind)


def _norm(op, args, arithmetic):
    x, dim = args[0], op.attrs.dim
    count = arithmetic.constant(Fraction(1, x.shape[dim]))
    if op.kind is OpKind.LAYER_NORM:
        x = x - arithmetic.sum(x, dim) * count
    below = arithmetic.sum(x * x, dim) * count
    if op.attrs.eps is not None:
        below = below + arithmetic.constant(op.attrs.eps)
    out = x / arithmetic.sqrt(below)
    if len(args) > 1:
        out = out * args[1]
    return out + args[2] if len(args) > 2 else out
