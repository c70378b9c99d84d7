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


__all__ = ["realization_record"]
