"""Each class of fault is found in a small program that has it, and in right kernels that lose one statement."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.program.program import (
    Barrier,
    BinaryFn,
    Combine,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    If,
    LoadMatrix,
    Mma,
    Pack,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    WaitGroups,
)
from mirage_formal.device.emulate import EmulationFault, FaultKind, run_kernel, run_source
from mirage_formal.graph.types import DType
from tests.kit.kernels.emulated_programs import (
    FLOAT,
    HALF,
    I,
    bx,
    dropped,
    fragments,
    gemm,
    ix,
    masked_copy,
    program,
    reads,
    reversal,
    softmax,
    tid,
    writes,
)

TILE = SharedBuffer("tile", FLOAT, 64, 0)
#: A buffer of bytes.
BYTES = SharedBuffer("tile", DType.BOOL, 64, 0)


def small(
    *body: Stmt,
    shared: tuple[SharedBuffer, ...] = (TILE,),
    threads: int = 32,
    count: int = 64,
    dtype: DType = FLOAT,
) -> Program:
    """A kernel that does something, then writes zeros to Y."""
    done = [GlobalWrite("Y", ix(tid), (Real(0.0),))]
    return program(
        "small", [reads("X", count, dtype), writes("Y", threads)], list(shared), [*body, *done], threads=threads
    )


def fault_of(kernel: Program, **options: bool) -> EmulationFault:
    arrays = [np.ones(param.elements, np.float32) for param in kernel.params if not param.written]
    with pytest.raises(EmulationFault) as error:
        run_kernel(kernel, arrays, **options)
    return error.value


def x(index: I | int) -> GlobalRead:
    return GlobalRead("X", ix(index))


def put(index: I | int, *values: GlobalRead) -> SharedWrite:
    return SharedWrite("tile", ix(index), values or (x(tid),))


def copy(index: I | int, source: I | int) -> CopyAsync:
    return CopyAsync("tile", ix(index), "X", ix(source))


#: The first two threads copy 16 masks each.
MASKS = CopyAsync("tile", ix(tid * 16), "X", ix(tid * 16))


def read(index: I | int, buffer: str = "tile") -> tuple[Stmt, ...]:
    return (Registers("r", 1), SetReg("r", ix(0), SharedRead(buffer, ix(index))))


FAULTS: dict[str, tuple[Program, FaultKind, str, int | None]] = {
    "a read past a parameter": (
        small(put(tid, x(tid + 40))),
        FaultKind.OUT_OF_BOUNDS,
        "X",
        64,
    ),
    "a write past a parameter": (
        small(GlobalWrite("Y", ix(tid + 32), (Real(0.0),))),
        FaultKind.OUT_OF_BOUNDS,
        "Y",
        32,
    ),
    "a vector that begins inside": (
        small(Registers("v", 4), GlobalVector("v", ix(0), "X", ix(tid * 4), 4), count=126),
        FaultKind.OUT_OF_BOUNDS,
        "X",
        126,
    ),
    "a write past a shared buffer into the next": (
        small(put(tid * 3), shared=(TILE, SharedBuffer("next", FLOAT, 64, 256))),
        FaultKind.OUT_OF_BOUNDS,
        "tile",
        66,
    ),
    "a read before a shared buffer": (
        small(put(tid), Barrier(), *read(tid - 1)),
        FaultKind.OUT_OF_BOUNDS,
        "tile",
        -1,
    ),
    "an asynchronous copy past a parameter": (
        small(If(ix(tid.equals(0)), (copy(0, 64),))),
        FaultKind.OUT_OF_BOUNDS,
        "X",
        64,
    ),
    "a register beyond its array": (
        small(Registers("r", 2, initial=0.0), SetReg("r", ix(tid), Real(1.0))),
        FaultKind.OUT_OF_BOUNDS,
        "r",
        2,
    ),
    "a misaligned vector in shared memory": (
        small(Registers("v", 2), put(tid), Barrier(), SharedVector("v", ix(0), "tile", ix(tid), 2)),
        FaultKind.MISALIGNED,
        "tile",
        31,  # the last thread to arrive at a barrier goes on first
    ),
    "a misaligned vector in device memory": (
        small(Registers("v", 4), GlobalVector("v", ix(0), "X", ix(tid + 2), 4)),
        FaultKind.MISALIGNED,
        "X",
        2,
    ),
    "a misaligned asynchronous copy": (
        small(copy(tid * 2, 0)),
        FaultKind.MISALIGNED,
        "tile",
        2,
    ),
    "shared memory never written": (
        small(put(tid), Barrier(), *read(tid + 1)),
        FaultKind.UNINITIALISED,
        "tile",
        32,
    ),
    "a register never written": (
        small(Registers("r", 1), GlobalWrite("Y", ix(tid), (Reg("r", ix(0)),))),
        FaultKind.UNINITIALISED,
        "r",
        0,
    ),
    "words never written": (
        small(
            Registers("w", 4, words=True),
            Registers("d", 4, initial=0.0),
            Pack("w", ix(0), Real(0.0), Real(0.0), HALF),
            Mma("d", ix(0), "w", ix(0), "w", ix(0), HALF),
        ),
        FaultKind.UNINITIALISED,
        "w",
        1,
    ),
    "a race to write": (
        small(put(tid // 2)),
        FaultKind.RACE,
        "tile",
        0,
    ),
    "a race of a read after a write": (
        small(put(tid), Barrier(), If(ix(tid.equals(31)), (put(0),)), *read(0)),
        FaultKind.RACE,
        "tile",
        0,
    ),
    "a race of a write after a read": (
        small(put(tid), Barrier(), *read(I(31) - tid), put(tid)),
        FaultKind.RACE,
        "tile",
        31,
    ),
    "a race across a loop's back edge": (
        small(For("i", 2, (put(tid), Barrier(), *read(tid ^ 3)))),
        FaultKind.RACE,
        "tile",
        None,
    ),
    "a copy to where others read": (
        small(put(tid), Barrier(), *read(I(31) - tid), If(ix(tid < 8), (copy(tid * 4, 0),))),
        FaultKind.RACE,
        "tile",
        0,
    ),
    "a write to where a copy is in flight": (
        small(If(ix(tid.equals(0)), (copy(0, 0),)), Barrier(), put(tid)),
        FaultKind.RACE,
        "tile",
        0,
    ),
    "a copy that was waited for but not met at a barrier": (
        small(If(ix(tid.equals(0)), (copy(0, 0), Commit(), WaitGroups(0))), *read(0)),
        FaultKind.RACE,
        "tile",
        0,
    ),
    "a copy without a wait": (
        small(If(ix(tid.equals(0)), (copy(0, 0), Commit())), Barrier(), *read(0)),
        FaultKind.PENDING,
        "tile",
        0,
    ),
    "a wait for too few groups": (
        small(If(ix(tid.equals(0)), (copy(0, 0), Commit(), copy(4, 0), Commit(), WaitGroups(1))), Barrier(), *read(4)),
        FaultKind.PENDING,
        "tile",
        4,
    ),
    "a read of what a copy of 4 bytes leaves": (
        small(
            If(ix(tid.equals(0)), (CopyAsync("tile", ix(0), "X", ix(0), bytes=4), Commit(), WaitGroups(0))),
            Barrier(),
            *read(1),
        ),
        FaultKind.UNINITIALISED,
        "tile",
        1,
    ),
    "a wait before the commit": (
        small(If(ix(tid.equals(0)), (copy(0, 0), WaitGroups(0))), Barrier(), *read(0)),
        FaultKind.PENDING,
        "tile",
        0,
    ),
    "a buffer that another one overwrote": (
        small(
            put(tid),
            Barrier(),
            SharedWrite("other", ix(tid), (Real(0.0),)),
            Barrier(),
            *read(tid),
            shared=(TILE, SharedBuffer("other", FLOAT, 64, 0)),
        ),
        FaultKind.STALE,
        "tile",
        None,
    ),
    "a barrier that some threads skip": (
        small(If(ix(tid < 16), (Barrier(),))),
        FaultKind.DIVERGENCE,
        "",
        None,
    ),
    "threads at different barriers": (
        small(If(ix(tid < 16), (Barrier(),)), If(ix(I(15) < tid), (Barrier(),))),
        FaultKind.DIVERGENCE,
        "",
        None,
    ),
    "a collective that some lanes skip": (
        small(Registers("r", 1, initial=0.0), If(ix(tid < 31), (ShuffleReduce("r", ix(0), BinaryFn.ADD, 1),))),
        FaultKind.DIVERGENCE,
        "",
        None,
    ),
    "a warp whose lanes are at different collectives": (
        small(
            Registers("r", 1, initial=0.0),
            If(ix(tid < 16), (ShuffleReduce("r", ix(0), BinaryFn.ADD, 1),)),
            If(ix(I(15) < tid), (ShuffleReduce("r", ix(0), BinaryFn.ADD, 1),)),
        ),
        FaultKind.DIVERGENCE,
        "",
        None,
    ),
    "one warp at a barrier, the other at a collective": (
        small(
            Registers("r", 1, initial=0.0),
            If(ix(tid < 32), (Barrier(),)),
            If(ix(I(31) < tid), (ShuffleReduce("r", ix(0), BinaryFn.ADD, 1), Barrier())),
            threads=64,
        ),
        FaultKind.DIVERGENCE,
        "",
        None,
    ),
    "two threads write one element": (
        small(GlobalWrite("Y", ix(tid // 2), (Real(1.0),))),
        FaultKind.DOUBLE_WRITE,
        "Y",
        0,
    ),
    "a byte between others that nobody wrote": (
        small(put(tid * 2), Barrier(), *read(tid * 2 + 1), shared=(BYTES,)),
        FaultKind.UNINITIALISED,
        "tile",
        None,
    ),
    "a race for a byte": (
        small(put(tid), *read(I(31) - tid), shared=(BYTES,)),
        FaultKind.UNINITIALISED,
        "tile",
        None,
    ),
    "bytes in flight": (
        small(If(ix(tid < 2), (MASKS,)), *read(tid), shared=(BYTES,), dtype=DType.BOOL),
        FaultKind.PENDING,
        "tile",
        None,
    ),
    "two blocks write one element": (
        replace(small(), grid=(1, 2, 1)),
        FaultKind.DOUBLE_WRITE,
        "Y",
        0,
    ),
    "an element that nobody writes": (
        replace(small(), params=(reads("X", 64), writes("Y", 33))),
        FaultKind.UNWRITTEN,
        "Y",
        32,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(name: str) -> None:
    kernel, kind, buffer, index = FAULTS[name]
    fault = fault_of(kernel)
    assert (fault.kind, fault.at.buffer) == (kind, buffer), fault
    assert index is None or fault.at.index == index, fault
    assert kind is FaultKind.UNWRITTEN or fault.at.thread is not None
    assert kind is FaultKind.UNWRITTEN or fault.at.statement in emit_cuda(kernel)


def test_a_fault_says_where_and_who() -> None:
    kernel = FAULTS["a race to write"][0]
    fault = fault_of(kernel)
    assert (fault.at.thread, fault.at.other, fault.at.block) == (1, 0, (0, 0, 0))
    assert fault.at.statement == "mf::store(tile, tid / 2, mf::load(X, tid));"
    assert emit_cuda(kernel).splitlines()[fault.at.line - 1].strip() == fault.at.statement
    text = str(fault)
    assert f"small, line {fault.at.line}: mf::store(tile" in text
    assert "race of tile[0] by thread 1 of block (0, 0, 0)" in text
    copy = pickle.loads(pickle.dumps(fault))
    assert (str(copy), copy.__dict__) == (text, fault.__dict__)


def test_a_fault_in_a_later_block_names_the_block() -> None:
    kernel = program(
        "later",
        [reads("X", 64), writes("Y", 96)],
        [],
        [GlobalWrite("Y", ix(bx * 32 + tid), (GlobalRead("X", ix(bx * 32 + tid)),))],
        grid=(3, 1, 1),
    )
    fault = fault_of(kernel)
    assert (fault.kind, fault.at.index, fault.at.block, fault.at.thread) == (FaultKind.OUT_OF_BOUNDS, 64, (2, 0, 0), 0)


def test_a_statement_of_several_lines_is_named_whole() -> None:
    wide = tuple(GlobalRead("X", ix((tid + 1) * 1000 + i)) for i in range(4))
    fault = fault_of(small(SharedWrite("tile", ix(tid % 16 * 4), wide)))
    assert fault.at.statement.startswith("mf::store_vector(tile,")
    assert fault.at.statement.endswith("});")


@pytest.mark.parametrize("aligned", [4, 8])
def test_a_vector_wider_than_the_alignment_promised(aligned: int) -> None:
    kernel = small(Registers("v", 4), GlobalVector("v", ix(0), "X", ix(tid * 4), 4), count=128)
    assert run_kernel(kernel, [np.ones(128)])[0].size == 32
    params = (Param("X", FLOAT, 128, written=False, align=aligned), *kernel.params[1:])
    assert fault_of(replace(kernel, params=params)).kind is FaultKind.MISALIGNED


def test_ldmatrix_reads_are_reads() -> None:
    """Of one ldmatrix: a race with a write, misaligned rows, rows out of bounds; and it needs the barrier."""
    right = fragments(HALF, False, 4)
    load = next(statement for statement in right.body if isinstance(statement, LoadMatrix))

    def changed(*new: Stmt) -> EmulationFault:
        body = [y for statement in right.body for y in (new if statement is load else (statement,))]
        return fault_of(replace(right, body=tuple(body)))

    overwrite = SharedWrite("tile", ix(tid * 8), (Real(0.0),))
    assert changed(load, overwrite).kind is FaultKind.RACE
    assert changed(overwrite, load).kind is FaultKind.RACE
    assert changed(replace(load, index=ix(tid * 8 % 248 + 4))).kind is FaultKind.MISALIGNED
    assert changed(replace(load, index=ix(tid * 8 + 8))).kind is FaultKind.OUT_OF_BOUNDS


def test_other_accesses_of_one_thread_are_no_race() -> None:
    """A thread may read and overwrite its own bytes without a barrier, and many may read the same."""
    own = (put(tid), *read(tid), SharedWrite("tile", ix(tid), (Reg("r", ix(0)),)))
    shared = (Barrier(), SetReg("r", ix(0), SharedRead("tile", ix(5))))
    assert run_kernel(small(*own, *shared), [np.ones(64)])[0].size == 32


def test_neighbours_may_have_bytes_of_one_word() -> None:
    """Each byte is an element of its own, for stores, vectors and asynchronous copies."""
    x = np.arange(64) % 3 == 0
    kernel = small(
        Registers("v", 2),
        If(ix(tid < 2), (MASKS,)),
        Commit(),
        WaitGroups(0),
        put(tid + 32, GlobalRead("X", ix(tid + 32))),
        Barrier(),
        SharedVector("v", ix(0), "tile", ix(tid * 2), 2),
        shared=(BYTES,),
        dtype=DType.BOOL,
    )
    both = GlobalWrite("Y", ix(tid), (Combine(BinaryFn.ADD, Reg("v", ix(0)), Reg("v", ix(1))),))
    (found,) = run_kernel(replace(kernel, body=(*kernel.body[:-1], both)), [x])
    assert found.tolist() == x.reshape(32, 2).sum(axis=1).tolist()


SYNCHRONISATION = (Barrier, WaitGroups, Commit)
RIGHT = (gemm(k=128), softmax(), reversal(), masked_copy(), fragments(HALF, True, 2))
MUTANTS = [mutant for kernel in RIGHT for mutant in dropped(kernel, SYNCHRONISATION)]


@pytest.mark.parametrize(("label", "kernel"), MUTANTS, ids=[label for label, _ in MUTANTS])
def test_a_dropped_synchronisation_is_found(label: str, kernel: Program) -> None:
    """Without a barrier a reader may come first, and reads what was not written yet."""
    other = FaultKind.UNINITIALISED if "Barrier" in label else FaultKind.PENDING
    assert fault_of(kernel).kind in (FaultKind.RACE, other)


def test_sanitized_builds_find_the_same_fault() -> None:
    name = "a race of a write after a read"
    one, other = fault_of(FAULTS[name][0]), fault_of(FAULTS[name][0], sanitize=True)
    assert str(one) == str(other)


def test_sanitizers_find_what_the_emulator_does_not() -> None:
    """Text that works with raw pointers, which emitted text never does."""
    kernel = masked_copy()
    body = "\n  float a[4] = {1, 2, 3, 4};\n  volatile int i = 5;\n  a[0] = a[i];\n"
    source = emit_cuda(kernel).replace("\n  mf::commit();", f"{body}  mf::commit();")
    with pytest.raises(EmulationFault, match="out of bounds") as error:
        run_source(kernel, source, [np.ones(24)], sanitize=True)
    assert error.value.kind is FaultKind.SANITIZER
