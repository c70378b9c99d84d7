"""Tasks of worker processes: plan, search one unit, certify, discharge obligations, verify one candidate.

Every task takes one picklable value, returns one, and depends on nothing else, so that any worker can repeat it.
Expensive values that tasks of one job share are cached in each process.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, reduce
from importlib import import_module
from time import perf_counter, process_time
from typing import Final

import msgspec

from mirage_formal.check.equivalence import ReplayedTheorem, replay_with_obligations
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.codegen.cost import estimate
from mirage_formal.graph.canonical import canonical_with_digest
from mirage_formal.graph.formats.json import decode_graph, encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.remainder_tiles.padded_pair import certificate_pairs
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Candidate, Different, Equivalent, Probable, Unknown, Verdict
from mirage_formal.graph.verifier import output_types
from mirage_formal.logic.added_axioms import AxiomChoice, axioms_in_force
from mirage_formal.logic.certificate import to_smt2
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import SolverResult, discharge_all, start_solvers
from mirage_formal.logic.terms import Expr, add, term_to_text
from mirage_formal.prove.abstract.abstract_domain import expressions, pieces
from mirage_formal.prove.abstract.pruning_audit import (
    AuditFinding,
    DecisionSample,
    PruningDecision,
    audit_decisions,
    load_audit_solver,
)
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.prove.equality.prove import prove
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from mirage_formal.records import AuditRecord, FoundRecord, SolverRecord, UnitRecord, VerdictRecord
from mirage_formal.run.settings import ENGINES, SearchJob
from mirage_formal.run.task_values import (
    AcceptedCandidate,
    AuditTask,
    CandidateTask,
    CertificateClaim,
    PreparationTask,
    Proof,
    RejectedCandidate,
    SearchedUnit,
    UncertifiedTensor,
    UnitProgress,
    UnitTask,
)
from mirage_formal.run.verify.certify import UnacceptedCandidate, VerifiedCandidate, is_proved
from mirage_formal.run.verify.certify import verify_by_policy as certify_candidate
from mirage_formal.run.verify.policy import Policy
from mirage_formal.search.concatenated_inputs import sink_pads_to_inputs
from mirage_formal.search.engine_interface import Engine, Stats, Unit, counts_by_reason, watch_counts
from mirage_formal.search.pad_extents import round_extents
from mirage_formal.search.thread import fuse_threads
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.workers.task_progress import report_progress

#: Bits of the primes: for the search, at scaled sizes; and for the final check, at real sizes.
SEARCH_PRIME_BITS: Final = 20
FINAL_PRIME_BITS: Final = 31
#: Most multiplications of the final fingerprint if a proof is required: then it is a second check, no part of the
#: verdict, and not worth minutes.
FINAL_MULTIPLICATIONS: Final = 1 << 30
#: Label prefix of units at rounded extents.
PADDED: Final = "padded: "
#: Ratio to the unfused estimate above which a unit's best candidate may be no better than the unfused program, because
#: estimates are within about a third. Split-K variants of other patterns of such a unit are tried, too.
_CLOSE: Final = 2 / 3
#: Milliseconds of processor time of a preparation after which a worker loads what certificates and audits need, too.
_SHORT_MS: Final = 200.0


def load_engine(name: str) -> Engine:
    """Return the engine of a name: "guided", "exhaustive", or a class given as "module:Class".

    Raises:
        UnsupportedError: There is no such engine.
    """
    if name == "guided":
        from mirage_formal.search.guided.guided_engine import GuidedEngine

        return GuidedEngine()
    if name == "exhaustive":
        from mirage_formal.search.exhaustive import ExhaustiveEngine

        return ExhaustiveEngine()
    module, _, attribute = name.partition(":")
    try:
        engine: Engine = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError) as error:
        hint = f"use one of {', '.join(ENGINES)}"
        raise UnsupportedError(f"expected an engine, got {name!r}: {error}", where="engine", hint=hint) from None
    return engine


def engine_of(job: SearchJob) -> Engine:
    """Return the engine of a job; ``HorizontalFusionEngine`` for "guided"."""
    if job.graphs:
        from mirage_formal.run.checkpoint_engine import CheckpointEngine

        return CheckpointEngine(job.program, job.graphs)
    if job.engine != "guided":
        return load_engine(job.engine)
    from mirage_formal.search.horizontal_fusion.fusion_engine import HorizontalFusionEngine

    return HorizontalFusionEngine()


def plan(job: SearchJob) -> list[Unit]:
    """Return the work units of a job, at the program's extents and, where these are awkward, at rounded extents.

    The first unit of each of the two searches comes first, because it finds candidates soonest.

    Raises:
        UnsupportedError: The engine does not take the program.
    """
    engine, program = engine_of(job), job.sought.program
    units = engine.units(program, job.space, job.options)
    if (longer := round_extents(program)) is not None:
        padded: list[Unit] = []
        with suppress(UnsupportedError):  # the engine may refuse the rounded program
            padded = engine.units(longer.program, job.space, job.options)
        padded = [msgspec.structs.replace(unit, label=f"{PADDED}{unit.label}") for unit in padded]
        units = [*units[:1], *padded[:1], *units[1:], *padded[1:]]
    return [msgspec.structs.replace(unit, index=index) for index, unit in enumerate(units)]


def search_unit(task: UnitTask) -> UnitRecord:
    """Search one unit, audit its pruning, and return its record."""
    record, decisions = _search(task)
    return _add_audit(record, decisions, task.job.options.choice)


def search_unit_only(task: UnitTask) -> SearchedUnit:
    """Search one unit, and return its record with the decisions that ``audit_unit`` asks about.

    A unit whose expressions are nested too deeply to be sent to another process is audited here.
    """
    record, decisions = _search(task)
    try:
        pickle.dumps(decisions)
    except RecursionError:
        return SearchedUnit(_add_audit(record, decisions, task.job.options.choice), ())
    return SearchedUnit(record, decisions)


def _add_audit(record: UnitRecord, decisions: tuple[PruningDecision, ...], choice: AxiomChoice) -> UnitRecord:
    """Return a unit's record with the audit of its decisions; there are none where nothing is pruned."""
    if not decisions:
        return record
    return msgspec.structs.replace(record, audit=audit_unit(AuditTask(record.unit, decisions, choice)))


def _search(task: UnitTask) -> tuple[UnitRecord, tuple[PruningDecision, ...]]:
    """Return the record of one searched unit without an audit, and the decisions to ask about.

    Candidates are fused to thread graphs, canonicalized and costed.
    """
    begin = perf_counter()
    job = task.job
    longer = round_extents(job.sought.program) if task.unit.label.startswith(PADDED) else None
    program = job.sought.program if longer is None else longer.program
    gate = FingerprintFilter(program, job.options.seed)
    sample = DecisionSample(task.questions, f"{job.options.seed} {task.unit.label}") if task.questions else None
    options = msgspec.structs.replace(
        job.options, accept=gate, cost=lambda graph: estimate(graph, job.target).us, sample=sample
    )
    with watch_counts() as so_far, report_progress(lambda: _unit_progress(so_far())):
        result = engine_of(job).run(program, job.space, options, task.unit)
    found: dict[str, FoundRecord] = {}
    graphs = [candidate.graph for candidate in result.candidates]
    for graph in graphs:
        whole = graph if longer is None else longer.wrapped(graph)
        one = _candidate_record(job, whole, graph if job.engine in ENGINES else None)
        found[one.digest] = one
    most = estimate(program, job.target).us
    if found and not job.graphs and min(one.estimated_us for one in found.values()) > _CLOSE * most:
        from mirage_formal.run.split_k_candidates import split_loops_of_candidates  # few units need this import

        for graph in split_loops_of_candidates(graphs, job.target, most):
            one = _candidate_record(job, graph if longer is None else longer.wrapped(graph), None)
            found[one.digest] = one
    stats = msgspec.structs.asdict(result.stats)
    at = stats.pop("pruned_at")
    record = UnitRecord(
        key=task.key,
        unit=task.unit.index,
        label=task.unit.label,
        status="done",
        attempts=1,
        stats=stats,
        pruned=counts_by_reason(at),
        pruned_at=at,
        fingerprint_tests=gate.tests,
        candidates=tuple(found.values()),
        milliseconds=round(1e3 * (perf_counter() - begin), 3),
    )
    return record, () if sample is None else tuple(sample.decisions())


def audit_unit(task: AuditTask) -> AuditRecord:
    """Return z3's answers about pruning decisions of a unit."""
    found = audit_decisions(task.decisions, task.choice)
    counts = Counter(found.findings)
    return AuditRecord(
        z3=found.z3,
        kept=sum(one.kept for one in task.decisions),
        pruned=sum(not one.kept for one in task.decisions),
        **{finding.value: counts[finding] for finding in AuditFinding},
        contradictions=found.contradictions,
    )


def _unit_progress(stats: Stats) -> UnitProgress:
    return UnitProgress(stats.states, stats.classes, stats.pruned)


def _candidate_record(job: SearchJob, graph: KernelGraph, form: KernelGraph | None) -> FoundRecord:
    """Return the record of a candidate; ``form`` is its graph if that is already canonical."""
    fused = fuse_threads(job.sought.wrapped(graph))
    graph, name = canonical_with_digest(fused, fused if fused == form else None)
    cost = estimate(graph, job.target)
    return FoundRecord(digest=name, graph=encode(graph), kernels=kernel_count(graph), estimated_us=cost.us)


class FingerprintFilter:
    """Search-time fingerprint filter, at scaled sizes where the engine gives them and at real sizes otherwise.

    Where the fingerprint gives no answer (an operator without a meaning in a finite field, tensors too large), the
    prover decides. Neither sees element types, so the output types must equal the program's.

    Sound: it only ever refuses; what it lets through meets the final verification at real sizes.

    Attributes:
        tests: Number of fingerprints computed.
    """

    def __init__(self, program: KernelGraph, seed: int) -> None:
        self.tests = 0
        self._program = program
        self._settings = FingerprintSettings(seed=seed, prime_bits=SEARCH_PRIME_BITS, rounds=1)
        self._sessions: dict[KernelGraph, FingerprintSession] = {}
        self._known: dict[tuple[KernelGraph, KernelGraph], Verdict] = {}
        self._outputs = output_types(program)

    def __call__(self, candidate: Candidate) -> Verdict:
        """Return the verdict on a candidate; candidates with the same scaled graphs share one verdict."""
        if (got := output_types(candidate.graph)) != self._outputs:
            return Unknown(f"expected outputs {self._outputs}, got {got}")
        pair = candidate.scaled or (self._program, candidate.graph)
        if pair not in self._known:
            self.tests += 1
            if pair[0] not in self._sessions:
                self._sessions[pair[0]] = FingerprintSession(pair[0], self._settings)
            verdict = self._sessions[pair[0]].check(pair[1]).verdict
            self._known[pair] = prove(*pair) if isinstance(verdict, Unknown) else verdict
        return self._known[pair]


def _sought_graphs(job: SearchJob) -> tuple[KernelGraph, ...]:
    """Return the graphs that a job's search looked for, over the job's inputs: at its own and at rounded extents."""
    plain = job.sought
    longer = round_extents(plain.program)
    found = [plain.whole] if longer is None else [plain.whole, plain.around(longer.wrapped(longer.program))]
    return tuple(dict.fromkeys((*map(sink_pads_to_inputs, found), *found)))


def certify(task: CandidateTask) -> list[CertificateClaim | UncertifiedTensor]:
    """Return, for every tensor in the order of proof.jsonl, a claim that its expression is part of an output's.

    For a candidate with remainder tiles, these are the tensors between its pads and slices, see
    ``graph.remainder_tiles``. If the sum that stands for a concatenation has no certificate, its pieces are certified
    one by one.
    """
    choice = task.job.options.choice
    pairs = certificate_pairs(task.job.sought.whole, decode_graph(task.graph))
    all_found = (_certify_tensors(*pair, choice) for pair in pairs)
    first = next(all_found)
    if not _has_uncertified(first):
        return first
    return next((found for found in all_found if not _has_uncertified(found)), first)


def _has_uncertified(found: list[CertificateClaim | UncertifiedTensor]) -> bool:
    return any(isinstance(one, UncertifiedTensor) for one in found)


def _certify_tensors(
    program: KernelGraph, graph: KernelGraph, choice: AxiomChoice
) -> list[CertificateClaim | UncertifiedTensor]:
    oracle = _oracle(program, choice)
    found: list[CertificateClaim | UncertifiedTensor] = []
    for tensor, each in _tensors(graph):
        whole = _certify_tensor(tensor, reduce(add, each), oracle)
        apart = isinstance(whole, UncertifiedTensor) and len(each) > 1
        found += [_certify_tensor(tensor, e, oracle) for e in each] if apart else [whole]
    return found


class _Oracle:
    """The oracle of one program, with the claims that it has made: candidates have most expressions in common."""

    def __init__(self, program: KernelGraph, choice: AxiomChoice) -> None:
        trace = expressions(program)
        self._normal_forms = NormalFormOracle([trace.tensors[i] for i in program.outputs], choice=choice)
        self._axioms = axioms_in_force(choice.complete)
        self._claims: dict[Expr, tuple[str, int, str] | None] = {}

    def claim(self, e: Expr) -> tuple[str, int, str] | None:
        """Return the certificate that an abstract expression is a subterm of an output.

        Returns:
            The expression as text, the number of the output, and the SMT-LIB obligation; None without a certificate.
        """
        if e not in self._claims:
            certificate = self._normal_forms.certificate(e)
            if certificate is None:
                self._claims[e] = None
            else:
                output = self._normal_forms.targets.index(certificate.target)
                self._claims[e] = term_to_text(e), output, to_smt2(certificate, self._axioms)
        return self._claims[e]


@lru_cache(maxsize=4)
def _oracle(program: KernelGraph, choice: AxiomChoice) -> _Oracle:
    return _Oracle(program, choice)


def _tensors(graph: KernelGraph) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    trace = pieces(graph)
    for number, each in enumerate(trace.tensors):
        yield f"k{number}", each
    for op in sorted(trace.blocks):
        for number, each in enumerate(trace.blocks[op]):
            yield f"b{op}.{number}", each


def _certify_tensor(tensor: str, e: Expr, oracle: _Oracle) -> CertificateClaim | UncertifiedTensor:
    found = oracle.claim(e)
    if found is None:
        return UncertifiedTensor(tensor, term_to_text(e)[:400])
    return CertificateClaim(tensor, *found)


def discharge_texts(texts: tuple[str, ...]) -> list[tuple[SolverRecord, SolverRecord]]:
    """Return the answers of z3 and cvc5 to each obligation."""

    def record(result: SolverResult) -> SolverRecord:
        milliseconds = round(result.milliseconds, 3)
        return SolverRecord(answer=result.answer.value, version=result.version, milliseconds=milliseconds)

    return [(record(z3), record(cvc5)) for z3, cvc5 in discharge_all([parse_script(text) for text in texts])]


def verify_candidate(task: CandidateTask) -> AcceptedCandidate | RejectedCandidate:
    """Verify a candidate at the program's real sizes: special values, final fingerprint, proof, replay of the proof.

    A candidate that is proved and differs from the program at special values needs no fingerprint: it is refused. If it
    is not proved, the fingerprint and the prover say why.

    Sound: what is accepted is the policy's to say (run.verify.certify); a proof counts once the kernel has replayed it.
    What is accepted is refused still if it differs from the program at special values.
    """
    # Loaded here, because searching units does without it, and a worker is prepared while others search.
    from mirage_formal.run.verify.candidate_numerics import SpecialValueFault, evaluate_special_values

    job = task.job
    session, graph, sought = _fingerprint_session(job), decode_graph(task.graph), _sought_graphs(job)
    found = evaluate_special_values(job.program, graph)
    if isinstance(found, SpecialValueFault) and is_proved(session, graph, replay_proof, sought):
        return RejectedCandidate("numerics", str(found))
    judged = certify_candidate(session, graph, job.accept, replay_proof, sought)
    if isinstance(judged, UnacceptedCandidate):
        return RejectedCandidate(judged.kind, judged.reason)
    if isinstance(found, SpecialValueFault):
        return RejectedCandidate("numerics", str(found))
    # A fingerprint without an answer is recorded with its completed rounds only.
    log = msgspec.structs.replace(judged.record, draws=tuple(draw for draw in judged.record.draws if draw.expected))
    return AcceptedCandidate(verdict_record(judged.verdict), msgspec.json.encode(log), _proof_of(judged), found)


def prepare_verification(task: PreparationTask) -> float:
    """Start this worker's solver process, and evaluate the program for the final fingerprints of its candidates.

    Returns:
        Milliseconds of processor time that another worker would take for the same.
    """
    begin = process_time()
    import mirage_formal.run.verify.candidate_numerics  # noqa: F401  # of verification only

    start_solvers()
    _fingerprint_session(task.job).evaluate_program()
    milliseconds = 1e3 * (process_time() - begin)
    if milliseconds < _SHORT_MS:
        choice = task.job.options.choice
        _oracle(task.job.sought.whole, choice)
        load_audit_solver(choice)
    return milliseconds


def replay_proof(program: KernelGraph, candidate: KernelGraph, proof: bytes) -> ReplayedTheorem | Unknown:
    """Replay a proof in the checker's proof kernel; return Unknown if the kernel refuses it."""
    try:
        return replay_with_obligations(program, candidate, proof)
    except ProofError as error:
        return Unknown(f"{error.where}: {error.what}" if error.where else error.what)


def _proof_of(judged: VerifiedCandidate[ReplayedTheorem]) -> Proof | None:
    match judged.verdict:
        case Equivalent(proof=data):
            assert judged.theorem is not None
            theorem = judged.theorem.theorem
            return Proof(data, theorem.steps, theorem.lemmas, judged.theorem.obligations)
        case Probable():
            return None


@lru_cache(maxsize=2)
def _fingerprint_session(job: SearchJob) -> FingerprintSession:
    most = FINAL_MULTIPLICATIONS if job.accept is Policy.EQUIVALENT else None
    settings = FingerprintSettings(seed=job.options.seed, prime_bits=FINAL_PRIME_BITS, max_multiplications=most)
    return FingerprintSession(job.program, settings)


def verdict_record(verdict: Verdict) -> VerdictRecord:
    """Return a verdict as the record of files: its kind, and its conditions, rounds or reason as far as it has them."""
    match verdict:
        case Equivalent(conditions=conditions, added=added):
            return VerdictRecord(kind="equivalent", conditions=conditions, added=added)
        case Probable(rounds, bound_log2, reason):
            return VerdictRecord(kind="probable", rounds=rounds, bound_log2=bound_log2, reason=reason)
        case Different(seed=seed, output=output, index=index, expected=expected, got=got):
            reason = f"seed {seed}: output {output} at {list(index)}: expected {expected}, got {got}"
            return VerdictRecord(kind="different", reason=reason)
        case Unknown(reason):
            return VerdictRecord(kind="unknown", reason=reason)
