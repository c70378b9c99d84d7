"""Stable forms of candidates (online softmax and other rewritings): each rewritten part needs a proof of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from mirage_formal.check.partitioning.subgraphs import (
    ExtractedPart,
    Replacement,
    compose,
    extract_operators,
    partition,
    replace_parts,
)
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.codegen.online_softmax.rewrite_groups import DisjointSets, group_operators
from mirage_formal.codegen.online_softmax.stabilize import NoStableForm
from mirage_formal.graph.formats.json import embed
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.records import FormPartRecord, FormRecord, ProvedRecord, json_line
from mirage_formal.support.errors import MirageError

#: Rewriting of a graph of one operator to another one of the same interface, or to itself.
Rewriting = Callable[[KernelGraph], KernelGraph]


#: Operators of a µGraph, and their replacement; None if they stay.
_Part = tuple[tuple[int, ...], Replacement | None]


class NotProvedError(MirageError):
    """Error: a form of a µGraph is not proved equal to it."""


@dataclass(frozen=True, slots=True)
class StableForm:
    """Form of a µGraph that kernels are generated from, with the proof that it equals the given µGraph.

    Attributes:
        graph: The form; the given µGraph itself if no rewriting applies.
        proof: Proof that it equals the given µGraph, part by part, as FormRecord; None if it is the given one.
        conditions: Side conditions of the proofs.
        added: Side conditions of the form that the given µGraph does not have.
        note: Reason why a µGraph with sums of exponentials has no running maxima, or "".
    """

    graph: KernelGraph
    proof: bytes | None = None
    conditions: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    note: str = ""


def identity_rewriting(graph: KernelGraph) -> KernelGraph:
    """Return the graph unchanged; the identity rewriting."""
    return graph


def stabilize_proved(graph: KernelGraph, rewriting: Rewriting = identity_rewriting) -> StableForm:
    """Return the form of a µGraph in which no summed exponential overflows, if there is one.

    Sound: a µGraph other than the given one is returned only if it is the given one with others in the places of parts,
    each with a proof that it equals its part; the checker's kernel has replayed them, z3 and cvc5 refute what they
    leave to them, and some input meets their conditions. Nothing rests on the rewriting.

    Args:
        graph: A µGraph.
        rewriting: Rewriting of single operators that is applied first.

    Raises:
        NotProvedError: There is such a form, but no such proof.
    """
    parts, note = _parts(graph, rewriting)
    if all(other is None for _, other in parts):
        return StableForm(graph, note=note)
    return assemble_proved_parts(graph, parts, note)


def assemble_proved_parts(graph: KernelGraph, parts: Sequence[_Part], note: str = "") -> StableForm:
    """Return the form of a µGraph in which some parts are replaced, with its proof.

    Sound: see ``stabilize_proved``; nothing rests on where the parts come from.

    Args:
        graph: The µGraph.
        parts: Its parts in topological order, each with its replacement.
        note: As ``StableForm.note``.

    Raises:
        NotProvedError: A proof is refused, or says too little.
    """
    from mirage_formal.prove.counterexamples.definedness import check_conditions  # loads numerical packages

    try:
        shown = replace_parts(graph, parts)
    except ProofError as error:
        at = f"{error.where}: " if error.where else ""
        raise NotProvedError(f"the checker refuses the proof: {at}{error.what}", where="form") from error
    for obligation in shown.obligations:
        if answers := _solver_complaint(obligation.text):
            what = f"digits {obligation.extents}, {obligation.lemma}: expected unsat from both solvers, got {answers}"
            raise NotProvedError(what, where="form")
    never = check_conditions(graph, shown.graph, shown.doubtful)
    if never is not None:
        raise NotProvedError(f"expected an input at which it is defined: {never.reason}", where="form")
    return StableForm(shown.graph, _record(graph, parts), shown.conditions, shown.added, note)


def _parts(graph: KernelGraph, rewriting: Rewriting) -> tuple[list[_Part], str]:
    """Return the parts of a µGraph with proved replacements, and a note if there is no running maximum, else "".

    Raises:
        NotProvedError: A part has a form, but no proof.
    """
    from mirage_formal.codegen.online_softmax.stabilize import stabilize, stabilize_with_groups

    other = rewrite_operators(graph, rewriting)
    found = stabilize_with_groups(other.graph)
    note = f"no running maximum: {found.reason}" if isinstance(found, NoStableForm) else ""
    together, stabilizing = DisjointSets(len(graph.ops)), set[int]()
    for run in () if isinstance(found, NoStableForm) else found.runs:
        if run.changed:
            numbers = {other.sources[n] for n in run.operators}
            together.join(numbers)
            stabilizing |= numbers
    parts: list[_Part] = []
    order = group_operators(graph, together, other.changed | stabilizing)
    for run, piece in zip(order, partition(graph, [run.operators for run in order]), strict=True):
        if not run.changed:
            parts.append((run.operators, None))
            continue
        form = before = rewrite_operators(piece.program, rewriting).graph
        if not stabilizing.isdisjoint(run.operators):
            after = stabilize(before)
            if isinstance(after, NoStableForm) or after == before:
                # Less is known of a part's inputs inside the part, so the whole µGraph is tried as one part.
                return _whole_as_part(graph, rewriting)
            form = after
        parts.append((run.operators, prove_form(piece, form)))
    return parts, note


def _whole_as_part(graph: KernelGraph, rewriting: Rewriting) -> tuple[list[_Part], str]:
    """Return the stable form of the µGraph as one part.

    The result is like that of ``_parts``: the part with its proved form and "", or no part and the reason.
    """
    from mirage_formal.codegen.online_softmax.stabilize import stabilize

    whole = extract_operators(graph, range(len(graph.ops)))
    before = rewrite_operators(whole.program, rewriting).graph
    form = stabilize(before)
    if isinstance(form, NoStableForm):
        # Parts of the rewritten µGraph would need other inputs; the caller has the µGraph itself.
        return [], f"no running maximum: {form.reason}"
    return [(tuple(range(len(graph.ops))), prove_form(whole, form))], ""


@dataclass(frozen=True, slots=True)
class RewrittenGraph:
    """A µGraph in which some operators are rewritten.

    Attributes:
        graph: The rewritten µGraph.
        sources: For each of its operators, the operator of the given µGraph that it comes from.
        changed: The operators of the given µGraph that are rewritten.
    """

    graph: KernelGraph
    sources: tuple[int, ...]
    changed: frozenset[int]


def rewrite_operators(graph: KernelGraph, rewriting: Rewriting) -> RewrittenGraph:
    """Rewrite each operator of a µGraph by itself.

    Sound: nothing rests on it, see ``stabilize_proved``.
    """
    if rewriting is identity_rewriting:
        return RewrittenGraph(graph, tuple(range(len(graph.ops))), frozenset())
    pieces = partition_by_operator(graph)
    graphs = [rewriting(piece.program) for piece in pieces]
    changed = frozenset(n for n, piece in enumerate(pieces) if graphs[n] != piece.program)
    sources = tuple(n for n, one in enumerate(graphs) for _ in one.ops)
    return RewrittenGraph(compose(graph, pieces, graphs), sources, changed)


@lru_cache(maxsize=256)
def partition_by_operator(graph: KernelGraph) -> tuple[ExtractedPart, ...]:
    """Partition a graph into parts of one operator each."""
    return partition(graph, [[n] for n in range(len(graph.ops))])


def prove_form(piece: ExtractedPart, form: KernelGraph) -> Replacement:
    """Return the form of a part with its proof.

    Raises:
        NotProvedError: The prover finds none.
    """
    from mirage_formal.prove.equality.prove import prove  # loads numerical packages

    verdict = prove(piece.program, form)
    if not isinstance(verdict, Equivalent):
        raise NotProvedError(f"expected a proof, got {getattr(verdict, 'reason', verdict)}", where="form")
    return Replacement(form, verdict.proof)


def _record(graph: KernelGraph, parts: Sequence[_Part]) -> bytes:
    """Return the evidence of a form as the bytes of a file."""
    return json_line(
        FormRecord(
            candidate=embed(graph),
            parts=tuple(
                FormPartRecord(
                    operators=operators,
                    form=None if other is None else ProvedRecord(embed(other.graph), msgspec.Raw(other.proof)),
                )
                for operators, other in parts
            ),
        )
    )


@lru_cache(maxsize=4096)
def _solver_complaint(text: str) -> str:
    """Return the solvers' answers to an obligation, or "" if both say unsat."""
    from mirage_formal.logic.script import parse_script
    from mirage_formal.logic.session import discharge

    results = discharge(parse_script(text))
    if {result.solver for result in results} == {"z3", "cvc5"} and {r.answer.value for r in results} == {"unsat"}:
        return ""
    return ", ".join(f"{result.answer.value} ({result.solver})" for result in results) or "none"


__all__ = [
    "NotProvedError",
    "Rewriting",
    "RewrittenGraph",
    "StableForm",
    "assemble_proved_parts",
    "identity_rewriting",
    "partition_by_operator",
    "prove_form",
    "rewrite_operators",
    "stabilize_proved",
]
