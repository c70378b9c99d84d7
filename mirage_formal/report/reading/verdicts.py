"""Reader of the output of ``verify --out``: a program, and graphs with a proof, a counterexample or neither."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.matching import match_inputs
from mirage_formal.records import GRAPH_FILE, PROOF_FILE
from mirage_formal.report.model import Basis, Example, JudgedGraph, Report
from mirage_formal.report.proofs.replay import replay_and_explain
from mirage_formal.report.proofs.values import Proof
from mirage_formal.report.reading.source import EvidenceReader
from mirage_formal.support.errors import FormatError
from mirage_formal.support.strict_json import load

VERDICTS_FILE: Final = "verdicts.json"
PROGRAM_FILE: Final = "program.json"
_MOST: Final = 1000


class _Fill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    even: int
    odd: int


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: int
    index: tuple[int, ...]
    value: int | float


class _Counterexample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fills: tuple[_Fill, ...]
    entries: tuple[_Entry, ...]
    output: int
    index: tuple[int, ...]
    expected: float
    got: float


class _Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: int
    verdict: str
    reason: str
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    counterexample: Any
    seconds: float


class _Verdicts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    program: str
    graphs: tuple[_Verdict, ...]


def read_verdicts(source: EvidenceReader) -> Report:
    """Read a directory of verdicts; errors become its faults."""
    found = source.value(VERDICTS_FILE, _decoded)
    program = None
    if source.there(PROGRAM_FILE) and (text := source.value(PROGRAM_FILE, bytes)) is not None:
        program = source.graph(PROGRAM_FILE, text)
    judged = tuple(_judged(source, one, program) for one in (found.graphs if found else ())[:_MOST])
    name = found.program if found else source.root.name
    return Report("verdicts", name, "", str(source.root), program, judged=judged, faults=tuple(source.faults))


def _decoded(data: bytes) -> _Verdicts:
    load(data, VERDICTS_FILE)
    return msgspec.json.decode(data, type=_Verdicts)


def _judged(source: EvidenceReader, one: _Verdict, program: KernelGraph | None) -> JudgedGraph:
    below = EvidenceReader(source.root / str(one.index), f"{one.index}/")
    graph = None
    if below.there(GRAPH_FILE) and (text := below.value(GRAPH_FILE, bytes)) is not None:
        graph = below.graph(GRAPH_FILE, text)
    proof = example = None
    if one.verdict == "equivalent" and graph is not None and program is not None:
        proof = _proof(below, program, graph)
    with below.reading(VERDICTS_FILE):
        if isinstance(one.counterexample, dict) and "fills" in one.counterexample:
            example = _example(msgspec.convert(one.counterexample, _Counterexample), program)
    basis = Basis.FAILS if below.faults else Basis.RECORDED
    return JudgedGraph(
        str(one.index), one.verdict, one.reason, graph, example, proof, basis, one.seconds, tuple(below.faults)
    )


def _proof(source: EvidenceReader, program: KernelGraph, graph: KernelGraph) -> Proof | None:
    with source.reading(PROOF_FILE):
        try:
            return replay_and_explain(program, match_inputs(graph, program), source.data(PROOF_FILE))
        except ProofError as error:
            raise FormatError(f"the checker's kernel refuses the proof at {error.where}: {error.what}") from None
    return None


def _example(found: _Counterexample, program: KernelGraph | None) -> Example:
    inputs = []
    for number, fill in enumerate(found.fills):
        known = program is not None and number < len(program.inputs)
        name = program.inputs[number].name if program is not None and known else f"input {number}"
        text = f"{name} is {fill.even} everywhere"
        if fill.even != fill.odd:
            text = f"{name} is {fill.even} where the sum of the coordinates is even, and {fill.odd} elsewhere"
        but = [
            f"{name}[{', '.join(map(str, one.index))}] = {one.value}" for one in found.entries if one.input == number
        ]
        inputs.append(f"{text}, but {', '.join(but)}" if but else text)
    return Example(tuple(inputs), found.output, found.index, found.expected, found.got)
