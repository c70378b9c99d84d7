"""Execution plan of an optimized module: a torch function, its arguments, and checks that the import is valid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch.fx import Graph
from torch.utils import _pytree as pytree

from mirage_formal.torch.modules.custom_operators import TorchOperator
from mirage_formal.torch.modules.graph_rewriter import mutated_inputs, rewrite
from mirage_formal.torch.modules.inductor import NO_CUDA_GRAPHS, inductor_compiler
from mirage_formal.torch.modules.trace import ModuleTrace

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_aten = torch.ops.aten
#: View operators, and the equivalent methods of tensors, which take about half the time.
_METHODS: Final = {
    _aten.permute.default: "permute",
    _aten.view.default: "view",
    _aten.select.int: "select",
    _aten.unsqueeze.default: "unsqueeze",
    _aten.expand.default: "expand",
    _aten.contiguous.default: "contiguous",
}


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Form required of a tensor: extents, strides in elements, element type and device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    @classmethod
    def of(cls, tensor: Any) -> TensorForm:
        """Return the form of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def fits(self, value: Any, place: Any = None) -> bool:
        """Return whether a value is a tensor of this form; strides of extents of 1 are ignored.

        Args:
            value: Any value.
            place: Another device that the tensor must be on; None for the form's own.
        """
        if not isinstance(value, torch.Tensor) or value.shape != self.shape or value.dtype is not self.dtype:
            return False
        if value.device != (self.device if place is None else place) or value.layout is not torch.strided:
            return False
        strides = value.stride()
        return strides == self.strides or all(
            n <= 1 or a == b for n, a, b in zip(self.shape, strides, self.strides, strict=True)
        )

    def on(self, place: Any) -> TensorForm:
        """Return the form on another device; None keeps the device."""
        return self if place is None else replace(self, device=place)

    def __str__(self) -> str:
        return f"{self.dtype} of {list(self.shape)}, strides {list(self.strides)}, on {self.device}"


@dataclass(frozen=True, slots=True)
class ImportedSubmodule:
    """A submodule as it was at the import.

    Attributes:
        parent: Number of its parent module; number 0 is the module itself.
        name: Its name in the parent.
        path: Its qualified name in the module.
        kind: Its class.
        training: Whether it was in training mode.
    """

    parent: int
    name: str
    path: str
    kind: Any
    training: bool


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A parameter or buffer that the function reads.

    Attributes:
        part: Number of the submodule that has it.
        name: Its name there.
        parameter: Whether it is a parameter.
        form: Its required form.
        same: Number of the first entry of the plan's state that is the same tensor, possibly its own.
    """

    part: int
    name: str
    parameter: bool
    form: TensorForm
    same: int


@dataclass(eq=False)
class FunctionPlan:
    """Source of a torch function, its arguments, and the conditions under which it may be called.

    Attributes:
        source: Source text of the function.
        names: Values of the global names in it.
        operators: The operators that it calls, which unpickling registers again.
        parts: The submodules, each behind its parent.
        state: Parameters and buffers that it reads, and further names of these.
        spec: Pytree structure of args and kwargs.
        leaves: For each leaf of these, its form, or its required value if it is no tensor.
        constants: Constant tensors that it reads.
        feed: For each parameter of the function, an index into state, leaves and constants, concatenated.
        written: Those of these indices that the function writes.
        out: Pytree structure of the module's return value.
        stops: Whether the module stops gradients somewhere, which the function would not do.
        guarded: Whether the function checks the conditions of its operators.
        mode: Mode of Inductor's that the function is compiled in; None if torch runs it operator by operator. Calls
            that record gradients, or are traced by a compiler, are not compiled.
    """

    source: str
    names: Mapping[str, Any]
    operators: tuple[Any, ...]
    parts: tuple[ImportedSubmodule, ...]
    state: tuple[StateTensor, ...]
    spec: Any
    leaves: tuple[Any, ...]
    constants: tuple[Any, ...]
    feed: tuple[int, ...]
    written: tuple[int, ...]
    out: Any
    stops: bool
    guarded: bool = False
    mode: str | None = None
    said: bool = field(default=False, repr=False, init=False)

    def __post_init__(self) -> None:
        names: dict[str, Any] = {name: _resolve_name(value) for name, value in self.names.items()}
        exec(self.source, names)
        self._function = names["forward"]
        self._flat = self.spec == pytree.tree_flatten(((None,) * len(self.leaves), {}))[1]
        self._single = self.out == pytree.tree_flatten(None)[1]
        self._home = self._movable_home()
        self._moved: dict[Any, tuple[Any, ...]] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def _movable_home(self) -> Any:
        """Return the GPU of all tensors if another GPU can take its place, because the source names none; else None."""
        forms = [*(x for x in self.leaves if isinstance(x, TensorForm)), *(item.form for item in self.state)]
        homes = {form.device for form in forms} | {x.device for x in self.constants if x.dim()}
        if len(homes) != 1 or any(x.requires_grad for x in self.constants):
            return None
        (home,) = homes
        return home if home.type == "cuda" and home.type not in self.source else None

    def _place(self, leaves: Sequence[Any]) -> Any:
        """Return the GPU of a call if it is another one than at the import; else None."""
        for x in leaves if self._home is not None else ():
            if isinstance(x, torch.Tensor):
                return x.device if x.device != self._home and x.device.type == self._home.type else None
        return None

    def _constants(self, place: Any) -> tuple[Any, ...]:
        """Return the constants on a device; None for their own."""
        if place is None:
            return self.constants
        found = self._moved.get(place)
        if found is None:
            found = tuple(x.to(place) if x.dim() else x for x in self.constants)
            if not torch.compiler.is_compiling():
                self._moved[place] = found
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionPlan:
        """Return a copy that shares the constants, which are never written, and what is compiled."""
        _, fields = self.__reduce__()
        made = type(self)(*fields)
        made._compiled = self._compiled
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        fields = [getattr(self, name) for name in self.__dataclass_fields__ if name != "said"]
        return type(self), tuple(fields)

    def inputs(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Return the tensors to pass to the function for one call of the module.

        Args:
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Returns:
            The reason why the import does not hold for the call, or an empty string; and the tensors.
        """
        if (
            self._flat
            and not kwargs
            and len(args) == len(self.leaves)
            and all([isinstance(x, torch.Tensor) for x in args])
        ):
            leaves = list(args)
        else:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            if spec != self.spec:
                return "arguments of another structure", []
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            return "automatic casts", []
        tensors: list[Any] = []
        place = self._place(leaves)
        reason = self._unfit(leaves, place) or self._read(module, tensors, place)
        if reason:
            return reason, []
        tensors += leaves
        tensors += self._constants(place)
        if self.stops and torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors):
            return "gradients, which the module stops somewhere", []
        if self.written and not torch.compiler.is_compiling() and not self._apart(tensors):
            return "memory that is written and read under another name", []
        return "", [tensors[i] for i in self.feed]

    def _apart(self, tensors: Sequence[Any]) -> bool:
        """Return whether no written tensor overlaps another tensor, because the import does not know such aliases."""
        spans = {}
        for number in {*self.feed, *self.written}:
            x = tensors[number]
            if isinstance(x, torch.Tensor) and x.numel():
                reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
                spans[number] = (x.data_ptr(), x.data_ptr() + reach * x.element_size())
        pairs = ((spans[i], spans[j]) for i in self.written if i in spans for j in spans if i != j)
        return all(a[1] <= b[0] or b[1] <= a[0] for a, b in pairs)

    def _unfit(self, leaves: Sequence[Any], place: Any) -> str:
        for number, (value, wanted) in enumerate(zip(leaves, self.leaves, strict=True), 1):
            if isinstance(wanted, TensorForm):
                if not wanted.fits(value, place):
                    return f"argument {number}: expected {wanted.on(place)}, got {_describe_value(value)}"
            elif type(value) is not type(wanted) or value != wanted:
                return f"argument {number}: expected {wanted!r}, got {_describe_value(value)}"
        return ""

    def _read(self, module: Any, tensors: list[Any], place: Any) -> str:
        """Append the parameters and buffers of a module; return the reason if it has changed since the import."""
        found = [module]
        if module.training is not self.parts[0].training:
            return _training_mode_reason("the module", module.training)
        for part in self.parts[1:]:
            inner = found[part.parent]._modules.get(part.name)
            if type(inner) is not part.kind:
                return f"{part.path}: expected {part.kind.__name__}, got {type(inner).__name__}"
            if inner.training is not part.training:
                return _training_mode_reason(part.path, inner.training)
            if has_hooks(inner):
                return f"{part.path}: a hook"
            found.append(inner)
        for item in self.state:
            owner = found[item.part]
            value = (owner._parameters if item.parameter else owner._buffers).get(item.name)
            if not item.form.fits(value, place):
                where = f"{self.parts[item.part].path}.{item.name}".lstrip(".")
                return f"{where}: expected {item.form.on(place)}, got {_describe_value(value)}"
            if item.same < len(tensors) and value is not tensors[item.same]:
                return f"{self.parts[item.part].path}.{item.name}: it was tied to another parameter"
            tensors.append(value)
        return ""

    def compile_in(self, mode: str, compiled: Callable[..., Any], tensors: Sequence[Any]) -> None:
        """Compile the function in a mode from now on.

        Args:
            mode: The mode.
            compiled: The function, already compiled in it for the device of these tensors.
            tensors: From ``inputs``.
        """
        self.mode = mode
        self._compiled[_device_of(tensors)] = compiled

    def _compile(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled function for the device of these tensors, which is compiled in the first call there."""
        device = _device_of(tensors)
        if device not in self._compiled:
            graph = torch.fx.symbolic_trace(self._function)
            with torch.no_grad():
                self._compiled[device] = inductor_compiler(self.mode, **NO_CUDA_GRAPHS)(graph, list(tensors))
        return self._compiled[device]

    def run(self, tensors: Sequence[Any]) -> Any:
        """Compute and return the result of the module.

        Args:
            tensors: From ``inputs``.
        """
        function = self._function if self.mode is None or _is_recorded(tensors) else self._compile(tensors)
        found = function(*tensors)
        return found[0] if self._single else pytree.tree_unflatten(found, self.out)


def _is_recorded(tensors: Sequence[Any]) -> bool:
    """Return whether a call is traced by a compiler, or records gradients."""
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


@dataclass(frozen=True)
class CallFrame:
    """A module's calls as they were at its import: everything of a plan that does not depend on its operators.

    A plan with other operators can be made of it later, whatever has become of the module. No tensor of a call is kept.

    Attributes:
        traced: The import.
        parts: The submodules, each behind its parent.
        state: Parameters and buffers that the module reads, and further names of these.
        numbers: Number in ``state`` of each placeholder that is a parameter or buffer.
        spec: Pytree structure of args and kwargs.
        leaves: As in ``FunctionPlan``.
    """

    traced: ModuleTrace
    parts: tuple[ImportedSubmodule, ...]
    state: tuple[StateTensor, ...]
    numbers: Mapping[str, int]
    spec: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        module: Any,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        traced: ModuleTrace,
        forms: Mapping[int, TensorForm] | None = None,
    ) -> CallFrame:
        """Return the frame of a module and a call.

        Args:
            module: The module.
            given: Its arguments at the import.
            traced: Its import.
            forms: Required forms of arguments that may differ from the import's, by number.
        """
        imported = traced.imported
        parts, numbers = _parts(module)
        values, spec = pytree.tree_flatten(given)
        own = dict(forms or {})
        leaves = tuple(own.get(i, TensorForm.of(x)) if isinstance(x, torch.Tensor) else x for i, x in enumerate(values))
        owned = _StateCollector(module, numbers)
        found = {}
        for node in imported.module.graph.nodes:
            kind, _, path = imported.arguments.get(node.name, "").partition(" ")
            if node.op == "placeholder" and kind in ("parameter", "buffer"):
                found[node.name] = owned.add(path)
        return cls(traced, parts, owned.tied(), found, spec, leaves)

    def plan_with(
        self, operators: Mapping[int, TorchOperator], *, guard: bool = False, all_constants: bool = False
    ) -> FunctionPlan:
        """Return the plan of the module with some regions computed by operators.

        Args:
            operators: Operators by the numbers of regions.
            guard: Whether the function checks the conditions of these.
            all_constants: As for ``rewrite``.
        """
        chosen = {number: found.overload for number, found in operators.items()}
        graph = rewrite(self.traced.imported, chosen, guard=guard, all_constants=all_constants)
        return self.plan(graph, tuple(dict.fromkeys(operators.values())), guarded=guard)

    def plan(self, graph: Graph, operators: Sequence[Any], *, guarded: bool = False) -> FunctionPlan:
        """Return the plan of a rewritten graph.

        Args:
            graph: The rewritten graph, see ``rewrite``.
            operators: The operators that the graph calls.
            guarded: Whether the graph checks the conditions of these.
        """
        imported, state, leaves = self.traced.imported, len(self.state), len(self.leaves)
        devices = {leaf.device for leaf in self.leaves if isinstance(leaf, TensorForm)}
        constants: list[Any] = []
        feed: dict[str, int] = {}
        count = 0
        for name in (node.name for node in graph.nodes if node.op == "placeholder"):
            if name in self.numbers:
                feed[name] = self.numbers[name]
            elif imported.arguments.get(name) == "constant":
                feed[name] = state + leaves + len(constants)
                constants.append(constant_on(imported.given[name], devices))
            else:
                feed[name] = state + count
                count += 1
        assert count == leaves, "torch.export has a placeholder for each argument"
        written = tuple(feed[name] for name in mutated_inputs(imported))
        _use_view_methods(graph)
        code = graph.python_code("self")
        text = code.src.replace("def forward(self, ", "def forward(", 1)
        text = text.replace("def forward(self)", "def forward()", 1)
        names = {name: f"={v.__name__}" if isinstance(v, ModuleType) else v for name, v in code.globals.items()}
        fixed = (tuple(operators), self.parts, self.state, self.spec, self.leaves, tuple(constants))
        read = (tuple(feed.values()), written)
        return FunctionPlan(text, names, *fixed, *read, self.traced.out, self.traced.stops, guarded)


def plan_module(
    module: Any,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    traced: ModuleTrace,
    graph: Graph,
    operators: Sequence[Any],
    forms: Mapping[int, TensorForm] | None = None,
) -> FunctionPlan:
    """Return the plan of a rewritten graph for calls like one; see ``CallFrame``."""
    return CallFrame.of(module, given, traced, forms).plan(graph, operators)


class _StateCollector:
    """Collector of the parameters and buffers that a plan reads."""

    def __init__(self, module: Any, parts: Mapping[str, int]) -> None:
        self._parts = parts
        self._tensors = dict(module.named_parameters(remove_duplicate=False))
        self._parameters = set(self._tensors)
        self._tensors.update(module.named_buffers(remove_duplicate=False))
        self._found: dict[str, StateTensor] = {}
        self._first: dict[int, int] = {}

    def add(self, path: str) -> int:
        """Return the number of a parameter or buffer, which is added if it is new."""
        tensor, number = self._tensors[path], len(self._found)
        owner, _, name = path.rpartition(".")
        same = self._first.setdefault(id(tensor), number)
        self._found[path] = StateTensor(self._parts[owner], name, path in self._parameters, TensorForm.of(tensor), same)
        return number

    def tied(self) -> tuple[StateTensor, ...]:
        """Return all entries, with further names of the same tensors, because the import reads tied tensors as one."""
        for path, tensor in self._tensors.items():
            if path not in self._found and id(tensor) in self._first:
                self.add(path)
        return tuple(self._found.values())


def _use_view_methods(graph: Graph) -> None:
    """Replace view operators of a graph by method calls, which are faster."""
    for node in list(graph.nodes):
        method = _METHODS.get(node.target) if node.op == "call_function" and not node.kwargs else None
        if method is not None:
            node.op, node.target = "call_method", method


def has_hooks(module: Any) -> bool:
    """Return whether a module has hooks, which a graph does not contain."""
    return any(getattr(module, name) for name in _HOOKS)


def _parts(module: Any) -> tuple[tuple[ImportedSubmodule, ...], dict[str, int]]:
    parts: list[ImportedSubmodule] = []
    numbers: dict[str, int] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        parent, _, name = path.rpartition(".")
        numbers[path] = len(parts)
        parts.append(ImportedSubmodule(numbers.get(parent, 0) if path else 0, name, path, type(inner), inner.training))
    return tuple(parts), numbers


def constant_on(tensor: Any, devices: Collection[Any]) -> Any:
    """Return a constant on the device of the arguments; the import creates its own constants on the CPU.

    Args:
        tensor: The constant.
        devices: Devices of the arguments.
    """
    if tensor.requires_grad:  # a user's tensor that the module reads by name, with gradient
        return tensor
    moved = len(devices) == 1 and tensor.dim() > 0 and tensor.device.type == "cpu"
    return tensor.to(next(iter(devices))) if moved else tensor


def _device_of(tensors: Sequence[Any]) -> Any:
    """Return the device of the first tensor that has dims; None if there is none."""
    return next((x.device for x in tensors if isinstance(x, torch.Tensor) and x.dim()), None)


def _resolve_name(value: Any) -> Any:
    """Return the value of a name in the source text; modules are stored by name because they cannot be pickled."""
    return import_module(value[1:]) if isinstance(value, str) and value.startswith("=") else value


def _training_mode_reason(where: str, training: bool) -> str:
    return f"{where} is {'training' if training else 'not training'}, other than at the import"


def _describe_value(value: Any) -> str:
    return str(TensorForm.of(value)) if isinstance(value, torch.Tensor) else type(value).__name__


__all__ = [
    "CallFrame",
    "FunctionPlan",
    "ImportedSubmodule",
    "StateTensor",
    "TensorForm",
    "constant_on",
    "has_hooks",
    "plan_module",
]
