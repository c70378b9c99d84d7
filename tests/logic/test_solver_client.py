"""The solvers' process: what it cannot do, and that nothing that happens to it is an answer or an end of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirage_formal.logic import solver_client
from mirage_formal.logic.script import Script, parse_script
from mirage_formal.logic.session import discharge
from mirage_formal.logic.solver_client import _BOOT, SolverProcess, SolverQuery, SolverReply
from tests.kit.processes import HUNG_S, gone

HEAD = "(set-logic QF_UF)\n(declare-const p Bool)\n"
TRUE = parse_script(HEAD + "(assert p)\n(check-sat)\n")
FALSE = parse_script(HEAD + "(assert (not (= p p)))\n(check-sat)\n")
#: Told by its label, so that a changed solver can do something else than to answer.
STRANGE = parse_script(HEAD + "(assert (! p :named strange))\n(check-sat)\n")


def z3(script: Script, timeout_ms: int = 120_000) -> SolverQuery:
    return SolverQuery("z3", script, timeout_ms)


def instead(body: str) -> str:
    """The program of a process whose z3 runs ``body`` where the question is the strange one."""
    before, main = _BOOT.rsplit("\n", 1)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return (
        f"{before}\nimport os, socket, time\nfrom mirage_formal.logic import solver_subprocess\n"
        f"real = solver_subprocess._z3\n"
        f"def strange(question):\n    if 'strange' not in question['text']:\n        return real(question)\n{lines}\n"
        f"solver_subprocess._z3 = strange\n{main.strip()}\n"
    )


@contextmanager
def started(boot: str = _BOOT, **options: float) -> Iterator[SolverProcess]:
    solvers = SolverProcess(boot, **options)  # type: ignore[arg-type]
    try:
        yield solvers
    finally:
        solvers.close()


def unknown(said: SolverReply, reason: str) -> None:
    assert said.answer == "unknown"
    assert reason in said.reason, said.reason
    assert said.version


def test_one_process_answers_many_questions() -> None:
    with started() as solvers:
        assert [said.answer for said in solvers.ask([z3(TRUE), z3(FALSE)] * 20)] == ["sat", "unsat"] * 20
        pid = solvers.pid
        said = solvers.ask([SolverQuery("cvc5", FALSE, 120_000), z3(TRUE)])
        assert [one.answer for one in said] == ["unsat", "sat"]
        assert all(one.version and not one.reason for one in said)
        assert solvers.pid == pid
        assert pid is not None
        assert os.getsid(pid) == pid  # an interrupt of the terminal goes past it
    assert gone([pid])


def test_what_the_parent_holds_wears_no_process_out() -> None:
    """The system counts it as the child's own until the child holds more."""
    script = """
import sys
held = bytearray(700 << 20)
held[:: 4096] = b"x" * len(held[:: 4096])
from mirage_formal.logic.solver_client import SolverProcess, SolverQuery
from mirage_formal.logic.script import parse_script
solvers = SolverProcess()
script = parse_script("(set-logic QF_UF)\\n(declare-const p Bool)\\n(assert p)\\n(check-sat)\\n")
question = SolverQuery("z3", script, 120_000)
pids = {(solvers.ask([question])[0].answer, solvers.pid) for _ in range(3)}
print(len(pids), None in {pid for _, pid in pids})
solvers.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "False"], done.stderr


TRIES = """
import json, resource
place = question["values"][0]
victim, other = place + "/victim", place + "/other"
def attempt(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "done"
found = {
    "write": attempt(lambda: open(victim, "w")),
    "append": attempt(lambda: open(victim, "a")),
    "create": attempt(lambda: open(other, "x")),
    "create here": attempt(lambda: open("other", "w")),
    "read": attempt(lambda: open(victim)),
    "device": attempt(lambda: open("/dev/null", "w")),
    "socket": attempt(lambda: socket.socket()),
    "pipe": attempt(lambda: os.pipe()),
    "more descriptors": attempt(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))),
    "larger files": attempt(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))),
}
return {"version": "1", "reason": json.dumps(found)}
"""


def test_the_process_can_open_no_file(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    with started(instead(TRIES)) as solvers:
        (said,) = solvers.ask([SolverQuery("z3", STRANGE, 120_000, values=(str(tmp_path),))])
        found = json.loads(said.reason)
        limits = Path(f"/proc/{solvers.pid}/limits").read_text()
        environment = Path(f"/proc/{solvers.pid}/environ").read_bytes()
        files = {os.readlink(path) for path in Path(f"/proc/{solvers.pid}/fd").iterdir()}
    assert "done" not in found.values(), found
    assert (tmp_path / "victim").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    for limit in ("Max file size", "Max core file size"):
        assert next(line for line in limits.splitlines() if line.startswith(limit)).split()[3:6][-1] in ("0", "bytes")
    names = {entry.partition(b"=")[0] for entry in environment.split(b"\0") if entry}
    assert names <= {b"LC_ALL", b"MALLOC_ARENA_MAX", b"LD_LIBRARY_PATH"}
    assert all(name.startswith("pipe:") or name == "/dev/null" for name in files)


def test_a_hang_is_unknown_and_the_next_question_is_answered() -> None:
    with started(instead("time.sleep(1000)"), grace_s=0.5) as solvers:
        first, second, third = solvers.ask([z3(TRUE), z3(STRANGE, 100), z3(FALSE)])
        unknown(second, "it did not answer in time, and its process was killed")
        assert (first.answer, third.answer) == ("sat", "unsat")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGXCPU])
def test_a_crash_is_unknown_and_the_next_question_is_answered(number: signal.Signals) -> None:
    with started(instead(f"os.kill(os.getpid(), {int(number)})")) as solvers:
        first, second, third = solvers.ask([z3(TRUE), z3(STRANGE), z3(FALSE)])
        unknown(second, "processor time" if number == signal.SIGXCPU else f"crashed ({number.name})")
        assert (first.answer, third.answer) == ("sat", "unsat")


def forged(text: str) -> Script:
    """A script that was never checked, as none can be made: what z3 and cvc5 do with it does not matter to us."""
    script = object.__new__(Script)
    for name, value in (("text", text), ("logic", "QF_UF"), ("assertions", 1)):
        object.__setattr__(script, name, value)
    return script


@pytest.mark.parametrize("count", [300_000, 2_000_000])
def test_what_makes_a_solver_crash_does_not_end_our_process(count: int) -> None:
    """They use up the stack of cvc5 or its memory, as the limits of the process that starts it have it."""
    deep = forged(HEAD + "(assert " + "(not " * count + "p" + ")" * count + ")\n(check-sat)\n")
    z3_said, cvc5_said = discharge(deep, 300_000)
    assert z3_said.answer.value in ("sat", "unknown")
    assert cvc5_said.answer.value == "unknown"
    assert "crashed" in cvc5_said.reason or "out of memory" in cvc5_said.reason
    assert [result.answer.value for result in discharge(FALSE)] == ["unsat", "unsat"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('(set-option :regular-output-channel "x")\n(assert false)\n(check-sat)\n', "expected a command"),
        ('(echo "hello")\n(check-sat)\n', "expected a command"),
        ("(assert false)\n", "expected one answer, got 0"),
        ("(assert false)\n(check-sat)\n(check-sat)\n", "expected one answer, got 2"),
        ("(assert q)\n(check-sat)\n", "q"),
    ],
)
def test_cvc5_takes_no_other_command_and_gives_no_other_answer(text: str, reason: str) -> None:
    with started() as solvers:
        (said,) = solvers.ask([SolverQuery("cvc5", forged(HEAD + text), 120_000)])
        unknown(said, reason)


def test_z3_was_told_what_was_printed() -> None:
    with started() as solvers:
        (said,) = solvers.ask([z3(forged(HEAD + "(assert p)\n(assert false)\n(check-sat)\n"))])
        unknown(said, "it was told 1 assertions and has 2")


def test_memory_beyond_the_bound_is_unknown() -> None:
    hungry = "hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 24))"
    with started(instead(hungry), memory=1 << 28) as solvers:
        first, second, third = solvers.ask([z3(TRUE), z3(STRANGE), z3(FALSE)])
        unknown(second, "out of memory")
        assert (first.answer, third.answer) == ("sat", "unsat")


def test_a_solver_that_uses_up_memory_is_unknown() -> None:
    """The product of two wide numbers as circuits."""
    wide = 1_000
    text = f"(set-logic QF_BV)\n(declare-const x (_ BitVec {wide}))\n(declare-const y (_ BitVec {wide}))\n"
    text += f"(assert (= (bvmul x y) (bvadd (bvudiv x y) (_ bv{2**999 - 1} {wide}))))\n(check-sat)\n"
    with started(memory=1 << 28) as solvers:
        for said in solvers.ask(
            [SolverQuery("z3", parse_script(text), 20_000), SolverQuery("cvc5", parse_script(text), 20_000)]
        ):
            unknown(said, "")
        assert solvers.ask([z3(FALSE)])[0].answer == "unsat"


def test_processor_time_beyond_the_bound_is_unknown() -> None:
    with started(instead("while True:\n    pass"), cpu_s=3) as solvers:
        unknown(solvers.ask([z3(STRANGE, 1_000_000)])[0], "processor time")


@pytest.mark.parametrize(
    "reply",
    [
        "b'x' * 100",
        "b'\\xff' * 8",
        "solver_subprocess.HEADER.pack(4) + b'null'",
        "solver_subprocess.HEADER.pack(2) + b'{}'",
    ],
)
def test_what_is_no_reply_is_unknown(reply: str) -> None:
    with started(instead(f"os.write(4, {reply})\ntime.sleep(1000)"), grace_s=0.5) as solvers:
        said = solvers.ask([z3(STRANGE, 100), z3(FALSE)])
        assert said[0].answer == "unknown"
        assert said[1].answer == "unsat"


@pytest.mark.parametrize("boot", ["raise SystemExit(3)", "import os; os.write(1, b'x' * 100)"])
def test_a_process_that_does_not_start_is_unknown(boot: str) -> None:
    with started(boot) as solvers:
        unknown(solvers.ask([z3(FALSE)])[0], "its process")


def test_without_a_python_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with started() as solvers:
        unknown(solvers.ask([z3(FALSE)])[0], "its process cannot be started")


def test_an_interrupt_is_passed_on_and_the_next_answer_is_of_the_next_question() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with started(instead("time.sleep(2)\nreturn {'version': '1', 'answer': 'unsat'}")) as solvers:
            solvers.ask([z3(TRUE)])
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                solvers.ask([z3(STRANGE)])
            assert solvers.ask([z3(TRUE)])[0].answer == "sat"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def script_of(*lines: str) -> subprocess.Popen[str]:
    """A Python process that asks."""
    head = (
        "import os, sys",
        "from mirage_formal.logic import solver_client",
        "from mirage_formal.logic.solver_client import SolverProcess, SolverQuery",
        "from mirage_formal.logic.script import parse_script",
        f"TRUE, STRANGE = parse_script({TRUE.text!r}), parse_script({STRANGE.text!r})",
    )
    code = "\n".join([*head, *lines])
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_process_ends_with_whoever_started_it() -> None:
    lines = (
        "solvers = SolverProcess()",
        "solvers.ask([SolverQuery('z3', TRUE, 10_000)])",
        "print(solvers.pid, flush=True)",
    )
    with script_of(*lines, "import time; time.sleep(1000)") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
        assert gone([pid])


def test_nothing_is_said_at_the_end_and_a_fork_has_a_process_of_its_own() -> None:
    lines = (
        "import warnings; warnings.simplefilter('error')",
        "def ask(): return solver_client.thread_solvers().ask([SolverQuery('z3', TRUE, 10_000)])[0].answer",
        "assert ask() == 'sat'",
        "before = solver_client.thread_solvers().pid",
        "child = os.fork()",
        "assert ask() == 'sat'",
        "assert (solver_client.thread_solvers().pid == before) == (child != 0)",
        "if child: assert os.waitpid(child, 0)[1] == 0",
        "assert ask() == 'sat'",
    )
    with script_of(*lines) as asking:
        output, errors = asking.communicate(timeout=HUNG_S)
        assert (asking.returncode, output, errors) == (0, "", "")


def test_every_thread_has_a_process_of_its_own() -> None:
    import threading

    pids: list[int | None] = []

    def ask() -> None:
        assert solver_client.thread_solvers().ask([z3(FALSE)])[0].answer == "unsat"
        pids.append(solver_client.thread_solvers().pid)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ask()
    assert len(set(pids)) == 2
    assert pids[0] is not None
    assert gone([pids[0]])


def test_a_process_that_was_started_before_answers_as_another() -> None:
    with started() as solvers:
        solvers.start()
        process = solvers.pid
        assert process is not None
        assert [one.answer for one in solvers.ask([z3(TRUE), z3(FALSE)])] == ["sat", "unsat"]
        solvers.start()
        assert solvers.pid == process


def test_a_process_that_cannot_be_started_before_says_so_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/none")
    with started() as solvers:
        solvers.start()
        unknown(solvers.ask([z3(TRUE)])[0], "cannot be started")
