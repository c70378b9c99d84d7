"""Diagnosis of a search without results: the reasons, and a hint for each.

Rules about the program come first: an input that no operator reads, more inputs than the kernels of the space can read,
an operator that the space cannot compute. Then come rules about the search: it was stopped, units failed, all
candidates were rejected, or no candidate fits the lists of grids, maps and ranges. If no rule applies, the reason names
the limits of the space. The diagnosis prunes and accepts no candidate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.frontend.origins import Origins
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import storage_locations
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.partition.spaces import part_config
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, display_path, make_job
from mirage_formal.search.bounds import IN_PARTS, SEARCHABLE, SearchSpace
from mirage_formal.search.space import load_space, preset_names
from mirage_formal.support.errors import NothingFoundError, Reason, UnsupportedError

_SUMS: Final = (OpKind.SUM, OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_LAST)
#: Compositions of an operator that a space does not list: sets of operators, any one of which suffices.
_MADE_OF: Final[dict[OpKind, tuple[frozenset[OpKind], ...]]] = {
    OpKind.SQUARE: (frozenset({OpKind.MUL}),),
    OpKind.SUM: tuple(frozenset({kind}) for kind in _SUMS),
    OpKind.MEAN: (
        frozenset({OpKind.ACCUM_MEAN_LAST}),
        *(frozenset({kind, OpKind.SCALE}) for kind in _SUMS),
    ),
    OpKind.SOFTMAX: tuple(frozenset({OpKind.EXP, OpKind.DIV, kind}) for kind in _SUMS),
    OpKind.RMS_NORM: (
        frozenset({OpKind.ACCUM_RMS_LAST, OpKind.DIV}),
        *(
            frozenset({multiply, kind, OpKind.SCALE, OpKind.SQRT, OpKind.DIV})
            for multiply in (OpKind.SQUARE, OpKind.MUL)
            for kind in _SUMS
        ),
    ),
}
#: Options that replace lists of the space.
_LISTS: Final = ("griddims", "imaps", "omaps", "fmaps", "franges", "extents")
_REJECTED: Final = {
    "different": (
        "wrong: a fingerprint or a counterexample refuted them",
        "this is a bug of the search, worth reporting",
    ),
    "proof-refused": ("not reported: the checker refused their proofs", "this is a bug of the prover, worth reporting"),
    "unproved": (
        "not refuted and not proved",
        "--accept probable (accept='probable') reports such candidates, and says so",
    ),
    "certificate": ("without a certificate for each tensor", "another --config may propose others"),
    "numerics": (
        "outside of their tolerances in their element types, where the program's own operators are not",
        "a program with larger element types, such as float32, has other candidates",
    ),
    "unknown": ("not decided, because a check did not come to its end", "--resume (resume=True) tries them again"),
}


@dataclass(frozen=True, slots=True)
class _EmptySearch:
    """A search without results, of a program or of one subgraph of a program."""

    program: KernelGraph
    origins: Origins
    settings: Settings
    space: SearchSpace
    report: RunReport


def find_reasons_for_no_result(
    report: RunReport | WholeReport, program: KernelGraph, settings: Settings, origins: Origins
) -> NothingFoundError | None:
    """Return the error that says why a run has no candidate to report; None if it has one.

    A program that is cut into subgraphs always has a cover, because its own operators stand where nothing was found. If
    the user chose a space or limits, at least one subgraph must have a proved candidate from a search; otherwise the
    error is returned.
    """
    if isinstance(report, WholeReport):
        return _diagnose_whole(report, settings, origins)
    if report.results:
        return None
    space = make_job(program, settings).space
    reasons = tuple(_reasons(_EmptySearch(program, origins, settings, space, report)))
    what = f"no candidate was found in the search space {space.name}"
    if settings.checkpoint is not None:
        what = f"no graph of {display_path(Path(settings.checkpoint))} was accepted"
    return NothingFoundError(what, where=report.summary.program, reasons=reasons)


@contextmanager
def add_source_lines(program: KernelGraph, origins: Origins) -> Iterator[None]:
    """Add the user's source line to an ``UnsupportedError`` that names an operator."""
    try:
        yield
    except UnsupportedError as error:
        if error.operator is not None:
            error.where = f"{origins.operator(program, error.operator)}: {error.where}"
        raise


def _diagnose_whole(report: WholeReport, settings: Settings, origins: Origins) -> NothingFoundError | None:
    if report.result is not None and not settings.narrowed:
        return None
    if any(isinstance(r.verdict, Equivalent) for run in report.searches for r in run.results):
        return None
    reasons: list[Reason] = []
    for number, one in enumerate(report.parts, 1):
        if one.report is None:
            continue
        own = msgspec.structs.replace(settings, config=part_config(one.part.program, settings))
        space = make_job(one.part.program, own).space
        at = origins.part(one.part.operators, one.part.reads)
        for reason in _reasons(_EmptySearch(one.part.program, at, own, space, one.report)):
            reasons.append(dataclasses.replace(reason, what=f"part {number}: {reason.what}"))
    if report.record.status == "time-limit" and not reasons:
        reasons.append(_stopped_reason(settings, "no part was searched"))
    if report.record.status == "interrupted":
        reasons.append(_interrupted_reason("not every part was searched"))
    what = f"no candidate was found for any of the parts ({len(report.parts)}) that it was cut into"
    return NothingFoundError(what, where=report.record.program, reasons=tuple(dict.fromkeys(reasons)))


def _reasons(search: _EmptySearch) -> Iterator[Reason]:
    certain = [*_unread_inputs(search), *_too_many_inputs(search), *_operators_outside_space(search)]
    if search.settings.checkpoint is not None:
        certain = []  # a space limits searches only
    yield from certain
    summary = search.report.summary
    done = (
        f"{summary.units_done} of {summary.units} units of the search were done"
        if summary.units
        else "it was still being planned"
    )
    ended = []
    if summary.status == "time-limit":
        ended.append(_stopped_reason(search.settings, done))
    if summary.status == "interrupted":
        ended.append(_interrupted_reason(done))
    ended += [*_failed_unit_reasons(search), *_rejected_candidate_reasons(search)]
    yield from ended
    if certain or ended:
        return
    if summary.stats.get("complete", 0) > 0:
        yield _no_fitting_extents(search)
    else:
        yield _space_limit_reason(search)


# --- rules about the program -----------------------------------------------------------------------------------------


def _unread_inputs(search: _EmptySearch) -> Iterator[Reason]:
    """Yield a reason for each input that is never read; every tensor of a candidate is used."""
    program = search.program
    read = {operand for op in program.ops for operand in op.operands} | set(program.outputs)
    for number, item in enumerate(program.inputs):
        if number not in read:
            what = f"input {item.name} is read by nothing that an output needs; every input of a candidate is used"
            yield Reason("input", search.origins.input(program, number), what, f"remove {item.name}, or use it")


def _too_many_inputs(search: _EmptySearch) -> Iterator[Reason]:
    """Yield a reason if the kernels of the space cannot read all inputs, because each reads a limited number."""
    space, count = search.space, len(search.program.inputs)
    fewer = space.max_block_inputs - 1
    if count <= 1 + space.max_kernel_ops * fewer:
        return
    most = f"at most {space.max_kernel_ops} kernels of at most {space.max_block_inputs} inputs each"
    what = f"{count} inputs cannot be read by {most}"
    if fewer < 1:
        hint = "give a search space (config) with a larger max_block_inputs"
    else:
        kernels = -(-(count - 1) // fewer)
        hint = f"--max-kernel-ops {kernels} (max_kernel_ops={kernels}), or {IN_PARTS}"
    yield Reason("reads", "", what, hint)


def _operators_outside_space(search: _EmptySearch) -> Iterator[Reason]:
    """Yield a reason for each operator that the space neither lists nor can compose of listed operators.

    Views of inputs are exempt.
    """
    listed = frozenset({*search.space.kernel_ops, *search.space.block_ops})
    program, count = search.program, len(search.program.inputs)
    for number, op in enumerate(program.ops):  # predefined operators have one result each
        view = storage_locations(program)[count + number].base < count
        if isinstance(op, Op) and not view and not _can_compute(listed, op.kind):
            space = f"the search space {search.space.name}, which lists no {op.kind.value}"
            what = f"{_describe_operator(search, number, op)} is outside {space}"
            yield Reason("operator", search.origins.operator(program, number), what, _suggest_alternative(search, op))


def _can_compute(listed: frozenset[OpKind], kind: OpKind) -> bool:
    return kind in listed or any(parts <= listed for parts in _MADE_OF.get(kind, ()))


def _describe_operator(search: _EmptySearch, number: int, op: Op) -> str:
    """Return a description of an operator: its kind, its named inputs, and the user's call if that has another name."""
    program, origin = search.program, search.origins.operators[number]
    names = [program.inputs[i].name for i in op.operands if i < len(program.inputs)]
    of = f" of {', '.join(names)}" if names else ""
    to = f" to {list(op.attrs.shape)}" if op.kind is OpKind.RESHAPE and op.attrs.shape is not None else ""
    made = f", made by {origin.call}," if origin is not None and origin.call not in (op.kind.value, "") else ""
    return f"{op.kind.value}{of}{to}{made}"


def _suggest_alternative(search: _EmptySearch, op: Op) -> str:
    """Return a hint for an operator outside the space: a preset that lists it, if any, and a search in subgraphs."""
    program = search.program
    hints = []
    if search.settings.config is not None or op.kind in SEARCHABLE:
        kinds = {other.kind for other in program.ops if isinstance(other, Op)}
        wider = [name for name in _presets_with_operator(kinds, op.kind) if name != search.space.name]
        if wider:
            hints.append(f"--config {wider[0]} (config={wider[0]!r}) lists it")
    hints.append(IN_PARTS)
    return "; or ".join(hints)


def _presets_with_operator(kinds: set[OpKind], kind: OpKind) -> Iterator[str]:
    """Yield the presets that have an operator; those that have all operators of the program come first.

    Among equals, "default" is first, "tiny" and "paper" are last.
    """
    presets = sorted(preset_names(), key=lambda name: (name != "default", name in ("tiny", "paper"), name))
    spaces = [load_space(name) for name in presets]
    has = [(space.name, frozenset({*space.kernel_ops, *space.block_ops})) for space in spaces]
    yield from (name for name, listed in has if all(_can_compute(listed, one) for one in kinds))
    yield from (name for name, listed in has if _can_compute(listed, kind))


# --- rules about the search ------------------------------------------------------------------------------------------


def _stopped_reason(settings: Settings, done: str) -> Reason:
    what = f"the search stopped at the time limit of {settings.time_limit:g} s; {done}"
    hint = "--resume with a longer --time-limit (resume=True, time_limit=...) continues it; a smaller space ends sooner"
    return Reason("time-limit", "", what, hint)


def _interrupted_reason(done: str) -> Reason:
    return Reason("interrupted", "", f"the search was interrupted; {done}", "--resume (resume=True) continues it")


def _failed_unit_reasons(search: _EmptySearch) -> Iterator[Reason]:
    failed = search.report.failed
    if failed:
        lines = failed[0].error.strip().splitlines()
        last = lines[-1][:200] if lines else "no reason"
        what = f"{len(failed)} of {search.report.summary.units} units of the search failed; the first: {last}"
        yield Reason("failed", "", what, "--resume (resume=True) tries them again")


def _rejected_candidate_reasons(search: _EmptySearch) -> Iterator[Reason]:
    summary = search.report.summary
    where = display_path(search.report.directory)
    for kind, (said, hint) in _REJECTED.items():
        items = [item for item in summary.rejected if item.kind == kind]
        if items:
            if kind in ("different", "certificate") and search.settings.checkpoint is not None:
                hint = "mirage-formal verify judges each graph of the file"
            what = f"{len(items)} of {summary.found} proposed candidates are {said}; the first: {items[0].reason[:200]}"
            yield Reason("rejected", "", what, f"{hint}; {where}/summary.json names them all")


def _no_fitting_extents(search: _EmptySearch) -> Reason:
    ways = search.report.summary.stats["complete"]
    space, rules = search.space, search.space.rules
    given = [name for name in _LISTS if getattr(search.settings, name) is not None]
    what = (
        f"{ways} ways to compute it were found, and none has extents that fit: the grids, maps and loop ranges, "
        f"{rules.min_blocks} to {rules.max_blocks} blocks, {space.shared_bytes} bytes of shared memory"
    )
    hint = (
        f"leave out {', '.join(given)}" if given else "another --config, or a search space with wider lists and bounds"
    )
    return Reason("extents", "", what, hint)


def _space_limit_reason(search: _EmptySearch) -> Reason:
    space, settings = search.space, search.settings
    kernels, operators = space.max_kernel_ops, space.max_block_ops
    inside = f"with at most {operators} operators and {space.max_block_inputs} inputs"
    what = (
        f"no graph of at most {kernels} kernels was found to compute it "
        f"(of them {space.max_graph_defined} graph-defined, {inside})"
    )
    hints = [f"--max-kernel-ops {kernels + 1} --max-block-ops {operators + 2}"]
    given = [name for name in (*_LISTS, "max_kernel_ops", "max_block_ops") if getattr(settings, name) is not None]
    if given:
        hints.insert(0, f"leave out {', '.join(given)}")
    if space.name != "default":
        hints.append("--config default (config='default')")
    hints.append(IN_PARTS)
    return Reason("limits", "", what, "; or ".join(hints))


__all__ = ["add_source_lines", "find_reasons_for_no_result"]
