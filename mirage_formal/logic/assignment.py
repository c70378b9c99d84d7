"""0-1 problems: one option for each item, least total cost of options and of pairs of options.

z3 runs in this process here: the problem is built by its Python interface from numbers of our own, there is no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage_formal.limits import LAYOUT_WORK


def minimise(
    costs: Sequence[Sequence[int]],
    pairs: Mapping[tuple[int, int], Sequence[Sequence[int]]],
    work: int = LAYOUT_WORK,
) -> tuple[tuple[int, ...], bool]:
    """One option for each item.

    Args:
        costs: For each item the cost of each of its options, not negative.
        pairs: For some pairs (i, j) of items the cost of each pair of their options, not negative.
        work: For the solver; items that no pair mentions need none.

    Returns:
        The number of the option of each item, and whether no choice costs less. Without that claim (the solver ran out
        of work) the choice is the best one found by descent.
    """
    chosen = [min(range(len(row)), key=row.__getitem__) for row in costs]
    linked = sorted({item for pair in pairs for item in pair})
    if not linked:
        return tuple(chosen), True
    found = _solved(costs, pairs, linked, work)
    if found is None:
        return _descent(costs, pairs, chosen), False
    for item, option in found.items():
        chosen[item] = option
    return tuple(chosen), True


def total(
    costs: Sequence[Sequence[int]], pairs: Mapping[tuple[int, int], Sequence[Sequence[int]]], chosen: Sequence[int]
) -> int:
    """The cost of a choice."""
    own = sum(row[option] for row, option in zip(costs, chosen, strict=True))
    return own + sum(table[chosen[i]][chosen[j]] for (i, j), table in pairs.items())


def _solved(
    costs: Sequence[Sequence[int]],
    pairs: Mapping[tuple[int, int], Sequence[Sequence[int]]],
    linked: Sequence[int],
    work: int,
) -> dict[int, int] | None:
    import z3

    context = z3.Context()
    solver = z3.Optimize(ctx=context)
    solver.set("rlimit", work)
    picks = {i: [z3.Bool(f"x{i}_{o}", context) for o in range(len(costs[i]))] for i in linked}
    terms = []
    for i in linked:
        solver.add(z3.PbEq([(pick, 1) for pick in picks[i]], 1))
        terms += [z3.If(pick, cost, 0) for pick, cost in zip(picks[i], costs[i], strict=True)]
    for (i, j), table in pairs.items():
        for a, row in zip(picks[i], table, strict=True):
            terms += [z3.If(z3.And(a, b), cost, 0) for b, cost in zip(picks[j], row, strict=True) if cost]
    solver.minimize(z3.Sum(terms))
    if str(solver.check()) != "sat":
        return None
    model = solver.model()
    # Sound: "sat" from Optimize says that the model is optimal; anything else is reported as not proven.
    return {i: next(o for o, pick in enumerate(picks[i]) if z3.is_true(model.eval(pick))) for i in linked}


def _descent(
    costs: Sequence[Sequence[int]],
    pairs: Mapping[tuple[int, int], Sequence[Sequence[int]]],
    start: Sequence[int],
) -> tuple[int, ...]:
    best = list(start)
    improved = True
    while improved:
        improved = False
        for item, row in enumerate(costs):
            for option in range(len(row)):
                other = [*best[:item], option, *best[item + 1 :]]
                if total(costs, pairs, other) < total(costs, pairs, best):
                    best, improved = other, True
    return tuple(best)
