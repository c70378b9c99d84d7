"""The records of a directory of kernels: one Struct per JSON object of docs/run-directory.md, "kernels".

They are written where kernels are made, some of them on the machine that runs the kernels, and read there and by the
independent checker; reading needs msgspec only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from mirage_formal.records.run import (
    NO_SEAL,
    Count,
    Figure,
    Positive,
    Record,
    Sha256,
    SolverRecord,
    VersionedRecord,
    Word,
)

#: Kernels that were made from the candidates.
KERNELS: Final = "kernels"
LAUNCH_FILE: Final = "launch.json"
PLAN_FILE: Final = "plan.json"
OBLIGATIONS_FILE: Final = "obligations.jsonl"
#: The questions of the obligations, SMT-LIB text compressed by gzip; ``(reset)`` stands between two of them.
QUESTIONS_FILE: Final = "obligations.smt2.gz"
REALIZES_FILE: Final = "realizes.json"
STABILIZED_FILE: Final = "stabilized.json"
STABILIZED_PROOF_FILE: Final = "equivalence.json"

#: Columns, and most rows, of what a copy by a tensor map takes; a row has 128 bytes of 16-bit elements.
MAP_COLUMNS: Final = 64
MAP_ROWS: Final = 256
#: Bytes of which the address of what a tensor map views is a multiple.
MAP_ALIGN: Final = 16
#: Number of a µGraph's operator; -1 is the copy of a value to an output.
Operator = Annotated[int, msgspec.Meta(ge=-1)]
#: Name of a kernel, of a buffer or of a file beside the record.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,199}(?!\n)$")]
Solver = Annotated[str, msgspec.Meta(pattern=r"^(z3|cvc5)(?!\n)$")]
Arch = Annotated[str, msgspec.Meta(pattern=r"^sm_[0-9]{2,3}[a-z]?(?!\n)$")]
#: "13.5.37", or "12.8" where the machine code does not say more.
Compiler = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[0-9]+(\.[0-9]+)+(?!\n)$")]

# --- launch.json -----------------------------------------------------------------------------------------------------


class Binary(Record, frozen=True):
    """Machine code of a kernel.

    Attributes:
        file: Name in the same directory.
        sha256: Its digest.
        registers, spill_bytes: What the compiler reported, per thread.
    """

    file: Name
    sha256: Sha256
    registers: Count = 0
    spill_bytes: Count = 0


class Argument(Record, frozen=True):
    """A parameter of a kernel: a value by number, and what the kernel relies on.

    Attributes:
        value: Number of the value, see LaunchRecord.
        elements: Elements of the memory in which it lies, up to the last one of its own.
        align: Alignment of its first element in bytes.
        written: Whether the kernel writes it.
        given: Whether the kernel may read it ahead of its wait for the launch before: no launch of the call writes it.
    """

    value: Count
    elements: Positive
    align: Positive
    written: bool
    given: bool = False


class TensorMapRecord(Record, frozen=True, kw_only=True):
    """A tensor map of a launch: an argument, seen as a matrix whose rows the tensor memory accelerator copies.

    The matrix has the argument's ``elements``, ``stride`` of them in a row. A copy takes ``rows`` rows of 128 bytes.

    Attributes:
        argument: Position of the argument, which the kernel reads.
        dtype: Type of its elements.
        rows: Rows of a copy.
        stride: Elements from a row of the matrix to the next.
    """

    argument: Count
    dtype: Literal["float16", "bfloat16"]
    rows: Annotated[int, msgspec.Meta(ge=8, le=MAP_ROWS, multiple_of=8)]
    stride: Annotated[int, msgspec.Meta(ge=MAP_COLUMNS, multiple_of=8)]


class JoinedKernel(Record, frozen=True):
    """A generated kernel that the last blocks of another one's launch run.

    Attributes:
        operator: Number of the µGraph's operator that it computes.
        name: Name in the source of the launch.
        grid: Its own blocks.
        shared_bytes: Dynamic shared memory of one of them.
        arguments: In the order of its parameters; what the launch writes itself is read there.
        counters: Number of groups of blocks. The launch has an array of 32-bit counters, one for each, as its last
            argument; they are 0 before and behind it, and belong to one call at a time.
    """

    operator: Count
    name: Name
    grid: tuple[Positive, Positive, Positive]
    shared_bytes: Count
    arguments: tuple[Argument, ...]
    counters: Positive


class KernelLaunch(Record, frozen=True, tag_field="launch", tag="kernel"):
    """A launch of a generated kernel.

    Attributes:
        operator: Number of the µGraph's operator that it computes; -1 for the copy of a value to an output.
        name: Name in the source.
        grid, threads, shared_bytes: Launch dimensions and the kernel's own dynamic shared memory.
        arguments: In the order of the parameters.
        source: File of its CUDA C++.
        sha256: Digest of the source.
        cubins: Machine code by architecture.
        dependent: Whether it may be started while the launch before it still runs, for which it then waits itself.
        joined: The kernel that the last blocks of its groups run; left out if there is none.
        maps: The tensor maps that the launch passes behind its arguments, in order; left out if there are none.
    """

    operator: Operator
    name: Name
    grid: tuple[Positive, Positive, Positive]
    threads: Positive
    shared_bytes: Count
    arguments: tuple[Argument, ...]
    source: Name
    sha256: Sha256
    cubins: dict[Arch, Binary] = msgspec.field(default_factory=dict)
    dependent: bool = False
    joined: JoinedKernel | msgspec.UnsetType = msgspec.UNSET
    maps: Annotated[tuple[TensorMapRecord, ...], msgspec.Meta(min_length=1)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def tensor_maps(self) -> tuple[TensorMapRecord, ...]:
        """Return the tensor maps of the launch, none if they are left out."""
        return () if isinstance(self.maps, msgspec.UnsetType) else self.maps

    @property
    def passed(self) -> tuple[Argument, ...]:
        """Return the arguments of the launch, without counters: of a joined kernel, those that it does not write."""
        if not isinstance(self.joined, JoinedKernel):
            return self.arguments
        own = {argument.value for argument in self.arguments if argument.written}
        return (*self.arguments, *(one for one in self.joined.arguments if one.value not in own))

    @property
    def block_bytes(self) -> int:
        """Return the dynamic shared memory of a block of the launch, which its kernels use in turns."""
        return (
            max(self.shared_bytes, self.joined.shared_bytes)
            if isinstance(self.joined, JoinedKernel)
            else self.shared_bytes
        )

    @property
    def counters(self) -> int:
        """Return the number of counters that the launch needs."""
        return self.joined.counters if isinstance(self.joined, JoinedKernel) else 0

    @property
    def kernels(self) -> tuple[KernelLaunch, ...]:
        """Return the kernels of the launch, each as if it had a launch of its own; only the first has machine code."""
        then = self.joined
        if not isinstance(then, JoinedKernel):
            return (self,)
        more = then.arguments, self.source, self.sha256
        second = KernelLaunch(then.operator, then.name, then.grid, self.threads, then.shared_bytes, *more)
        return msgspec.structs.replace(self, joined=msgspec.UNSET), second


class ProductLaunch(Record, frozen=True, tag_field="launch", tag="matmul"):
    """A predefined matrix product by cuBLAS, accumulated in float32: the µGraph's operator of that number."""

    operator: Count
    a: Count
    b: Count
    result: Count


Launch = KernelLaunch | ProductLaunch


def launched_kernels(launches: Sequence[Launch]) -> tuple[KernelLaunch, ...]:
    """Return the generated kernels of some launches in order, those of joined launches apart."""
    return tuple(one for launch in launches if isinstance(launch, KernelLaunch) for one in launch.kernels)


class LaunchRecord(Record, frozen=True):
    """launch.json.

    Values are numbered: the µGraph's tensors, then one more for each output that needs a buffer of its own (an output
    that is an input, or is listed twice).

    Attributes:
        schema, version: What this is.
        digest: Digest of the µGraph.
        graph: The µGraph.
        program: The program that it is a candidate for.
        launches: In order.
        outputs: The value of each output.
    """

    schema: str
    version: int
    digest: Sha256
    graph: msgspec.Raw
    program: msgspec.Raw
    launches: tuple[Launch, ...]
    outputs: tuple[Count, ...]


# --- plan.json -------------------------------------------------------------------------------------------------------


class BufferRecord(Record, frozen=True, kw_only=True):
    """A buffer in dynamic shared memory: its place in the memory plan, in bytes, and its elements."""

    name: Name
    dtype: Literal["float16", "bfloat16", "float32", "bool"]
    elements: Positive
    offset: Count


class LoopRecord(Record, frozen=True, kw_only=True):
    """How the loop of a graph-defined kernel is planned.

    Attributes:
        forloop_range: Its iterations in the µGraph.
        cut: Iterations of the kernel for each of these.
        stages: Copies of each pipelined tile; 1 if nothing is pipelined.
        ring: Input iterators that are pipelined.
        barriers: Barriers in the text of the plan.
        shared_lower_bound: No memory plan for the same live ranges needs fewer bytes.
    """

    forloop_range: Positive
    cut: Positive
    stages: Positive
    ring: tuple[Count, ...]
    barriers: Count
    shared_lower_bound: Count


class WarpsRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How the warps of a block share a product: cuts of its rows, of its columns, and of what is summed over.

    With ``transposed`` they compute its transpose, and with ``warpgroup`` four of them compute it together (wgmma).
    """

    rows: Positive
    cols: Positive
    inner: Positive
    transposed: bool = False
    warpgroup: bool = False


class ScheduleRecord(Record, frozen=True, kw_only=True):
    """Schedule of codegen/program/plan.py, where one was asked for."""

    threads: Positive
    stages: Positive
    warps: tuple[WarpsRecord, ...]
    registers: bool
    resident: bool
    cut: Positive
    tile: Count = 0
    ahead: bool = False
    producer: bool = False


class CompiledRecord(Record, frozen=True, kw_only=True):
    """What the compiler made of a kernel for one architecture.

    Attributes:
        registers: Registers per thread.
        spill_bytes: Bytes spilled to local memory per thread, stores and loads together.
        stack_bytes: Stack frame per thread.
        shared_bytes: Static shared memory of a block; that of the launch is KernelPlanRecord.shared_bytes.
        compiler: Version of NVRTC; equal versions make equal machine code of equal sources.
    """

    registers: Count
    spill_bytes: Count
    stack_bytes: Count
    shared_bytes: Count
    compiler: Compiler


class KernelPlanRecord(Record, frozen=True, kw_only=True):
    """The plan of one generated kernel, and what became of it.

    Attributes:
        kernel: Its name.
        operator: Number of the µGraph's operator; -1 for the copy of a value to an output.
        grid, threads: Launch dimensions.
        loop: The plan of a graph-defined kernel; null for a predefined operator, which has no block graph.
        schedule: The schedule that was asked for, as tuning does; null for the first that fits.
        early: Whether it lets the launch behind start as soon as it begins, which tuning may have chosen.
        joined: True if the last blocks of the launch before run it; left out otherwise.
        buffers: The memory plan of shared memory.
        shared_bytes: Dynamic shared memory of a block, which the buffers need.
        compiled: By architecture.
    """

    kernel: Name
    operator: Operator
    grid: tuple[Positive, Positive, Positive]
    threads: Positive
    loop: LoopRecord | None
    schedule: ScheduleRecord | None = None
    early: bool = False
    joined: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    buffers: tuple[BufferRecord, ...]
    shared_bytes: Count
    compiled: dict[Arch, CompiledRecord]


class PlanRecord(VersionedRecord, frozen=True, kw_only=True):
    """plan.json: the plans of all generated kernels, in the order of their launches."""

    kernels: tuple[KernelPlanRecord, ...]


# --- obligations.jsonl -----------------------------------------------------------------------------------------------


class ObligationRecord(VersionedRecord, frozen=True, kw_only=True):
    """One line of obligations.jsonl, the proof log of kernels: a safety obligation and what became of it.

    Attributes:
        kernel: Name of the kernel.
        kind, path, subject, claim: What must hold, and where.
        finding: "held": a kernel with any other finding is never written.
        means: How it was settled when the kernel was made.
        solvers: What solvers said then, by solver; empty where none was asked.
        sha256: Digest of the question's text in obligations.smt2.gz; null where it was settled by form or enumeration.
        milliseconds: Time of settling it.
    """

    kernel: Name
    kind: Word
    path: str
    subject: Word
    claim: Word
    finding: Literal["held"] = "held"
    means: Literal["form", "interval", "radix", "enumeration", "solver"]
    solvers: dict[Solver, SolverRecord]
    sha256: Sha256 | None
    milliseconds: Figure


# --- realizes.json ---------------------------------------------------------------------------------------------------


class RealizationRecord(Record, frozen=True, kw_only=True):
    """The claim that a kernel computes its operator of the µGraph, as it was decided when the kernel was made.

    Attributes:
        kernel: Name of the kernel.
        verdict: "realizes"; anything else is written only where tested kernels are accepted.
        reason: The reason for another verdict.
        classes: Classes of blocks, one of each of which was evaluated.
        elements: Elements of results that were compared.
        points: Independent random points at which they agree.
        bits: Bits of the primes.
        roundings: Conversions of the kernel that are no operators of the µGraph.
    """

    kernel: Name
    verdict: Literal["realizes", "deviates", "unknown"]
    reason: str = ""
    classes: Count
    elements: Count
    points: Count
    bits: Count
    roundings: tuple[str, ...] = ()


class RealizesRecord(VersionedRecord, frozen=True, kw_only=True):
    """realizes.json: the claim for each generated kernel, in the order of their launches."""

    kernels: tuple[RealizationRecord, ...]


# --- manifest.json ---------------------------------------------------------------------------------------------------

Amount = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class LimitsRecord(Record, frozen=True, kw_only=True):
    """TargetLimits of codegen/target.py."""

    shared_bytes_per_block: Amount
    shared_bytes_per_sm: Amount
    shared_reserved_per_block: Amount
    registers_per_sm: Amount
    threads_per_block: Amount
    threads_per_sm: Amount
    blocks_per_sm: Amount
    grid: tuple[Amount, Amount, Amount]


class ModelRecord(Record, frozen=True, kw_only=True):
    """CostModel of codegen/target.py."""

    bandwidth_efficiency: Rate
    launch_us: Rate
    latency_us: Rate
    tensor_efficiency: Rate
    tensor_tile: tuple[Amount, Amount, Amount]
    l2_bandwidth_gbs: Rate
    sm_bandwidth_gbs: Rate
    iteration_us: Rate
    matmul_us: Rate
    operator_us: Rate
    library_efficiency: Rate
    scalar_step_clocks: Rate
    scalar_step_slots: Rate
    element_copy_slots: Rate
    step_us: Annotated[float, msgspec.Meta(ge=0, le=1e18)] = 0.0
    dependent_launch_us: Annotated[float, msgspec.Meta(ge=0, le=1e18)] = 0.0
    block_us: Annotated[float, msgspec.Meta(ge=0, le=1e18)] = 0.0
    l2_reread_share: Rate = 1.0


class TargetRecord(Record, frozen=True, kw_only=True):
    """Target of codegen/target.py: what planning may look at."""

    name: Annotated[str, msgspec.Meta(max_length=100)]
    title: Annotated[str, msgspec.Meta(max_length=200)]
    arch: Annotated[str, msgspec.Meta(max_length=100)]
    sms: Amount
    clock_ghz: Rate
    device_bytes: Amount
    bandwidth_gbs: Rate
    l2_bytes: Amount
    tensor_tflops: Rate
    vector_tflops: Rate
    special_per_clock: Amount
    shared_bandwidth_per_clock: Amount
    limits: LimitsRecord
    model: ModelRecord


class KernelManifestRecord(VersionedRecord, frozen=True, kw_only=True):
    """manifest.json of a directory of kernels: whose kernels they are, every file but those of a device, and a seal.

    Attributes:
        candidate: Digest of the candidate's µGraph.
        graph: Digest of the µGraph that the kernels compute: the candidate's, or another form of it.
        program: Digest of the program.
        target: What the kernels are planned for: with it they can be derived again.
        files: Path to sha256.
        seal: See ManifestRecord.
    """

    candidate: Sha256
    graph: Sha256
    program: Sha256
    target: TargetRecord
    files: dict[str, Sha256]
    seal: Sha256 = NO_SEAL
