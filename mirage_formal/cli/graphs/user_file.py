"""Reader of programs from a user's Python file."""

from __future__ import annotations

import ast
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from mirage_formal.frontend.origins import Origins, origins_of
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.run.settings import display_path
from mirage_formal.support.errors import MirageError, ProgramError

#: What the file sees as ``__name__``: not "__main__", so that its main guard stays closed.
RUN_NAME: Final = "mirage_formal_program"
#: Seconds beyond the time limit for a file that builds programs: limits below a second are about the search.
_GRACE_S: Final = 1.0
_MAKES: Final = "new_kernel_graph"
_EXAMPLE: Final = "a graph is new_kernel_graph(), its inputs new_input(dims), its outputs mark_output(tensor)"

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """A program, with the source lines of its inputs and operators.

    Attributes:
        program: The program.
        origins: Source lines of its inputs and operators.
        unmarked: Names of its unread results, where the file marks no output and these became the outputs.
    """

    program: KernelGraph
    origins: Origins
    unmarked: tuple[str, ...] = ()


def load_programs(file: Path) -> dict[str, KernelGraph]:
    """Execute a file and freeze every kernel graph with an output among its module-level names.

    Raises:
        ProgramError: The file is missing, is not Python, raises, or defines no graph with an output.
        MirageError: The file builds a graph that is ill-formed.
    """
    return {name: written.program for name, written in read_programs(file).items()}


def read_programs(file: Path, time_limit: float | None = None) -> dict[str, SourceProgram]:
    """Execute a file and return its programs with their source lines; see ``load_programs``.

    Args:
        file: The file.
        time_limit: Seconds after which its execution is ended; None for no limit.
    """
    where = display_path(file)
    names = _execute(file, where, time_limit)
    graphs = {name: value for name, value in names.items() if _is_graph(value)}
    if not graphs:
        raise _no_graph(file, where)
    programs: dict[str, SourceProgram] = {}
    seen: set[int] = set()
    for name, value in graphs.items():
        results = value.outputs if isinstance(value, KernelGraph) else value.results()
        if results and id(value) not in seen:
            seen.add(id(value))
            program = value if isinstance(value, KernelGraph) else value.freeze()
            unmarked = () if value.outputs else tuple(map(repr, results))
            programs[name] = SourceProgram(program, origins_of(value, program), unmarked)
    if not programs:
        what = f"expected a graph with an output, got {', '.join(graphs)} without one"
        raise ProgramError(what, where=where, hint="call mark_output on the tensors that the program computes")
    return programs


def _no_graph(file: Path, where: str) -> ProgramError:
    """Return the error that a file defines no graph at module level, with the reason."""
    what = "expected a kernel graph at module level, got none"
    tree = ast.parse(file.read_bytes())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == _MAKES]
    if not calls:
        return ProgramError(what, where=where, hint=f"make one with {_MAKES}(); {_EXAMPLE}")
    line = calls[0].lineno
    guards = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
    if any(guard.lineno <= line <= (guard.end_lineno or 0) for guard in guards):
        place = f"line {line} makes one, under the main guard"
    elif inside:
        where_called = "is called only under the main guard" if guards else "is not called at module level, or not kept"
        place = f"line {line} makes one, in the function {inside[-1].name}, which {where_called}"
    else:
        place = f"line {line} makes one, which no name at module level holds"
    hint = (
        "a search runs the file as an import does, without its main guard: make the graph at module level, as in "
        "graph = new_kernel_graph(), and keep only what measures or prints behind the guard; or run the file with "
        "python, and call graph.superoptimize() in it"
    )
    return ProgramError(f"{what}: {place}", where=where, hint=hint)


def _called(node: ast.Call) -> str:
    """Return the last name of a called function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def choose(programs: Mapping[str, P], wanted: str | None, file: Path) -> dict[str, P]:
    """Return the programs to search: all, or the named one.

    Raises:
        ProgramError: There is none of that name.
    """
    if wanted is None:
        return dict(programs)
    if wanted not in programs:
        what = f"expected one of the programs {', '.join(programs)}, got {wanted!r}"
        raise ProgramError(what, where=display_path(file), hint="leave --program out to search all of them")
    return {wanted: programs[wanted]}


def _is_graph(value: object) -> bool:
    freeze = getattr(type(value), "freeze", None)
    return isinstance(value, KernelGraph) or (callable(freeze) and hasattr(value, "mark_output"))


def _execute(file: Path, where: str, time_limit: float | None) -> dict[str, Any]:
    if not file.is_file():
        got = "a directory" if file.is_dir() else "nothing there"
        raise ProgramError(f"expected a Python file, got {got}", where=where, hint="check the path")
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(file)]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with _limit_execution(file, where, time_limit):
            return runpy.run_path(str(file), run_name=RUN_NAME)
    except MirageError:
        raise
    except SyntaxError as error:
        at = f"{where}:{error.lineno}" if error.filename == str(file) else f"{error.filename}:{error.lineno}"
        raise ProgramError(
            f"expected Python, got a syntax error: {error.msg}{_line_with_caret(error)}", where=at, hint="fix it"
        ) from None
    except SystemExit as error:
        hint = "put what only a script should do behind a main guard"
        raise ProgramError(f"expected definitions, got an exit ({error.code})", where=where, hint=hint) from None
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        at = f"{where}:{lines[-1]}" if lines else where
        what = f"expected the file to run, got {type(error).__name__}: {str(error)[:300]}"
        hint = _similar_name(error) or f"run it with python to see more; {_EXAMPLE}"
        raise ProgramError(what, where=at, hint=hint) from None
    finally:
        sys.argv = argv
        sys.path[:] = path


def _line_with_caret(error: SyntaxError) -> str:
    """Return the line of a syntax error, and below it a caret at the place; empty if the line is not known."""
    if not error.text:
        return ""
    line = error.text.rstrip("\n")
    text = line.lstrip()[:200]
    column = (error.offset or 1) - 1 - (len(line) - len(line.lstrip()))
    return f"\n    {text}" + (f"\n    {' ' * column}^" if 0 <= column <= len(text) else "")


def _similar_name(error: Exception) -> str:
    """Return a hint with the attribute that a misspelt one resembles; empty if none does."""
    if not isinstance(error, AttributeError) or error.name is None:
        return ""
    names = {name.replace("_", ""): name for name in dir(error.obj) if not name.startswith("_")}
    near = get_close_matches(error.name.replace("_", "").lower(), names, n=1, cutoff=0.75)
    return f"did you mean {names[near[0]]}?" if near else ""


@contextmanager
def _limit_execution(file: Path, where: str, seconds: float | None) -> Iterator[None]:
    """End what runs inside ``_GRACE_S`` after some seconds of wall time; without effect outside of a main thread.

    Raises:
        ProgramError: The time is over; says which line of the file was running.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    inside = True

    def stop(_number: int, frame: FrameType | None) -> None:
        if not inside:
            return
        lines = [line for found, line in traceback.walk_stack(frame) if found.f_code.co_filename == str(file)]
        at = f"{where}:{lines[0]}" if lines else where
        hint = "the time limit holds for building the program too; build it once, and with less work"
        raise ProgramError(f"expected the file to end within {seconds:g} s, it still runs", where=at, hint=hint)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_S, 1.0)  # again, if the file catches the error
        try:
            yield
        finally:
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
