"""Text of a program as a PyTorch function, one line for each operator; generated without loading torch."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import ROUNDINGS, Attrs, OpKind
from mirage_formal.graph.types import Band, DTensor, DType, Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.function_table import FUNCTION_SPECS

_FUNCTIONS: Final = {
    OpKind.MATMUL: "torch.matmul",
    OpKind.ADD: "torch.add",
    OpKind.SUB: "torch.sub",
    OpKind.MUL: "torch.mul",
    OpKind.DIV: "torch.div",
    OpKind.MAXIMUM: "torch.maximum",
    OpKind.MINIMUM: "torch.minimum",
    **{
        kind: row.torch.removesuffix("({0})").replace("torch.nn.functional", "F")
        for kind, row in FUNCTION_SPECS.items()
        if kind not in ROUNDINGS
    },
    OpKind.LOGICAL_NOT: "torch.logical_not",
}
#: Narrower type of each rounding operator.
_ROUNDED: Final = {OpKind.ROUND_FLOAT16: "torch.float16", OpKind.ROUND_BFLOAT16: "torch.bfloat16"}
#: Significant bits of bfloat16, and fractional bits that float16 has for every number.
_BITS: Final = 8
_DIGITS: Final = 14


#: Largest finite numbers of the narrow types, to which larger magnitudes are clamped.
_LARGEST: Final = {DType.FLOAT16: 65504.0, DType.BFLOAT16: float(2**128 - 2**120)}


def torch_source(program: KernelGraph) -> str:
    """Return the text of a program as a torch function, with all numbers and shapes as literals.

    Its parameters are the inputs that callers pass, in order; it makes band masks itself, on the first one's device.
    """
    types, count = kernel_types(program), len(program.inputs)
    passed = [f"t{i}" for i, item in enumerate(program.inputs) if item.band is None]
    lines = [f"def program({', '.join(passed)}):"]
    device = f", device={passed[0]}.device" if passed else ""
    for i, item in enumerate(program.inputs):
        if item.band is not None:
            lines.append(f"    t{i} = {_band_mask(item.band, item.tensor.shape, device)}")
    chosen = _masked_exponentials(program)
    for number, op in enumerate(program.ops, count):
        assert isinstance(op, Op)
        line = _line(op, [types[i] for i in op.operands])
        if number in chosen:
            # Where it is not chosen it must not be infinite: its gradient there would be 0 times infinity.
            line = f"torch.exp(torch.where(t{chosen[number]}, t{op.operands[0]}, -float('inf')))"
        lines.append(f"    t{number} = {line}")
    # A transpose is a view in PyTorch; here outputs are row-major.
    outputs = ", ".join(f"t{i}.contiguous()" for i in program.outputs)
    return "\n".join([*lines, f"    return ({outputs},)"]) + "\n"


def _band_mask(band: Band, shape: Shape, device: str) -> str:
    """Return the expression of a band mask."""
    ones = f"torch.ones({shape}, dtype=torch.bool{device})"
    lower = "" if band.lower is None else f".triu({band.lower})"
    return f"{ones}{lower}" if band.upper is None else f"{ones}{lower}.tril({band.upper})"


def _masked_exponentials(program: KernelGraph) -> dict[int, int]:
    """Return the exponentials that are only read by a selection between them and 0, each with its constant mask."""
    makers = dict(enumerate_results(len(program.inputs), program.ops))
    masks: dict[int, set[int | None]] = {number: {None} for number in program.outputs}
    for op in makers.values():
        for place, number in enumerate(op.operands):
            picked = isinstance(op, Op) and op.kind is OpKind.SELECT and op.attrs.value == 0 and place == 1
            masks.setdefault(number, set()).add(op.operands[0] if picked else None)
    found: dict[int, int] = {}
    for number, op in makers.items():
        (mask,) = masks[number] if len(masks.get(number, ())) == 1 else (None,)
        if isinstance(op, Op) and op.kind is OpKind.EXP and mask is not None and mask < number:
            found[number] = mask
    return found


def _number(value: Fraction, dtype: DType) -> str:
    """Return the literal of a number, clamped to the range of an element type."""
    largest = _LARGEST.get(dtype)
    return repr(float(value) if largest is None else max(-largest, min(largest, float(value))))


def _line(op: Op, x: Sequence[DTensor]) -> str:
    kind, attrs, names = op.kind, op.attrs, [f"t{i}" for i in op.operands]
    if kind in _FUNCTIONS and attrs.value is None:
        return f"{_FUNCTIONS[kind]}({', '.join(names)})"
    first, dim = names[0], attrs.dim if attrs.dim is not None else len(x[0].shape) - 1
    match kind:
        case OpKind.SELECT:
            last = names[2] if attrs.value is None else _number(attrs.value, x[1].dtype)
            return f"torch.where({first}, {names[1]}, {last})"
        case OpKind.MAXIMUM | OpKind.MINIMUM:
            assert attrs.value is not None
            side = "min" if kind is OpKind.MAXIMUM else "max"
            return f"torch.clamp_{side}({first}, {_number(attrs.value, x[0].dtype)})"
        case OpKind.EQ | OpKind.LT | OpKind.LE | OpKind.GT | OpKind.GE:
            if attrs.value is None:
                return f"torch.{kind.value}({first}, {names[1]})"
            # PyTorch rounds the number to the element type, which may be another number.
            wide = first if _is_exact_in_all_types(attrs.value) or not x[0].dtype.floating else f"{first}.float()"
            return f"torch.{kind.value}({wide}, {float(attrs.value)!r})"
        case OpKind.DIV_NO_NAN:
            return f"torch.where({names[1]} == 0, 0.0, {first} / torch.where({names[1]} == 0, 1.0, {names[1]}))"
        case OpKind.ROUND_FLOAT16 | OpKind.ROUND_BFLOAT16:
            return f"{first}.to({_ROUNDED[kind]}).to({first}.dtype)"
        case OpKind.SCALE:
            assert attrs.factor is not None
            return f"{first} * {float(attrs.factor)!r}" if attrs.factor else f"torch.zeros_like({first})"
        case OpKind.SHIFT:
            assert attrs.shift is not None
            return f"{first} + {_number(attrs.shift, x[0].dtype)}"
        case OpKind.SUM | OpKind.MEAN | OpKind.MAX:
            name = {OpKind.SUM: "sum", OpKind.MEAN: "mean", OpKind.MAX: "amax"}[kind]
            return f"{first}.{name}({dim}, keepdim=True)"
        case OpKind.SOFTMAX:
            return f"torch.softmax({first}, {dim})"
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return _norm(kind, attrs, x, names, dim)
        case _:
            return _movement_line(kind, attrs, x, names, dim)


def _is_exact_in_all_types(value: Fraction) -> bool:
    """Return whether every element type represents a number exactly."""
    size = abs(value.numerator)
    odd = size // (size & -size) if size else 0
    scaled = (1 << _DIGITS) % value.denominator == 0
    return scaled and odd < 1 << _BITS and abs(value) < 1 << _DIGITS


def _norm(kind: OpKind, attrs: Attrs, x: Sequence[DTensor], names: Sequence[str], dim: int) -> str:
    first, rest, shape = names[0], names[1:], x[0].shape
    eps = float(attrs.eps) if attrs.eps is not None else 0.0
    if dim == len(shape) - 1 and all(extra.elements == shape[-1] for extra in x[1:]):
        flat = "".join(f", {name}.reshape(-1)" for name in rest)
        name = "rms_norm" if kind is OpKind.RMS_NORM else "layer_norm"
        return f"F.{name}({first}, ({shape[-1]},){flat}, eps={eps!r})"
    wide = f"{first}.to(torch.promote_types({first}.dtype, torch.float32))"
    if kind is OpKind.LAYER_NORM:
        wide = f"({wide} - {wide}.mean({dim}, keepdim=True))"
    out = f"({wide} * torch.rsqrt({wide}.square().mean({dim}, keepdim=True) + {eps!r})).to({first}.dtype)"
    out = f"{out} * {rest[0]}" if rest else out
    return f"{out} + {rest[1]}" if len(rest) > 1 else out


def _movement_line(kind: OpKind, attrs: Attrs, x: Sequence[DTensor], names: Sequence[str], dim: int) -> str:
    first, rank = names[0], len(x[0].shape)
    match kind:
        case OpKind.TRANSPOSE:
            return f"{first}.permute({attrs.perm})"
        case OpKind.RESHAPE:
            return f"{first}.reshape({attrs.shape})"
        case OpKind.REPEAT:
            return f"{first}.expand({tuple(attrs.times if i == dim else -1 for i in range(rank))})"
        case OpKind.CONCAT:
            return f"torch.cat([{', '.join(names)}], {dim})"
        case OpKind.CAST:
            assert attrs.dtype is not None
            return f"{first}.to(torch.{attrs.dtype.value})"
        case OpKind.SLICE:
            assert attrs.start is not None
            assert attrs.stop is not None
            return f"{first}.narrow({dim}, {attrs.start}, {attrs.stop - attrs.start})"
        case OpKind.PAD:
            return f"F.pad({first}, {[*[0, 0] * (rank - 1 - dim), attrs.before or 0, attrs.after or 0]})"
        case _:
            raise ValueError(f"no PyTorch function is known for {kind.value}")
