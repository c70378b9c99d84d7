"""A question whose solver waited for a processor is asked once more; one that used its time is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_formal.logic import session
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import Satisfiability, run_solvers
from mirage_formal.logic.solver_client import SolverQuery, SolverReply

SCRIPT = parse_script("(set-logic QF_LIA)\n(declare-const x Int)\n(assert (< x x))\n(check-sat)\n")


class Client:
    """A client whose replies are given; ``asked`` has the time limits of each call."""

    def __init__(self, *replies: Sequence[SolverReply]) -> None:
        self.replies = list(replies)
        self.asked: list[list[int]] = []

    def ask(self, questions: Sequence[SolverQuery]) -> Sequence[SolverReply]:
        self.asked.append([one.timeout_ms for one in questions])
        return self.replies.pop(0)


def reply(answer: str, milliseconds: float, processor_ms: float) -> SolverReply:
    return SolverReply(answer, "timeout", milliseconds, processor_ms)  # type: ignore[arg-type]


def test_only_starved_questions_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [reply("unknown", 1010, 300), reply("unknown", 1005, 990), reply("unsat", 1001, 20), reply("unknown", 3, 2)]
    client = Client(first, [reply("unsat", 900, 400)])
    monkeypatch.setattr(session, "thread_solvers", lambda: client)
    found = [result.answer for result, _ in run_solvers([SolverQuery("z3", SCRIPT, 1000)] * 4)]
    assert found == [Satisfiability.UNSAT, Satisfiability.UNKNOWN, Satisfiability.UNSAT, Satisfiability.UNKNOWN]
    assert client.asked == [[1000] * 4, [4000]]


def test_a_question_that_is_starved_twice_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client([reply("unknown", 1010, 300)], [reply("unknown", 4020, 900)])
    monkeypatch.setattr(session, "thread_solvers", lambda: client)
    ((result, _),) = run_solvers([SolverQuery("z3", SCRIPT, 1000)])
    assert result.answer is Satisfiability.UNKNOWN
    assert client.asked == [[1000], [4000]]
