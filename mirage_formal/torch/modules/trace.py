"""Import of a module's forward, with the structure of its result and its use of gradients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from mirage_formal.torch.capture import CapturedGraph, _wrap_function, capture
from mirage_formal.torch.convert import import_captured
from mirage_formal.torch.deadline import NO_DEADLINE, Deadline
from mirage_formal.torch.import_result import Imported

_DETACHED: Final = frozenset({torch.Tensor.detach, torch.Tensor.detach_, torch.detach, torch.Tensor.data.__get__})


@dataclass(frozen=True, slots=True)
class ModuleTrace:
    """A module's forward as programs.

    Attributes:
        imported: The programs.
        out: Pytree structure of its return value.
        stops: Whether it stops gradients: by ``detach``, ``no_grad`` or an ``autograd.Function``.
    """

    imported: Imported
    out: Any
    stops: bool


class FunctionModule(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """A function of tensors as a module.

    Args:
        function: The function.
    """

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with these arguments and return its result."""
        return self.function(*args, **kwargs)


def trace_module(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rounding: str = "fused",
    deadline: Deadline = NO_DEADLINE,
) -> ModuleTrace:
    """Import a module; hooks of the module itself are not part of it.

    Args:
        module: The module.
        args: Its arguments.
        kwargs: Further arguments by name.
        rounding: As for ``from_torch``.
        deadline: Deadline of the import.

    Raises:
        UnsupportedError: torch.export has no graph of it.
        DeadlineReachedError: The deadline has come before the import was complete.
    """
    captured, out, stops = capture_with_structure(module, args, kwargs, None, deadline)
    deadline.check()
    return ModuleTrace(import_captured(captured, rounding, deadline), out, stops)


def capture_with_structure(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    varying: Any = None,
    deadline: Deadline = NO_DEADLINE,
) -> tuple[CapturedGraph, Any, bool]:
    """Return the graph of a module, the structure of its return value, and whether it stops gradients.

    Args:
        module: The module.
        args: Its arguments.
        kwargs: Further arguments by name.
        varying: Dynamic dims of the arguments, as torch.export's dynamic_shapes.
        deadline: Deadline, which is looked at before each torch function that the module calls.

    Raises:
        UnsupportedError: torch.export has no graph of it.
        DeadlineReachedError: The deadline has come.
    """
    seen: list[tuple[Any, bool]] = []
    # Torch keeps the source lines of functions named forward.
    source = _wrap_function(module.function) if isinstance(module, FunctionModule) else module
    captured = capture(_record_structure(source, seen, deadline), args, kwargs, "optimize", varying)
    return captured, seen[-1][0], any(stop for _, stop in seen)


def _record_structure(module: Any, seen: list[tuple[Any, bool]], deadline: Deadline) -> Any:
    """Return the module without its own hooks, which records its result's structure and stopped gradients in ``seen``.

    It shares the module's state, so parameters keep their names.
    """
    base = type(module)

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = (*self.parameters(), *pytree.tree_leaves((args, kwargs)))
        with ExitStack() as stack:
            mode = stack.enter_context(_GradientStopDetector(tensors, deadline))
            for owner, name, value in mode.watched():
                stack.enter_context(patch.object(owner, name, value))
            result = base.forward(self, *args, **kwargs)
        seen.append((pytree.tree_structure(result), mode.stopped))
        return result

    found: Any = object.__new__(type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__}))
    hooks = {name: type(value)() for name, value in vars(module).items() if name.endswith("_hooks")}
    vars(found).update(vars(module), **hooks)
    return found


class _GradientStopDetector(TorchFunctionMode):  # type: ignore[misc]  # torch has no types where it is not installed
    """Detector of stopped gradients during the import.

    The import runs without gradients, so that the graph has no trace of ``no_grad``; a program would let them through.
    """

    def __init__(self, tensors: Sequence[Any], deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline
        self.stopped = False
        self._without = 0
        # Tensors are kept, so that their identities are.
        self._known = {id(x): x for x in tensors if isinstance(x, torch.Tensor) and _differentiable(x)}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._deadline.check()
        if func is torch._C._set_grad_enabled:
            # Not by no_grad, see below: how long it holds is not known.
            self._without += 1
            return func(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        if any(id(x) in self._known for x in pytree.tree_leaves((args, kwargs or {}))):
            made = [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor) and _differentiable(x)]
            self._known.update((id(x), x) for x in made)
            self.stopped |= bool(made) and (func in _DETACHED or self._without > 0)
        return found

    def watched(self) -> list[tuple[Any, str, Any]]:
        """Return the attributes of torch's classes that are patched during the import, with their replacements."""

        def enter(_: Any) -> None:
            self._without += 1

        def leave(*_: Any) -> None:
            self._without -= 1

        own = inspect.getattr_static(torch.autograd.Function, "apply")

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            self.stopped = True  # a graph has what it computes, but not its own gradient
            return own.__get__(None, cls)(*args, **kwargs)

        return [
            (torch.no_grad, "__enter__", enter),
            (torch.no_grad, "__exit__", leave),
            (torch.inference_mode, "__enter__", enter),
            (torch.inference_mode, "__exit__", leave),
            (torch.autograd.Function, "apply", classmethod(apply)),
        ]


def _differentiable(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


__all__ = ["FunctionModule", "ModuleTrace", "capture_with_structure", "trace_module"]
