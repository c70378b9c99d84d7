"""A program as PyTorch computes it, operator by operator: what torch.compile is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType

DTYPES = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}

_FUNCTIONS: dict[OpKind, Callable[..., torch.Tensor]] = {
    OpKind.MATMUL: torch.matmul,
    OpKind.ADD: torch.add,
    OpKind.SUB: torch.sub,
    OpKind.MUL: torch.mul,
    OpKind.DIV: torch.div,
    OpKind.MAXIMUM: torch.maximum,
    OpKind.MINIMUM: torch.minimum,
    OpKind.EXP: torch.exp,
    OpKind.SQRT: torch.sqrt,
    OpKind.SQUARE: torch.square,
    OpKind.SILU: F.silu,
    OpKind.GELU: F.gelu,
    OpKind.RELU: torch.relu,
    OpKind.SIGMOID: torch.sigmoid,
    OpKind.TANH: torch.tanh,
    OpKind.ERF: torch.erf,
    OpKind.LOG: torch.log,
    OpKind.ABS: torch.abs,
    OpKind.RECIPROCAL: torch.reciprocal,
}


def torch_program(program: KernelGraph) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of the program's inputs that returns its outputs."""

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(tensors)
        for op in program.ops:
            assert isinstance(op, Op)
            values.append(_apply(op.kind, op.attrs, [values[i] for i in op.operands]))
        return tuple(values[i] for i in program.outputs)

    return call


def draw(inputs: Sequence[Input], seed: int, scale: float = 0.1) -> list[torch.Tensor]:
    """Normal numbers in the inputs' shapes, element types and strides."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    made = []
    for item in inputs:
        values = torch.randn(item.tensor.shape, device="cuda", generator=generator) * scale
        place = torch.empty_strided(item.tensor.shape, item.strides, device="cuda", dtype=DTYPES[item.tensor.dtype])
        made.append(place.copy_(values))
    return made


def _apply(kind: OpKind, attrs: Attrs, x: list[torch.Tensor]) -> torch.Tensor:
    if kind in _FUNCTIONS:
        return _FUNCTIONS[kind](*x)
    first, dim = x[0], attrs.dim if attrs.dim is not None else -1
    match kind:
        case OpKind.SCALE:
            assert attrs.factor is not None
            return first * float(attrs.factor)
        case OpKind.SHIFT:
            assert attrs.shift is not None
            return first + float(attrs.shift)
        case OpKind.SUM:
            return first.sum(dim, keepdim=True)
        case OpKind.MEAN:
            return first.mean(dim, keepdim=True)
        case OpKind.MAX:
            return first.amax(dim, keepdim=True)
        case OpKind.SOFTMAX:
            return torch.softmax(first, dim)
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(kind, attrs, x, dim)
        case _:
            return _moved(kind, attrs, x, dim)


def _norm(kind: OpKind, attrs: Attrs, x: list[torch.Tensor], dim: int) -> torch.Tensor:
    first, rest = x[0], x[1:]
    eps = float(attrs.eps) if attrs.eps is not None else 0.0
    if dim == first.dim() - 1 and all(extra.numel() == first.shape[-1] for extra in rest):
        flat = [extra.reshape(-1) for extra in rest]
        if kind is OpKind.RMS_NORM:
            return F.rms_norm(first, (first.shape[-1],), *flat, eps=eps)
        return F.layer_norm(first, (first.shape[-1],), *flat, eps=eps)
    wide = first.float()
    if kind is OpKind.LAYER_NORM:
        wide = wide - wide.mean(dim, keepdim=True)
    out = (wide * torch.rsqrt(wide.square().mean(dim, keepdim=True) + eps)).to(first.dtype)
    out = out * rest[0] if rest else out
    return out + rest[1] if len(rest) > 1 else out


def _moved(kind: OpKind, attrs: Attrs, x: list[torch.Tensor], dim: int) -> torch.Tensor:
    first = x[0]
    match kind:
        case OpKind.TRANSPOSE:
            assert attrs.perm is not None
            return first.permute(attrs.perm)
        case OpKind.RESHAPE:
            assert attrs.shape is not None
            return first.reshape(attrs.shape)
        case OpKind.REPEAT:
            return first.expand(*[attrs.times if i == dim else -1 for i in range(first.dim())])
        case OpKind.CONCAT:
            return torch.cat(x, dim)
        case OpKind.CAST:
            assert attrs.dtype is not None
            return first.to(DTYPES[attrs.dtype])
        case OpKind.SLICE:
            assert attrs.start is not None
            assert attrs.stop is not None
            return first.narrow(dim, attrs.start, attrs.stop - attrs.start)
        case OpKind.PAD:
            after = [0, 0] * (first.dim() - 1 - dim)
            return F.pad(first, [*after, attrs.before or 0, attrs.after or 0])
        case _:
            raise ValueError(f"no PyTorch function is known for {kind.value}")
