"""Compilation of Triton files before they are run, by processes that do not use the GPU.

The results go to Triton's own cache on disk, under the key that a launch looks up. To compile, a file's ``run`` is
called with tensors without memory; its functions are compiled as for a launch, and not launched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from mirage_formal.kernel_build.triton.triton_callable import load_module
from mirage_formal.support.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Task:
    """Task to compile a Triton file.

    Attributes:
        text: Text of the file.
        arch: The architecture, as in "sm_90a".
    """

    text: str
    arch: str


def compile_file(task: Task) -> str:
    """Compile the functions of a file, and return an error message, or an empty string.

    An error has no effect on the choice of files: a later launch compiles again, or fails.
    """
    try:
        torch, driver = import_module("torch"), import_module("triton").runtime.driver
        driver.set_active(_CompileOnlyDriver(task.arch))
        module = load_module(task.text)
        for name, value in list(vars(module).items()):
            if re.fullmatch(r"kernel\d+", name):
                setattr(module, name, _CompileOnlyFunction(value))
        module.run(*_fake_inputs(module, torch))
    except Exception as error:  # a compiler raises any error
        lines = [type(error).__name__, *str(error).strip().splitlines()]
        return f"it does not compile: {' '.join([*lines[:2], *lines[2:][-1:]])}"[:500]
    return ""


def _fake_inputs(module: ModuleType, torch: Any) -> list[Any]:
    """Return tensors without memory that have the declared shapes, strides and types of the inputs."""
    return [torch.empty_strided(*one[:2], dtype=one[2], device="meta") for one in module.INPUTS]


class _CompileOnlyFunction:
    """A Triton function that is compiled where it would be launched."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given, **options: self._function.run(*given, grid=grid, warmup=True, **options)


class _CompileOnlyDriver:
    """Stand-in for Triton's GPU driver while it compiles for a given architecture."""

    def __init__(self, arch: str) -> None:
        found = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
        if found is None:
            raise UnsupportedError(f"expected an architecture such as sm_90a, got {arch}", where="triton")
        self._target = import_module("triton.backends.compiler").GPUTarget("cuda", int(found[1]), 32)

    def get_current_target(self) -> Any:
        """Return the GPU that is compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """Return a device number; any number serves a compilation."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return a stream number; nothing is launched on it."""
        return 0


__all__ = ["Task", "compile_file"]
