"""The running-maximum form of a candidate: of each part that it changes, believed only with a proof of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from mirage_formal.check.proof.ring import ProofError
from mirage_formal.check.whole.parts import Other, Piece, partition, replaced, taken_out
from mirage_formal.errors import MirageError
from mirage_formal.graph.formats.json import embedded
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernels.stable.stabilize import NotStable
from mirage_formal.records import FormPartRecord, FormRecord, ProvedRecord, line


class NotProved(MirageError):
    """The running-maximum form of a µGraph is not known to be equal to it."""


@dataclass(frozen=True, slots=True)
class Stable:
    """What kernels are made of.

    Attributes:
        graph: The stabilised µGraph; the given one if nothing is to be stabilised or can be.
        proof: That it equals the given one, part by part, as FormRecord; None if it is the given one.
        conditions: Where the proofs of parts hold.
        added: Those of the form that the given one has not.
        note: Why a µGraph that sums exponentials stays as it is, or "".
    """

    graph: KernelGraph
    proof: bytes | None = None
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    note: str = ""


def stable(graph: KernelGraph) -> Stable:
    """The form of a µGraph of which no summed exponential overflows, if there is one.

    Sound: a µGraph other than the given one is returned only if it is the given one with others in the places of
    parts, each with a proof that it equals its part; the checker's kernel has replayed them, z3 and cvc5 refute what
    they leave to them, and some input meets their conditions.

    Args:
        graph: A µGraph.

    Raises:
        NotProved: There is such a form, but no such proof.
    """
    from mirage_formal.claims.refutation.witness import unmet  # loads numerical packages

    parts = _parts(graph)
    if isinstance(parts, NotStable):
        return Stable(graph, note=f"no running maximum: {parts.reason}")
    if all(other is None for _, other in parts):
        return Stable(graph)
    try:
        shown = replaced(graph, parts)
    except ProofError as error:
        at = f"{error.where}: " if error.where else ""
        raise NotProved(f"the checker refuses the proof: {at}{error.what}", where="running maxima") from error
    for obligation in shown.obligations:
        if answers := _answers(obligation.text):
            what = f"digits {obligation.extents}, {obligation.lemma}: expected unsat from both solvers, got {answers}"
            raise NotProved(what, where="running maxima")
    never = unmet(graph, shown.graph, shown.doubtful)
    if never is not None:
        raise NotProved(f"expected an input at which it is defined: {never.reason}", where="running maxima")
    return Stable(shown.graph, _record(graph, parts), shown.conditions, shown.added)


#: Operators of a µGraph, and what takes their place; None if they stay.
_Part = tuple[tuple[int, ...], Other | None]


def _parts(graph: KernelGraph) -> list[_Part] | NotStable:
    """The parts of a µGraph, with a proved stable form in the place of each that is to be stabilised.

    Raises:
        NotProved: One has such a form, but no proof.
    """
    from mirage_formal.kernels.stable.stabilize import stabilize, stabilized

    found = stabilized(graph)
    if isinstance(found, NotStable):
        return found
    if not found.changed:
        return []
    parts: list[_Part] = []
    for run, piece in zip(found.runs, partition(graph, [run.operators for run in found.runs]), strict=True):
        if not run.changed:
            parts.append((run.operators, None))
            continue
        form = stabilize(piece.program)
        if isinstance(form, NotStable) or form == piece.program:
            # Of what a part reads less is known inside of it than in the µGraph, which is taken as one part then.
            whole = taken_out(graph, range(len(graph.ops)))
            form = stabilize(whole.program)
            return form if isinstance(form, NotStable) else [(tuple(range(len(graph.ops))), _proved(whole, form))]
        parts.append((run.operators, _proved(piece, form)))
    return parts


def _proved(piece: Piece, form: KernelGraph) -> Other:
    """A stable form of a part, with its proof."""
    from mirage_formal.claims.equality.prove import prove  # loads numerical packages

    verdict = prove(piece.program, form)
    if not isinstance(verdict, Equivalent):
        raise NotProved(f"expected a proof, got {getattr(verdict, 'reason', verdict)}", where="running maxima")
    return Other(form, verdict.proof)


def _record(graph: KernelGraph, parts: Sequence[_Part]) -> bytes:
    """The evidence, as a file."""
    return line(
        FormRecord(
            candidate=embedded(graph),
            parts=tuple(
                FormPartRecord(
                    operators=operators,
                    form=None if other is None else ProvedRecord(embedded(other.graph), msgspec.Raw(other.proof)),
                )
                for operators, other in parts
            ),
        )
    )


@lru_cache(maxsize=4096)
def _answers(text: str) -> str:
    """What the solvers say to an obligation, or "" if both say unsat."""
    from mirage_formal.logic.script import parse
    from mirage_formal.logic.session import discharge

    results = discharge(parse(text))
    if {result.solver for result in results} == {"z3", "cvc5"} and {r.answer.value for r in results} == {"unsat"}:
        return ""
    return ", ".join(f"{result.answer.value} ({result.solver})" for result in results) or "none"


__all__ = ["NotProved", "Stable", "stable"]
