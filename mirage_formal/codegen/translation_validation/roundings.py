"""Conversions of a Program between element types, which the claim ``realizes`` takes as the identity."""

from __future__ import annotations

from collections import Counter

from mirage_formal.codegen.program.program import (
    Apply,
    GlobalWrite,
    KernelFn,
    Mma,
    Pack,
    Program,
    SharedWrite,
    all_statements,
)
from mirage_formal.codegen.translation_validation.program_evaluation import nested_values, values_of
from mirage_formal.graph.types import DType

_FUNCTIONS = {KernelFn.ROUND_HALF: DType.FLOAT16, KernelFn.ROUND_BFLOAT: DType.BFLOAT16}


def roundings(program: Program) -> tuple[str, ...]:
    """Return what rounds values in a Program, with the number of statements, in a fixed order.

    A value is float32 in registers. Stores, packs and functions round it to a narrower element type, and matrix units
    split float32 operands into parts with fewer bits.
    """
    kinds = {param.name: param.dtype for param in program.params}
    kinds |= {buffer.name: buffer.dtype for buffer in program.shared}
    found: Counter[str] = Counter()
    for statement in all_statements(program.body):
        match statement:
            case SharedWrite(buffer=name) | GlobalWrite(param=name) if kinds[name] in _FUNCTIONS.values():
                found[f"stored to {name} as {kinds[name].value}"] += 1
            case Pack():
                found[f"packed as {statement.dtype.value}"] += 1
            case Mma() if statement.dtype is DType.FLOAT32:
                found["multiplied in parts of fewer bits than float32"] += 1
            case _:
                pass
        for value in values_of(statement):
            for one in nested_values(value):
                if isinstance(one, Apply) and one.fn in _FUNCTIONS:
                    found[f"rounded to {_FUNCTIONS[KernelFn(one.fn)].value}"] += 1
    return tuple(f"{what}: {count} statements" for what, count in sorted(found.items()))


__all__ = ["roundings"]
