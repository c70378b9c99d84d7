"""Side conditions under which a region's program is defined: reports list them, and guarded calls check them.

A candidate is proved equal to a region's program for inputs at which no divisor is 0, no radicand is negative and the
arguments of logarithms are positive. For other inputs the program has no value over the real numbers, and PyTorch
returns an infinity or NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

import torch

from mirage_formal.frontend.origins import Origin, Origins
from mirage_formal.graph.edit import eliminate_dead_code
from mirage_formal.graph.graph import KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals
from mirage_formal.torch.modules.eager_execution import torch_program


class ConditionKind(StrEnum):
    """Requirement on every element of a tensor."""

    NONZERO = "divisor nonzero"
    NONNEGATIVE = "radicand nonnegative"
    POSITIVE = "argument of log above 0"


@dataclass(frozen=True, slots=True)
class Condition:
    """Requirement on one tensor of a program.

    Attributes:
        need: The requirement.
        tensor: The tensor's number.
        norm: Dim of a norm without an epsilon: the requirement is on the mean of squares along it. None otherwise.
        centred: Whether the mean is subtracted before squaring.
        where: The user's line of the operator that needs it.
    """

    need: ConditionKind
    tensor: int
    norm: int | None
    centred: bool
    where: Origin | None

    def __str__(self) -> str:
        return str(self.need) + (f", at {self.where}" if self.where is not None else "")


#: Signs that are known by form: positive, and nonnegative.
_POSITIVE: Final = 2
_NONNEGATIVE: Final = 1
_ANY: Final = 0
#: The requirement on the arguments of a function with this domain.
_NEEDS: Final = {
    Reals.ALL: None,
    Reals.NONZERO: ConditionKind.NONZERO,
    Reals.NONNEGATIVE: ConditionKind.NONNEGATIVE,
    Reals.POSITIVE: ConditionKind.POSITIVE,
}
_KEEP: Final = frozenset(
    {
        *(
            OpKind.SUM,
            OpKind.MEAN,
            OpKind.MAX,
            OpKind.TRANSPOSE,
            OpKind.RESHAPE,
            OpKind.REPEAT,
            OpKind.CAST,
            OpKind.SLICE,
        ),
        *(kind for kind, row in FUNCTION_SPECS.items() if row.keeps_sign),
        *(OpKind.SLICE, OpKind.CONCAT, OpKind.MINIMUM, OpKind.MUL, OpKind.MATMUL, OpKind.DIV, OpKind.DIV_NO_NAN),
    }
)
_WEAKER: Final = frozenset({OpKind.PAD, OpKind.ROUND_FLOAT16, OpKind.ROUND_BFLOAT16, OpKind.DIV_NO_NAN})


def side_conditions(program: KernelGraph, origins: Origins) -> tuple[Condition, ...]:
    """Return the side conditions of a program, without those that its form shows to hold for all inputs.

    Sound: an operator that has no value somewhere is a division, a reciprocal, a root, a logarithm, or a norm to which
    nothing is added; what is left out is shown by ``_sign``.

    Args:
        program: The program, of predefined operators.
        origins: Source lines of its operators.
    """
    signs = [_ANY] * len(program.inputs)
    found: list[Condition] = []
    for op, where in zip(program.ops, origins.operators, strict=True):
        assert isinstance(op, Op)
        for need, tensor in _needs_of_operator(op):
            if signs[tensor] < (_NONNEGATIVE if need is ConditionKind.NONNEGATIVE else _POSITIVE):
                found.append(Condition(need, tensor, None, False, where))
        if op.kind in (OpKind.RMS_NORM, OpKind.LAYER_NORM) and not op.attrs.eps:
            centred = op.kind is OpKind.LAYER_NORM
            if centred or signs[op.operands[0]] < _POSITIVE:
                found.append(Condition(ConditionKind.NONZERO, op.operands[0], op.attrs.dim, centred, where))
        signs.append(_sign(op, [signs[n] for n in op.operands]))
    return tuple(dict.fromkeys(found))


def _needs_of_operator(op: Op) -> list[tuple[ConditionKind, int]]:
    match op.kind:
        case OpKind.DIV:
            return [(ConditionKind.NONZERO, op.operands[1])]
        case kind if kind in FUNCTION_SPECS:
            need = _NEEDS[FUNCTION_SPECS[kind].domain]
            return [] if need is None else [(need, op.operands[0])]
        case _:
            return []


def _sign(op: Op, signs: Sequence[int]) -> int:
    """Return the sign of a result as far as the operator's form shows it: positive, nonnegative, or unknown.

    Sound: over the real numbers. Exponentials, sigmoids and softmaxes are above 0, squares and absolute values are not
    below; sums, means, maxima, products, quotients and selections of such are too, and functions that keep a sign.
    """
    least = min(signs, default=_ANY)
    match op.kind:
        case OpKind.SOFTMAX:
            return _POSITIVE
        case kind if kind in FUNCTION_SPECS and FUNCTION_SPECS[kind].image is Reals.POSITIVE:
            return _POSITIVE
        case OpKind.SCALE:
            factor = op.attrs.factor or 0
            return _NONNEGATIVE if factor == 0 else signs[0] if factor > 0 else _ANY
        case OpKind.SHIFT:
            shift = op.attrs.shift or 0
            return _POSITIVE if shift > 0 and signs[0] else signs[0] if shift >= 0 else _ANY
        case OpKind.ADD:
            return max(signs) if least else _ANY
        case OpKind.MAXIMUM:
            return max(*signs, _sign_of_number(op.attrs.value))
        case OpKind.MINIMUM if op.attrs.value is not None:
            return min(signs[0], _sign_of_number(op.attrs.value))
        case OpKind.MUL if op.operands[0] == op.operands[1]:
            return max(signs[0], _NONNEGATIVE)
        case OpKind.SELECT:
            return min(signs[1], signs[-1] if op.attrs.value is None else _sign_of_number(op.attrs.value))
        case kind if kind in FUNCTION_SPECS and FUNCTION_SPECS[kind].image is Reals.NONNEGATIVE:
            return max(signs[0], _NONNEGATIVE)
        case kind if kind in _WEAKER:
            return min(least, _NONNEGATIVE)
        case kind if kind in _KEEP:
            return least
        case _:
            return _ANY


def _sign_of_number(value: Fraction | None) -> int:
    return _ANY if value is None or value < 0 else _POSITIVE if value else _NONNEGATIVE


class UnmetConditionError(Exception):
    """Error: a condition of a region does not hold in a call, or cannot be checked."""


class ConditionGuard:
    """Runtime check of a program's conditions: one reduction for each, of tensors that torch computes in float32.

    Args:
        program: The program.
    """

    def __init__(self, program: KernelGraph) -> None:
        self.conditions = side_conditions(program, Origins((None,) * len(program.inputs), (None,) * len(program.ops)))
        self._function: Callable[..., tuple[Any, ...]] | None = None
        if self.conditions:
            self._function = torch_program(_condition_program(program, self.conditions))

    def unmet(self, tensors: Sequence[Any]) -> str:
        """Return the first condition that a program's inputs violate, or an empty string.

        Sound: NaN meets no condition.
        """
        if self._function is None:
            return ""
        with torch.no_grad():
            wide = [x.detach().float() if x.is_floating_point() else x.detach() for x in tensors]
            pairs = zip(self._function(*wide), self.conditions, strict=True)
            least = torch.stack([_least_value(x, one) for x, one in pairs])
            bounds = [one.need is ConditionKind.NONNEGATIVE for one in self.conditions]
            met = (least > 0) | ((least == 0) & torch.tensor(bounds, device=least.device))
            if bool(met.all()):
                return ""
            first = int(met.to(torch.int8).argmin())
            return f"{self.conditions[first]}, got {float(least[first]):.6g}"


def _least_value(tensor: Any, condition: Condition) -> Any:
    """Return the value of a tensor that decides a condition: NaN, or the least, of magnitudes where 0 is excluded."""
    return (tensor.abs() if condition.need is ConditionKind.NONZERO else tensor).amin()


def _condition_program(program: KernelGraph, wanted: Sequence[Condition]) -> KernelGraph:
    """Return the part of a program that computes the tensors of its conditions."""
    ops: list[KernelOp] = list(program.ops)
    outputs: list[int] = []
    for one in wanted:
        number = one.tensor
        if one.norm is not None:
            for step in _mean_square_operators(number, one, len(program.inputs) + len(ops)):
                ops.append(step)
            number = len(program.inputs) + len(ops) - 1
        outputs.append(number)
    return eliminate_dead_code(_widen_program(replace(program, ops=tuple(ops), outputs=tuple(outputs))))


def _widen_program(program: KernelGraph) -> KernelGraph:
    """Return the program with float32 tensors; roundings that are operators stay."""
    inputs = tuple(
        replace(item, tensor=replace(item.tensor, dtype=DType.FLOAT32)) if item.tensor.dtype.floating else item
        for item in program.inputs
    )
    wide = Attrs(dtype=DType.FLOAT32)
    ops = [
        replace(op, attrs=wide)
        if isinstance(op, Op) and op.kind is OpKind.CAST and op.attrs.dtype is not None and op.attrs.dtype.floating
        else op
        for op in program.ops
    ]
    return replace(program, inputs=inputs, ops=tuple(ops))


def _mean_square_operators(tensor: int, one: Condition, first: int) -> list[Op]:
    """Return the operators of the mean of squares along a dim, with or without subtraction of the mean."""
    dim = Attrs(dim=one.norm)
    if not one.centred:
        return [Op(OpKind.SQUARE, (tensor,)), Op(OpKind.MEAN, (first,), dim)]
    mean = [Op(OpKind.MEAN, (tensor,), dim), Op(OpKind.SUB, (tensor, first))]
    return [*mean, Op(OpKind.SQUARE, (first + 1,)), Op(OpKind.MEAN, (first + 2,), dim)]


__all__ = ["Condition", "ConditionGuard", "ConditionKind", "UnmetConditionError", "side_conditions"]
