"""Backend of torch.compile: regions run candidates as operators, Inductor compiles the rest.

torch.compile(model, backend="mirage_formal", options={"time_limit": 60})
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from mirage_formal.support.errors import SpaceError, UnsupportedError
from mirage_formal.support.options import check_value
from mirage_formal.torch.capture import capture_graph, load_export
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch
from mirage_formal.torch.convert import import_captured, parse_rounding
from mirage_formal.torch.deadline import STOPPED, Deadline, DeadlineReachedError, now
from mirage_formal.torch.dynamic_shapes.bucket_search import ShapesReport
from mirage_formal.torch.dynamic_shapes.dynamic_extents import Buckets, buckets
from mirage_formal.torch.dynamic_shapes.graphs import has_dynamic_extents, insert_bucket_operators
from mirage_formal.torch.import_result import Imported
from mirage_formal.torch.modules.custom_operators import TorchOperator
from mirage_formal.torch.modules.function_plan import constant_on
from mirage_formal.torch.modules.graph_rewriter import rewrite
from mirage_formal.torch.modules.inductor import (
    NO_CUDA_GRAPHS,
    Compile,
    can_compile,
    fastest_mode_options,
    inductor_compilers,
    uses_cuda_graphs,
)
from mirage_formal.torch.modules.module_report import ModuleReport
from mirage_formal.torch.modules.profitability import (
    CompiledGraph,
    ProfitableGraph,
    compile_alone,
    eager_compile,
    faster_regions,
    has_gpu_tensors,
    select_profitable_operators,
)
from mirage_formal.torch.modules.region_search import choose_operators, parse_time_limit

_RESTS: Final = ("inductor", "eager")
_LIMIT_S: Final = 600.0
#: Default buckets of dynamic extents.
_BUCKETS: Final = (1, 4096, 128)

#: Reports of the graphs that this process has compiled, newest last; the oldest are forgotten.
REPORTS: Final[list[ModuleReport | ShapesReport]] = []
_MOST_REPORTS: Final = 256


def mirage_formal(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured.

    Args:
        module: The graph.
        inputs: A tensor for each placeholder.
        options: Options of ``superoptimize`` and these. ``time_limit`` holds for each graph, and for each bucket of a
            graph with dynamic extents; it is 600 seconds by default. ``shapes`` are the buckets of such extents,
            (lowest, highest, step). ``rest`` is "inductor" or "eager", which computes the operators that stay with
            torch; without a compiler it is eager. ``compare`` is whether operators are timed on a GPU against the
            rest's kernels, and left out where they are slower: True by default. ``rounding`` is "fused" or "exact", see
            ``from_torch``. ``mode`` is the following argument: torch.compile takes options or a mode.
        mode: Inductor's mode for the rest, as in "max-autotune". With that one, or one that starts so, the option
            ``backend`` is "auto" by default where ``accept_kernels`` is "tested".

    Returns:
        A function that computes the graph.

    Raises:
        SpaceError, ShapeError, UnsupportedError: An option is at fault.
    """
    asked = dict(options or {})
    if "continue_in_background" in asked:
        text = (
            "backend mirage_formal: expected no option continue_in_background, which mirage_formal.optimize alone has"
        )
        hint = "leave it out; a compiled graph is not exchanged between two calls"
        raise UnsupportedError(text, where="options", hint=hint)
    rest = asked.pop("rest", "inductor")
    if rest not in _RESTS:
        raise SpaceError(f"expected {' or '.join(_RESTS)}, got {rest!r}", where="rest")
    compare = check_value("compare", asked.pop("compare", True), bool)
    rounding = parse_rounding(asked.pop("rounding", "fused"))
    asked.setdefault("time_limit", _LIMIT_S)
    shapes = buckets(asked.pop("shapes", _BUCKETS), "shapes")
    mode = asked.pop("mode", mode)
    asked = {**fastest_mode_options(mode, asked), **asked}
    inductor = rest == "inductor" and can_compile(inputs)
    ways = inductor_compilers(mode) if inductor else (eager_compile,)
    captured = inductor and uses_cuda_graphs(mode)
    # All timed calls are captured in one CUDA graph of ours.
    timing = inductor_compilers(mode, **NO_CUDA_GRAPHS) if captured else ways
    found = _replace_regions(module, inputs, asked, (shapes, rounding), timing if compare and _is_timed(inputs) else ())
    if found.compiled is not None and not captured and _have_separate_memory(inputs):
        return found.compiled
    return ways[found.way](found.graph or module, list(inputs))


def _have_separate_memory(inputs: Sequence[Any]) -> bool:
    """Return whether no two input tensors share memory, and each has memory of its own.

    Where tensors share memory, the compiler tells Dynamo its assumptions on aliasing.
    """
    try:
        memory = [x.untyped_storage()._cdata for x in inputs if isinstance(x, torch.Tensor)]
    except (NotImplementedError, RuntimeError):  # tensors without memory of their own
        return False
    return len(set(memory)) == len(memory)


def _is_timed(inputs: Sequence[Any]) -> bool:
    """Return whether a graph is timed: its tensors lie on an available GPU, and it records no gradients."""
    recorded = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    return has_gpu_tensors(inputs) and not recorded


def _replace_regions(
    module: GraphModule,
    inputs: Sequence[Any],
    asked: Mapping[str, Any],
    how: tuple[Buckets, str],
    timing: Sequence[Compile] = (),
) -> ProfitableGraph:
    """Return the graph with operators, if it can be imported, has some, and is not faster without them.

    Args:
        module: The graph.
        inputs: A tensor for each placeholder.
        asked: Options of ``superoptimize``.
        how: Buckets of dynamic extents, and the rounding of ``from_torch``.
        timing: Compilers for the timing: the graph with operators is compiled by each, the graph without by the first.
            Empty for no timing.
    """
    nothing = ModuleReport((), (), ())
    deadline = Deadline.after(now(), parse_time_limit(asked.get("time_limit")))
    if _stops_gradients(module) and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return ProfitableGraph(None, nothing, {})
    if has_dynamic_extents(module, inputs):
        return ProfitableGraph(_replace_dynamic_parts(module, inputs, asked, *how), nothing, {})
    try:
        load_export(deadline)
        found = import_captured(capture_graph(module, [_detach(x) for x in inputs]), how[1], deadline)
        rewrite(found, {})
    except DeadlineReachedError:
        report = dataclasses.replace(nothing, stopped=f"{STOPPED} the graph was imported: nothing was searched")
        _keep_report(report)
        return ProfitableGraph(None, report, {})
    except UnsupportedError as error:
        warnings.warn(f"backend mirage_formal: a graph stays with torch: {error.what}", stacklevel=2)
        return ProfitableGraph(None, nothing, {})
    comparison = compare_with_torch(found, arguments_of(found, inputs), deadline=deadline)
    operators, report = choose_operators(found, asked, comparison=comparison, deadline=deadline)
    if timing and len(set(operators.values())) > 1:
        operators, report = faster_regions(found, operators, report, timing[0], deadline)

    def build(operators: Mapping[int, TorchOperator]) -> GraphModule:
        graph = rewrite(found, {n: operator.overload for n, operator in operators.items()})
        return _module(found, graph, module, inputs)

    if timing and not deadline.passed():
        begin = now()
        without = CompiledGraph(module, compile_alone(module, inputs, timing[0]) if operators else None)
        ahead = now() - begin

        def build_in_time(operators: Mapping[int, TorchOperator]) -> GraphModule:
            deadline.check(ahead)
            return build(operators)

        try:
            made = select_profitable_operators(operators, report, build_in_time, without, inputs, timing)
        except DeadlineReachedError:
            late = dataclasses.replace(report, rest=f"{STOPPED} the graph had been timed beside torch.compile's")
            made = ProfitableGraph(build(operators), late, operators)
    else:
        made = ProfitableGraph(build(operators) if operators else None, report, operators)
    _keep_report(made.report)
    return made


def _keep_report(report: ModuleReport | ShapesReport) -> None:
    """Add a report to the newest ones."""
    REPORTS.append(report)
    del REPORTS[:-_MOST_REPORTS]


def _replace_dynamic_parts(
    module: GraphModule, inputs: Sequence[Any], asked: Mapping[str, Any], shapes: Buckets, rounding: str
) -> GraphModule | None:
    """Return the graph with operators that choose a bucket for each call; None if there is none."""
    try:
        found, report = insert_bucket_operators(module, inputs, asked, shapes, rounding)
    except UnsupportedError as error:
        warnings.warn(f"backend mirage_formal: a graph stays with torch: {error.what}", stacklevel=2)
        return None
    _keep_report(report)
    return found


def _module(found: Imported, graph: Graph, original: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """Return the graph with its constants as a module, with the original's placeholders in its order."""
    root = torch.nn.Module()
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    names = iter([node.name for node in original.graph.nodes if node.op == "placeholder"])
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        if node.name in found.given:
            constant = constant_on(found.given[node.name], devices)
            root.register_buffer(f"constant_{node.name}", constant, persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(f"constant_{node.name}"))
            graph.erase_node(node)
        else:
            node.target = next(names)
    return GraphModule(root, graph)


def _detach(tensor: Any) -> Any:
    """Return a tensor detached from any autograd graph; other values are returned unchanged."""
    return tensor.detach() if isinstance(tensor, torch.Tensor) else tensor


def _stops_gradients(module: GraphModule) -> bool:
    """Return whether the graph stops gradients somewhere, which an import does not represent."""

    def stop(node: Node) -> bool:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return name in ("detach", "detach_", "_set_grad_enabled", "_enter_inference_mode") or "autograd" in name

    return any(node.op in ("call_function", "call_method") and stop(node) for node in module.graph.nodes)


__all__ = ["REPORTS", "mirage_formal"]
