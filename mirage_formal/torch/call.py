"""Interface of the operator rules: one call of an ATen operator, with its arguments and conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite, isinf
from typing import Final, assert_never

from mirage_formal.frontend.argument_checks import parse_number
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.types import DType, Shape
from mirage_formal.torch.imported_values import (
    ImportedGraph,
    ImportedProgram,
    ImportedValue,
    UniformValue,
    unsupported_error,
)
from mirage_formal.torch.index_maps import View, expand_view
from mirage_formal.torch.view_propagation import cast, emit_broadcast_operator

#: Result of a rule: the operator's result, or one for each of its results.
Written = ImportedValue | tuple[ImportedValue, ...]
#: Function that writes an operator for materialized tensors and numbers.
Make = Callable[..., Tensor]
#: An operand: a tensor, a number, or nothing.
Operand = ImportedValue | Fraction | None

#: Element types of torch that programs have, by torch's name.
TYPES: Final = {f"torch.{dtype.value}": dtype for dtype in DType}
MASK: Final = "torch.bool"
NARROW: Final = frozenset({DType.FLOAT16, DType.BFLOAT16})
#: The largest finite number of float32. A larger magnitude is infinite, in every element type.
LARGEST: Final = Fraction((2**24 - 1) * 2**104)
#: The largest finite number of each narrower type.
NARROW_LARGEST: Final = {DType.FLOAT16: Fraction(65504), DType.BFLOAT16: Fraction(2**128 - 2**120)}


@dataclass(slots=True)
class OperatorCall:
    """One ATen operator call with its arguments, as an import rule receives it.

    Attributes:
        program: The program that is written.
        given: The arguments by the names of the operator's schema, defaults filled in. Tensors are Values, a list of
            tensors is a tuple of them, element types are torch's names.
        shape: The extents of its first result in torch.
        dtype: The element type of its first result in torch; None if programs have no such type.
        narrow: Whether every reader of its float32 result finally rounds it to a narrower type.
        rounded: Whether a result of a narrower type than its operand is rounded in the program too, as an operator.
        mask: Function that makes a constant mask of rows, columns, diagonal and side: "lower", "upper" or "diagonal".
        host: Whether torch computes it on the CPU, where an operator may have another formula than on a GPU.
        notes: Remarks for the report on element types that differ from torch's.
    """

    program: ImportedProgram
    given: Mapping[str, object]
    shape: Shape = ()
    dtype: DType | None = None
    narrow: bool = False
    rounded: bool = False
    mask: Callable[[int, int, int, str], ImportedValue] | None = None
    host: bool = False
    notes: list[str] = field(default_factory=list)

    def value(self, name: str = "self") -> ImportedValue:
        """Return a tensor argument.

        Raises:
            MirageError: It is a number or None.
        """
        found = self.given[name]
        if not isinstance(found, ImportedValue):
            raise unsupported_error(f"expected a tensor as {name}, got {found!r}")
        return found

    def optional(self, name: str) -> ImportedValue | None:
        """Return a tensor argument, or None where it is not given."""
        return None if self.given.get(name) is None else self.value(name)

    def values(self, name: str = "tensors") -> tuple[ImportedValue, ...]:
        """Return an argument that is a list of tensors."""
        found = self.given[name]
        if not isinstance(found, tuple | list) or not all(isinstance(item, ImportedValue) for item in found):
            raise unsupported_error(f"expected tensors as {name}, got {found!r}")
        return tuple(found)

    def number(self, name: str) -> Fraction:
        """Return an argument as an exact number within float32's range.

        Raises:
            MirageError: The argument is no number, is not finite, or is beyond the range of float32.
        """
        given = self.given[name]
        if isinstance(given, ImportedValue) and given.number is not None:
            return given.number
        found = parse_number(name, int(given) if isinstance(given, bool) else given)
        import numpy as np

        if abs(found) > LARGEST or (found and not np.float32(float(found))):
            raise unsupported_error(f"expected a number in the range of float32 as {name}, got {given!r}")
        return found

    def factor(self, name: str) -> Fraction:
        """Return an argument as a nonzero number to multiply by.

        Raises:
            MirageError: The argument is no number, or 0: programs have 0 for 0 times NaN and infinity.
        """
        found = self.number(name)
        if not found:
            raise unsupported_error(f"expected a number other than 0 as {name}: NaN and infinity times 0 are NaN")
        return found

    def operand(self, name: str) -> ImportedValue | Fraction:
        """Return an argument as a tensor or a number; a constant tensor of equal elements is returned as a number."""
        given = self.given[name]
        if not isinstance(given, ImportedValue):
            return self.number(name)
        return given if given.number is None else given.number

    def whole(self, name: str) -> int:
        """Return an integer argument.

        Raises:
            MirageError: The argument is no integer: a size that is known at run time only.
        """
        found = self.given[name]
        if not isinstance(found, int):
            raise unsupported_error(f"expected an integer as {name}, got {found!r}")
        return found

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return an argument that is a list of integers; a single integer is a list of one.

        Raises:
            MirageError: An element is no integer: a size that is known at run time only.
        """
        found = self.given[name]
        if isinstance(found, int):
            return (found,)
        if not isinstance(found, Sequence) or not all(isinstance(item, int) for item in found):
            raise unsupported_error(f"expected integers as {name}, got {found!r}")
        return tuple(found)

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """Return an argument as nonnegative dims: one, several, or all dims for None and an empty list."""
        if self.given.get(name) in (None, [], ()):
            return tuple(range(rank))
        return tuple(dim % max(rank, 1) for dim in self.wholes(name))

    def triangle(self, rows: int, columns: int, diagonal: int = 0, *, side: str) -> ImportedValue:
        """Return a constant mask with 1 on a diagonal, and on one side of it for "lower" and "upper"."""
        assert self.mask is not None
        return self.mask(rows, columns, diagonal, side)

    # --- element types ------------------------------------------------------------------------------------------------

    def target(self, values: Sequence[ImportedValue]) -> DType:
        """Return the element type of a result of these operands in the program.

        It is torch's type, except for a float32 result that is rounded afterwards: this has the narrower type of its
        operands, because kernels compute in float32 and round only stored values.
        """
        types = {value.dtype for value in values if value.dtype.floating}
        if not types:
            return self.dtype or DType.BOOL
        if self.dtype is None or not self.dtype.floating:
            # Tensors without dims do not count if there are others.
            wide = {value.dtype for value in values if value.dtype.floating and value.shape}
            types = wide or types
            return next(iter(types)) if len(types) == 1 else DType.FLOAT32
        if self.narrow and self.dtype is DType.FLOAT32 and len(types) == 1:
            return next(iter(types))
        return self.dtype

    def alike(self, values: Sequence[ImportedValue]) -> list[ImportedValue]:
        """Convert operands to the element type of the result; masks become numbers."""
        wanted = self.target(values)
        types = {value.dtype for value in values}
        if len(types) > 1:
            self.notes.append(f"operands of {', '.join(sorted(types))} are cast to {wanted}")
        return [self.cast(value, wanted) for value in values]

    def cast(self, value: ImportedValue, dtype: DType) -> ImportedValue:
        """Convert a value to another element type."""
        if value.number is not None:
            return ImportedValue(UniformValue(round_number(value.number, dtype), dtype), value.view)
        return cast(self.program, value, dtype)

    def map(self, make: Make, *operands: Operand) -> ImportedValue:
        """Write an elementwise operator, and return its result; tensor operands are materialized first.

        Numbers and None are passed on unchanged. Next to a tensor of a narrow type, torch treats float32 without dims
        as a number, and rounds the result only.
        """
        values = [v for v in operands if isinstance(v, ImportedValue)]
        wanted = self.target(values)
        if wanted in NARROW and any(value.dtype is DType.FLOAT32 for value in values):
            return self.wide(make, *operands)
        return self._written(make, operands, wanted)

    def wide(self, make: Make, *operands: Operand) -> ImportedValue:
        """Write an operator of several steps, between which torch rounds to float32 at most; otherwise as ``map``."""
        found = self._written(make, operands, DType.FLOAT32)
        return self.cast(found, self.target([v for v in operands if isinstance(v, ImportedValue)]))

    def logic(self, make: Make, *operands: Operand) -> ImportedValue:
        """Write an operator whose operands keep their element types; otherwise as ``map``."""
        return self._written(make, operands, None)

    def _written(self, make: Make, operands: Sequence[Operand], dtype: DType | None) -> ImportedValue:
        values = [item for item in operands if isinstance(item, ImportedValue)]
        if dtype is not None:
            if len(types := {value.dtype for value in values}) > 1:
                self.notes.append(f"operands of {', '.join(sorted(types))} are cast to {dtype}")
            values = [self.cast(value, dtype) for value in values]

        def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
            left = list(tensors)
            return make(graph, *(left.pop(0) if isinstance(item, ImportedValue) else item for item in operands))

        return emit_broadcast_operator(self.program, values, made)

    def shaped(self, value: ImportedValue) -> ImportedValue:
        """Return a value expanded to the result's shape, which operands that were read as numbers may have widened."""
        if value.shape == self.shape:
            return value
        return ImportedValue(value.base, expand_view(value.view, self.shape), value.keep)

    def accumulated(self, value: ImportedValue) -> ImportedValue:
        """Cast the operand of a reduction to the call's ``dtype`` argument; without one, return it unchanged."""
        return self.typed(value, self.given.get("dtype"))

    def typed(self, value: ImportedValue, wanted: object) -> ImportedValue:
        """Return a value in an element type of torch; None keeps its own.

        A cast to a wider type that is rounded again afterwards is the identity over the reals: kernels accumulate in
        float32, and the rounding that is left out is not part of the model.
        """
        if wanted is None:
            return value
        dtype = TYPES.get(str(wanted))
        if dtype is None:
            raise unsupported_error(f"expected {', '.join(TYPES)}, got {wanted}")
        if self.rounded and dtype in NARROW and value.number is None:
            value = self.map_to(value, lambda graph, x: graph.round_to(x, dtype.value))
        if value.dtype is dtype:
            return value
        if not dtype.floating:
            return self.nonzero(value)
        if dtype is DType.FLOAT32 and self.narrow and value.dtype.floating:
            self.notes.append(f"{value.dtype} read as {dtype}: the identity")
            return value
        text = f"cast from {value.dtype} to {dtype}"
        dropped = dtype in NARROW and value.dtype.floating and not self.rounded
        self.notes.append(f"{text}: intermediate not rounded" if dropped else text)
        return self.cast(value, dtype)

    def map_to(self, value: ImportedValue, make: Make) -> ImportedValue:
        """Write an operator of one operand in the operand's own element type."""
        return self._written(make, (value,), None)

    def nonzero(self, value: ImportedValue) -> ImportedValue:
        """Return a value as a mask: 1 where it is nonzero or NaN; a mask is returned unchanged."""
        if not value.dtype.floating:
            return value
        return self.logic(lambda graph, x: graph.ne(x, 0), self.compared(value))

    def compared(self, value: ImportedValue) -> ImportedValue:
        """Return the value to compare; a computed value of a narrower type is first rounded, as torch stores it."""
        if value.dtype not in NARROW or not isinstance(value.base, Tensor) or value.base in self.program.graph.inputs:
            return value
        return self.logic(lambda graph, x: graph.round_to(x, value.dtype.value), value)


def constant_tensor(number: Fraction, shape: Shape, dtype: DType) -> ImportedValue:
    """Return a constant tensor with the same number everywhere."""
    digits = tuple(((n, 0),) if n > 1 else () for n in shape)
    return ImportedValue(UniformValue(round_number(number, dtype), dtype), View(digits))


def round_number(number: Fraction, dtype: DType) -> Fraction:
    """Return a number rounded to an element type.

    Raises:
        MirageError: It is beyond the type's range.
    """
    import numpy as np

    from mirage_formal.semantics.function_table import round_to_bfloat16

    single = np.float32(float(number))
    match dtype:
        case DType.BOOL:
            return Fraction(int(number != 0))
        case DType.FLOAT16:
            found = float(np.float16(float(number)))
        case DType.BFLOAT16:
            found = float(round_to_bfloat16(np, np.asarray(single)))
        case DType.FLOAT32:
            found = float(single)
        case _:
            assert_never(dtype)
    if not isfinite(found):
        raise unsupported_error(f"expected a number in the range of {dtype}, got {float(number)!r}")
    return Fraction(found)


def is_minus_infinity(value: object) -> bool:
    """Return whether an argument is minus infinity."""
    return isinstance(value, float) and isinf(value) and value < 0
