"""Reports of how each region of a module is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_formal.torch.import_result import Left


class FallbackWarning(UserWarning):
    """A call for which an import does not hold; torch computes it as before. Said once for each module."""


@dataclass(frozen=True, slots=True)
class RegionReport:
    """A region, or several with the same program.

    Attributes:
        numbers: Their numbers.
        digest: The digest of the program.
        operators: The operators of torch in one of them.
        unfused_us: Estimated microseconds of the program's operators one by one.
        candidate: The digest of the best candidate; empty if there is none.
        kernels: Its kernels.
        verdict: What is known about it, as in "equivalent".
        estimate_us: Its estimated microseconds.
        evidence: The directory of its evidence.
        backend: What the candidate runs: "cuda", or "triton".
        kept: Why torch keeps the region; empty if the candidate computes it.
        measured_us: Measured microseconds of the candidate; None where nothing was measured.
        others_us: Those of torch, or of the compiler that has the rest.
        compared: With what the import was compared before anything was made of it.
        conditions: What must hold for the program to have values; elsewhere nothing is proved. What its form shows to
            hold for all inputs is left out.
        added: What must hold besides for the candidate.
        guarded: Whether a call looks at the conditions, and is torch's where one does not hold.
    """

    numbers: tuple[int, ...]
    digest: str
    operators: tuple[str, ...]
    unfused_us: float
    candidate: str = ""
    kernels: int = 0
    verdict: str = ""
    estimate_us: float | None = None
    evidence: Path | None = None
    backend: str = "cuda"
    kept: str = ""
    measured_us: float | None = None
    others_us: float | None = None
    compared: str = ""
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    guarded: bool = False

    def __str__(self) -> str:
        several = len(self.numbers) > 1
        head = f"region{'s' if several else ''} {', '.join(map(str, self.numbers))}: {len(self.operators)} operators"
        lines = [f"{head}{' each' if several else ''}, est. {self.unfused_us:.1f} us one by one"]
        lines.append("  " + ", ".join(_counted(self.operators)))
        if self.estimate_us is not None:
            kernels = f"{self.kernels} kernel{'s' if self.kernels != 1 else ''}"
            text = f"  candidate {self.candidate[:12]}: {self.verdict}, {kernels}, est. {self.estimate_us:.1f} us"
            lines += [text, f"  evidence: {self.evidence}"]
        if self.backend == "triton":
            lines.append("  runs its Triton file, whose functions are tested, not proved to be safe")
        if self.measured_us is not None and self.others_us is not None:
            lines.append(f"  measured: {self.measured_us:.1f} us, without it {self.others_us:.1f} us")
        if self.compared:
            lines.append(f"  {self.compared}")
        if not self.kept and (self.conditions or self.added):
            how = "looked at in each call" if self.guarded else "not looked at in calls"
            lines.append(f"  proved where these hold, {how}:")
            lines += [f"    {text}" for text in _counted(self.conditions)]
            lines += [f"    {text} (the candidate's alone)" for text in _counted(self.added)]
        if self.kept:
            lines.append(f"  stays with torch: {self.kept}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """Report of an optimized module: its regions, the operators left to torch, and measured times.

    Attributes:
        regions: Its regions.
        left: The operators that stay with torch because no program has them.
        ahead: Those of them that no argument matters for.
        measured_us: Measured microseconds of the whole graph with the operators that were timed last; None where it was
            not measured.
        others_us: Those of the graph without operators.
    """

    regions: tuple[RegionReport, ...]
    left: tuple[Left, ...]
    ahead: tuple[Left, ...]
    measured_us: float | None = None
    others_us: float | None = None

    def __str__(self) -> str:
        lines = [str(region) for region in self.regions] or ["no region"]
        if self.measured_us is not None and self.others_us is not None:
            lines.append(f"the whole, measured: {self.measured_us:.1f} us, without operators {self.others_us:.1f} us")
        if self.left or self.ahead:
            lines.append("left to torch:")
            lines += [f"  {text}" for text in _counted([str(item) for item in (*self.left, *self.ahead)])]
        return "\n".join(lines)


def _counted(texts: Sequence[str]) -> list[str]:
    return [text if count == 1 else f"{text} ({count} times)" for text, count in Counter(texts).items()]


__all__ = ["FallbackWarning", "RegionReport", "Report"]
