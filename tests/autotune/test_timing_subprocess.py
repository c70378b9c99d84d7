"""The process that times kernels may die, hang or talk: one job is lost, the others go on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest

from mirage_formal.autotune import timing
from mirage_formal.autotune import timing_subprocess as child_module
from mirage_formal.autotune.timing import TimingProcess
from mirage_formal.autotune.timing_subprocess import GpuMachine, TimingAnswer, TimingJob, TimingOrder, run_triton_job
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.device.measure import Measurement
from mirage_formal.graph.formats.json import to_json
from mirage_formal.records import NumericsRecord, ScaleRecord
from mirage_formal.support.errors import UnsupportedError
from tests.kit.processes import HUNG_S

_SCRIPT = """
import json, os, sys, time
print("a library says hello")
print(json.dumps({"device": "Test", "arch": "sm_80", "driver": 1}), flush=True)
for line in sys.stdin:
    job = json.loads(line)["job"]
    if job["variant"] == 1:
        os._exit(5)
    if job["variant"] == 2:
        time.sleep(60)
    if job["variant"] == 3:
        print(json.dumps({"failed": "an illegal address", "broken": True}), flush=True)
        os._exit(3)
    if job["variant"] == 4:
        time.sleep(0.5)
    print("a library says more")
    print(json.dumps({"us": job["piece"], "low": 1.0}), flush=True)
"""


def child(tmp_path: Path, script: str = _SCRIPT) -> TimingProcess:
    path = tmp_path / "child.py"
    path.write_text(script)
    return TimingProcess((sys.executable, str(path)), silence_s=3.0)


def test_one_that_dies_or_hangs_costs_its_own_job(tmp_path: Path) -> None:
    jobs = [TimingJob(1, 0), TimingJob(2, 1), TimingJob(3, 0), TimingJob(4, 2), TimingJob(5, 0)]
    with child(tmp_path) as device:
        found = list(device.run(None, tmp_path, jobs, time.monotonic() + HUNG_S))
    assert [job for job, _ in found] == jobs
    assert [answer.us for _, answer in found] == [1.0, 0.0, 3.0, 0.0, 5.0]
    assert "ended" in found[1][1].failed
    assert "hung" in found[3][1].failed


def test_one_that_breaks_the_device_costs_its_own_job(tmp_path: Path) -> None:
    """Its process says so and ends; the next job is another process's, and is not to blame."""
    jobs = [TimingJob(1, 0), TimingJob(2, 3), TimingJob(3, 0), TimingJob(4, 3)]
    with child(tmp_path) as device:
        found = list(device.run(None, tmp_path, jobs, time.monotonic() + HUNG_S))
        again = list(device.run(None, tmp_path, [TimingJob(5, 0)], time.monotonic() + HUNG_S))
    assert [(answer.us, answer.failed) for _, answer in found] == [
        (1.0, ""),
        (0.0, "an illegal address"),
        (3.0, ""),
        (0.0, "an illegal address"),
    ]
    assert [answer.us for _, answer in again] == [5.0]


def test_the_deadline_ends_it(tmp_path: Path) -> None:
    jobs = [TimingJob(1, 0), TimingJob(4, 2), TimingJob(5, 0)]
    with child(tmp_path) as device:
        assert device.machine.driver == 1  # its start is no part of the time
        found = list(device.run(None, tmp_path, jobs, time.monotonic() + 2.0))
    assert [answer for _, answer in found] == [TimingAnswer(1.0, 1.0)]


def test_a_job_that_would_pass_the_deadline_is_not_begun(tmp_path: Path) -> None:
    """The process lives on: what it does next needs no new one, whose start takes time of the same limit."""
    with child(tmp_path) as device:
        assert device.machine.driver == 1
        first, jobs = device._process, [TimingJob(number, 4) for number in range(20)]
        found = list(device.run(None, tmp_path, jobs, time.monotonic() + 1.9))
        assert 1 <= len(found) <= 3
        assert device._process is first


def test_a_job_at_work_at_the_deadline_is_awaited_as_long_as_a_start_takes(tmp_path: Path) -> None:
    """Here 1 s for a start and 0.5 s for the job: its answer counts, and the process lives on."""
    with child(tmp_path, "import time; time.sleep(1)" + _SCRIPT) as device:
        assert device.machine.driver == 1
        first = device._process
        assert len(list(device.run(None, tmp_path, [TimingJob(1, 4)], time.monotonic() + 0.1))) == 1
        assert device._process is first
        assert list(device.run(None, tmp_path, [TimingJob(1, 2)], time.monotonic() + 0.1)) == []
        assert device._process is None, "a job that takes longer costs its process"


def test_nothing_waits_for_the_end_of_a_killed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has a GPU takes seconds to end."""
    ended, reap = threading.Event(), timing._reap
    monkeypatch.setattr(timing, "_reap", lambda process: ended.wait(HUNG_S))
    device = child(tmp_path)
    assert device.machine.driver == 1
    process = device._process
    assert process is not None
    begin = time.monotonic()
    device.close()
    assert time.monotonic() - begin < HUNG_S / 2
    reap(process)
    assert process.returncode != 0
    ended.set()


def test_a_launched_process_is_the_one_that_is_used(tmp_path: Path) -> None:
    """Nothing waits for its start, and what it reads first has no answer."""
    script = _SCRIPT.replace(
        'job = json.loads(line)["job"]',
        """order = json.loads(line)
    if order["program"]:
        open(os.path.join(os.path.dirname(__file__), "compiled"), "a").write(order["program"])
        continue
    job = order["job"]""",
    )
    device = child(tmp_path, script)
    device.program = "a program"
    device.launch()
    first = device._process
    found = list(device.run(None, tmp_path, [TimingJob(4, 0)], time.monotonic() + HUNG_S))
    assert [answer.us for _, answer in found] == [4.0]
    assert device._process is first
    assert device.machine.driver == 1
    assert device._process is first, "asking for the machine starts no other"
    device.close()
    assert (tmp_path / "compiled").read_text() == "a program"


def test_a_launch_does_not_wait_for_a_process_that_reads_nothing(tmp_path: Path) -> None:
    """A program may be larger than a pipe; what hangs at its start is killed at the deadline of who asks first."""
    device = child(tmp_path, "import time; time.sleep(600)")
    device.program = "x" * 1_000_000
    begin = time.monotonic()
    device.launch()
    assert list(device.run(None, tmp_path, [TimingJob(4, 0)], begin + 1.0)) == []
    assert device._process is None
    assert time.monotonic() - begin < HUNG_S / 2


@pytest.mark.parametrize("name", ["attn", "mla", "lora", "ntrans", "qknorm"])
def test_the_reference_of_a_program_is_computed_at_small_extents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, so that CuPy has compiled what a comparison of kernels needs; some logits of mla leave float16."""
    from mirage_formal.codegen.numerics import result_comparison

    records: list[NumericsRecord] = []
    check = result_comparison.check
    monkeypatch.setattr(result_comparison, "check", lambda *given, **named: records.append(check(*given, **named)))
    program = next(iter(load_programs(Path(__file__).parents[2] / "examples" / f"{name}.py").values()))
    child_module.compile_reference(to_json(program), numpy)
    assert [record.answer for record in records] == ["undecided" if name == "mla" else "within"]
    assert max(output.elements for scale in records[0].scales for output in scale.outputs) < 1e5


def test_orders_follow_one_another_in_one_process(tmp_path: Path) -> None:
    device = child(tmp_path)
    assert device.machine.driver == 1
    first = device._process
    for number in range(3):
        found = list(device.run(None, tmp_path, [TimingJob(number, 0), TimingJob(7, 0)], time.monotonic() + HUNG_S))
        assert [answer.us for _, answer in found] == [number, 7.0]
    assert device._process is first
    answers = device.run(None, tmp_path, [TimingJob(1, 0), TimingJob(2, 0)], time.monotonic() + HUNG_S)
    assert next(answers)[1].us == 1.0
    assert isinstance(answers, Generator)
    answers.close()  # as an interrupt does: the answer to the second job is not taken for one to the next order
    found = list(device.run(None, tmp_path, [TimingJob(9, 0)], time.monotonic() + HUNG_S))
    assert [answer.us for _, answer in found] == [9.0]
    device.close()


def test_the_machine_is_asked_once(tmp_path: Path) -> None:
    device = child(tmp_path)
    assert (device.machine.device, device.machine.arch) == ("Test", "sm_80")
    (tmp_path / "child.py").unlink()
    assert device.machine.driver == 1
    device.close()


class Files:
    """Triton files that take as long as they have replays, and are right."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def timed(self, directory: Path, file: Path, replays: int) -> Measurement:
        self.asked.append(("time", str(directory), str(file)))
        return Measurement(float(replays), 1.0, 9.0, 0.0, replays, 8, 8)

    def compared(self, directory: Path, file: Path) -> NumericsRecord:
        self.asked.append(("compare", str(directory), str(file)))
        scales = tuple(ScaleRecord(scale=one, seed=0, answer="within", outputs=()) for one in (0.1, 1.0, 8.0))
        return NumericsRecord(candidate="c", device="Test", answer="within", tolerance_lambda=6.0, scales=scales)

    def in_turns(self, directory: Path, file: Path, cuda: Path, replays: int) -> tuple[float, float]:
        self.asked.append(("turns", str(directory), str(file), str(cuda)))
        return 3.0, 4.0


def test_what_is_asked_of_triton_files() -> None:
    files: Any = Files()
    assert run_triton_job(files, TimingJob(-1, -1, 7, "kernels", triton="file.py")) == TimingAnswer(7.0, 1.0)
    assert run_triton_job(files, TimingJob(-1, -1, 7, "kernels", triton="file.py", cuda="other")) == TimingAnswer(
        3.0, 3.0, cuda_us=4.0
    )
    found = run_triton_job(files, TimingJob(-1, -1, 0, "kernels", triton="file.py"))
    assert found.answer == "undecided", "a comparison without outputs says nothing"
    assert found.numerics is not None
    assert [one[0] for one in files.asked] == ["time", "turns", "compare"]
    assert {one[1:3] for one in files.asked} == {("kernels", "file.py")}


def test_orders_about_triton_files_reach_them_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And a failure of one is its own."""
    made: list[Files] = []
    monkeypatch.setattr(child_module, "describe_machine", lambda: GpuMachine("Test", "sm_90a", 1))
    monkeypatch.setattr(child_module, "_triton_runner", lambda: made.append(Files()) or made[-1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        child_module, "compare_and_time", lambda directory, tuning: TimingAnswer(5.0, 5.0, answer="within")
    )
    monkeypatch.setattr(child_module, "_is_device_responding", lambda: True)

    def order(job: TimingJob) -> bytes:
        return msgspec.json.encode(TimingOrder("", str(tmp_path), job)) + b"\n"

    cuda, file = TimingJob(-1, -1, directory="kernels"), TimingJob(-1, -1, 7, "kernels", triton="file.py")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=list(map(order, (cuda, file, file, cuda, file)))))
    assert child_module.main() == 0
    said = [msgspec.json.decode(line, type=TimingAnswer) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [answer.us for answer in said] == [5.0, 7.0, 7.0, 5.0, 7.0]
    assert len(made) == 2, "what it holds for a file is let go for CUDA kernels"


@pytest.mark.parametrize(
    ("there", "environment", "said"),
    [
        ({"torch", "triton"}, "", ("torch of no known version, Triton of no known version", "")),
        ({"torch", "triton"}, "0", ("torch of no known version, Triton of no known version", "")),
        ({"torch", "triton"}, "1", ("", "TRITON_INTERPRET is in the environment")),
        ({"torch"}, "", ("", "triton is not installed")),
        (set(), "", ("", "torch and triton are not installed")),
    ],
)
def test_what_it_has_of_triton(
    there: set[str], environment: str, said: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict.fromkeys(there, object())
    monkeypatch.setattr("mirage_formal.autotune.timing_subprocess.util.find_spec", found.get)
    monkeypatch.setattr(child_module, "_version", lambda *names: "of no known version")
    monkeypatch.setenv("TRITON_INTERPRET", environment)
    assert child_module._triton() == said


def test_a_version_is_that_of_the_first_name_that_is_there() -> None:
    assert child_module._version("none-such", "msgspec") == msgspec.__version__
    assert child_module._version("none-such") == "of no known version"


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="expected a GPU and CuPy, got none"):
        _ = child(tmp_path, "raise SystemExit(1)").machine
