"""Consistency of added axioms: is there still a tensor that is no part of another one?

Every set of axioms has the model in which everything is a part of everything, so this is what consistency means here. A
model in numbers proves it. Where there is none, z3 and cvc5 are asked whether the axioms refute it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Final

from mirage_formal.logic.added_axioms import AxiomChoice, axioms_in_force, commands_of
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.axioms import RELATION, Axiom
from mirage_formal.logic.script import Script
from mirage_formal.logic.session import Satisfiability, discharge
from mirage_formal.logic.sexpr import SExpr
from mirage_formal.logic.valuations import valuations_of
from mirage_formal.support.errors import FormatError

#: Beginning of the line about added axioms.
AXIOMS_ADDED: Final = "axioms added"
#: Limit of each solver; a contradiction is found within a tenth of it.
CONSISTENCY_MS: Final = 2_000
#: Two tensors, of which the first is claimed to be no part of the second.
_TENSORS: Final = ("some-part", "some-whole")


@lru_cache(maxsize=8)
def check_consistency(choice: AxiomChoice) -> str:
    """Refuse added axioms that the solvers refute from the others.

    Returns:
        A remark where neither a model nor a solver decides; empty where the axioms are consistent.

    Raises:
        FormatError: They are inconsistent; names the first axiom that is so with those before it.
    """
    if not choice.added or valuations_of(choice):
        return ""
    if not _is_refuted(choice):
        return "neither z3 nor cvc5 finds a contradiction in the axioms, and no model proves that there is none"
    numbers = range(1, len(choice.added))
    few = next((n for n in numbers if _is_refuted(replace(choice, added=choice.added[:n]))), len(choice.added))
    last = choice.added[few - 1]
    raise FormatError(
        f"axiom {last.name}: expected an axiom that is consistent with the others, got one that they refute: with it "
        "every tensor is a part of every other one",
        where=last.where,
        hint="leave it out, or what it contradicts; --no-prune searches without pruning",
    )


def describe_choice(choice: AxiomChoice) -> list[str]:
    """Describe a choice of axioms as lines of text for a report.

    The lines name the added axioms, a remark on their consistency if it is open, and the axioms switched off. Each
    added axiom is either a rewrite law of the normal forms, or decided by models and z3.

    Raises:
        FormatError: The added axioms are inconsistent.
    """
    unfit = laws_of(choice).unfit
    said = [
        f"{one.name} ({one.where}), {'decided by models and z3' if one.name in unfit else 'a law of the normal forms'}"
        for one in choice.added
    ]
    remark = check_consistency(choice)
    return [
        *([f"{AXIOMS_ADDED}: {'; '.join(said)}"] if said else []),
        *([f"consistency of the axioms: {remark}"] if remark else []),
        *([f"axioms switched off: {', '.join(choice.without)}; candidates may be lost"] if choice.without else []),
    ]


def _is_refuted(choice: AxiomChoice) -> bool:
    """Return whether z3 or cvc5 proves that the axioms make everything a part of everything."""
    axioms = axioms_in_force(choice)
    script = Script(
        [
            ("set-logic", "UFNIA"),
            *commands_of(axioms),
            *(("declare-const", name, "Expr") for name in _TENSORS),
            *(("assert", one) for added in choice.added for one in _instances(axioms.axioms[added.name])),
            ("assert", ("not", (RELATION, *_TENSORS))),
            ("check-sat",),
        ]
    )
    return any(one.answer is Satisfiability.UNSAT for one in discharge(script, CONSISTENCY_MS))


def _instances(axiom: Axiom) -> Iterator[SExpr]:
    """Yield the instances of an axiom for the two tensors: solvers instantiate quantifiers only where terms match."""
    names = [name for name, _ in axiom.variables]
    for values in product(*(_TENSORS if sort == "Expr" else ("2",) for _, sort in axiom.variables)):
        yield _substituted(axiom.body, dict(zip(names, values, strict=True)))


def _substituted(e: SExpr, values: dict[str, str]) -> SExpr:
    return values.get(e, e) if isinstance(e, str) else tuple(_substituted(part, values) for part in e)


__all__ = ["AXIOMS_ADDED", "check_consistency", "describe_choice"]
