"""The modules of examples/torch, with sizes, an element type and a device of the caller's; nothing is optimized."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import torch

import mirage_formal as mf
from tests.kit.paths import REPOSITORY


class _Taken(Exception):
    """The example has made its module."""


def taken(name: str, options: Sequence[str] = (), *, dtype: Any = None, device: str = "cpu") -> tuple[Any, Any]:
    """The module that an example makes, and the arguments that it would be optimized for.

    The file runs as it is, up to its call of ``optimize``: classes, weights and arguments are its own.

    Args:
        name: The example's name.
        options: Its command line.
        dtype: The element type of what it makes; its own, if left out.
        device: Where it makes it; "meta" needs no memory.
    """
    made: list[tuple[Any, Any]] = []

    def optimize(module: Any, args: Any, **_: Any) -> Any:
        made.append((module, args))
        raise _Taken

    path = REPOSITORY / "examples" / "torch" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # classes are pickled by their module
    own, line, default = mf.optimize, sys.argv, torch.get_default_dtype()
    vars(mf)["optimize"], sys.argv = optimize, [str(path), *options]
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            spec.loader.exec_module(module)
    except _Taken:
        pass
    finally:
        vars(mf)["optimize"], sys.argv = own, line
        torch.set_default_dtype(default)
    (found,) = made
    return found


__all__ = ["taken"]
