"""Bound indices of normal forms: canonical renaming (alpha-equivalence) and capture-avoiding substitution.

Indices are axes in the sense of part_numbering.py. Axis ``copy * width + base`` is copy number ``copy`` of base axis
``base``. Copies of one base axis have one extent, so a bound index may be renamed from one to another.

A sum over all parts of an index binds the index wholly: all slots of its mask are set, however it was split. Wholly
bound indices are named by the first copies that are not free in the monomial, in the order that makes the monomial
least. So forms that differ only in the names of bound indices are one form. The form of the program's output does not
depend on how a kernel splits its axes.
"""

from __future__ import annotations

from itertools import permutations, product

from mirage_formal.search.guided.algebra.interner import (
    AtomId,
    Atoms,
    Denominators,
    Form,
    Interner,
    Monomial,
    MonomialId,
    atom_argument,
    input_axes,
    norm_parts,
)
from mirage_formal.search.guided.algebra.part_masks import (
    NO_PARTS,
    PartMask,
    Substitution,
    axes_in,
    full_mask,
    move_parts,
)
from mirage_formal.search.guided.algebra.part_numbering import Axis


class BinderAlgebra(Interner):
    """Interner of values whose indices can be renamed.

    Sound: a free index is renamed to a copy of its base axis, which has the same extent, and all of a term at once; a
    bound one only to a name that is not free in the term. So no index is captured and no value changes but by the names
    of its free indices.

    Args:
        width: Number of base axes.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._substituted: dict[tuple[Form, Substitution], Form] = {}
        self._named: dict[Monomial, MonomialId] = {}

    def _fresh(self, base: Axis, taken: PartMask, count: int = 1) -> list[Axis]:
        """Return the first copies of a base axis that have no part in ``taken``."""
        out: list[Axis] = []
        axis = base
        while len(out) < count:
            if not full_mask(axis) & taken:
                out.append(axis)
            axis = Axis(axis + self.width)
        return out

    def named(self, bound: PartMask, atoms: Atoms, denominators: Denominators) -> MonomialId:
        """Return the number of a monomial after its wholly bound indices are named canonically.

        Args:
            bound: The parts that it is summed over.
            atoms: Numbers of its atoms, in any order.
            denominators: Forms of its denominators, in any order.

        Sound: renaming a bound index to a name that is not free in the term changes no value.
        """
        key = (bound, atoms, denominators)
        number = self._named.get(key)
        if number is None:
            number = self._named[key] = self._named_new(bound, atoms, denominators)
        return number

    def _named_new(self, bound: PartMask, atoms: Atoms, denominators: Denominators) -> MonomialId:
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
        """Return factors with their free indices renamed.

        Args:
            atoms: Numbers of atoms.
            denominators: Forms of denominators.
            pairs: (axis, new name) of each index that is renamed.

        Returns:
            Both, ascending.
        """
        if not pairs:
            return tuple(sorted(atoms)), tuple(sorted(denominators))
        return (
            tuple(sorted(self._substitute_atom(a, pairs) for a in atoms)),
            tuple(sorted(self.substitute(d, pairs) for d in denominators)),
        )

    def substitute(self, a: Form, pairs: Substitution) -> Form:
        """Replace free indices by copies of the same base axes, simultaneously; partly bound ones move as well.

        Args:
            a: The form.
            pairs: (axis, new name) of each index that is renamed.
        """
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
        """Replace free indices of one monomial; bound indices that have one of the new names get fresh names.

        Args:
            monomial: Number of the monomial.
            pairs: (axis, new name) of each index that is renamed.
        """
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
        return self.named(move_parts(bound, every), *self.moved(atoms, denominators, every))

    def _substitute_atom(self, number: AtomId, pairs: Substitution) -> AtomId:
        free = self.atom_free[number]
        pairs = tuple((s, t) for s, t in pairs if free & full_mask(s))
        if not pairs:
            return number
        atom = self.atoms[number]
        match atom[0]:
            case "input":
                return self.input_atom(str(atom[1]), tuple(dict(pairs).get(a, a) for a in input_axes(atom)))
            case "rms":
                inner, parts = atom_argument(atom), norm_parts(atom)
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
                return self.norm_atom(self.substitute(inner, every), move_parts(parts, every), atom[3])
            case "layer_norm":
                inner, parts = atom_argument(atom), norm_parts(atom)
                inner = self.substitute(inner, pairs)
                return self.atom(("layer_norm", inner, move_parts(parts, pairs), atom[3]), self.free[inner])
            case _:
                inner = self.substitute(atom_argument(atom), pairs)
                return self.atom((atom[0], inner), self.free[inner])

    def apart(self, monomial: MonomialId, taken: PartMask) -> Monomial:
        """Return a monomial whose wholly bound indices avoid the given parts' axes.

        Args:
            monomial: Number of the monomial.
            taken: The parts whose axes are avoided.

        Returns:
            Its content, which is not interned; partly bound indices stay and may still meet ``taken``.
        """
        bound, atoms, denominators = self.monomials[monomial]
        pairs: list[tuple[Axis, Axis]] = []
        busy: int = taken | bound
        for axis in self.wholly_bound[monomial]:
            if full_mask(axis) & taken:
                (name,) = self._fresh(Axis(axis % self.width), PartMask(busy))
                busy |= full_mask(name)
                pairs.append((axis, name))
        moved = tuple(pairs)
        return (move_parts(bound, moved), *self.moved(atoms, denominators, moved))

    def input_atom(self, name: str, axes: tuple[Axis, ...]) -> AtomId:
        """Return the number of the atom that is an input's element.

        Args:
            name: Name of the input.
            axes: The index of each of its axes, in order.
        """
        free = 0
        for axis in axes:
            free |= full_mask(axis)
        return self.atom(("input", name, axes), PartMask(free))

    def norm_atom(self, argument: Form, parts: PartMask, eps: object) -> AtomId:
        """Return the number of a norm factor; its wholly bound indices are renamed canonically, in order of names.

        Args:
            argument: Form of the normed tensor's element.
            parts: The parts that the mean is taken over.
            eps: The summand of the mean of squares, or None.
        """
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
