"""Barriers, copy groups and waits in random order: safe exactly where running every thread finds nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.program.program import (
    Barrier,
    Commit,
    CopyAsync,
    For,
    GlobalWrite,
    If,
    Int,
    IntExpr,
    LoadMatrix,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedWrite,
    Stmt,
    Var,
    WaitGroups,
)
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.safety_programs import HALF, SINGLE, add, equal, less, mod, mul, tid
from tests.kit.sampling import number

THREADS, SLOTS, CHUNK = 32, 3, 8
SLOT = THREADS * CHUNK

#: The ring, a buffer over its first slot, and one of its own.
BUFFERS = (
    SharedBuffer("ring", HALF, SLOTS * SLOT, 0),
    SharedBuffer("over", HALF, SLOT, 0),
    SharedBuffer("other", HALF, SLOT, 2 * SLOTS * SLOT),
)


def slots(loops: tuple[str, ...]) -> st.SearchStrategy[IntExpr]:
    constants = st.integers(0, SLOTS - 1).map(Int)
    if not loops:
        return constants
    moving = st.builds(lambda v, k: mod(add(Var(v), k), SLOTS), st.sampled_from(loops), st.integers(0, 2))
    return constants | moving | moving


def places(loops: tuple[str, ...]) -> st.SearchStrategy[tuple[str, IntExpr]]:
    """A buffer, and a thread's own eight elements there or a neighbour's."""
    own, neighbour = mul(tid, CHUNK), mul(mod(add(tid, 1), THREADS), CHUNK)
    chunk = st.sampled_from((own, own, neighbour))
    ring = st.builds(lambda slot, e: ("ring", add(mul(slot, SLOT), e)), slots(loops), chunk)
    return ring | ring | st.tuples(st.sampled_from(("over", "other")), chunk)


def read(place: tuple[str, IntExpr]) -> Stmt:
    return SetReg("r", Int(0), SharedRead(*place))


def write(place: tuple[str, IntExpr]) -> Stmt:
    return SharedWrite(*place, (Reg("r", Int(0)),) * CHUNK)


def copy(place: tuple[str, IntExpr]) -> Stmt:
    return CopyAsync(*place, "X", mul(tid, CHUNK))


def matrix(place: tuple[str, IntExpr]) -> Stmt:
    return LoadMatrix("m", Int(0), *place, 1)


def bodies(depth: int, loops: tuple[str, ...]) -> st.SearchStrategy[tuple[Stmt, ...]]:
    at = places(loops)
    access = at.map(read) | at.map(read) | at.map(write) | at.map(copy) | at.map(matrix)
    sync: st.SearchStrategy[Stmt] = st.sampled_from((Barrier(), Barrier(), Commit(), WaitGroups(0), WaitGroups(1)))
    simple = access | sync
    if depth:
        var = f"i{depth}"
        inner = bodies(depth - 1, (*loops, var))
        simple |= st.builds(For, st.just(var), st.integers(1, 4), inner)
    if loops:
        condition = st.sampled_from((less(Var(loops[-1]), 1), equal(Var(loops[-1]), 1), less(0, Var(loops[-1]))))
        simple |= st.builds(lambda c, s: If(c, (s,), uniform=True), condition, access | sync)
    simple |= st.builds(lambda s: If(less(tid, 8), (s,)), at.map(read) | at.map(write) | at.map(copy))
    return st.lists(simple, min_size=1, max_size=5).map(tuple)


#: Writes everything first, so that most reads find something.
FIRST: tuple[Stmt, ...] = (
    For("s", SLOTS, (SharedWrite("ring", add(mul(Var("s"), SLOT), mul(tid, CHUNK)), (Real(0.0),) * CHUNK),)),
    SharedWrite("other", mul(tid, CHUNK), (Real(0.0),) * CHUNK),
    Barrier(),
)


def program(body: tuple[Stmt, ...], *, first: bool = True) -> Program:
    declared = (Registers("r", 1, initial=0.0), Registers("m", 1, words=True))
    last = GlobalWrite("Y", tid, (Reg("r", Int(0)),))
    params = (Param("X", HALF, SLOT, False), Param("Y", SINGLE, THREADS, True))
    start = FIRST if first else ()
    return Program("order", params, BUFFERS, (1, 1, 1), THREADS, (*declared, *start, *body, last))


@pytest.mark.slow
@settings(max_examples=number(100, 250))
@given(bodies(2, ()), st.booleans())
def test_safe_exactly_where_nothing_goes_wrong(body: tuple[Stmt, ...], first: bool) -> None:
    tried = program(body, first=first)
    verdict = discharge_safety(tried, second=False).verdict
    fault = program_interpreter.fault(tried)
    assert isinstance(verdict, Unsafe if fault else Safe), (fault, verdict)
