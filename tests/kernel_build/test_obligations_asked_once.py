"""Obligations of a kernel are asked about once, while it is the same kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.program import GridWait, Program
from mirage_formal.codegen.safety import safety
from mirage_formal.codegen.target import load_target
from mirage_formal.kernel_build.build import discharge_obligations
from mirage_formal.kernel_build.built_kernels import KernelRejected
from tests.kit.graphs import workloads as w


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Program]]:
    """The Programs whose obligations were derived."""
    real, found = safety.discharge_safety, []

    def noted(program: Program, *given: Any) -> Any:
        found.append(program)
        return real(program, *given)

    monkeypatch.setattr(safety, "discharge_safety", noted)
    discharge_obligations.cache_clear()
    yield found
    discharge_obligations.cache_clear()


def program() -> Program:
    return lower(make_plan(w.gated_mlp_fused(), 0, load_target("h200")))


def test_an_equal_kernel_is_not_asked_about_again(asked: list[Program]) -> None:
    first, again = program(), program()
    assert first is not again
    found = discharge_obligations(first)
    assert discharge_obligations(again) is found
    assert len(asked) == 1
    other = replace(first, body=(GridWait(), *first.body))
    assert discharge_obligations(other).records
    assert len(asked) == 2, "whatever differs is another kernel"


def test_what_does_not_hold_is_not_kept(asked: list[Program]) -> None:
    """A kernel whose tensors have half of their elements leaves them: it is refused each time."""
    wide = program()
    wrong = replace(wide, params=tuple(replace(p, elements=p.elements // 2) for p in wide.params))
    for _ in range(2):
        with pytest.raises(KernelRejected, match="obligation"):
            discharge_obligations(wrong)
    assert len(asked) == 2
