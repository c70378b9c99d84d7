"""Barriers: every conflict has one in between, and on a straight line there are no more than needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.planning.barriers import Item, SharedAccess, synchronise
from mirage_formal.codegen.program.program import Barrier, WaitGroups

ACCESS = st.builds(SharedAccess, st.sampled_from("abc"), st.booleans(), st.sampled_from([None, None, "same"]))
ITEMS = st.lists(st.lists(ACCESS, max_size=2), max_size=6)


def items(rows: Sequence[Sequence[SharedAccess]], first: int = 0) -> list[Item]:
    """Steps that can be told apart."""
    return [Item(WaitGroups(first + i), (tuple(row),)) for i, row in enumerate(rows)]


def conflict(a: SharedAccess, b: SharedAccess) -> bool:
    if not (a.write or b.write):
        return False
    if a.buffer == b.buffer:
        return a.owner is None or a.owner != b.owner
    return {a.buffer, b.buffer} == {"a", "b"}  # these two share bytes


def overlap(x: str, y: str) -> bool:
    return {x, y} == {"a", "b"}


def clean(steps: Iterable[object], accesses: Mapping[int, Sequence[SharedAccess]]) -> bool:
    """Whether a barrier stands between all conflicting steps of a sequence."""
    open_accesses: list[SharedAccess] = []
    for step in steps:
        if isinstance(step, Barrier):
            open_accesses = []
            continue
        assert isinstance(step, WaitGroups)
        mine = accesses[step.left]
        if any(conflict(a, b) for a in open_accesses for b in mine):
            return False
        open_accesses += mine
    return True


@settings(max_examples=200)
@given(ITEMS)
def test_fewest_on_a_straight_line(rows: Sequence[Sequence[SharedAccess]]) -> None:
    found = synchronise(items(rows), [], [], overlap).before
    accesses = dict(enumerate(rows))
    assert clean(found, accesses)
    count = sum(isinstance(step, Barrier) for step in found)
    steps = [WaitGroups(i) for i in range(len(rows))]
    for fewer in range(count):
        for places in combinations(range(len(rows)), fewer):
            other: list[Barrier | WaitGroups] = []
            for i, step in enumerate(steps):
                other += [Barrier(), step] if i in places else [step]
            assert not clean(other, accesses)


@settings(max_examples=200)
@given(ITEMS, ITEMS.filter(bool), ITEMS)
def test_loops_are_clean_around_their_back_edge(
    before: list[list[SharedAccess]], loop: list[list[SharedAccess]], after: list[list[SharedAccess]]
) -> None:
    rows = [*before, *loop, *after]
    accesses = dict(enumerate(rows))
    found = synchronise(items(before), items(loop, len(before)), items(after, len(before) + len(loop)), overlap)
    for rounds in (1, 2, 3):
        assert clean([*found.before, *found.loop * rounds, *found.after], accesses)


def test_exchanges_have_their_own_barrier() -> None:
    write, read = SharedAccess("x", True), SharedAccess("x", False)
    exchange = Item(WaitGroups(0), ((write,), (read,)))
    found = synchronise(
        [exchange, Item(WaitGroups(1), ((SharedAccess("x", False),),)), Item(WaitGroups(2), ((write,),))],
        [],
        [],
        overlap,
    )
    assert found.before == (WaitGroups(0), WaitGroups(1), Barrier(), WaitGroups(2))
