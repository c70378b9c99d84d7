"""Faults in plans and lowering, put in one at a time: no kernel that computes something else realizes its µGraph."""

from __future__ import annotations

from collections import Counter

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.translation_validation.realization import Realizes, decide_realizes
from mirage_formal.support.errors import MirageError
from tests.codegen.planning.plan_mutants import bases, sample
from tests.codegen.planning.test_plan_mutants import By, judge
from tests.kit.sampling import number


def test_kernels_without_faults_realize_their_ugraph() -> None:
    for base in bases().values():
        values = tuple(range(len(base.program.params)))
        assert isinstance(decide_realizes(base.graph, GeneratedKernel(0, values, base.program)), Realizes), base.name


def test_no_fault_of_a_plan_is_taken_for_the_kernel() -> None:
    """Sampled: whatever still realizes its µGraph is unsafe, or does what the kernel without the fault does.

    Faults of the launch, and those that lowering or printing refuses, are not asked about.
    """
    found: Counter[str] = Counter()
    for mutant in sample(number(60, 400), 11):
        base = bases()[mutant.base]
        try:
            program = lower(mutant.faulty) if isinstance(mutant.faulty, Plan) else mutant.faulty
            emit_cuda(program)
        except (MirageError, AssertionError, NotImplementedError, ValueError):
            continue
        if mutant.launched is not None:
            continue
        values = tuple(range(len(program.params)))
        verdict = decide_realizes(base.graph, GeneratedKernel(0, values, program))
        found[type(verdict).__name__] += 1
        if isinstance(verdict, Realizes):
            judged = judge(mutant)
            assert judged.by in (By.EQUIVALENT, By.OBLIGATION, By.UNDECIDED), (mutant, judged)
            found[judged.by.value] += 1
    assert found["Deviates"] > found["Realizes"] / 4, found
