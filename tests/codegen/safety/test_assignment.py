"""Definite assignment: every register that is read was written before, in whatever order loops and conditions come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_formal.codegen.program.program import (
    Apply,
    Barrier,
    BinaryFn,
    For,
    GlobalVector,
    GlobalWrite,
    If,
    Int,
    IntExpr,
    LoadMatrix,
    Mma,
    Pack,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedBuffer,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Value,
    Var,
)
from mirage_formal.codegen.safety import assignment
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    ObligationKind,
    UndecidedObligation,
)
from mirage_formal.codegen.safety.safety import Safe, Unknown, Unsafe, discharge_safety
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from tests.codegen.safety.test_safety_kernels import SMALL
from tests.codegen.safety.test_safety_kernels import programs as lowered
from tests.kit.kernels import program_interpreter
from tests.kit.kernels import safety_programs as programs
from tests.kit.kernels.emulated_programs import WARPGROUP_PRODUCTS, every_kernel
from tests.kit.kernels.safety_programs import add, less, mul, tid, write_mutants
from tests.kit.sampling import number

THREADS, BLOCKS = 64, 3
i, j = Var("i"), Var("j")
X = Param("X", DType.FLOAT16, 8 * THREADS, False)
Y = Param("Y", DType.FLOAT16, BLOCKS * THREADS, True)
ROWS = SharedBuffer("s", DType.FLOAT16, 8 * THREADS, 0)
FILL = SharedWrite("s", mul(tid, 8), (Real(0.0),) * 8)


def kernel(*body: Stmt, initial: float | None = None) -> Program:
    """A Program that declares registers, words and accumulators, and writes what ``r[0]`` holds at its end."""
    declared = (Registers("r", 8, initial=initial), Registers("w", 8, words=True), Registers("d", 4))
    out = GlobalWrite("Y", add(mul(Var("bx"), THREADS), tid), (Reg("r", Int(0)),))
    return Program("p", (X, Y), (ROWS,), (BLOCKS, 1, 1), THREADS, (*declared, *body, out))


def put(index: IntExpr | int, value: Value | None = None, array: str = "r") -> Stmt:
    return SetReg(array, programs.expr(index), Real(1.0) if value is None else value)


def get(index: IntExpr | int, array: str = "r") -> Value:
    return Reg(array, programs.expr(index))


def unrolled(var: str, extent: int, *body: Stmt) -> Stmt:
    return For(var, extent, body, unroll=True)


PART = add(mul(i, 4), j)
ALL = unrolled("i", 8, put(i))
CLEAR = unrolled("i", 4, put(i, array="d"))
LOADED = (FILL, Barrier(), LoadMatrix("w", Int(0), "s", mul(tid, 8), 4), CLEAR)

RIGHT: list[tuple[str, Program]] = [
    ("declared with values", kernel(put(0, get(7)), initial=0.0)),
    ("one by one", kernel(put(0), put(1, get(0)), put(0, Apply(OpKind.EXP, get(1))))),
    ("a loop fills all", kernel(ALL, put(0, get(5)))),
    ("two loops fill all", kernel(
        unrolled("i", 4, put(mul(i, 2)), put(add(mul(i, 2), 1))), unrolled("j", 8, put(j, get(j))),
    )),
    ("the same iteration", kernel(put(0), unrolled("i", 7, put(add(i, 1), get(i))))),
    ("a vector, and parts of it", kernel(
        unrolled("i", 2, GlobalVector("r", mul(i, 4), "X", mul(tid, 8), 4), unrolled("j", 4, put(PART, get(PART)))),
    )),
    ("in the iteration before", kernel(put(0), For("i", 5, (If(less(0, i), (put(0, get(3)),)), put(3))))),
    ("two iterations before", kernel(put(0), For("i", 5, (
        If(less(1, i), (put(0, get(3)),)), If(less(i, 1), (put(3),)),
    )))),
    ("in an iteration of the outer loop", kernel(put(0), For("i", 3, (
        For("j", 2, (If(less(0, i), (put(0, get(4)),)),)), For("j", 2, (If(less(0, j), (put(4),)),)),
    )))),
    ("under the same condition", kernel(put(0), If(less(tid, 9), (put(1), put(0, get(1)))))),
    ("under a weaker condition", kernel(put(0), If(less(tid, 9), (put(1),)), If(less(tid, 8), (put(0, get(1)),)))),
    ("under two conditions together", kernel(
        put(0), If(less(tid, 9), (put(1),)), If(less(8, tid), (put(1),)), put(0, get(1)),
    )),
    ("the chosen side", kernel(If(less(tid, 9), (put(1),)), put(0, Select(less(tid, 9), get(1), Real(0.0))))),
    ("the other side", kernel(If(less(tid, 9), (put(1),)), put(2), put(0, Select(less(8, tid), get(2), get(1))))),
    ("words", kernel(put(0), Pack("w", Int(3), Real(0.0), get(0), DType.FLOAT16))),
    ("fragments", kernel(*LOADED, Mma("d", Int(0), "w", Int(0), "w", Int(2), DType.FLOAT16), put(0, get(3, "d")))),
    ("a reduction over lanes", kernel(put(0), ShuffleReduce("r", Int(0), BinaryFn.ADD, 1))),
    ("an array of its own in each iteration", kernel(put(0), For("i", 3, (
        Registers("v", 2), put(1, array="v"), put(0, get(1, "v")),
    )))),
]  # fmt: skip

WRONG: list[tuple[str, Program]] = [
    ("never", kernel()),
    ("another one", kernel(put(1))),
    ("too late", kernel(put(1, get(0)), put(0))),
    ("all but the last", kernel(unrolled("i", 7, put(i)), put(0, get(7)))),
    ("every second", kernel(unrolled("i", 4, put(mul(i, 2))), unrolled("j", 8, put(0, get(j))))),
    ("one iteration too early", kernel(put(0), unrolled("i", 7, put(i, get(add(i, 1)))))),
    ("not in the first iteration", kernel(put(0), For("i", 5, (put(0, get(3)), put(3))))),
    ("not in the second iteration", kernel(put(0), For("i", 5, (
        If(less(0, i), (put(0, get(3)),)), If(less(0, i), (put(3),)),
    )))),
    ("a variable of the same name elsewhere", kernel(
        unrolled("i", 8, If(less(i, 3), (put(i),))), unrolled("i", 8, If(less(i, 3), (put(0, get(6)),))),
    )),
    ("some threads", kernel(put(0), If(less(tid, 9), (put(1),)), put(0, get(1)))),
    ("under a stronger condition", kernel(put(0), If(less(tid, 8), (put(1),)), If(less(tid, 9), (put(0, get(1)),)))),
    ("one block", kernel(put(0), If(less(Var("bx"), 2), (put(1),)), put(0, get(1)))),
    ("the side that is not chosen", kernel(
        If(less(tid, 9), (put(1),)), put(0, Select(less(tid, 9), Real(0.0), get(1))),
    )),
    ("words", kernel(*LOADED, Mma("d", Int(0), "w", Int(0), "w", Int(3), DType.FLOAT16), put(0))),
    ("an accumulator", kernel(*LOADED[:-1], Mma("d", Int(0), "w", Int(0), "w", Int(2), DType.FLOAT16), put(0))),
    ("a reduction over lanes", kernel(put(0), ShuffleReduce("r", Int(1), BinaryFn.ADD, 1))),
    ("of an iteration that is over", kernel(put(0), For("i", 3, (
        Registers("v", 2), If(less(0, i), (put(0, get(1, "v")),)), put(1, array="v"),
    )))),
    ("of a body that is over", kernel(put(0), *(
        If(less(tid, 99), (Registers("v", 2), stmt)) for stmt in (put(1, array="v"), put(0, get(1, "v")))
    ))),
]  # fmt: skip


@pytest.mark.parametrize("points", [assignment.MOST_POINTS, 1], ids=["looked at", "asked"])
@pytest.mark.parametrize("right", [case[1] for case in RIGHT], ids=[case[0] for case in RIGHT])
def test_what_is_written_before_is_safe(right: Program, points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MOST_POINTS", points)
    assert program_interpreter.fault(right) == ""
    report = discharge_safety(right)
    assert isinstance(report.verdict, Safe), report.verdict
    found = [entry for entry in report.discharged if entry.obligation.kind is ObligationKind.ASSIGNMENT]
    assert found
    assert all(isinstance(entry.finding, DischargedObligation) for entry in found)


@pytest.mark.parametrize("points", [assignment.MOST_POINTS, 1], ids=["looked at", "asked"])
@pytest.mark.parametrize("wrong", [case[1] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_not_is_found(wrong: Program, points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MOST_POINTS", points)
    assert "read before it was written" in program_interpreter.fault(wrong)
    verdict = discharge_safety(wrong).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.ASSIGNMENT


def test_a_fault_names_the_read_the_thread_and_the_register() -> None:
    body = (put(0), If(less(tid, 9), (put(1), put(2))), unrolled("j", 3, put(0, get(j))))
    verdict = discharge_safety(kernel(*body)).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.path == "5:for j/0"
    assert verdict.obligation.subject == "r"
    model = dict(verdict.model)
    assert model["tid"] >= 9
    assert model["index"] == model["j"] in (1, 2)
    assert verdict.reason == "never written before"


def test_questions_are_asked_where_there_is_much_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both solvers settle them; more than can be asked is undecided, and refused."""
    late = kernel(put(0), For("i", 5, (If(less(0, i), (put(0, get(3)),)), put(3))))
    monkeypatch.setattr(assignment, "MOST_POINTS", 1)
    (entry,) = [
        e
        for e in discharge_safety(late).discharged
        if e.obligation.query is not None and e.obligation.kind is ObligationKind.ASSIGNMENT
    ]
    assert entry.finding == DischargedObligation(DischargeMethod.SOLVER)
    assert {result.solver for result in entry.results} == {"z3", "cvc5"}
    assert entry.obligation.text.endswith("(check-sat)\n")
    monkeypatch.setattr(assignment, "MOST_WRITES", 1)
    report = discharge_safety(late)
    assert isinstance(report.verdict, Unknown)
    assert "definite assignment" in report.verdict.reason
    assert any(isinstance(e.finding, UndecidedObligation) for e in report.discharged)


def test_each_array_that_is_read_has_an_obligation() -> None:
    found = [e.obligation for e in discharge_safety(programs.gemm(16, 64, 192)).discharged]
    subjects = {one.subject for one in found if one.kind is ObligationKind.ASSIGNMENT}
    assert subjects
    assert all(one.finding is not None for one in found if one.kind is ObligationKind.ASSIGNMENT), "no solver is needed"


MADE: dict[str, Callable[[], list[Program]]] = {
    "by hand": lambda: [
        programs.gemm(16, 64, 192),
        programs.softmax(2, 200),
        programs.generic(8, 20, 12, 2),
        programs.ring(4, 2),
    ],
    "emulated": lambda: [one for one in every_kernel() if one.name != "functions"],
    "warpgroups": lambda: [*WARPGROUP_PRODUCTS],
    "fast": lambda: [one for make in SMALL for one in lowered(make(), generic=False)],
    "generic": lambda: [one for make in SMALL for one in lowered(make(), generic=True)],
}


@pytest.mark.parametrize(
    ("kind", "usual", "least"), [("by hand", 36, 1), ("emulated", 36, 3), ("fast", 24, 4), ("generic", 8, 0)]
)
def test_mutants_are_refused_or_read_nothing_undefined(kind: str, usual: int, least: int) -> None:
    """A write removed, moved, or made less often: unsafe exactly if something goes wrong when it is run."""
    every = [(f"{one.name} {what}", mutant) for one in MADE[kind]() for what, mutant in write_mutants(one)]
    count = number(usual, len(every))
    assert len(every) >= 150
    refused = unwritten = 0
    for position in range(count):
        what, mutant = every[position * len(every) // count]
        report, fault = discharge_safety(mutant, second=False), program_interpreter.fault(mutant)
        assert isinstance(report.verdict, Safe) is not bool(fault), (what, fault, report.verdict)
        refused += bool(fault)
        unwritten += any(
            entry.obligation.kind is ObligationKind.ASSIGNMENT and not isinstance(entry.finding, DischargedObligation)
            for entry in report.discharged
        )
    assert refused >= count // 3
    assert unwritten >= least


def test_an_initial_value_that_is_forgotten_is_found() -> None:
    made = programs.gemm(16, 64, 192)
    body = tuple(replace(s, initial=None) if isinstance(s, Registers) else s for s in made.body)
    assert body != made.body
    verdict = discharge_safety(replace(made, body=body)).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.ASSIGNMENT
