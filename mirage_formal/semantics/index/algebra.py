"""Interned normal forms of tensor elements over named index parts.

A polynomial is a multiset of monomials; a monomial is (mask of bound parts, atoms, denominators): the sum over the
bound parts of the product of the atoms divided by the denominators. An atom is an input element, a rational constant,
an opaque function of a polynomial, a norm factor, or a sum that was closed because its bound parts would have captured
another factor's. Everything is interned, so equality is identity of integers.

Laws used: ring laws without cancellation, division as multiplication by a formal inverse, linearity of sums, products
of sums over disjoint parts. No law cancels, so two elements with one normal form are equal for every extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import reduce

Atom = tuple[object, ...]
Monomial = tuple[int, tuple[int, ...], tuple[int, ...]]
Polynomial = tuple[tuple[int, int], ...]
#: Replacement of bound parts: each (source mask, target mask); a source must be covered wholly or not at all.
Renaming = tuple[tuple[int, int], ...]


class Algebra:
    """Interner of atoms, monomials and polynomials; results are polynomial numbers, None where an operation has none.

    Sound: equal numbers mean equal tensors for every choice of extents, because only laws valid for all real values
    (denominators nonzero) build them, sums are refused over parts that the term does not depend on, and a product
    whose factors would capture each other's bound parts closes them into atoms first.
    """

    def __init__(self) -> None:
        self._atom_ids: dict[Atom, int] = {}
        self.atoms: list[Atom] = []
        self.atom_free: list[int] = []
        self._monomial_ids: dict[Monomial, int] = {}
        self.monomials: list[Monomial] = []
        self.monomial_free: list[int] = []
        self._polynomial_ids: dict[Polynomial, int] = {(): 0}
        self.polynomials: list[Polynomial] = [()]
        self.free: list[int] = [0]
        self._mul: dict[tuple[int, int], int] = {}
        self._add: dict[tuple[int, int], int] = {}
        self._sum: dict[tuple[int, int], int | None] = {}
        self._div: dict[tuple[int, int], int | None] = {}
        self._renamed: dict[tuple[int, Renaming], int | None] = {}
        self._nested: dict[int, tuple[int, ...]] = {}
        self._within: dict[tuple[int, int], bool] = {}
        self.queries = 0
        self.misses = 0

    # --- interning ---------------------------------------------------------------------------------------------

    def _atom(self, atom: Atom, free: int) -> int:
        number = self._atom_ids.get(atom)
        if number is None:
            number = self._atom_ids[atom] = len(self.atoms)
            self.atoms.append(atom)
            self.atom_free.append(free)
        return number

    def _monomial(self, bound: int, atoms: tuple[int, ...], denominators: tuple[int, ...]) -> int:
        key = (bound, atoms, denominators)
        number = self._monomial_ids.get(key)
        if number is None:
            number = self._monomial_ids[key] = len(self.monomials)
            self.monomials.append(key)
            free = 0
            for atom in atoms:
                free |= self.atom_free[atom]
            for denominator in denominators:
                free |= self.free[denominator]
            self.monomial_free.append(free & ~bound)
        return number

    def _polynomial(self, terms: dict[int, int]) -> int:
        key = tuple(sorted(terms.items()))
        number = self._polynomial_ids.get(key)
        if number is None:
            number = self._polynomial_ids[key] = len(self.polynomials)
            self.polynomials.append(key)
            free = 0
            for monomial, _ in key:
                free |= self.monomial_free[monomial]
            self.free.append(free)
        return number

    def _single(self, atom: int) -> int:
        return self._polynomial({self._monomial(0, (atom,), ()): 1})

    # --- constructors ------------------------------------------------------------------------------------------

    def variable(self, name: str, free: int) -> int:
        """Element of input ``name``, whose index runs over the parts in ``free``."""
        return self._single(self._atom(("input", name), free))

    def constant(self, value: Fraction) -> int:
        """A rational constant, kept as an atom: constants are never folded."""
        return self._single(self._atom(("const", value), 0))

    def apply(self, name: str, argument: int) -> int:
        """An opaque elementwise function."""
        return self._single(self._atom((name, argument), self.free[argument]))

    def root_mean_square(self, parts: int, argument: int, eps: Fraction | None) -> int | None:
        """sqrt(mean over ``parts`` of argument^2 (+ eps)), opaque; None if the argument does not depend on them all."""
        if parts & ~self.free[argument] or not parts:
            return None
        return self._single(self._atom(("rms", argument, parts, eps), self.free[argument] & ~parts))

    def layer_norm(self, parts: int, argument: int, eps: Fraction | None) -> int | None:
        """Layer norm over ``parts``, opaque; the result still depends on them."""
        if parts & ~self.free[argument] or not parts:
            return None
        return self._single(self._atom(("layer_norm", argument, parts, eps), self.free[argument]))

    def add(self, a: int, b: int) -> int:
        """a + b."""
        if a > b:
            a, b = b, a
        found = self._add.get((a, b))
        if found is None:
            terms = dict(self.polynomials[a])
            for monomial, count in self.polynomials[b]:
                terms[monomial] = terms.get(monomial, 0) + count
            found = self._add[a, b] = self._polynomial(terms)
        return found

    def mul(self, a: int, b: int) -> int:
        """a * b, expanded."""
        if a > b:
            a, b = b, a
        found = self._mul.get((a, b))
        if found is None:
            terms: dict[int, int] = {}
            for m, c in self.polynomials[a]:
                for n, d in self.polynomials[b]:
                    key = self._times(m, n)
                    terms[key] = terms.get(key, 0) + c * d
            found = self._mul[a, b] = self._polynomial(terms)
        return found

    def _times(self, a: int, b: int) -> int:
        bound_a, atoms_a, denominators_a = self.monomials[a]
        bound_b, atoms_b, denominators_b = self.monomials[b]
        clash_a = bound_a & (bound_b | self.monomial_free[b])
        clash_b = bound_b & (bound_a | self.monomial_free[a])
        if clash_a:
            bound_a, atoms_a, denominators_a = self._close(self.monomials[a], clash_a)
        if clash_b:
            bound_b, atoms_b, denominators_b = self._close(self.monomials[b], clash_b)
        return self._monomial(
            bound_a | bound_b, tuple(sorted(atoms_a + atoms_b)), tuple(sorted(denominators_a + denominators_b))
        )

    def _close(self, monomial: Monomial, clash: int) -> Monomial:
        """Turn the connected components of a monomial that bind a part of ``clash`` into opaque sum atoms."""
        bound, atoms, denominators = monomial
        items = [(self.atom_free[a] & bound, True, a) for a in atoms]
        items += [(self.free[d] & bound, False, d) for d in denominators]
        groups: list[tuple[int, list[tuple[bool, int]]]] = []
        for parts, is_atom, number in items:
            member = [(is_atom, number)]
            rest = []
            for group_parts, group in groups:
                if group_parts & parts:
                    parts |= group_parts
                    member = group + member
                else:
                    rest.append((group_parts, group))
            groups = [*rest, (parts, member)]
        kept_bound = 0
        kept_atoms: list[int] = []
        kept_denominators: list[int] = []
        for parts, group in groups:
            inner_atoms = tuple(sorted(n for is_atom, n in group if is_atom))
            inner_denominators = tuple(sorted(n for is_atom, n in group if not is_atom))
            if parts & clash:
                inner = self._polynomial({self._monomial(parts, inner_atoms, inner_denominators): 1})
                kept_atoms.append(self._atom(("sum", inner), self.free[inner]))
            else:
                kept_bound |= parts
                kept_atoms.extend(inner_atoms)
                kept_denominators.extend(inner_denominators)
        return kept_bound, tuple(kept_atoms), tuple(kept_denominators)

    def sum(self, parts: int, a: int) -> int | None:
        """Sum over ``parts``; None where a term does not depend on all of them (the sum would scale it)."""
        if not parts:
            return a
        key = (parts, a)
        if key not in self._sum:
            self._sum[key] = self._sum_new(parts, a)
        return self._sum[key]

    def _sum_new(self, parts: int, a: int) -> int | None:
        terms: dict[int, int] = {}
        for monomial, count in self.polynomials[a]:
            if parts & ~self.monomial_free[monomial]:
                return None
            bound, atoms, denominators = self.monomials[monomial]
            terms[self._monomial(bound | parts, atoms, denominators)] = count
        return self._polynomial(terms)

    def div(self, a: int, b: int) -> int | None:
        """a / b; None where a bound part of a term is free in b (the quotient would capture it)."""
        key = (a, b)
        if key not in self._div:
            self._div[key] = self._div_new(a, b)
        return self._div[key]

    def _div_new(self, a: int, b: int) -> int | None:
        factors: tuple[int, ...] = (b,)
        if len(self.polynomials[b]) == 1:
            monomial, count = self.polynomials[b][0]
            bound, atoms, denominators = self.monomials[monomial]
            if count == 1 and not bound and not denominators:
                factors = tuple(self._opened(atom) for atom in atoms)
        terms: dict[int, int] = {}
        for monomial, count in self.polynomials[a]:
            bound, atoms, denominators = self.monomials[monomial]
            if bound & self.free[b]:
                return None
            terms[self._monomial(bound, atoms, tuple(sorted(denominators + factors)))] = count
        return self._polynomial(terms)

    def _opened(self, atom: int) -> int:
        """The polynomial of an atom; a closed sum is the sum again."""
        kind, inner = self.atoms[atom][:2]
        return inner if kind == "sum" and isinstance(inner, int) else self._single(atom)

    def closed(self, a: int) -> int:
        """The same element with every sum closed into an atom, as it stands in a product that would capture it."""
        terms: dict[int, int] = {}
        for monomial, count in self.polynomials[a]:
            entry = self.monomials[monomial]
            key = self._monomial(*self._sorted_close(entry)) if entry[0] else monomial
            terms[key] = terms.get(key, 0) + count
        return self._polynomial(terms)

    def _sorted_close(self, entry: Monomial) -> Monomial:
        bound, atoms, denominators = self._close(entry, entry[0])
        return bound, tuple(sorted(atoms)), tuple(sorted(denominators))

    # --- renaming of bound parts -------------------------------------------------------------------------------

    def rename(self, a: int, renaming: Renaming) -> int | None:
        """Replace bound parts; None if a source is only partly bound somewhere."""
        if not renaming:
            return a
        key = (a, renaming)
        if key not in self._renamed:
            self._renamed[key] = self._rename_new(a, renaming)
        return self._renamed[key]

    def _rename_new(self, a: int, renaming: Renaming) -> int | None:
        terms: dict[int, int] = {}
        for monomial, count in self.polynomials[a]:
            bound, atoms, denominators = self.monomials[monomial]
            new_bound = rename_mask(bound, renaming)
            new_atoms = [self._rename_atom(atom, renaming) for atom in atoms]
            new_denominators = [self.rename(d, renaming) for d in denominators]
            if new_bound is None or None in new_atoms or None in new_denominators:
                return None
            key = self._monomial(new_bound, _sorted(new_atoms), _sorted(new_denominators))
            terms[key] = terms.get(key, 0) + count
        return self._polynomial(terms)

    def _rename_atom(self, number: int, renaming: Renaming) -> int | None:
        atom = self.atoms[number]
        kind = atom[0]
        if kind in ("input", "const"):
            return number
        argument = atom[1]
        assert isinstance(argument, int)
        renamed = self.rename(argument, renaming)
        if renamed is None:
            return None
        if kind in ("rms", "layer_norm"):
            parts = atom[2]
            assert isinstance(parts, int)
            new_parts = rename_mask(parts, renaming)
            if new_parts is None:
                return None
            free = self.free[renamed] & ~new_parts if kind == "rms" else self.free[renamed]
            return self._atom((kind, renamed, new_parts, atom[3]), free)
        return self._atom((kind, renamed), self.free[renamed])

    # --- containment -------------------------------------------------------------------------------------------

    def nested(self, target: int) -> tuple[int, ...]:
        """The target and every denominator, product of one term's denominators and argument nested in it."""
        found = self._nested.get(target)
        if found is None:
            seen: dict[int, None] = {}
            stack = [target]
            while stack:
                number = stack.pop()
                if number in seen:
                    continue
                seen[number] = None
                for monomial, _ in self.polynomials[number]:
                    _, atoms, denominators = self.monomials[monomial]
                    stack.extend(denominators)
                    if len(denominators) > 1:
                        # x / y / z is x / (y * z), so the product is a tensor that a candidate may hold.
                        stack.append(reduce(self.mul, denominators))
                    stack.extend(p for p in (self.argument(atom) for atom in atoms) if p is not None)
            found = self._nested[target] = tuple(seen)
        return found

    def argument(self, atom: int) -> int | None:
        """The polynomial inside an atom, None for inputs and constants."""
        inner = self.atoms[atom][1]
        return inner if isinstance(inner, int) and self.atoms[atom][0] not in ("input", "const") else None

    def bound_masks(self, a: int) -> frozenset[int]:
        """Masks of parts that are bound together anywhere in a polynomial."""
        out: set[int] = set()
        for number in self.nested(a):
            for monomial, _ in self.polynomials[number]:
                bound, atoms, _ = self.monomials[monomial]
                out.add(bound)
                for atom in atoms:
                    if self.atoms[atom][0] in ("rms", "layer_norm"):
                        parts = self.atoms[atom][2]
                        assert isinstance(parts, int)
                        out.add(parts)
        return frozenset(out)

    def within(self, a: int, target: int) -> bool:
        """Whether some monomial context times ``a`` is contained termwise in the target or in a part nested in it.

        Sound: used only to prune. Without cancellation every tensor that contributes to the target occurs in it this
        way, and the context may not depend on a part that ``a`` has already bound.
        """
        if a == target:
            return True
        key = (a, target)
        found = self._within.get(key)
        self.queries += 1
        if found is None:
            self.misses += 1
            forms = dict.fromkeys((a, self.closed(a)))
            found = self._within[key] = any(self._fits(form, inner) for form in forms for inner in self.nested(target))
        return found

    def _fits(self, a: int, target: int) -> bool:
        if a == target:
            return True
        terms, available = self.polynomials[a], self.polynomials[target]
        if len(available) < len(terms) or not terms:
            return False
        first, first_count = terms[0]
        bound, atoms, denominators = self.monomials[first]
        counts = dict(available)
        for monomial, count in available:
            t_bound, t_atoms, t_denominators = self.monomials[monomial]
            if count < first_count or bound & ~t_bound:
                continue
            rest_atoms = _without(t_atoms, atoms)
            rest_denominators = _without(t_denominators, denominators)
            if rest_atoms is None or rest_denominators is None:
                continue
            free = 0
            for atom in rest_atoms:
                free |= self.atom_free[atom]
            for denominator in rest_denominators:
                free |= self.free[denominator]
            if not free & bound and self._covers(
                terms[1:], counts, t_bound & ~bound, rest_atoms, rest_denominators, free
            ):
                return True
        return False

    def _covers(
        self,
        terms: Polynomial,
        counts: dict[int, int],
        bound: int,
        atoms: tuple[int, ...],
        denominators: tuple[int, ...],
        free: int,
    ) -> bool:
        for monomial, count in terms:
            m_bound, m_atoms, m_denominators = self.monomials[monomial]
            if m_bound & bound or free & m_bound:
                return False
            key = (bound | m_bound, tuple(sorted(m_atoms + atoms)), tuple(sorted(m_denominators + denominators)))
            number = self._monomial_ids.get(key)
            if number is None or counts.get(number, 0) < count:
                return False
        return True


def rename_mask(parts: int, renaming: Renaming) -> int | None:
    """Apply a renaming to a mask; None if a source is only partly contained."""
    out = 0
    rest = parts
    for source, target in renaming:
        overlap = parts & source
        if overlap == source:
            out |= target
            rest &= ~source
        elif overlap:
            return None
    return out | rest


def _sorted(numbers: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted(n for n in numbers if n is not None))


def _without(items: tuple[int, ...], removed: tuple[int, ...]) -> tuple[int, ...] | None:
    rest = list(items)
    for item in removed:
        if item not in rest:
            return None
        rest.remove(item)
    return tuple(rest)
