"""The records that runs on a device write beside kernels: how exact they are, and how fast.

They are written on the machine that runs the kernels and read there and by the independent checker; reading needs
msgspec only.
"""

from __future__ import annotations

from typing import Final, Literal

from mirage_formal.records.run import (
    NO_SEAL,
    Count,
    Figure,
    Positive,
    Record,
    Sha256,
    Title,
    VersionedRecord,
    Word,
)

NUMERICS_FILE: Final = "numerics.json"
MEASURE_FILE: Final = "measure.json"
#: Written by runs on a device, after the manifest, with a seal of their own.
DEVICE_FILES: Final = (NUMERICS_FILE, MEASURE_FILE)


#: Of the time of CUDA kernels the share that a Triton file has to save, so that it takes their place.
TRITON_GAIN: Final = 0.02

#: within: every element lies within its tolerance. outside: one does not. undecided: the tolerance says nothing.
Answer = Literal["within", "outside", "undecided"]
#: A number, or in a file null for one that is not finite.
Finite = Figure | None


class OutputRecord(Record, frozen=True, kw_only=True):
    """One output at one scale.

    Attributes:
        answer: What the comparison says.
        max_absolute_error: Largest difference from the exact value.
        max_relative_error: The same over the magnitude of the largest exact value.
        relative_norm: Norm of the difference over the norm of the exact values.
        max_ulps: Largest difference in units of the element type's spacing at the exact value.
        max_ratio: Largest difference over tolerance; at most 1 is within.
        largest: Magnitude of the largest exact value.
        median_tolerance, max_tolerance: Of the elements' tolerances.
        elements: How many were compared.
        beyond_range: How many exact values the element type cannot hold; there only infinity is right.
        reason: Why it is outside or undecided.
        lost: How many elements the program's own operators cannot be relied on to compute in their element types; these
            are not compared.
    """

    answer: Answer
    max_absolute_error: Finite
    max_relative_error: Finite
    relative_norm: Finite
    max_ulps: Finite
    max_ratio: Finite
    largest: Finite
    median_tolerance: Finite
    max_tolerance: Finite
    elements: Count
    beyond_range: Count
    reason: str = ""
    lost: Count = 0


class ScaleRecord(Record, frozen=True, kw_only=True):
    """All outputs at one scale.

    Attributes:
        scale: Standard deviation of the inputs.
        seed: Seed of the inputs.
        answer: "within" if all outputs are.
        outputs: One record for each.
        overflows: Device tensors between kernels whose exact values their element type cannot hold.
    """

    scale: Figure
    seed: Count
    answer: Answer
    outputs: tuple[OutputRecord, ...]
    overflows: tuple[str, ...] = ()


class NumericsRecord(VersionedRecord, frozen=True, kw_only=True):
    """numerics.json: what was compared, and the outcome.

    Attributes:
        kernels: Sha256 of the directory's manifest.json; null for a comparison that belongs to no directory.
        candidate: Digest of the µGraph that the kernels compute.
        device: What the kernels ran on.
        answer: "within" if all scales are.
        tolerance_lambda: Factor of the tolerance, docs/kernels.md.
        scales: One record for each scale.
        seal: See ManifestRecord.
    """

    kernels: Sha256 | None = None
    candidate: str
    device: Word
    answer: Answer
    tolerance_lambda: Figure
    scales: tuple[ScaleRecord, ...]
    seal: Sha256 = NO_SEAL


class TuningRecord(Record, frozen=True, kw_only=True):
    """How the kernels of a measured candidate were chosen.

    Attributes:
        candidates: Candidates and their forms whose kernels were considered.
        kernels: Distinct kernels: a block graph or a predefined operator, with a schedule.
        refused: Of these, how many have no machine code that may run: an obligation did not hold, or the compiler
            failed.
        timed: Of these, how many were timed on the device.
        model_rank: Rank of this candidate by the cost model among all that were considered, from 1.
        schedule_ranks: For each generated kernel with a choice of schedules, the rank of its own in the order in which
            they are tried, from 1.
        composed_us: Sum of the times of its kernels, each timed by itself.
    """

    candidates: Positive
    kernels: Positive
    refused: Count
    timed: Positive
    model_rank: Positive
    schedule_ranks: tuple[Positive, ...]
    composed_us: Figure


class TritonVariantRecord(Record, frozen=True, kw_only=True):
    """A Triton file of a candidate, with one choice of launch options.

    Attributes:
        sha256: Of its text.
        warps: Factor of the number of warps that a function has by itself.
        stages: Stages of pipelined loops; null: each function's own.
        us: Microseconds of a call, median of a short run; null if it has none.
        answer: Of its numerics; null if it was not compared, as what is too slow is not.
        failed: Why it is out of the question, or empty.
    """

    sha256: Sha256
    warps: Figure
    stages: Positive | None
    us: Figure | None = None
    answer: Answer | None = None
    failed: Title = ""


class TritonAccessRecord(Record, frozen=True, kw_only=True):
    """Bounds of one load or store of a Triton file, decided from the index and the mask in its text.

    Attributes:
        function: Name of the function.
        line: Line of the file.
        access: "load" or "store"; "use" where a pointer occurs in another way.
        pointer: Name of the parameter.
        claim: What would hold.
        finding: "held": for all programs, iterations and lanes at which the mask holds. "undecided": neither proved nor
            refuted, and never taken for the former. A file in which one is violated is not written.
        means: How it was settled: by bounds of the expressions, or by z3 and cvc5; empty where it is undecided.
        reason: Why it is undecided, or empty.
    """

    function: Word
    line: Positive
    access: Literal["load", "store", "use"]
    pointer: Word
    claim: Word
    finding: Literal["held", "undecided"]
    means: Literal["", "interval", "solver"] = ""
    reason: Title = ""

    def __post_init__(self) -> None:
        """Sound: what is held was settled by something, and what is undecided by nothing."""
        if (self.finding == "held") != bool(self.means) or (self.finding == "undecided") != bool(self.reason):
            raise ValueError("expected a means of what is held, and a reason of what is undecided")


class TritonLogRecord(VersionedRecord, frozen=True, kw_only=True):
    """Verification log of a Triton file: what is established about it, and what is not.

    Attributes:
        file: Sha256 of its text.
        graph: Digest of the µGraph that it is written from: the candidate's, or a form that was proved equal to it.
        verdict: Verdict on that candidate and its program, as the evidence in the run has it.
        text: That the file computes the µGraph is tested, and not proved.
        accepted: It was accepted as tested; Triton files are never accepted as proved.
        races: Nothing is claimed about races of its programs and threads.
        accesses: Each load and store.
    """

    file: Sha256
    graph: Sha256
    verdict: Literal["equivalent", "probable"]
    text: Literal["not proved"] = "not proved"
    accepted: Literal["tested"] = "tested"
    races: Literal["no claim"] = "no claim"
    accesses: tuple[TritonAccessRecord, ...]


class TritonRecord(Record, frozen=True, kw_only=True):
    """A candidate's Triton files beside CUDA kernels, as one run of tuning timed them.

    The functions of a Triton file are tested, and not proved safe; ``log`` says what is known about them.

    Attributes:
        versions: Of torch and Triton; empty if they are not there.
        tried: The files.
        chosen: Sha256 of the fastest one within tolerance, if one was compared.
        us: Microseconds of its call, median; null unless it was measured in turns with CUDA kernels.
        cuda_us: The same of the fastest CUDA kernels of the run, in the same turns.
        scales: Its results beside float64.
        backend: Which of the two is faster: "triton" only if that takes at most 98 % of the time of the other.
        reason: Why no file was tried, or none was chosen; or empty.
        log: What is established about the chosen file; null without one, and in records of earlier versions.
    """

    versions: Title = ""
    tried: tuple[TritonVariantRecord, ...] = ()
    chosen: Sha256 | None = None
    us: Figure | None = None
    cuda_us: Figure | None = None
    scales: tuple[ScaleRecord, ...] = ()
    backend: Literal["cuda", "triton"] = "cuda"
    reason: Title = ""
    log: TritonLogRecord | None = None

    def __post_init__(self) -> None:
        """Sound: "triton" only beside a file that is within tolerance, and that much faster; others do not exist."""
        known = {one.sha256: one for one in self.tried}
        if len(known) < len(self.tried):
            raise ValueError("expected each Triton file once")
        if self.chosen is not None and (self.chosen not in known or known[self.chosen].answer != "within"):
            raise ValueError("expected the chosen Triton file to be one that was tried and is within tolerance")
        if self.log is not None and self.log.file != self.chosen:
            raise ValueError("expected a log of the chosen Triton file, got one of another")
        if self.backend == "triton" and (self.chosen is None or not is_faster(self.us, self.cuda_us)):
            what = f"at most {1 - TRITON_GAIN:g} of the time of CUDA kernels, got {self.us} and {self.cuda_us}"
            raise ValueError(f"expected a Triton file that takes {what}")


def is_faster(us: float | None, cuda_us: float | None) -> bool:
    """Return whether a Triton file takes the place of CUDA kernels, by microseconds of both; not if one has none."""
    return us is not None and cuda_us is not None and 0 < us <= (1 - TRITON_GAIN) * cuda_us


class MeasureRecord(VersionedRecord, frozen=True, kw_only=True):
    """measure.json: microseconds of one call, by the protocol of docs/kernels.md.

    Attributes:
        kernels: Sha256 of the directory's manifest.json.
        device: What the kernels ran on.
        us: Median over the replays.
        low, high: Fastest and slowest replay.
        spread: Distance of the quartiles over the median.
        replays, calls, sets: What was measured: numbers of replays of a graph, of calls in the graph, and of sets of
        inputs.
        moved_bytes: The fewest bytes that the program moves through device memory.
        tuning: How its kernels were chosen; null if they are the cost model's.
        triton: Its Triton files; null if tuning was not asked for any.
        seal: See ManifestRecord.
    """

    kernels: Sha256
    device: Word
    us: Figure
    low: Figure
    high: Figure
    spread: Figure
    replays: Positive
    calls: Positive
    sets: Positive
    moved_bytes: Count
    tuning: TuningRecord | None = None
    triton: TritonRecord | None = None
    seal: Sha256 = NO_SEAL
