"""Forms of a candidate: its own, and rewritten variants that may be faster, each proved equal to it.

A search ranks a candidate by its µGraph. Later rewrites of single kernels are compared by measurement: factors behind
products, split-K loops, and kernels for predefined products (``codegen.post_search_rewrites``). A caller that measures
takes all forms of a candidate; any other takes the first, or the one with the best estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mirage_formal.codegen.cost import CANNOT_LAUNCH_US, estimate
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import CHANGES, Change, HoistedFactors
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import apply_rewrite as changed
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.built_kernels import MIXED
from mirage_formal.kernel_build.stable_forms import (
    Rewriting,
    RewrittenGraph,
    StableForm,
    identity_rewriting,
    partition_by_operator,
    rewrite_operators,
    stabilize_proved,
)
from mirage_formal.kernel_build.vertical_fusion import JOINED, fuse_vertically
from mirage_formal.search.thread import fuse_threads
from mirage_formal.support.errors import MirageError

#: The name of a candidate's own form.
OWN: Final = Change().name
#: Largest ratio of a form's estimate to that of the candidate's own form; the model does not count registers.
SLACK: Final = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateForm(StableForm):
    """A form of a candidate; ``kernel_build.build.build_form`` makes its kernels.

    Attributes:
        name: Name of the rewriting: "own", or as in ``codegen.post_search_rewrites.rewrite_sequences.Change``.
        us: Estimated microseconds.
        grids: Whether its kernels are the candidate's own on other grids.
        tiles: Whether these are kernels with products.
        sources: For each operator of its µGraph, the candidate's operator that it comes from; empty where not known.
    """

    name: str
    us: float
    grids: bool = False
    tiles: bool = False
    sources: tuple[int, ...] = ()


def forms(candidate: KernelGraph, target: Target, *, slack: float = SLACK, whole: bool = False) -> list[CandidateForm]:
    """Return the forms of a candidate, its own first, the others by their estimates.

    The result is deterministic. Equal forms are listed once; a form without a proof is left out.

    Sound: each has a proof, see ``kernel_build.stable_forms.stabilize_proved``.

    Args:
        candidate: A µGraph.
        target: The GPU that estimates are for.
        slack: Largest ratio of a form's estimate to that of the candidate's own. The form that only moves factors
            behind products is listed in any case.
        whole: Whether to list the forms whose splits are combined on the tiles of the kernels that are split, too. They
            are for joined launches (``codegen.joined_launches``).

    Raises:
        NotProved: Its own form has no proof.
    """
    own = _own_form(candidate, target)
    found = {own.graph: own}
    known = {candidate}
    for change in CHANGES[1:]:
        if change.whole and not whole:
            continue
        rewriting = _rewriting(change, target, slack)
        before = rewrite_operators(candidate, rewriting)
        # Known or slow forms need no proof.
        if before.graph in known or _is_too_slow(
            change, _estimated_us(before.graph, target), slack * _estimated_us(candidate, target)
        ):
            continue
        known.add(before.graph)
        try:
            one = _changed_form(candidate, change, rewriting, before, target)
        except MirageError:
            continue
        if one.proof is not None and not _is_too_slow(change, one.us, slack * own.us):
            found.setdefault(one.graph, one)
    if own.proof is None and not own.note and (made := fuse_vertically(candidate, target)) is not None:
        one = _form(JOINED, made, target)
        if one.us <= slack * own.us:
            found.setdefault(one.graph, one)
    first, *others = found.values()
    return [first, *sorted(others, key=lambda one: (one.us, one.name))]


def form(candidate: KernelGraph, target: Target, name: str, *, slack: float = SLACK) -> CandidateForm:
    """Return the form called ``name`` of a candidate, without making the others.

    Sound: it has a proof, see ``kernel_build.stable_forms.stabilize_proved``.

    Args:
        candidate: A µGraph.
        target: The GPU that estimates are for.
        name: Its name in ``forms``.
        slack: As for ``forms``.

    Raises:
        NotProved: It has no proof.
        KeyError: There is none of that name.
    """
    if name == OWN:
        return _own_form(candidate, target)
    if name == JOINED:
        if (made := fuse_vertically(candidate, target)) is None:
            raise KeyError(name)
        return _form(JOINED, made, target)
    change = {change.name: change for change in CHANGES}[name]
    rewriting = _rewriting(change, target, slack)
    return _changed_form(candidate, change, rewriting, rewrite_operators(candidate, rewriting), target)


def mixed_form(
    candidate: KernelGraph, target: Target, names: Mapping[int, str], *, slack: float = SLACK
) -> CandidateForm:
    """Return the form in which operators are rewritten each in its own way.

    Sound: it has a proof, see ``kernel_build.stable_forms.stabilize_proved``.

    Args:
        candidate: A µGraph.
        target: The GPU that estimates are for.
        names: Name of the form of each operator; the others stay. Equal operators have the same one.
        slack: As for ``forms``.

    Raises:
        NotProved: It has no proof.
        KeyError: A name is that of no form with operators of its own.
    """
    changes = {change.name: change for change in CHANGES}
    known: dict[KernelGraph, KernelGraph] = {}
    for number, piece in enumerate(partition_by_operator(candidate)):
        change = changes[names.get(number, OWN)]
        known[piece.program] = changed(piece.program, change, target, slack) if number in names else piece.program

    def one(graph: KernelGraph) -> KernelGraph:
        return known.get(graph, graph)

    name = ", ".join(f"{number} {what}" for number, what in sorted(names.items()))
    return _form(f"{MIXED}{name}", stabilize_proved(candidate, one), target, rewrite_operators(candidate, one))


def parse_mixed_name(name: str) -> dict[int, str]:
    """Return the form of each operator from the name of a mixed form."""
    words = (part.split(" ", 1) for part in name.removeprefix(MIXED).split(", "))
    return {int(number): what for number, what in words}


def _rewriting(change: Change, target: Target, slack: float) -> Rewriting:
    """Return the rewrite of one kernel by ``change``; it rewrites equal kernels only once."""
    known: dict[KernelGraph, KernelGraph] = {}

    def one(graph: KernelGraph) -> KernelGraph:
        if graph not in known:
            known[graph] = changed(graph, change, target, slack)
        return known[graph]

    return one


def _own_form(candidate: KernelGraph, target: Target) -> CandidateForm:
    return _form(OWN, stabilize_proved(candidate), target, rewrite_operators(candidate, identity_rewriting))


def _changed_form(
    candidate: KernelGraph, change: Change, rewriting: Rewriting, before: RewrittenGraph, target: Target
) -> CandidateForm:
    """Return the form of a change; ``before`` is the rewritten candidate without running maxima."""
    return replace(
        _form(change.name, stabilize_proved(candidate, rewriting), target, before),
        grids=change.only_changes_grids,
        tiles=change.tiles > 0,
    )


def _form(name: str, made: StableForm, target: Target, before: RewrittenGraph | None = None) -> CandidateForm:
    us = _estimated_us(made.graph, target)
    if us >= CANNOT_LAUNCH_US and before is not None:
        # The model keeps every tile in shared memory, also those of running maxima that plans hold in registers.
        us = _estimated_us(before.graph, target)
    same = before is not None and len(before.sources) == len(made.graph.ops)
    sources = before.sources if before is not None and same else ()
    return CandidateForm(
        made.graph, made.proof, made.conditions, made.added, made.note, name=name, us=us, sources=sources
    )


def _is_too_slow(change: Change, us: float, most: float) -> bool:
    """Return whether an estimate exceeds ``most``; never for ``HoistedFactors.BEHIND``, estimated too high."""
    return us > most and change != Change(HoistedFactors.BEHIND)


def _estimated_us(graph: KernelGraph, target: Target) -> float:
    return estimate(fuse_threads(graph), target).us


__all__ = ["MIXED", "OWN", "SLACK", "CandidateForm", "form", "forms", "mixed_form", "parse_mixed_name"]
