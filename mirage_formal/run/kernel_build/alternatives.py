"""Candidates of a search as users hold them: the first of which there are kernels, or a Triton file, is run."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.device.launch import Optimized
from mirage_formal.errors import UnsupportedError
from mirage_formal.graph.formats.json import decode as graph_of
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernels.target import Target
from mirage_formal.run.kernel_build.build import KernelWarning, build
from mirage_formal.run.kernel_build.values import Built, KernelRefused

if TYPE_CHECKING:
    from mirage_formal.run.kernel_build.triton.program import TritonProgram

#: Name of the program itself behind the candidates.
UNFUSED: Final = "unfused"


class Alternatives:
    """Candidates, the preferred one first, of which the first that has kernels is run.

    Behind them stands the program itself, a kernel for each of its operators: what cannot be fused is still computed.

    Args:
        candidates: Name and encoded µGraph (graph/formats/json) of each.
        program: The program.
        target: What kernels are planned for.
    """

    def __init__(self, candidates: Sequence[tuple[str, bytes]], program: KernelGraph, target: Target) -> None:
        self._candidates: tuple[tuple[str, bytes], ...] = (*candidates, (UNFUSED, encode(program)))
        self._program = program
        self._target = target
        self._built: dict[tuple[str, tuple[str, ...]], Built] = {}
        self._file: str | None = None
        self._lock = threading.RLock()
        #: The program as the first of them that has kernels computes it.
        self.optimized: Final = Optimized(program, lambda arch: self.built((arch,)).executable)

    @cached_property
    def in_triton(self) -> Optimized:
        """The program as the Triton file computes it."""
        from mirage_formal.run.kernel_build.triton.calls import TritonOptimized

        otherwise = None if self._file is None else self.optimized
        return TritonOptimized(self._program, self.triton_source, otherwise)

    def triton_source(self) -> str:
        """The text of the Triton file that was measured, or else of the first candidate that has one."""
        return self.triton().code if self._file is None else self._file

    def triton(self) -> TritonProgram:
        """The Triton file of the first candidate that has one; see ``run.kernel_build.triton.first_program``."""
        from mirage_formal.run.kernel_build.triton.program import first_program

        return first_program([(n, graph_of(data)) for n, data in self._candidates], self._program, self._target)

    def __reduce__(self) -> tuple[Any, ...]:
        """µGraphs are copied and pickled; kernels are built again where they are wanted."""
        return _these, (self._candidates, self._program, self._target, self._file)

    def first(self) -> Alternatives:
        """The first candidate without the others, and what is built of it."""
        found = _these(self._candidates[:1], self._program, self._target, self._file)
        with self._lock:
            found._built |= {key: made for key, made in self._built.items() if key[0] == self._candidates[0][0]}
        return found

    def holding(self, built: Built, archs: tuple[str, ...]) -> Alternatives:
        """The first candidate without the others, with these kernels."""
        found = self.first()
        with found._lock:
            found._built = {(found._candidates[0][0], archs): built, (found._candidates[0][0], ()): built}
        return found

    def in_file(self, text: str) -> Alternatives:
        """The first candidate without the others, with the Triton file that was measured of it."""
        found = self.first()
        found._file = text
        return found

    def own(self, archs: tuple[str, ...] = (), position: int = 0) -> Built:
        """The kernels of one candidate, built once.

        Raises:
            KernelRefused: It has none that may run.
        """
        name, data = self._candidates[position]
        with self._lock:
            if (name, archs) not in self._built:
                made = self._built[name, archs] = build(graph_of(data), self._program, self._target, archs)
                if made.stable.note:
                    warnings.warn(f"candidate {name}: {made.stable.note}", KernelWarning, stacklevel=3)
            return self._built[name, archs]

    def built(self, archs: tuple[str, ...] = ()) -> Built:
        """The kernels of the first candidate that has any; warns about those that it passes over.

        Raises:
            UnsupportedError: None has.
        """
        reasons: list[str] = []
        for position, (name, _) in enumerate(self._candidates):
            try:
                return self.own(archs, position)
            except KernelRefused as error:
                reasons.append(f"candidate {name}: {error}")
                text = f"candidate {name} is passed over, the next one takes its place: {error}"
                warnings.warn(text, KernelWarning, stacklevel=3)
        what = f"expected a candidate whose kernels may run, got none: {'; '.join(reasons) or 'no candidate'}"
        raise UnsupportedError(what, where="kernels", hint="search again with another space or more candidates")


def _these(
    candidates: tuple[tuple[str, bytes], ...], program: KernelGraph, target: Target, file: str | None = None
) -> Alternatives:
    """Exactly these candidates, without the program itself behind them, and the Triton file of the first, if any."""
    found = Alternatives((), program, target)
    found._candidates, found._file = candidates, file
    return found


__all__ = ["UNFUSED", "Alternatives"]
