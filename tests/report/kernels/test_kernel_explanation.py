"""Explanations of kernels: what they say of threads and elements is what the Program does, for every example."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import msgspec
import pytest

from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.integers import evaluate_expression
from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.report.kernels.directory_explanation import explain_kernels
from mirage_formal.report.kernels.kernel_explanation import BuiltKernel, explain_kernel
from mirage_formal.support.errors import FormatError, UnsupportedError
from tests.kit.kernels.emulated_programs import tile_ring
from tests.kit.kernels.example_kernels import TARGET, fastest
from tests.kit.processes import Command
from tests.kit.runs import small_runs
from tests.revalidate.test_kernel_evidence import sign_sources

NAMES = tuple(fastest())


@cache
def built(name: str) -> BuiltKernels:
    graph = fastest()[name]
    return build(graph, graph, TARGET)


def kernels(made: BuiltKernels) -> Iterator[BuiltKernel]:
    """The generated kernels of a candidate, with their claims."""
    claims = {one.kernel: one for one in made.realized}
    for launch in made.executable.launches:
        if isinstance(launch, KernelLaunch):
            values = tuple(argument.value for argument in launch.arguments)
            program, graph = made.programs[launch.name], made.executable.graph
            yield BuiltKernel(program, graph, launch.operator, values, claims[launch.name])


def told(kernel: BuiltKernel, element: tuple[int, ...] | None = None) -> dict[str, str]:
    """The explanation, one text for each part."""
    return {part.title: "\n".join(part.sentences) for part in explain_kernel(kernel, element)}


def stored(program: ir.Program, block: tuple[int, ...], thread: int) -> Iterator[tuple[str, int]]:
    """What a thread of a block stores to device memory: an interpreter of its own, of integers one by one."""

    def walk(body: tuple[ir.Stmt, ...], env: dict[str, int]) -> Iterator[tuple[str, int]]:
        for one in body:
            if isinstance(one, ir.For):
                for value in range(one.extent):
                    yield from walk(one.body, {**env, one.var: value})
            elif isinstance(one, ir.If):
                if evaluate_expression(one.condition, env):
                    yield from walk(one.body, env)
            elif isinstance(one, ir.GlobalWrite):
                first = evaluate_expression(one.index, env)
                assert first is not None
                yield from ((one.param, first + n) for n in range(len(one.values)))

    yield from walk(program.body, {"tid": thread, **dict(zip(("bx", "by", "bz"), block, strict=True))})


def test_a_producer_is_explained() -> None:
    shape = DTensor((64, 128), DType.FLOAT16)
    graph = KernelGraph((Input("X", shape, row_major(shape.shape)),), (), (0,))
    parts = told(BuiltKernel(tile_ring(), graph, -1, (0, 1), None))
    assert "2 x 1 x 1 blocks of 384 threads" in parts["Blocks and tiles"]
    exchanged = parts["What threads hold and exchange"]
    assert "Thread 256, the producer, copies tiles of X to shared buffer tile" in exchanged
    assert "pipeline p of 2 slots, one item of 2,048 bytes after another: threads 0 to 255 wait" in exchanged


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_explained(name: str) -> None:
    made = built(name)
    for kernel in kernels(made):
        parts = told(kernel)
        results = [one for one in kernel.program.params if one.written]
        assert "is not listed" not in parts["What is loaded"]
        assert "is not the µGraph's tile" not in parts["Who stores what"]
        if max(kernel.program.grid) > 2:
            assert parts["Who stores what"].count("exactly the tile that the µGraph gives") == 3 * len(results)
        claim = kernel.claim
        assert claim is not None
        assert f"The claim compared {claim.elements:,} element" in parts["Why it is the µGraph's element"]
        assert f"at {claim.points} random points" in parts["Why it is the µGraph's element"]
        found = re.findall(
            r"\[.*\] is stored by thread (\d+) \(warp (\d+), lane (\d+)\) of block \((\d+), (\d+), (\d+)\)",
            parts["One element"],
        )
        assert len(found) == len(results)
        for row, param in zip(found, results, strict=True):
            thread, warp, lane, *block = map(int, row)
            assert (thread // 32, thread % 32) == (warp, lane)
            assert any(where == param.name for where, _ in stored(kernel.program, tuple(block), thread))


def test_the_element_that_was_asked_for_is_followed_to_its_thread() -> None:
    (kernel,) = kernels(built("rmsnorm-b1"))
    for element in ((0, 0), (1, 3104), (0, 6143), (1, 77)):
        text = told(kernel, element)["One element"]
        row = re.search(r"thread (\d+) .* of block \((\d+), (\d+), (\d+)\)", text)
        assert row is not None
        thread, *block = map(int, row.groups())
        address = element[0] * 6144 + element[1]
        assert ("out0_d2", address) in set(stored(kernel.program, tuple(block), thread))
        assert f"d2[{element[0]}, {element[1]}] is stored" in text
    assert "has no element [2, 0]" in told(kernel, (2, 0))["One element"]
    assert "has no element [1]" in told(kernel, (1,))["One element"]


def test_what_iterations_load_is_named_by_the_iteration_of_the_graph() -> None:
    (kernel,) = kernels(built("rmsnorm-b1"))
    text = told(kernel)["What is loaded"]
    ahead = "loads X[0..1, 1024..1535] (1,024 elements) of the µGraph's iteration 2 and W"
    assert f"In iteration 0 of 8 of the loop over it, block (0, 0, 0) {ahead}" in text, (
        "copies run two iterations ahead"
    )
    assert "In iteration 7 of 8 of the loop over it, block (0, 0, 0) loads nothing." in text


def test_a_kernel_that_stores_elsewhere_is_not_said_to_store_its_tile() -> None:
    """The sentences come from the Program, and not from the µGraph."""
    (kernel,) = kernels(built("ntrans-b1"))

    def shifted(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        first = ir.IntBin(ir.IntOp.MUL, ir.Var("tid"), ir.Int(8))
        return tuple(replace(one, index=first) if isinstance(one, ir.GlobalWrite) else one for one in body)

    wrong = replace(kernel, program=replace(kernel.program, body=shifted(kernel.program.body)))
    text = told(wrong)["Who stores what"]
    assert "Block (4, 0, 0) stores d3[0, 0..4095] (4,096 elements), each once, which is not the µGraph's tile." in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verdict": "unknown", "reason": "it is large"}, "(unknown): it is large."),
        ({"verdict": "deviates", "reason": "3 elements differ"}, "(deviates): 3 elements differ."),
        (None, "No claim is recorded"),
    ],
)
def test_a_claim_that_does_not_hold_is_said(change: dict[str, str] | None, said: str) -> None:
    (kernel,) = kernels(built("ntrans-b1"))
    assert kernel.claim is not None
    claim = None if change is None else msgspec.structs.replace(kernel.claim, **change)
    text = told(replace(kernel, claim=claim))["Why it is the µGraph's element"]
    assert said in text
    assert "All agree" not in text


def _loop(extent: int, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    return (ir.For("large", extent, body),)


def test_kernels_that_are_too_large_to_list_are_not_waited_for() -> None:
    (kernel,) = kernels(built("ntrans-b1"))
    body = _loop(1 << 30, kernel.program.body)
    parts = told(replace(kernel, program=replace(kernel.program, body=body)))
    assert "is not listed" in parts["Who stores what"]
    assert "is not followed" in parts["One element"]
    with pytest.raises(UnsupportedError, match="well-formed"):
        explain_kernel(replace(kernel, program=replace(kernel.program, threads=0)))


# --- the command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explained") / "run"
    small_runs.make(root)
    return root


def test_the_command_explains_built_kernels(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirage = Command(monkeypatch, capsys)
    ended = mirage("tools", "explain", str(run), "--kernels")
    assert ended.code == 0, ended
    for title in ("What it computes", "Who stores what", "One element", "Why it is the µGraph's element"):
        assert f": {title}\n" in ended.out
    assert "mirage-formal check decides it again" in ended.out
    followed = mirage("tools", "explain", str(run), "--kernels", "--element", "0,1,2")
    assert "[0, 1, 2] is stored by thread" in followed.out
    assert '"kernel": "' in mirage("tools", "explain", str(run), "--kernels", "--json").out
    assert mirage("tools", "explain", str(run), "--element", "0,1").code == 2
    assert mirage("tools", "explain", str(run), "--kernels", "--form", "latex").code == 2
    bad = mirage("tools", "explain", str(run), "--kernels", "--element", "x,1")
    assert bad.code == 2
    assert "--element: expected whole numbers from 0 up" in bad.err
    none = mirage("tools", "explain", str(run), "--candidate", "2", "--kernels")
    assert none.code == 2
    assert "expected a candidate with kernels" in none.err


def test_kernels_without_the_record_end_with_code_1(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (directory,) = (tmp_path / "run" / "kernels").iterdir()
    (directory / "realizes.json").unlink()
    sign_sources(directory)
    ended = Command(monkeypatch, capsys)("tools", "explain", str(tmp_path / "run"), "--kernels")
    assert ended.code == 1
    assert "No claim is recorded" in ended.out


def test_programs_of_other_kernels_are_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (directory,) = (tmp_path / "run" / "kernels").iterdir()
    text = (directory / "programs.json").read_bytes()
    (directory / "programs.json").write_bytes(text.replace(b'"threads":', b'"threads":1', 1))
    with pytest.raises((FormatError, UnsupportedError)):
        explain_kernels(directory)


def test_every_block_of_a_small_grid_stores_a_part_of_the_results(run: Path) -> None:
    """All elements of a result are stored once, as the explanation of three blocks suggests."""
    (kernel,) = kernels(built("ntrans-b1"))
    x, y, z = kernel.program.grid
    blocks = [(i, j, k) for i in range(x) for j in range(y) for k in range(z)]
    every = [one for block in blocks for t in range(kernel.program.threads) for one in stored(kernel.program, block, t)]
    graph: KernelGraph = kernel.graph
    assert len(every) == len(set(every)) == prod((8, 4096))
    assert graph.outputs
