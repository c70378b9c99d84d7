"""The record of the claim that a kernel realizes its operator of the µGraph, with the conversions that it leaves out.

The claim takes conversions between element types as the identity. So the record lists them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import Apply, GlobalWrite, KernelFn, Mma, Pack, Program, SharedWrite
from mirage_formal.codegen.translation_validation.field_points import BITS, POINTS
from mirage_formal.codegen.translation_validation.program_evaluation import parts
from mirage_formal.codegen.translation_validation.realization import Deviates, Realizes, decide_realizes
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.records import RealizationRecord

_FUNCTIONS: Final = {KernelFn.ROUND_HALF: DType.FLOAT16, KernelFn.ROUND_BFLOAT: DType.BFLOAT16}


def realization_record(graph: KernelGraph, kernel: GeneratedKernel) -> RealizationRecord:
    """Decide the claim at points drawn anew, and return its record; see ``decide_realizes``."""
    verdict = decide_realizes(graph, kernel)
    reason = "" if isinstance(verdict, Realizes) else verdict.reason
    if isinstance(verdict, Deviates):
        by = "" if verdict.thread is None else f", thread {verdict.thread}"
        reason += f" (block {verdict.block}{by}, element {verdict.address} of result {verdict.output})"
    holds = verdict if isinstance(verdict, Realizes) else None
    return RealizationRecord(
        kernel=kernel.program.name,
        verdict="realizes" if holds is not None else "deviates" if isinstance(verdict, Deviates) else "unknown",
        reason=reason,
        classes=holds.classes if holds is not None else 0,
        elements=holds.elements if holds is not None else 0,
        points=POINTS if holds is not None else 0,
        bits=BITS,
        roundings=roundings(kernel.program),
    )


def roundings(program: Program) -> tuple[str, ...]:
    """Return what rounds values in a Program, with the number of statements, in a fixed order.

    A value is float32 in registers. Stores, packs and functions round it to a narrower element type, and matrix units
    split float32 operands into parts with fewer bits.
    """
    kinds = {param.name: param.dtype for param in program.params}
    kinds |= {buffer.name: buffer.dtype for buffer in program.shared}
    found: Counter[str] = Counter()
    for part in parts(program.body):
        match part:
            case SharedWrite(buffer=name) | GlobalWrite(param=name) if kinds[name] in _FUNCTIONS.values():
                found[f"stored to {name} as {kinds[name].value}"] += 1
            case Pack():
                found[f"packed as {part.dtype.value}"] += 1
            case Mma() if part.dtype is DType.FLOAT32:
                found["multiplied in parts of fewer bits than float32"] += 1
            case Apply() if part.fn in _FUNCTIONS:
                found[f"rounded to {_FUNCTIONS[KernelFn(part.fn)].value}"] += 1
            case _:
                pass
    return tuple(f"{what}: {count} statements" for what, count in sorted(found.items()))


__all__ = ["realization_record", "roundings"]
