"""Reader of the decisions of a search that led to one candidate: the journal's unit, each operator, each certificate.

A search records no path to a candidate. The decisions are those that any path takes: the unit that is searched, then
each operator of the graph with its maps, which was kept because its abstract expression is part of an output's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mirage_formal.records import FoundRecord, UnitRecord
from mirage_formal.report.drawing.levels import LevelView, Node, TensorView, levels
from mirage_formal.report.model import Decision, ReportedCandidate, ReportedCertificate
from mirage_formal.report.sentences import count_noun


def with_decisions(found: Sequence[ReportedCandidate], units: Iterable[UnitRecord]) -> tuple[ReportedCandidate, ...]:
    """Return candidates of a search with the decisions that led to them; none for a graph that cannot be read.

    Args:
        found: The candidates.
        units: Units of the search's journal.
    """
    searched = list(units)
    ranked = sorted({(one.estimated_us, one.digest) for unit in searched for one in unit.candidates})
    ranks = {digest: rank for rank, (_, digest) in enumerate(ranked, 1)}
    origins: dict[str, tuple[UnitRecord, FoundRecord]] = {}
    for unit in searched:
        for one in unit.candidates:
            origins.setdefault(one.digest, (unit, one))
    return tuple(
        one if one.graph is None else replace(one, decisions=tuple(_decisions(one, origins.get(one.digest), ranks)))
        for one in found
    )


def _decisions(
    one: ReportedCandidate, origin: tuple[UnitRecord, FoundRecord] | None, ranks: dict[str, int]
) -> Iterator[Decision]:
    """Yield the decisions in the order of the graph, between those about the unit and those about the whole graph."""
    assert one.graph is not None
    if origin is None:
        yield Decision("search", "", "No unit of the journal names this candidate.", "It was made after the search.")
    else:
        yield _unit_decision(origin[0])
    certificates = {held.tensor: held for held in one.certificates}
    yield from _level_decisions(levels(one.graph), certificates, "k")
    if origin is not None:
        agreed = "A fingerprint at random points of a finite field agrees with the program's."
        what = f"The outputs are there: the graph is one of {count_noun(len(ranks), 'candidate')} of the search."
        yield Decision("search", "", what, agreed)
        rank = ranks[one.digest]
        yield Decision(
            "rank", "", f"The cost model estimates {origin[1].estimated_us:.2f} µs.",
            f"That is place {rank} of {len(ranks)} by estimate; it is reported as candidate {one.rank}.",
        )  # fmt: skip
    if one.verdict == "equivalent":
        proof = f"It has a proof of {count_noun(one.steps, 'step')} and {count_noun(one.lemmas, 'lemma')}."
        replayed = "The checker's kernel replayed it for this report." if one.proof else "It was not replayed here."
        yield Decision("proof", "", proof, replayed)
    else:
        yield Decision("proof", "", "It has no proof.", "It is reported because the policy accepts probable ones.")


def _unit_decision(unit: UnitRecord) -> Decision:
    cuts = [
        f"{sum(reasons.values()):,} at the {level} level ({', '.join(f'{why} {n:,}' for why, n in reasons.items())})"
        for level, reasons in unit.pruned_at.items()
        if reasons
    ]
    states = f"The search visited {unit.stats.get('states', 0):,} states in it"
    pruned = f" and pruned {', '.join(cuts)}" if cuts else f" and pruned {sum(unit.pruned.values()):,} branches"
    what = f"Unit {unit.unit}, {unit.label}, is searched: {count_noun(len(unit.candidates), 'candidate')}."
    return Decision("unit", "", what, f"{states}{pruned}.")


def _level_decisions(level: LevelView, certificates: dict[str, ReportedCertificate], prefix: str) -> Iterator[Decision]:
    """Yield the decisions about the nodes of a level; inside a fused kernel also those about its block graph."""
    names = {edge.tensor: node.label for edge in level.edges for node in level.nodes if node.id == edge.source}
    for node in level.nodes:
        if node.kind in ("input", "output"):
            continue
        operands = [names[edge.tensor] for edge in level.edges if edge.target == node.id]
        kept = _reason(node.results, certificates, prefix)
        if node.inner is not None and node.kind == "kernel":
            what = f"A fused kernel of {', '.join(operands)} is begun: {'; '.join(node.words)}."
            yield Decision(level.kind, node.id, what, kept)
            yield from _level_decisions(node.inner, certificates, f"b{node.id.removeprefix('op')}.")
        else:
            yield Decision(level.kind, node.id, _sentence(node, operands), kept)


def _sentence(node: Node, operands: Sequence[str]) -> str:
    about = f": {'; '.join(node.words)}" if node.words else ""
    if node.kind == "iterator":
        return f"Its input {node.label} is read{about}."
    if node.kind == "saver":
        return f"{', '.join(operands)} is written{about}."
    joined = "The operators of a thread graph," if node.kind == "thread" else "The operator"
    results = ", ".join(one.shape for one in node.results)
    return f"{joined} {node.label} of {', '.join(operands)} is added, of shape {results}{about}."


def _reason(results: Sequence[TensorView], certificates: dict[str, ReportedCertificate], prefix: str) -> str:
    """Return why the results of a node were kept."""
    held = [certificates[name] for one in results if (name := f"{prefix}{one.number}") in certificates]
    return " ".join(
        f"Kept: its abstract expression {one.expression} is part of that of output {one.output} ({one.solvers})."
        for one in held
    )
