"""Reports of how each region of a module is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_formal.torch.import_result import UnsupportedNode


class FallbackWarning(UserWarning):
    """Warning: a call for which an import does not hold is computed by torch. Said once for each module."""


@dataclass(frozen=True, slots=True)
class RegionReport:
    """Report of a region, or of several with the same program.

    Attributes:
        numbers: Numbers of the regions.
        digest: Digest of the program.
        operators: Torch operators of one region.
        unfused_us: Estimated microseconds of the unfused program.
        candidate: Digest of the best candidate; empty if there is none.
        kernels: Number of its kernels.
        verdict: Verdict on the candidate, as in "equivalent".
        estimate_us: Its estimated microseconds.
        evidence: Directory of its evidence.
        backend: Back end of the candidate: "cuda", or "triton".
        claim: Whether the kernels that are installed are proved to compute their µGraph, or only tested; empty where
            none is built yet.
        tested_accepted: Whether kernels that are only tested may be installed.
        kept: Reason why torch keeps the region; empty if the candidate computes it.
        measured_us: Measured microseconds of the candidate; None where nothing was measured.
        others_us: Measured microseconds of torch, or of the compiler of the rest.
        compared: Remark on the sets of tensors that the import was compared on.
        extent: Remark on a search that its time limit has ended; empty if the whole space was searched.
        cut: Whether the time limit has ended its search, or left no time for it.
        conditions: Side conditions under which the program has values; elsewhere nothing is proved. Conditions that
            always hold by their form are left out.
        added: Side conditions of the candidate that the program does not have.
        guarded: Whether each call checks the conditions, and is computed by torch where one does not hold.
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
    claim: str = ""
    tested_accepted: bool = False
    kept: str = ""
    measured_us: float | None = None
    others_us: float | None = None
    compared: str = ""
    extent: str = ""
    cut: bool = False
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
            lines.append(f"  {self._claim()}")
        if self.backend == "triton":
            lines.append("  runs its Triton file, whose functions are tested, not proved to be safe")
        if self.measured_us is not None and self.others_us is not None:
            lines.append(f"  measured: {self.measured_us:.1f} us, without it {self.others_us:.1f} us")
        if self.compared:
            lines.append(f"  {self.compared}")
        if self.extent:
            lines.append(f"  {self.extent}; a longer time_limit continues it, and may find better candidates")
        if not self.kept and (self.conditions or self.added):
            how = "looked at in each call" if self.guarded else "not looked at in calls"
            lines.append(f"  proved where these hold, {how}:")
            lines += [f"    {text}" for text in _counted(self.conditions)]
            lines += [f"    {text} (the candidate's alone)" for text in _counted(self.added)]
        if self.kept:
            lines.append(f"  stays with torch: {self.kept}")
        return "\n".join(lines)

    def _claim(self) -> str:
        """Return the line on whether its kernels are proved to compute their µGraph."""
        if self.claim:
            return f"kernels: {self.claim}"
        which = "tested ones too" if self.tested_accepted else "only those that are proved to compute their µGraph"
        return f"kernels: built at the first call on a GPU, {which}"


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """Report of an optimized module: its regions, the operators left to torch, and measured times.

    Attributes:
        regions: Reports of its regions.
        left: Operators that stay with torch because no program has them.
        ahead: Those of them that depend on no argument.
        measured_us: Measured microseconds of the whole graph with the operators that were timed last, as torch.compile
            compiles what stays with torch; None if not measured.
        others_us: Measured microseconds of the graph without operators, compiled.
        eager_us: Measured microseconds of the graph without operators, not compiled.
        rest: Remark on what computes the operators that stay with torch, if it is not torch one by one.
        seconds: Phases of the call that made the module, with their seconds.
        background: Remarks on searches that continue in the background; empty if none does or did.
        stopped: Remark on what the time limit has ended before there were regions; empty if it was nothing.
    """

    regions: tuple[RegionReport, ...]
    left: tuple[UnsupportedNode, ...]
    ahead: tuple[UnsupportedNode, ...]
    measured_us: float | None = None
    others_us: float | None = None
    eager_us: float | None = None
    rest: str = ""
    seconds: tuple[tuple[str, float], ...] = ()
    background: tuple[str, ...] = ()
    stopped: str = ""

    def __str__(self) -> str:
        lines = [str(region) for region in self.regions] or [self.stopped or "no region"]
        if self.measured_us is not None and self.others_us is not None:
            eager = "" if self.eager_us is None else f", not compiled {self.eager_us:.1f} us"
            text = f"{self.measured_us:.1f} us, without operators {self.others_us:.1f} us{eager}"
            lines.append(f"the whole, measured: {text}")
        if self.rest:
            lines.append(self.rest)
        if self.seconds:
            lines.append("seconds: " + ", ".join(f"{phase} {spent:.1f}" for phase, spent in self.seconds))
        if self.left or self.ahead:
            lines.append("left to torch:")
            lines += [f"  {text}" for text in _counted([str(item) for item in (*self.left, *self.ahead)])]
        lines += self.background
        return "\n".join(lines)


def _counted(texts: Sequence[str]) -> list[str]:
    return [text if count == 1 else f"{text} ({count} times)" for text, count in Counter(texts).items()]


__all__ = ["FallbackWarning", "ModuleReport", "RegionReport"]
