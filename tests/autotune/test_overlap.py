"""Which launches are tried early, by times of the whole."""

from __future__ import annotations

from mirage_formal.autotune.early_launch import choose_early_launches


def test_each_launch_is_tried_the_other_way() -> None:
    """What is fastest is kept, whatever was tried before; one launch alone has no other way left to try."""
    us = {frozenset(one): float(time) for one, time in (((), 9), ((0, 1, 2), 8), ((1, 2), 10), ((0, 2), 6), ((0,), 7))}
    known = [us[frozenset()]]
    tried: list[frozenset[int]] = []

    def faster(early: frozenset[int]) -> bool:
        tried.append(early)
        known.append(us[early])
        return us[early] < min(known[:-1])

    assert choose_early_launches((0, 1, 2), faster) == {0, 2}
    assert tried == [{0, 1, 2}, {1, 2}, {0, 2}, {0}]
    assert choose_early_launches((), lambda early: True) == frozenset()
    assert choose_early_launches((4,), lambda early: early == {4}) == {4}
    assert choose_early_launches((4,), lambda early: False) == frozenset()
