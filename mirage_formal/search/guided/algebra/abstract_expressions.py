"""Abstract expressions of normal forms, so that z3 can be asked about a decision of the guided search.

The algebra names indices, and abstract expressions forget them (Wu et al., OSDI 2025, section 4.3). Here the names of
an input's axes are a part of its variable, and each part of an axis has a prime as its extent. So two terms are equal
only if they agree on which indices they read and sum over, whatever extents the kernel will have.

To the algebra a norm is an opaque function of its operand (programs with their norms written out are a unit of their
own), and so are a shift and a selection. A function without laws among the axioms is written as one with laws: f(x) is
sqrt(x + "f"), with a variable that has the name of f.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from math import isqrt
from typing import Final

from mirage_formal.logic.terms import Expr, add, const, div, mul, sum_, unary, var
from mirage_formal.search.guided.algebra.interner import AtomId, Form, MonomialId, atom_argument, input_axes
from mirage_formal.search.guided.algebra.normal_forms import Forms
from mirage_formal.search.guided.algebra.part_masks import Frame, PartMask, axes_in, full_mask
from mirage_formal.search.guided.algebra.part_numbering import SLOTS

#: Extents of parts, in the order in which terms name them: more than a kernel's axes have.
_PRIMES: Final = tuple(n for n in range(2, 1250) if all(n % d for d in range(2, isqrt(n) + 1)))


class FormExpressions:
    """Abstract expressions of the forms of one algebra in one frame.

    Args:
        algebra: The algebra that the forms are numbers of.
        frame: For each axis its parts where the form is used; they make up the whole axis.
        functions: Names of the functions of one argument that the axioms speak of.
    """

    def __init__(self, algebra: Forms, frame: Frame, functions: frozenset[str]) -> None:
        self._algebra = algebra
        self._frame = frame
        self._functions = functions
        self._extents: dict[int, int] = {}
        self._found: dict[Form, Expr] = {}

    def expression(self, form: Form) -> Expr:
        """Return the abstract expression of a form."""
        if form not in self._found:
            terms = [self._monomial(number, count) for number, count in self._algebra.polynomials[form]]
            self._found[form] = reduce(add, terms) if terms else const(0)
        return self._found[form]

    def _monomial(self, number: MonomialId, count: int) -> Expr:
        bound, atoms, denominators = self._algebra.monomials[number]
        factors = [self._atom(atom) for atom in atoms] or [const(1)]
        body = reduce(div, (self.expression(form) for form in denominators), reduce(mul, factors))
        term = sum_(self._extent(bound), body)
        return reduce(add, [term] * count)

    def _atom(self, number: AtomId) -> Expr:
        match atom := self._algebra.atoms[number]:
            case ("input", str(name), _):
                return var(f"{name}[{','.join(str(int(axis)) for axis in input_axes(atom))}]")
            case ("const", Fraction() as value):
                return const(value)
            case (str(name), int(), *settings):
                argument = self.expression(atom_argument(atom))
                if name in self._functions and not settings:
                    return unary(name, argument)
                return unary("sqrt", add(argument, var(f"{name} {settings}")))
            case _:
                raise AssertionError(atom)

    def _extent(self, parts: PartMask) -> int:
        """Return the extent of a sum over parts: the product of the primes of the parts, a whole axis by its frame."""
        found = 1
        for axis in axes_in(parts):
            base = axis % self._algebra.width
            mine = parts & full_mask(axis)
            names = self._frame[base] if mine == full_mask(axis) else mine >> SLOTS * (axis - base)
            while names:
                low = names & -names
                names ^= low
                found *= self._extents.setdefault(low, _PRIMES[len(self._extents)])
        return found


__all__ = ["FormExpressions"]
