"""The generated kernels of every example: proved, safe, compiled without spills, and run on the emulator."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from benchmarks import emulate_examples
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.numerics.result_comparison import SCALES
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import For, GlobalVector, If, Int, IntBin, IntOp, Program, Stmt
from mirage_formal.device import compile as nvrtc
from mirage_formal.device import emulate
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.build import ARCHS
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.prove.equality.prove import prove
from tests.kit.graphs.moves import copies
from tests.kit.kernels import example_kernels as kit

COMPILED = ARCHS if nvrtc.available() else ()


def spills(made: BuiltKernels) -> dict[str, list[int]]:
    """Bytes that each generated kernel spills, for every architecture."""
    launches = [launch for launch in made.executable.launches if isinstance(launch, KernelLaunch)]
    return {launch.name: [launch.cubins[arch].spill_bytes for arch in COMPILED] for launch in launches}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", list(kit.EXAMPLES))
def test_what_a_search_finds_runs_within_tolerance(name: str) -> None:
    """At reduced extents: the best candidates, and the best of every other number of kernels, at all three scales."""
    program = kit.reduced(name)
    candidates = kit.searched(name)
    assert len(candidates) >= 2
    for candidate in candidates:
        assert copies(candidate) == []
        made = kit.built(candidate, program, COMPILED)
        assert all(not any(found) for found in spills(made).values())
        # Without a running maximum numerics decide: exponentials leave float16 at larger scales.
        scales = (0.1,) if made.stable.note else SCALES
        record = compare_on_emulator(made, scales=scales)
        assert record.answer == "within", (candidate, record)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch", [1, 8, 16])
@pytest.mark.parametrize("name", list(kit.EXAMPLES))
def test_the_fastest_candidates_at_real_extents(name: str, batch: int) -> None:
    """Proved equal to the example; obligations hold and nothing spills at real extents; real tiles run right."""
    program, candidate = kit.real(name, batch), kit.fastest()[f"{name}-b{batch}"]
    assert isinstance(prove(program, candidate), Equivalent)
    made = kit.built(candidate, program, COMPILED)
    assert made.stable.note == ""
    assert all(not any(found) for found in spills(made).values())
    for position, kernel in enumerate(kit.kernels(made.stable.graph)):
        assert kit.run_alone(kernel, position) <= 1


def test_the_fastest_candidates_have_no_kernel_that_only_copies() -> None:
    assert {row: copies(graph) for row, graph in kit.fastest().items() if copies(graph)} == {}


def test_every_example_is_there() -> None:
    files = {path.stem for path in kit.EXAMPLE_FILES.glob("*.py")}
    assert {example.file for example in kit.EXAMPLES.values()} <= files
    assert set(kit.fastest()) == {f"{name}-b{batch}" for name in kit.EXAMPLES for batch in (1, 8, 16)}


# --- sanitizers ------------------------------------------------------------------------------------------------------


def test_a_seeded_fault_is_a_row_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of an example: loads that leave their parameter, and text that leaves an array."""
    row = "ntrans-b1"
    (kernel,) = kit.kernels(kit.fastest()[row])
    (clean,) = emulate_examples.alone(row, 0, kernel)
    assert clean[1] == "clean"

    def beyond(plan: Plan) -> Program:
        right = lower(plan)
        return replace(right, body=_moved(right.body, 8))

    with monkeypatch.context() as patch:
        patch.setattr(kit, "lower", beyond)
        (found,) = emulate_examples.alone(row, 0, kernel)
        assert ": out of bounds of in0_x0[8192] by thread 511" in found[1]
    with monkeypatch.context() as patch:
        raw = "\n  float a[4] = {1, 2, 3, 4};\n  volatile int i = 5;\n  a[0] = a[i];\n"
        patch.setattr(
            emulate, "emit_launched", lambda p: emit_cuda(p).replace("\n  MF_FLOATS(", f"{raw}  MF_FLOATS(", 1)
        )
        (found,) = emulate_examples.alone(row, 0, kernel)
        assert "sanitizer: " in found[1]
        assert "out of bounds" in found[1]
    monkeypatch.setattr(sys, "argv", ["emulate_examples"])
    for rows, status in (([clean], 0), ([clean, found], 1), ([], 1)):
        monkeypatch.setattr(emulate_examples, "rows", lambda *_, rows=rows, **__: rows)
        assert emulate_examples.main() == status


def _moved(body: tuple[Stmt, ...], by: int) -> tuple[Stmt, ...]:
    """The statements with every vector load moved."""
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case For() | If():
                out.append(replace(stmt, body=_moved(stmt.body, by)))
            case GlobalVector():
                out.append(replace(stmt, index=IntBin(IntOp.ADD, stmt.index, Int(by))))
            case _:
                out.append(stmt)
    return tuple(out)
