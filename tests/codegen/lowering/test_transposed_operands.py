"""Operands that lie across go in tiles through shared memory: right, safe, and sector by sector on both sides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from mirage_formal.codegen.device_tensors import SECTOR
from mirage_formal.codegen.program.access import Access, Mode, list_accesses
from mirage_formal.codegen.program.integers import fold
from mirage_formal.codegen.program.program import (
    Barrier,
    For,
    GlobalWrite,
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    Param,
    Program,
    SharedBuffer,
    SharedWrite,
    Stmt,
)
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.device.emulate import run_kernel as emulate
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType, Shape
from mirage_formal.semantics import float64_reference
from tests.codegen.safety.test_safety_mutants import check
from tests.codegen.test_predefined_operators import Laid, attributes, in_memory, laid, program_of, widths
from tests.kit.kernels.program_interpreter import from_storage, to_storage
from tests.kit.kernels.program_interpreter import run as interpret
from tests.kit.kernels.safety_programs import mutants

K = OpKind
HALF, SINGLE = DType.FLOAT16, DType.FLOAT32
TOLERANCE = {SINGLE: 1e-6, HALF: 1e-3, DType.BFLOAT16: 8e-3, DType.BOOL: 0.0}
#: What masks have in the place of operators of numbers.
OF_MASKS = {K.ADD: K.MAXIMUM, K.SILU: K.LOGICAL_NOT}
#: Extents that tiles divide and overhang, primes, rows that vectors fit and rows that they do not.
EXTENTS = (1, 2, 3, 5, 7, 8, 12, 16, 31, 32, 33, 37, 48, 64, 65, 96, 127)


def drawn(seed: int, most: int) -> Iterator[tuple[OpKind, Attrs, list[Shape], DType, list[Laid]]]:
    """Random permutes, and operators with an operand that lies across, of 1,024 elements or more."""
    chosen = random.Random(seed)
    while True:
        rank = chosen.randint(2, 5)
        shape = tuple(chosen.choice(EXTENTS) for _ in range(rank))
        if not 1024 <= prod(shape) <= most:
            continue
        dtype, dim = chosen.choice(list(DType)), chosen.randrange(rank)
        kind = chosen.choice([K.TRANSPOSE, K.TRANSPOSE, K.ADD, K.CONCAT, K.PAD, K.SILU, K.SLICE, K.CAST])
        kind = kind if dtype.floating else OF_MASKS.get(kind, kind)
        attrs, shapes = attributes(kind, shape, dim)
        if kind is K.MAXIMUM:  # of masks there is none with a number
            attrs, shapes = attributes(K.ADD, shape, dim)
        if kind is K.TRANSPOSE:
            attrs = Attrs(perm=tuple(chosen.sample(range(rank), rank)))
        yield kind, attrs, shapes, dtype, [laid(s, chosen.randrange(2)) for s in shapes]


def through_shared(program: Program) -> bool:
    return any(isinstance(stmt, Barrier) for stmt in program.body)


def test_random_permutes_beside_float64() -> None:
    """In numpy, statement by statement; a few on the emulator."""
    seen = emulated = 0
    for number, (kind, attrs, shapes, dtype, ways) in enumerate(drawn(1, 9000)):
        graph, program = program_of(kind, attrs, shapes, dtype, ways)
        if not through_shared(program):
            continue
        seen += 1
        random_ = np.random.default_rng(number)
        arrays = [
            to_storage(np.maximum(random_.standard_normal(s), 0 if dtype is DType.BOOL else -9), dtype) for s in shapes
        ]
        exact = [from_storage(a, dtype).astype(np.float64) for a in arrays]
        given = [in_memory(a, place) for a, place in zip(exact, ways, strict=True)]
        (wanted,) = float64_reference.run(graph, exact)
        runs = [interpret, emulate] if emulated < 4 and kind in (K.TRANSPOSE, K.ADD, K.PAD) else [interpret]
        emulated += len(runs) - 1
        for run in runs:
            (found,) = run(program, given)
            worst = TOLERANCE[dtype] if kind is not K.TRANSPOSE else 0.0
            what = f"{kind} {attrs} {shapes} {dtype} {ways}"
            np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=worst, atol=worst, err_msg=what)
        if seen == 40:
            break
    assert emulated == 4


def test_random_permutes_are_safe() -> None:
    found = [program_of(*case)[1] for case, _ in zip(drawn(2, 3_000_000), range(120), strict=False)]
    staged = [program for program in found if through_shared(program)]
    assert len(staged) > 50
    for program in staged:
        assert isinstance(discharge_safety(program).verdict, Safe), program


@pytest.mark.parametrize("perm", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
@pytest.mark.parametrize("shape", [(64, 512, 768), (2, 30522, 768), (97, 101, 4099)])
def test_large_permutes_are_safe(shape: Shape, perm: tuple[int, ...]) -> None:
    for dtype in (HALF, SINGLE):
        _, program = program_of(K.TRANSPOSE, Attrs(perm=perm), [shape], dtype)
        assert through_shared(program) == (perm[-1] != 2)
        assert isinstance(discharge_safety(program).verdict, Safe)


# --- sectors and banks ------------------------------------------------------------------------------------------------


def value(e: IntExpr, at: dict[str, int]) -> int:
    found = fold(e, {name: Int(n) for name, n in at.items()})
    assert isinstance(found, Int)
    return found.value


def lanes(program: Program, access: Access, block: tuple[int, int, int]) -> list[int]:
    """Where the first warp's lanes begin, in bytes, in their first iteration."""
    at = dict(zip(("bx", "by", "bz"), block, strict=True)) | {name: 0 for name, _ in access.context.loops}
    found = []
    for tid in range(min(32, program.threads)):
        here = at | {"tid": tid}
        if all(value(guard, here) for guard in access.context.guards):
            found.append(value(access.address, here))
    return found


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((4096, 1024), (1, 0)),
        ((30522, 768), (1, 0)),
        ((1001, 1003), (1, 0)),
        ((100000, 3), (1, 0)),
        ((3, 100000), (1, 0)),
        ((33, 65, 127), (2, 1, 0)),
        ((33, 65, 127), (0, 2, 1)),
        ((64, 100, 4, 5), (3, 0, 2, 1)),
        ((5, 1000, 6), (2, 1, 0)),
    ],
)
def test_warps_move_whole_sectors(shape: Shape, perm: tuple[int, ...], dtype: DType) -> None:
    """At most twice as many sectors as bytes need: rows that begin anywhere have a part of one more at each end."""
    _, program = program_of(K.TRANSPOSE, Attrs(perm=perm), [shape], dtype)
    assert through_shared(program)
    for access in list_accesses(program).accesses:
        if isinstance(access.target, Param):
            starts = lanes(program, access, (0, 0, 0))
            touched = {(start + k) // SECTOR for start in starts for k in range(access.bytes)}
            wanted = len(set(starts)) * access.bytes / SECTOR
            assert len(touched) <= 2 * wanted + 2, (access.target.name, sorted(touched))


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(4096, 4096), (30522, 768), (768, 30522), (1001, 1003)])
def test_banks(shape: Shape, dtype: DType) -> None:
    """No bank is asked for more than two words by the lanes that are served together."""
    _, program = program_of(K.TRANSPOSE, Attrs(perm=(1, 0)), [shape], dtype)
    for access in list_accesses(program).accesses:
        if isinstance(access.target, SharedBuffer):
            starts = lanes(program, access, (0, 0, 0))[: max(1, min(32, 128 // access.bytes))]
            words = {(start + k) // 4 for start in starts for k in range(access.bytes)}
            assert max(sum(word % 32 == bank for word in words) for bank in range(32)) <= 2, access.mode


# --- what goes through shared memory ----------------------------------------------------------------------------------


def test_only_what_lies_across() -> None:
    across, along = ((1, 96), 0), ((128, 1), 0)
    _, mixed = program_of(K.ADD, Attrs(), [(96, 128), (96, 128)], HALF, [across, along])
    assert len(mixed.shared) == 1
    _, both = program_of(K.ADD, Attrs(), [(96, 128), (96, 128)], HALF, [across, across])
    assert len(both.shared) == 2
    assert widths(mixed, Mode.READ) == widths(both, Mode.READ) == widths(both, Mode.WRITE) == {16}
    every: list[list[Laid]] = [[along, along], [along, ((0, 1), 0)], [along, ((1, 0), 0)]]
    for ways in every:
        _, program = program_of(K.ADD, Attrs(), [(96, 128), (96, 128)], HALF, ways)
        assert not program.shared


def test_small_results_are_in_one_multiprocessor() -> None:
    _, program = program_of(K.TRANSPOSE, Attrs(perm=(1, 0)), [(16, 16)], HALF)
    assert not program.shared


# --- mistakes ---------------------------------------------------------------------------------------------------------


def changed(body: tuple[Stmt, ...], change: Callable[[Stmt], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """A body in which each statement is replaced, those inside of others first."""
    out: list[Stmt] = []
    for stmt in body:
        inner = replace(stmt, body=changed(stmt.body, change)) if isinstance(stmt, If | For) else stmt
        out += change(inner)
    return tuple(out)


def test_mistakes_are_refused() -> None:
    """Threads that do not meet, a buffer that is too small, no guards, too few blocks, a tile that all blocks write."""
    _, program = program_of(K.TRANSPOSE, Attrs(perm=(1, 0)), [(130, 72)], HALF)
    assert isinstance(discharge_safety(program).verdict, Safe)
    (buffer,) = program.shared
    x, y, z = program.grid
    assert x > 1
    assert y > 1

    def same(stmt: Stmt) -> tuple[Stmt, ...]:
        return (replace(stmt, index=fold(stmt.index, {"bx": Int(0)})) if isinstance(stmt, GlobalWrite) else stmt,)

    def overlapping(stmt: Stmt) -> tuple[Stmt, ...]:
        """Rows of the tile begin where the one before has not ended."""
        if not isinstance(stmt, SharedWrite):
            return (stmt,)
        return (replace(stmt, index=IntBin(IntOp.DIV, stmt.index, Int(2))),)

    wrong = [
        replace(program, body=tuple(stmt for stmt in program.body if not isinstance(stmt, Barrier))),
        replace(program, shared=(replace(buffer, elements=buffer.elements - 16),)),
        replace(program, body=changed(program.body, lambda stmt: stmt.body if isinstance(stmt, If) else (stmt,))),
        replace(program, body=changed(program.body, same)),
        replace(program, body=changed(program.body, overlapping)),
        replace(program, grid=(x - 1, y, z)),
        replace(program, grid=(x, y - 1, z)),
        replace(program, threads=program.threads // 2),
    ]
    for number, mutant in enumerate(wrong):
        assert not isinstance(discharge_safety(mutant).verdict, Safe), number


def test_mutants() -> None:
    """Small changes of every kind: unsafe exactly if running them goes wrong."""
    _, program = program_of(K.TRANSPOSE, Attrs(perm=(1, 0)), [(34, 40)], HALF)
    every = list(mutants(program))
    step = len(every) / 30
    found = [check(*every[int(position * step)]) for position in range(30)]
    assert sum(found) >= 10
