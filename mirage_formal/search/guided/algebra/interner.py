"""Tables of interned atoms, monomials and polynomials, the building blocks of the normal forms in normal_forms.py.

Every value is a number in a table, so equality of values is equality of numbers. Numbers are valid only within one
``Interner``. Atoms, monomials and polynomials are numbered separately, each with a type of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NewType

from mirage_formal.search.guided.algebra.part_masks import NO_PARTS, PartMask, axes_in, full_mask
from mirage_formal.search.guided.algebra.part_numbering import Axis

#: Number of an interned atom.
AtomId = NewType("AtomId", int)
#: Number of an interned monomial.
MonomialId = NewType("MonomialId", int)
#: Number of an interned polynomial: the normal form of a tensor's element.
Form = NewType("Form", int)

#: ("input", name, axes), ("const", value), ("rms" or "layer_norm", form, parts, eps), or (function, form).
Atom = tuple[object, ...]
Atoms = tuple[AtomId, ...]
Denominators = tuple[Form, ...]
#: (bound parts, atoms in ascending order, denominators in ascending order).
Monomial = tuple[PartMask, Atoms, Denominators]
#: (monomial, multiplicity) pairs in ascending order.
Polynomial = tuple[tuple[MonomialId, int], ...]

#: The empty sum.
_EMPTY: Final = Form(0)


class Interner:
    """Tables of atoms, monomials and polynomials, with the parts that each depends on.

    Args:
        width: Number of base axes.

    Attributes:
        width: Number of base axes, at least 1.
        atoms: The atoms, by ``AtomId``.
        atom_free: The parts that an atom depends on, by ``AtomId``.
        monomials: The monomials, by ``MonomialId``.
        monomial_free: The parts that a monomial depends on and does not bind, by ``MonomialId``.
        wholly_bound: The axes all of whose parts a monomial binds, by ``MonomialId``.
        polynomials: The polynomials, by ``Form``.
        free: The parts that some term of a polynomial depends on and does not bind, by ``Form``.
    """

    def __init__(self, width: int) -> None:
        self.width = max(1, width)
        self._atom_ids: dict[Atom, AtomId] = {}
        self.atoms: list[Atom] = []
        self.atom_free: list[PartMask] = []
        self._monomial_ids: dict[Monomial, MonomialId] = {}
        self.monomials: list[Monomial] = []
        self.monomial_free: list[PartMask] = []
        self.wholly_bound: list[tuple[Axis, ...]] = []
        self._polynomial_ids: dict[Polynomial, Form] = {(): _EMPTY}
        self.polynomials: list[Polynomial] = [()]
        self.free: list[PartMask] = [NO_PARTS]

    def atom(self, atom: Atom, free: PartMask) -> AtomId:
        """Return the number of an atom.

        Args:
            atom: The atom.
            free: The parts that it depends on.
        """
        number = self._atom_ids.get(atom)
        if number is None:
            number = self._atom_ids[atom] = AtomId(len(self.atoms))
            self.atoms.append(atom)
            self.atom_free.append(free)
        return number

    def factors_free(self, atoms: Iterable[AtomId], denominators: Iterable[Form]) -> PartMask:
        """Return the parts that some of these factors depend on.

        Args:
            atoms: Numbers of atoms.
            denominators: Forms of the denominators.
        """
        free = 0
        for atom in atoms:
            free |= self.atom_free[atom]
        for denominator in denominators:
            free |= self.free[denominator]
        return PartMask(free)

    def monomial(self, bound: PartMask, atoms: Atoms, denominators: Denominators) -> MonomialId:
        """Return the number of a monomial whose bound indices have the canonical names of ``BinderAlgebra.named``.

        Args:
            bound: The parts that it is summed over.
            atoms: Numbers of its atoms, ascending.
            denominators: Forms of its denominators, ascending.
        """
        key = (bound, atoms, denominators)
        number = self._monomial_ids.get(key)
        if number is None:
            number = self._monomial_ids[key] = MonomialId(len(self.monomials))
            self.monomials.append(key)
            self.monomial_free.append(PartMask(self.factors_free(atoms, denominators) & ~bound))
            self.wholly_bound.append(tuple(axis for axis in axes_in(bound) if not full_mask(axis) & ~bound))
        return number

    def polynomial(self, terms: dict[MonomialId, int]) -> Form:
        """Return the normal form that is a sum of monomials.

        Args:
            terms: The multiplicity of each monomial, positive.
        """
        key = tuple(sorted(terms.items()))
        number = self._polynomial_ids.get(key)
        if number is None:
            number = self._polynomial_ids[key] = Form(len(self.polynomials))
            self.polynomials.append(key)
            free = 0
            for monomial, _ in key:
                free |= self.monomial_free[monomial]
            self.free.append(PartMask(free))
        return number

    def single(self, atom: AtomId) -> Form:
        """Return the polynomial that is one atom."""
        return self.polynomial({self.monomial(NO_PARTS, (atom,), ()): 1})


def input_axes(atom: Atom) -> tuple[Axis, ...]:
    """Return the axes of an input atom."""
    axes = atom[2]
    assert isinstance(axes, tuple)
    return axes


def atom_argument(atom: Atom) -> Form:
    """Return the argument of a function or norm atom."""
    inner = atom[1]
    assert isinstance(inner, int)
    return Form(inner)


def norm_parts(atom: Atom) -> PartMask:
    """Return the parts that a norm atom is taken over."""
    parts = atom[2]
    assert isinstance(parts, int)
    return PartMask(parts)
