"""Selection of the cases of a run directory to emulate: one candidate, or each part of a whole program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.partition.partition import extract_subprogram
from mirage_formal.records import CANDIDATES, GRAPH_FILE, RUN_FILE, RunRecord, decode, read_file
from mirage_formal.records.partition import WHOLE_FILE, PartRecord, WholeRecord
from mirage_formal.support.errors import FormatError, RunError

_HINT = "mirage-formal search writes one"


@dataclass(frozen=True, slots=True)
class EmulationCase:
    """Graph whose kernels are emulated.

    Attributes:
        name: Its directory, or the name of the subgraph that it replaces.
        program: Program that it computes.
        graph: The graph.
        target: Target that kernels are planned for.
    """

    name: str
    program: KernelGraph
    graph: KernelGraph
    target: str


def cases(root: Path, number: int | None) -> list[EmulationCase]:
    """Return the cases of a run directory to emulate.

    Args:
        root: The directory.
        number: Rank of the candidate, or number of the part; None is the best candidate, or all parts.

    Raises:
        RunError: There is no run, no candidate, or none of this number.
        FormatError: A file is malformed.
    """
    if (root / WHOLE_FILE).is_file():
        return _parts(root, number)
    if not (root / RUN_FILE).is_file():
        raise RunError("expected the directory of a run, got none", where=str(root), hint=_HINT)
    return [_candidate(root, 1 if number is None else number)]


def _candidate(root: Path, rank: int) -> EmulationCase:
    run = decode(read_file(root / RUN_FILE), RunRecord, str(root / RUN_FILE))
    program = from_json(bytes(run.program), str(root / RUN_FILE))
    found = sorted(path.parent for path in (root / CANDIDATES).glob(f"*/{GRAPH_FILE}"))
    chosen = [path for path in found if path.name.split("-")[0] == f"{rank:03}"]
    if not chosen:
        ranks = ", ".join(path.name.split("-")[0] for path in found) or "any rank: the run has none"
        raise RunError(f"expected a candidate of rank {ranks}, got {rank}", where=str(root), hint=_HINT)
    return EmulationCase(chosen[0].name, program, _graph(chosen[0]), run.identity.target)


def _graph(directory: Path) -> KernelGraph:
    return from_json(read_file(directory / GRAPH_FILE), str(directory / GRAPH_FILE))


def _parts(root: Path, number: int | None) -> list[EmulationCase]:
    """Return the distinct subgraphs of a whole program's best cover."""
    record = decode(read_file(root / WHOLE_FILE), WholeRecord, str(root / WHOLE_FILE))
    program = from_json(bytes(record.graph_of_program), str(root / WHOLE_FILE))
    if not record.covers:
        raise RunError("expected a finished whole, got none", where=str(root), hint="--resume the search")
    parts = record.best.parts
    count = len(parts)
    if number is not None and number > count:
        raise RunError(f"expected a part from 1 to {count}, got {number}", where=str(root), hint="count parts from 1")
    wanted = range(count) if number is None else [number - 1]
    found: dict[tuple[KernelGraph, KernelGraph], EmulationCase] = {}
    for i in wanted:
        for case in _part(root, program, record, i):
            found.setdefault((case.program, case.graph), case)
    return list(found.values())


def _part(root: Path, program: KernelGraph, record: WholeRecord, i: int) -> Iterator[EmulationCase]:
    part: PartRecord = record.best.parts[i]
    name = f"part {i + 1}"
    if part.candidate is None:
        own, _, _ = extract_subprogram(program, part.operators)
        yield EmulationCase(f"{name}, as it is", own, own, record.identity.target)
        return
    rank = part.directory.rpartition("/")[2].split("-")[0]
    if not (root / part.run).resolve().is_relative_to(root.resolve()) or not rank.isdecimal():
        what = f"expected a directory of the run, got {part.directory!r}"
        raise FormatError(what, where=str(root / WHOLE_FILE), hint="the file is not one that a search wrote")
    case = _candidate(root / part.run, int(rank))
    yield EmulationCase(f"{name}, {case.name}", case.program, case.graph, case.target)
