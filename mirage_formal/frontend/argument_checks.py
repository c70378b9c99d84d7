"""Helpers of the front end: the user's line, names of tensors, element types, exact numbers, dims and maps."""

from __future__ import annotations

import dis
import os
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from operator import index
from types import EllipsisType, FrameType
from typing import Final

from mirage_formal.frontend.origins import Origin
from mirage_formal.graph.type_rules import shape_fault
from mirage_formal.graph.types import Dim3, DimMap, DType, Shape
from mirage_formal.support.errors import DTypeError, MirageError, ShapeError, UnsupportedError

Number = int | float | Fraction | Decimal
#: One dim, several, or all for None; negative ones count from the last.
Dims = int | Sequence[int] | None
#: Index in the brackets behind a tensor.
Part = int | slice | EllipsisType | None

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MAX_DIGITS: Final = 1000
_STORES: Final = ("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_FAST_LOAD_FAST")
_SYMBOLS: Final = {
    **{name: "+" for name in ("__add__", "__radd__")},
    **{name: "-" for name in ("__sub__", "__rsub__", "__neg__")},
    **{name: "*" for name in ("__mul__", "__rmul__")},
    **{name: "/" for name in ("__truediv__", "__rtruediv__")},
    "__matmul__": "@",
    "__pow__": "**",
    "__getitem__": "[]",
}
_LOADS: Final = ("LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_GLOBAL", "LOAD_DEREF")
_DTYPES: Final = {
    "float16": DType.FLOAT16,
    "half": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "bf16": DType.BFLOAT16,
    "float32": DType.FLOAT32,
    "float": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "bool": DType.BOOL,
    "bool_": DType.BOOL,
}


class IgnoredOptionWarning(UserWarning):
    """Warning about an option that other systems have and this one accepts without effect."""


def user_frame() -> FrameType | None:
    """Return the innermost frame outside this package: the user's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_internal_frame(frame):
        frame = frame.f_back
    return frame


def is_internal_file(path: str) -> bool:
    """Return whether a file of code is of this package or of torch."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    own = (_PACKAGE,) if file is None else (_PACKAGE, os.path.dirname(file) + os.sep)
    return os.path.abspath(path).startswith(own)


def _is_internal_frame(frame: FrameType) -> bool:
    """Return whether a frame is of this package, of torch, or of an import statement between it and the user."""
    path = frame.f_code.co_filename
    return is_internal_file(path) or path.startswith("<frozen importlib")


def user_origin() -> Origin | None:
    """Return the user's line, and the function of the front end that it calls."""
    frame: FrameType | None = sys._getframe(1)
    call = ""
    while frame is not None and _is_internal_frame(frame):
        call = frame.f_code.co_name
        frame = frame.f_back
    return None if frame is None else Origin(frame.f_code.co_filename, frame.f_lineno, _SYMBOLS.get(call, call))


def user_line() -> str:
    """Return the user's file and line as in ``examples/attn.py:14``, relative to the working directory if below it."""
    return str(user_origin() or "")


def error_at_user_line(error: type[MirageError], what: str, hint: str) -> MirageError:
    """Return an error of the given class that names the user's file and line."""
    return error(what, where=user_line(), hint=hint)


def reject_unknown_options(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse options that a function does not have.

    Args:
        where: Name of the called function.
        given: Names of the given options.
        known: Names of the options that there are.

    Raises:
        UnsupportedError: An option is unknown; names it, and the option that it resembles.
    """
    if unknown := sorted(set(given).difference(known)):
        from difflib import get_close_matches  # for errors alone

        near = [name for one in unknown for name in get_close_matches(one, known, n=1)]
        hint = f"did you mean {', '.join(near)}? " if near else ""
        hint += "the options are " + ", ".join(known)
        raise error_at_user_line(UnsupportedError, f"{where}: no option is called {', '.join(unknown)}", hint)


def warn_ignored(what: str) -> None:
    """Warn, at the user's line, that an option has no effect here."""
    frame = user_frame()
    path, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 1)
    warnings.warn_explicit(f"{what} has no effect here", IgnoredOptionWarning, path, line)


def assigned_name() -> str | None:
    """Return the variable that the user's line assigns to, as ``Q`` in ``Q = graph.new_input(...)``; None if none.

    It is read from the bytecode behind the running call, so it depends on the user's source text only.
    """
    frame = user_frame()
    if frame is None:
        return None
    following = (
        i
        for i in dis.get_instructions(frame.f_code)
        if i.offset > frame.f_lasti and i.opname not in ("CACHE", "EXTENDED_ARG")
    )
    store = next(following, None)
    if store is not None and store.opname in _LOADS:
        # self.Q = graph.new_input(...): the object is loaded first.
        store = next(following, None)
        if store is None or store.opname != "STORE_ATTR":
            return None
    if store is None or store.opname not in _STORES:
        return None
    name = store.argval[0] if isinstance(store.argval, tuple) else store.argval
    return name if isinstance(name, str) and name.isidentifier() else None


def parse_dtype(given: object) -> DType:
    """Return the element type that a DType, a name or a torch or numpy type stands for.

    Raises:
        DTypeError: It stands for none that is supported.
    """
    if isinstance(given, DType):
        return given
    text = given if isinstance(given, str) else getattr(given, "__name__", None) or str(given)
    found = _DTYPES.get(text.rpartition(".")[2])
    if found is None:
        names = ", ".join(d.value for d in DType)
        raise error_at_user_line(DTypeError, f"dtype: expected one of {names}, got {given!r}", f"use one of {names}")
    return found


def is_number(value: object) -> bool:
    """Return whether a value is a Python (or numpy) real number."""
    return isinstance(value, int | float | Fraction | Decimal) or _is_scalar(value)


def _is_scalar(value: object) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()


def parse_number(operator: str, value: object) -> Fraction:
    """Return the exact number that the user wrote.

    A float stands for the shortest decimal text that denotes it, so 0.1 is one tenth; a Fraction is itself.

    Raises:
        UnsupportedError: It is no finite real number, or has too many digits.
    """
    item = getattr(value, "item", None)
    if _is_scalar(value) and callable(item):
        value = item()
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | Decimal):
        raise error_at_user_line(
            UnsupportedError,
            f"{operator}: expected a number, got {type(value).__name__}",
            "use an int, float or Fraction",
        )
    try:
        found = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
        small = max(abs(found.numerator), found.denominator) < 10**_MAX_DIGITS
    except (ValueError, OverflowError):
        raise error_at_user_line(
            UnsupportedError, f"{operator}: expected a finite number, got {value}", "use a finite number"
        ) from None
    if not small:
        raise error_at_user_line(
            UnsupportedError, f"{operator}: expected a number of few digits, got a huge one", "round it"
        )
    return found


def parse_eps(operator: str, eps: object) -> Fraction | None:
    """Return the exact constant under a root; None for None and 0.

    Raises:
        UnsupportedError: It is negative or no finite number.
    """
    if eps is None:
        return None
    found = parse_number(operator, eps)
    if found < 0:
        raise error_at_user_line(
            UnsupportedError, f"{operator}: expected eps >= 0, got {eps}", "give a small positive eps"
        )
    return found or None


def parse_int(operator: str, name: str, value: object) -> int:
    """Return an integer argument.

    Raises:
        ShapeError: It is no integer.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        hint = f"give {name} as integers"
        raise error_at_user_line(
            ShapeError, f"{operator}: expected {name} to be an integer, got {value!r}", hint
        ) from None


def parse_ints(operator: str, name: str, values: object) -> tuple[int, ...]:
    """Return a tuple of integers; a single integer stands for a tuple of one.

    Raises:
        ShapeError: It is none.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        return (parse_int(operator, name, values),)
    return tuple(parse_int(operator, name, value) for value in values)


def parse_shape(operator: str, name: str, values: object) -> Shape:
    """Return a shape within the limits of the system.

    Raises:
        ShapeError: It is none.
    """
    shape = parse_ints(operator, name, values)
    if (fault := shape_fault(shape)) is not None:
        raise error_at_user_line(ShapeError, f"{operator}: {name}: {fault}", "give positive extents within this limit")
    return shape


def parse_layout(
    operator: str, given: tuple[object, ...], strides: object, dtype: object
) -> tuple[Sequence[int] | None, DType]:
    """Return strides and element type, given by name or by position; a positional value's kind tells which it is.

    Raises:
        ShapeError: Something is given twice, or the strides are none.
        DTypeError: The element type is not supported.
    """
    for value in given:
        if value is None:
            continue
        if isinstance(value, tuple | list):
            again, strides = strides is not None, value
        else:
            again, dtype = dtype is not None, value
        if again:
            hint = f"write {operator}(dims, strides, dtype)"
            raise error_at_user_line(
                ShapeError, f"{operator}: expected strides and dtype once, got {value!r} as well", hint
            )
    steps = None if strides is None else parse_ints(operator, "strides", strides)
    return steps, DType.FLOAT16 if dtype is None else parse_dtype(dtype)


def parse_dim(operator: str, dim: object, rank: int, tensor: str) -> int:
    """Return a dim counted from 0; negative ones count from the end.

    Raises:
        ShapeError: The tensor has no such dim.
    """
    found = parse_int(operator, "dim", dim)
    if not -rank <= found < rank:
        raise error_at_user_line(
            ShapeError, f"{operator}: expected a dim in {-rank}..{rank - 1} of {tensor}, got {found}", "fix dim"
        )
    return found % rank


def parse_dim3(operator: str, name: str, values: object) -> Dim3:
    """Return a launch geometry: up to three positive integers, filled up with ones.

    Raises:
        ShapeError: It is none.
    """
    found = parse_ints(operator, name, values)
    if not 1 <= len(found) <= 3 or any(extent < 1 for extent in found):
        hint = f"write {name}=(x, y, z)"
        raise error_at_user_line(
            ShapeError, f"{operator}: expected {name} of three positive integers, got {values!r}", hint
        )
    x, y, z = (*found, 1, 1)[:3]
    return (x, y, z)


def parse_map(operator: str, name: str, values: object) -> DimMap:
    """Return a map from the grid axes to dims; None and -1 both mean that the axis splits none.

    Raises:
        ShapeError: It is none.
    """
    if not isinstance(values, Sequence) or len(values) != 3:
        hint = f"write {name}=(x, y, z); -1 where the axis cuts no dim"
        raise error_at_user_line(
            ShapeError,
            f"{operator}: expected {name} of one dim or -1 for each of the three grid axes, got {values!r}",
            hint,
        )
    x, y, z = (parse_optional_dim(operator, name, value) for value in values)
    return (x, y, z)


def parse_optional_dim(operator: str, name: str, value: object) -> int | None:
    """Return a dim, or None for None and -1.

    Raises:
        ShapeError: It is neither.
    """
    if value is None:
        return None
    found = parse_int(operator, name, value)
    if found < -1:
        raise error_at_user_line(
            ShapeError, f"{operator}: expected {name} to be a dim or -1, got {found}", "count dims from 0"
        )
    return None if found == -1 else found
