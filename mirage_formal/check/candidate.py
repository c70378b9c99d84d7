"""Check of one candidate's directory: all files are read, all digests recomputed, all claims verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from time import perf_counter
from typing import Literal

import msgspec

from mirage_formal.check.abstract_interpretation import output_expressions, tensor_expressions
from mirage_formal.check.check_steps import CheckFailed, check_manifest, expect_equal, step
from mirage_formal.check.equivalence import ProofCrosscheck, ReplayedTheorem, crosscheck_proof, describe_theorem
from mirage_formal.check.minimal_check import establish_equality
from mirage_formal.check.solvers import directory_budget, expect_unsat
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.remainder_tiles.padded_pair import certificate_pairs
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.logic.added_axioms import axioms_in_force, stated_choice
from mirage_formal.logic.certificate import AuditedClaim, audit
from mirage_formal.logic.terms import Expr, add, children, head, postorder, term_to_text
from mirage_formal.records import (
    EQUIVALENCE_FILE,
    GRAPH_FILE,
    MANIFEST_FILE,
    PROOF_DIR,
    PROOF_FILE,
    VERIFICATION_FILE,
    CertificateRecord,
    ClosingRecord,
    EquivalenceRecord,
    ManifestRecord,
    ProofRecord,
    VerdictRecord,
    VerificationRecord,
    decode,
    decode_proof,
    digits_file,
    open_sealed,
    read_file,
    read_lines,
    resolve_inside,
    sha256,
)
from mirage_formal.records.fingerprint import FingerprintRecord
from mirage_formal.support.errors import FormatError

#: Longest abstract expression whose text is compared with the log.
_MAX_TEXT = 1 << 20
#: Files of a candidate, besides its manifest and the directory of proofs.
_NAMES = frozenset({GRAPH_FILE, PROOF_FILE, VERIFICATION_FILE, EQUIVALENCE_FILE})


@dataclass(frozen=True, slots=True)
class EstablishedCandidate:
    """Facts that the check established about a candidate.

    Attributes:
        name: Name of its directory.
        digest: Digest of its graph.
        program: Digest of its program.
        verdict: "equivalent" or "probable".
        kernels: Number of kernels that it launches.
        certificates: Number of tensors with a certificate, which is all of them.
        axioms: Statements of added axioms that certificates may rest on.
        obligations: Number of distinct texts that z3 and cvc5 refuted in this check, digit lemmas included.
        steps: Tensor steps of the proof, 0 without one.
        conditions: Side conditions of program and candidate; an equivalent candidate is equal wherever these hold.
        added: Those of the candidate that the program does not have.
        opinions: Crosscheck by sympy on the proof's closing identities; None without a proof.
        seed: Seed of its fingerprint.
        rounds: Number of fingerprints drawn again; 0 if there is no answer, which only an equivalent one may lack.
        galois: Version of the galois that evaluated the graphs for that; None if nothing was evaluated.
        solvers: Package and version of every solver that its logs name.
        bound_log2: Error bound of a probable candidate by the theorem, or None.
        seconds: Duration of the check.
    """

    name: str
    digest: str
    program: str
    verdict: Literal["equivalent", "probable"]
    kernels: int
    certificates: int
    axioms: tuple[str, ...]
    obligations: int
    steps: int
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    opinions: ProofCrosscheck | None
    seed: int
    rounds: int
    galois: str | None
    solvers: frozenset[tuple[str, str]]
    bound_log2: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _CandidateFiles:
    """The parsed files of a candidate."""

    manifest: ManifestRecord
    graph: KernelGraph
    program: KernelGraph
    sought: KernelGraph
    proof: tuple[ProofRecord, ...]
    verification: VerificationRecord
    fingerprint: FingerprintRecord
    obligations: dict[str, str]
    equivalence: bytes | None

    @property
    def certificates(self) -> list[CertificateRecord]:
        return [record for record in self.proof if isinstance(record, CertificateRecord)]

    @property
    def added_axioms(self) -> tuple[str, ...]:
        last = self.proof[-1] if self.proof else None
        return last.axioms or () if isinstance(last, ClosingRecord) else ()

    @property
    def equivalences(self) -> list[EquivalenceRecord]:
        return [record for record in self.proof if isinstance(record, EquivalenceRecord)]


@directory_budget()
def check_candidate(root: Path) -> EstablishedCandidate:
    """Check everything about one candidate, from its directory alone.

    Sound: nothing in the directory is believed. Digests tie the files together; the graph and the program are read from
    them and judged here; certificates are audited and refuted again; an equivalence proof is replayed by the kernel,
    and the digit lemmas that it used are written and refuted again; fingerprints are drawn and evaluated again.
    Equivalent rests on the proof alone.

    Raises:
        CheckFailed: Names the first file and step that fails.
    """
    begin = perf_counter()
    files = _read(root)
    _check_digests(root, files)
    _check_graphs(root, files)
    _check_proof(root, files)
    proved = _check_equivalence(root, files)
    galois = _check_verification(root, files, proved)
    draws = files.fingerprint
    return EstablishedCandidate(
        name=root.name,
        digest=files.manifest.candidate,
        program=files.verification.program_digest,
        verdict="probable" if proved is None else "equivalent",
        kernels=kernel_count(files.graph),
        certificates=len(files.certificates),
        axioms=files.added_axioms,
        obligations=len(files.obligations),
        steps=0 if proved is None else proved.theorem.steps,
        conditions=() if proved is None else proved.conditions,
        added=() if proved is None else proved.added,
        opinions=None if proved is None else _second_opinions(root, proved),
        seed=draws.seed,
        rounds=draws.rounds if draws.verdict == "probable" else 0,
        galois=galois,
        solvers=frozenset(solver_versions(files.proof)),
        bound_log2=None if proved is not None else draws.bound_log2,
        seconds=perf_counter() - begin,
    )


# --- files ---------------------------------------------------------------------------------------------------------


def _read(root: Path) -> _CandidateFiles:
    """Parse every file with its expected type; nothing is executed, sizes are bounded, paths confined."""
    with step(root / MANIFEST_FILE, "read the manifest", corrupt=True):
        manifest = decode(read_file(root / MANIFEST_FILE), ManifestRecord, MANIFEST_FILE)
        for name in manifest.files:
            resolve_inside(root, name)
    with step(root / GRAPH_FILE, "read the graph", corrupt=True):
        graph = from_json(read_file(root / GRAPH_FILE), GRAPH_FILE)
    with step(root / PROOF_FILE, "read the proof log", corrupt=True):
        proof = tuple(decode_proof(text, f"line {number}") for number, text in read_lines(root / PROOF_FILE))
    with step(root / VERIFICATION_FILE, "read the verification log", corrupt=True):
        verification = decode(read_file(root / VERIFICATION_FILE), VerificationRecord, VERIFICATION_FILE)
        program = from_json(bytes(verification.program), "program")
        seen = bytes(verification.sought)
        sought = program if seen == b"null" else from_json(seen, "sought")
        log = bytes(verification.fingerprint)
        fingerprint = decode(log, FingerprintRecord, "fingerprint")
    obligations: dict[str, str] = {}
    equivalence = None
    for name in manifest.files:
        if name == EQUIVALENCE_FILE:
            with step(root / name, "read the equivalence proof", corrupt=True):
                equivalence = read_file(resolve_inside(root, name))
        elif name.startswith(f"{PROOF_DIR}/"):
            with step(root / name, "read an obligation", corrupt=True):
                try:
                    obligations[name] = read_file(resolve_inside(root, name)).decode("ascii")
                except UnicodeDecodeError as error:
                    raise FormatError(f"expected ASCII text: {error.reason} at byte {error.start}") from None
    return _CandidateFiles(manifest, graph, program, sought, proof, verification, fingerprint, obligations, equivalence)


def _check_digests(root: Path, files: _CandidateFiles) -> None:
    with step(root / MANIFEST_FILE, "seal"):
        open_sealed(read_file(root / MANIFEST_FILE), ManifestRecord, MANIFEST_FILE)
    check_manifest(root, MANIFEST_FILE, files.manifest.files)
    with step(root / MANIFEST_FILE, "manifest"):
        for name in sorted(files.manifest.files):
            if name not in _NAMES and not name.startswith(f"{PROOF_DIR}/"):
                raise FormatError(f"expected only files of a candidate, got {name} as well")
        for name in (GRAPH_FILE, PROOF_FILE, VERIFICATION_FILE):
            expect_equal(f"{name} in the manifest", True, name in files.manifest.files)


# --- graphs --------------------------------------------------------------------------------------------------------


def _check_graphs(root: Path, files: _CandidateFiles) -> None:
    for name, graph, code in (
        (GRAPH_FILE, files.graph, files.manifest.candidate),
        (VERIFICATION_FILE, files.program, files.verification.program_digest),
    ):
        with step(root / name, "well-formed graph"):
            if found := faults(graph):
                raise FormatError("; ".join(found)[:600])
        with step(root / name, "digest of the graph"):
            expect_equal("digest", digest(graph), code)
    with step(root / VERIFICATION_FILE, "what was sought"):
        if found := faults(files.sought):
            raise FormatError("; ".join(found)[:600])
        expect_equal("inputs", files.program.inputs, files.sought.inputs)
    with step(root / GRAPH_FILE, "same inputs and outputs as the program"):
        expect_equal("inputs", files.program.inputs, files.graph.inputs)
        here, there = (kernel_types(graph) for graph in (files.graph, files.program))
        expect_equal("outputs", [there[i] for i in files.program.outputs], [here[i] for i in files.graph.outputs])
    with step(root / VERIFICATION_FILE, "which candidate"):
        expect_equal("candidate", files.manifest.candidate, files.verification.candidate)


# --- certificates --------------------------------------------------------------------------------------------------


def _check_proof(root: Path, files: _CandidateFiles) -> None:
    """Check that every tensor has a certificate: the right claim, an audited text, refuted by both solvers.

    A concatenation has one, or one for each of its parts. For a candidate with remainder tiles, these are the tensors
    between its pads and slices, and the program's operators at the padded extents (``graph.remainder_tiles``).
    """
    path = root / PROOF_FILE
    claims, proved = files.certificates, files.equivalences
    with step(path, "abstract expressions"):
        told = {record.tensor for record in claims}
        pairs = certificate_pairs(files.sought, files.graph)
        program, graph = next((pair for pair in pairs if told == set(_tensors(pair[1]))), pairs[0])
        found, goals = tensor_expressions(graph), output_expressions(program)
    with step(path, "complete proof log"):
        lines = Counter(record.tensor for record in claims)
        wanted = [
            (name, e)
            for name in _tensors(graph)
            for e in (found[name] if lines[name] > 1 else (reduce(add, found[name]),))
        ]
        expect_equal("tensors with a certificate", [name for name, _ in wanted], [record.tensor for record in claims])
        used = {record.file for record in claims}
        closing = ClosingRecord(
            certificates=len(claims),
            obligations=len(used),
            equivalences=len(proved),
            digits=sum(len(record.digits) for record in proved),
            graph=files.manifest.candidate,
            program=files.verification.program_digest,
            axioms=files.added_axioms or msgspec.UNSET,
        )
        expect_equal("closing line", [closing], [r for r in files.proof if isinstance(r, ClosingRecord)])
        expect_equal("order of lines", (*claims, *proved, closing), files.proof)
    with step(path, "added axioms"):
        axioms = axioms_in_force(stated_choice(files.added_axioms, PROOF_FILE))
    with step(root / MANIFEST_FILE, "obligations"):
        digits = {digit.file for record in proved for digit in record.digits}
        expect_equal("files of obligations", sorted(used | digits), sorted(files.obligations))
    for record, (_, e) in zip(claims, wanted, strict=True):
        with step(path, f"claim about {record.tensor}"):
            _check_claim(record, e, goals, files.obligations)
        with step(root / record.file, f"certificate of {record.tensor}"):
            _check_certificate(audit(files.obligations[record.file], axioms=axioms), e, goals[record.output])
    for name in sorted(used):
        _check_refuted(root, name, files)


def _check_refuted(root: Path, name: str, files: _CandidateFiles) -> None:
    with step(root / name, "z3 and cvc5"):
        expect_unsat("answers", files.obligations[name])


def _tensors(graph: KernelGraph) -> Iterator[str]:
    """Yield the names of all tensors in the order of proof.jsonl."""
    for number in range(len(graph.inputs) + sum(op.results for op in graph.ops)):
        yield f"k{number}"
    for index, op in enumerate(graph.ops):
        if isinstance(op, GraphDefined):
            for number in range(len(op.graph.inputs) + sum(inner.results for inner in op.graph.ops)):
                yield f"b{index}.{number}"


def _check_claim(record: CertificateRecord, e: Expr, goals: list[Expr], obligations: dict[str, str]) -> None:
    size: dict[Expr, int] = {}
    for node in postorder([e]):
        size[node] = len(head(node)) + 2 + sum(size[child] + 1 for child in children(node))
    if size[e] > _MAX_TEXT:
        raise FormatError(f"expected an expression of at most {_MAX_TEXT} characters, got {size[e]}")
    expect_equal("expression", term_to_text(e), record.expression)
    if record.output >= len(goals):
        raise FormatError(f"expected an output below {len(goals)}, got {record.output}")
    expect_equal("sha256 of the obligation", sha256(obligations[record.file].encode()), record.sha256)
    expect_equal("answer of z3", "unsat", record.z3.answer)
    expect_equal("answer of cvc5", "unsat", record.cvc5.answer)


def _check_certificate(claim: AuditedClaim, e: Expr, target: Expr) -> None:
    if claim.expression is not e:
        raise FormatError(f"expected a claim about {str(e)[:200]}, got one about {str(claim.expression)[:200]}")
    if claim.target is not target:
        raise FormatError(f"expected the target {str(target)[:200]}, got {str(claim.target)[:200]}")


# --- equivalence ---------------------------------------------------------------------------------------------------


def _check_equivalence(root: Path, files: _CandidateFiles) -> ReplayedTheorem | None:
    """Return the theorem of the proof, if the verdict needs one.

    Sound: ``establish_equality`` reads both graphs and the proof from the files itself, and the kernel replays it for
    these graphs; they are the ones that everything else here is about. The obligations are those that the kernel
    names, written anew here, compared with the files and refuted by both solvers.
    """
    kind = files.verification.verdict.kind
    with step(root / PROOF_FILE, "equivalence proof for the verdict"):
        expect_equal(f"proofs for the verdict {kind}", int(kind == "equivalent"), len(files.equivalences))
        expect_equal(f"{EQUIVALENCE_FILE} there", kind == "equivalent", files.equivalence is not None)
    if files.equivalence is None:
        return None
    (record,) = files.equivalences
    with step(root / EQUIVALENCE_FILE, "replay the proof"):
        proved = establish_equality(root)
        expect_equal("graphs", (files.program, files.graph), (proved.program, proved.candidate))
        found = describe_theorem(proved.theorem)
    with step(root / PROOF_FILE, "claim of the proof"):
        expect_equal("file", EQUIVALENCE_FILE, record.file)
        expect_equal("sha256 of the proof", sha256(files.equivalence), record.sha256)
        expect_equal("steps and lemmas", (found.theorem.steps, found.theorem.lemmas), (record.steps, record.lemmas))
        expect_equal("conditions", found.conditions, record.conditions)
        expect_equal("conditions that the program has not", found.added, record.added)
        needed = [
            (one.extents, one.lemma, digits_file(number), sha256(one.text.encode()))
            for number, one in enumerate(found.obligations, 1)
        ]
        expect_equal("digit lemmas", needed, [(d.extents, d.lemma, d.file, d.sha256) for d in record.digits])
        for digit in record.digits:
            expect_equal(f"answers to {digit.file}", ("unsat", "unsat"), (digit.z3.answer, digit.cvc5.answer))
    for one, digit in zip(found.obligations, record.digits, strict=True):
        with step(root / digit.file, "text of the digit lemma"):
            expect_equal("text", one.text, files.obligations[digit.file])
        _check_refuted(root, digit.file, files)
    return found


def solver_versions(proof: Iterable[ProofRecord]) -> Iterator[tuple[str, str]]:
    """Yield package and version of each solver's answer in a proof log."""
    for record in proof:
        answered = record.digits if isinstance(record, EquivalenceRecord) else (record,)
        for one in answered:
            if not isinstance(one, ClosingRecord):
                yield "z3-solver", one.z3.version
                yield "cvc5", one.cvc5.version


def _second_opinions(root: Path, proved: ReplayedTheorem) -> ProofCrosscheck:
    with step(root / EQUIVALENCE_FILE, "second opinion of sympy"):
        return crosscheck_proof(proved)


# --- verdict and fingerprint ---------------------------------------------------------------------------------------


def _check_verification(root: Path, files: _CandidateFiles, proved: ReplayedTheorem | None) -> str | None:
    """Check the verdict and the fingerprint; return the version of the galois that evaluated it, if it did."""
    record = files.fingerprint
    with step(root / VERIFICATION_FILE, "verdict"):
        if proved is not None:
            verdict = VerdictRecord(kind="equivalent", conditions=proved.conditions, added=proved.added)
        elif record.verdict != "probable":
            raise FormatError("expected a fingerprint that agrees for the verdict probable, got none")
        else:
            verdict = VerdictRecord(
                kind="probable", rounds=record.rounds, bound_log2=record.bound_log2, reason=record.bound_reason
            )
        expect_equal("verdict", verdict, files.verification.verdict)
    with step(root / VERIFICATION_FILE, "fingerprint"):
        from mirage_formal.check.fingerprint.fingerprint import check_fingerprint  # loads numerical packages

        return check_fingerprint(files.program, files.graph, record)


__all__ = ["CheckFailed", "EstablishedCandidate", "check_candidate", "solver_versions"]
