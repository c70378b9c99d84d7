"""Safety of hand-written Programs, and one Program for each thing that can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_formal.codegen.program.program import (
    Barrier,
    BinaryFn,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    GridWait,
    If,
    Int,
    IntExpr,
    LaunchDependents,
    LoadMatrix,
    Mma,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Var,
    WaitGroups,
)
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    ObligationKind,
    ViolatedObligation,
)
from mirage_formal.codegen.safety.safety import Safe, SafetyReport, Unsafe, discharge_safety, safety_obligations
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Unknown
from mirage_formal.logic.session import Satisfiability
from tests.kit.kernels import program_interpreter
from tests.kit.kernels import safety_programs as programs
from tests.kit.kernels.safety_programs import HALF, SINGLE, add, bx, div, equal, less, mod, mul, sub, tid, xor
from tests.kit.processes import calls

THREADS = 64
R0 = Reg("r", Int(0))
Y = Param("Y", SINGLE, THREADS, True)
X = Param("X", HALF, 1024, False)
A = SharedBuffer("a", HALF, 1024, 0)
B = SharedBuffer("b", HALF, 1024, 2048)


def program(*body: Stmt, shared: tuple[SharedBuffer, ...] = (A, B), params: tuple[Param, ...] = (X, Y)) -> Program:
    """A Program of 64 threads that does ``body`` and writes Y."""
    declared = (Registers("r", 8, initial=0.0), Registers("w", 4, words=True))
    return Program("p", params, shared, (1, 1, 1), THREADS, (*declared, *body, GlobalWrite("Y", tid, (R0,))))


def waiting(*body: Stmt) -> Program:
    """The same that begins with the first of ``body``."""
    first, *rest = body
    made = program(*rest)
    return replace(made, body=(first, *made.body))


def put(index: IntExpr | int, buffer: str = "a") -> Stmt:
    return SharedWrite(buffer, programs.expr(index), (Real(1.0),))


def get(index: IntExpr | int, buffer: str = "a") -> Stmt:
    return SetReg("r", Int(0), SharedRead(buffer, programs.expr(index)))


def test_masks_are_bytes() -> None:
    """Neighbours are other elements; what nobody wrote, what races and what is misaligned is found byte by byte."""
    masks, mask = SharedBuffer("a", DType.BOOL, 128, 0), Param("X", DType.BOOL, 1024, False)
    other = SharedBuffer("b", DType.BOOL, 128, 127)

    def kernel(*body: Stmt, shared: tuple[SharedBuffer, ...] = (masks,)) -> Program:
        return program(*body, shared=shared, params=(mask, Y))

    def vector(index: IntExpr) -> Stmt:
        return SharedVector("r", Int(0), "a", index, 2)

    both = SharedWrite("a", mul(tid, 2), (Real(1.0), Real(0.0)))
    copies = (If(less(tid, 8), (CopyAsync("a", mul(tid, 16), "X", mul(tid, 16)),)), Commit(), WaitGroups(0), Barrier())
    body: tuple[Stmt, ...]
    safe = (put(tid), Barrier(), get(sub(63, tid))), (both, Barrier(), vector(mul(tid, 2))), (*copies, get(add(tid, 3)))
    for body in safe:
        assert isinstance(discharge_safety(kernel(*body)).verdict, Safe), body
    unsafe = (
        (put(tid), get(sub(63, tid))),
        (put(mul(tid, 2)), Barrier(), get(add(mul(tid, 2), 1))),
        (both, Barrier(), vector(tid)),
        (If(less(tid, 8), (CopyAsync("a", mul(tid, 16), "X", mul(tid, 8)),)), Commit(), WaitGroups(0), Barrier()),
    )
    for body in unsafe:
        assert not isinstance(discharge_safety(kernel(*body)).verdict, Safe), body
    overlap = kernel(both, Barrier(), put(tid, "b"), Barrier(), get(127), shared=(masks, other))
    assert not isinstance(discharge_safety(overlap).verdict, Safe)


def copy(index: IntExpr, source: IntExpr | None = None, valid: IntExpr | int = 1) -> Stmt:
    return CopyAsync("a", index, "X", index if source is None else source, programs.expr(valid))


@pytest.mark.parametrize("make", programs.ALL, ids=lambda make: make.__name__)
def test_usual_kernels_are_safe(make: Callable[[], Program]) -> None:
    report = discharge_safety(make(), recheck=True)
    assert isinstance(report.verdict, Safe)
    assert report.verdict.obligations == len(report.discharged) == len(safety_obligations(make()))
    for entry in report.discharged:
        assert isinstance(entry.finding, DischargedObligation)
        # Solvers agree with what was settled by bounds and digits.
        assert all(result.answer is Satisfiability.UNSAT for result in entry.results[:1])
        assert bool(entry.results) is (entry.obligation.query is not None)
    kinds = {entry.obligation.kind for entry in report.discharged}
    assert {
        ObligationKind.ARITHMETIC,
        ObligationKind.BOUNDS,
        ObligationKind.SINGLE_WRITER,
        ObligationKind.COVERAGE,
    } <= kinds


def test_a_large_kernel_is_quick() -> None:
    reports: list[SafetyReport] = []
    calls(lambda: reports.append(discharge_safety(programs.gemm(16, 6144, 4096))), 3_000_000)  # 290,000
    (report,) = reports
    assert isinstance(report.verdict, Safe)
    # Every iteration of the pipeline is looked at, yet obligations of equal texts are stated once.
    assert len(report.discharged) < 200


def aligned(e: IntExpr) -> IntExpr:
    return mul(e, 8)


#: An element of what a launch before may have written.
GET_X = SetReg("r", Int(0), GlobalRead("X", tid))
FORTY = add(tid, mul(Var("k"), 40))
OWN_ROW = [put(add(aligned(tid), j)) for j in range(8)]

WRONG: list[tuple[str, ObligationKind, Program]] = [
    ("overflow", ObligationKind.ARITHMETIC, program(get(mod(mul(mul(tid, 1 << 20), 1 << 10), 8)))),
    ("negative", ObligationKind.ARITHMETIC, program(put(sub(62, tid)))),
    ("zero divisor", ObligationKind.ARITHMETIC, program(put(mod(100, tid)))),
    ("negative under a condition", ObligationKind.ARITHMETIC, program(If(less(1, tid), (put(sub(tid, 3)),)))),
    ("write beyond", ObligationKind.BOUNDS, program(put(add(mul(tid, 16), 16)))),
    ("read beyond", ObligationKind.BOUNDS, program(SetReg("r", Int(0), GlobalRead("X", add(tid, 961))))),
    ("vector beyond", ObligationKind.BOUNDS, program(GlobalVector("r", Int(0), "X", aligned(mul(tid, 3)), 8))),
    ("tail", ObligationKind.BOUNDS, program(If(less(tid, 33), (put(mul(tid, 32)),)))),
    ("copy from beyond", ObligationKind.BOUNDS, program(copy(aligned(tid), add(aligned(tid), 520)))),
    (
        "copy from beyond though masked",
        ObligationKind.BOUNDS,
        program(copy(aligned(tid), aligned(mul(tid, 3)), less(tid, 44))),
    ),
    ("matrix row beyond", ObligationKind.BOUNDS, program(LoadMatrix("w", Int(0), "a", aligned(mul(tid, 4)), 4))),
    ("registers", ObligationKind.BOUNDS, program(SetReg("r", Int(8), Real(0.0)))),
    ("registers of a vector", ObligationKind.BOUNDS, program(GlobalVector("r", Int(1), "X", aligned(tid), 8))),
    ("unaligned vector", ObligationKind.ALIGNMENT, program(GlobalVector("r", Int(0), "X", mul(tid, 4), 8))),
    ("unaligned copy", ObligationKind.ALIGNMENT, program(copy(aligned(tid), add(aligned(tid), 4)))),
    ("unaligned row", ObligationKind.ALIGNMENT, program(LoadMatrix("w", Int(0), "a", mul(tid, 12), 1))),
    (
        "unaligned pointer",
        ObligationKind.ALIGNMENT,
        program(GlobalVector("r", Int(0), "X", aligned(tid), 8), params=(replace(X, align=8), Y)),
    ),
    (
        "unaligned buffer",
        ObligationKind.ALIGNMENT,
        program(SharedWrite("a", aligned(tid), (Real(0.0),) * 8), shared=(replace(A, offset=8),)),
    ),
    ("condition that differs", ObligationKind.UNIFORM, program(If(less(tid, 32), (put(tid),), uniform=True))),
    ("barrier under it", ObligationKind.STRUCTURE, program(If(less(tid, 32), (Barrier(),)))),
    (
        "barrier under a uniform one under it",
        ObligationKind.STRUCTURE,
        program(If(less(tid, 32), (If(less(bx, 1), (Barrier(),), uniform=True),))),
    ),
    (
        "shuffle under it",
        ObligationKind.STRUCTURE,
        program(If(less(tid, 32), (ShuffleReduce("r", Int(0), BinaryFn.ADD, 1),))),
    ),
    ("commit under it", ObligationKind.STRUCTURE, program(If(less(tid, 32), (Commit(),)))),
    ("index of the thread", ObligationKind.STRUCTURE, program(SetReg("r", mod(tid, 8), Real(0.0)))),
    ("index of a loop", ObligationKind.STRUCTURE, program(For("i", 8, (SetReg("r", Var("i"), Real(0.0)),)))),
    ("load before the wait for the launch before", ObligationKind.STRUCTURE, program(GET_X, GridWait(), put(tid))),
    (
        "copy before it",
        ObligationKind.STRUCTURE,
        program(copy(aligned(tid)), GridWait(), Commit(), WaitGroups(0), Barrier()),
    ),
    ("wait for it under a condition", ObligationKind.STRUCTURE, waiting(If(less(tid, 32), (GridWait(),)), GET_X)),
    ("second wait for it", ObligationKind.STRUCTURE, waiting(GridWait(), GridWait(), GET_X)),
    ("dependents before it", ObligationKind.STRUCTURE, waiting(LaunchDependents(), GridWait(), GET_X)),
    ("unknown buffer", ObligationKind.STRUCTURE, program(put(tid, "c"))),
    ("unknown variable", ObligationKind.STRUCTURE, program(put(Var("j")))),
    ("floats for words", ObligationKind.STRUCTURE, program(Mma("r", Int(0), "r", Int(4), "w", Int(0), HALF))),
    ("read of an output", ObligationKind.STRUCTURE, program(SetReg("r", Int(0), GlobalRead("Y", tid)))),
    ("write of an input", ObligationKind.STRUCTURE, program(GlobalWrite("X", tid, (R0,)))),
    ("three elements", ObligationKind.STRUCTURE, program(SharedWrite("a", mul(tid, 4), (R0, R0, R0)))),
    ("same name", ObligationKind.STRUCTURE, program(shared=(A, replace(B, name="a")))),
    ("read and write", ObligationKind.CONFLICT, program(put(tid), put(add(tid, 64)), get(add(tid, 1)))),
    ("two writes", ObligationKind.CONFLICT, program(put(div(tid, 2)))),
    ("write after read", ObligationKind.CONFLICT, program(put(tid), Barrier(), get(xor(tid, 1)), put(tid))),
    (
        "write of the last of two readers",
        ObligationKind.CONFLICT,
        program(put(tid), Barrier(), get(div(tid, 2)), If(equal(mod(tid, 2), 1), (put(div(tid, 2)),))),
    ),
    (
        "last and first of an iteration",
        ObligationKind.CONFLICT,
        program(For("i", 3, (put(tid), Barrier(), get(xor(tid, 1))))),
    ),
    (
        "two iterations without a barrier",
        ObligationKind.CONFLICT,
        program(For("i", 2, (put(add(tid, Var("i"))),))),
    ),
    (
        "another buffer in its place",
        ObligationKind.CONFLICT,
        program(put(tid), Barrier(), get(xor(tid, 1)), put(tid, "b"), shared=(A, replace(B, offset=0))),
    ),
    ("copy without wait", ObligationKind.CONFLICT, program(copy(aligned(tid)), Commit(), Barrier(), get(tid))),
    ("copy without commit", ObligationKind.CONFLICT, program(copy(aligned(tid)), WaitGroups(0), Barrier(), get(tid))),
    (
        "wait too short",
        ObligationKind.CONFLICT,
        program(copy(aligned(tid)), Commit(), WaitGroups(1), Barrier(), get(tid)),
    ),
    (
        "wait after the barrier",
        ObligationKind.CONFLICT,
        program(copy(aligned(tid)), Commit(), Barrier(), WaitGroups(0), get(tid)),
    ),
    ("own copy without wait", ObligationKind.CONFLICT, program(copy(aligned(tid)), Commit(), get(aligned(tid)))),
    (
        "a bound that holds of one access only",
        ObligationKind.CONFLICT,
        program(*(For("k", 2, (stmt,)) for stmt in (If(less(tid, 40), (put(FORTY),)), get(FORTY)))),
    ),
    ("copied again while in flight", ObligationKind.CONFLICT, program(For("i", 2, (copy(aligned(tid)), Commit())))),
    ("copied twice in a loop", ObligationKind.CONFLICT, program(For("i", 2, (copy(aligned(tid)),)))),
    ("copied twice", ObligationKind.CONFLICT, program(copy(aligned(tid)), copy(aligned(tid)))),
    (
        "matrix read of own row",
        ObligationKind.CONFLICT,
        program(*OWN_ROW, LoadMatrix("w", Int(0), "a", aligned(tid), 4)),
    ),
    ("never written", ObligationKind.LIVE, program(get(tid))),
    ("half written", ObligationKind.LIVE, program(put(mul(tid, 2)), Barrier(), get(tid))),
    (
        "written through another buffer since",
        ObligationKind.LIVE,
        program(put(tid), Barrier(), put(tid, "b"), Barrier(), get(tid), shared=(A, replace(B, offset=64))),
    ),
    ("two blocks", ObligationKind.SINGLE_WRITER, replace(program(), grid=(2, 1, 1))),
    ("two threads", ObligationKind.SINGLE_WRITER, program(GlobalWrite("Y", div(tid, 2), (R0,)))),
    (
        "two statements",
        ObligationKind.SINGLE_WRITER,
        program(If(less(tid, 63), (GlobalWrite("Y", add(tid, 1), (R0,)),))),
    ),
    (
        "two statements that share one element",
        ObligationKind.SINGLE_WRITER,
        program(GlobalWrite("Y", add(tid, 63), (R0,)), params=(X, replace(Y, elements=127))),
    ),
    (
        "the same in the other order",
        ObligationKind.SINGLE_WRITER,
        Program(
            "p",
            (replace(Y, elements=127),),
            (),
            (1, 1, 1),
            THREADS,
            tuple(GlobalWrite("Y", e, (Real(0.0),)) for e in (tid, add(tid, 63))),
        ),
    ),
    ("not all", ObligationKind.COVERAGE, program(params=(X, replace(Y, elements=65)))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wrong"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_goes_wrong_is_found(kind: ObligationKind, wrong: Program) -> None:
    report = discharge_safety(wrong)
    assert isinstance(report.verdict, Unsafe)
    found = [entry.obligation.kind for entry in report.discharged if isinstance(entry.finding, ViolatedObligation)]
    assert kind in found
    if kind is not ObligationKind.STRUCTURE or "GridWait" in repr(wrong):
        assert program_interpreter.fault(wrong)


own = SharedRead("a", tid)

HARMLESS: list[tuple[str, Program]] = [
    ("own element without barrier", program(put(tid), get(tid), put(tid))),
    ("negative only where not computed", program(If(less(2, tid), (put(sub(tid, 3)),)))),
    ("chosen side only", program(put(tid), SetReg("r", Int(0), Select(less(tid, 63), own, Real(0.0))))),
    ("zero divisor not reached", program(If(programs.both(less(0, tid), less(0, mod(100, tid))), (put(tid),)))),
    ("copy and wait of one's own", program(copy(aligned(tid)), Commit(), WaitGroups(0), get(aligned(tid)))),
    ("copy, wait, barrier", program(copy(aligned(tid)), Commit(), WaitGroups(0), Barrier(), get(xor(tid, 1)))),
    ("masked copy", program(copy(aligned(tid), aligned(mul(tid, 3)), less(tid, 43)))),
    ("lanes that do not count", program(*[If(less(tid, 40), (put(add(aligned(tid), j)),)) for j in range(8)], Barrier(),
                                        LoadMatrix("w", Int(0), "a", aligned(tid), 1))),
    ("other halves of the ring", program(put(tid), Barrier(), For("i", 4, (
        get(add(mul(mod(Var("i"), 2), 64), xor(tid, 1))),
        put(add(mul(mod(add(Var("i"), 1), 2), 64), tid)),
        Barrier(),
    )))),
    ("buffers of different times", program(put(tid), Barrier(), get(xor(tid, 1)), Barrier(), put(tid, "b"), Barrier(),
                                           get(xor(tid, 1), "b"), shared=(A, replace(B, offset=0)))),
    ("buffers of different times in each iteration", program(For("i", 3, (
        put(tid), Barrier(), get(xor(tid, 1)), Barrier(), put(tid, "b"), Barrier(), get(xor(tid, 1), "b"), Barrier(),
    )), shared=(A, replace(B, offset=0)))),
    ("waits for the launch before", waiting(GridWait(), GET_X, put(tid), get(tid))),
    ("copies an input ahead of the wait", replace(
        program(copy(aligned(tid)), GridWait(), Commit(), WaitGroups(0), Barrier(), get(xor(tid, 1))),
        params=tuple(replace(param, given=not param.written) for param in program().params),
    )),
    ("lets the launch behind start", waiting(LaunchDependents(), GET_X, put(tid), get(tid))),
    ("empty groups", program(copy(aligned(tid)), Commit(), Commit(), Commit(), WaitGroups(2), Barrier(), get(tid))),
]  # fmt: skip


@pytest.mark.parametrize("right", [case[1] for case in HARMLESS], ids=[case[0] for case in HARMLESS])
def test_harmless_programs_are_safe(right: Program) -> None:
    assert program_interpreter.fault(right) == ""
    assert isinstance(discharge_safety(right, recheck=True).verdict, Safe)


def test_a_conflict_comes_with_two_threads() -> None:
    verdict = discharge_safety(program(put(mul(div(tid, 2), 3)))).verdict
    assert isinstance(verdict, Unsafe)
    model = dict(verdict.model)
    assert model["tid"] != model["tid~2"]
    assert model["tid"] // 2 == model["tid~2"] // 2
    assert model["index"] == model["index~2"] == model["tid"] // 2 * 6
    assert verdict.obligation.subject == "a"
    assert verdict.obligation.path == "2"


def test_an_access_out_of_bounds_comes_with_thread_block_and_iteration() -> None:
    e = add(add(mul(bx, 128), mul(Var("i"), 64)), tid)
    # A limit that is right for the grid's first block only, in a nested loop.
    body = (Registers("r", 1), For("i", 2, (SetReg("r", Int(0), GlobalRead("X", e)),)), GlobalWrite("Y", e, (R0,)))
    wide = Program("p", (replace(X, elements=250), Y), (), (2, 1, 1), THREADS, (body[0], body[1]))
    verdict = discharge_safety(replace(wide, params=(wide.params[0],))).verdict
    assert isinstance(verdict, Unsafe)
    model = dict(verdict.model)
    assert (model["bx"], model["i"]) == (1, 1)
    assert model["index"] == 128 + 64 + model["tid"] >= 250
    assert verdict.obligation.path == "1:for i/0"


def test_a_live_fault_names_who_wrote() -> None:
    shared = (A, replace(B, offset=64))
    verdict = discharge_safety(program(put(tid), Barrier(), put(tid, "b"), Barrier(), get(tid), shared=shared)).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.reason == "written last through b"
    assert dict(verdict.model)["index"] == 32


def test_verdicts_have_no_truth_value() -> None:
    for made in (programs.elementwise(), program(get(tid))):
        with pytest.raises(TypeError, match="no truth value"):
            bool(discharge_safety(made).verdict)


@pytest.mark.parametrize(("read", "safe"), [(tid, True), (mod(add(tid, 1), THREADS), False)])
def test_synchronisation_that_depends_on_the_block_is_followed_for_each_kind_of_block(
    read: IntExpr, safe: bool
) -> None:
    # Of two blocks only the first has the barrier: what another thread wrote may not be read in the second.
    e = add(mul(bx, THREADS), tid)
    body = (put(tid), If(less(bx, 1), (Barrier(),), uniform=True), get(read), GlobalWrite("Y", e, (R0,)))
    y = replace(Y, elements=2 * THREADS)
    made = Program("p", (y,), (A,), (2, 1, 1), THREADS, (Registers("r", 1, initial=0.0), *body))
    assert isinstance(discharge_safety(made).verdict, Safe if safe else Unsafe)


def test_a_loop_whose_length_depends_on_the_block_is_followed_for_each_length() -> None:
    # The last iteration of each block is read behind the loop without a barrier.
    body = (put(tid), Barrier(), get(mod(add(tid, 1), THREADS)), Barrier())
    good = For("i", 4, (If(less(Var("i"), add(bx, 1)), body, uniform=True),))
    bad = For("i", 4, (If(less(Var("i"), add(bx, 1)), body[:3], uniform=True),))
    e = add(mul(bx, THREADS), tid)
    y = replace(Y, elements=4 * THREADS)
    for loop, verdict in ((good, Safe), (bad, Unsafe)):
        statements = (Registers("r", 1, initial=0.0), loop, put(tid), GlobalWrite("Y", e, (R0,)))
        made = Program("p", (y,), (A,), (4, 1, 1), THREADS, statements)
        assert isinstance(discharge_safety(made).verdict, verdict)


def test_too_many_iterations_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_formal.codegen.safety.happens_before.MAX_STEPS", 10)
    verdict = discharge_safety(program(For("i", 20, (put(tid), Barrier())))).verdict
    assert isinstance(verdict, Unknown)
    assert "more than 10" in verdict.reason


def test_a_solver_that_gives_up_proves_nothing() -> None:
    # No digits decide this, and one millisecond is too little.
    hard = program(put(mod(mul(tid, mul(tid, add(tid, 3))), 1021)))
    verdict = discharge_safety(hard, timeout_ms=1).verdict
    assert not isinstance(verdict, Safe)


def test_conditions_on_the_block_are_looked_at() -> None:
    # Block 1 reads what only block 0 wrote.
    body = (If(equal(bx, 0), (put(tid),)), Barrier(), SetReg("r", Int(0), SharedRead("a", tid)))
    out = GlobalWrite("Y", add(mul(bx, THREADS), tid), (R0,))
    made = Program("p", (replace(Y, elements=2 * THREADS),), (A,), (2, 1, 1), THREADS, (Registers("r", 1), *body, out))
    verdict = discharge_safety(made).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.LIVE
    assert dict(verdict.model)["bx"] == 1
    assert isinstance(discharge_safety(replace(made, body=(made.body[0], put(tid), *made.body[2:]))).verdict, Safe)


def test_conditions_on_many_blocks_are_taken_at_their_worst() -> None:
    blocks = 40
    out = GlobalWrite("Y", add(mul(bx, THREADS), tid), (R0,))
    shared = (If(equal(bx, 0), (put(tid),)), Barrier(), SetReg("r", Int(0), SharedRead("a", tid)))
    y = replace(Y, elements=blocks * THREADS)
    made = Program("p", (y,), (A,), (blocks, 1, 1), THREADS, (Registers("r", 1), *shared, out))
    assert isinstance(discharge_safety(made).verdict, Unknown)
    guarded = If(equal(bx, 0), (SetReg("r", Int(0), SharedRead("a", tid)),))
    always = replace(made, body=(Registers("r", 1, initial=0.0), put(tid), Barrier(), guarded, out))
    assert isinstance(discharge_safety(always).verdict, Safe)


def test_the_same_group_is_counted_in_each_iteration() -> None:
    """Three stages two ahead: waiting for all but two groups is one too few from the first iteration on."""
    for left, expected in ((0, Safe), (1, Safe), (2, Unsafe)):
        ring = programs.gemm(16, 64, 320)
        body = tuple(
            replace(stmt, body=(WaitGroups(left), *stmt.body[1:]))
            if isinstance(stmt, For) and stmt.var == "i"
            else stmt
            for stmt in ring.body
        )
        assert isinstance(discharge_safety(replace(ring, body=body)).verdict, expected)


def test_obligations_are_stated_without_asking() -> None:
    stated = safety_obligations(programs.generic())
    texts = [obligation.text for obligation in stated if obligation.query is not None]
    assert all(text.endswith("(check-sat)\n") for text in texts)
    assert len(texts) > 20
    assert {o.finding.means for o in stated if isinstance(o.finding, DischargedObligation)} >= {
        DischargeMethod.INTERVAL,
        DischargeMethod.RADIX,
    }


def test_vectors_of_shared_memory() -> None:
    fill = SharedWrite("a", aligned(tid), (Real(0.0),) * 8)
    right = program(fill, Barrier(), SharedVector("r", Int(0), "a", aligned(xor(tid, 1)), 8))
    assert isinstance(discharge_safety(right).verdict, Safe)
    wrong = program(fill, Barrier(), SharedVector("r", Int(0), "a", add(aligned(tid), 4), 8))
    found = [
        e.obligation.kind for e in discharge_safety(wrong).discharged if not isinstance(e.finding, DischargedObligation)
    ]
    assert set(found) == {ObligationKind.ALIGNMENT, ObligationKind.BOUNDS, ObligationKind.LIVE} - {
        ObligationKind.BOUNDS
    }
