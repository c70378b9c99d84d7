"""Faults in the memory plan, the schedule, index expressions and layouts of kernels: all are found, and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mirage_formal.claims.equality.prove import prove
from mirage_formal.claims.safety.safety import Safe, discharge_safety
from mirage_formal.device.emulate import EmulationFault, FaultKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernels.cuda import emit
from mirage_formal.kernels.lowering.assemble import lower
from mirage_formal.kernels.planning.planner import make_plan
from mirage_formal.kernels.program.program import Program
from mirage_formal.kernels.program.step import Prefetch
from tests.kit.kernels.lowering_kit import TARGET
from tests.kit.kernels.plan_bases import GRAPHS, bases
from tests.kit.kernels.plan_judge import By, judge, results
from tests.kit.kernels.plan_mutants import Family, Mutant, sample, with_home
from tests.kit.sampled import number

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
        assert {record.answer for record in results(base, program, emit(program))} == {"within"}


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
        results(base, base.program, emit(base.program), launched=base.program.shared_bytes - 256)
    assert error.value.kind is FaultKind.OUT_OF_BOUNDS
