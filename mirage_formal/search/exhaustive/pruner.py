"""Pruning of the enumeration by a tensor's abstract expression."""

from __future__ import annotations

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import output_types
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.session import SubexpressionAnswer
from mirage_formal.prove.abstract.abstract_domain import Abstract, AbstractDomain, Expr, expressions
from mirage_formal.prove.abstract.normal_form import NormalForms
from mirage_formal.prove.abstract.pruning_audit import PruningDecision
from mirage_formal.prove.abstract.refutation import PruningRefuter
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle, Oracle, Z3Oracle
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions
from mirage_formal.semantics.value_domain import Domain


class Pruner:
    """Pruning test: decides which tensors may be part of a candidate, and which may be outputs of the program.

    Attributes:
        domain: The domain of abstract expressions.
        inputs: The expression of each input of the program.
        outputs: The type of each output of the program.
    """

    def __init__(self, program: KernelGraph, options: SearchOptions) -> None:
        found = expressions(program)
        self.domain: Domain[Abstract] = AbstractDomain()
        self.inputs = found.tensors[: len(program.inputs)]
        self.outputs = tuple(output_types(program))
        self._targets = found.outputs
        self._prune = options.prune
        self._sample = options.sample
        self._exact = NormalFormOracle(found.outputs, choice=options.choice)
        self._oracle: Oracle = self._exact
        if options.oracle == "z3":
            self._oracle = Z3Oracle(found.outputs, options.oracle_ms, options.choice)
        self._forms = NormalForms(laws_of(options.choice))
        self._refuter = PruningRefuter(options.choice, program)

    def keeps(self, expr: Expr) -> bool:
        """Return whether a tensor with this expression may be part of a candidate.

        Sound: false only when the oracle, and where it does not decide the axioms in force ``PruningRefuter``, refutes
        it; unknown is kept.
        """
        if not self._prune:
            return True
        kept = self._oracle.contains(expr) is not SubexpressionAnswer.REFUTED
        if self._oracle is self._exact:
            kept = self._refuter.keeps(kept, lambda: (expr, self._targets))
        if self._sample is not None and len(self._targets) == 1:
            self._sample.offer(kept, lambda: PruningDecision(kept, expr, self._targets[0], indexed=False))
        return kept

    def form(self, expr: Expr) -> int | None:
        """Return the number of the expression's normal form; None unless the judge decides by normal forms alone."""
        decides = self._prune and self._oracle is self._exact and self._refuter.exact
        return self._exact.form(expr) if decides else None

    def reaches(self, output: int, expr: Expr) -> bool:
        """Return whether this expression may be that of an output of the program.

        Sound: false only when the normal forms differ, or, where an added axiom is no law of them, when a model or z3
        tells the two apart. True accepts nothing: the expression forgets indices, so a candidate must still be
        verified.
        """
        if not self._prune:
            return True
        if self._refuter.unfit:
            target = self._targets[output]
            return not (self._refuter.refutes(expr, target) or self._refuter.refutes(target, expr))
        match self._exact.contains(expr):
            case SubexpressionAnswer.REFUTED:
                return False
            case SubexpressionAnswer.UNKNOWN:
                return True
            case SubexpressionAnswer.PROVED:
                return self._forms.of(expr) == self._forms.of(self._targets[output])

    def queries(self) -> tuple[Expr, ...]:
        """Return the distinct expressions that the oracle was asked about, in the order asked."""
        return self._oracle.asked()

    def classes(self) -> frozenset[bytes]:
        """Return keys of the normal forms of the queries that are known to be part of an output's expression."""
        return frozenset(key for e in self.queries() if (key := self._exact.key(e)) is not None)

    def report(self, tally: SearchCounters) -> None:
        """Add the oracle's counts to a tally."""
        tally.add("oracle_calls", self._oracle.calls)
        tally.add("oracle_unknown", self._oracle.unknown)
        tally.add("cache_hits", self._oracle.cache_hits)
