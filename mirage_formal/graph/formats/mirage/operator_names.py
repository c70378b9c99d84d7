"""Tables of operator names and element type codes of Mirage's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Final

from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType

#: Stands for the last dim of the operand.
LAST: Final = -1
#: Most dims of a tensor in that format; ``dim`` always has this number of entries.
RANK: Final = 4
#: Dims that an operator's name can hold, as in tb_reduction_2_op.
NAMED_DIMS: Final = 3


@dataclass(frozen=True, slots=True)
class OperatorName:
    """Operator with this name in the format; ``dim`` is None where it has none."""

    kind: OpKind
    dim: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """Spelling of the parts of the format that changed between versions.

    Attributes:
        dtypes: Element types by code.
        accumulator: Prefix of the names of accumulators.
    """

    dtypes: Mapping[int, DType]
    accumulator: str

    def code(self, dtype: DType) -> int:
        """Return the number by which a checkpoint names an element type."""
        return next(code for code, known in self.dtypes.items() if known is dtype)


#: The published checkpoint files (2024).
SAVED: Final = Dialect(
    MappingProxyType({920: DType.BFLOAT16, 921: DType.FLOAT16, 930: DType.FLOAT32}),
    "tb_accum_",
)
#: Later versions. Some of them have 940 and 941 the other way round.
CURRENT: Final = Dialect(
    MappingProxyType({940: DType.FLOAT16, 941: DType.BFLOAT16, 950: DType.FLOAT32}),
    "tb_forloop_accum_",
)

_ACCUMULATORS: Final = {
    "nored_op": OpKind.ACCUM_SUM,
    "red_ld_sum_op": OpKind.ACCUM_SUM_LAST,
    "red_ld_mean_op": OpKind.ACCUM_MEAN_LAST,
    "red_ld_rms_op": OpKind.ACCUM_RMS_LAST,
    "redtox_ld_sum_op": OpKind.ACCUM_SUM_TO_DIMX,
}
_BOTH_LEVELS: Final = (
    OpKind.MATMUL,
    OpKind.ADD,
    OpKind.MUL,
    OpKind.DIV,
    OpKind.EXP,
    OpKind.SQRT,
    OpKind.SQUARE,
    OpKind.SILU,
    OpKind.GELU,
    OpKind.RELU,
    OpKind.LOG,
)


def _level(prefix: str) -> dict[str, OperatorName]:
    rows = {f"{prefix}_{kind.value}_op": OperatorName(kind) for kind in _BOTH_LEVELS}
    rows |= {f"{prefix}_reduction_{dim}_op": OperatorName(OpKind.SUM, dim) for dim in range(NAMED_DIMS)}
    rows[f"{prefix}_rms_norm_op"] = OperatorName(OpKind.RMS_NORM, LAST)
    return rows


def _block() -> dict[str, OperatorName]:
    rows = _level("tb")
    rows |= {f"tb_{kind.value}_op": OperatorName(kind) for kind in (OpKind.SUB, OpKind.SIGMOID)}
    rows |= {f"tb_reduction_{dim}_to_dimx_op": OperatorName(OpKind.SUM_TO_DIMX, dim) for dim in range(NAMED_DIMS)}
    rows |= {f"tb_concat_{dim}_op": OperatorName(OpKind.CONCAT, dim) for dim in range(NAMED_DIMS)}
    for dialect, (name, kind) in product((SAVED, CURRENT), _ACCUMULATORS.items()):
        rows[dialect.accumulator + name] = OperatorName(kind)
    return rows


#: Predefined kernel operators by name.
KERNEL_ROWS: Final[Mapping[str, OperatorName]] = MappingProxyType(_level("kn"))
#: Block operators by name; accumulators have two names each.
BLOCK_ROWS: Final[Mapping[str, OperatorName]] = MappingProxyType(_block())

_NO_FACTOR: Final = "its factor is not in the file"
_NO_BOUNDS: Final = "its bounds are not in the file"
_RESCALING: Final = "online softmax of that system is not read; accum_rescaled_sum is its counterpart"
_PARALLEL: Final = "programs over several GPUs are not read"
#: The reasons for refusing operators that the format names.
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("kn_mul_scalar_op", "tb_mul_scalar_op"), _NO_FACTOR),
        **dict.fromkeys(("kn_clamp_op", "tb_clamp_op"), _NO_BOUNDS),
        **dict.fromkeys((f"tb_reduction_{dim}_max_op" for dim in range(NAMED_DIMS)), _RESCALING),
        "tb_forloop_accum_nored_rescale_op": _RESCALING,
        "tb_forloop_accum_red_ld_sum_rescale_op": _RESCALING,
        "tb_forloop_accum_max_op": _RESCALING,
        "kn_allreduce_op": _PARALLEL,
        **dict.fromkeys(("kn_pow_op", "tb_pow_op"), "its exponent is not in the file"),
    }
)


def kernel_name(row: OperatorName) -> str | None:
    """Return the name of a kernel operator; None if the format has none."""
    return next((name for name, known in KERNEL_ROWS.items() if known == row), None)


def block_name(row: OperatorName, dialect: Dialect) -> str | None:
    """Return the name of a block operator in a dialect; None if the format has none."""
    found = [name for name, known in BLOCK_ROWS.items() if known == row]
    return next((n for n in found if n.startswith(dialect.accumulator)), found[0] if found else None)
