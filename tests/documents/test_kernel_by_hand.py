"""docs/ideas/kernel-by-hand.md proves the kernel that ``build`` writes, and its picture shows that kernel's threads."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import build
from mirage_formal.report.kernels.block_accesses import BlockAccesses
from tests.documents.pages import fences
from tests.kit.kernels import program_interpreter
from tests.kit.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "ideas" / "kernel-by-hand.md"
PICTURE = REPOSITORY / "docs" / "ideas" / "threads.svg"


@pytest.fixture(scope="module")
def graph() -> KernelGraph:
    """The µGraph of the page's first block of Python."""
    code = next(one.code for one in fences(PAGE.read_text()) if one.language == "python")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    found: KernelGraph = names["graph"].freeze()
    return found


@pytest.fixture(scope="module")
def source(graph: KernelGraph) -> str:
    return build(graph, graph, load_target("h200")).executable.source


@pytest.fixture(scope="module")
def program(graph: KernelGraph) -> Program:
    (found,) = build(graph, graph, load_target("h200")).programs.values()
    return found


def test_the_page_quotes_what_build_writes(source: str) -> None:
    quoted = [one.code for one in fences(PAGE.read_text()) if one.kind == "output"]
    assert quoted[0].rstrip() == source.rstrip()


def test_the_table_has_every_statement_of_the_kernel_in_order(source: str) -> None:
    """Declarations, loops over the elements of a thread, and closing lines say nothing by themselves."""
    rows = re.findall(r"^\| +\d+ \| `(.+?)` \|", PAGE.read_text(), flags=re.MULTILINE)
    body = [line.strip() for line in source[source.index(") {\n") :].splitlines()[1:]]
    silent = re.compile(r"const int|MF_FLOATS|#pragma|for \(int|\}|t5\[\d\],?$|t2\[0\] = 0\.0f;|$")
    assert rows == [line for line in body if not silent.match(line)]


def test_the_picture_shows_what_threads_load_and_store(program: Program) -> None:
    accesses = BlockAccesses(program)
    drawn = [one.attrib for one in ElementTree.parse(PICTURE).iter() if "data-thread" in one.attrib]
    for name, written in (("load", False), ("store", True)):
        (access,) = accesses.of_memory(written=written)
        found = accesses.evaluate(access, [(2, 0, 0)])
        shown = [
            (int(one["data-thread"]), int(one["data-first"]), int(one["data-last"]))
            for one in drawn
            if one["class"] == name
        ]
        first = [
            (int(t), int(at) - 128, int(at) - 128 + access.count - 1)
            for t, at in zip(found.threads, found.first, strict=True)
        ]
        assert shown == first[:8]
        assert len(first) == (8 if written else program.threads)


def test_the_equation_of_the_page_holds_for_the_kernel(graph: KernelGraph, program: Program) -> None:
    """out[b, c] = x[b, c] / sqrt(mean of squares of row b), by an interpreter of Programs."""
    x = program_interpreter.from_storage(
        program_interpreter.to_storage(np.random.default_rng(0).standard_normal((4, 64)), graph.inputs[0].tensor.dtype),
        graph.inputs[0].tensor.dtype,
    )
    (out,) = program_interpreter.run(program, [x.ravel()])
    found = out.reshape(4, 64)
    assert np.abs(found - x / np.sqrt((x**2).mean(axis=1, keepdims=True))).max() < 4e-3
