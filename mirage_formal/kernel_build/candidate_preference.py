"""Candidates of a search result in order of preference; a call runs the first one that has kernels or a Triton file."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.codegen.target import Target
from mirage_formal.device.launch import Optimized
from mirage_formal.graph.formats.json import decode_graph as graph_of
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import Acceptance, BuiltKernels, KernelRejected, describe_claim
from mirage_formal.support.errors import UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.kernel_build.triton.triton_generator import TritonProgram

#: Name of the unfused program, the last alternative.
UNFUSED: Final = "unfused"


class Alternatives:
    """Candidates in order of preference; a call runs the first that has kernels that may run.

    The last alternative is the program itself, with one kernel for each operator, so that a program without fused
    kernels still runs.

    Args:
        candidates: Name and encoded µGraph (graph/formats/json) of each.
        program: The program.
        target: Target that kernels are planned for.
        accept: Whether kernels may run that are not proved to realize their operators.
    """

    def __init__(
        self,
        candidates: Sequence[tuple[str, bytes]],
        program: KernelGraph,
        target: Target,
        accept: Acceptance = Acceptance.PROVED,
    ) -> None:
        self._candidates: tuple[tuple[str, bytes], ...] = (*candidates, (UNFUSED, encode(program)))
        self._program = program
        self._target = target
        self._accept = accept
        self._running: BuiltKernels | None = None
        self._built: dict[tuple[str, tuple[str, ...]], BuiltKernels] = {}
        self._file: str | None = None
        self._lock = threading.RLock()
        #: The program as a callable that runs the first candidate with kernels.
        self.optimized: Final = Optimized(program, lambda arch: self.built((arch,)).executable)

    @cached_property
    def in_triton(self) -> Optimized:
        """The program as a callable that runs the Triton file."""
        from mirage_formal.kernel_build.triton.triton_callable import TritonOptimized

        otherwise = None if self._file is None else self.optimized
        return TritonOptimized(self._program, self.triton_source, otherwise)

    def triton_source(self) -> str:
        """Return the text of the measured Triton file, or else of the first candidate's that has one."""
        return self.triton().code if self._file is None else self._file

    def triton(self) -> TritonProgram:
        """Return the Triton file of the first candidate that has one; see ``kernel_build.triton.first_program``."""
        from mirage_formal.kernel_build.triton.triton_generator import first_program

        return first_program([(n, graph_of(data)) for n, data in self._candidates], self._program, self._target)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state for copy and pickle: µGraphs without kernels, which are built again on demand."""
        return _exact_alternatives, (self._candidates, self._program, self._target, self._file, self._accept)

    def first(self) -> Alternatives:
        """Return the first candidate alone, with the kernels that are built for it."""
        found = _exact_alternatives(self._candidates[:1], self._program, self._target, self._file, self._accept)
        with self._lock:
            found._built |= {key: made for key, made in self._built.items() if key[0] == self._candidates[0][0]}
        return found

    def accepting(self, accept: Acceptance) -> Alternatives:
        """Return the same candidates, with other kernels that calls may run; those that are built are kept."""
        found = _exact_alternatives(self._candidates, self._program, self._target, self._file, accept)
        with self._lock:
            found._built |= {key: made for key, made in self._built.items() if made.may_run(accept)}
        return found

    @property
    def accept(self) -> Acceptance:
        """Return the kernels that calls may run."""
        return self._accept

    @property
    def claim(self) -> str:
        """Return whether the kernels that calls run are proved to realize their operators; empty before any is built.

        See ``built_kernels.describe_claim``.
        """
        return "" if self._running is None else describe_claim(self._running)

    def holding(self, built: BuiltKernels, archs: tuple[str, ...]) -> Alternatives:
        """Return the first candidate alone, with these kernels."""
        found = self.first()
        with found._lock:
            found._built = {(found._candidates[0][0], archs): built, (found._candidates[0][0], ()): built}
        return found

    def in_file(self, text: str) -> Alternatives:
        """Return the first candidate alone, with its measured Triton file."""
        found = self.first()
        found._file = text
        return found

    def kernels_of(self, archs: tuple[str, ...] = (), position: int = 0) -> BuiltKernels:
        """Return the kernels of one candidate, built at the first call.

        Raises:
            KernelRejected: It has none that may run.
        """
        name, data = self._candidates[position]
        with self._lock:
            if (name, archs) not in self._built:
                from mirage_formal.kernel_build.build import (  # results without a call build nothing
                    KernelWarning,
                    build,
                )

                made = build(graph_of(data), self._program, self._target, archs, accept=self._accept)
                self._built[name, archs] = made
                for note in (made.stable.note, *made.tested):
                    if note:
                        warnings.warn(f"candidate {name}: {note}", KernelWarning, stacklevel=3)
            return self._built[name, archs]

    def built(self, archs: tuple[str, ...] = ()) -> BuiltKernels:
        """Return the kernels of the first candidate that has any; warn about the candidates before it.

        Raises:
            UnsupportedError: No candidate has kernels.
        """
        reasons: list[str] = []
        for position, (name, _) in enumerate(self._candidates):
            try:
                self._running = self.kernels_of(archs, position)
                return self._running
            except KernelRejected as error:
                reasons.append(f"candidate {name}: {error}")
                from mirage_formal.kernel_build.build import KernelWarning

                text = f"candidate {name} is passed over, the next one takes its place: {error}"
                warnings.warn(text, KernelWarning, stacklevel=3)
        what = f"expected a candidate whose kernels may run, got none: {'; '.join(reasons) or 'no candidate'}"
        raise UnsupportedError(what, where="kernels", hint="search again with another space or more candidates")


def _exact_alternatives(
    candidates: tuple[tuple[str, bytes], ...],
    program: KernelGraph,
    target: Target,
    file: str | None = None,
    accept: Acceptance = Acceptance.PROVED,
) -> Alternatives:
    """Return exactly these candidates, without the program as the last one, with the first one's Triton file."""
    found = Alternatives((), program, target, accept)
    found._candidates, found._file = candidates, file
    return found


__all__ = ["UNFUSED", "Alternatives"]
