"""Solver sessions: scripts and terms in, values out. Answers have no truth value, so that unknown is never a yes or no.

Scripts are asked in a separate solver process (logic/solver_client.py), so that a solver's crash, hang or memory use
does not affect this one. ``AxiomSession`` asks z3 in this process: it is a search oracle that takes terms of our own by
z3's Python interface, and the axioms that come with the project. Solvers are loaded when first asked, never on import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NoReturn

from mirage_formal.logic.axioms import AxiomSet, load_axioms
from mirage_formal.logic.script import Script
from mirage_formal.logic.solver_client import Solver, SolverQuery, SolverReply, thread_solvers
from mirage_formal.logic.terms import BINARY, Add, Const, Div, Expr, Mul, Sum, Unary, Variable, head, postorder
from mirage_formal.support.limits import QUESTION_MS


class SubexpressionAnswer(Enum):
    """Answer to a subexpression query: is an expression part of a target?

    Sound: only REFUTED may prune, and only PROVED may be reported as a fact.
    """

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a SubexpressionAnswer has no truth value; compare it with PROVED, REFUTED or UNKNOWN")


class Satisfiability(Enum):
    """Answers of an SMT solver to ``(check-sat)``: no model, a model, or not decided within the limits."""

    UNSAT = "unsat"
    SAT = "sat"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Satisfiability has no truth value; compare it with UNSAT, SAT or UNKNOWN")


@dataclass(frozen=True, slots=True)
class SolverResult:
    """Result of one solver on one text.

    Attributes:
        solver: z3 or cvc5.
        version: The solver's version.
        answer: The solver's answer; UNKNOWN also when it failed or ran out of time.
        milliseconds: Wall time.
        reason: The reason of an unknown answer, or empty.
        processor_ms: Processor time, which does not depend on other load of the machine.
    """

    solver: str
    version: str
    answer: Satisfiability
    milliseconds: float
    reason: str = ""
    processor_ms: float = 0.0


def discharge(script: Script, timeout_ms: int = QUESTION_MS) -> tuple[SolverResult, SolverResult]:
    """Ask z3 and cvc5, each in a fresh solver, whether a script is unsatisfiable.

    Sound: it says what the solvers say about this script, nothing about what it means; see ``certificate.audit``.
    """
    return discharge_all([script], timeout_ms)[0]


def discharge_all(scripts: Sequence[Script], timeout_ms: int = QUESTION_MS) -> list[tuple[SolverResult, SolverResult]]:
    """Return the results of ``discharge`` for several scripts, with one message to the solvers."""
    asked = [SolverQuery(solver, script, timeout_ms) for script in scripts for solver in _BOTH]
    found = run_solvers(asked)
    return [(found[i][0], found[i + 1][0]) for i in range(0, len(found), 2)]


def start_solvers() -> None:
    """Start the solver process of this thread, which loads the solvers while this thread goes on."""
    thread_solvers().start()


def run_solvers(questions: Sequence[SolverQuery]) -> list[tuple[SolverResult, Mapping[str, int]]]:
    """Return each solver's result for its question, and the requested model values where it is satisfiable.

    A question that reached its time limit is asked once more, with a longer one, if its solver had less than half of
    that time on a processor, because the machine had other work.

    Sound: the second reply is the solver's own as well, and an unknown one stays unknown.
    """
    replies = list(thread_solvers().ask(questions))
    starved = [  # a solver may end somewhat before its limit
        index
        for index, (one, said) in enumerate(zip(questions, replies, strict=True))
        if said.answer == "unknown" and 2 * said.processor_ms < one.timeout_ms <= 1.1 * said.milliseconds
    ]
    if starved:
        again = [replace(questions[index], timeout_ms=_LONGER * questions[index].timeout_ms) for index in starved]
        for index, said in zip(starved, thread_solvers().ask(again), strict=True):
            replies[index] = said
    return [(_result(one, said), said.model) for one, said in zip(questions, replies, strict=True)]


def _result(one: SolverQuery, said: SolverReply) -> SolverResult:
    answer = _ANSWERS[said.answer]
    return SolverResult(one.solver, said.version, answer, said.milliseconds, said.reason, said.processor_ms)


#: z3's resources for each millisecond of a time limit: more than ten times what it uses in one.
_RESOURCES_OF_MS: Final = 20_000
#: Factor of the time limit of a second try.
_LONGER: Final = 4
_BOTH: Final[tuple[Solver, ...]] = ("z3", "cvc5")
_ANSWERS: Final = {s.value: s for s in Satisfiability}


class AxiomSession:
    """Z3 with the quantified axioms, as the paper uses it: is a term part of a target?

    Args:
        axioms: The axioms; by default, those that come with the project.
    """

    def __init__(self, axioms: AxiomSet | None = None) -> None:
        import z3

        self._z3: Any = z3
        self._context = z3.Context()
        self.axioms = load_axioms() if axioms is None else axioms
        self._formulas = z3.parse_smt2_string(self.axioms.script.text, ctx=self._context)
        self._sort = z3.DeclareSort("Expr", self._context)
        self._functions: dict[str, Any] = {name: self._function(name, 2) for name in BINARY}
        self._sum = z3.Function("sum", z3.IntSort(self._context), self._sort, self._sort)
        self._relation = z3.Function("subexpr", self._sort, self._sort, z3.BoolSort(self._context))
        self._terms: dict[Expr, Any] = {}

    def _function(self, name: str, arity: int) -> Any:
        return self._z3.Function(name, *([self._sort] * (arity + 1)))

    def term(self, e: Expr) -> Any:
        """Return the Z3 term of an abstract expression."""
        if e not in self._terms:
            for node in postorder([e]):
                if node not in self._terms:
                    self._terms[node] = self._build(node)
        return self._terms[e]

    def _build(self, e: Expr) -> Any:
        match e:
            case Variable() | Const():
                return self._z3.Const(head(e), self._sort)
            case Add(a, b) | Mul(a, b) | Div(a, b):
                return self._functions[head(e)](self._terms[a], self._terms[b])
            case Sum(extent, a):
                return self._sum(self._z3.IntVal(extent, self._context), self._terms[a])
            case Unary(name, a):
                if name not in self._functions:
                    self._functions[name] = self._function(name, 1)
                return self._functions[name](self._terms[a])

    def ask(self, expression: Expr, target: Expr, timeout_ms: int) -> SubexpressionAnswer:
        """Return whether the axioms make ``expression`` part of ``target``.

        Sound: PROVED only on unsat, REFUTED only on sat; a timeout or a failure is UNKNOWN.
        """
        # On a loaded machine z3 has been seen to miss a timeout of 20 ms for ten minutes; resources need no timer.
        return self._check(expression, target, {"timeout": timeout_ms, "rlimit": timeout_ms * _RESOURCES_OF_MS})

    def ask_bounded(
        self, expression: Expr, target: Expr, resources: int, without: frozenset[str] = frozenset()
    ) -> SubexpressionAnswer:
        """Return the answer of ``run_solvers`` within z3's limit of resources, which does not depend on the machine.

        Args:
            expression: The expression.
            target: The expression that it may be part of.
            resources: z3's parameter ``rlimit``.
            without: Names of axioms that are left out.
        """
        return self._check(expression, target, {"rlimit": resources}, without)

    def question_text(self, expression: Expr, target: Expr, without: frozenset[str] = frozenset()) -> str:
        """Return a question as SMT-LIB text; unsat means that the expression is part of the target."""
        return str(self._solver(expression, target, without).to_smt2())

    @property
    def version(self) -> str:
        """Return z3's version."""
        return str(self._z3.get_version_string())

    def _solver(self, expression: Expr, target: Expr, without: frozenset[str]) -> Any:
        solver = self._z3.Solver(ctx=self._context)
        for name, formula in zip(self.axioms.axioms, self._formulas, strict=True):
            if name not in without:
                solver.add(formula)
        solver.add(self._z3.Not(self._relation(self.term(expression), self.term(target))))
        return solver

    def _check(
        self, expression: Expr, target: Expr, limits: Mapping[str, int], without: frozenset[str] = frozenset()
    ) -> SubexpressionAnswer:
        try:
            solver = self._solver(expression, target, without)
            for parameter, limit in limits.items():
                solver.set(parameter, limit)
            answer = str(solver.check())
        except self._z3.Z3Exception:
            return SubexpressionAnswer.UNKNOWN
        return {"unsat": SubexpressionAnswer.PROVED, "sat": SubexpressionAnswer.REFUTED}.get(
            answer, SubexpressionAnswer.UNKNOWN
        )
