"""Pairs of dims of a program's inputs that have the same index in every term of the program's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NewType

from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import AtomId, Form, input_axes, norm_parts
from mirage_formal.search.guided.algebra.part_masks import NO_PARTS, axes_in, full_mask
from mirage_formal.search.guided.algebra.part_numbering import Axis
from mirage_formal.search.guided.symbolic_tiling import KTensor, Place

#: Number of an index of the target: one for each free index and one for each binding occurrence.
_Index = NewType("_Index", int)


def shared_index_dims(algebra: Algebra, target: Form, inputs: Sequence[KTensor]) -> Mapping[Place, frozenset[Place]]:
    """Map each place of an input to the places of other inputs with the same index in every term of the input.

    Args:
        algebra: The algebra that interns the normal forms.
        target: Form of the program's output.
        inputs: The program's inputs, each the form of one atom.

    Sound: a candidate without cancellation uses an input only as the target's terms do, so where one kernel reads both
    inputs as they are, they meet along that index and are split alike.
    """
    forms = {str(algebra.atoms[_atom(algebra, tensor.form)][1]): tensor.form for tensor in inputs}
    numbers = map(_Index, count())
    uses: list[list[tuple[Place, _Index]]] = []
    at: dict[_Index, set[Place]] = {}

    def visit(polynomial: Form, scope: Mapping[Axis, _Index]) -> None:
        for monomial, _ in algebra.polynomials[polynomial]:
            bound, atoms, denominators = algebra.monomials[monomial]
            inner = {**scope, **{axis: next(numbers) for axis in axes_in(bound)}}
            for denominator in denominators:
                visit(denominator, inner)
            for atom in atoms:
                parts = algebra.atoms[atom]
                if parts[0] == "input":
                    places = [((forms[str(parts[1])], n), inner[axis]) for n, axis in enumerate(input_axes(parts))]
                    uses.append(places)
                    for place, index in places:
                        at.setdefault(index, set()).add(place)
                    continue
                argument = algebra.argument(atom)
                if argument is None:
                    continue
                binds = norm_parts(parts) if parts[0] == "rms" else NO_PARTS
                visit(argument, {**inner, **{axis: next(numbers) for axis in axes_in(binds)}})

    free = {axis: next(numbers) for axis in axes_in(algebra.free[target]) if algebra.free[target] & full_mask(axis)}
    visit(target, free)
    out: dict[Place, frozenset[Place]] = {}
    for use in uses:
        for place, index in use:
            shared = frozenset(at[index])
            out[place] = out.get(place, shared) & shared
    return out


def _atom(algebra: Algebra, form: Form) -> AtomId:
    ((monomial, _),) = algebra.polynomials[form]
    return algebra.monomials[monomial][1][0]
