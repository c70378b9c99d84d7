"""The record of the claim that a kernel realizes its operator of the µGraph."""

from __future__ import annotations

from mirage_formal.codegen.generate import GeneratedKernel
from mirage_formal.codegen.translation_validation.field_points import BITS, POINTS
from mirage_formal.codegen.translation_validation.realization import Deviates, Realizes, decide_realizes
from mirage_formal.codegen.translation_validation.roundings import roundings
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import RealizationRecord


def realization_record(graph: KernelGraph, kernel: GeneratedKernel) -> RealizationRecord:
    """Decide the claim at points drawn anew, and return its record; see ``decide_realizes``."""
    name, listed = kernel.program.name, roundings(kernel.program)
    verdict = decide_realizes(graph, kernel)
    if isinstance(verdict, Realizes):
        return RealizationRecord(
            kernel=name,
            verdict="realizes",
            classes=verdict.classes,
            elements=verdict.elements,
            points=POINTS,
            bits=BITS,
            roundings=listed,
        )
    reason = verdict.reason
    if isinstance(verdict, Deviates):
        by = "" if verdict.thread is None else f", thread {verdict.thread}"
        where = f"block {verdict.block}{by}, element {verdict.address} of result {verdict.output}"
        reason = f"{reason} ({where})"
    return RealizationRecord(
        kernel=name,
        verdict="deviates" if isinstance(verdict, Deviates) else "unknown",
        reason=reason,
        classes=0,
        elements=0,
        points=0,
        bits=BITS,
        roundings=listed,
    )


__all__ = ["realization_record"]
