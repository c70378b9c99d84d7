"""Arrays of the command ``run``: read from a NumPy archive, used as inputs, and written to an archive."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mirage_formal.cli.graphs.subject import LoadedGraph
from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.device.launch import NoDeviceWarning, Optimized
from mirage_formal.device.runtime import arch_of, current_device, device_count, device_name
from mirage_formal.device.tensors import numpy_dtype
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import write_atomic
from mirage_formal.run.settings import display_path
from mirage_formal.support.errors import FormatError, RunError, UnsupportedError

#: Standard deviation of numbers that are drawn where no inputs are given.
_SCALE = 1.0


def read_arrays(graph: KernelGraph, path: Path | None, seed: int) -> list[Any]:
    """Return the inputs of a graph, from a file or random.

    Args:
        graph: The graph.
        path: A NumPy archive; None draws normal numbers.
        seed: Seed of the random numbers.

    Raises:
        FormatError: It is no archive, or does not have the graph's inputs.
    """
    if path is None:
        drawn = draw_all(graph, seed, _SCALE)
        return [
            np.asarray(array, dtype=numpy_dtype(item.tensor.dtype))
            for array, item in zip(drawn, graph.inputs, strict=True)
        ]
    where = display_path(path)
    names = [item.name or f"x{number}" for number, item in enumerate(graph.inputs)]
    wanted = ", ".join(f"{name}{list(item.tensor.shape)}" for name, item in zip(names, graph.inputs, strict=True))
    hint = f"numpy.savez(FILE, ...) with {wanted}"
    if not path.is_file():
        got = "a directory" if path.is_dir() else "nothing there"
        raise FormatError(f"expected a NumPy archive (.npz), got {got}", where=where, hint=hint)
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files if name in names}
            others = sorted(set(archive.files) - set(names))
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError, AttributeError, TypeError) as error:
        what = f"expected a NumPy archive (.npz) of numbers, got {type(error).__name__}: {str(error)[:200]}"
        raise FormatError(what, where=where, hint=hint) from None
    if missing := [name for name in names if name not in found]:
        got = ", ".join(others) or "nothing else"
        raise FormatError(f"expected an array {missing[0]}, got {got}", where=where, hint=hint)
    return [found[name] for name in names]


def compute_outputs(one: LoadedGraph, arrays: Sequence[Any], on: str) -> tuple[str, list[Any]]:
    """Compute the outputs of a graph; return the name of the device or semantics, and the outputs.

    Args:
        one: The graph.
        arrays: Its inputs.
        on: "gpu", "reference", or "auto": the GPU where there is one.

    Raises:
        UnsupportedError: There is no GPU, though it was asked for.
        MirageError: An input does not fit.
    """
    there = bool(device_count())
    if on == "gpu" and not there:
        hint = "--on reference computes by the reference semantics; mirage-formal tools doctor gpu says what is missing"
        raise UnsupportedError("expected a GPU and CuPy, got none", where="--on", hint=hint)
    if there and on != "reference":
        kernels = _kernels(one)
        return f"kernels on {device_name()}", list(kernels(list(arrays)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoDeviceWarning)  # it is said, and not as a warning
        return "the reference semantics in float64", list(_Reference(one.graph)(list(arrays)))


class _Reference(Optimized):
    """A graph as a callable that always uses the reference semantics."""

    def __init__(self, graph: KernelGraph) -> None:
        super().__init__(graph, _none)

    def _copied(self, bits: Sequence[Any]) -> list[Any]:
        return self._reference(bits)


def _none(arch: str) -> Any:
    raise AssertionError("the reference semantics need no kernels")


def _kernels(one: LoadedGraph) -> Optimized:
    if one.kernels is not None:
        from mirage_formal.run.result_cache.stored_kernel_check import stored_kernels

        return Optimized.of(stored_kernels(one.kernels, arch_of(current_device())).executable)
    from mirage_formal.kernel_build.compile_unsearched import make_callable

    return make_callable(one.graph)


def write_arrays(path: Path, results: Sequence[Any]) -> None:
    """Write outputs as a NumPy archive; bfloat16, which such a file cannot name, as float32.

    Raises:
        RunError: The place is a directory.
    """
    if path.is_dir():
        what = "expected a file to write, got a directory"
        raise RunError(what, where=display_path(path), hint="name a file, as in --out outputs.npz")
    arrays = {f"output{i}": _plain(array) for i, array in enumerate(results)}
    data = io.BytesIO()
    np.savez(data, **arrays)
    write_atomic(path, data.getvalue())


def array_summary(array: Any) -> dict[str, Any]:
    """Return an output's type, shape and statistics."""
    values = _plain(array).astype(np.float64)
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "least": float(values.min()),
        "most": float(values.max()),
        "finite": bool(np.isfinite(values).all()),
    }


def _plain(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.kind == "V" or str(array.dtype) == "bfloat16" else array


__all__ = ["array_summary", "compute_outputs", "read_arrays", "write_arrays"]
