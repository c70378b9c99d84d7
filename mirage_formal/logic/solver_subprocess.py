"""Main program of the solver process: loads z3 and cvc5, limits itself, and answers questions until its pipe ends.

Messages on its two pipes are JSON with the length before it. It is started by logic/solver_client.py, which documents
them. The questions are text that logic/script.py printed.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, Final

HEADER: Final = struct.Struct("<Q")
_ANSWERS: Final = ("sat", "unsat", "unknown")
#: Commands that cvc5 may execute, by the names that its parser gives them.
_COMMANDS: Final = frozenset({"set-logic", "declare-sort", "declare-fun", "declare-const", "define-fun", "assert"})
#: A question that makes both solvers load their lazily loaded parts.
_FIRST: Final = (
    "(set-logic QF_BV)\n(declare-const a (_ BitVec 8))\n(assert (bvult (bvmul a a) (_ bv1 8)))\n"
    "(assert (distinct a (_ bv0 8)))\n(check-sat)\n"
)


def main() -> None:
    """Answer requests until their pipe ends."""
    memory, cpu_s = (int(one) for one in sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # what a library prints goes nowhere, least of all among the replies
        os.dup2(nothing, standard)
    os.close(nothing)
    solvers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"z3": _z3, "cvc5": _cvc5}
    versions = {name: solve({"text": _FIRST, "timeout_ms": 10_000})["version"] for name, solve in solvers.items()}
    set_limits(memory, cpu_s)
    _send(replies, versions)
    while (asked := _receive(requests)) is not None:
        for question in json.loads(asked):
            _send(replies, _answer_question(solvers, question, memory, cpu_s))


def set_limits(memory: int, cpu_s: int) -> None:
    """Limit memory, time and files of this process; called when every library is loaded.

    Sound: afterwards this process can open no file, since all file descriptors that it may have are in use.

    Args:
        memory: Bytes of address space, including those already in use.
        cpu_s: Seconds of processor time for the rest of its life.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    free = os.dup(2)  # the lowest free descriptor
    os.close(free)
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + cpu_s,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: free,
    }
    for which, limit in limits.items():
        hard = resource.getrlimit(which)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(which, (least, least))


def _answer_question(
    solvers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]], question: dict[str, Any], memory: int, cpu_s: int
) -> dict[str, Any]:
    """Return a solver's answer to one question, and whether this process should be replaced."""
    begin, worked = perf_counter(), process_time()
    _renew_cpu_limit(question["timeout_ms"])
    said: dict[str, Any] = {"answer": "unknown", "reason": "", "model": {}}
    failed = False
    try:
        said |= solvers[question["solver"]](question)
    except MemoryError:
        failed, said["reason"] = True, f"{question['solver']}: out of memory, of which it may have {memory >> 20} MiB"
    except Exception as error:  # whatever a solver does wrong, it has not answered
        failed, said["reason"] = True, f"{question['solver']}: {type(error).__name__}: {error}"[:300]
    used = resource.getrusage(resource.RUSAGE_SELF)
    # The parent's memory at the start of this process counts as this one's, until this process uses more.
    large = used.ru_maxrss > _HELD_AT_FIRST and used.ru_maxrss * _RSS_UNIT > memory / 2
    worn = used.ru_utime + used.ru_stime > cpu_s / 2 or large
    times = {"milliseconds": 1e3 * (perf_counter() - begin), "processor_ms": 1e3 * (process_time() - worked)}
    return {**said, **times, "worn": worn or failed}


#: ru_maxrss counts bytes on macOS and KiB elsewhere.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
_HELD_AT_FIRST: Final = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _renew_cpu_limit(timeout_ms: int) -> None:
    """Renew the limit on processor time for one question; several threads of a solver may use it at once.

    It stays one second below the hard limit, at which a process is killed without a message.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = int(used.ru_utime + used.ru_stime) + 2 * timeout_ms // 1000 + 10
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (min(wanted, hard - 1), hard))


def _z3(question: dict[str, Any]) -> dict[str, Any]:
    import z3

    said: dict[str, Any] = {"version": z3.get_version_string()}
    try:
        solver: Any
        if tactics := question.get("tactics"):
            solver = z3.Then(*tactics).solver()
        else:
            solver = z3.Solver()
        solver.set("timeout", question["timeout_ms"])
        solver.from_string(question["text"])
        told, wanted = len(solver.assertions()), question.get("assertions")
        if wanted not in (None, told):
            return {**said, "answer": "unknown", "reason": f"z3: it was told {wanted} assertions and has {told}"}
        answer = str(solver.check())
        if answer not in _ANSWERS:
            return {**said, "answer": "unknown", "reason": f"z3: {answer}"[:300]}
        said["answer"] = answer
        if answer == "unknown":
            said["reason"] = solver.reason_unknown()
        elif answer == "sat" and (names := set(question.get("values", ()))):
            model = solver.model()
            said["model"] = {d.name(): model[d].as_long() for d in model.decls() if d.name() in names}
    except z3.Z3Exception as error:
        reason = error.value.decode("utf-8", "replace") if isinstance(error.value, bytes) else str(error)
        if "out of memory" in reason:
            raise MemoryError(reason) from None
        return {**said, "answer": "unknown", "reason": re.sub(r"\s+", " ", f"z3: {reason}")[:300]}
    return said


def _cvc5(question: dict[str, Any]) -> dict[str, Any]:
    import cvc5

    said: dict[str, Any] = {"version": cvc5.__version__}
    answers: list[str] = []
    solver = cvc5.Solver(cvc5.TermManager())
    try:
        solver.setOption("tlimit-per", str(question["timeout_ms"]))
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, question["text"], "question")
        symbols = parser.getSymbolManager()
        while not (command := parser.nextCommand()).isNull():
            name = command.getCommandName()
            if name == "set-info":
                continue  # told the expected status, cvc5 answers anything else with an error
            if name == "check-sat":
                answers.append(str(command.invoke(solver, symbols)).strip())
            elif name not in _COMMANDS:
                raise RuntimeError(f"expected a command of a question, got {name}")
            elif output := str(command.invoke(solver, symbols)).strip():
                raise RuntimeError(output)
        if len(answers) != 1:
            raise RuntimeError(f"expected one answer, got {len(answers)}")
        if answers[0] not in _ANSWERS:
            raise RuntimeError(answers[0])
    except RuntimeError as error:
        if "bad_alloc" in str(error):
            raise MemoryError(str(error)) from None
        return {**said, "answer": "unknown", "reason": re.sub(r"\s+", " ", f"cvc5: {error}")[:300]}
    return {**said, "answer": answers[0], "reason": "cvc5: it gave up" if answers[0] == "unknown" else ""}


# --- messages --------------------------------------------------------------------------------------------------------


def _receive(source: int) -> bytes | None:
    """Return the next message, None where the pipe has ended."""
    header = _read_exactly(source, HEADER.size)
    return None if header is None else _read_exactly(source, HEADER.unpack(header)[0])


def _read_exactly(source: int, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        more = os.read(source, min(count - len(found), 1 << 20))
        if not more:
            return None
        found += more
    return bytes(found)


def _send(target: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    left = memoryview(HEADER.pack(len(data)) + data)
    while left:
        left = left[os.write(target, left) :]
