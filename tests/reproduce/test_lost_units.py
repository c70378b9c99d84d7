"""A unit that no worker survives is counted, and its row is not taken for complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirage_formal.reproduce import search_variants
from mirage_formal.reproduce.inputs import rmsnorm
from mirage_formal.reproduce.search_variants import ARMS, RowLimits, RowTask, run_row, search_row_unit
from mirage_formal.search.space import load_space
from mirage_formal.workers.dispatch import TaskDone, TaskFailed

SPACE = load_space("tiny").with_overrides(max_block_ops=4)
PROGRAM = rmsnorm(2, 4, 6)


class _Pool:
    """Computes in this process, and loses what ``lost`` numbers."""

    lost: tuple[int, ...] = ()

    def __init__(self, workers: int, *_: Any, **__: Any) -> None:
        assert workers == 1

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, function: Any, tasks: Any, **_: Any) -> Iterator[Any]:
        yield None
        for index, task in reversed(list(enumerate(tasks))):
            if function is search_row_unit and index in self.lost:
                yield TaskFailed(index, "its worker hung and was killed", 3)
            else:
                assert not isinstance(task, RowTask) or task.unit.index == index
                yield TaskDone(index, function(task), 1, 0.0)


def test_lost_units_are_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(search_variants, "Pool", _Pool)
    limits = RowLimits(600.0, 1 << 40)
    whole = run_row("0" * 64, ARMS["exhaustive-1"], PROGRAM, SPACE, limits)
    assert whole.complete
    assert whole.lost == 0
    assert whole.candidates
    monkeypatch.setattr(_Pool, "lost", (0,))
    less = run_row("0" * 64, ARMS["exhaustive-1"], PROGRAM, SPACE, limits)
    assert less.lost == 1
    assert not less.complete
    assert less.states < whole.states
