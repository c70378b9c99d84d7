"""Kernels of one call that overlap: what is copied ahead of the wait, and when the launch behind may start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.executable import Executable, kernel_launch, load_executable, save_executable
from mirage_formal.codegen.generate import generate, plan_record, requested_options
from mirage_formal.codegen.generated_launches import GeneratedKernel, GeneratedLaunches
from mirage_formal.codegen.program.program import CopyAsync, GridWait, LaunchDependents, Program, Stmt
from mirage_formal.codegen.safety.obligation_types import DischargedObligation
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.codegen.source_map import kernel_lines
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.support.errors import FormatError
from tests.kit.graphs import workloads as w
from tests.kit.kernels.program_interpreter import fault
from tests.kit.kernels.program_interpreter import run as interpret

TARGET = load_target("h200")
ROWS, SIZE = 4, 64


def chain(loop: int = 2) -> KernelGraph:
    """Three norms with products, each of what the one before computes; the last has the first one's weights."""
    (norm,) = w.rmsnorm_fused(ROWS, SIZE, SIZE, grid=2, loop=loop).ops
    inputs = (w.tensor("X", ROWS, SIZE), w.tensor("W", SIZE, SIZE), w.tensor("V", SIZE, SIZE))
    return KernelGraph(inputs, tuple(replace(norm, operands=pair) for pair in ((0, 1), (3, 2), (4, 1))), (5,))


def kernels(made: GeneratedLaunches) -> list[GeneratedKernel]:
    return [one for one in made.steps if isinstance(one, GeneratedKernel)]


def copied(statements: tuple[Stmt, ...]) -> Iterator[str]:
    """The parameters that are copied to shared memory, in the order of the copies."""
    for one in statements:
        if isinstance(one, CopyAsync):
            yield one.param
        yield from copied(getattr(one, "body", ()))


def parted(program: Program) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Statements ahead of the wait and behind it."""
    at = next(number for number, one in enumerate(program.body) if isinstance(one, GridWait))
    return program.body[:at], program.body[at + 1 :]


def test_weights_are_copied_ahead_of_the_wait_and_results_are_not() -> None:
    first, *others = (one.program for one in kernels(generate(chain(), TARGET)))
    assert not first.dependent
    assert not any(param.given for param in first.params), "its text is that of a kernel by itself"
    for program in others:
        result, weights, _ = program.params
        assert (result.given, weights.given) == (False, True)
        ahead, behind = parted(program)
        assert set(copied(ahead)) == {weights.name}
        assert result.name in set(copied(behind))
        assert f"MF_AWAITED(mf::half) {result.name}" in emit_cuda(program)
        assert f"MF_INPUT(mf::half) {weights.name}" in emit_cuda(program)


def test_a_kernel_computes_the_same_with_copies_moved() -> None:
    """And it is proved safe: its first copies are waited for where they were."""
    own, *others = (one.program for one in kernels(generate(chain(), TARGET)))
    random = np.random.default_rng(3)
    x, v = random.normal(size=ROWS * SIZE), random.normal(size=SIZE * SIZE)
    (expected,) = interpret(own, [x, v])
    for program in others:
        (found,) = interpret(program, [x, v])
        np.testing.assert_array_equal(found, expected)
        report = discharge_safety(program)
        assert isinstance(report.verdict, Safe)
        assert all(isinstance(one.finding, DischargedObligation) or one.results for one in report.discharged)


def test_an_intermediate_result_ahead_of_the_wait_is_a_fault() -> None:
    """By form, whatever a Program says of its parameters, and in the interpreter."""
    program = kernels(generate(chain(), TARGET))[1].program
    ahead, behind = parted(program)
    first = next(one for one in behind if any(copied((one,))))
    moved = replace(program, body=(*ahead, first, GridWait(), *(one for one in behind if one is not first)))
    with pytest.raises(ValueError, match="expected to be touched behind the wait"):
        emit_cuda(moved)
    assert not isinstance(discharge_safety(moved).verdict, Safe)
    assert "before the wait for the launch before" in fault(moved)


def test_a_kernel_lets_the_next_one_start_early_where_that_is_asked_for() -> None:
    late, soon = (kernels(generate(chain(), TARGET, early=early)) for early in (frozenset(), frozenset({0, 1, 2})))
    assert [one.early for one in late] == [False, False, False]
    assert [one.early for one in soon] == [True, True, False], "nothing is behind the last"
    assert soon[0].program.body[0] == LaunchDependents()
    ahead, behind = parted(soon[1].program)
    assert ahead == parted(late[1].program)[0]
    assert behind[0] == LaunchDependents()
    assert late[1].program.body.index(LaunchDependents()) > soon[1].program.body.index(LaunchDependents())
    assert LaunchDependents() not in soon[2].program.body
    assert all(isinstance(discharge_safety(one.program).verdict, Safe) for one in soon)


@pytest.mark.parametrize("early", [frozenset[int](), frozenset({1}), frozenset({0, 1})])
def test_plans_say_what_was_asked_for(early: frozenset[int]) -> None:
    made = generate(chain(), TARGET, early=early)
    plans = [plan_record(one, {}) for one in kernels(made)]
    assert generate(chain(), TARGET, *requested_options(plans)) == made


def test_lines_of_copies_that_are_moved_belong_to_their_inputs() -> None:
    graph = chain()
    one, op = kernels(generate(graph, TARGET, early=frozenset({1})))[1], graph.ops[1]
    assert one.plan is not None
    assert isinstance(op, GraphDefined)
    operands = [w.tensor("X", ROWS, SIZE).tensor, graph.inputs[2].tensor]
    found = kernel_lines(one.program, one.plan, op, operands)
    text = emit_cuda(one.program).splitlines()
    wait = next(number for number, line in enumerate(text, 1) if "grid_wait" in line)
    ahead = [piece for piece in found if piece.last < wait]
    assert ahead
    assert {piece.does for piece in ahead} <= {"copies to shared memory", "starts copies ahead of their iteration"}


def test_a_launch_that_reads_a_result_ahead_is_refused(tmp_path: Path) -> None:
    """Whoever launches from files alone sees it too, without a Program."""
    graph, made = chain(), generate(chain(), TARGET)
    launches, files = [], {}
    for one, source in zip(kernels(made), made.sources, strict=True):
        text = emit_cuda(one.program)
        files[source] = text.encode()
        launches.append(kernel_launch(one.program, one.operator, one.values, source, text, {}))
    assert [[x.given for x in one.arguments] for one in launches] == [[False] * 3, *[[False, True, False]] * 2]
    executable = Executable("0" * 64, graph, graph, tuple(launches), made.outputs, files)
    save_executable(executable, tmp_path)
    assert load_executable(tmp_path) == executable
    path = tmp_path / "launch.json"
    text = path.read_text()
    forged = text.replace('"given": false', '"given": true') if '"given": false' in text else ""
    assert forged, "the field is written"
    path.write_text(forged)
    with pytest.raises(FormatError, match="expected an input that is read ahead of the wait, got value 3"):
        load_executable(tmp_path)
