"""Solver sessions: texts and terms in, values out. Answers have no truth value, so that unknown is never a yes or no.

Solvers are loaded when first asked, never on import. They run in this process; a caller that must survive a crash or a
hang of a solver runs this in a process that it can kill.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any, Final, NoReturn

from mirage_formal.smt.axioms import AxiomSet, load
from mirage_formal.smt.terms import BINARY, Add, Const, Div, Expr, Mul, Sum, Unary, Var, head, postorder


class Answer(Enum):
    """Whether an expression is part of a target.

    Sound: only REFUTED may prune, and only PROVED may be reported as a fact.
    """

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("an Answer has no truth value; compare it with PROVED, REFUTED or UNKNOWN")


class Satisfiability(Enum):
    """A solver's answer."""

    UNSAT = "unsat"
    SAT = "sat"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Satisfiability has no truth value; compare it with UNSAT, SAT or UNKNOWN")


@dataclass(frozen=True, slots=True)
class SolverResult:
    """What one solver said about a text.

    Attributes:
        solver: z3 or cvc5.
        version: The solver's version.
        answer: What it said; UNKNOWN also when it failed or ran out of time.
        milliseconds: Wall time.
        reason: Why the answer is unknown, or empty.
    """

    solver: str
    version: str
    answer: Satisfiability
    milliseconds: float
    reason: str = ""


DEFAULT_TIMEOUT_MS: Final = 10_000


def discharge(text: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> tuple[SolverResult, ...]:
    """Ask z3 and cvc5, each in a fresh solver, whether a self-contained text is unsatisfiable.

    Sound: it says what the solvers say about this text, nothing about what the text means; see ``certificate.audit``.
    """
    return _z3(text, timeout_ms), ask_cvc5(text, timeout_ms)


def _z3(text: str, timeout_ms: int) -> SolverResult:
    import z3

    start = perf_counter()
    answer, reason = Satisfiability.UNKNOWN, ""
    try:
        solver = z3.Solver()
        solver.set("timeout", timeout_ms)
        solver.from_string(text)
        answer = _ANSWERS[str(solver.check())]
        reason = solver.reason_unknown() if answer is Satisfiability.UNKNOWN else ""
    except z3.Z3Exception as error:
        reason = f"z3: {error}"[:300]
    return SolverResult("z3", z3.get_version_string(), answer, 1e3 * (perf_counter() - start), reason)


def ask_cvc5(text: str, timeout_ms: int) -> SolverResult:
    """One text to cvc5 alone; a timeout or an error is UNKNOWN with its reason."""
    import cvc5

    start = perf_counter()
    answer, reason = Satisfiability.UNKNOWN, ""
    manager = cvc5.TermManager()
    solver = cvc5.Solver(manager)
    try:
        solver.setOption("tlimit-per", str(timeout_ms))
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "certificate")
        symbols = parser.getSymbolManager()
        asked = False
        while not (command := parser.nextCommand()).isNull():
            if command.getCommandName() == "set-info":
                continue  # told the expected status, cvc5 answers anything else with an error
            said = str(command.invoke(solver, symbols)).strip()
            if said in _ANSWERS:
                asked, answer = True, _ANSWERS[said]
            elif said:
                raise RuntimeError(said)
        if not asked:
            reason = "the text does not ask"
    except RuntimeError as error:
        answer, reason = Satisfiability.UNKNOWN, f"cvc5: {error}"[:300]
    return SolverResult("cvc5", cvc5.__version__, answer, 1e3 * (perf_counter() - start), reason)


_ANSWERS: Final = {s.value: s for s in Satisfiability}


class AxiomSession:
    """Z3 with the quantified axioms, as the paper asks it: is a term part of a target?"""

    def __init__(self, axioms: AxiomSet | None = None) -> None:
        import z3

        self._z3: Any = z3
        self._context = z3.Context()
        self.axioms = load() if axioms is None else axioms
        self._formulas = z3.parse_smt2_string(self.axioms.text, ctx=self._context)
        self._sort = z3.DeclareSort("Expr", self._context)
        self._functions: dict[str, Any] = {name: self._function(name, 2) for name in BINARY}
        self._sum = z3.Function("sum", z3.IntSort(self._context), self._sort, self._sort)
        self._relation = z3.Function("subexpr", self._sort, self._sort, z3.BoolSort(self._context))
        self._terms: dict[Expr, Any] = {}

    def _function(self, name: str, arity: int) -> Any:
        return self._z3.Function(name, *([self._sort] * (arity + 1)))

    def term(self, e: Expr) -> Any:
        """The Z3 term of an abstract expression."""
        if e not in self._terms:
            for node in postorder([e]):
                if node not in self._terms:
                    self._terms[node] = self._build(node)
        return self._terms[e]

    def _build(self, e: Expr) -> Any:
        match e:
            case Var() | Const():
                return self._z3.Const(head(e), self._sort)
            case Add(a, b) | Mul(a, b) | Div(a, b):
                return self._functions[head(e)](self._terms[a], self._terms[b])
            case Sum(extent, a):
                return self._sum(self._z3.IntVal(extent, self._context), self._terms[a])
            case Unary(name, a):
                if name not in self._functions:
                    self._functions[name] = self._function(name, 1)
                return self._functions[name](self._terms[a])

    def ask(self, expression: Expr, target: Expr, timeout_ms: int) -> Answer:
        """Whether the axioms make ``expression`` part of ``target``.

        Sound: PROVED only on unsat, REFUTED only on sat; a timeout or a failure is UNKNOWN.
        """
        try:
            solver = self._z3.Solver(ctx=self._context)
            solver.set("timeout", timeout_ms)
            solver.add(self._formulas)
            solver.add(self._z3.Not(self._relation(self.term(expression), self.term(target))))
            answer = str(solver.check())
        except self._z3.Z3Exception:
            return Answer.UNKNOWN
        return {"unsat": Answer.PROVED, "sat": Answer.REFUTED}.get(answer, Answer.UNKNOWN)

    def consistent(self, timeout_ms: int) -> Satisfiability:
        """What Z3 says about the axioms alone; unsat would make every certificate worthless."""
        solver = self._z3.Solver(ctx=self._context)
        solver.set("timeout", timeout_ms)
        solver.add(self._formulas)
        return _ANSWERS[str(solver.check())]
