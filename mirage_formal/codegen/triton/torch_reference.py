"""A float64 reference of a program as lines of plain torch: one more abstract domain for its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from mirage_formal.codegen.triton.elementwise_text import python_float
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.function_table import FUNCTION_SPECS
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import KEEPABLE, LOOP_AXIS, UntiledDomain

_UNARY: Final = {
    **{kind: row.torch for kind, row in FUNCTION_SPECS.items()},
    OpKind.SQUARE: "{0} * {0}",
    OpKind.RECIPROCAL: "1.0 / {0}",
    OpKind.ROUND_FLOAT16: "{0}.to(torch.float16).double()",
    OpKind.ROUND_BFLOAT16: "{0}.to(torch.bfloat16).double()",
}
_BINARY: Final = {
    OpKind.ADD: "{0} + {1}",
    OpKind.SUB: "{0} - {1}",
    OpKind.MUL: "{0} * {1}",
    OpKind.DIV: "{0} / {1}",
    OpKind.MAXIMUM: "torch.maximum({0}, {1})",
    OpKind.MINIMUM: "torch.minimum({0}, {1})",
    OpKind.SELECT: "torch.where({0} != 0.0, {1}, 0.0)",
    OpKind.EQ: "({0} == {1}).double()",
    OpKind.LT: "({0} < {1}).double()",
    OpKind.LE: "({0} <= {1}).double()",
    OpKind.DIV_NO_NAN: "torch.where({1} == 0.0, {0} * 0.0, {0} / {1})",
}
#: Helper functions of torch over the loop's axis, for programs with block graphs.
HELPERS: Final = {
    "_running_max": f'''def _running_max(x, axis):
    """The largest along an axis so far, and exp of what it was before minus that; 0 in the first iteration."""
    largest = torch.cummax(x.amax(axis, keepdim=True), {LOOP_AXIS}).values.clamp_min(torch.finfo(x.dtype).min)
    factor = torch.zeros_like(largest)
    count = largest.shape[{LOOP_AXIS}] - 1
    later = largest.narrow({LOOP_AXIS}, 1, count)
    factor.narrow({LOOP_AXIS}, 1, count).copy_(torch.exp(largest.narrow({LOOP_AXIS}, 0, count) - later))
    return largest, factor
''',
    "_rescaled_sum": '''def _rescaled_sum(x, factor, axis):
    """The sum over the iterations, multiplied by each one's factor before its term is added."""
    total = x.narrow(axis, 0, 1)
    for i in range(1, x.shape[axis]):
        total = total * factor.narrow(axis, i, 1) + x.narrow(axis, i, 1)
    return total
''',
}


@dataclass(frozen=True, slots=True)
class TorchReference:
    """A program in torch.

    Attributes:
        lines: The statements; inputs are float64 already.
        results: Names of the outputs.
        helpers: Names of ``HELPERS`` that they call.
    """

    lines: tuple[str, ...]
    results: tuple[str, ...]
    helpers: tuple[str, ...]


def torch_reference(program: KernelGraph, names: Sequence[str]) -> TorchReference:
    """Return the statements that compute a program's outputs from inputs of these names."""
    domain = _TorchDomain()
    results = evaluate(program, list(names), domain)
    live, kept = set(results), list[str]()
    for made, text, read in reversed(domain.lines):
        if live.isdisjoint(made):
            continue
        live |= set(read)
        kept.append(f"{', '.join(made)} = {text}")
    text = "\n".join(kept)
    return TorchReference(tuple(reversed(kept)), results, tuple(name for name in HELPERS if f"{name}(" in text))


@dataclass(slots=True)
class _TorchDomain(UntiledDomain[str]):
    """An abstract domain of torch tensor names; each operator adds a line."""

    #: Names that a line defines, its right side, and names that it reads.
    lines: list[tuple[tuple[str, ...], str, tuple[str, ...]]] = field(default_factory=list)
    keeps: frozenset[OpKind] = KEEPABLE
    count: int = 0

    def line(self, text: str, *operands: str) -> str:
        """Add the line of an expression and return the name of its result."""
        self.count += 1
        self.lines.append(((f"v{self.count}",), text.format(*operands), operands))
        return f"v{self.count}"

    def unary(self, kind: OpKind, a: str) -> str:
        """Implement ``Domain.unary``."""
        return self.line(_UNARY[kind], a)

    def binary(self, kind: OpKind, a: str, b: str) -> str:
        """Implement ``Domain.binary``."""
        return self.line(_BINARY[kind], a, b)

    def matmul(self, a: str, b: str, inner: int) -> str:
        """Implement ``Domain.matmul``."""
        return self.line("torch.matmul({0}, {1})", a, b)

    def scale(self, a: str, factor: Fraction) -> str:
        """Implement ``Domain.scale``."""
        return self.line(f"{{0}} * {python_float(float(factor))}" if factor else "torch.zeros_like({0})", a)

    def offset(self, a: str, constant: Fraction) -> str:
        """Implement ``Domain.offset``."""
        return self.line(f"{{0}} + {python_float(float(constant))}", a)

    def sum(self, a: str, axis: int, extent: int, kept: int) -> str:
        """Implement ``Domain.sum``."""
        if kept == 1:
            return self.line(f"{{0}}.sum({axis}, keepdim=True)", a)
        return self.line(f"{{0}}.unflatten({axis}, ({extent // kept}, {kept})).sum({axis})", a)

    def ordered(self, kind: OpKind, operands: tuple[str, ...], axis: int, extent: int) -> tuple[str, ...]:
        """Implement ``Domain.ordered``."""
        match kind:
            case OpKind.MAX:
                return (self.line(f"{{0}}.amax({axis}, keepdim=True)", *operands),)
            case OpKind.RUNNING_MAX:
                self.count += 2
                made = (f"v{self.count - 1}", f"v{self.count}")
                self.lines.append((made, f"_running_max({operands[0]}, {axis})", operands))
                return made
            case OpKind.ACCUM_RESCALED_SUM:
                return (self.line(f"_rescaled_sum({{0}}, {{1}}, {axis})", *operands),)
            case _:
                raise AssertionError(kind)

    def softmax(self, a: str, axis: int, extent: int) -> str:
        """Implement ``Domain.softmax``."""
        return self.line(f"torch.softmax({{0}}, {axis})", a)

    def reshape(self, a: str, shape: Shape) -> str:
        """Implement ``Domain.reshape``."""
        return self.line(f"{{0}}.reshape({shape})", a)

    def transpose(self, a: str, perm: tuple[int, ...]) -> str:
        """Implement ``Domain.transpose``."""
        return self.line(f"{{0}}.permute({perm})", a)

    def concat(self, a: str, b: str, axis: int) -> str:
        """Implement ``Domain.concat``."""
        return self.line(f"torch.cat([{{0}}, {{1}}], {axis})", a, b)

    def slice(self, a: str, axis: int, start: int, stop: int) -> str:
        """Implement ``Domain.slice``."""
        return self.line(f"{{0}}.narrow({axis}, {start}, {stop - start})", a)

    def repeat(self, a: str, axis: int, times: int) -> str:
        """Implement ``Domain.repeat``."""
        return self.line(f"{{0}}.repeat_interleave({times}, {axis})", a)
