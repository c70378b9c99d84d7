"""Reader of a candidate's directory: its graph, its proof, its abstract expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.signature_check import match_inputs
from mirage_formal.records import (
    EQUIVALENCE_FILE,
    GRAPH_FILE,
    MANIFEST_FILE,
    PROOF_FILE,
    VERIFICATION_FILE,
    CandidateRecord,
    CertificateRecord,
    EquivalenceRecord,
    ManifestRecord,
    VerificationRecord,
    decode,
    decode_proof,
    open_sealed,
    sha256,
)
from mirage_formal.records.storage import read_lines
from mirage_formal.report.model import (
    Basis,
    Example,
    ReportedCandidate,
    ReportedCertificate,
    ReportedVerdict,
    ReportModel,
    SpecialValues,
)
from mirage_formal.report.proofs.proof_formulas import ReplayedProof
from mirage_formal.report.proofs.proof_replay import replay_and_explain
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.support.errors import FormatError
from mirage_formal.support.strict_json import load_strict_json


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options that select how much of a candidate is read.

    Attributes:
        replay: Whether its proof is replayed; else only its recorded size is read.
        formulas: Whether a replayed proof is converted to formulas.
    """

    replay: bool = True
    formulas: bool = True


@dataclass(frozen=True, slots=True)
class _Log:
    """Content of a candidate's proof log."""

    certificates: tuple[ReportedCertificate, ...] = ()
    equivalence: EquivalenceRecord | None = None
    milliseconds: float = 0.0


def read_candidate(
    source: EvidenceReader, program: KernelGraph | None, about: CandidateRecord, wanted: ReadOptions
) -> ReportedCandidate:
    """Read a candidate's directory without its kernels; errors become its faults."""
    graph = None
    if (text := source.value(GRAPH_FILE, bytes)) is not None:
        graph = source.graph(GRAPH_FILE, text)
    if graph is not None and not source.same_digest(GRAPH_FILE, graph, about.digest):
        graph = None
    _digests(source, about.digest)
    log = _log(source)
    proof = None
    found = log.equivalence
    if about.verdict == "equivalent":
        with source.reading(PROOF_FILE):
            if found is None:
                raise FormatError("expected a line about the equivalence proof, got none")
            if wanted.replay and graph is not None and program is not None:
                proof = _proof(source, found, (program, graph), wanted.formulas)
    return ReportedCandidate(
        rank=about.rank,
        digest=about.digest,
        directory=about.directory,
        verdict=about.verdict,
        basis=Basis.FAILS if source.faults else Basis.RECORDED,
        graph=graph,
        kernels=about.kernels,
        estimated_us=about.estimated_us,
        rounding=about.rounding,
        outside=about.outside or (),
        special=_special(source),
        proof=proof,
        proof_ms=log.milliseconds,
        steps=found.steps if found else 0,
        lemmas=found.lemmas if found else 0,
        proof_bytes=proof.bytes if proof else _size(source),
        certificates=log.certificates,
        conditions=found.conditions if found else (),
        added=found.added if found else (),
        faults=tuple(source.faults),
    )


def _special(source: EvidenceReader) -> SpecialValues | None:
    """Return the record of special values in the verification log; None where there is none."""
    with source.reading(VERIFICATION_FILE):
        found = decode(source.data(VERIFICATION_FILE), VerificationRecord, VERIFICATION_FILE).special
        if found is not None:
            return SpecialValues(found.draws, found.elements, found.undefined, found.overflows)
    return None


def _size(source: EvidenceReader) -> int:
    try:
        return (source.root / EQUIVALENCE_FILE).stat().st_size
    except OSError:
        return 0


def _digests(source: EvidenceReader, digest: str) -> None:
    """Check that the files have the digests of the manifest, and the manifest its seal."""
    with source.reading(MANIFEST_FILE):
        manifest = open_sealed(source.data(MANIFEST_FILE), ManifestRecord, MANIFEST_FILE)
        if manifest.candidate != digest:
            raise FormatError(f"candidate: expected {digest}, got {manifest.candidate}")
        for name in (GRAPH_FILE, PROOF_FILE, EQUIVALENCE_FILE):
            if name in manifest.files and sha256(source.data(name)) != manifest.files[name]:
                source.fault(name, "its digest is not the one in the manifest: the file was changed")


def _log(source: EvidenceReader) -> _Log:
    certificates: list[ReportedCertificate] = []
    found, milliseconds = None, 0.0
    with source.reading(PROOF_FILE):
        for number, line in read_lines(source.root / PROOF_FILE):
            one: Any = decode_proof(line, f"line {number}")
            if isinstance(one, CertificateRecord):
                solvers = f"recorded: z3 {one.z3.answer}, cvc5 {one.cvc5.answer} of the negation"
                certificates.append(ReportedCertificate(one.tensor, one.expression, one.output, solvers))
            elif isinstance(one, EquivalenceRecord):
                found = one
                milliseconds = sum(half.z3.milliseconds + half.cvc5.milliseconds for half in one.digits)
    return _Log(tuple(certificates), found, milliseconds)


def _proof(
    source: EvidenceReader, found: EquivalenceRecord, graphs: tuple[KernelGraph, KernelGraph], formulas: bool
) -> ReplayedProof | None:
    with source.reading(EQUIVALENCE_FILE):
        text = source.data(EQUIVALENCE_FILE)
        if sha256(text) != found.sha256:
            raise FormatError("its digest is not the one in the proof log: the file was changed")
        proof = _replay(*graphs, text, formulas=formulas)
        said, held = (set(found.conditions), set(found.added)), (set(proof.conditions), set(proof.added))
        if said != held:
            raise FormatError("the conditions in the proof log are not those of the proof")
        return proof
    return None


def _replay(program: KernelGraph, graph: KernelGraph, proof: bytes, *, formulas: bool = True) -> ReplayedProof:
    """Replay a proof in the checker's kernel, and convert it to formulas.

    Raises:
        FormatError: The kernel refuses it.
    """
    try:
        return replay_and_explain(program, graph, proof, formulas=formulas)
    except ProofError as error:
        raise FormatError(f"the checker's kernel refuses the proof at {error.where}: {error.what}") from None


# --- verdicts --------------------------------------------------------------------------------------------------------


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


def read_verdicts(source: EvidenceReader) -> ReportModel:
    """Read a directory of verdicts; errors become its faults."""
    found = source.value(VERDICTS_FILE, _decoded)
    program = None
    if source.there(PROGRAM_FILE) and (text := source.value(PROGRAM_FILE, bytes)) is not None:
        program = source.graph(PROGRAM_FILE, text)
    judged = tuple(_judged(source, one, program) for one in (found.graphs if found else ())[:_MOST])
    name = found.program if found else source.root.name
    return ReportModel("verdicts", name, "", str(source.root), program, judged=judged, faults=tuple(source.faults))


def _decoded(data: bytes) -> _Verdicts:
    load_strict_json(data, VERDICTS_FILE)
    return msgspec.json.decode(data, type=_Verdicts)


def _judged(source: EvidenceReader, one: _Verdict, program: KernelGraph | None) -> ReportedVerdict:
    below = EvidenceReader(source.root / str(one.index), f"{one.index}/")
    graph = None
    if below.there(GRAPH_FILE) and (text := below.value(GRAPH_FILE, bytes)) is not None:
        graph = below.graph(GRAPH_FILE, text)
    proof = example = None
    if one.verdict == "equivalent" and graph is not None and program is not None:
        with below.reading(PROOF_FILE):
            proof = _replay(program, match_inputs(graph, program), below.data(PROOF_FILE))
    with below.reading(VERDICTS_FILE):
        if isinstance(one.counterexample, dict) and "fills" in one.counterexample:
            example = _example(msgspec.convert(one.counterexample, _Counterexample), program)
    basis = Basis.FAILS if below.faults else Basis.RECORDED
    return ReportedVerdict(
        str(one.index), one.verdict, one.reason, graph, example, proof, basis, one.seconds, tuple(below.faults)
    )


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
