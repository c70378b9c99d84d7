"""Which lines of a Triton file belong to which operator: they do what the operators are, and none is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import mirage_formal as mf
from mirage_formal.codegen.program.lines import LineRange, merge_lines
from mirage_formal.codegen.triton.file import TritonFile
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.drawing.levels import Node, all_nodes, levels
from tests.codegen.test_golden import KERNELS
from tests.kit.kernels import example_kernels
from tests.kit.kernels import triton_files as kit
from tests.kit.reports import NAMES, example

#: Calls in functions by which an operator is told, and the operators that are computed by them.
SAID = {
    "tl.exp(": {"exp", "running_max", "softmax"},
    "tl.dot(": {"matmul"},
    "tl.load(": {"iterator"},
    "tl.store(": {"saver"},
    " / ": {"div", "mean", "rms_norm", "layer_norm", "accum_rms_last", "accum_mean_last", "scale"},
}
#: Lines of functions that may belong to no operator.
FREE = re.compile(
    r'@triton\.jit|def .*|    """.*"""|    (pid_[xyz]|r\d+|one) = .*|    for .*|        step = lap \* one|'
)
ROWS = [row for row in example_kernels.fastest() if row.endswith("-b1")]


def cases() -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """Names, programs and candidates."""
    for row in ROWS:
        name, batch = row.rsplit("-b", 1)
        yield row, example_kernels.real(name, int(batch)), example_kernels.fastest()[row]
    for name in NAMES:
        yield name, example(name).program, example(name).candidate
    for name, graph in ((name, KERNELS[name]()) for name in ("attention-parts", "loop-concatenation", "adapters")):
        assert isinstance(graph, KernelGraph)
        yield f"golden {name}", graph, graph


CASES = {name: (program, graph) for name, program, graph in cases()}


def made(name: str, *, unfused: bool = False) -> tuple[TritonFile, dict[str, Node]]:
    program, graph = CASES[name]
    one = kit.case("case", program, program if unfused else graph)
    return one.file, {node.id: node for node in all_nodes(levels(one.graph))}


def owners(file: TritonFile) -> dict[int, LineRange]:
    return {number: piece for piece in file.lines for number in range(piece.first, piece.last + 1)}


@pytest.mark.parametrize("unfused", [False, True], ids=["candidate", "program"])
@pytest.mark.parametrize("name", CASES)
def test_lines_do_what_their_operators_are(name: str, unfused: bool) -> None:
    file, nodes = made(name, unfused=unfused)
    owner = owners(file)
    assert len(owner) == sum(piece.last - piece.first + 1 for piece in file.lines)  # no line is in two pieces
    assert [piece.first for piece in file.lines] == sorted(piece.first for piece in file.lines)
    kinds = {node.id: {node.label if node.kind == "op" else node.kind, *_inside(node)} for node in nodes.values()}
    inside, launched = "", ""
    for number, text in enumerate(file.text.split("\n"), 1):
        if (begun := re.match(r"def (\w+)\(", text)) is not None:
            inside = begun[1]
        if inside == "run" and (made_by := re.match(r"    (kernel(\d+)\[|t\d+ = torch\.matmul)", text)) is not None:
            launched += text
            (node,) = owner[number].nodes
            assert made_by[2] is None or node == f"op{made_by[2]}"
            assert made_by[2] is not None or nodes[node].label == "matmul"
        if not inside.startswith("kernel"):
            assert inside == "run" or number not in owner, (name, number, text)
            continue
        if number not in owner:
            assert FREE.fullmatch(text), (name, number, text)
            continue
        found = owner[number].nodes
        assert all(node.split(".")[0] == f"op{inside.removeprefix('kernel')}" for node in found)
        for said, wanted in SAID.items():
            if said in text and nodes[found[0].split(".")[0]].kind == "kernel":
                assert any(wanted & kinds[node] for node in found), (name, number, text, owner[number])
    assert launched


def _inside(node: Node) -> set[str]:
    return set() if node.inner is None else {inner.label for inner in node.inner.nodes}


@pytest.mark.parametrize("name", CASES)
def test_every_operator_of_the_graph_has_lines(name: str) -> None:
    """What is computed of a block graph is named somewhere, and so is every operator of the kernel graph."""
    file, nodes = made(name)
    has = {node for piece in file.lines for node in piece.nodes}
    assert has <= nodes.keys()
    for node in nodes.values():
        if node.kind == "saver" or (node.kind == "op" and node.label in ("exp", "matmul", "div")):
            assert node.id in has, (name, node.id)
        if node.kind == "kernel":
            assert node.id in has, (name, node.id)


def test_operators_that_torch_computes_have_the_lines_that_call_it() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(16, 64), name="x")
    g.mark_output(g.softmax(g.exp(x), dim=1))
    file = kit.case("t", g.freeze(), g.freeze(), raw=True).file
    rows = file.text.split("\n")
    said = {piece.nodes: [rows[n - 1].strip() for n in range(piece.first, piece.last + 1)] for piece in file.lines}
    assert said["op0",][0].startswith("t1 = torch.exp(")
    assert said["op1",][-1].startswith("kernel1[")  # a function of Triton, whose block graph is none of the graph's
    assert {piece.does for piece in file.lines} >= {"computes by torch", "launches its function"}


def test_lines_that_say_the_same_are_one_piece() -> None:
    a, b = (("op0",), "computes"), (("op1",), "computes")
    assert merge_lines([a, a, None, a, b, b], 5) == (
        LineRange(5, 6, ("op0",), "computes"),
        LineRange(8, 8, ("op0",), "computes"),
        LineRange(9, 10, ("op1",), "computes"),
    )
