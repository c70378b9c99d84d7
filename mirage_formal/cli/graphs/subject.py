"""Graphs that a path on the command line denotes, with the facts in their directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.graph.formats.json import MAX_BYTES, from_json, from_value, load_json
from mirage_formal.graph.formats.mirage.checkpoint_reader import graphs_of, is_mirage
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.records import (
    CANDIDATES,
    EQUIVALENCE_FILE,
    GRAPH_FILE,
    KERNELS,
    LAUNCH_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    VERIFICATION_FILE,
    RunRecord,
    VerificationRecord,
    decode,
    is_cover,
    read_file,
)
from mirage_formal.records.partition import WHOLE_FILE, CoverVerificationRecord, WholeRecord
from mirage_formal.run.settings import display_path
from mirage_formal.support.errors import FormatError, RunError

_HINT: Final = "give a directory that a search has written, one of its candidates, or a file of a graph"


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A graph, with the facts recorded where it was found.

    Attributes:
        name: Name of the graph.
        graph: The graph.
        program: Its program; None where none is recorded, and for programs.
        verdict: Recorded verdict on their equality, which only ``check`` establishes; empty where there is none.
        proof: The file of the proof; None without one.
        kernels: The directory of its kernels, if it has any.
        target: Target that kernels are planned for, where known.
    """

    name: str
    graph: KernelGraph
    program: KernelGraph | None = None
    verdict: str = ""
    proof: Path | None = None
    kernels: Path | None = None
    target: str = ""


def read_graphs(path: Path, candidate: int | None = None) -> Sequence[LoadedGraph]:
    """Return the graphs that a path denotes: all programs or graphs of a file; one candidate of a directory.

    Args:
        path: A Python file of programs, a JSON file of graphs, or a directory of a run, a candidate or kernels.
        candidate: Rank of a run's candidate, or of a whole program's cover; None is the best.

    Raises:
        MirageError: There is nothing of that kind.
    """
    if path.suffix == ".py" and not path.is_dir():
        from mirage_formal.cli.graphs.user_file import load_programs

        return [LoadedGraph(name, graph) for name, graph in load_programs(path).items()]
    if path.is_file():
        return _of_file(path)
    return [read_graph(path, candidate)]


def read_graph(path: Path, candidate: int | None = None) -> LoadedGraph:
    """Return the graph that a directory, or a file with one graph, denotes; see ``read_graphs``.

    Raises:
        MirageError: There is none, or there are several.
    """
    if path.is_file():
        found = read_graphs(path)
        if len(found) != 1:
            what = f"expected one graph, got {', '.join(one.name for one in found[:8])}"
            raise FormatError(what, where=display_path(path), hint="give a file with one of them")
        return found[0]
    if (path / LAUNCH_FILE).is_file():
        return _kernels(path)
    if (path / MANIFEST_FILE).is_file() and (path / GRAPH_FILE).is_file():
        return _candidate(path)
    if (path / WHOLE_FILE).is_file():
        return _cover(path, candidate or 1)
    if (path / RUN_FILE).is_file():
        return _of_run(path, candidate or 1)
    what = "expected a run, a candidate or kernels, got " + ("none of them" if path.is_dir() else "nothing there")
    raise RunError(what, where=display_path(path), hint=_HINT)


def _of_file(path: Path) -> list[LoadedGraph]:
    where = display_path(path)
    with path.open("rb") as file:
        value = load_json(file.read(MAX_BYTES + 1), where)
    if is_mirage(value):
        graphs = [one for one in graphs_of(value, where, half=DType.FLOAT16, names=[])]
    else:
        graphs = [from_value(one, where) for one in (value if isinstance(value, list) else [value])]
    found = []
    for number, one in enumerate(graphs):
        if not isinstance(one, KernelGraph):
            raise one
        found.append(LoadedGraph(path.stem if len(graphs) == 1 else f"{path.stem} {number}", one))
    return found


def _of_run(root: Path, rank: int) -> LoadedGraph:
    found = sorted(path.parent for path in (root / CANDIDATES).glob(f"*/{GRAPH_FILE}"))
    chosen = [path for path in found if path.name.split("-")[0] == f"{rank:03}"]
    if not chosen:
        ranks = ", ".join(path.name.split("-")[0].lstrip("0") for path in found[:40]) or "any rank: the run has none"
        hint = "leave --candidate out for the best" if found else "mirage-formal search finds candidates"
        raise RunError(f"expected a candidate of rank {ranks}, got {rank}", where=display_path(root), hint=hint)
    return _candidate(chosen[0])


def _candidate(path: Path) -> LoadedGraph:
    graph = from_json(read_file(path / GRAPH_FILE), display_path(path / GRAPH_FILE))
    verification = path / VERIFICATION_FILE
    data, where = read_file(verification), display_path(verification)
    record = decode(data, CoverVerificationRecord, where) if is_cover(path) else decode(data, VerificationRecord, where)
    root = path.parent.parent
    kernels = root / KERNELS / path.name
    return LoadedGraph(
        path.name,
        graph,
        from_json(bytes(record.program), display_path(verification)),
        record.verdict.kind,
        proof if (proof := path / EQUIVALENCE_FILE).is_file() else None,
        kernels if (kernels / LAUNCH_FILE).is_file() else None,
        decode(read_file(run), RunRecord, str(run)).identity.target if (run := root / RUN_FILE).is_file() else "",
    )


def _cover(path: Path, rank: int) -> LoadedGraph:
    where = path / WHOLE_FILE
    record = decode(read_file(where), WholeRecord, display_path(where))
    if not 1 <= rank <= len(record.covers):
        hint = "leave --candidate out for the best" if record.covers else "--resume the search"
        raise RunError(f"expected a cover from 1 to {len(record.covers)}, got {rank}", where=str(path), hint=hint)
    cover = record.covers[rank - 1]
    kernels = next(iter(sorted((path / KERNELS).glob(f"{rank:03}-*/{LAUNCH_FILE}"))), None)
    return LoadedGraph(
        f"{record.program}, cover {rank}",
        from_json(bytes(cover.graph), display_path(where)),
        from_json(bytes(record.graph_of_program), display_path(where)),
        "equivalent",
        None,
        kernels.parent if kernels is not None else None,
        record.identity.target,
    )


def _kernels(path: Path) -> LoadedGraph:
    from mirage_formal.codegen.executable import load_executable

    executable = load_executable(path)
    return LoadedGraph(path.name, executable.graph, executable.program, "", None, path)


__all__ = ["LoadedGraph", "read_graph", "read_graphs"]
