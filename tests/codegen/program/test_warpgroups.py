"""Products of warpgroups: one meaning everywhere, refused where hardware would not do what the statement says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import WARPGROUP_HEADER, emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.planning.planner import schedules
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.access import list_accesses
from mirage_formal.codegen.program.register_layout import Warps
from mirage_formal.codegen.safety.obligation_types import ObligationKind
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.codegen.translation_validation.realization import Realizes, decide_realizes
from mirage_formal.device.emulate import run_kernel
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.revalidate.cuda_reader import read_cuda, text_of_program
from mirage_formal.support.errors import UnsupportedError
from tests.kit.kernels import program_interpreter, tails
from tests.kit.kernels.emulated_programs import WARPGROUP_PRODUCTS
from tests.kit.kernels.example_kernels import TARGET
from tests.kit.realizes.mutant_outcomes import Case, cases, givens

LAST = WARPGROUP_PRODUCTS[-1]


def changed(program: ir.Program, change: Callable[[ir.WarpgroupMma], ir.Stmt]) -> ir.Program:
    body = tuple(change(one) if isinstance(one, ir.WarpgroupMma) else one for one in program.body)
    return replace(program, body=body)


def drawn(program: ir.Program) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [rng.integers(-64, 65, param.elements) / 16 for param in program.params if not param.written]


@pytest.mark.parametrize("program", WARPGROUP_PRODUCTS, ids=lambda program: program.name)
def test_the_emulator_and_the_interpreter_agree(program: ir.Program) -> None:
    read = [param for param in program.params if not param.written]
    given = drawn(program)
    bits = [
        program_interpreter.to_storage(x.astype(np.float32), param.dtype) for x, param in zip(given, read, strict=True)
    ]
    held = [x.view(np.float16) if param.dtype.value == "float16" else x for x, param in zip(bits, read, strict=True)]
    (found,) = run_kernel(program, held)
    (wanted,) = program_interpreter.run(program, given)
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(wanted).max() > 1


@pytest.mark.parametrize("program", WARPGROUP_PRODUCTS, ids=lambda program: program.name)
def test_they_are_safe_and_their_text_is_read_back(program: ir.Program) -> None:
    assert isinstance(discharge_safety(program).verdict, Safe)
    text = emit_cuda(program)
    assert f'#include "{WARPGROUP_HEADER}"' in text
    found = read_cuda(text)
    assert found == text_of_program(program, found.extents)
    other = changed(program, lambda one: replace(one, b_across=not one.b_across))
    assert found != text_of_program(other, found.extents)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: changed(p, lambda one: replace(one, columns=24)), "columns"),
        (lambda p: changed(p, lambda one: replace(one, depth=24)), "depth"),
        (lambda p: changed(p, lambda one: replace(one, a="z")), "a multiple of 1024 bytes"),
        (lambda p: replace(p, threads=64), "whole warpgroups"),
        (lambda p: replace(p, body=tuple(map(unfenced, p.body))), "fenced barriers"),
        (lambda p: replace(p, shared=tuple(replace(b, offset=b.offset + 512) for b in p.shared)), "1024 bytes"),
    ],
    ids=["columns", "depth", "type", "threads", "fence", "offset"],
)
def test_a_product_that_the_hardware_does_not_have_is_refused(
    change: Callable[[ir.Program], ir.Program], expected: str
) -> None:
    program = change(LAST)
    if expected.startswith("a multiple"):  # of another element type
        program = replace(program, shared=(program.shared[0], replace(program.shared[1], dtype=DType.BFLOAT16)))
    assert any(expected in what for _, _, what in list_accesses(program).faults)
    assert not isinstance(discharge_safety(program).verdict, Safe)


def unfenced(statement: ir.Stmt) -> ir.Stmt:
    return ir.Barrier() if isinstance(statement, ir.Barrier) else statement


def test_operands_must_be_written_before_a_barrier() -> None:
    """Each thread's copies are done, but those of others are not: the product reads all of them."""
    program = replace(LAST, body=tuple(one for one in LAST.body if not isinstance(one, ir.Barrier)))
    verdict = discharge_safety(program).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.CONFLICT


def test_operands_may_not_be_read_beyond_what_was_written() -> None:
    further = changed(LAST, lambda one: replace(one, b_at=ir.Int(2)))
    verdict = discharge_safety(further).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.BOUNDS


def moved(program: ir.Program, place: int) -> ir.Program:
    """The Program with its wait moved by some statements."""
    body = list(program.body)
    at = next(i for i, one in enumerate(body) if isinstance(one, ir.WarpgroupWait))
    wait = body.pop(at)
    body.insert(at + place, wait)
    return replace(program, body=tuple(body))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: moved(p, 1), "expected behind the wait for the product"),
        (lambda p: replace(p, body=tuple(s for s in p.body if not isinstance(s, ir.WarpgroupWait))), "behind the wait"),
        (lambda p: interrupted(p), "behind the wait"),
        (lambda p: nested(p), "the wait for a product in its own body"),
    ],
    ids=["read before the wait", "no wait", "barrier", "other body"],
)
def test_registers_of_a_deferred_product_are_untouched_until_the_wait(
    change: Callable[[ir.Program], ir.Program], expected: str
) -> None:
    program = change(LAST)
    assert program.body != LAST.body
    assert any(expected in what for _, _, what in list_accesses(program).faults)
    assert not isinstance(discharge_safety(program).verdict, Safe)


def interrupted(program: ir.Program) -> ir.Program:
    """The Program with a barrier between a deferred product and its wait."""
    at = next(i for i, one in enumerate(program.body) if isinstance(one, ir.WarpgroupWait))
    return replace(program, body=(*program.body[:at], ir.Barrier(fenced=True), *program.body[at:]))


def nested(program: ir.Program) -> ir.Program:
    """The Program with its deferred product in a loop of one iteration."""
    return changed(program, lambda one: ir.For("once", 1, (one,)) if one.deferred else one)


def test_accumulators_are_defined_before_they_are_added_to() -> None:
    body = tuple(replace(one, initial=None) if isinstance(one, ir.Registers) else one for one in LAST.body)
    assert isinstance(discharge_safety(replace(LAST, body=body)).verdict, Safe), "the first product adds to nothing"
    added = changed(replace(LAST, body=body), lambda one: replace(one, accumulate=True))
    verdict = discharge_safety(added).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.ASSIGNMENT


@pytest.mark.parametrize(
    "number", [i for i, one in enumerate(cases()) if one.lowering == "warpgroups" and "attention" not in one.name]
)
def test_kernels_of_every_orientation_compute_their_graphs(number: int) -> None:
    """The claim ``realizes`` is decided of the same kernels in tests/codegen/translation_validation."""
    one: Case = cases()[number]
    assert any(isinstance(s, ir.WarpgroupMma) for s in ir.all_statements(one.kernel.program.body))
    assert isinstance(discharge_safety(one.kernel.program).verdict, Safe)
    draws = givens(number)
    assert len(draws) == 2, "the interpreter's results are those of the graph in float64"
    (found,) = run_kernel(one.kernel.program, [x.astype(np.float16) for x in draws[0].read])
    (wanted,) = draws[0].wanted
    assert np.abs(found.astype(np.float64).reshape(-1) - wanted).max() < 0.01 * np.abs(wanted).max()


def test_other_gpus_have_no_such_schedules() -> None:
    graph = tails.product(64, 128, 128, (64, 64, 64))[1]
    at = graph_defined(graph)
    chosen = next(one for one in schedules(graph, at, TARGET) if any(warps.warpgroup for warps in one.warps))
    other = load_target("a100")
    assert not any(warps.warpgroup for one in schedules(graph, at, other) for warps in one.warps)
    with pytest.raises(UnsupportedError, match="expected warps that cut"):
        generate(graph, other, {at: chosen})


@pytest.mark.parametrize(
    ("shape", "possible"),
    [((60, 128, 128, (64, 64, 64)), True), ((64, 120, 128, (64, 40, 64)), False), ((64, 96, 96, (64, 32, 48)), False)],
)
def test_only_whole_tiles_have_products_of_warpgroups(
    shape: tuple[int, int, int, tuple[int, int, int]], possible: bool
) -> None:
    """A tile of 64 rows that overhangs 60 rows of memory is whole: the rest of it is zeros in shared memory."""
    m, k, n, (rows, inner, columns) = shape
    graph = tails.product(m, k, n, (rows, columns, inner))[1]
    at = graph_defined(graph)
    found = [one for one in schedules(graph, at, TARGET) if any(warps.warpgroup for warps in one.warps)]
    assert bool(found) is possible
    for one in found:
        (kernel,) = generate(graph, TARGET, {at: one}).steps
        assert isinstance(discharge_safety(kernel.program).verdict, Safe)  # type: ignore[union-attr]
        assert isinstance(decide_realizes(graph, kernel, 1), Realizes)  # type: ignore[arg-type]


def graph_defined(graph: KernelGraph) -> int:
    """The position of the only graph-defined operator."""
    (found,) = (i for i, op in enumerate(graph.ops) if isinstance(op, GraphDefined))
    return found


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    graph = tails.product(64, 128, 128, (64, 64, 64))[1]
    at = graph_defined(graph)
    chosen = next(one for one in schedules(graph, at, TARGET) if any(warps.warpgroup for warps in one.warps))
    wrong = replace(chosen, warps=(Warps(2, 2, 1, warpgroup=True),))
    with pytest.raises(UnsupportedError, match="expected warps that cut"):
        generate(graph, TARGET, {at: wrong})
