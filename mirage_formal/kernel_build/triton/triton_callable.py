"""Callable that runs the Triton file of a program on torch tensors on a GPU."""

from __future__ import annotations

import importlib.util
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mirage_formal.codegen.executable import Executable
from mirage_formal.device.launch import Optimized, TensorError
from mirage_formal.device.tensors import TensorLibrary, adapter
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.resources import install_command

_KIND = "expected torch tensors on a GPU with the back end triton"


class TritonOptimized(Optimized):
    """A program as a callable that runs its Triton file.

    Tensors are checked and outputs made as with CUDA C++ (``device.launch.Optimized``). Without a GPU the reference
    semantics compute it, as there.

    Args:
        program: The program.
        write: Function that returns the file's text; called at the first call on a GPU.
        otherwise: Callable for tensors that are not torch's on a GPU; None refuses them.
    """

    def __init__(self, program: KernelGraph, write: Callable[[], str], otherwise: Optimized | None = None) -> None:
        super().__init__(program, _raise_no_fallback)
        self._write, self._otherwise = write, otherwise
        self._module: ModuleType | None = None
        self._loading = threading.Lock()

    def prepare(self, device: int | None = None) -> None:
        """Write and load the file, and where torch has a GPU run it once, so that Triton compiles its functions.

        Raises:
            UnsupportedError: torch or Triton is not installed, or no candidate has a Triton file.
        """
        module, torch = self._file(), import_module("torch")
        if not torch.cuda.is_available():
            return
        with torch.cuda.device(torch.cuda.current_device() if device is None else device):
            given = [torch.empty_strided(*one[:2], dtype=one[2], device="cuda") for one in module.INPUTS]
            module.run(*given)  # uninitialized: no address depends on the values

    def _file(self) -> ModuleType:
        with self._loading:
            if self._module is None:
                self._module = load_module(self._write())
            return self._module

    def _on_device(self, given: Sequence[Any], kind: TensorLibrary, out: list[Any] | None) -> list[Any]:
        if kind is not TensorLibrary.TORCH and self._otherwise is not None:
            return self._otherwise._on_device(given, kind, out)
        if kind is not TensorLibrary.TORCH:
            raise TensorError(f"{_KIND}, got a {kind.value}", where="inputs", hint='backend="cuda" takes it')
        read = adapter(kind)
        device = read.device(given[0])
        sources = read.addresses(given, read.specs(self._given), device)
        if out is not None:
            targets = read.addresses(out, read.specs(self._outputs), device)
            self._separate(sources, targets)
        module = self._file()
        with import_module("torch").cuda.device(device):
            found = module.run(*given)
        results = list(found) if isinstance(found, tuple) else [found]
        for value, result in zip(out or (), results, strict=False):
            value.copy_(result)
        return results if out is None else out

    def _copied(self, bits: Sequence[Any]) -> list[Any]:
        if self._otherwise is not None:
            return self._otherwise._copied(bits)
        raise TensorError(f"{_KIND}, got some in host memory", where="inputs", hint="move them there")


def load_module(text: str) -> ModuleType:
    """Load a Triton file as a module from a temporary file, because Triton reads the source of functions from a file.

    Raises:
        UnsupportedError: torch or Triton is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="mirage_formal-") as place:
        path = Path(place) / "program.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("mirage_formal_triton_program", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            what = f"expected torch and Triton, got: {error}"
            raise UnsupportedError(what, where="triton", hint=install_command("triton")) from None
        return module


def _raise_no_fallback(arch: str) -> Executable:
    raise AssertionError("calls of a Triton file have no executable")
