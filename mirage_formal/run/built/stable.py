"""The running-maximum form of a candidate, believed only with a proof of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mirage_formal.check.equivalence import replayed
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.errors import MirageError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent


class NotProved(MirageError):
    """The running-maximum form of a µGraph is not known to be equal to the program."""


@dataclass(frozen=True, slots=True)
class Stable:
    """What kernels are made of.

    Attributes:
        graph: The stabilised µGraph; the given one if nothing is to be stabilised or can be.
        proof: Proof of its equality with the program; None if it is the given one, which has its own.
        conditions: Where the proof holds.
        added: Those of the form that the program has not.
        note: Why a µGraph that sums exponentials stays as it is, or "".
    """

    graph: KernelGraph
    proof: bytes | None = None
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    note: str = ""


def stable(graph: KernelGraph, program: KernelGraph) -> Stable:
    """The form of a candidate of which no summed exponential overflows, if there is one.

    Sound: a µGraph other than the given one is returned only with a proof that it equals the program; the checker's
    kernel has replayed it, z3 and cvc5 refute what it leaves to them, and some input meets its conditions.

    Args:
        graph: A µGraph, proved equal to the program.
        program: The program.

    Raises:
        NotProved: There is such a form, but no such proof.
    """
    from mirage_formal.claims.equality.prove import prove  # they load numerical packages
    from mirage_formal.claims.refutation.witness import unmet
    from mirage_formal.kernels.stable.stabilize import stabilize

    found = stabilize(graph)
    if not isinstance(found, KernelGraph):
        return Stable(graph, note=f"no running maximum: {found.reason}")
    if found == graph:
        return Stable(graph)
    verdict = prove(program, found)
    if not isinstance(verdict, Equivalent):
        raise NotProved(f"expected a proof, got {getattr(verdict, 'reason', verdict)}", where="running maxima")
    try:
        shown = replayed(program, found, verdict.proof)
    except ProofError as error:
        at = f"{error.where}: " if error.where else ""
        raise NotProved(f"the checker refuses the proof: {at}{error.what}", where="running maxima") from error
    for obligation in shown.obligations:
        if answers := _answers(obligation.text):
            what = f"digits {obligation.extents}, {obligation.lemma}: expected unsat from both solvers, got {answers}"
            raise NotProved(what, where="running maxima")
    never = unmet(program, found, shown.doubtful)
    if never is not None:
        raise NotProved(f"expected an input at which it is defined: {never.reason}", where="running maxima")
    return Stable(found, verdict.proof, shown.conditions, shown.added)


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
