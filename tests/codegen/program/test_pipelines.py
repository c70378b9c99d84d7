"""Producers and pipelines: their text is read back, records are exact, and the emulator finds what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cuda_printer import PIPELINE_HEADER, block_function, emit_cuda
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.instruction_count import count_statements
from mirage_formal.codegen.program.serialization import decode_programs, encode_programs
from mirage_formal.device import compile as compiler
from mirage_formal.device.emulate import EmulationFault, FaultKind, run_kernel, run_source
from mirage_formal.revalidate.cuda_reader import read_cuda, text_of_program
from mirage_formal.support.errors import FormatError
from tests.kit.kernels.emulated_programs import PIPELINES, I, ix, masked_copy, product_ring, tid, tile_ring

#: Of even seeds the consumers run first, of odd ones the producer; and copies of even or of odd items arrive late.
SEEDS = range(4)
RING = tile_ring()
Body = tuple[ir.Stmt, ...]
(OUTER,) = RING.body
assert isinstance(OUTER, ir.For)
AWAIT, READS, RELEASE = OUTER.body
(COPIES,) = RING.producer
assert isinstance(COPIES, ir.For)


def given(program: ir.Program) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    read = [param for param in program.params if not param.written]
    return [(rng.integers(-64, 65, param.elements) / 16).astype(np.float32) for param in read]


def changed(body: Body, change: Callable[[ir.Stmt], Body]) -> Body:
    """The statements with each that is no loop and no condition replaced."""
    found: list[ir.Stmt] = []
    for one in body:
        if isinstance(one, ir.For | ir.If):
            found.append(replace(one, body=changed(one.body, change)))
        else:
            found += change(one)
    return tuple(found)


def of(kind: type, change: Callable[[Any], Body], program: ir.Program = RING) -> ir.Program:
    """The Program with statements of a kind replaced."""

    def one(statement: ir.Stmt) -> Body:
        return change(statement) if isinstance(statement, kind) else (statement,)

    return replace(program, body=changed(program.body, one), producer=changed(program.producer, one))


def loop(*body: ir.Stmt) -> ir.Program:
    """The ring with another body of its consumers' loop."""
    return replace(RING, body=(ir.For("i", 4, body),))


STORE = ir.SharedWrite("tile", ix(I("i") % 2 * 1024 + tid), (ir.Real(0.0),))


@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_arrive_in_their_places(seed: int) -> None:
    (x,) = given(RING)
    (found,) = run_kernel(RING, [x], seed=seed)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_warpgroups_read_tiles(seed: int) -> None:
    program = product_ring()
    x, z = given(program)
    (found,) = run_kernel(program, [x, z], seed=seed)
    wanted = x.reshape(128, 192) @ z.reshape(192, 64)
    thread, i = np.divmod(np.arange(256 * 32), 32)
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    np.testing.assert_allclose(found, wanted[row, i // 4 * 8 + thread % 4 * 2 + i % 2], rtol=1e-5, atol=1e-4)


def test_a_sanitized_build_finds_nothing() -> None:
    (x,) = given(RING)
    (found,) = run_kernel(RING, [x], sanitize=True)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("program", PIPELINES, ids=lambda program: program.name)
def test_text_and_records_are_read_back(program: ir.Program) -> None:
    text = emit_cuda(program)
    assert f'#include "{PIPELINE_HEADER}"' in text
    assert f"__launch_bounds__({program.threads + 128}, 1)" in text
    stated = read_cuda(text)
    assert stated == text_of_program(program, stated.extents)
    assert stated.producer == program.producer
    assert decode_programs(encode_programs([program])) == (program,)


@pytest.mark.parametrize("program", PIPELINES, ids=lambda program: program.name)
def test_each_part_of_a_producer_is_in_text_and_records(program: ir.Program) -> None:
    first = program.pipelines[0]
    others = [
        of(ir.TileCopy, lambda one: (replace(one, rows=one.rows - 8),), program),
        of(ir.TileCopy, lambda one: (replace(one, stride={64: 128, 128: 64, 192: 96}[one.stride]),), program),
        of(ir.TileCopy, lambda one: (replace(one, at=ir.Int(0)),), program),
        of(ir.TileCopy, lambda one: (replace(one, source=ir.Int(0)),), program),
        of(ir.Acquire, lambda one: (replace(one, item=ir.Int(0)),), program),
        of(ir.Release, lambda one: (), program),
        replace(program, pipelines=(replace(first, slots=3), *program.pipelines[1:])),
        replace(program, pipelines=(replace(first, bytes=first.bytes + 16), *program.pipelines[1:])),
        replace(program, threads=128),
    ]
    texts = {emit_cuda(one) for one in (program, *others)}
    assert len(texts) == len(others) + 1
    assert len({encode_programs([one]) for one in (program, *others)}) == len(others) + 1
    for one in others[:-1]:
        stated = read_cuda(emit_cuda(one))
        assert stated != text_of_program(program, stated.extents)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MF_PIPELINE(p, 2, 2048, 8)", "MF_PIPELINE(p, 2, 2048, 4)"),
        ("__launch_bounds__(384, 1)", "__launch_bounds__(256, 1)"),
        ("is_producer<256>", "is_producer<128>"),
        ("MF_CONSUMERS(256)", "MF_CONSUMERS(384)"),
        ("start_pipelines(p)", "start_pipelines()"),
        ("mf::start_pipelines(p);", ""),
        ("MF_CONSUMERS(256);", ""),
        ("copy_tile<16, 128>", "copy_tile<16>"),
        ("tile, (j % 2) * 2, map0", "tile, (j % 2) * 2, map1"),
        ("    MF_TENSOR_MAP map0\n", "    MF_TENSOR_MAP map0,\n    MF_TENSOR_MAP map1\n"),
        ("MF_TENSOR_MAP map0", "MF_TENSOR_MAP map1"),
        ("    mf::await(p, i);", "    mf::acquire(p, i);"),
        ("    mf::acquire(p, j);", "    mf::await(p, j);"),
        ("mf::await(p, i)", "mf::await(tile, i)"),
        ("mf::await(p, i)", "mf::await<2>(p, i)"),
        ("mf::await(p, i);", "mf::await(p, i); mf::barrier();"),
        ("mf::await(p, i);", "mf::await(p, i); mf::consumer_barrier<128>();"),
        ("mf::acquire(p, j)", "mf::acquire(p, tid)"),
        ("  mf::start_pipelines(p);", "  const int tid = mf::below<256>(threadIdx.x);\n  mf::start_pipelines(p);"),
        ("int i = 0; i < 4; ++i", "int p = 0; p < 4; ++p"),
        ("map0, X, bx", "map0, Y2, bx"),
    ],
)
def test_a_text_with_other_counts_or_roles_is_refused(old: str, new: str) -> None:
    text = emit_cuda(RING)
    assert old in text
    with pytest.raises(FormatError):
        read_cuda(text.replace(old, new))


def test_barriers_are_of_the_threads_that_run_the_body() -> None:
    program = loop(AWAIT, ir.Barrier(), READS, ir.Barrier(fenced=True), RELEASE)
    text = emit_cuda(program)
    assert "mf::consumer_barrier<256>();" in text
    assert "mf::fenced_consumer_barrier<256>();" in text
    stated = read_cuda(text)
    assert stated == text_of_program(program, stated.extents)
    (x,) = given(program)
    np.testing.assert_array_equal(run_kernel(program, [x])[0], x)
    with pytest.raises(EmulationFault) as error:
        run_source(program, text.replace("mf::consumer_barrier<256>", "mf::barrier"), [x])
    assert error.value.kind in (FaultKind.DIVERGENCE, FaultKind.DEADLOCK)


def test_other_programs_have_no_trace_of_producers() -> None:
    program = masked_copy()
    assert "pipeline" not in emit_cuda(program)
    assert b"producer" not in encode_programs([program])
    assert b"pipelines" not in encode_programs([program])
    assert program.launch_threads == program.threads


def test_statements_of_the_producer_are_counted_once() -> None:
    assert count_statements(RING) - count_statements(replace(RING, producer=())) == 2 * 4 * (1 + 1 + 16 * 64)


def test_a_producer_has_no_function_of_one_block() -> None:
    with pytest.raises(ValueError, match="no producer"):
        block_function(RING, "one", frozenset())


@pytest.mark.parametrize("name", ["tile", "map0", "X", "int"])
def test_names_of_pipelines_are_distinct(name: str) -> None:
    def named(one: Any) -> Body:
        return (replace(one, pipeline=name),)

    program = replace(RING, pipelines=(replace(RING.pipelines[0], name=name),))
    for kind in (ir.Acquire, ir.TileCopy, ir.Await, ir.Release):
        program = of(kind, named, program)
    with pytest.raises(ValueError, match=name):
        emit_cuda(program)


def misplaced(one: ir.TileCopy) -> Body:
    return (replace(one, at=ix((I("j") + 1) % 2 * 2)),)


def doubled() -> ir.Program:
    """The ring whose items have the same tile twice."""
    return replace(of(ir.TileCopy, lambda one: (one, one)), pipelines=(ir.Pipeline("p", 2, 4096),))


def moved(by: int) -> ir.Program:
    return of(ir.TileCopy, lambda one: (replace(one, source=ir.IntBin(ir.IntOp.ADD, one.source, ir.Int(by))),))


def of_other_slot(one: ir.GlobalWrite) -> Body:
    return (replace(one, values=(ir.SharedRead("tile", ix((I("i") + 1) % 2 * 1024 + tid)),)),)


F = FaultKind
#: A text that each message has.
ANY = "tile_ring"
BROKEN: dict[str, tuple[ir.Program, tuple[FaultKind, ...], str]] = {
    "release before the last read": (loop(AWAIT, RELEASE, READS), (F.RACE,), "it has released item"),
    "no acquire": (of(ir.Acquire, lambda _: ()), (F.ITEM_ORDER,), "acquired first"),
    "no await": (loop(READS, RELEASE), (F.PENDING, F.UNINITIALISED), ANY),
    "an await behind the reads": (loop(READS, AWAIT, RELEASE), (F.PENDING, F.UNINITIALISED), ANY),
    "an await of the next item": (
        of(ir.Await, lambda one: (replace(one, item=ix(I("i") + 1)),)),
        (F.ITEM_ORDER,),
        "expected item 0 to be awaited next",
    ),
    "a release of the next item": (
        of(ir.Release, lambda one: (replace(one, item=ix(I("i") + 1)),)),
        (F.ITEM_ORDER,),
        "released next",
    ),
    "a release before the await": (loop(RELEASE, AWAIT, READS), (F.ITEM_ORDER,), "awaited before"),
    "an item that the producer skips": (
        of(ir.Acquire, lambda one: (replace(one, item=ix(I("j") + 1)),)),
        (F.ITEM_ORDER,),
        "acquired next",
    ),
    "a copy of another item": (
        of(ir.TileCopy, lambda one: (replace(one, item=ix(I("j") + 1)),)),
        (F.ITEM_ORDER,),
        "expected item 0",
    ),
    "more bytes announced": (
        replace(RING, pipelines=(ir.Pipeline("p", 2, 4096),)),
        (F.ITEM_BYTES,),
        "2048 bytes, and 4096",
    ),
    "fewer bytes announced": (replace(RING, pipelines=(ir.Pipeline("p", 2, 1024),)), (F.ITEM_BYTES,), "2048 bytes"),
    "bytes one row short": (
        of(ir.TileCopy, lambda one: (replace(one, rows=8),)),
        (F.ITEM_BYTES,),
        "1024 bytes, and 2048",
    ),
    "a copy to the slot of another item": (of(ir.TileCopy, misplaced), (F.PENDING, F.UNINITIALISED, F.RACE), ANY),
    "a copy to one slot for all": (of(ir.TileCopy, lambda one: (replace(one, at=ir.Int(0)),)), (F.RACE,), "released"),
    "a release forgotten": (of(ir.Release, lambda _: ()), (F.DEADLOCK,), "until all have released item 0"),
    "a release that one warp forgets": (
        of(ir.Release, lambda one: (ir.If(ix(tid < 224), (one,)),)),
        (F.DEADLOCK,),
        "thread 224",
    ),
    "a release that one lane forgets": (
        of(ir.Release, lambda one: (ir.If(ix(tid < 255), (one,)),)),
        (F.DIVERGENCE, F.DEADLOCK),
        ANY,
    ),
    "items that nobody awaits": (
        replace(RING, body=(replace(OUTER, extent=3),)),
        (F.PENDING,),
        "not awaited all items",
    ),
    "fewer items than are awaited": (
        replace(RING, producer=(replace(COPIES, extent=3),)),
        (F.DEADLOCK,),
        "0 of 2048 bytes have arrived, and the producer has ended",
    ),
    "two copies to the same bytes": (doubled(), (F.RACE,), "another copy of the same item"),
    "a tile across the end of a row": (moved(32), (F.OUT_OF_BOUNDS,), "one row of the map"),
    "a tile beyond the parameter": (moved(1024), (F.OUT_OF_BOUNDS,), "a row of the tile lies beyond"),
    "a tile at an odd place": (
        of(ir.TileCopy, lambda one: (replace(one, at=ix(I("j") % 2 + 1)),)),
        (F.MISALIGNED,),
        "multiple of 2,048",
    ),
    "a tile beyond its buffer": (
        of(ir.TileCopy, lambda one: (replace(one, at=ix(I("j") * 2)),)),
        (F.OUT_OF_BOUNDS,),
        "shared buffer",
    ),
    "a read of the other slot": (of(ir.GlobalWrite, of_other_slot), (F.PENDING, F.UNINITIALISED, F.RACE), ANY),
    "a store to a slot that is held": (loop(AWAIT, READS, ir.Barrier(), STORE, RELEASE), (F.RACE,), "written"),
    "a store to a slot that is not awaited": (loop(STORE, AWAIT, READS, RELEASE), (F.RACE,), ANY),
    "a barrier that some consumers skip": (
        loop(AWAIT, READS, ir.If(ix(tid < 128), (ir.Barrier(),)), RELEASE),
        (F.DIVERGENCE, F.DEADLOCK),
        ANY,
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", BROKEN)
def test_each_fault_is_found(what: str, seed: int) -> None:
    program, kinds, detail = BROKEN[what]
    assert program not in PIPELINES
    with pytest.raises(EmulationFault, match=re.escape(detail)) as error:
        run_kernel(program, given(program), seed=seed)
    assert error.value.kind in kinds


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_reads_its_operands_until_it_is_complete(seed: int) -> None:
    """By text: the form of Programs excludes it."""
    program = product_ring()
    text = emit_cuda(program)
    wait, release = "    mf::warpgroup_wait<64>(d, 0);\n", "    mf::release(px, i);\n"
    assert wait + release in text
    with pytest.raises(EmulationFault, match="released before the product that reads it is complete"):
        run_source(program, text.replace(wait + release, release + wait), given(program), seed=seed)


def test_it_compiles_where_registers_are_given_to_consumers() -> None:
    if not compiler.available():
        pytest.skip("expected NVRTC, got none")
    for program in PIPELINES:
        made = compiler.compile(emit_cuda(program), "sm_90a")
        assert (made.registers, made.spill_bytes) == (168, 0)
        assert "ignored" not in made.log
        other = compiler.compile(emit_cuda(replace(program, alone=False)), "sm_90a")
        assert other.registers < 168
        assert "'setmaxnreg' ignored" in other.log, "each thread keeps what it has"
        assert compiler.compile(emit_cuda(replace(program, threads=128)), "sm_90a").spill_bytes == 0
