"""An introduction to ``mirage_formal/workers``: an executor computes tasks in processes that may die."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from mirage_formal.support.errors import ShapeError
from mirage_formal.workers.dispatch import TRIES, TaskDone, TaskFailed
from mirage_formal.workers.pool import Pool


def factorial(n: int) -> int:
    if n < 0:
        raise ShapeError("a user's mistake")
    return math.factorial(n)


def end_process(code: int) -> int:
    os._exit(code)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def test_results_come_with_the_position_of_their_task(pool: Pool) -> None:
    done = [outcome for outcome in pool.run(factorial, [3, 4, 5], limit_s=60) if isinstance(outcome, TaskDone)]
    assert {outcome.index: outcome.value for outcome in done} == {0: 6, 1: 24, 2: 120}


def test_a_task_whose_worker_dies_is_tried_again_and_then_given_up(pool: Pool) -> None:
    (failed,) = [outcome for outcome in pool.run(end_process, [9], limit_s=60) if isinstance(outcome, TaskFailed)]
    assert failed.attempts == TRIES > 1


def test_a_mistake_of_the_user_ends_the_run(pool: Pool) -> None:
    with pytest.raises(ShapeError, match="a user's mistake"):
        list(pool.run(factorial, [-1], limit_s=60))
