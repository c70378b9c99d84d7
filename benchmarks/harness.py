"""What benchmarks share: command lines that docstrings describe, and work in processes of its own."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
R = TypeVar("R")
ROOT = Path(__file__).resolve().parent.parent
_OPTION = re.compile(r" *(?P<dashes>--)?(?P<name>[\w-]+)(?: (?P<metavar>[^ ]+(?: [^ ]+)*))?(?:  +(?P<help>.*))?")
_TYPES: Mapping[str, Callable[[str], Any]] = {"N": int, "S": float, "PERCENT": float, "DIR": Path, "FILE": Path}


def parser_of(text: str | None, **choices: Iterable[str]) -> argparse.ArgumentParser:
    """Make the parser of the lines behind "Options:" in a docstring, such as "--jobs N  processes [default: 2]".

    A line without dashes names a positional argument. N is a number, S are seconds, names that end in DIR or FILE are
    paths, {a,b} are choices, and "..." takes several; without a name for its value an option is a flag. Of several with
    choices all are the default. A default that is a path lies in the repository; $OUT is the directory that the
    environment names, or the current one.

    Args:
        text: The docstring.
        choices: By option, where they are not fixed.
    """
    description, _, lines = (text or "").partition("\nOptions:\n")
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for found in map(_OPTION.fullmatch, filter(str.strip, lines.splitlines())):
        assert found is not None, lines
        said = found["help"] or ""
        named: dict[str, Any] = {"action": "store_true"} if found["metavar"] is None else _value(found["metavar"], said)
        if not found["dashes"]:
            named.pop("action", None)
        elif "[required]" in said:
            named["required"] = True
        if known := list(choices.get(found["name"], ())):
            named["choices"] = known
            if named.pop("action", None):
                named["default"] = known
        parser.add_argument((found["dashes"] or "") + found["name"], **named, help=said.replace("%", "%%"))
    return parser


def _value(metavar: str, said: str) -> dict[str, Any]:
    """Say how a value is read: its type, how many there are, and the default."""
    several, optional = "..." in metavar, metavar.startswith("[")
    names = metavar.strip("[]").removesuffix("...").split()
    read = _TYPES.get(names[-1].rpartition("_")[2], str)
    named: dict[str, Any] = {"type": read, "metavar": names[0] if len(names) == 1 else tuple(names)}
    if names[0].startswith("{"):
        choices = names[0].strip("{}").split(",")
        read = named["type"] = int if choices[0].isdigit() else str
        named["choices"] = [read(one) for one in choices]
    if several or optional or len(names) > 1:
        named["nargs"] = len(names) if len(names) > 1 else "?" if not several else "*" if optional else "+"
    if given := re.search(r"\[default: (?!all)([^\]]*)\]", said):
        words = [_word(read, word) for word in given[1].split()]
        named["default"] = words if several else words[0]
    elif several:
        named |= {"default": [], "action": "extend"}
    return named


def _word(read: Callable[[str], Any], word: str) -> Any:
    """Read a word of a docstring."""
    if word == "processors":
        return os.cpu_count() or 1
    if read is Path:
        return Path(os.environ.get("OUT", ".")) if word == "$OUT" else ROOT / word
    return read(word)


def options(text: str | None, **choices: Iterable[str]) -> argparse.Namespace:
    """Read the command line; see ``parser_of``."""
    return parser_of(text, **choices).parse_args()


def command(module: str, *arguments: object) -> tuple[str, ...]:
    """Make the command that runs a module."""
    return (sys.executable, "-m", module, *map(str, arguments))


def environment(**more: str) -> dict[str, str]:
    """Make the environment of a command that runs a module of this repository, in any directory."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def in_process(function: str, *given: Any, variables: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Any:
    """Call a function in a fresh process of its own, by JSON; ``function`` is its module, a colon and its name."""
    module, _, name = function.partition(":")
    code = f"import json, sys; from {module} import {name}; print(json.dumps({name}(*json.loads(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(given)],
        env={**os.environ, **(variables or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{function}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout.splitlines()[-1])


def in_pool(
    function: Callable[..., R], tasks: Iterable[tuple[Any, ...]], jobs: int, life: int | None = None
) -> Iterator[tuple[tuple[Any, ...], Future[R]]]:
    """Call a function in processes that start empty; tasks as they are done, with what became of them.

    Args:
        function: Is called with a task's items.
        tasks: Their items.
        jobs: How many processes; 0 is this one.
        life: After so many tasks of each, processes are replaced.
    """
    every = list(tasks)
    if jobs < 1:
        for task in every:
            future: Future[R] = Future()
            future.set_result(function(*task))
            yield task, future
        return
    size = jobs * life if life else max(1, len(every))
    for first in range(0, len(every), size):
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            futures = {pool.submit(function, *task): task for task in every[first : first + size]}
            for future in as_completed(futures):
                yield futures[future], future


def shown(title: str, results: Iterable[T], count: int) -> Iterator[T]:
    """Show on a terminal how many of so many results have come."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(results, count, description=title)


def append(path: Path, line: str) -> None:
    """Add a line to a file, behind the end of one that was cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode() + b"\n")


def parts(count: int, size: int, first: int = 0) -> list[range]:
    """Cut the numbers from the first one on into ranges of at most a size."""
    return [range(at, min(at + size, first + count)) for at in range(first, first + count, size)]


def in_turns(sides: Sequence[T], measure: Callable[[T], R], rounds: int) -> list[list[R]]:
    """Measure sides one after another, so many rounds, every second one backwards; a row for each round."""
    found = []
    for number in range(rounds):
        order = range(len(sides))[:: -1 if number % 2 else 1]
        values = {i: measure(sides[i]) for i in order}
        found.append([values[i] for i in range(len(sides))])
    return found


def spread(values: Sequence[float]) -> str:
    """Say the median of some values, the smallest and the largest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def row(*cells: object) -> str:
    """Write a line of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table(heads: str | Sequence[str], rows: Iterable[Sequence[object]], words: Collection[int] = (0,)) -> str:
    """Write a table in Markdown; columns of numbers, which are all but some, stand on the right."""
    names = heads.split(" | ") if isinstance(heads, str) else heads
    left = {number % len(names) for number in words}
    rule = "|" + "|".join("---" if number in left else "--:" for number in range(len(names))) + "|"
    return "\n".join([row(*names), rule, *(row(*cells) for cells in rows)])


def quiet_torch() -> None:
    """Let torch use one thread, and say nothing of modules that torch.export refuses."""
    import logging
    import warnings

    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
