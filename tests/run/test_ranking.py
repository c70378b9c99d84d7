"""Which of the candidates that search found are reported."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.records import FoundRecord, report_order
from mirage_formal.run.ranking import order_by_rounding_error, rank, select_candidates
from tests.kit.runs.unit_records import unit_record


def found(name: str, cost: float, kernels: int = 1) -> FoundRecord:
    return FoundRecord(digest=name * 64, graph=b"", kernels=kernels, estimated_us=cost)


def test_selection_keeps_the_best_of_every_number_of_kernels() -> None:
    ranked = [found("a", 1), found("b", 2), found("c", 3), found("d", 4, 2), found("e", 5, 2), found("f", 6, 3)]
    assert [f.digest[0] for f in select_candidates(ranked, 2)] == ["a", "b", "d", "f"]
    assert [f.digest[0] for f in select_candidates(ranked, 9)] == list("abcdef")


def test_selection_keeps_the_best_of_each_kind() -> None:
    ranked = [found(name, cost) for cost, name in enumerate("abcdef")]
    kinds = [lambda f: f.digest[0] in "ce", lambda f: f.digest[0] == "f", lambda f: False]
    ranked = [*ranked, *(found(name, cost) for cost, name in enumerate("ghijklmn", 6))]
    kinds[1] = lambda f: f.digest[0] == "m"
    assert [f.digest[0] for f in select_candidates(ranked, 3, kinds=kinds)] == ["a", "b", "c"], (
        "a quarter of so few is none"
    )
    assert [f.digest[0] for f in select_candidates(ranked, 4, kinds=kinds)] == ["a", "b", "c", "m"], (
        "in the last one's place"
    )
    assert [f.digest[0] for f in select_candidates(ranked, 8, kinds=kinds)] == [*"abcdefg", "m"]
    assert [f.digest[0] for f in select_candidates(ranked, 14, kinds=kinds)] == list("abcdefghijklmn")


def test_selection_spreads_over_kernels_that_candidates_share() -> None:
    """Of candidates that have a kernel in common an eighth is listed, as long as there are others."""
    parts = {"a": "xp", "b": "xq", "c": "xr", "d": "yp", "e": "ys", "f": "yt", "g": "z", "h": "u"}
    ranked = [found(name, cost) for cost, name in enumerate(parts)]

    def listed(keep: int) -> str:
        return "".join(f.digest[0] for f in select_candidates(ranked, keep, None, lambda f: parts[f.digest[0]]))

    assert listed(4) == "aegh"  # b and c share x with a, d shares p with it, f shares y with e
    assert listed(5) == "abegh"  # the best of the rest fill what is left
    assert listed(16) == "abcdefgh"


def test_of_candidates_that_are_nearly_the_same_the_first_is_listed() -> None:
    """Places go to the next ones in rank, as long as there are any."""
    ranked = [found("a", 1), found("b", 1), found("c", 2), found("d", 3), found("e", 4, 2), found("f", 5, 2)]
    alike = {"a": 1, "b": 1, "c": 2, "d": 1, "e": 3, "f": 3}

    def listed(keep: int) -> str:
        return "".join(f.digest[0] for f in select_candidates(ranked, keep, near=lambda f: alike[f.digest[0]]))

    assert listed(2) == "ace"  # e is the best of two kernels
    assert listed(4) == "abce"
    assert listed(9) == "abcdef"


class _Look:
    """What is known of candidates, and of which of them it was asked for."""

    def __init__(self, known: dict[str, int]) -> None:
        self._known = known
        self.asked: set[str] = set()

    def __call__(self, one: FoundRecord) -> int:
        self.asked.add(one.digest)
        return self._known[one.digest]

    def several(self, one: FoundRecord) -> list[int]:
        return [self(one)]


def _own_places(
    ranked: list[FoundRecord], keep: int, pattern: dict[str, int], kernel: dict[str, int], near: dict[str, int]
) -> set[str]:
    """The candidates that take a place by themselves, chosen with all that can be known of all of them."""
    shown = [near[f.digest] for f in ranked]
    twins = [f for i, f in enumerate(ranked) if shown[i] in shown[:i]]
    first: list[FoundRecord] = []
    for one in [f for f in ranked if f not in twins]:
        same = [f for f in first if pattern[f.digest] == pattern[one.digest]]
        sharing = [f for f in first if kernel[f.digest] == kernel[one.digest]]
        if len(same) < max(1, keep // 4) and len(sharing) < max(1, keep // 8):
            first.append(one)
    rest = [f for f in ranked if f not in first and f not in twins]
    return {f.digest for f in [*first, *rest, *twins][:keep]}


def test_selection_chooses_as_if_all_were_known_of_every_candidate_and_asks_about_few() -> None:
    rng = random.Random(3)
    early = 0
    for _ in range(300):
        ranked = [found(name, cost) for cost, name in enumerate("abcdefghijklmnop")]
        keep, most = rng.randint(1, 16), rng.choice((4, 40))
        near, pattern, kernel = ({f.digest: rng.randrange(most) for f in ranked} for _ in range(3))
        looks = [_Look(of) for of in (pattern, kernel, near)]
        listed = select_candidates(ranked, keep, looks[0], looks[1].several, looks[2])
        assert {f.digest for f in listed} == _own_places(ranked, keep, pattern, kernel, near)
        early += all(len(look.asked) < len(ranked) for look in looks)
    assert early > 50


def test_ranking_is_by_cost_then_digest_and_ignores_the_order_of_units() -> None:
    one, two = unit_record(found("b", 1), found("c", 2)), unit_record(found("a", 1), found("c", 2), unit=1)
    assert [f.digest[0] for f in rank([one, two])] == [f.digest[0] for f in rank([two, one])] == ["a", "b", "c"]


#: Candidates by name, with what is foreseen of each: the scales at which it is outside, and how much it rounds.
GOOD, FINER, UNKNOWN = PredictedNumerics((), 0.5), PredictedNumerics((), 0.25), None
AT_8, EVERYWHERE = PredictedNumerics((8.0,), 0.125), PredictedNumerics((0.1, 1.0, 8.0), 0.125)


@pytest.mark.parametrize(
    ("costs", "foreseen", "order", "looked"),
    [
        ("1 2 3", {"a": GOOD, "b": FINER, "c": FINER}, "abc", "a"),
        ("1 2 3", {"a": AT_8, "b": GOOD, "c": FINER}, "bca", "ab"),
        ("1 2 3", {"a": AT_8, "b": EVERYWHERE, "c": GOOD}, "cab", "abc"),
        ("1 2 3", {"a": UNKNOWN, "b": GOOD, "c": GOOD}, "abc", "a"),
        ("1 2 3", {"a": AT_8, "b": UNKNOWN, "c": GOOD}, "bca", "ab"),
        ("1 1.01 3", {"a": GOOD, "b": FINER, "c": FINER}, "bac", "ab"),
        ("1 1 1", {"a": GOOD, "b": GOOD, "c": GOOD}, "abc", "abc"),
        ("1 1 1 1", {"a": GOOD, "b": GOOD, "c": GOOD, "d": FINER}, "abcd", "abc"),
        ("1 1.01 1.02", {"a": GOOD, "b": AT_8, "c": FINER}, "cab", "abc"),
        ("1 1.03 1.04", {"a": GOOD, "b": FINER, "c": FINER}, "abc", "a"),
        ("1 2 3", {"a": AT_8, "b": AT_8, "c": EVERYWHERE}, "abc", "abc"),
    ],
)
def test_what_is_outside_comes_last_and_of_those_alike_what_rounds_least_comes_first(
    costs: str, foreseen: Mapping[str, PredictedNumerics | None], order: str, looked: str
) -> None:
    ranked = [found(name, float(cost)) for name, cost in zip("abcdef", costs.split(), strict=False)]
    asked: list[str] = []

    def look(one: FoundRecord) -> PredictedNumerics | None:
        asked.append(one.digest[0])
        return foreseen[one.digest[0]]

    got, known = order_by_rounding_error(ranked, look, lambda one: one.digest)
    assert "".join(one.digest[0] for one in got) == order
    assert "".join(asked) == looked
    assert {name[0]: one for name, one in known.items()} == {
        name: one for name in looked if (one := foreseen[name]) is not None
    }
    places = {
        one.digest: (one.estimated_us, *((k.outside, k.rounding) if (k := known.get(one.digest)) else (None, None)))
        for one in got
    }
    assert report_order(places) == list(places)


def test_candidates_that_round_alike_are_looked_at_once() -> None:
    asked: list[str] = []
    ranked = [found(name, 1) for name in "abcd"]

    def look(one: FoundRecord) -> PredictedNumerics:
        asked.append(one.digest[0])
        return GOOD

    order_by_rounding_error(ranked, look, lambda one: one.digest[0] in "ab")
    wide = {"a": AT_8, "c": GOOD}
    order, known = order_by_rounding_error(ranked, lambda one: wide[one.digest[0]], lambda one: one.digest[0] in "ab")
    assert "".join(one.digest[0] for one in order) == "cdab"
    assert [known[one.digest] for one in (order[0], *order[2:])] == [GOOD, AT_8, AT_8]
    assert asked == ["a", "c"]
    assert order_by_rounding_error([], lambda one: GOOD, lambda one: one) == ([], {})
    assert report_order({}) == []
