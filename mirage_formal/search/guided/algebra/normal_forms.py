"""Interned normal forms of tensor elements over named index parts.

A polynomial is a multiset of monomials; a monomial is (mask of bound parts, atoms, denominators): the sum over the
bound parts of the product of the atoms divided by the denominators. An atom is an input element at given indices, a
rational constant, an opaque function of a polynomial or a norm factor. All of them are interned, so equality is
identity of integers.

Laws used: ring laws without cancellation, division as multiplication by a formal inverse, linearity of sums, products
of sums, renaming of bound indices. No law cancels, so two elements with one normal form are equal for every extent.

The normal forms of abstract expressions (prove/abstract/normal_form.py) are polynomials of monomials as well, but
they differ. A monomial there has the product of all summed extents, here the set of bound parts. It has one
multiplied-out denominator there, a multiset of denominators here. Without index names nothing there can be captured,
so products always exist; here they rename or refuse. Two tensors with one form may differ there, but not here. So the
two share no table; the full comparison stands there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from mirage_formal.logic.axiom_laws import NO_LAWS, Laws
from mirage_formal.search.guided.algebra.bound_indices import BinderAlgebra
from mirage_formal.search.guided.algebra.interner import (
    AtomId,
    Atoms,
    Denominators,
    Form,
    Monomial,
    MonomialId,
    Polynomial,
    atom_argument,
)
from mirage_formal.search.guided.algebra.part_masks import (
    NO_PARTS,
    Frame,
    PartMask,
    bind_complete_axes,
    multiset_difference,
)
from mirage_formal.search.guided.algebra.part_numbering import Axis

#: Name prefix of opaque functions whose result is a boolean mask.
MASKS: Final = "mask "


class Forms(BinderAlgebra):
    """Interner of atoms, monomials and polynomials; results are polynomial numbers, None where an operation has none.

    Sound: equal numbers mean equal tensors for every choice of extents, because only laws valid for all real values
    (denominators nonzero) build them, sums are refused over parts that the term does not depend on, and a factor's
    wholly bound indices are renamed before they could capture another's; partly bound ones refuse instead. An added
    law may be false: then equal numbers mean nothing, and the proof of a candidate fails.

    Args:
        width: Number of base axes.
        laws: Laws of functions that a user has added.
    """

    def __init__(self, width: int, laws: Laws = NO_LAWS) -> None:
        super().__init__(width)
        self._laws = laws
        self._mul: dict[tuple[Form, Form], Form | None] = {}
        self._add: dict[tuple[Form, Form], Form] = {}
        self._sum: dict[tuple[PartMask, Form, Frame, tuple[PartMask, ...]], Form | None] = {}
        self._div: dict[tuple[Form, Form], Form | None] = {}
        self._masks: set[str] = set()
        self._is_mask: dict[Form, bool] = {}

    @property
    def lawless(self) -> bool:
        """Return whether no law of functions is in force."""
        return self._laws is NO_LAWS

    def variable(self, name: str, axes: tuple[Axis, ...], *, mask: bool = False) -> Form:
        """Return the form of an input's element.

        Args:
            name: Name of the input.
            axes: The index of each of its axes, in order.
            mask: Whether its elements are booleans.
        """
        if mask:
            self._masks.add(name)
        return self.single(self.input_atom(name, axes))

    def is_mask(self, a: Form) -> bool:
        """Return whether a form is that of a mask of booleans: a product of inputs and functions that are masks.

        Args:
            a: The form.
        """
        found = self._is_mask.get(a)
        if found is None:
            found = self._is_mask[a] = self._mask_new(a)
        return found

    def _mask_new(self, a: Form) -> bool:
        if len(self.polynomials[a]) != 1:
            return False
        ((monomial, count),) = self.polynomials[a]
        bound, atoms, denominators = self.monomials[monomial]
        plain = count == 1 and atoms and not bound and not denominators
        return bool(plain) and all(self._mask_atom(atom) for atom in atoms)

    def _mask_atom(self, number: AtomId) -> bool:
        name, *rest = self.atoms[number]
        return rest[0] in self._masks if name == "input" else str(name).startswith(MASKS)

    def constant(self, value: Fraction) -> Form:
        """Return the form of a rational constant. It is an atom: constants are never folded."""
        return self.single(self.atom(("const", value), NO_PARTS))

    def apply(self, name: str, argument: Form) -> Form:
        """Return the form of an opaque elementwise function.

        Args:
            name: Name of the function.
            argument: Form of its argument.
        """
        return self._laws.call(self, name, argument)

    def atom_of(self, function: str, argument: Form) -> Form:
        """Return the form of a function's value to which no law is applied."""
        return self.single(self.atom((function, argument), self.free[argument]))

    def call_of(self, form: Form) -> tuple[str, Form] | None:
        """Return function and argument of a form that is nothing but a function's value; None for another form."""
        if len(self.polynomials[form]) != 1:
            return None
        ((monomial, count),) = self.polynomials[form]
        bound, atoms, denominators = self.monomials[monomial]
        if bound or denominators or count != 1 or len(atoms) != 1:
            return None
        return self.call_at(atoms[0])

    def call_at(self, number: AtomId) -> tuple[str, Form] | None:
        """Return function and argument of an atom; None for inputs, constants and norms."""
        atom = self.atoms[number]
        return (str(atom[0]), atom_argument(atom)) if len(atom) == 2 and atom[0] != "const" else None

    def summands(self, form: Form) -> list[Form]:
        """Return the monomials of a form, each as often as it occurs."""
        return [self.polynomial({m: 1}) for m, count in self.polynomials[form] for _ in range(count)]

    def apply_several(self, name: str, arguments: Sequence[Form], *, commutative: bool = False) -> Form:
        """Return the form of an opaque elementwise function of several arguments.

        It is encoded as an opaque function of one argument, the sum of an opaque function of each argument. The names
        of these functions distinguish the arguments, unless the function is commutative.

        Args:
            name: Name of the function.
            arguments: Forms of its arguments.
            commutative: Whether they may be exchanged.
        """
        total = self.polynomial({})
        for place, argument in enumerate(arguments):
            total = self.add(total, self.argument_at(0 if commutative else place, argument))
        return self.apply(name, total)

    def argument_at(self, place: int, argument: Form) -> Form:
        """Return the form that stands for one of several arguments inside the form of an opaque function of them."""
        return self.apply(f"operand {place}", argument)

    def root_mean_square(self, parts: PartMask, argument: Form, eps: Fraction | None, frame: Frame) -> Form | None:
        """Return the opaque form of sqrt(mean over ``parts`` of argument^2 (+ eps)).

        Args:
            parts: The parts that the mean is taken over.
            argument: Form of the normed tensor's element.
            eps: The summand of the mean, or None.
            frame: For each axis the mask of its parts; a mean over them all binds the axis wholly.

        Returns:
            The form; None if the argument does not depend on all the parts, or there are none.
        """
        if parts & ~self.free[argument] or not parts:
            return None
        return self.single(self.norm_atom(argument, bind_complete_axes(parts, frame), eps))

    def layer_norm(self, parts: PartMask, argument: Form, eps: Fraction | None, frame: Frame) -> Form | None:
        """Return the opaque form of a layer norm over ``parts``; the result still depends on them.

        Args:
            parts: The parts that are normed over.
            argument: Form of the normed tensor's element.
            eps: The summand of the variance, or None.
            frame: For each axis the mask of its parts; a norm over them all is one over the axis.

        Returns:
            The form; None if the argument does not depend on all the parts, or there are none.
        """
        if parts & ~self.free[argument] or not parts:
            return None
        return self.single(
            self.atom(("layer_norm", argument, bind_complete_axes(parts, frame), eps), self.free[argument])
        )

    def add(self, a: Form, b: Form) -> Form:
        """Return the form of a sum.

        Args:
            a: Form of one operand.
            b: Form of the other.
        """
        if a > b:
            a, b = b, a
        found = self._add.get((a, b))
        if found is None:
            terms = dict(self.polynomials[a])
            for monomial, count in self.polynomials[b]:
                terms[monomial] = terms.get(monomial, 0) + count
            found = self._add[a, b] = self.polynomial(terms)
        return found

    def mul(self, a: Form, b: Form) -> Form | None:
        """Return the form of a product, expanded.

        Args:
            a: Form of one operand.
            b: Form of the other.

        Returns:
            The form; None where a partly bound index of one occurs in the other.
        """
        if a > b:
            a, b = b, a
        key = (a, b)
        if key not in self._mul:
            self._mul[key] = self._mul_new(a, b)
        return self._mul[key]

    def _mul_new(self, a: Form, b: Form) -> Form | None:
        terms: dict[MonomialId, int] = {}
        for m, c in self.polynomials[a]:
            for n, d in self.polynomials[b]:
                key = self._times(m, n)
                if key is None:
                    return None
                terms[key] = terms.get(key, 0) + c * d
        return self.polynomial(terms)

    def _times(self, a: MonomialId, b: MonomialId) -> MonomialId | None:
        bound_a, atoms_a, denominators_a = self.monomials[a]
        bound_b, atoms_b, denominators_b = self.monomials[b]
        free_a, free_b = self.monomial_free[a], self.monomial_free[b]
        if bound_b & (bound_a | free_a):
            bound_b, atoms_b, denominators_b = self.apart(b, PartMask(bound_a | free_a | free_b))
        if bound_a & (bound_b | free_b):
            bound_a, atoms_a, denominators_a = self.apart(a, PartMask(bound_b | free_a | free_b))
        if bound_a & (bound_b | free_b) or bound_b & free_a:
            return None
        return self.named(PartMask(bound_a | bound_b), atoms_a + atoms_b, denominators_a + denominators_b)

    def sum(self, parts: PartMask, a: Form, frame: Frame, one_of: tuple[PartMask, ...] = ()) -> Form | None:
        """Return the form of a sum over ``parts``, and over one of the parts of a loop over several axes.

        Args:
            parts: The parts that every term is summed over.
            a: Form of the element.
            frame: For each axis the mask of its parts; a sum over them all binds the axis wholly.
            one_of: Masks; each term must depend on exactly one of them, over which it is summed as well.

        Returns:
            The form; None where a term does not depend on all of them (the sum would scale it).
        """
        if not parts and not one_of:
            return a
        key = (parts, a, frame, one_of)
        if key not in self._sum:
            self._sum[key] = self._sum_new(parts, a, frame, one_of)
        return self._sum[key]

    def _sum_new(self, parts: PartMask, a: Form, frame: Frame, one_of: tuple[PartMask, ...]) -> Form | None:
        terms: dict[MonomialId, int] = {}
        for monomial, count in self.polynomials[a]:
            free = self.monomial_free[monomial]
            over: int = parts
            if one_of:
                chosen = [part for part in one_of if part & free]
                if len(chosen) != 1:
                    return None
                over |= chosen[0]
            if over & ~free:
                return None
            bound, atoms, denominators = self.monomials[monomial]
            number = self.named(bind_complete_axes(PartMask(bound | over), frame), atoms, denominators)
            terms[number] = terms.get(number, 0) + count
        return self.polynomial(terms)

    def div(self, a: Form, b: Form) -> Form | None:
        """Return the form of a quotient.

        Args:
            a: Form of the dividend.
            b: Form of the divisor.

        Returns:
            The form; None where a partly bound index of a term is free in the divisor (the quotient would capture it).
        """
        key = (a, b)
        if key not in self._div:
            self._div[key] = self._div_new(a, b)
        return self._div[key]

    def _div_new(self, a: Form, b: Form) -> Form | None:
        factors = self.factors(b)
        free = self.free[b]
        terms: dict[MonomialId, int] = {}
        for monomial, count in self.polynomials[a]:
            bound, atoms, denominators = self.monomials[monomial]
            if bound & free:
                bound, atoms, denominators = self.apart(monomial, PartMask(free | self.monomial_free[monomial]))
                if bound & free:
                    return None
            number = self.named(bound, atoms, denominators + factors)
            terms[number] = terms.get(number, 0) + count
        return self.polynomial(terms)

    def factors(self, b: Form) -> Denominators:
        """Factor a divisor, as 1 / (x * y) is 1 / x / y: into the factors that its terms share, and the rest.

        A single term is decomposed into factors that share no bound index; a denominator d in it is the factor 1 / d.

        Args:
            b: Form of the divisor.

        Returns:
            The forms whose product it is; itself alone where it has no such factors.
        """
        terms = self.polynomials[b]
        if len(terms) == 1:
            (monomial, count) = terms[0]
            bound, atoms, denominators = self.monomials[monomial]
            if count != 1:
                return (b,)
            return tuple(
                self.polynomial({self.named(*group): 1}) for group in self._components(bound, atoms, denominators)
            )
        shared_atoms, shared_denominators = self._shared(terms)
        if not shared_atoms and not shared_denominators:
            return (b,)
        rest: dict[MonomialId, int] = {}
        for monomial, count in terms:
            bound, atoms, denominators = self.monomials[monomial]
            left = multiset_difference(atoms, shared_atoms), multiset_difference(denominators, shared_denominators)
            assert left[0] is not None and left[1] is not None
            rest[self.named(bound, left[0], left[1])] = count
        factors: list[Monomial] = [(NO_PARTS, (atom,), ()) for atom in shared_atoms]
        factors += [(NO_PARTS, (), (d,)) for d in shared_denominators]
        return (self.polynomial(rest), *(self.polynomial({self.monomial(*f): 1}) for f in factors))

    def _components(self, bound: PartMask, atoms: Atoms, denominators: Denominators) -> list[Monomial]:
        """Return the factors of a monomial that share no bound index."""
        items: list[Monomial] = [(PartMask(self.atom_free[a] & bound), (a,), ()) for a in atoms]
        items += [(PartMask(self.free[d] & bound), (), (d,)) for d in denominators]
        groups: list[Monomial] = []
        for parts, some_atoms, some_denominators in items:
            rest = []
            for group in groups:
                if group[0] & parts:
                    parts = PartMask(parts | group[0])
                    some_atoms, some_denominators = some_atoms + group[1], some_denominators + group[2]
                else:
                    rest.append(group)
            groups = [*rest, (parts, some_atoms, some_denominators)]
        return groups

    def _shared(self, terms: Polynomial) -> tuple[Atoms, Denominators]:
        """Return the atoms and denominators that divide every term and depend on no index that a term binds."""
        common: tuple[Counter[AtomId], Counter[Form]] | None = None
        for monomial, _ in terms:
            bound, atoms, denominators = self.monomials[monomial]
            mine = (
                Counter(a for a in atoms if not self.atom_free[a] & bound),
                Counter(d for d in denominators if not self.free[d] & bound),
            )
            common = mine if common is None else (common[0] & mine[0], common[1] & mine[1])
        assert common is not None
        return tuple(sorted(common[0].elements())), tuple(sorted(common[1].elements()))
