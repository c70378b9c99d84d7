"""Interned normal forms of tensor elements over named index parts.

A polynomial is a multiset of monomials; a monomial is (mask of bound parts, atoms, denominators): the sum over the
bound parts of the product of the atoms divided by the denominators. An atom is an input element at given indices, a
rational constant, an opaque function of a polynomial or a norm factor. Everything is interned, so equality is identity
of integers.

Indices are axes in the sense of parts.py. Axis ``copy * width + base`` is copy number ``copy`` of base axis ``base``;
copies of one base axis have one extent, so a bound index may be renamed from one to another. A sum over all parts of an
index binds the index wholly: all slots of its mask are set, however it was split, and it takes the first copies that
are not free in the monomial, in the order that makes the monomial least. So forms that differ only in the names of
bound indices are one form, and the form of the program's output does not depend on how a kernel splits its axes.

Laws used: ring laws without cancellation, division as multiplication by a formal inverse, linearity of sums, products
of sums, renaming of bound indices. No law cancels, so two elements with one normal form are equal for every extent.

The normal forms of abstract expressions (claims/abstract/normal_form.py) are polynomials of monomials as well, but not
these: a monomial there has the product of all summed extents where one here has the set of bound parts, and one
denominator, multiplied out, where one here has a multiset of them. Without index names nothing there can be captured,
so products always exist; here they rename or refuse. There two tensors with one form may differ, here they may not.
So the two share no table; the full comparison stands there.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations, product

from mirage_formal.search.guided.algebra.interner import (
    AtomId,
    Atoms,
    Denominators,
    Form,
    Interner,
    Monomial,
    MonomialId,
    Polynomial,
    input_axes,
    norm_parts,
    operand,
)
from mirage_formal.search.guided.algebra.masks import (
    NO_PARTS,
    Frame,
    PartMask,
    Substitution,
    axes_in,
    complete,
    full_mask,
    move,
    without,
)
from mirage_formal.search.guided.algebra.parts import Axis


class Forms(Interner):
    """Interner of atoms, monomials and polynomials; results are polynomial numbers, None where an operation has none.

    Sound: equal numbers mean equal tensors for every choice of extents, because only laws valid for all real values
    (denominators nonzero) build them, sums are refused over parts that the term does not depend on, and a factor's
    wholly bound indices are renamed before they could capture another's; partly bound ones refuse instead.

    Args:
        width: Number of base axes.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._mul: dict[tuple[Form, Form], Form | None] = {}
        self._add: dict[tuple[Form, Form], Form] = {}
        self._sum: dict[tuple[PartMask, Form, Frame, tuple[PartMask, ...]], Form | None] = {}
        self._div: dict[tuple[Form, Form], Form | None] = {}
        self._substituted: dict[tuple[Form, Substitution], Form] = {}

    # --- names of bound indices --------------------------------------------------------------------------------

    def _fresh(self, base: Axis, taken: PartMask, count: int = 1) -> list[Axis]:
        """The first copies of a base axis that have no part in ``taken``."""
        out: list[Axis] = []
        axis = base
        while len(out) < count:
            if not full_mask(axis) & taken:
                out.append(axis)
            axis = Axis(axis + self.width)
        return out

    def named(self, bound: PartMask, atoms: Atoms, denominators: Denominators) -> MonomialId:
        """The monomial with its wholly bound indices named canonically.

        Sound: renaming a bound index to a name that is not free in the term changes no value.
        """
        if not bound:
            return self.monomial(NO_PARTS, tuple(sorted(atoms)), tuple(sorted(denominators)))
        groups: dict[Axis, list[Axis]] = {}
        rest: int = bound
        for axis in axes_in(bound):
            if not full_mask(axis) & ~bound:
                groups.setdefault(Axis(axis % self.width), []).append(axis)
                rest &= ~full_mask(axis)
        taken = PartMask((self.factors_free(atoms, denominators) & ~bound) | rest)
        names = {base: self._fresh(base, taken, len(axes)) for base, axes in groups.items()}
        if all(len(axes) == 1 and axes == names[base] for base, axes in groups.items()):
            return self.monomial(bound, tuple(sorted(atoms)), tuple(sorted(denominators)))
        mask = rest
        for found in names.values():
            for axis in found:
                mask |= full_mask(axis)
        best: tuple[Atoms, Denominators] | None = None
        for orders in product(*(permutations(names[base]) for base in groups)):
            named = zip(groups.values(), orders, strict=True)
            pairs = tuple(p for axes, order in named for p in zip(axes, order, strict=True) if p[0] != p[1])
            moved = self.moved(atoms, denominators, pairs)
            if best is None or moved < best:
                best = moved
        assert best is not None
        return self.monomial(PartMask(mask), *best)

    def moved(self, atoms: Atoms, denominators: Denominators, pairs: Substitution) -> tuple[Atoms, Denominators]:
        if not pairs:
            return tuple(sorted(atoms)), tuple(sorted(denominators))
        return (
            tuple(sorted(self._substitute_atom(a, pairs) for a in atoms)),
            tuple(sorted(self.substitute(d, pairs) for d in denominators)),
        )

    def substitute(self, a: Form, pairs: Substitution) -> Form:
        """Replace free indices by copies of the same base axes, all at once; partly bound ones move as well."""
        sources = 0
        for source, _ in pairs:
            sources |= full_mask(source)
        if not self.free[a] & sources:
            return a
        key = (a, pairs)
        found = self._substituted.get(key)
        if found is None:
            terms: dict[MonomialId, int] = {}
            for monomial, count in self.polynomials[a]:
                number = self.substitute_monomial(monomial, pairs)
                terms[number] = terms.get(number, 0) + count
            found = self._substituted[key] = self.polynomial(terms)
        return found

    def substitute_monomial(self, monomial: MonomialId, pairs: Substitution) -> MonomialId:
        bound, atoms, denominators = self.monomials[monomial]
        free, whole = self.monomial_free[monomial], self.wholly_bound[monomial]
        pairs = tuple((s, t) for s, t in pairs if free & full_mask(s))
        if not pairs:
            return monomial
        taken: int = free | bound
        for _, target in pairs:
            taken |= full_mask(target)
        hit = {target for _, target in pairs}
        extra: list[tuple[Axis, Axis]] = []
        for axis in whole:
            if axis in hit:
                (name,) = self._fresh(Axis(axis % self.width), PartMask(taken))
                taken |= full_mask(name)
                extra.append((axis, name))
        every = (*pairs, *extra)
        return self.named(move(bound, every), *self.moved(atoms, denominators, every))

    def _substitute_atom(self, number: AtomId, pairs: Substitution) -> AtomId:
        free = self.atom_free[number]
        pairs = tuple((s, t) for s, t in pairs if free & full_mask(s))
        if not pairs:
            return number
        atom = self.atoms[number]
        match atom[0]:
            case "input":
                return self._input(str(atom[1]), tuple(dict(pairs).get(a, a) for a in input_axes(atom)))
            case "rms":
                inner, parts = operand(atom), norm_parts(atom)
                hit = {target for _, target in pairs}
                extra: list[tuple[Axis, Axis]] = []
                taken: int = self.free[inner]
                for _, target in pairs:
                    taken |= full_mask(target)
                for axis in axes_in(parts):
                    if axis in hit:
                        (name,) = self._fresh(Axis(axis % self.width), PartMask(taken))
                        taken |= full_mask(name)
                        extra.append((axis, name))
                every = (*pairs, *extra)
                return self._norm_atom(self.substitute(inner, every), move(parts, every), atom[3])
            case "layer_norm":
                inner, parts = operand(atom), norm_parts(atom)
                inner = self.substitute(inner, pairs)
                return self.atom(("layer_norm", inner, move(parts, pairs), atom[3]), self.free[inner])
            case _:
                inner = self.substitute(operand(atom), pairs)
                return self.atom((atom[0], inner), self.free[inner])

    # --- constructors ------------------------------------------------------------------------------------------

    def _input(self, name: str, axes: tuple[Axis, ...]) -> AtomId:
        free = 0
        for axis in axes:
            free |= full_mask(axis)
        return self.atom(("input", name, axes), PartMask(free))

    def variable(self, name: str, axes: tuple[Axis, ...]) -> Form:
        """Element of input ``name`` at these indices, one for each of its axes in order."""
        return self.single(self._input(name, axes))

    def constant(self, value: Fraction) -> Form:
        """A rational constant, kept as an atom: constants are never folded."""
        return self.single(self.atom(("const", value), NO_PARTS))

    def apply(self, name: str, argument: Form) -> Form:
        """An opaque elementwise function."""
        return self.single(self.atom((name, argument), self.free[argument]))

    def root_mean_square(self, parts: PartMask, argument: Form, eps: Fraction | None, frame: Frame) -> Form | None:
        """sqrt(mean over ``parts`` of argument^2 (+ eps)), opaque; None if the argument does not depend on them all."""
        if parts & ~self.free[argument] or not parts:
            return None
        return self.single(self._norm_atom(argument, complete(parts, frame), eps))

    def _norm_atom(self, argument: Form, parts: PartMask, eps: object) -> AtomId:
        """The norm factor with its wholly bound indices named canonically, in the order of their names."""
        whole = [axis for axis in axes_in(parts) if not full_mask(axis) & ~parts]
        rest: int = parts
        for axis in whole:
            rest &= ~full_mask(axis)
        taken = (self.free[argument] & ~parts) | rest
        pairs: list[tuple[Axis, Axis]] = []
        for axis in whole:
            (name,) = self._fresh(Axis(axis % self.width), PartMask(taken))
            taken |= full_mask(name)
            rest |= full_mask(name)
            pairs.append((axis, name))
        argument = self.substitute(argument, tuple(p for p in pairs if p[0] != p[1]))
        return self.atom(("rms", argument, PartMask(rest), eps), PartMask(self.free[argument] & ~rest))

    def layer_norm(self, parts: PartMask, argument: Form, eps: Fraction | None, frame: Frame) -> Form | None:
        """Layer norm over ``parts``, opaque; the result still depends on them."""
        if parts & ~self.free[argument] or not parts:
            return None
        return self.single(self.atom(("layer_norm", argument, complete(parts, frame), eps), self.free[argument]))

    def add(self, a: Form, b: Form) -> Form:
        """a + b."""
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
        """a * b, expanded; None where a partly bound index of one occurs in the other."""
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

    def apart(self, monomial: MonomialId, taken: PartMask) -> Monomial:
        """A monomial whose wholly bound indices avoid ``taken``."""
        bound, atoms, denominators = self.monomials[monomial]
        pairs: list[tuple[Axis, Axis]] = []
        busy: int = taken | bound
        for axis in self.wholly_bound[monomial]:
            if full_mask(axis) & taken:
                (name,) = self._fresh(Axis(axis % self.width), PartMask(busy))
                busy |= full_mask(name)
                pairs.append((axis, name))
        moved = tuple(pairs)
        return (move(bound, moved), *self.moved(atoms, denominators, moved))

    def sum(self, parts: PartMask, a: Form, frame: Frame, one_of: tuple[PartMask, ...] = ()) -> Form | None:
        """Sum over ``parts``, and over one of the parts of a loop that runs through several axes.

        Args:
            parts: What every term is summed over.
            a: The element.
            frame: For each axis the parts that it is made of; a sum over them all binds the axis wholly.
            one_of: Masks of which each term must depend on exactly one, over which it is summed as well.

        Returns:
            None where a term does not depend on all of them (the sum would scale it).
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
            number = self.named(complete(PartMask(bound | over), frame), atoms, denominators)
            terms[number] = terms.get(number, 0) + count
        return self.polynomial(terms)

    def div(self, a: Form, b: Form) -> Form | None:
        """a / b; None where a partly bound index of a term is free in b (the quotient would capture it)."""
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
        """A divisor as a product, as 1 / (x * y) is 1 / x / y: the factors that its terms share, and the rest.

        A single term falls into the factors that share no bound index; a denominator d in it is the factor 1 / d.
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
            left = without(atoms, shared_atoms), without(denominators, shared_denominators)
            assert left[0] is not None and left[1] is not None
            rest[self.named(bound, left[0], left[1])] = count
        factors: list[Monomial] = [(NO_PARTS, (atom,), ()) for atom in shared_atoms]
        factors += [(NO_PARTS, (), (d,)) for d in shared_denominators]
        return (self.polynomial(rest), *(self.polynomial({self.monomial(*f): 1}) for f in factors))

    def _components(self, bound: PartMask, atoms: Atoms, denominators: Denominators) -> list[Monomial]:
        """The factors of a monomial that share no bound index."""
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
        """Atoms and denominators that are factors of every term and depend on nothing that the term binds."""
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
