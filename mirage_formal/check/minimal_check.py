"""Minimal check that the µGraph in a candidate's directory computes its program, from three files.

    python -m mirage_formal.check.minimal_check DIRECTORY

``check`` establishes a candidate's verdict by the same function, and more. The trusted code of this module is its
imports (docs/trust.md): it reads two graphs and a proof, and the proof kernel replays the proof.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.check.proof.replay import Theorem
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.formats.json import from_json, from_value
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import faults, output_types
from mirage_formal.support.errors import FormatError, MirageError
from mirage_formal.support.files import read_file
from mirage_formal.support.strict_json import load_strict_json
from mirage_formal.support.terminal import escape_line

GRAPH: Final = "mugraph.json"
#: Verification log, and the name of the program in it.
LOG: Final = "verification.json"
PROGRAM: Final = "program"
PROOF: Final = "proof/equivalence.json"


@dataclass(frozen=True, slots=True)
class EqualGraphs:
    """Two graphs that compute the same outputs wherever the theorem's conditions hold.

    Attributes:
        program: The program.
        candidate: The µGraph.
        theorem: Theorem of the proof kernel.
    """

    program: KernelGraph
    candidate: KernelGraph
    theorem: Theorem


def establish_equality(root: Path) -> EqualGraphs:
    """Establish that the µGraph in a directory computes the program beside it.

    Sound: both graphs are read from the files and well-formed; they have the same inputs (names, shapes, element types
    and strides) and outputs of the same shapes and element types; and the kernel replays the proof for these graphs.
    That the program is the one that somebody meant is for them to see.

    Raises:
        ProofError: A step of the proof does not hold.
        MirageError: A file cannot be parsed, a graph is not well-formed, or a graph has another interface.
    """
    log = load_strict_json(read_file(root / LOG), LOG)
    if not isinstance(log, dict):
        raise FormatError("expected an object", where=LOG)
    candidate = from_json(read_file(root / GRAPH), GRAPH)
    program = from_value(log.get(PROGRAM), f"{LOG}, {PROGRAM}")
    for name, graph in ((PROGRAM, program), (GRAPH, candidate)):
        if found := faults(graph):
            raise FormatError("; ".join(found)[:600], where=name)
    for what, ours, theirs in (
        ("inputs", program.inputs, candidate.inputs),
        ("outputs", output_types(program), output_types(candidate)),
    ):
        if ours != theirs:
            raise FormatError(f"{what}: expected {str(ours)[:300]}, got {str(theirs)[:300]}", where=GRAPH)
    return EqualGraphs(program, candidate, replay_composed(program, candidate, read_file(root / PROOF)))


def main(arguments: Sequence[str]) -> int:
    """Print whether the graphs in a directory are equal; return 0 only if they are."""
    if len(arguments) != 1:
        print("usage: python -m mirage_formal.check.minimal_check DIRECTORY", file=sys.stderr)
        return 2
    try:
        found = establish_equality(Path(arguments[0]))
    except Exception as error:  # whatever goes wrong, nothing was established
        what = str(error) if isinstance(error, MirageError) else f"{type(error).__name__}: {error}"
        print("\n".join(escape_line(line) for line in f"not established: {what}".split("\n")), file=sys.stderr)
        return 1
    print("equivalent: over the reals, for all inputs on which these conditions hold:")
    print("\n".join(f"  {escape_line(one)}" for one in found.theorem.conditions) or "  none: for all inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
