"""Containment of normal forms in a target: the pruning test of guided search.

A form is part of the target if some context turns it into terms of the target or of a polynomial nested in it. A
context is a product with a monomial under further sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import copy
from fractions import Fraction
from itertools import permutations, product
from typing import Final, TypeVar

from mirage_formal.logic.axiom_laws import NO_LAWS, Laws
from mirage_formal.search.guided.algebra.interner import (
    AtomId,
    Atoms,
    Denominators,
    Form,
    Monomial,
    MonomialId,
    atom_argument,
    norm_parts,
)
from mirage_formal.search.guided.algebra.normal_forms import Forms
from mirage_formal.search.guided.algebra.part_masks import (
    Frame,
    PartMask,
    Renaming,
    Substitution,
    axes_in,
    full_mask,
    move_parts,
    multiset_difference,
    rename_mask,
)
from mirage_formal.search.guided.algebra.part_numbering import Axis

_Number = TypeVar("_Number", AtomId, Form)
#: Most factors of one kind that are counted.
_MOST: Final = 127


class Algebra(Forms):
    """Normal forms with containment in a target.

    Args:
        width: Number of base axes.
        laws: Laws of functions that a user has added.
    """

    def __init__(self, width: int, laws: Laws = NO_LAWS) -> None:
        super().__init__(width, laws)
        self._renamed: dict[tuple[Form, Renaming], Form | None] = {}
        self._norms: dict[tuple[PartMask, Form, Fraction | None, Frame], Form | None] = {}
        self._nested: dict[tuple[Form, bool], tuple[Form, ...]] = {}
        self._copies: dict[tuple[Form, bool], tuple[int, ...]] = {}
        self._answers: dict[tuple[Form, bool], dict[Form, bool]] = {}
        self._heads: dict[tuple[object, ...], int] = {}
        self._profiles: dict[MonomialId, int] = {}
        self._guards = 0
        self.queries = 0
        self.misses = 0

    def snapshot(self) -> Algebra:
        """Return an algebra with the same numbers and memos that has answered no query; further forms are its own."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, value.copy())
        other._answers = {}
        other.queries = other.misses = 0
        return other

    def repeat_queries(self, forms: Iterable[Form], answered: Algebra, target: Form, *, loose: bool) -> None:
        """Count queries as ``within`` does, and take the answers of another algebra.

        Sound: forms have the same numbers in both, see ``snapshot``; the answer to a query rests on nothing else.

        Args:
            forms: The forms that were asked about, in order.
            answered: The algebra that has answered.
            target: See ``within``.
            loose: See ``within``.
        """
        own, known = self.answers(target, loose=loose), answered.answers(target, loose=loose)
        for form in forms:
            if form == target:
                continue
            self.queries += 1
            if form not in own:
                self.misses += 1
                own[form] = known[form]

    def root_mean_square(self, parts: PartMask, argument: Form, eps: Fraction | None, frame: Frame) -> Form | None:
        """Implement ``Forms.root_mean_square``; closures ask for the same norms again and again."""
        key = (parts, argument, eps, frame)
        if key not in self._norms:
            self._norms[key] = super().root_mean_square(parts, argument, eps, frame)
        return self._norms[key]

    # --- renaming of bound parts -------------------------------------------------------------------------------

    def rename(self, a: Form, renaming: Renaming) -> Form | None:
        """Replace parts of partly bound indices; used where a kernel splits a leaf or merges parts.

        Args:
            a: The form.
            renaming: (source, target) masks.

        Returns:
            The renamed form; None if a source is only partly bound somewhere.
        """
        if not renaming:
            return a
        key = (a, renaming)
        if key not in self._renamed:
            self._renamed[key] = self._rename_new(a, renaming)
        return self._renamed[key]

    def _rename_new(self, a: Form, renaming: Renaming) -> Form | None:
        terms: dict[MonomialId, int] = {}
        for monomial, count in self.polynomials[a]:
            bound, atoms, denominators = self.monomials[monomial]
            new_bound = rename_mask(bound, renaming)
            new_atoms = [self._rename_atom(atom, renaming) for atom in atoms]
            new_denominators = [self.rename(d, renaming) for d in denominators]
            if new_bound is None or None in new_atoms or None in new_denominators:
                return None
            key = self.monomial(new_bound, _sort_numbers(new_atoms), _sort_numbers(new_denominators))
            terms[key] = terms.get(key, 0) + count
        return self.polynomial(terms)

    def _rename_atom(self, number: AtomId, renaming: Renaming) -> AtomId | None:
        atom = self.atoms[number]
        kind = atom[0]
        if kind in ("input", "const"):
            return number
        renamed = self.rename(atom_argument(atom), renaming)
        if renamed is None:
            return None
        if kind in ("rms", "layer_norm"):
            new_parts = rename_mask(norm_parts(atom), renaming)
            if new_parts is None:
                return None
            free = PartMask(self.free[renamed] & ~new_parts) if kind == "rms" else self.free[renamed]
            return self.atom((kind, renamed, new_parts, atom[3]), free)
        return self.atom((kind, renamed), self.free[renamed])

    # --- containment -------------------------------------------------------------------------------------------

    def nested(self, target: Form, *, products: bool = True) -> tuple[Form, ...]:
        """Return the target and every denominator, product of one term's denominators and argument nested in it.

        By a law f(x + y) = f(x) f(y) also the sum of the arguments of several factors f(x).

        Args:
            target: The form.
            products: Whether products of denominators count.

        Returns:
            Their forms, each once, the target first.
        """
        found = self._nested.get((target, products))
        if found is None:
            seen: dict[Form, None] = {}
            stack = [target]
            while stack:
                number = stack.pop()
                if number in seen:
                    continue
                seen[number] = None
                for monomial, _ in self.polynomials[number]:
                    _, atoms, denominators = self.monomials[monomial]
                    stack.extend(denominators)
                    if products and len(denominators) > 1:
                        # x / y / z is x / (y * z), so the product is a tensor that a candidate may hold.
                        stack.extend(self._product(denominators))
                    stack.extend(p for p in (self.argument(atom) for atom in atoms) if p is not None)
                    calls = [call for call in map(self.call_at, atoms) if call is not None]
                    stack.extend(inner for _, inner in self._laws.arguments(self, calls, self.add))
            found = self._nested[target, products] = tuple(seen)
        return found

    def _product(self, factors: Denominators) -> list[Form]:
        """Return the product as a list of one form; an empty list if it has no normal form."""
        out: Form | None = factors[0]
        for factor in factors[1:]:
            out = None if out is None else self.mul(out, factor)
        return [] if out is None else [out]

    def argument(self, atom: AtomId) -> Form | None:
        """Return the polynomial inside an atom.

        Args:
            atom: Number of the atom.

        Returns:
            Its form; None for inputs and constants.
        """
        inside = self.atoms[atom]
        return None if inside[0] in ("input", "const") else atom_argument(inside)

    def bound_masks(self, a: Form) -> frozenset[PartMask]:
        """Return the sets of parts that are bound together.

        Args:
            a: The form.

        Returns:
            The mask that each monomial, and each norm, anywhere in it binds.
        """
        out: set[PartMask] = set()
        for number in self.nested(a):
            for monomial, _ in self.polynomials[number]:
                bound, atoms, _ = self.monomials[monomial]
                out.add(bound)
                for atom in atoms:
                    if self.atoms[atom][0] in ("rms", "layer_norm"):
                        out.add(norm_parts(self.atoms[atom]))
        return frozenset(out)

    def copies(self, target: Form, *, products: bool = True) -> tuple[int, ...]:
        """Return the number of copies of each axis in a form, nested forms included.

        Args:
            target: The form.
            products: Whether those count that only meet in a product of denominators.

        Returns:
            The number of copies of each base axis, at least 1.
        """
        found = self._copies.get((target, products))
        if found is None:
            counts = [1] * self.width
            for number in self.nested(target, products=products):
                for monomial, _ in self.polynomials[number]:
                    for axis in axes_in(PartMask(self.monomials[monomial][0] | self.monomial_free[monomial])):
                        counts[axis % self.width] = max(counts[axis % self.width], 1 + axis // self.width)
            found = self._copies[target, products] = tuple(counts)
        return found

    def within(self, a: Form, target: Form, *, loose: bool = False) -> bool:
        """Return whether a form times some monomial context is contained termwise in the target or in a nested form.

        The names of the indices of ``a`` do not matter where the target has several copies of their base axis.

        Args:
            a: Form of a tensor that a candidate may hold.
            target: Form of the program's output.
            loose: Whether the terms of ``a`` may be summed over different indices later, as a loop over several axes
                does.

        Sound: used only to prune. Without cancellation every tensor that contributes to the target occurs in it this
        way, and the context may not depend on a part that ``a`` has already bound. Or a law rewrites a function of it.
        """
        if a == target:
            return True
        answers = self.answers(target, loose=loose)
        found = answers.get(a)
        self.queries += 1
        if found is None:
            self.misses += 1
            forms = (a,) if self._laws is NO_LAWS else self._laws.above(self, a)
            found = any(self._fits(one, inner, target, loose) for one in forms for inner in self.nested(target))
            answers[a] = found
        return found

    def answers(self, target: Form, *, loose: bool = False) -> dict[Form, bool]:
        """Return what ``within`` has answered so far for a target, by form; its later answers appear in it.

        Args:
            target: Form of the program's output.
            loose: See ``within``.
        """
        return self._answers.setdefault((target, loose), {})

    def _fits(self, a: Form, inner: Form, target: Form, loose: bool) -> bool:
        if a == inner:
            return True
        terms, available = self.polynomials[a], self.polynomials[inner]
        if len(available) < len(terms) or not terms:
            return False
        first, first_count = terms[0]
        if not any(count >= first_count and self._may_divide(first, monomial) for monomial, count in available):
            return False
        # An index that this term binds may be free in another one under the same name.
        bound, atoms, denominators = self.apart(first, self.free[a])
        counts = dict(available)
        copies = self.copies(target)
        for names in self._index_renamings(self.free[a], bound, self.monomial_free[first], copies):
            t_atoms, t_denominators = self.moved(atoms, denominators, names) if names else (atoms, denominators)
            t_bound = move_parts(bound, names)
            for monomial, count in available:
                if count < first_count:
                    continue
                context = self._context(monomial, t_bound, t_atoms, t_denominators)
                if context is None:
                    continue
                inside = tuple(p for p in names if full_mask(p[0]) & self.free[a])
                if all(self._contains_term(m, c, inside, context, counts, loose) for m, c in terms[1:]):
                    return True
        return False

    def _may_divide(self, factor: MonomialId, monomial: MonomialId) -> bool:
        """Return whether a monomial has the factors of another one, whatever their indices are.

        Sound: renaming an index changes neither the name of an input nor the function of an atom.
        """
        few, many = self._profile(factor), self._profile(monomial)
        return ((many | self._guards) - few) & self._guards == self._guards

    def _profile(self, monomial: MonomialId) -> int:
        """Return how many factors of each kind a monomial has: one byte for each kind, with its highest bit free."""
        found = self._profiles.get(monomial)
        if found is None:
            _, atoms, denominators = self.monomials[monomial]
            heads: Counter[tuple[object, ...]] = Counter({("denominator",): len(denominators)})
            for atom in atoms:
                inside = self.atoms[atom]
                heads[inside[:2] if inside[0] in ("input", "const") else inside[:1]] += 1
            found = sum(self._unit(head) * min(count, _MOST) for head, count in heads.items())
            self._profiles[monomial] = found
        return found

    def _unit(self, head: tuple[object, ...]) -> int:
        """Return one factor of a kind as a profile."""
        place = self._heads.setdefault(head, 8 * len(self._heads))
        self._guards |= 128 << place
        return 1 << place

    def _index_renamings(
        self, free: PartMask, bound: PartMask, here: PartMask, copies: tuple[int, ...]
    ) -> Iterator[Substitution]:
        """Yield substitutions of indices by copies that the target has, the empty one first.

        An index may have a name that the target does not use, where a kernel reads an axis in a second way. The free
        indices take different copies, and so do, within their term, the bound ones together with those free ``here``.
        """
        yield ()
        groups: dict[tuple[int, bool], list[Axis]] = {}
        further = {axis % self.width for axis in axes_in(PartMask(free | bound)) if axis >= self.width}
        for mask, is_bound in ((free, False), (bound, True)):
            for axis in axes_in(mask):
                base = axis % self.width
                if (copies[base] > 1 or base in further) and not (is_bound and full_mask(axis) & free):
                    groups.setdefault((base, is_bound), []).append(axis)
        for orders in product(*(permutations(range(copies[base]), len(axes)) for (base, _), axes in groups.items())):
            named = {
                axis: Axis(base + copy * self.width)
                for ((base, _), axes), order in zip(groups.items(), orders, strict=True)
                for axis, copy in zip(axes, order, strict=True)
            }
            mine = [name for axis, name in named.items() if full_mask(axis) & (bound | here)]
            pairs = tuple((axis, name) for axis, name in named.items() if axis != name)
            if pairs and len(set(mine)) == len(mine):
                yield pairs

    def _context(
        self, monomial: MonomialId, bound: PartMask, atoms: Atoms, denominators: Denominators
    ) -> Monomial | None:
        """Return the cofactor of a factor in a target's monomial; None if it is no factor or depends on its sums."""
        t_bound, t_atoms, t_denominators = self.monomials[monomial]
        if bound & ~t_bound:
            return None
        rest_atoms, rest_denominators = (
            multiset_difference(t_atoms, atoms),
            multiset_difference(t_denominators, denominators),
        )
        if rest_atoms is None or rest_denominators is None:
            return None
        if self.factors_free(rest_atoms, rest_denominators) & bound:
            return None
        return PartMask(t_bound & ~bound), rest_atoms, rest_denominators

    def _contains_term(
        self,
        monomial: MonomialId,
        count: int,
        names: Substitution,
        context: Monomial,
        counts: dict[MonomialId, int],
        loose: bool,
    ) -> bool:
        """Return whether context times one further term is in the target with at least this multiplicity."""
        bound, atoms, denominators = context
        free = self.factors_free(atoms, denominators)
        renamed = self.substitute_monomial(monomial, names) if names else monomial
        m_bound, m_atoms, m_denominators = self.apart(renamed, PartMask(bound | free | self.monomial_free[renamed]))
        if m_bound & (bound | free):
            return False
        number = self.named(PartMask(bound | m_bound), m_atoms + atoms, m_denominators + denominators)
        if counts.get(number, 0) >= count:
            return True
        if not loose:
            return False
        factors = tuple(sorted(m_atoms + atoms)), tuple(sorted(m_denominators + denominators))
        return any(
            self.monomials[other][1:] == factors and not m_bound & ~self.monomials[other][0] and have >= count
            for other, have in counts.items()
        )


def _sort_numbers(numbers: Iterable[_Number | None]) -> tuple[_Number, ...]:
    return tuple(sorted(n for n in numbers if n is not None))
