"""Verdicts for graphs from anywhere: our own files, checkpoints of Mirage, graphs built by hand."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mirage_formal.errors import FormatError, GraphError, MirageError, ProgramError, RunError
from mirage_formal.guard import orderly
from mirage_formal.ir.check import kernel_types
from mirage_formal.ir.graph import KernelGraph
from mirage_formal.ir.mirage_json import graphs_of, is_mirage, match_inputs
from mirage_formal.ir.serialize import MAX_BYTES, from_value, load_json, to_json
from mirage_formal.ir.types import DType
from mirage_formal.ir.verdict import Different, Equivalent, Probable, Unknown, Verdict
from mirage_formal.journal import GRAPH_FILE, PROOF_FILE, write_atomic
from mirage_formal.pipeline.lock import writing
from mirage_formal.pipeline.settings import as_program, display_path
from mirage_formal.text import json_text, plain

VERDICTS_FILE: Final = "verdicts.json"
_CELL: Final = 400  # characters of a reason in a table


class GraphVerdict(msgspec.Struct, frozen=True):
    """What is said about one graph.

    Attributes:
        index: Its place in the file.
        verdict: equivalent, probable, different or unknown.
        reason: The conditions under which it is equivalent, the first difference, why nothing is known, or "ill-formed"
            and what is wrong.
        counterexample: For different: inputs and the values in which the outputs differ; null otherwise.
        seconds: Time that deciding took.
    """

    index: int
    verdict: str
    reason: str
    counterexample: Any
    seconds: float


class ProgramVerdicts(msgspec.Struct, frozen=True):
    """What ``--json`` prints: the program's name and a verdict for each graph."""

    program: str
    graphs: tuple[GraphVerdict, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """A graph with its verdict; a graph that is ill-formed or does not fit the program has the error instead."""

    index: int
    graph: KernelGraph | None
    verdict: Verdict | MirageError
    seconds: float


def verify(program: Any, graph: Any, *, seed: int = 0) -> Verdict:
    """The verdict on one graph; see ``mirage_formal.verify``.

    Raises:
        MirageError: See there.
    """
    wanted = as_program(program)
    if not isinstance(graph, str | Path):
        return _decided(wanted, as_program(graph), seed, "graph")
    where = display_path(Path(graph))
    found = load_graphs(Path(graph), wanted)
    if len(found) != 1:
        hint = f"python -m mirage_formal.verify PROGRAM.py {where} takes several"
        raise FormatError(f"expected one graph, got {len(found)}", where=where, hint=hint)
    return _decided(wanted, found[0], seed, where)


def judge(
    program: KernelGraph, graphs: Sequence[KernelGraph | MirageError], where: str, *, seed: int = 0
) -> Iterator[Judged]:
    """Graph after graph with its verdict, in order.

    Args:
        program: The program.
        graphs: Graphs, or why they could not be read.
        where: Name of their file, for messages.
        seed: Seed of the search for counterexamples.

    Raises:
        MirageError: The only graph is ill-formed or does not fit the program; of several, the others are still judged.
    """
    for index, graph in enumerate(graphs):
        start = time.perf_counter()
        verdict: Verdict | MirageError
        try:
            verdict = _decided(program, graph, seed, where)
        except MirageError as error:
            if len(graphs) == 1:
                raise
            verdict = error
        given = None if isinstance(graph, MirageError) else graph
        yield Judged(index, given, verdict, time.perf_counter() - start)


def load_graphs(path: Path, program: KernelGraph) -> list[KernelGraph | MirageError]:
    """The graphs of a file: one of ours or a list of such, or a checkpoint of Mirage.

    A graph of several that cannot be read is given as the error that says why. Where a checkpoint leaves open which
    16-bit type it has, it is the program's.

    Raises:
        FormatError: There is no such file, or it is neither.
    """
    where = display_path(path)
    if not path.is_file():
        got = "a directory" if path.is_dir() else "nothing there"
        raise FormatError(f"expected a JSON file, got {got}", where=where, hint="check the path")
    with path.open("rb") as file:
        value = load_json(file.read(MAX_BYTES + 1), where)
    if is_mirage(value):
        bfloat16 = any(item.tensor.dtype is DType.BFLOAT16 for item in program.inputs)
        half = DType.BFLOAT16 if bfloat16 else DType.FLOAT16
        return list(graphs_of(value, where, half=half, names=[item.name for item in program.inputs]))
    if not isinstance(value, list):
        return [from_value(value, where)]
    return [_own(item, f"{where}, graph {index}") for index, item in enumerate(value)]


def only_program(programs: dict[str, KernelGraph], file: Path) -> tuple[str, KernelGraph]:
    """The one program that graphs are compared with.

    Raises:
        ProgramError: There are several.
    """
    if len(programs) != 1:
        what = f"expected one program, got {', '.join(programs)}"
        raise ProgramError(what, where=display_path(file), hint="choose one with --program")
    return next(iter(programs.items()))


def said(judged: Judged) -> GraphVerdict:
    """A verdict in plain data, as it is printed."""
    verdict = judged.verdict
    name, reason, counterexample = "unknown", "", None
    match verdict:
        case Equivalent():
            name = "equivalent"
            reason = f"where {'; '.join(verdict.conditions)}" if verdict.conditions else ""
        case Probable():
            name = "probable"
            reason = verdict.reason or f"agreed at {verdict.rounds} random points of a finite field"
        case Different():
            name = "different"
            at = ", ".join(str(i) for i in verdict.index)
            reason = (
                f"output {verdict.output} at ({at}): expected {_value(verdict.expected)}, got {_value(verdict.got)}"
            )
            counterexample = _counterexample(verdict)
        case Unknown():
            reason = verdict.reason
        case MirageError():
            reason = f"ill-formed: {verdict.what}"
        case _:
            assert_never(verdict)
    return GraphVerdict(judged.index, name, reason, counterexample, round(judged.seconds, 6))


def verdicts_json(name: str, judged: Sequence[Judged]) -> str:
    """All verdicts as one JSON object."""
    shown = ProgramVerdicts(name, tuple(said(one) for one in judged))
    return json_text(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode())


def print_verdicts(name: str, judged: Sequence[Judged], console: Console) -> None:
    """A table of all verdicts."""
    equivalent = sum(isinstance(one.verdict, Equivalent) for one in judged)
    title = f"{name}: {equivalent} of {len(judged)} graphs equivalent"
    table = Table(title=Text(plain(title)), title_justify="left")
    table.add_column("graph", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason or first difference")
    table.add_column("seconds", justify="right", no_wrap=True)
    for row in map(said, judged):
        reason = plain(row.reason, _CELL)
        if row.verdict == "equivalent" and reason:
            count = row.reason.count(";") + 1
            reason = f"where no divisor is 0 and no radicand negative ({count} places; --json lists them)"
        table.add_row(str(row.index), row.verdict, Text(reason), f"{row.seconds:.3f}")
    console.print(table)


@contextmanager
def written(out: Path | None, name: str) -> Iterator[Callable[[Judged], None]]:
    """Writes each verdict as it comes, if a directory is given, and verdicts.json at the end, also at an early one.

    Raises:
        RunError: The directory is not empty, cannot be made, or somebody else writes to it.
    """
    if out is None:
        yield lambda one: None
        return
    with orderly(f"the verdicts so far are in {display_path(out)}"), writing(out):
        _make_directory(out)
        judged: list[Judged] = []

        def keep(one: Judged) -> None:
            _write_graph(out, one)
            judged.append(one)

        try:
            yield keep
        finally:
            write_atomic(out / VERDICTS_FILE, (verdicts_json(name, judged) + "\n").encode())


def _make_directory(out: Path) -> None:
    where = display_path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise RunError(
                "expected an empty or new directory, got files in it", where=where, hint="give another --out"
            )
    except OSError as error:
        raise RunError(f"expected a directory to write, got {error.strerror}", where=where, hint="mend --out") from None


def _write_graph(out: Path, one: Judged) -> None:
    """Write <index>/mugraph.json and the graph's proof if it has one."""
    if one.graph is None:
        return
    directory = out / str(one.index)
    write_atomic(directory / GRAPH_FILE, to_json(one.graph).encode())
    if isinstance(one.verdict, Equivalent):
        write_atomic(directory / PROOF_FILE, one.verdict.proof)


def _decided(program: KernelGraph, graph: KernelGraph | MirageError, seed: int, where: str) -> Verdict:
    if isinstance(graph, MirageError):
        raise graph
    try:
        kernel_types(graph)
        matched = match_inputs(graph, program)
    except GraphError as error:
        raise GraphError(error.what, where=where, hint=error.hint) from None
    # The prover is loaded by the first graph: a file at fault is refused without it.
    from mirage_formal.verify.decide import decide

    return replayed(program, matched, decide(program, matched, seed=seed))


def replayed(program: KernelGraph, graph: KernelGraph, verdict: Verdict) -> Verdict:
    """A verdict whose proof, if it has one, the checker's kernel has replayed, with the conditions that it read.

    Sound: a proof that the kernel refuses is believed by nobody; the verdict is Unknown then.
    """
    if not isinstance(verdict, Equivalent):
        return verdict
    from mirage_formal.check.kernel.algebra import ProofError
    from mirage_formal.check.kernel.replay import replay

    try:
        theorem = replay(program, graph, verdict.proof)
    except ProofError as error:
        return Unknown(f"the checker refuses the proof, which is a bug of the prover: {error.what}")
    return Equivalent(verdict.proof, tuple(str(condition) for condition in theorem.conditions))


def explanations(program: KernelGraph, judged: Sequence[Judged], *, latex: bool) -> Iterator[str]:
    """For each graph that could be read, the formulas of its proof, or how far the prover came."""
    from mirage_formal.verify.explain import explain

    for one in judged:
        if one.graph is not None and not isinstance(one.verdict, MirageError):
            title = f"graph {one.index}"
            yield f"{title}\n{'=' * len(title)}\n{explain(program, match_inputs(one.graph, program), latex=latex)}"


def _value(number: float) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _own(value: object, where: str) -> KernelGraph | MirageError:
    try:
        return from_value(value, where)
    except MirageError as error:
        return error


def _counterexample(verdict: Different) -> Any:
    """The counterexample in plain data; a point of a finite field where there is no other."""
    if verdict.counterexample is not None:
        return msgspec.to_builtins(verdict.counterexample)
    found = dataclasses.asdict(verdict)
    del found["counterexample"]
    return found
