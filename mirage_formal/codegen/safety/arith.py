"""Integer expressions of Programs as bit-vector queries: exact, because the width holds every value that can occur.

A ``Query`` asks whether integers within given extents make some expressions nonzero and violate one of some limits. A
Program is safe if all of a list of queries are unsatisfiable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirage_formal.codegen.program.integers import Range, evaluate_expression, operator_bounds
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.logic.script import RESERVED, Script, parse_script
from mirage_formal.logic.session import Satisfiability, SolverResult, run_solvers
from mirage_formal.logic.solver_client import SolverQuery

INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Query:
    """Do values exist, each variable in 0..extent-1, with every ``true`` nonzero and some ``broken`` out of range?

    Attributes:
        variables: Names and extents.
        true: Expressions that are nonzero.
        broken: Expressions; at least one lies outside 0..2^31-1; if empty, only ``true`` is asked.
        zero: Divisors; at least one is 0; a disjunction with ``broken``.
        show: Expressions whose values are shown in a model, with their names.
    """

    variables: tuple[tuple[str, int], ...]
    true: tuple[IntExpr, ...] = ()
    broken: tuple[IntExpr, ...] = ()
    zero: tuple[IntExpr, ...] = ()
    show: tuple[tuple[str, IntExpr], ...] = ()


@dataclass(frozen=True, slots=True)
class SolverReplies:
    """Answers of solvers to a query.

    Attributes:
        results: One per solver that was asked; the first is z3.
        model: Where satisfiable, the variables and shown expressions with their values; else empty.
    """

    results: tuple[SolverResult, ...]
    model: tuple[tuple[str, int], ...] = ()

    @property
    def answer(self) -> Satisfiability:
        """Return the solvers' common answer.

        Sound: UNSAT only if z3 says so and no other solver says SAT; solvers that contradict each other are UNKNOWN.
        """
        said = {result.answer for result in self.results}
        if {Satisfiability.SAT, Satisfiability.UNSAT} <= said:
            return Satisfiability.UNKNOWN
        return self.results[0].answer


# --- text ------------------------------------------------------------------------------------------------------------


class _Encoder:
    """An encoder of expressions as definitions of equal bit-vectors, each written once.

    Sound: the width is that of the largest absolute value of any intermediate, and a sign bit, so nothing wraps and a
    bit-vector's signed value is the integer's. Division is of signed values towards zero, as in C.
    """

    def __init__(self, query: Query) -> None:
        self.ranges: dict[str, Range] = {name: (0, extent - 1) for name, extent in query.variables}
        self.largest = INT_MAX if query.broken else 1
        self.roots = (*query.true, *query.broken, *query.zero, *(e for _, e in query.show))
        for e in self.roots:
            self._measure(e)
        self.width = self.largest.bit_length() + 1
        self.lines: list[str] = []
        self.names: dict[IntExpr, str] = {}

    def _measure(self, e: IntExpr) -> Range:
        match e:
            case Int(value):
                found = (value, value)
            case Var(name):
                found = self.ranges[name]
            case IntBin(op, a, b):
                found = operator_bounds(op, self._measure(a), self._measure(b))
        self.largest = max(self.largest, -found[0], found[1])
        return found

    def constant(self, value: int) -> str:
        return f"(_ bv{value % (1 << self.width)} {self.width})"

    def declare(self, name: str, extent: int) -> None:
        bits = max((extent - 1).bit_length(), 1)
        symbol = _symbol(name)
        self.lines.append(f"(declare-const {symbol} (_ BitVec {bits}))")
        if extent != 1 << bits:
            self.lines.append(f"(assert (bvult {symbol} (_ bv{extent} {bits})))")
        self.names[Var(name)] = f"((_ zero_extend {self.width - bits}) {symbol})"

    def term(self, e: IntExpr) -> str:
        match e:
            case Int(value):
                return self.constant(value)
            case Var():
                return self.names[e]
            case IntBin(op, a, b):
                if e not in self.names:
                    body = self._operation(op, self.term(a), self.term(b), b)
                    name = f"def!{len(self.names)}"
                    self.lines.append(f"(define-fun {name} () (_ BitVec {self.width}) {body})")
                    self.names[e] = name
                return self.names[e]

    def _operation(self, op: IntOp, a: str, b: str, right: IntExpr) -> str:
        power = isinstance(right, Int) and right.value > 0 and right.value & (right.value - 1) == 0
        match op:
            case IntOp.DIV if power and isinstance(right, Int):
                # Operands are never negative where the answer matters: a negative one breaks its own obligation.
                return f"(bvlshr {a} {self.constant(right.value.bit_length() - 1)})"
            case IntOp.MOD if power and isinstance(right, Int):
                return f"(bvand {a} {self.constant(right.value - 1)})"
            case IntOp.LT:
                return self._bit(f"(bvslt {a} {b})")
            case IntOp.EQ:
                return self._bit(f"(= {a} {b})")
            case IntOp.AND:
                return self._bit(f"(and {self._nonzero(a)} {self._nonzero(b)})")
            case _:
                return f"({_NAMES[op]} {a} {b})"

    def _bit(self, condition: str) -> str:
        return f"(ite {condition} {self.constant(1)} {self.constant(0)})"

    def _nonzero(self, a: str) -> str:
        return f"(distinct {a} {self.constant(0)})"

    def text(self, query: Query) -> str:
        for name, extent in query.variables:
            self.declare(name, extent)
        facts = [f"(assert {self._nonzero(self.term(e))})" for e in query.true]
        broken: list[str] = []
        for e in query.broken:
            a = self.term(e)
            broken += [f"(bvslt {a} {self.constant(0)})", f"(bvslt {self.constant(INT_MAX)} {a})"]
        broken += [f"(= {self.term(e)} {self.constant(0)})" for e in query.zero]
        if broken:
            facts.append(f"(assert (or {' '.join(broken)} false))")
        shown = [f"(define-fun show!{name} () (_ BitVec {self.width}) {self.term(e)})" for name, e in query.show]
        head = ["(set-logic QF_BV)", "(set-info :status unsat)"]
        # ``term`` adds to the lines, so the definitions come last.
        return "\n".join([*head, *self.lines, *shown, *facts, "(check-sat)", ""])


_NAMES: Final = {
    IntOp.ADD: "bvadd",
    IntOp.SUB: "bvsub",
    IntOp.MUL: "bvmul",
    IntOp.DIV: "bvudiv",
    IntOp.MOD: "bvurem",
    IntOp.XOR: "bvxor",
}


def _symbol(name: str) -> str:
    """Return a name as a simple symbol that SMT-LIB does not reserve."""
    return f"v!{name}" if name in RESERVED else name


def query_to_smt2(query: Query) -> str:
    """Return the query as a self-contained SMT-LIB text; unsatisfiable means that no such values exist."""
    if any(extent < 1 for _, extent in query.variables):
        raise ValueError("expected extents of at least 1")
    return _Encoder(query).text(query)


# --- answers ---------------------------------------------------------------------------------------------------------


def solve_query(query: Query, timeout_ms: int, *, second: bool = True) -> SolverReplies:
    """Ask z3 whether a query is satisfiable, and cvc5 as well about queries that z3 refuted quickly.

    Args:
        query: The query.
        timeout_ms: Time limit of each solver.
        second: Whether cvc5 is asked too.
    """
    script = parse_script(query_to_smt2(query))
    first, values = _z3(script, query, timeout_ms)
    model = _model(query, values) if first.answer is Satisfiability.SAT else ()
    if second and first.answer is Satisfiability.UNSAT and first.milliseconds < _QUICK_MS:
        ((other, _),) = run_solvers([SolverQuery("cvc5", script, timeout_ms)])
        return SolverReplies((first, other), model)
    return SolverReplies((first,), model)


#: The time limit for z3's refutation below which cvc5 is asked as well.
_QUICK_MS: Final = 50
#: Tactics of z3 that bit-vectors of this form need.
_TACTICS: Final = ("simplify", "propagate-values", "solve-eqs", "bit-blast", "sat")


def _z3(script: Script, query: Query, timeout_ms: int) -> tuple[SolverResult, dict[str, int]]:
    names = {_symbol(name): name for name, _ in query.variables}
    ((result, values),) = run_solvers([SolverQuery("z3", script, timeout_ms, _TACTICS, tuple(names))])
    return result, {names[symbol]: value for symbol, value in values.items()}


def _model(query: Query, values: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    complete = {name: values.get(name, 0) for name, _ in query.variables}
    shown = [(name, evaluate_expression(e, complete)) for name, e in query.show]
    return (*complete.items(), *((name, value) for name, value in shown if value is not None))
