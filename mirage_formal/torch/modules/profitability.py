"""Selection of the operators in a GPU graph by measured times against a compiler.

With several operators there are two steps. First each different operator is timed against a compilation of its region
alone. Then the whole graph with the remaining operators is timed against the graph without any, because a compiler may
fuse a region with its neighbours. While the whole graph is not faster, the operator with the least gain is removed.
Operators that cannot be timed are decided by estimates, as on a machine without a GPU.

A compiler may have several configurations: a graph with operators is compiled in each, and the fastest counts. The
timed compilation itself is kept, because a compiler that autotunes may produce another one the next time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mirage_formal.torch.deadline import NO_DEADLINE, STOPPED, Deadline, now
from mirage_formal.torch.import_result import Imported
from mirage_formal.torch.modules.custom_operators import NAMESPACE, TorchOperator
from mirage_formal.torch.modules.graph_rewriter import region_alone
from mirage_formal.torch.modules.graph_timing import TimedPair, device_context, have_equal_results, time_interleaved
from mirage_formal.torch.modules.inductor import Compile
from mirage_formal.torch.modules.module_report import ModuleReport, RegionReport


def eager_compile(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return the graph's forward without compilation: torch runs operator by operator."""
    return module.forward  # type: ignore[no-any-return]  # a method of a class without types


def has_gpu_tensors(inputs: Sequence[Any]) -> bool:
    """Return whether some tensors lie on an available GPU."""
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs) and bool(torch.cuda.is_available())


def faster_regions(
    imported: Imported,
    operators: Mapping[int, TorchOperator],
    report: ModuleReport,
    compile: Compile,
    deadline: Deadline = NO_DEADLINE,
) -> tuple[dict[int, TorchOperator], ModuleReport]:
    """Return the operators that are faster than a compilation of their regions, and the updated report.

    Args:
        imported: The import.
        operators: Operators by the numbers of regions.
        report: Report on all regions.
        compile: Compiler that the operators are compared with.
        deadline: Deadline: operators that are not timed by then are decided by estimates, like those that cannot be.
    """
    kept = dict(operators)
    rows: list[RegionReport] = []
    for row in report.regions:
        operator = operators.get(row.numbers[0])
        if operator is None or deadline.passed():
            late = "" if operator is None else f"{STOPPED} it had been timed"
            rows.append(dataclasses.replace(row, compared="; ".join(filter(None, (row.compared, late)))))
            continue
        found = _time_operator(imported, row.numbers[0], operator, compile)
        if found is not None:
            row = dataclasses.replace(row, measured_us=found.ours, others_us=found.theirs)
            if not found.faster:
                row = dataclasses.replace(row, kept="it is faster there, as measured")
                for number in row.numbers:
                    kept.pop(number, None)
        rows.append(row)
    return kept, dataclasses.replace(report, regions=tuple(rows))


def _time_operator(imported: Imported, number: int, operator: TorchOperator, compile: Compile) -> TimedPair | None:
    """Time an operator against a compilation of its region; None if one cannot be compiled or timed."""
    calls = []
    for chosen in ({number: operator.overload}, {}):
        graph, inputs = region_alone(imported, number, chosen)
        calls.append(compile_alone(graph, inputs, compile))
    return compare_times(calls[0], calls[1], inputs)


def compile_alone(graph: Graph | GraphModule, inputs: Sequence[Any], compile: Compile) -> Callable[..., Any] | None:
    """Compile a copy of a graph in isolation from other compilations; return None if it cannot be compiled."""
    owner = graph if isinstance(graph, GraphModule) else torch.nn.Module()
    copy = Graph()
    own = graph.graph if isinstance(graph, GraphModule) else graph
    copy.output(copy.graph_copy(own, {}))
    with torch.no_grad(), torch._guards.tracing(None):
        try:
            return compile(GraphModule(owner, copy), list(inputs))
        except Exception:  # a compiler's own
            return None


def compare_times(
    ours: Callable[..., Any] | None, theirs: Callable[..., Any] | None, inputs: Sequence[Any]
) -> TimedPair | None:
    """Time both functions in turns; return None if one could not be compiled, or cannot be timed."""
    return None if ours is None or theirs is None else time_interleaved(ours, theirs, inputs)


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph without operators, and its compilation.

    Attributes:
        graph: The graph.
        call: What a compiler made of it; None if it could not be compiled.
        mode: Mode of the compiler.
        seconds: Seconds of the compilation.
    """

    graph: GraphModule
    call: Callable[..., Any] | None
    mode: str = "default"
    seconds: float = 0.0


class CompilationThread:
    """Compilations of a graph by several compilers, one by one in a thread, beside the searches.

    Args:
        graph: The graph.
        inputs: Tensors like those of its calls.
        compilers: Compilers by their modes, the most important first.
    """

    def __init__(self, graph: GraphModule, inputs: Sequence[Any], compilers: Mapping[str, Compile]) -> None:
        self._graph, self._inputs = graph, inputs
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._made = {mode: self._executor.submit(self._compile, compile) for mode, compile in compilers.items()}

    def _compile(self, compile: Compile) -> tuple[Callable[..., Any] | None, float]:
        begin = now()
        with device_context(self._inputs):
            return compile_alone(self._graph, self._inputs, compile), now() - begin

    def fastest(self, deadline: Deadline) -> CompiledGraph:
        """Return the fastest of the compilations that are there by a deadline."""
        best = CompiledGraph(self._graph, None)
        for mode, future in self._made.items():
            try:
                call, seconds = future.result(None if deadline.unlimited else max(0.0, deadline.left()))
            except TimeoutError:
                break
            if call is not None and best.call is not None:
                timed = compare_times(call, best.call, self._inputs)
                if timed is None or not timed.faster:
                    continue
            if call is not None:
                best = CompiledGraph(self._graph, call, mode, seconds)
        self.cancel()
        return best

    def cancel(self) -> None:
        """Begin no further compilation."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class ProfitableGraph:
    """Result of the choice between the graph with operators and the graph without them.

    Attributes:
        graph: The graph with operators; None if it is faster without.
        report: Report on all regions.
        operators: The operators in it, by the numbers of regions.
        compiled: The timed compilation of it, or of the graph without operators; None if none was timed.
        way: Number of the compiler configuration.
    """

    graph: GraphModule | None
    report: ModuleReport
    operators: Mapping[int, TorchOperator]
    compiled: Callable[..., Any] | None = None
    way: int = 0


def select_profitable_operators(
    operators: Mapping[int, TorchOperator],
    report: ModuleReport,
    build: Callable[[Mapping[int, TorchOperator]], GraphModule],
    without: CompiledGraph,
    inputs: Sequence[Any],
    ways: Sequence[Compile],
) -> ProfitableGraph:
    """Return the graph with the most operators that is faster than without any, or the one without if there is none.

    Args:
        operators: Operators by the numbers of regions, faster alone.
        report: Report on all regions.
        build: Function that builds the graph with some operators.
        without: The graph without operators, compiled if there are operators.
        inputs: Tensors like those of its calls.
        ways: Compiler configurations: graphs with operators are compiled by each.
    """
    left, theirs = dict(operators), without.call
    if ways[0] is not eager_compile and theirs is not None:
        eager = compare_times(theirs, eager_compile(without.graph, inputs), inputs)
        report = dataclasses.replace(report, eager_us=None if eager is None else eager.theirs)
    while left:
        made = build(left)
        ours, way = _fastest_compilation(made, inputs, ways)
        found = compare_times(ours, theirs, inputs)
        if found is None:
            return ProfitableGraph(made, report, left)
        rows = [row for row in report.regions if row.numbers[0] in left]
        if len(rows) == 1 and rows[0].measured_us is None:  # the graph's only operator, which was not timed by itself
            report = _replace_row(report, rows[0], measured_us=found.ours, others_us=found.theirs)
        report = dataclasses.replace(report, measured_us=found.ours, others_us=found.theirs)
        if found.faster:
            return ProfitableGraph(made, report, left, ours, way)
        least = min(rows, key=_gained_us)
        why = f"the whole graph is faster there, as measured: {found.theirs:.1f} us, with operators {found.ours:.1f} us"
        report = _replace_row(report, next(row for row in report.regions if row.numbers == least.numbers), kept=why)
        for number in least.numbers:
            left.pop(number, None)
    return ProfitableGraph(None, report, {}, theirs)


def _fastest_compilation(
    graph: GraphModule, inputs: Sequence[Any], ways: Sequence[Compile]
) -> tuple[Callable[..., Any] | None, int]:
    """Return the fastest compilation of a graph, and its configuration: the first, where another fails.

    Sound: nothing is proved of what a compiler makes of the rest of a graph. Another compilation than the first is
    taken only where both give the same for one draw of inputs.

    Configurations differ in how they compile several nodes. A graph with fewer than two nodes besides our operators is
    compiled by the first only.
    """
    best, way = compile_alone(graph, inputs, ways[0]), 0
    for number, compile in enumerate(ways[1:] if len(_other_operators(graph)) > 1 else (), 1):
        other = compile_alone(graph, inputs, compile)
        if best is None or other is None:
            continue
        found = time_interleaved(other, best, inputs)
        if found is not None and found.ours < found.theirs and have_equal_results(other, best, inputs):
            best, way = other, number
    return best, way


def compile_rest(graph: GraphModule, found: ProfitableGraph, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the timed compilation of a graph if it is faster than torch operator by operator, else None.

    Args:
        graph: The graph that was chosen, with operators or without.
        found: The choice.
        inputs: Tensors like those of its calls.
    """
    if found.compiled is None or all(getattr(node.target, "is_view", False) for node in _other_operators(graph)):
        return None
    timed = compare_times(found.compiled, eager_compile(graph, inputs), inputs)
    return found.compiled if timed is not None and timed.faster else None


def _other_operators(graph: GraphModule) -> list[Node]:
    """Return the nodes that call operators other than ours; views of tensors are among them."""
    calls = (node for node in graph.graph.nodes if node.op == "call_function" and node.target is not getitem)
    return [node for node in calls if getattr(node.target, "namespace", "") != NAMESPACE]


def _gained_us(row: RegionReport) -> float:
    """Return the microseconds that an operator saves alone; 0 where that was not measured."""
    return 0.0 if row.measured_us is None or row.others_us is None else row.others_us - row.measured_us


def _replace_row(report: ModuleReport, row: RegionReport, **changed: Any) -> ModuleReport:
    """Return a report with some fields of one row replaced."""
    regions = (dataclasses.replace(one, **changed) if one is row else one for one in report.regions)
    return dataclasses.replace(report, regions=tuple(regions))


__all__ = [
    "CompilationThread",
    "CompiledGraph",
    "ProfitableGraph",
    "compare_times",
    "compile_alone",
    "compile_rest",
    "eager_compile",
    "faster_regions",
    "has_gpu_tensors",
    "select_profitable_operators",
]
