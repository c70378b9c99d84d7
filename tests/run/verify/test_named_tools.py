"""Which libraries the logs of a search and of a check name, against those that were loaded and that answered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tests.kit.paths import REPOSITORY

TOOLS = ("z3", "cvc5", "galois", "sympy", "numba", "egglog", "torch", "triton", "cupy", "nvrtc", "scipy", "numpy")
#: Every Python process of the search loads this first. Solvers run in children without it; an answer is their trace.
TRACE = """
import builtins, os, sys

load, seen, tools = builtins.__import__, set(), set(os.environ["TOOLS"].split())

def trace(names):
    if new := [name for name in tools - seen if name in names]:
        seen.update(new)
        with open(os.environ["TRACE"], "a") as file:
            print(*sorted(new), file=file)

def traced(*args, **kwargs):
    found = load(*args, **kwargs)
    trace(sys.modules)
    process = getattr(sys.modules.get("mirage_formal.logic.solver_client"), "SolverProcess", None)
    if process is not None and not hasattr(process, "untraced"):
        process.untraced = process.ask

        def ask(self, questions):
            said = process.untraced(self, questions)
            trace({one.solver for one, reply in zip(questions, said) if reply.answer != "unknown"})
            return said

        process.ask = ask
    return found

builtins.__import__ = traced
"""


def names_of(texts: Iterable[str]) -> set[str]:
    """Names of tools that stand in some texts, as words."""
    return set(re.findall(rf"(?<![a-z])(?:{'|'.join(TOOLS)})(?![a-z])", "\n".join(texts).lower()))


def traced(folder: Path, *arguments: str) -> tuple[str, set[str]]:
    """The output of a command, and the tools that its processes loaded or had an answer of."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(TRACE)
    path = os.pathsep.join([str(folder), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": path, "TRACE": str(folder / "trace"), "TOOLS": " ".join(TOOLS)}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, set((folder / "trace").read_text().split())


def test_names_are_found_as_words() -> None:
    assert names_of(['{"galois":"0.4.11"}', "z3-solver", "CVC5"]) == {"galois", "z3", "cvc5"}
    assert names_of(["torchlight", "isympy"]) == set()


def test_logs_name_what_was_called_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    example = str(REPOSITORY / "examples" / "rmsnorm.py")
    # Every candidate is proved and checked with the same tools: four of them name as many as all do.
    options = ("--out", str(run), "--workers", "1", "--keep", "4", "--progress", "none")
    text, called = traced(tmp_path / "search", "mirage_formal.search", example, *options)
    logs = [path.read_text() for path in sorted(run.rglob("*")) if path.is_file()]
    assert {"z3", "cvc5", "numpy"} <= names_of(logs)
    assert names_of([*logs, text]) <= called
    assert not called & {"galois", "numba", "sympy"}
    assert any('"verdict": "probable"' in log or '"verdict":"probable"' in log for log in logs)

    text, called = traced(tmp_path / "check", "mirage_formal.check", str(run))
    assert {"z3", "cvc5", "sympy", "galois"} <= names_of([text]) <= called
    assert f"galois {metadata.version('galois')} evaluated" in text
