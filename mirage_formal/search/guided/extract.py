"""Extraction of all operator DAGs that compute given goal classes within an operator limit and use every input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

from mirage_formal.search.guided.saturation import ClassId, Closure, Producer

#: A set of a block's inputs as a bit mask: bit i stands for input i.
InputMask = NewType("InputMask", int)
#: A DAG: (class, chosen producer) pairs by ascending class number.
Dag = tuple[tuple[ClassId, Producer], ...]
_UNREACHABLE = 1 << 20


def min_costs(closure: Closure) -> list[int]:
    """Return lower bounds on the operators that each class needs.

    Args:
        closure: The closure.

    Returns:
        By ``ClassId`` the operators needed for a class at least: the depth of its shallowest derivation.
    """
    out = [0 if i < closure.inputs else _UNREACHABLE for i in range(len(closure.classes))]
    changed = True
    while changed:
        changed = False
        for number in range(closure.inputs, len(out)):
            for producer in closure.producers[number]:
                cost = 1 + max(out[i] for i in producer.operands)
                if cost < out[number]:
                    out[number] = cost
                    changed = True
    return out


def min_operators(goals: Sequence[int]) -> int:
    """Return a lower bound on the operators of a DAG that computes distinct goals.

    Args:
        goals: The cost of each goal; at least one.

    Sound: of the goals that cost t or more, the first in the order of computation has t - 1 operators before it, and
    none of these is such a goal. An output may lie on another one's path, so costs are not added.
    """
    return max(t - 1 + sum(cost >= t for cost in goals) for t in goals)


def all_inputs(count: int) -> InputMask:
    """Return the set of all of a block's ``count`` inputs."""
    return InputMask((1 << count) - 1)


def reachable_inputs(closure: Closure) -> list[InputMask]:
    """Return the inputs that each class depends on.

    Args:
        closure: The closure.

    Returns:
        By ``ClassId`` the inputs that some derivation of a class uses.
    """
    out = [InputMask(1 << i if i < closure.inputs else 0) for i in range(len(closure.classes))]
    changed = True
    while changed:
        changed = False
        for number in range(closure.inputs, len(out)):
            used: int = out[number]
            for producer in closure.producers[number]:
                for operand in producer.operands:
                    used |= out[operand]
            if used != out[number]:
                out[number] = InputMask(used)
                changed = True
    return out


def extract_graphs(closure: Closure, goals: tuple[ClassId, ...], limit: int, cost: list[int]) -> list[Dag]:
    """Return all DAGs with at most ``limit`` operators whose results are the goals and that use every input class.

    A class is computed once in a DAG, so no value is computed twice by construction.

    Args:
        closure: The closure.
        goals: The classes to compute.
        limit: Most operators.
        cost: By ``ClassId`` the lower bound of ``min_costs``.
    """
    found: list[Dag] = []
    need = all_inputs(closure.inputs)
    chosen: dict[ClassId, Producer] = {}

    def visit(pending: frozenset[ClassId], used: InputMask) -> None:
        if not pending:
            if used & need == need:
                found.append(tuple(sorted(chosen.items())))
            return
        if len(chosen) + len(pending) > limit:
            return
        # A class is computed after all its uses are known, so the costliest comes first.
        number = max(pending, key=lambda n: (cost[n], n))
        # The shallowest derivation may use classes already chosen; count only operators that are surely missing.
        shared = sum(cost[n] < cost[number] for n in chosen)
        if cost[number] - shared + len(chosen) > limit:
            return
        rest = pending - {number}
        for producer in closure.producers[number]:
            new_pending = rest
            new_used: int = used
            for operand in producer.operands:
                if operand < closure.inputs:
                    new_used |= 1 << operand
                elif operand not in chosen:
                    new_pending |= {operand}
            chosen[number] = producer
            visit(new_pending, InputMask(new_used))
            del chosen[number]

    visit(frozenset(g for g in goals if g >= closure.inputs), InputMask(0))
    return found
