"""Reported candidate of a search, as a value for the user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, overload

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent, Probable

if TYPE_CHECKING:
    from mirage_formal.device.launch import Optimized
    from mirage_formal.kernel_build.built_kernels import Acceptance
    from mirage_formal.kernel_build.candidate_preference import Alternatives

#: Columns of a table of results.
HEAD: Final = ("rank", "candidate", "verdict", "kernels", "est. us")


@dataclass(frozen=True, slots=True)
class Result:
    """A reported candidate; it can be called on tensors, see ``mirage_formal.device.launch.Optimized``.

    Its kernels are built at the first call on a GPU. If they may not run, the next candidate's take their place, with a
    warning.

    Attributes:
        graph: The µGraph, with thread graphs.
        digest: Its digest.
        rank: 1 is the best.
        verdict: Its equality with the program: a proof and its side conditions, or, only in a run that accepts it,
            agreement of fingerprints.
        cost: Estimated microseconds.
        directory: Directory of its evidence.
        alternatives: This candidate and the following ones; the first that has kernels is run.
        backend: Back end of calls: "cuda", or "triton".
    """

    graph: KernelGraph
    digest: str
    rank: int
    verdict: Equivalent | Probable
    cost: float
    directory: Path
    alternatives: Alternatives | None = field(default=None, compare=False, repr=False)
    backend: str = field(default="cuda", compare=False)

    @property
    def optimized(self) -> Optimized:
        """The program as a callable that runs this candidate."""
        return self._alternatives.in_triton if self.backend == "triton" else self._alternatives.optimized

    @property
    def _alternatives(self) -> Alternatives:
        if self.alternatives is None:
            raise RuntimeError("this result was not made by a run")
        return self.alternatives

    def __call__(
        self,
        *tensors: Any,
        out: Any = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        stream: Any = None,
    ) -> Any:
        """Compute the outputs; see ``mirage_formal.device.launch.Optimized``."""
        return self.optimized(*tensors, out=out, inputs=inputs, outputs=outputs, stream=stream)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse the attributes of the reference system's graphs that results do not have."""
            from mirage_formal.frontend.mirage_api.table import missing_attribute_error

            raise missing_attribute_error("KNGraph", name, type(self).__name__)

    def accepting(self, accept: Acceptance) -> Result:
        """Return the same result, whose calls may run these kernels."""
        if self.alternatives is None or self.alternatives.accept is accept:
            return self
        return replace(self, alternatives=self.alternatives.accepting(accept))

    @property
    def accepts_tested(self) -> bool:
        """Return whether its calls may run kernels that are not proved to compute their µGraph."""
        return self.alternatives is not None and self.alternatives.accept == "tested"

    def claim(self) -> str:
        """Return one line that says whether the kernels of its calls are proved to compute their µGraph.

        It is empty before kernels are built, which the first call on a GPU does, or ``prepare``.
        """
        if self.backend == "triton":
            return "tested only: a Triton file has no such proof"
        return self._alternatives.claim

    def prepare(self, device: int | None = None) -> None:
        """Do the work of the first call on a GPU: build, compile, load and allocate."""
        self.optimized.prepare(device)

    def triton_source(self) -> str:
        """Return the text of its Triton file, which imports torch and Triton only and checks itself when it is run.

        Where Triton files were timed it is the one that was chosen, with its launch options.

        Raises:
            UnsupportedError: Neither this candidate nor one behind it has one.
        """
        return self._alternatives.triton_source()

    def generate_triton_program(self, path: str | PathLike[str]) -> dict[str, str]:
        """Write its Triton file; see ``triton_source``.

        Args:
            path: File to write; ".py" is appended if it has no ending.

        Returns:
            The text, under "code".

        Raises:
            UnsupportedError: Neither this candidate nor one behind it has one.
            RunError: The file cannot be written.
        """
        from mirage_formal.kernel_build.generated_text import write_text

        text = self.triton_source()
        write_text(path, ".py", text)
        return {"code": text}

    def kernel(self) -> str:
        """Return the CUDA C++ of its kernels, or with the back end triton its Triton file.

        Raises:
            UnsupportedError: Neither this candidate nor one behind it has kernels that may run.
        """
        return self.triton_source() if self.backend == "triton" else self._alternatives.built().executable.source

    def explain(self, form: str = "text") -> str:
        """Explain why it computes what the program does: how sums are split, every step of the proof, its conditions.

        The proof is read from the evidence in ``directory`` and replayed by the checker's kernel; the formulas are
        those that the kernel computed.

        Args:
            form: "text", "latex", or "html" for a fragment of a page.

        Returns:
            The explanation.

        Raises:
            RunError: The evidence is gone, or does not hold.
            UnsupportedError: There is no such form.
        """
        from mirage_formal.report.explanation import explain_result

        return explain_result(self.directory, self.digest, form)

    def show(self, out: str | PathLike[str] | None = None, *, browser: bool = True) -> Path:
        """Write the report of its run as a page, and open it.

        Args:
            out: File to write; None is a file beside the run's directory.
            browser: Whether a browser is asked to open it.

        Returns:
            Where the page is.

        Raises:
            RunError: The evidence is gone, or the page cannot be written.
        """
        from mirage_formal.report.explanation import show_page

        return show_page(self.directory, None if out is None else Path(out), browser=browser)

    def __repr__(self) -> str:
        known = type(self.verdict).__name__
        return f"Result(rank {self.rank}, {self.digest[:12]}, {known}, estimated {self.cost:.1f} us, {self._kernels})"

    @property
    def _kernels(self) -> str:
        number = kernel_count(self.graph)
        back_end = " in Triton" if self.backend == "triton" else ""
        return f"{number} kernel{'s' if number != 1 else ''}{back_end}"

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Return rank, digest, verdict, kernels and estimate as the cells of a table row."""
        known = type(self.verdict).__name__.lower()
        return str(self.rank), self.digest[:12], known, self._kernels, f"{self.cost:.1f}"

    def _repr_html_(self) -> str:
        from mirage_formal.report.notebook import MOST_TEXT, graph_html, results_html, verdict_html, visible

        head = results_html("Result", HEAD, [self.row]) + verdict_html(self.verdict)
        drawn = graph_html(self.graph)
        return head + drawn if len(visible(head + drawn)) <= MOST_TEXT else head

    def _repr_svg_(self) -> str | None:
        from mirage_formal.report.drawing.svg import graph_svg

        return graph_svg(self.graph)

    def __str__(self) -> str:
        known = type(self.verdict).__name__.lower()
        return f"{self.rank:3}  {self.digest[:12]}  {known}  {self._kernels}  est. {self.cost:.1f} us  {self.directory}"


class Results(list[Result]):
    """A list of results; it is one in every way, and prints in a few lines.

    Attributes:
        extent: Text on how much was searched; empty if that is not known.
        cut: Whether a time limit ended the search.
    """

    def __init__(self, results: Iterable[Result] = (), extent: str = "", *, cut: bool = False) -> None:
        super().__init__(results)
        self.extent, self.cut = extent, cut

    def __repr__(self) -> str:
        if not self:
            return "Results([])"
        return f"Results({len(self)}, best: {self[0]!r})"

    def __str__(self) -> str:
        rows = [HEAD, *(one.row for one in self)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        from mirage_formal.report.notebook import results_html

        return results_html(f"{len(self)} results, best first", HEAD, [one.row for one in self])

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> Result: ...

    @overload
    def __getitem__(self, key: slice, /) -> Results: ...

    def __getitem__(self, key: SupportsIndex | slice, /) -> Result | Results:
        found = super().__getitem__(key)
        return found if isinstance(found, Result) else Results(found, self.extent, cut=self.cut)
