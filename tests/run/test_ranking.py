"""Which of the candidates that search found are reported."""

from __future__ import annotations

from mirage_formal.records import FoundRecord, UnitRecord
from mirage_formal.run.ranking import rank, select


def found(name: str, cost: float, kernels: int = 1) -> FoundRecord:
    return FoundRecord(digest=name * 64, graph=b"", kernels=kernels, estimated_us=cost)


def test_selection_keeps_the_best_of_every_number_of_kernels() -> None:
    ranked = [found("a", 1), found("b", 2), found("c", 3), found("d", 4, 2), found("e", 5, 2), found("f", 6, 3)]
    assert [f.digest[0] for f in select(ranked, 2)] == ["a", "b", "d", "f"]
    assert [f.digest[0] for f in select(ranked, 9)] == list("abcdef")


def test_selection_spreads_over_kernels_that_candidates_share() -> None:
    """Of candidates that have a kernel in common an eighth is listed, as long as there are others."""
    parts = {"a": "xp", "b": "xq", "c": "xr", "d": "yp", "e": "ys", "f": "yt", "g": "z", "h": "u"}
    ranked = [found(name, cost) for cost, name in enumerate(parts)]

    def listed(keep: int) -> str:
        return "".join(f.digest[0] for f in select(ranked, keep, None, lambda f: parts[f.digest[0]]))

    assert listed(4) == "aegh"  # b and c share x with a, d shares p with it, f shares y with e
    assert listed(5) == "abegh"  # the best of the rest fill what is left
    assert listed(16) == "abcdefgh"


def test_ranking_is_by_cost_then_digest_and_ignores_the_order_of_units() -> None:
    def record(unit: int, *candidates: FoundRecord) -> UnitRecord:
        return UnitRecord(
            key="0" * 64,
            unit=unit,
            label="",
            status="done",
            attempts=1,
            stats={},
            pruned={},
            fingerprint_tests=0,
            candidates=candidates,
            milliseconds=0,
        )

    one, two = record(0, found("b", 1), found("c", 2)), record(1, found("a", 1), found("c", 2))
    assert [f.digest[0] for f in rank([one, two])] == [f.digest[0] for f in rank([two, one])] == ["a", "b", "c"]
