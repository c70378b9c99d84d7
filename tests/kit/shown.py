"""Best candidates of the examples as the search found them: program, µGraph and proof, each in one file.

Made by ``mirage-formal search examples/NAME.py``, from the first candidate's mugraph.json and proof/equivalence.json.
An example that is answered by parts has a file for each part whose operators sum something, with the part's number in
the best cover; the names of a part's inputs are x0, x1 and so on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mirage_formal.graph.formats.text import from_text
from mirage_formal.graph.graph import KernelGraph
from tests.kit.paths import REPOSITORY

PLACE = REPOSITORY / "tests" / "report" / "examples"
FILES = {path.stem: path for path in sorted(PLACE.rglob("*.json"))}
NAMES = sorted(FILES)


@dataclass(frozen=True)
class Example:
    """A program, its best candidate, and the proof that they are equal."""

    program: KernelGraph
    candidate: KernelGraph
    proof: bytes


def example(name: str) -> Example:
    """An example by name."""
    value = json.loads(FILES[name].read_text(encoding="utf-8"))
    program, candidate = (from_text("\n".join(value[key])) for key in ("program", "candidate"))
    return Example(program, candidate, value["proof"].encode())
