"""At which level of the µGraph a search prunes: what is counted is what was dropped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mirage_formal.records import LEVELS
from mirage_formal.search.engine_interface import SearchOptions, Stats, counts_by_reason
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.exhaustive.block_enumeration import BlockSearch
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.guided.saturation import PRUNED, Closure, Saturator
from mirage_formal.search.space import load_space
from tests.search.guided.test_guided import rms_linear

#: What each engine prunes, by level.
KNOWN = {
    "exhaustive": {"kernel": {"shape", "expression", "use", "order", "memory"},
                   "block": {"shape", "expression", "use", "grid", "memory"}},
    "guided": {"kernel": {"copy", "filter", "parts"}, "block": {"expression", "diagonal"}},
}  # fmt: skip


def counted(engine: Any, program: Any, space: Any, options: SearchOptions) -> Stats:
    units = engine.units(program, space, options)
    return sum((engine.run(program, space, options, unit).stats for unit in units), Stats())


def exhaustive(**options: Any) -> Stats:
    space = load_space("tiny").with_overrides(max_block_ops=2)
    return counted(ExhaustiveEngine(), rms_linear(2, 4, 6), space, SearchOptions(engine="exhaustive", **options))


def guided(**options: Any) -> Stats:
    return counted(GuidedEngine(), rms_linear(2, 4, 6), load_space("norm"), SearchOptions(**options))


@pytest.mark.parametrize(("name", "run"), [("exhaustive", exhaustive), ("guided", guided)])
def test_levels_have_their_reasons_and_make_up_the_whole(name: str, run: Any) -> None:
    stats = run()
    assert list(stats.pruned_at) == [level for level in LEVELS if level in stats.pruned_at]
    assert set(stats.pruned_at) == {"kernel", "block"}  # thread graphs are put together by a rule
    for level, reasons in stats.pruned_at.items():
        assert set(reasons) <= KNOWN[name][level]
        assert all(reasons.values())
    assert counts_by_reason(stats.pruned_at) == stats.pruned
    assert "expression" in stats.pruned_at["block"]


def test_guided_search_counts_the_classes_that_it_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as lie in the closures with no number, each of one closure once."""
    made: list[Closure] = []
    close = Saturator.close

    def kept(self: Saturator, *arguments: Any) -> Closure:
        made.append(close(self, *arguments))
        return made[-1]

    monkeypatch.setattr(Saturator, "close", kept)
    stats = guided()
    assert len(made) > 10
    dropped = sum(number == PRUNED for closure in made for number in closure.index.values())
    assert sum(stats.pruned_at["block"].values()) == dropped > 100
    assert stats.classes == sum(len(closure.classes) for closure in made)


def test_without_pruning_by_expression_none_is_counted() -> None:
    assert "expression" not in exhaustive(prune=False).pruned
    assert "diagonal" not in guided(off=frozenset({"diagonal"})).pruned


def test_the_exhaustive_engine_says_at_which_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels of its own there is nothing to prune in blocks."""
    seen: Counter[str] = Counter()
    whole = exhaustive()
    monkeypatch.setattr(BlockSearch, "block_graphs", lambda *_: seen.update(opened=1) or iter(()))
    only = exhaustive()
    assert seen["opened"] > 0
    assert set(only.pruned_at) == {"kernel"}
    assert only.pruned_at["kernel"]["shape"] == whole.pruned_at["kernel"]["shape"]
