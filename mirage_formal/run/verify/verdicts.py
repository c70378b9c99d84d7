"""Verdicts for graphs from outside a search: our own files, checkpoints of Mirage, graphs built by hand."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, assert_never

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mirage_formal.cache.lock import lock_directory
from mirage_formal.graph.counterexample import Counterexample
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.signature_check import match_inputs
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown, Verdict
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import GRAPH_FILE, PROOF_FILE, write_atomic
from mirage_formal.run.settings import as_program, display_path
from mirage_formal.run.verify.graph_file import load_graphs, read_graph_file
from mirage_formal.support.errors import FormatError, GraphError, MirageError, ProgramError, RunError, SpaceError
from mirage_formal.support.guard import keep_results_on_stop
from mirage_formal.support.terminal import escape_line, json_text

VERDICTS_FILE: Final = "verdicts.json"
PROGRAM_FILE: Final = "program.json"
#: Time limit in seconds for the start of a process.
_START_S: Final = 120.0
_CELL: Final = 400  # characters of a reason in a table


class GraphVerdict(msgspec.Struct, frozen=True):
    """Verdict about one graph of a file.

    Attributes:
        index: Its position in the file.
        verdict: equivalent, probable, different or unknown.
        reason: The conditions of an equivalence; inputs and the first difference; the reason of an unknown verdict; or
            "ill-formed" and the fault.
        conditions: Side conditions of program and graph, for an equivalent graph.
        added: Those of the graph that the program does not have.
        counterexample: For different: inputs and the values in which the outputs differ; null otherwise.
        seconds: Time of the decision.
    """

    index: int
    verdict: str
    reason: str
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    counterexample: Any
    seconds: float


class ProgramVerdicts(msgspec.Struct, frozen=True):
    """Output of ``--json``: the program's name and a verdict for each graph."""

    program: str
    graphs: tuple[GraphVerdict, ...]


@dataclass(frozen=True, slots=True)
class VerifiedGraph:
    """A graph with its verdict; a graph that is ill-formed or does not fit the program has the error instead.

    Attributes:
        index: Position in the file.
        graph: The graph; None if it could not be read.
        verdict: Verdict, or the error.
        seconds: Time that the decision took.
        names: The program's names for its inputs.
    """

    index: int
    graph: KernelGraph | None
    verdict: Verdict | MirageError
    seconds: float
    names: tuple[str, ...] = ()


def verify(program: Any, graph: Any, *, seed: int = 0, time_limit: float | None = None) -> Verdict:
    """Return the verdict on one graph; see ``mirage_formal.equivalence``.

    Raises:
        MirageError: As in ``mirage_formal.equivalence``.
    """
    wanted = as_program(program)
    if not isinstance(graph, str | Path):
        return _verify_one(wanted, as_program(graph), seed, "graph", time_limit)
    where = display_path(Path(graph))
    found = load_graphs(read_graph_file(Path(graph), where), where, wanted)
    if len(found) != 1:
        hint = f"python -m mirage_formal.verify PROGRAM.py {where} takes several" if found else ""
        raise FormatError(f"expected one graph, got {len(found)}", where=where, hint=hint)
    return _verify_one(wanted, found[0], seed, where, time_limit)


def _verify_one(
    program: KernelGraph, graph: KernelGraph | MirageError, seed: int, where: str, limit: float | None
) -> Verdict:
    with VerdictProcess(limit) as deciding:
        return deciding.verdict(program, graph, seed, where)


class VerdictProcess:
    """Decision procedure with a time limit for each graph, in a process that is killed at the limit.

    Sound: what took too long is Unknown.

    Args:
        limit_s: Seconds for each graph; None decides in this process, without a limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        if limit_s is not None and not 0 < limit_s < float("inf"):
            hint = "as in --time-limit 300"
            raise SpaceError(f"expected a number of seconds above 0, got {limit_s}", where="--time-limit", hint=hint)
        self._limit_s = limit_s
        self._pool: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def verdict(self, program: KernelGraph, graph: KernelGraph | MirageError, seed: int, where: str) -> Verdict:
        """Return the verdict on one graph.

        Raises:
            MirageError: The graph is an error, is ill-formed or does not fit the program.
        """
        if isinstance(graph, MirageError):
            raise graph
        verdict: Verdict = self.call(_decide_and_replay, (program, graph, seed, where))
        return verdict

    def call(self, function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
        """Call a module-level function; return its value, or Unknown if it exceeds the time limit.

        Raises:
            MirageError: The function raises it.
        """
        if self._limit_s is None:
            return function(*task)
        if self._pool is None:
            from mirage_formal.workers.pool import Pool

            self._pool = Pool(1, ("mirage_formal.run.verify.verdicts", "mirage_formal.run.verify.decide"))
            for _ in self._pool.run(_do_nothing, [None], limit_s=_START_S):  # the limit excludes its start
                pass
        from mirage_formal.workers.dispatch import TaskDone, TaskFailed

        for outcome in self._pool.run(_in_child, [(function, task)], limit_s=self._limit_s, tries=1):
            match outcome:
                case TaskDone(value=value):
                    return value
                case TaskFailed(overdue=True):
                    return Unknown(f"time limit of {self._limit_s:g} s")
                case TaskFailed(reason=reason):
                    return Unknown(reason)
        raise AssertionError("the task had no outcome")


def _do_nothing(_: None) -> None:
    """Do nothing; as the first task of a fresh process, it keeps the start out of the time limit."""


def _in_child(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, task = call
    return function(*task)


def compute_verdicts(
    program: KernelGraph,
    graphs: Sequence[KernelGraph | MirageError],
    where: str,
    *,
    seed: int = 0,
    time_limit: float | None = None,
) -> Iterator[VerifiedGraph]:
    """Yield each graph with its verdict, in order.

    Args:
        program: The program.
        graphs: Graphs, or errors of those that could not be read.
        where: Name of their file, for messages.
        seed: Seed of the search for counterexamples.
        time_limit: Seconds for each graph; None is no limit.

    Raises:
        MirageError: The only graph is ill-formed or does not fit the program; of several, the others are still judged.
    """
    names = tuple(source.name or f"x{i}" for i, source in enumerate(program.inputs))
    with VerdictProcess(time_limit) as deciding:
        for index, graph in enumerate(graphs):
            start = time.perf_counter()
            verdict: Verdict | MirageError
            try:
                verdict = deciding.verdict(program, graph, seed, where)
            except MirageError as error:
                if len(graphs) == 1:
                    raise
                verdict = error
            given = None if isinstance(graph, MirageError) else graph
            yield VerifiedGraph(index, given, verdict, time.perf_counter() - start, names)


def only_program(programs: dict[str, KernelGraph], file: Path) -> tuple[str, KernelGraph]:
    """Return the single program that graphs are compared with.

    Raises:
        ProgramError: There are several.
    """
    if len(programs) != 1:
        what = f"expected one program, got {', '.join(programs)}"
        raise ProgramError(what, where=display_path(file), hint="choose one with --program")
    return next(iter(programs.items()))


def plain_verdict(judged: VerifiedGraph) -> GraphVerdict:
    """Return a verdict as plain data for printing."""
    verdict = judged.verdict
    name, reason, counterexample = "unknown", "", None
    conditions, added = tuple[str, ...](), tuple[str, ...]()
    match verdict:
        case Equivalent():
            name = "equivalent"
            conditions, added = verdict.conditions, verdict.added
            reason = f"where {'; '.join(conditions)}" if conditions else ""
        case Probable():
            name = "probable"
            reason = verdict.reason or f"agreed at {verdict.rounds} random points of a finite field"
        case Different():
            name = "different"
            at = ", ".join(str(i) for i in verdict.index)
            reason = (
                f"output {verdict.output} at ({at}): expected {_value(verdict.expected)}, got {_value(verdict.got)}"
            )
            if verdict.counterexample is not None:
                reason = f"{_inputs(verdict.counterexample, judged.names)}; {reason}"
            counterexample = _counterexample(verdict)
        case Unknown():
            reason = verdict.reason
        case MirageError():
            reason = f"ill-formed: {verdict.what}"
        case _:
            assert_never(verdict)
    return GraphVerdict(judged.index, name, reason, conditions, added, counterexample, round(judged.seconds, 6))


def verdicts_json(name: str, judged: Sequence[VerifiedGraph]) -> str:
    """Return all verdicts as one JSON object."""
    shown = ProgramVerdicts(name, tuple(plain_verdict(one) for one in judged))
    return json_text(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode())


def print_verdicts(name: str, judged: Sequence[VerifiedGraph], console: Console) -> None:
    """Print a table of all verdicts."""
    equivalent = sum(isinstance(one.verdict, Equivalent) for one in judged)
    title = f"{name}: {equivalent} of {len(judged)} graphs equivalent"
    table = Table(title=Text(escape_line(title)), title_justify="left")
    table.add_column("graph", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason or first difference")
    table.add_column("seconds", justify="right", no_wrap=True)
    for row in map(plain_verdict, judged):
        reason = escape_line(row.reason, _CELL)
        if row.verdict == "equivalent" and reason:
            count = len(row.conditions)
            logarithms = any("argument of log" in one for one in row.conditions)
            logs = ", and no logarithm of what is not above 0" if logarithms else ""
            reason = f"where no divisor is 0 and no radicand negative{logs} ({count} places; --json lists them)"
            if row.added:
                reason += f"; ADDED, for the program does not need it: {escape_line('; '.join(row.added), _CELL)}"
        table.add_row(str(row.index), row.verdict, Text(reason), f"{row.seconds:.3f}")
    console.print(table)


@contextmanager
def write_verdicts(out: Path | None, name: str, program: KernelGraph) -> Iterator[Callable[[VerifiedGraph], None]]:
    """Write the program, each verdict as it is passed to the yielded function, and verdicts.json at the end.

    verdicts.json is written also after an interruption. Without ``out`` nothing is written.

    Raises:
        RunError: The directory is not empty, cannot be made, or another process writes to it.
    """
    if out is None:
        yield lambda one: None
        return
    with keep_results_on_stop(f"the verdicts so far are in {display_path(out)}"), lock_directory(out):
        _make_directory(out)
        write_atomic(out / PROGRAM_FILE, to_json(program).encode())
        judged: list[VerifiedGraph] = []

        def keep(one: VerifiedGraph) -> None:
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
        raise RunError(f"expected a directory to write, got {error.strerror}", where=where, hint="fix --out") from None


def _write_graph(out: Path, one: VerifiedGraph) -> None:
    """Write <index>/mugraph.json and the graph's proof if it has one."""
    if one.graph is None:
        return
    directory = out / str(one.index)
    write_atomic(directory / GRAPH_FILE, to_json(one.graph).encode())
    if isinstance(one.verdict, Equivalent):
        write_atomic(directory / PROOF_FILE, one.verdict.proof)


def _decide_and_replay(program: KernelGraph, graph: KernelGraph, seed: int, where: str) -> Verdict:
    try:
        kernel_types(graph)
        matched = match_inputs(graph, program)
    except GraphError as error:
        raise GraphError(error.what, where=where, hint=error.hint) from None
    # The prover is loaded by the first graph, so that a bad file is refused without it.
    from mirage_formal.run.verify.decide import decide_equality

    return replay_verdict(program, matched, decide_equality(program, matched, seed=seed), seed)


def replay_verdict(program: KernelGraph, graph: KernelGraph, verdict: Verdict, seed: int = 0) -> Verdict:
    """Replay the proof of a verdict, if it has one, and return the verdict with the conditions that the checker read.

    Sound: a proof that the kernel refuses is believed by nobody; the verdict is Unknown then, and where no input is
    found that meets the conditions.
    """
    if not isinstance(verdict, Equivalent):
        return verdict
    from mirage_formal.check import equivalence
    from mirage_formal.check.proof.ring import ProofError
    from mirage_formal.prove.counterexamples.definedness import check_conditions

    try:
        held = equivalence.replay_with_obligations(program, graph, verdict.proof)
    except ProofError as error:
        return Unknown(f"the checker refuses the proof, which is a bug of the prover: {error.what}")
    never = check_conditions(program, graph, held.doubtful, seed=seed)
    return Equivalent(verdict.proof, held.conditions, held.added) if never is None else never


def explanations(
    program: KernelGraph, judged: Sequence[VerifiedGraph], *, latex: bool, time_limit: float | None = None
) -> Iterator[str]:
    """Yield, for each graph that was read, the formulas of its proof and conditions, or the prover's progress."""
    with VerdictProcess(time_limit) as deciding:
        for one in judged:
            if one.graph is not None and not isinstance(one.verdict, MirageError):
                title = f"graph {one.index}"
                text = deciding.call(_explain_graph, (program, one.graph, latex))
                said = f"unknown: {text.reason}\n" if isinstance(text, Unknown) else text
                yield f"{title}\n{'=' * len(title)}\n{said}{_conditions(one.verdict)}"


def _explain_graph(program: KernelGraph, graph: KernelGraph, latex: bool) -> str:
    from mirage_formal.prove.equality.explain import explain

    return explain(program, match_inputs(graph, program), latex=latex)


def _conditions(verdict: Verdict) -> str:
    """Return the text of a proof's side conditions; those that the program does not have are listed apart."""
    if not isinstance(verdict, Equivalent):
        return ""
    lines = ["", "Conditions", *(f"  {one}" for one in verdict.conditions if one not in verdict.added)]
    lines += ["Conditions that the program does not have", *(f"  {one}" for one in verdict.added or ("none",))]
    return "\n".join(lines) + "\n"


def _inputs(found: Counterexample, names: Sequence[str]) -> str:
    """Return the text of a counterexample's inputs: the fill value of each, and the elements that differ from it."""
    said = []
    for number, fill in enumerate(found.fills):
        name = names[number] if number < len(names) else f"x{number}"
        text = f"{name} = {fill.even}"
        if fill.even != fill.odd:
            text += f" ({fill.odd} where the sum of the coordinates is odd)"
        but = [
            f"{name}[{', '.join(map(str, one.index))}] = {one.value}" for one in found.entries if one.input == number
        ]
        said.append(f"{text} but {', '.join(but)}" if but else text)
    return "; ".join(said)


def _value(number: float) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _counterexample(verdict: Different) -> Any:
    """Return the counterexample as plain data; a point of a finite field where there is no other."""
    if verdict.counterexample is not None:
        return msgspec.to_builtins(verdict.counterexample)
    found = dataclasses.asdict(verdict)
    del found["counterexample"]
    return found
