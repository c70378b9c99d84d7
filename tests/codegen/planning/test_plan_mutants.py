"""Faults in the memory plan, the schedule, index expressions and layouts of kernels: all are found, and counted."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import (
    Barrier,
    Commit,
    For,
    If,
    Program,
    SharedBuffer,
    Stmt,
    WaitGroups,
)
from mirage_formal.codegen.program.step import Prefetch
from mirage_formal.codegen.safety.safety import Safe, Unknown, discharge_safety
from mirage_formal.device import emulate
from mirage_formal.device.emulate import EmulationFault, FaultKind
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import MirageError
from tests.codegen.planning.plan_mutants import GRAPHS, Base, Family, Mutant, bases, sample, with_home
from tests.kit.kernels.example_kernels import TARGET, laid_out, stored
from tests.kit.kernels.program_interpreter import Access, Copy, Fault, Observer, watched
from tests.kit.sampling import number


class By(StrEnum):
    """What found a fault, or what became of it instead."""

    #: Lowering or printing refuses it.
    VALIDATION = "validation"
    #: An obligation is broken.
    OBLIGATION = "obligation"
    #: An obligation is undecided, so that the kernel is refused.
    UNDECIDED = "undecided obligation"
    #: All obligations hold and the emulator reports a fault.
    EMULATOR = "emulator"
    #: It runs without a fault, to results outside of their tolerance.
    VALUES = "values"
    #: It does what the kernel without it does, by an argument that was checked.
    EQUIVALENT = "equivalent"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Found:
    """What found a mutant, and what it said."""

    by: By
    detail: str = ""


@cache
def inputs(name: str, seed: int = 1, scale: float = 1.0) -> tuple[Any, ...]:
    """Seeded inputs of a kernel; a second kernel's are what the first one computes."""
    base = bases()[name]
    op = base.candidate.ops[base.position]
    before = KernelGraph(base.candidate.inputs, base.candidate.ops[: base.position], op.operands)
    exact = reference(before, result_comparison.draw_all(before, seed, scale))
    items = base.graph.inputs
    return tuple(stored(a, item.tensor.dtype).astype(np.float64) for a, item in zip(exact, items, strict=True))


def given(base: Base, seed: int = 1, scale: float = 1.0) -> list[Any]:
    """The same as the kernel's parameters hold them."""
    return [laid_out(a, item) for a, item in zip(inputs(base.name, seed, scale), base.graph.inputs, strict=True)]


@cache
def expected(name: str, scale: float) -> result_comparison.ReferenceOutputs:
    """Exact results of the program in float64, and the candidate's tolerances."""
    base = bases()[name]
    return result_comparison.expected_results(
        base.computed, base.candidate, result_comparison.draw_all(base.computed, 1, scale)
    )


def results(
    base: Base, program: Program, source: str, launched: int | None = None
) -> list[result_comparison.OutputRecord]:
    """The candidate's results on the emulator, with this kernel in it, beside what is expected, at every scale.

    Raises:
        EmulationFault: The emulator found a fault.
    """
    if launched is not None:
        # The text stays as it is; the launch asks for other bytes.
        program = replace(program, shared=(SharedBuffer("all", DType.FLOAT16, launched // 2, 0),))
        assert program.shared_bytes == launched
    out: list[result_comparison.OutputRecord] = []
    for scale in result_comparison.SCALES:
        found = emulate.run_source(program, source, given(base, scale=scale))
        for later in following(base):
            found = emulate.run_kernel(later.program, found)
        wanted = expected(base.name, scale)
        types = kernel_types(base.computed)
        for a, b, tolerance, output in zip(found, wanted.values, wanted.tolerances, base.computed.outputs, strict=True):
            out.append(result_comparison.compare_outputs(a.astype(np.float64), b, tolerance, types[output].dtype))
    return out


def following(base: Base) -> list[Base]:
    """The candidate's later kernels, each of which reads just what the one before it writes."""
    later = [b for b in bases().values() if b.candidate is base.candidate and b.position > base.position]
    first = len(base.candidate.inputs)
    for op in base.candidate.ops[1:]:
        assert op.operands == tuple(range(first, first + len(op.operands)))
    return later


def judge(mutant: Mutant) -> Found:
    """What finds a mutant, asked in the order of the product: validation, obligations, emulator, values."""
    base = bases()[mutant.base]
    try:
        program = lower(mutant.faulty) if isinstance(mutant.faulty, Plan) else mutant.faulty
        source = emit_cuda(program)
    except (MirageError, AssertionError, NotImplementedError, ValueError) as error:
        return Found(By.VALIDATION, f"{type(error).__name__}: {error}")
    if mutant.launched is None and (why := equivalent(base, program)):
        return Found(By.EQUIVALENT, why)
    verdict = discharge_safety(program).verdict
    if isinstance(verdict, Unknown):
        return Found(By.UNDECIDED, verdict.reason)
    if not isinstance(verdict, Safe):
        return Found(By.OBLIGATION, str(verdict.obligation.kind))
    try:
        records = results(base, program, source, mutant.launched)
    except emulate.EmulationFault as fault:
        return Found(By.EMULATOR, fault.kind.value)
    wrong = [record for record in records if record.answer != "within"]
    if wrong:
        return Found(By.VALUES, wrong[0].reason)
    same = mutant.launched is None and same_bits(base, program)
    return Found(By.EQUIVALENT, "same bits") if same else Found(By.NOTHING)


# --- changes that are no faults --------------------------------------------------------------------------------------


def equivalent(base: Base, program: Program) -> str:
    """Why a Program does what the kernel without a fault does, or "".

    Sound: "same text" is the same kernel. Otherwise every thread executes the same statements on the same elements in
    the same order, apart from synchronisation; shared memory is accessed, copied, waited for and met over in the same
    order; and no two buffers share bytes that are used and were not shared before, nor is one less aligned.
    """
    if emit_cuda(program) == emit_cuda(base.program):
        return "same text"
    if program.params != base.program.params or program.grid != base.program.grid:
        return ""
    if not _placed_as_well(base.program, program, _trace(base.name).touched):
        return ""
    try:
        found = trace(base, program)
    except (Fault, IndexError, KeyError, ValueError, AssertionError, ZeroDivisionError):
        return ""
    return "same accesses in the same order" if found.traced() == _trace(base.name).traced() else ""


def _placed_as_well(old: Program, new: Program, touched: dict[str, Any]) -> bool:
    """Whether no buffers share used bytes that did not before, and offsets are as aligned as before."""
    if [b.name for b in old.shared] != [b.name for b in new.shared]:
        return False
    if any(b.offset % 16 > a.offset % 16 for a, b in zip(old.shared, new.shared, strict=True)):
        return False

    def meet(program: Program) -> set[tuple[str, str]]:
        used = {
            b.name: set((touched[b.name][:, None] * b.dtype.bytes + np.arange(b.dtype.bytes) + b.offset).flat)
            for b in program.shared
        }
        return {(a, b) for a in used for b in used if a < b and used[a] & used[b]}

    return meet(new) <= meet(old)


def same_bits(base: Base, program: Program) -> bool:
    """Whether a Program that is safe computes what the right kernel does, bit for bit, on nine random inputs.

    Sound but for chance: which statements are executed and what they address does not depend on values, so both are
    fixed sequences of operations on the inputs; two that differ in what is written do so on random values. (Lanes that
    hold copies of one value, and rows that nobody stores, make no difference.)
    """
    for seed in (1, 2, 3):
        for scale in result_comparison.SCALES:
            arrays = given(base, seed, scale)
            both = [emulate.run_kernel(p, arrays) for p in (base.program, program)]
            if any(a.tobytes() != b.tobytes() for a, b in zip(*both, strict=True)):
                return False
    return True


@cache
def _trace(name: str) -> Tracer:
    base = bases()[name]
    return trace(base, base.program)


def trace(base: Base, program: Program) -> Tracer:
    """What a Program does on a kernel's inputs.

    Raises:
        Fault: It does what no right program does.
    """
    found = Tracer(program)
    watched(program, given(base), found, once=True)
    return found


class Tracer(Observer):
    """Digests what the threads of a Program do, in order: all of it, and what concerns shared memory.

    A wait counts as the copies that are complete behind it; one that completes none, and a barrier behind another one
    with nothing between them, do not count.
    """

    def __init__(self, program: Program) -> None:
        self.done, self.ordered = hashlib.sha256(), hashlib.sha256()
        self.last = b""
        self.used = {b.name: np.zeros(b.elements, bool) for b in program.shared}

    @property
    def touched(self) -> dict[str, Any]:
        """The elements of each buffer that are accessed."""
        return {name: np.flatnonzero(used) for name, used in self.used.items()}

    def traced(self) -> tuple[bytes, bytes]:
        """The two digests."""
        return self.done.digest(), self.ordered.digest()

    def order(self, event: bytes) -> None:
        if not (event == self.last and event.startswith(b"barrier")):
            self.ordered.update(event)
        self.last = event

    def statement(self, stmt: Stmt, mask: Any) -> None:
        """All but loops, branches and synchronisation count as done."""
        if not isinstance(stmt, Barrier | WaitGroups | Commit | For | If):
            self.done.update(type(stmt).__name__.encode() + np.packbits(mask).tobytes())

    def register(self, array: str, slot: int) -> None:
        """It counts as done."""
        self.done.update(f"{array} {slot}".encode())

    def shared(self, access: Access) -> None:
        """It counts as done, and in the order of shared memory."""
        elements = access.index[access.mask][:, None] + np.arange(access.count)
        self.used[access.name][elements.reshape(-1)] = True
        self.done.update(_told(access))
        self.order(_told(access))

    def device(self, access: Access) -> None:
        """It counts as done."""
        self.done.update(_told(access))

    def landed(self, copy: Copy) -> None:
        """It counts in the order of shared memory."""
        self.order(f"landed {copy.number}".encode() + copy.block.tobytes())

    def barrier(self, blocks: Any) -> None:
        """It counts in the order of shared memory."""
        self.order(b"barrier" + np.packbits(blocks).tobytes())


def _told(access: Access) -> bytes:
    where = np.where(access.mask, access.index, -1).tobytes()
    return f"{access.name} {access.count} {access.kind.name}".encode() + where


#: Mutants of each family.
COUNT = number(25, 50)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_the_candidates_are_proved(name: str) -> None:
    assert isinstance(prove(*GRAPHS[name]), Equivalent)


@pytest.mark.parametrize("name", list(bases()))
def test_without_a_fault_nothing_is_found(name: str) -> None:
    """Neither in the Plan that is used nor in the one whose memory is tightest."""
    base = bases()[name]
    for plan in (base.plan, base.tight):
        program = lower(plan)
        assert isinstance(discharge_safety(program).verdict, Safe)
        assert {record.answer for record in results(base, program, emit_cuda(program))} == {"within"}


@pytest.mark.slow
def test_every_mutant_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """At least 100 faults; what changes nothing is recognised, counted and rare; nothing else survives."""
    mutants = sample(COUNT, seed=0)
    found = [(mutant, judge(mutant)) for mutant in mutants]
    counts = Counter((mutant.family, what.by) for mutant, what in found)
    with capsys.disabled():
        print(f"\n{'':18}" + "".join(f"{by.value:>22}" for by in By))
        for family in Family:
            print(f"{family.value:18}" + "".join(f"{counts[family, by]:22}" for by in By))
    total = Counter(what.by for _, what in found)
    survivors = [(mutant.base, mutant.what) for mutant, what in found if what.by is By.NOTHING]
    assert survivors == []
    assert len(mutants) == 4 * COUNT
    for family in Family:
        assert COUNT - counts[family, By.EQUIVALENT] >= 0.8 * COUNT
    assert total[By.EQUIVALENT] <= 0.15 * len(mutants)
    # Most of them get as far as the obligations, and both these and runs find many.
    assert total[By.VALIDATION] <= 0.3 * len(mutants)
    assert total[By.UNDECIDED] <= 0.02 * len(mutants)
    assert total[By.OBLIGATION] >= 0.4 * len(mutants)
    assert total[By.EMULATOR] + total[By.VALUES] >= 0.1 * len(mutants)
    # Whatever is wrong with synchronisation is found without a run.
    for mutant, what in found:
        if mutant.family is Family.SCHEDULE and what.by is By.VALUES:
            assert isinstance(mutant.faulty, Program) or _copies(mutant), mutant.what


def _copies(mutant: Mutant) -> bool:
    """Whether its copies, not its barriers and waits, differ from the right kernel's."""
    base, faulty = bases()[mutant.base].plan, mutant.faulty
    assert not isinstance(faulty, Program)
    kept = [[step for step in (*p.before, *p.loop, *p.after) if not isinstance(step, Prefetch)] for p in (base, faulty)]
    return kept[0] == kept[1]


def test_what_is_no_fault_is_not_found() -> None:
    """The same Plan, and a layout that both sides know of, are equivalent; another right kernel would be a survivor."""
    base = bases()["lora"]
    assert judge(Mutant("lora", Family.LAYOUT, "nothing", base.plan)).detail == "same text"
    number, placement = next(
        (number, tensor.placement.shared)
        for number, tensor in enumerate(base.plan.tensors)
        if tensor.placement.shared is not None and tensor.placement.shared.mask
    )
    other = with_home(base.plan, number, replace(placement, mask=placement.mask >> 1))
    assert judge(Mutant("lora", Family.LAYOUT, "another swizzle", other)).detail == "same bits"
    generic = make_plan(base.graph, 0, TARGET, generic=True)
    assert judge(Mutant("lora", Family.LAYOUT, "sums in another order", generic)).by is By.NOTHING


def test_a_launch_with_too_little_shared_memory_is_a_fault() -> None:
    base = bases()["lora"]
    with pytest.raises(EmulationFault, match="the launch has less shared memory") as error:
        results(base, base.program, emit_cuda(base.program), launched=base.program.shared_bytes - 256)
    assert error.value.kind is FaultKind.OUT_OF_BOUNDS
