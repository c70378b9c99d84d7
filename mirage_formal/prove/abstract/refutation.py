"""Pruning under axioms that normal forms do not decide: added ones that are no law, and ones that are switched off.

A model in numbers is asked first, then z3, with the axioms in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.logic.added_axioms import AxiomChoice, axioms_in_force
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.axioms import OPAQUE_FUNCTIONS, Axiom, atoms_of
from mirage_formal.logic.session import AxiomSession, SubexpressionAnswer
from mirage_formal.logic.terms import Expr, Unary, postorder
from mirage_formal.logic.valuations import ValuationRefuter
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.prove.abstract.pruning_audit import QUESTION_RESOURCES

#: Questions to z3 in one unit of work, each of which takes about 8 ms; what comes later is kept unless a model refutes.
MOST_QUESTIONS: Final = 200


class PruningRefuter:
    """Decision procedure about what normal forms leave open.

    Sound: a tensor is pruned only if the normal forms refute it under axioms that include those in force, or a model
    of the axioms in force or z3 does. Unknown is kept.

    Args:
        choice: The axioms in force.
        program: The program whose outputs are the targets.

    Attributes:
        unfit: Whether an added axiom that matters to the program is no law, so that the normal forms may refute what
            the axioms entail.
        exact: Whether the normal forms decide all by themselves.
    """

    def __init__(self, choice: AxiomChoice, program: KernelGraph) -> None:
        self._choice = choice
        self.unfit = bool(laws_of(choice).unfit) and bool(_relevant(choice, program))
        self.exact = not self.unfit and not choice.without
        self._models = None if self.exact else ValuationRefuter(choice)
        self._session: AxiomSession | None = None
        self._asked = 0
        self._refuted: dict[tuple[Expr, Expr], bool] = {}

    def keeps(self, kept: bool, claim: Callable[[], tuple[Expr, tuple[Expr, ...]]]) -> bool:
        """Return whether a tensor is kept.

        Args:
            kept: What the normal forms say.
            claim: Returns the tensor's expression, and those of the program's outputs.
        """
        if not (self._choice.without if kept else self.unfit):
            return kept
        expression, targets = claim()
        return not all(self.refutes(expression, target) for target in targets)

    def refutes(self, expression: Expr, target: Expr) -> bool:
        """Return whether a model or z3 shows that an expression is no part of the target."""
        key = (expression, target)
        if key not in self._refuted:
            modelled = self._models is not None and self._models.refutes(expression, target)
            self._refuted[key] = modelled or self._ask(expression, target)
        return self._refuted[key]

    def _ask(self, expression: Expr, target: Expr) -> bool:
        self._asked += 1
        if self._asked > MOST_QUESTIONS:
            return False
        if self._session is None:
            self._session = AxiomSession(axioms_in_force(self._choice))
        answer = self._session.ask_bounded(expression, target, QUESTION_RESOURCES)
        return answer is SubexpressionAnswer.REFUTED


def _relevant(choice: AxiomChoice, program: KernelGraph) -> tuple[str, ...]:
    """Return the names of the added axioms that are no laws and that may be used in a chain up to an output.

    Sound: a step keeps a function that its axiom has on no side, or on the side that it leads to, if that side also has
    all variables. What contains a function that every step keeps is part only of what contains it too. So an axiom
    that leads to such a function proves nothing about outputs without it.
    """
    axioms = [axioms_in_force(choice).axioms[one.name] for one in choice.added]
    functions = frozenset(OPAQUE_FUNCTIONS)
    lost = frozenset().union(*map(_lost_functions, axioms))
    used = {e.function for e in postorder(expressions(program).outputs) if isinstance(e, Unary)}
    leads = {axiom.name: atoms_of(axiom.conclusion.right) & functions for axiom in axioms}
    return tuple(name for name in laws_of(choice).unfit if not leads[name] - lost - used)


def _lost_functions(axiom: Axiom) -> frozenset[str]:
    """Return the functions that a step by an axiom may lose; an equation is a step in both directions."""
    functions, variables = frozenset(OPAQUE_FUNCTIONS), dict(axiom.variables).keys()
    left, right = atoms_of(axiom.conclusion.left), atoms_of(axiom.conclusion.right)
    lost = left ^ right if axiom.conclusion.relation == "=" else left - right
    return functions if axiom.premises or lost & variables else lost & functions


__all__ = ["PruningRefuter"]
