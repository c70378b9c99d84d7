"""Which lines of a kernel belong to which operator: they do what the operators are, and none is lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.planning.planner import schedules
from mirage_formal.codegen.program.program import Barrier
from mirage_formal.codegen.source_map import LineRange, kernel_lines
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.report.drawing.levels import Node, all_nodes, levels
from tests.codegen.test_golden import KERNELS, TARGET
from tests.kit.reports import NAMES, example

#: Calls in the text by which an operator is told, and the operators that are computed by them.
SAID = {
    "mf::exp(": {"exp", "running_max", "silu", "sigmoid", "gelu", "softmax"},
    "mf::div(": {"div"},
    "mf::mma<": {"matmul"},
    "mf::load_matrix<": {"matmul"},
    "mf::rsqrt(": {"rms_norm", "layer_norm", "rsqrt"},
    "mf::sqrt(": {"sqrt", "accum_rms_last"},
    "mf::copy_async": {"iterator"},
    "mf::copy_tile": {"iterator"},
}
#: Lines that may belong to no operator.
FREE = re.compile(
    r"\s*(//.*|#.*|extern.*|MF_.*|\).*|}|const int .*|for \(int it = .*|"
    r"mf::((fenced_)?barrier|commit|wait_groups<\d+>|grid_wait|launch_dependents)\(\);|"
    r"mf::((fenced_)?consumer_barrier<\d+>\(\)|start_pipelines\(.*\)|acquire\(.*\));|"
    r"if \(mf::is_producer<\d+>\(\)\) {|for \(int item = .*|)"
)
GRAPHS: dict[str, Callable[[], KernelGraph | list[KernelGraph]]] = {
    **{name: partial(lambda name: example(name).candidate, name) for name in NAMES},
    **{name: made for name, made in KERNELS.items() if name != "predefined"},
}


@dataclass(frozen=True)
class Told:
    """A kernel's text, what is said about its lines, and the nodes of its block graph."""

    text: list[str]
    lines: tuple[LineRange, ...]
    nodes: dict[str, Node]
    kernel: GeneratedKernel


def told(graph: KernelGraph | list[KernelGraph], *, forms: bool = False) -> Iterator[Told]:
    """Every graph-defined kernel of a µGraph, with a few other schedules too."""
    assert isinstance(graph, KernelGraph)
    types = kernel_types(graph)
    named = {node.id: node for node in all_nodes(levels(graph))}
    for position, op in enumerate(graph.ops):
        if not isinstance(op, GraphDefined):
            continue
        here = f"op{position}."
        nodes = {name.removeprefix(here): node for name, node in named.items() if name.startswith(here)}
        ways = [None, *list(schedules(graph, position, TARGET))[1:4]] if forms else [None]
        for way in ways:
            made = generate(graph, TARGET, {} if way is None else {position: way})
            kernel = next(one for one in made.steps if isinstance(one, GeneratedKernel) and one.operator == position)
            assert kernel.plan is not None
            found = kernel_lines(kernel.program, kernel.plan, op, [types[n] for n in op.operands])
            yield Told(emit_cuda(kernel.program).splitlines(), found, nodes, kernel)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GRAPHS)
def test_lines_do_what_their_operators_are(name: str) -> None:
    for one in told(GRAPHS[name](), forms=True):
        owner = {number: piece for piece in one.lines for number in range(piece.first, piece.last + 1)}
        assert len(owner) == sum(piece.last - piece.first + 1 for piece in one.lines)  # no line is in two pieces
        assert [piece.first for piece in one.lines] == sorted(piece.first for piece in one.lines)
        for number, text in enumerate(one.text, 1):
            for said, kinds in SAID.items():
                if said in text:
                    assert kinds & names(one, owner[number]), (name, number, text, owner[number])
            if number not in owner:
                assert FREE.fullmatch(text), (name, number, text)


def names(one: Told, piece: LineRange) -> set[str]:
    """What the parts of a piece are: operators, also those inside of a thread graph, or iterators and savers."""
    nodes = [one.nodes[node] for node in piece.nodes]
    return {node.label if node.kind == "op" else node.kind for node in nodes}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_exponential_and_product_of_the_graph_has_lines(name: str) -> None:
    """Those that are computed by their own step, or by the step that reads them."""
    for one in told(GRAPHS[name]()):
        has = {node for piece in one.lines for node in piece.nodes}
        for node in one.nodes.values():
            if node.kind == "op" and node.label in (OpKind.EXP.value, OpKind.MATMUL.value, OpKind.DIV.value):
                assert node.id.partition(".")[2] in has, (name, node.id)
            if node.kind == "saver":
                assert node.id.partition(".")[2] in has
        assert Counter(piece.does for piece in one.lines)["writes to device memory"] >= 1


def test_a_program_of_another_plan_is_refused() -> None:
    (one, *_) = told(GRAPHS["attention"]())
    graph = GRAPHS["attention"]()
    assert isinstance(graph, KernelGraph)
    op, types = graph.ops[one.kernel.operator], kernel_types(graph)
    assert isinstance(op, GraphDefined)
    assert one.kernel.plan is not None
    body = one.kernel.program.body
    for changed in ((Barrier(), *body), (*body, Barrier()), body[:-1]):
        other = replace(one.kernel.program, body=changed)
        with pytest.raises(ValueError, match="statements of the plan"):
            kernel_lines(other, one.kernel.plan, op, [types[n] for n in op.operands])
