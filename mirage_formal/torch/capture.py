"""Capture of torch graphs to import: from modules and functions by torch.export, and from Dynamo's graphs."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from sysconfig import get_paths
from traceback import extract_tb
from types import FunctionType
from typing import Any, Final

import torch
from torch.fx import GraphModule, Interpreter, Node

from mirage_formal.frontend.argument_checks import error_at_user_line, is_internal_file
from mirage_formal.frontend.origins import Origin
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.garbage import pause_garbage_collection
from mirage_formal.torch.deadline import NO_DEADLINE, Deadline, DeadlineReachedError, now

#: Modules that torch.export needs, in the order in which they need one another.
_EXPORT: Final = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch.export._trace")
#: Duration of the last one's import, as a multiple of all others' before it.
_LAST: Final = 3.0


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A functional torch graph of ATen operators (without in-place operators).

    Attributes:
        module: The graph.
        arguments: Description of each placeholder; see ``Imported``.
        given: Tensor of each placeholder that is state or a constant.
        same: For each placeholder, the first one with the same parameter or buffer.
        results: The nodes that are results; None for one that is no tensor.
        writes: Descriptions of the state or arguments to which the first results are written.
    """

    module: Any
    arguments: Mapping[str, str]
    given: Mapping[str, Any]
    same: Mapping[str, str]
    results: tuple[str | None, ...]
    writes: tuple[str, ...]


def load_export(deadline: Deadline) -> None:
    """Import what torch.export needs: torch itself leaves that to its first use.

    They are imported one by one, so that a deadline can end this in between.

    Raises:
        DeadlineReachedError: The deadline has come, or comes before the next one is imported.
    """
    begin = now()
    with pause_garbage_collection():
        for name in _EXPORT:
            if name in sys.modules:
                continue
            deadline.check(_LAST * (now() - begin) if name == _EXPORT[-1] else 0.0)
            try:
                import_module(name)
            except ImportError:  # a version of torch without this module: torch.export says what is missing
                continue


def capture(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    entry: str = "from_torch",
    varying: Any = None,
) -> CapturedGraph:
    """Return the graph of a module or function for arguments of these shapes; errors name ``entry``.

    Args:
        target: The module or function.
        args: Its arguments.
        kwargs: Further arguments by name.
        entry: Name of the function that the user called.
        varying: Dynamic dims of the arguments, as torch.export's dynamic_shapes.

    Raises:
        UnsupportedError: It is neither, or torch.export refuses it.
        Exception: What a statement of the user's code raises, as it is.
    """
    if not callable(target):
        text = f"{entry}: expected a torch module or a function, got {type(target).__name__}"
        raise error_at_user_line(UnsupportedError, text, "give a module, with its arguments as a tuple")
    if not isinstance(args, tuple | list):
        text = f"{entry}: expected the arguments as a tuple, got {type(args).__name__}"
        raise error_at_user_line(UnsupportedError, text, "write from_torch(module, (x,))")
    load_export(NO_DEADLINE)
    module = target if isinstance(target, torch.nn.Module) else _wrap_function(target)
    try:
        with torch.no_grad():
            given = _separate_shared_arguments(module, (tuple(args), dict(kwargs or {})))
            program = torch.export.export(module, *given, strict=False, dynamic_shapes=varying)
            program = _make_functional(program)
    except DeadlineReachedError:
        raise
    except Exception as error:  # the user's code and torch may raise anything
        if _is_raised_by_user(error):
            raise
        first = str(error).strip().splitlines() or [type(error).__name__]
        text = f"{entry}: torch.export has no graph of {_name(target)}: {type(error).__name__}: {first[0]}"
        raise error_at_user_line(
            UnsupportedError, text, "see whether torch.export.export(module, args) works"
        ) from None
    return _exported(program, args, kwargs or {})


def _is_raised_by_user(error: Exception) -> bool:
    """Return whether an exception comes from a statement of the user's own code, and not from an installed package."""
    last, paths = Path(extract_tb(error.__traceback__)[-1].filename), get_paths()
    installed = any(last.is_relative_to(Path(paths[name])) for name in ("stdlib", "purelib"))
    return last.is_file() and not installed and not is_internal_file(str(last))


def capture_graph(module: Any, inputs: Sequence[Any]) -> CapturedGraph:
    """Return a graph from Dynamo, of torch functions or ATen operators, as a functional graph of ATen operators.

    Raises:
        UnsupportedError: Torch cannot trace it.
    """
    from torch.fx import traceback

    if not isinstance(module, GraphModule):
        text = f"torch.compile: expected a torch.fx.GraphModule, got {type(module).__name__}"
        raise error_at_user_line(UnsupportedError, text, "use from_torch for modules and functions")
    if any(isinstance(item, torch.SymInt) for item in inputs):
        text = "torch.compile: expected extents that are known, got symbolic ones"
        raise error_at_user_line(UnsupportedError, text, "compile with dynamic=False")

    def run(*given: Any) -> Any:
        with traceback.preserve_node_meta():
            return Interpreter(module).run(*given)

    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    found = capture(run, tuple(inputs), None, "torch.compile")
    labels = dict(zip((n for n, what in found.arguments.items() if what.startswith("argument")), names, strict=False))
    arguments = {n: f"argument {labels[n]}" if n in labels else what for n, what in found.arguments.items()}
    return CapturedGraph(found.module, arguments, found.given, found.same, found.results, found.writes)


def _separate_shared_arguments(module: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with a new tensor for each one that shares memory with an earlier one.

    torch.export would read equal tensors as one, and would not know the extents of one of which another is a view; the
    next call may have different tensors there. torch.export reads no elements, so the new tensors are uninitialized.
    """
    seen = {_memory_id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def once(item: Any) -> Any:
        if type(item) is not torch.Tensor or item.layout is not torch.strided:
            return item
        if (memory := _memory_id(item)) not in seen:
            seen.add(memory)
            return item
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=item.device)

    found = torch.utils._pytree.tree_map(once, given)
    assert isinstance(found, tuple)
    return found


def _memory_id(tensor: Any) -> int:
    """Return a number that identifies a tensor's memory; a tensor of another layout or class stands for itself."""
    own = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return int(tensor.untyped_storage()._cdata) if own else id(tensor)


def _wrap_function(function: Any) -> Any:
    """Return a module that calls a function.

    Torch keeps the source lines of functions named forward, so a Python function is renamed to that.
    """
    code = getattr(function, "__code__", None)
    if isinstance(function, FunctionType) and code is not None:
        named = FunctionType(
            code.replace(co_name="forward"),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        named.__kwdefaults__ = function.__kwdefaults__
        function = named

    class Function(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Function()


def _name(target: Any) -> str:
    return getattr(target, "__name__", type(target).__name__)


def _make_functional(program: Any) -> Any:
    """Return the program without in-place operators, and with composite operators decomposed that the table lacks."""
    from mirage_formal.torch.op_table import rules

    known = rules()
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    calls = [target for target in calls if isinstance(target, torch._ops.OpOverload)]
    writes = any(target._schema.is_mutable and str(target) not in known for target in calls)
    missing = {target for target in calls if str(target) not in known and not target._schema.is_mutable}
    decompositions = torch.export.default_decompositions() if missing else {}
    composed = {
        target: decompositions[target]
        for target in missing
        if target in decompositions
        and torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    }
    return program.run_decompositions(composed) if writes or composed else program


def _exported(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CapturedGraph:
    from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

    paths, _ = torch.utils._pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    labels = [_describe_argument(path) for path, _ in paths]
    arguments: dict[str, str] = {}
    given: dict[str, Any] = {}
    same: dict[str, str] = {}
    first: dict[int, str] = {}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        match spec.kind:
            case InputKind.USER_INPUT:
                label = labels.pop(0)
                if isinstance(spec.arg, TensorArgument):
                    arguments[name] = label
            case InputKind.PARAMETER | InputKind.BUFFER:
                what = "parameter" if spec.kind is InputKind.PARAMETER else "buffer"
                arguments[name] = f"{what} {spec.target}"
                given[name] = program.state_dict.get(spec.target, program.constants.get(spec.target))
                same[name] = first.setdefault(id(given[name]), name)
            case _:
                arguments[name] = "constant"
                given[name] = program.constants.get(spec.target)
    results = tuple(getattr(spec.arg, "name", None) for spec in program.graph_signature.output_specs)
    writes = tuple(
        f"buffer {spec.target}" if spec.kind is OutputKind.BUFFER_MUTATION else arguments[spec.target]
        for spec in program.graph_signature.output_specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    )
    return CapturedGraph(program.graph_module, arguments, given, same, results, writes)


def _describe_argument(path: Sequence[Any]) -> str:
    """Return the description of an argument, as in "argument 1", "argument mask" or "argument 2['k']"."""
    head, place, *rest = path
    tail = torch.utils._pytree.keystr(tuple(rest))
    name = str(place.idx + 1) if head.idx == 0 else str(place.key)
    return f"argument {name}{tail}"


def evaluate_nodes(module: GraphModule, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Compute tensors of a torch graph by torch from the tensors of other nodes; only needed nodes are computed."""
    nodes = {node.name: node for node in module.graph.nodes}
    found = dict(given)
    needed: set[str] = set()
    stack = [name for name in names if name not in found]
    while stack:
        name = stack.pop()
        if name not in needed and name not in found:
            needed.add(name)
            stack += [node.name for node in nodes[name].all_input_nodes]
    for node in module.graph.nodes:
        if node.name not in needed:
            continue
        if node.op == "get_attr":
            found[node.name] = operator.attrgetter(node.target)(module)
        elif node.op == "call_function":
            args = torch.fx.map_arg(node.args, lambda n: found[n.name])
            kwargs = torch.fx.map_arg(node.kwargs, lambda n: found[n.name])
            found[node.name] = node.target(*args, **kwargs)
        else:
            raise UnsupportedError(f"expected a tensor for {node.name}, got none", hint="give it")
    return {name: found[name] for name in names}


def operator_name(node: Node) -> str:
    """Return the name of the operator that a node calls."""
    return "getitem" if node.target is operator.getitem else str(node.target)


def source_lines(node: Node) -> tuple[Origin | None, Origin | None]:
    """Return the user's source line of an operator, and the innermost line of a library that it calls."""
    text = node.meta.get("stack_trace") or ""
    found: list[Origin] = []
    rows = text.splitlines()
    for number, row in enumerate(rows):
        head = row.strip().split('"')
        if len(head) == 3 and head[0] == "File " and head[2].startswith(", line "):
            line = head[2].removeprefix(", line ").partition(",")[0]
            if line.isdigit() and head[1] != __file__:
                call = rows[number + 1].strip() if number + 1 < len(rows) else ""
                found.append(Origin(head[1], int(line), call))
    if not found:
        return None, None
    outside = [item for item in found if "site-packages" not in item.path and "<" not in item.path]
    return (outside or found)[-1], found[-1]
