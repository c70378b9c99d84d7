"""Which dims of a program's inputs share their index wherever they occur in the program's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.masks import axes_in
from mirage_formal.search.guided.algebra.parts import full_mask
from mirage_formal.search.guided.structure import KTensor, Place


def ties(algebra: Algebra, target: int, inputs: Sequence[KTensor]) -> Mapping[Place, frozenset[Place]]:
    """For each place of an input the places of others that share its index in every term where the input occurs.

    Sound: a candidate without cancellation uses an input only as the target's terms do, so where one kernel reads both
    inputs as they are, they meet along that index and are split alike.
    """
    forms = {str(algebra.atoms[_atom(algebra, tensor.form)][1]): tensor.form for tensor in inputs}
    numbers = count()
    uses: list[list[tuple[Place, int]]] = []
    at: dict[int, set[Place]] = {}

    def visit(polynomial: int, scope: Mapping[int, int]) -> None:
        for monomial, _ in algebra.polynomials[polynomial]:
            bound, atoms, denominators = algebra.monomials[monomial]
            inner = {**scope, **{axis: next(numbers) for axis in axes_in(bound)}}
            for denominator in denominators:
                visit(denominator, inner)
            for atom in atoms:
                parts = algebra.atoms[atom]
                if parts[0] == "input":
                    axes = parts[2]
                    assert isinstance(axes, tuple)
                    places = [((forms[str(parts[1])], n), inner[axis]) for n, axis in enumerate(axes)]
                    uses.append(places)
                    for place, index in places:
                        at.setdefault(index, set()).add(place)
                    continue
                argument = algebra.argument(atom)
                if argument is None:
                    continue
                binds = parts[2] if parts[0] == "rms" else 0
                assert isinstance(binds, int)
                visit(argument, {**inner, **{axis: next(numbers) for axis in axes_in(binds)}})

    free = {axis: next(numbers) for axis in axes_in(algebra.free[target]) if algebra.free[target] & full_mask(axis)}
    visit(target, free)
    out: dict[Place, frozenset[Place]] = {}
    for use in uses:
        for place, index in use:
            shared = frozenset(at[index])
            out[place] = out.get(place, shared) & shared
    return out


def _atom(algebra: Algebra, form: int) -> int:
    ((monomial, _),) = algebra.polynomials[form]
    return algebra.monomials[monomial][1][0]
