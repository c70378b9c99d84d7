"""Torch operators from stored evidence of candidates."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirage_formal.records import GRAPH_FILE, RUN_FILE, RunRecord, decode, read_file
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.run.result_cache.loading import load
from mirage_formal.run.results.result import Result
from mirage_formal.support.errors import RunError

if TYPE_CHECKING:
    from mirage_formal.torch.modules.custom_operators import TorchOperator

_HINT: Final = "give the directory of a candidate, or that of a whole program's search"


def operator_at(path: str | PathLike[str], *, accept_kernels: str = "proved") -> TorchOperator:
    """Return the torch operator of a candidate, as in ``torch.ops.mirage_formal``; nothing is searched.

    Args:
        path: Directory of a candidate (``candidates/NNN-<id>`` of a run), or of a whole program's search, whose best
            cover is taken.
        accept_kernels: See ``mirage_formal.load``.

    Raises:
        RunError: There is neither.
        MirageError: The evidence does not show that the candidate computes its program.
    """
    from mirage_formal.torch.modules.custom_operators import torch_operator

    return torch_operator(result_at(path, accept_kernels=accept_kernels))


def result_at(path: str | PathLike[str], *, accept_kernels: str = "proved") -> Result:
    """Return the candidate of a directory; see ``operator_at`` and ``mirage_formal.load``."""
    root = Path(path)
    if (root / WHOLE_FILE).is_file():
        return load(root, accept_kernels=accept_kernels)[0]
    if not (root / GRAPH_FILE).is_file():
        raise RunError("expected evidence of a candidate, got none", where=str(root), hint=_HINT)
    run = root.parent.parent / RUN_FILE  # a candidate's own directory does not name its target
    target = decode(read_file(run), RunRecord, str(run)).identity.target
    return load(root, target=target, accept_kernels=accept_kernels)[0]


__all__ = ["operator_at", "result_at"]
