"""The process that times kernels may die, hang or talk: one job is lost, the others go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from mirage_formal.errors import UnsupportedError
from mirage_formal.run.tuned.child import Answer, Job
from mirage_formal.run.tuned.timing import Child

_SCRIPT = """
import json, os, sys, time
print("a library says hello")
print(json.dumps({"device": "Test", "arch": "sm_80", "driver": 1}), flush=True)
for line in sys.stdin:
    for job in json.loads(line)["jobs"]:
        if job["variant"] == 1:
            os._exit(5)
        if job["variant"] == 2:
            time.sleep(60)
        print("a library says more")
        print(json.dumps({"us": job["piece"], "low": 1.0}), flush=True)
"""


def child(tmp_path: Path, script: str = _SCRIPT) -> Child:
    path = tmp_path / "child.py"
    path.write_text(script)
    return Child((sys.executable, str(path)), silence_s=3.0)


def test_one_that_dies_or_hangs_costs_its_own_job(tmp_path: Path) -> None:
    jobs = [Job(1, 0), Job(2, 1), Job(3, 0), Job(4, 2), Job(5, 0)]
    with child(tmp_path) as device:
        found = list(device.run(None, tmp_path, jobs, time.monotonic() + 60))
    assert [job for job, _ in found] == jobs
    assert [answer.us for _, answer in found] == [1.0, 0.0, 3.0, 0.0, 5.0]
    assert "ended" in found[1][1].failed
    assert "hung" in found[3][1].failed


def test_the_deadline_ends_it(tmp_path: Path) -> None:
    begin = time.monotonic()
    with child(tmp_path) as device:
        found = list(device.run(None, tmp_path, [Job(1, 0), Job(4, 2), Job(5, 0)], begin + 2.0))
    assert [answer for _, answer in found] == [Answer(1.0, 1.0)]


def test_orders_follow_one_another_in_one_process(tmp_path: Path) -> None:
    device = child(tmp_path)
    assert device.machine.driver == 1
    first = device._process
    for number in range(3):
        found = list(device.run(None, tmp_path, [Job(number, 0), Job(7, 0)], time.monotonic() + 60))
        assert [answer.us for _, answer in found] == [number, 7.0]
    assert device._process is first
    answers = device.run(None, tmp_path, [Job(1, 0), Job(2, 0)], time.monotonic() + 60)
    assert next(answers)[1].us == 1.0
    assert isinstance(answers, Generator)
    answers.close()  # as an interrupt does: the answer to the second job is not taken for one to the next order
    found = list(device.run(None, tmp_path, [Job(9, 0)], time.monotonic() + 60))
    assert [answer.us for _, answer in found] == [9.0]
    device.close()


def test_the_machine_is_asked_once(tmp_path: Path) -> None:
    device = child(tmp_path)
    assert (device.machine.device, device.machine.arch) == ("Test", "sm_80")
    (tmp_path / "child.py").unlink()
    assert device.machine.driver == 1
    device.close()


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="expected a GPU and CuPy, got none"):
        _ = child(tmp_path, "raise SystemExit(1)").machine
