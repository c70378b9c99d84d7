"""Importing a module's forward, with what a call must look like for the import to hold."""

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

from mirage_formal.torch.capture import Captured, _module, capture
from mirage_formal.torch.convert import import_captured
from mirage_formal.torch.import_result import Imported

_DETACHED: Final = frozenset({torch.Tensor.detach, torch.Tensor.detach_, torch.detach, torch.Tensor.data.__get__})


@dataclass(frozen=True, slots=True)
class Traced:
    """A module's forward as programs.

    Attributes:
        imported: The programs.
        out: The structure of what it returns.
        stops: Whether it keeps gradients from something: by ``detach``, ``no_grad`` or an ``autograd.Function``.
    """

    imported: Imported
    out: Any
    stops: bool


class Function(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
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


def trace(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], rounding: str = "fused") -> Traced:
    """Import a module; hooks of the module itself are not part of it.

    Args:
        module: The module.
        args: Its arguments.
        kwargs: Further arguments by name.
        rounding: As for ``from_torch``.

    Raises:
        UnsupportedError: torch.export has no graph of it.
    """
    captured, out, stops = captured_with(module, args, kwargs)
    return Traced(import_captured(captured, rounding), out, stops)


def captured_with(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], varying: Any = None
) -> tuple[Captured, Any, bool]:
    """The graph of a module, the structure of what it returns, and whether it keeps gradients from something.

    Args:
        module: The module.
        args: Its arguments.
        kwargs: Further arguments by name.
        varying: Which extents are not those of the arguments, as torch.export takes it.

    Raises:
        UnsupportedError: torch.export has no graph of it.
    """
    seen: list[tuple[Any, bool]] = []
    # Torch keeps the lines of functions that are called forward.
    source = _module(module.function) if isinstance(module, Function) else module
    captured = capture(_recorded(source, seen), args, kwargs, "optimize", varying)
    return captured, seen[-1][0], any(stop for _, stop in seen)


def _recorded(module: Any, seen: list[tuple[Any, bool]]) -> Any:
    """The module without hooks of its own, which tells the structure of its result and whether gradients are stopped.

    It has the module's state and not a state of its own, so parameters keep their names.
    """
    base = type(module)

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = (*self.parameters(), *pytree.tree_leaves((args, kwargs)))
        with ExitStack() as stack:
            mode = stack.enter_context(_Gradients(tensors))
            for owner, name, value in mode.watched():
                stack.enter_context(patch.object(owner, name, value))
            result = base.forward(self, *args, **kwargs)
        seen.append((pytree.tree_structure(result), mode.stopped))
        return result

    found: Any = object.__new__(type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__}))
    hooks = {name: type(value)() for name, value in vars(module).items() if name.endswith("_hooks")}
    vars(found).update(vars(module), **hooks)
    return found


class _Gradients(TorchFunctionMode):  # type: ignore[misc]  # torch has no types where it is not installed
    """Sees whether something that may need a gradient is kept from it.

    The import is without gradients, so that the graph has no trace of ``no_grad``; a program would let them through.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self.stopped = False
        self._without = 0
        # Tensors are kept, so that their identities are.
        self._known = {id(x): x for x in tensors if isinstance(x, torch.Tensor) and _differentiable(x)}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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
        """Attributes of torch's classes, and what stands for them during the import, in which gradients are off."""

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


__all__ = ["Function", "Traced", "captured_with", "trace"]
