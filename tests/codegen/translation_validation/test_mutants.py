"""Mutants of kernels of every lowering: none is accepted that a run tells apart, and few stay undecided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.translation_validation.realization import Deviates, Realizes, decide_realizes
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Unknown
from tests.kit.kernels.program_mutants import Touched, changed, changes
from tests.kit.realizes.mutant_outcomes import Case, Outcome, cases, outcome, sampled
from tests.kit.sampling import number

#: Kernels of which a run takes a tenth of a second at most.
QUICK = [i for i, case in enumerate(cases()) if case.lowering in ("remainders", "masks", "predefined", "generic")]
SLOW = [i for i in range(len(cases())) if i not in QUICK]


def case(lowering: str, name: str) -> Case:
    return next(one for one in cases() if (one.lowering, one.name) == (lowering, name))


@pytest.mark.parametrize(("numbers", "count", "seed"), [(QUICK, 150, 5), (SLOW, 10, 6)], ids=["quick", "slow"])
def test_no_mutant_is_accepted_that_computes_something_else(numbers: list[int], count: int, seed: int) -> None:
    count = number(count, 10 * count)
    rows = [outcome(i, mutant, seed) for i, mutant in sampled(count, seed, numbers)]
    bad = [row for row in rows if row.outcome in (Outcome.WRONG, Outcome.ERROR)]
    assert not bad, [(row.case.name, row.mutant.what, row.said) for row in bad]
    found = Counter(row.outcome for row in rows)
    assert len(rows) == count
    assert found[Outcome.DEVIATES] > 0.4 * count, found
    assert 0 < found[Outcome.KEPT] < 0.3 * count, found
    assert found[Outcome.UNKNOWN] <= 0.1 * count, found


@pytest.mark.parametrize("number", [i for i, one in enumerate(cases()) if i % 3 == 0 or one.name == "fused"])
def test_kernels_realize_their_graphs(number: int) -> None:
    one = cases()[number]
    assert isinstance(decide_realizes(one.graph, one.kernel, 3), Realizes), one.name


def verdict(one: Case, change: Callable[[GeneratedKernel], GeneratedKernel]) -> object:
    return decide_realizes(one.graph, change(one.kernel), 1)


def test_bits_of_one_element_type_are_not_read_as_another() -> None:
    for lowering, name in (("remainders", "product"), ("online softmax", "attn-b1/0"), ("masks", "flash")):
        one, count = case(lowering, name), 0
        for change in changes(one.kernel.program):
            if change.touched is Touched.TYPE and ("product" in change.what or "packed" in change.what):
                program = changed(one.kernel.program, change).program
                assert isinstance(verdict(one, lambda k, p=program: replace(k, program=p)), Unknown)  # type: ignore[misc]
                count += 1
        assert count


def test_parameters_are_the_tensors_of_the_operator() -> None:
    one = case("tiles", "lora-b8/0")
    values = one.kernel.values
    assert isinstance(verdict(one, lambda k: replace(k, values=(values[1], values[0], *values[2:]))), Unknown)

    def with_type(program: Program) -> Program:
        first, *rest = program.params
        return replace(program, params=(replace(first, dtype=DType.BFLOAT16), *rest))

    assert isinstance(verdict(one, lambda k: replace(k, program=with_type(k.program))), Unknown)


@pytest.mark.parametrize("name", ["softmax 0", "softmax 1"])
def test_an_infinity_is_no_number(name: str) -> None:
    """exp(x - m) / sum exp(x - m) is the same for all real m, but not for -inf, which a maximum starts with."""
    one, count = case("predefined", name), 0
    for change in changes(one.kernel.program):
        if change.touched is Touched.EXTREME and ("-> add" in change.what or "-> min" in change.what):
            program = changed(one.kernel.program, change).program
            found = verdict(one, lambda k, p=program: replace(k, program=p))  # type: ignore[misc]
            if isinstance(found, Unknown):
                assert "infinity" in found.reason
                count += 1
    assert count


def test_indices_that_mean_nothing_are_unknown() -> None:
    """No index of a register, a shuffle or a divisor is an error of the evaluation."""
    one, found = case("remainders", "product"), Counter[type]()
    for change in changes(one.kernel.program)[::7]:
        if change.touched in (Touched.REGISTER, Touched.FRAGMENT, Touched.VECTOR, Touched.RING):
            program = changed(one.kernel.program, change).program
            found[type(verdict(one, lambda k, p=program: replace(k, program=p)))] += 1  # type: ignore[misc]
    assert found[Unknown]
    assert found[Deviates]
