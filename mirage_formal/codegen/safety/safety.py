"""Safety of a Program: its proof obligations for all threads, blocks and iterations, and their discharge.

A Program is safe if no integer overflows and no divisor is 0; every access is in bounds and aligned; barriers, waits
and collectives stand in uniform control flow; unordered accesses to shared memory never overlap, where an asynchronous
copy is unordered until its thread has waited for its group and a barrier follows, and a copy of the producer until its
item is awaited; a read of shared memory was written through the same buffer, and a read of registers was written
before; items pass through pipelines in order, and nobody waits forever; and every element of a written parameter is
written, by one thread. Obligations are about the very expressions that are printed; those about two accesses leave out
divisions that their conditions make unnecessary. Most hold by bounds or digits; the others go to z3 and cvc5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import assert_never

from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.program.access import (
    Access,
    Context,
    ExpressionUse,
    Mode,
    ProgramAccesses,
    RegisterUse,
    TileUse,
    list_accesses,
)
from mirage_formal.codegen.program.integers import (
    are_contradictory,
    conjuncts,
    divisor,
    fold,
    implied_bounds,
    intermediates,
    interval,
    negate,
    variables,
)
from mirage_formal.codegen.program.program import TILE_COLUMNS, Int, IntBin, IntExpr, IntOp, Param, Program, Var
from mirage_formal.codegen.safety.access_disjointness import SECOND, extents, not_equal, query_variables, remainder
from mirage_formal.codegen.safety.arith import INT_MAX, Query, SolverReplies, solve_query
from mirage_formal.codegen.safety.assignment import assignment_obligations
from mirage_formal.codegen.safety.joined_obligations import joined_obligations
from mirage_formal.codegen.safety.mixed_radix import to_digits
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargedObligations,
    DischargeMethod,
    Finding,
    Obligation,
    ObligationKind,
    Safe,
    SafetyReport,
    SafetyVerdict,
    UndecidedObligation,
    Unsafe,
    ViolatedObligation,
)
from mirage_formal.codegen.safety.pipeline_obligations import pipeline_obligations
from mirage_formal.codegen.safety.race_obligations import conflict_obligations, liveness_obligations, writer_obligations
from mirage_formal.graph.verdict import Unknown
from mirage_formal.logic.session import Satisfiability
from mirage_formal.support.limits import SAFETY_MS


def safety_obligations(program: Program | JoinedProgram) -> tuple[Obligation, ...]:
    """Return all proof obligations for the safety of a Program; of a joined launch those beside its two Programs'.

    Sound: the claims cover what the module's first lines list, for all values of thread, block and loop variables;
    those with a finding already are settled without a solver, by arguments named where they are made. A Program with
    faults of form has these alone, and is not safe.
    """
    if isinstance(program, JoinedProgram):
        return joined_obligations(program)
    found = list_accesses(program)
    if found.faults or found.unruly:
        return tuple(
            Obligation(
                ObligationKind.STRUCTURE, path, subject, what, None, ViolatedObligation(DischargeMethod.FORM, (), what)
            )
            for path, subject, what in dict.fromkeys((*found.faults, *found.unruly))
        )
    return (
        Obligation(
            ObligationKind.STRUCTURE,
            "",
            program.name,
            "statements fit together",
            None,
            DischargedObligation(DischargeMethod.FORM),
        ),
        *_expressions(program, found),
        *(_register_obligation(program, use) for use in found.registers),
        *(_access_obligation(program, access) for access in found.accesses),
        *(_alignment_obligation(program, access) for access in found.accesses if _is_vector(access)),
        *(_uniformity_obligation(program, use) for use in found.uniform),
        *(one for use in found.tiles for one in _tile_obligations(program, use)),
        *pipeline_obligations(program, found),
        *conflict_obligations(program, found),
        *liveness_obligations(program, found),
        *assignment_obligations(program),
        *writer_obligations(program, found),
    )


# --- statements of obligations ---------------------------------------------------------------------------------------


def _sizes(program: Program, at: Context) -> dict[str, int]:
    return {**extents(program), **dict(at.loops)}


def _expressions(program: Program, found: ProgramAccesses) -> Iterator[Obligation]:
    """Yield the arithmetic obligation of every expression, once for equal conditions and loops."""
    seen: set[tuple[IntExpr, tuple[IntExpr, ...], tuple[tuple[str, int], ...]]] = set()
    for use in found.uses:
        for e, guards in _parts(use.expression, use.context.guards):
            key = e, guards, use.context.loops
            if key not in seen and not _trivial(e):
                seen.add(key)
                yield _arithmetic_obligation(program, use, e, guards)


def _parts(e: IntExpr, guards: tuple[IntExpr, ...]) -> Iterator[tuple[IntExpr, tuple[IntExpr, ...]]]:
    """Yield the parts of an expression split at ``&&``, whose right side is computed only where the left is nonzero."""
    if isinstance(e, IntBin) and e.op is IntOp.AND:
        yield from _parts(e.a, guards)
        yield from _parts(e.b, (*guards, e.a))
    else:
        yield e, guards


def _trivial(e: IntExpr) -> bool:
    return isinstance(e, Var) or (isinstance(e, Int) and 0 <= e.value <= INT_MAX)


def _arithmetic_obligation(program: Program, use: ExpressionUse, e: IntExpr, guards: tuple[IntExpr, ...]) -> Obligation:
    """Return the obligation that an expression's intermediates lie within 0..2^31-1 and its divisors are not 0.

    Sound: every node of the expression is bounded by ``interval`` or asked about.
    """
    sizes = _sizes(program, use.context)
    ranges = {name: (0, extent - 1) for name, extent in sizes.items()}
    facts = implied_bounds(guards, ranges)
    parts = intermediates(e)
    divisors = tuple(p.b for p in parts if isinstance(p, IntBin) and p.op in (IntOp.DIV, IntOp.MOD))
    bounds = [interval(p, ranges, facts) for p in parts]
    held = are_contradictory(facts) or (
        all(low >= 0 and high <= INT_MAX for low, high in bounds)
        and all(interval(d, ranges, facts)[0] > 0 for d in divisors)
    )
    true = conjuncts(guards)
    names = variables(e).union(*map(variables, true))
    show = ((f"value{n}", p) for n, p in enumerate(parts) if isinstance(p, IntBin))
    query = Query(query_variables(names, sizes), true, parts, divisors, tuple(show))
    claim = f"the {use.role} is computed within 0..2^31-1"
    finding = DischargedObligation(DischargeMethod.INTERVAL) if held else None
    return Obligation(ObligationKind.ARITHMETIC, use.context.path, use.role, claim, query, finding)


def bounds_obligation(
    sizes: Mapping[str, int], guards: tuple[IntExpr, ...], index: IntExpr, used: int, size: int, stated: Obligation
) -> Obligation:
    """Return the obligation that ``used`` elements from an index on lie within ``size``.

    Its question is about the upper end; that the index is not negative is an obligation of its own.

    Args:
        sizes: Extents of the variables.
        guards: Conditions under which the access is made.
        index: The first element.
        used: Number of elements.
        size: Elements that there are.
        stated: The obligation without question and finding.
    """
    ranges = {name: (0, extent - 1) for name, extent in sizes.items()}
    facts = implied_bounds(guards, ranges)
    low, high = interval(index, ranges, facts)
    if high + used > size and (digits := to_digits(index, sizes)) is not None:
        high = min(high, digits.largest)  # closer for exclusive ors
    held = are_contradictory(facts) or (low >= 0 and high + used <= size)
    beyond = IntBin(IntOp.LT, Int(size - used), index)
    return _excluded(sizes, guards, index, beyond, replace(stated, finding=_held(held)))


def lower_bound_obligation(
    sizes: Mapping[str, int], guards: tuple[IntExpr, ...], index: IntExpr, stated: Obligation
) -> Obligation | None:
    """Return the obligation that an index is not negative; None where its bounds show that. See ``bounds_obligation``.

    Kernels of CUDA C++ need none: no intermediate of theirs is negative (``ObligationKind.ARITHMETIC``).
    """
    ranges = {name: (0, extent - 1) for name, extent in sizes.items()}
    facts = implied_bounds(guards, ranges)
    if are_contradictory(facts) or interval(index, ranges, facts)[0] >= 0:
        return None
    return _excluded(sizes, guards, index, IntBin(IntOp.LT, index, Int(0)), stated)


def _held(held: bool) -> DischargedObligation | None:
    return DischargedObligation(DischargeMethod.INTERVAL) if held else None


def _excluded(
    sizes: Mapping[str, int], guards: tuple[IntExpr, ...], index: IntExpr, fault: IntExpr, stated: Obligation
) -> Obligation:
    """Return an obligation with the question whether a fault and the guards hold together."""
    true = (*conjuncts(guards), fault)
    names = variables(index).union(*map(variables, true))
    return replace(stated, query=Query(query_variables(names, sizes), true, show=(("index", index),)))


def _register_obligation(program: Program, use: RegisterUse) -> Obligation:
    claim = f"{use.used} of {use.count} registers, at a constant"
    stated = Obligation(ObligationKind.BOUNDS, use.context.path, use.array, claim)
    at = use.context
    return bounds_obligation(_sizes(program, at), at.guards, use.index, use.used, use.count, stated)


def _access_obligation(program: Program, access: Access) -> Obligation:
    size, name = access.target.elements, access.target.name
    claim = f"a {access.mode} of {access.count} elements lies within {size}"
    stated = Obligation(ObligationKind.BOUNDS, access.context.path, name, claim)
    at = access.context
    return bounds_obligation(_sizes(program, at), at.guards, access.index, access.count, size, stated)


def _is_vector(access: Access) -> bool:
    return access.count > 1 or access.mode in (Mode.ASYNC, Mode.MATRIX, Mode.TILE)


def _alignment_obligation(program: Program, access: Access) -> Obligation:
    """Return the obligation that an access starts at a multiple of its size.

    Sound: shared memory starts at a multiple of 16 bytes, and a parameter at a multiple of its ``align``.
    """
    at, size, name = access.context, access.bytes, access.target.name
    claim = f"a {access.mode} of {size} bytes is aligned"
    if isinstance(access.target, Param) and access.target.align % size:
        reason = f"the pointer is aligned to {access.target.align} bytes only"
        return Obligation(
            ObligationKind.ALIGNMENT, at.path, name, claim, None, ViolatedObligation(DischargeMethod.FORM, (), reason)
        )
    address = access.address
    sizes = _sizes(program, at)
    true = (*conjuncts(at.guards), not_equal(remainder(address, size), Int(0)))
    names = variables(address).union(*map(variables, true))
    query = Query(query_variables(names, sizes), true, show=(("index", access.index), ("address", address)))
    finding = DischargedObligation(DischargeMethod.INTERVAL) if divisor(address) % size == 0 else None
    return Obligation(ObligationKind.ALIGNMENT, at.path, name, claim, query, finding)


def _tile_obligations(program: Program, use: TileUse) -> Iterator[Obligation]:
    """Yield the obligations of a tile's place: an even one, and columns that lie in one row of the parameter.

    Sound: the rows below have the same first column, ``source % stride``; that they lie within the parameter is the
    bounds of the access.
    """
    at, copy, sizes = use.context, use.copy, _sizes(program, use.context)
    stated = Obligation(
        ObligationKind.BOUNDS,
        at.path,
        copy.param,
        f"{TILE_COLUMNS} columns of the tile lie within a row of {copy.stride} elements",
    )
    column = remainder(copy.source, copy.stride)
    yield bounds_obligation(sizes, at.guards, column, TILE_COLUMNS, copy.stride, stated)
    true = (not_equal(remainder(copy.at, 2), Int(0)),)
    query = Query(query_variables(variables(copy.at), sizes), true, show=(("at", copy.at),))
    finding = DischargedObligation(DischargeMethod.INTERVAL) if divisor(copy.at) % 2 == 0 else None
    claim = "the tile starts at an even position"
    yield Obligation(ObligationKind.ALIGNMENT, at.path, copy.buffer, claim, query, finding)


def _uniformity_obligation(program: Program, use: ExpressionUse) -> Obligation:
    at, claim = use.context, "the condition is the same for all threads"
    sizes = _sizes(program, at)
    sizes["tid" + SECOND] = sizes["tid"]
    other = {"tid": Var("tid" + SECOND)}
    conditions = (use.expression, *at.guards)
    true = (
        *conjuncts((*at.guards, *(fold(guard, other) for guard in at.guards))),
        not_equal(negate(use.expression), negate(fold(use.expression, other))),
    )
    names = set().union(*map(variables, conditions), *map(variables, true))
    query = Query(query_variables(names, sizes), true)
    finding = None if "tid" in variables(use.expression) else DischargedObligation(DischargeMethod.FORM)
    return Obligation(ObligationKind.UNIFORM, at.path, "condition", claim, query, finding)


# --- discharging -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SolverClient:
    """A client of the solvers that asks each query once."""

    timeout_ms: int
    second: bool
    recheck: bool
    replies: dict[tuple[object, ...], SolverReplies] = field(default_factory=dict)

    def settle(self, obligation: Obligation) -> DischargedObligations:
        known, query = obligation.finding, obligation.query
        if known is not None and not (self.recheck and isinstance(known, DischargedObligation) and query is not None):
            return DischargedObligations(obligation, known)
        if query is None:
            return DischargedObligations(obligation, UndecidedObligation("nothing to ask"))
        key = query.variables, query.true, query.broken, query.zero
        start = perf_counter()
        if key not in self.replies:
            self.replies[key] = solve_query(query, self.timeout_ms, second=self.second)
        reply = self.replies[key]
        finding = _finding(reply)
        if known is not None and isinstance(finding, DischargedObligation):
            finding = known
        return DischargedObligations(obligation, finding, reply.results, 1e3 * (perf_counter() - start))


def _finding(reply: SolverReplies) -> Finding:
    match reply.answer:
        case Satisfiability.UNSAT:
            return DischargedObligation(DischargeMethod.SOLVER)
        case Satisfiability.SAT:
            return ViolatedObligation(DischargeMethod.SOLVER, reply.model)
        case Satisfiability.UNKNOWN:
            return UndecidedObligation(
                "; ".join(f"{r.solver}: {r.answer.value} {r.reason}".strip() for r in reply.results)
            )
        case _:
            assert_never(reply.answer)


def discharge_safety(
    program: Program | JoinedProgram, *, timeout_ms: int = SAFETY_MS, second: bool = True, recheck: bool = False
) -> SafetyReport:
    """State and settle all obligations of a Program, and return the report.

    Sound: the verdict is Safe only if every obligation is Held: by an argument named in ``safety_obligations``, or
    because z3 refutes its query and cvc5 does not contradict. Anything else is Unsafe, where a model or a fault was
    found, or Unknown.

    Args:
        program: The Program, or a joined launch, whose two Programs have reports of their own.
        timeout_ms: Time limit of each question.
        second: Whether cvc5 is asked too about queries that z3 refutes quickly.
        recheck: Whether solvers are also asked about obligations that hold by bounds or digits; they must agree.
    """
    start = perf_counter()
    desk = _SolverClient(timeout_ms, second, recheck)
    discharged = tuple(desk.settle(obligation) for obligation in safety_obligations(program))
    return SafetyReport(program.name, _verdict(discharged), discharged, 1e3 * (perf_counter() - start))


def solve_obligations(
    obligations: Iterable[Obligation], timeout_ms: int = SAFETY_MS
) -> tuple[DischargedObligations, ...]:
    """Settle obligations that belong to no Program; see ``discharge_safety``, whose two solvers are asked."""
    desk = _SolverClient(timeout_ms, second=True, recheck=False)
    return tuple(desk.settle(obligation) for obligation in obligations)


def _verdict(discharged: tuple[DischargedObligations, ...]) -> SafetyVerdict:
    """Return the verdict of all obligations.

    Sound: Safe only where all are Held; a broken obligation outweighs an undecided one.
    """
    unknown: list[str] = []
    for entry in discharged:
        match entry.finding:
            case DischargedObligation():
                pass
            case ViolatedObligation(_, model, reason):
                return Unsafe(entry.obligation, model, reason)
            case UndecidedObligation(reason):
                obligation = entry.obligation
                unknown.append(f"{obligation.kind} at {obligation.path} ({obligation.subject}): {reason}")
            case _:
                assert_never(entry.finding)
    return Unknown(unknown[0]) if unknown else Safe(len(discharged))


__all__ = [
    "Obligation",
    "Safe",
    "SafetyReport",
    "SafetyVerdict",
    "Unknown",
    "Unsafe",
    "bounds_obligation",
    "discharge_safety",
    "lower_bound_obligation",
    "safety_obligations",
    "solve_obligations",
]
