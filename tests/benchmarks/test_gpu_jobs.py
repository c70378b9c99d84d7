"""Jobs in child processes: what dies, hangs or breaks costs one job, and a later call does what is missing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.gpu_jobs import Job, Ledger, Pool, Result, runs_among
from mirage_formal.kernel_build.triton.triton_output import default_triton_directory
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S, gone

CHILD = """
import os, subprocess, sys, time
from benchmarks.gpu_jobs import serve
device = {"works": True}
def do(job):
    print("noise of a library")
    match job["do"]:
        case "die": os._exit(7)
        case "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            open(job["pid"], "w").write(str(child.pid))
            time.sleep(1000)
        case "fail": raise ValueError("expected 1\\nsecond line")
        case "break":
            device["works"] = False
            raise RuntimeError("device lost")
    if not device["works"]: raise RuntimeError("asked after it broke")
    return {"value": job["value"] * 2, "process": os.getpid(), "extra": os.environ["EXTRA"]}
sys.exit(serve(do, lambda: device["works"]))
"""


def pool(place: Path, *, retry: bool = False) -> tuple[Pool, list[tuple[Job, Result]]]:
    shown: list[tuple[Job, Result]] = []
    ledger = Ledger(place / "ledger.jsonl", retry=retry)
    command = (sys.executable, "-c", CHILD)
    return Pool(command, ledger, {"EXTRA": "x"}, place / "err", lambda job, r: shown.append((job, r))), shown


def work(value: int) -> Job:
    return {"do": "work", "value": value}


def test_what_dies_hangs_or_breaks_costs_one_job(tmp_path: Path) -> None:
    children, shown = pool(tmp_path)
    hang = {"do": "hang", "pid": str(tmp_path / "pid")}
    jobs = [work(1), {"do": "die"}, work(2), hang, work(3), {"do": "fail"}, {"do": "break"}, work(4)]
    begin = time.monotonic()
    children.do(jobs, processes=1, limit_s=3.0, until=begin + HUNG_S)
    assert [job for job, _ in shown] == jobs
    results = [result for _, result in shown]
    assert [r.get("value") for r in results] == [2, None, 4, None, 6, None, None, 8]
    assert results[1]["error"] == "the process ended (7)"
    assert results[3]["error"] == "not finished in 3 s"
    assert results[5]["error"] == "ValueError: expected 1"
    assert results[6]["error"] == "RuntimeError: device lost"
    assert all("broken" not in r for r in results)
    processes = [r["process"] for r in results if "process" in r]
    assert len(set(processes)) == 4  # a failure alone needs no other process, the three others do
    assert results[0]["extra"] == "x"
    assert gone([int((tmp_path / "pid").read_text())])


def test_a_later_call_does_what_is_missing(tmp_path: Path) -> None:
    children, shown = pool(tmp_path)
    children.do([work(1), {"do": "fail"}], processes=2, limit_s=HUNG_S, until=time.monotonic() + HUNG_S)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"job": {"do": "work", "value": 2}, "resu')  # killed while it wrote
    children, shown = pool(tmp_path)
    jobs: list[Job] = [{"value": 1, "do": "work"}, work(2), {"do": "fail"}]
    children.do(jobs, processes=1, limit_s=HUNG_S, until=time.monotonic() + HUNG_S)
    assert [job for job, _ in shown] == [work(2)]
    children, shown = pool(tmp_path, retry=True)
    children.do(jobs, processes=1, limit_s=HUNG_S, until=time.monotonic() + HUNG_S)
    assert [job for job, _ in shown] == [{"do": "fail"}]
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.get(work(2)) is not None
    assert again.get(work(3)) is None


def test_no_job_begins_after_the_end_and_the_one_it_is_at_has_no_answer(tmp_path: Path) -> None:
    children, shown = pool(tmp_path)
    hang = {"do": "hang", "pid": str(tmp_path / "pid")}
    begin = time.monotonic()
    children.do([work(1), hang, work(2)], processes=1, limit_s=HUNG_S, until=begin + 4)
    assert time.monotonic() - begin < HUNG_S / 2
    assert [job for job, _ in shown] == [work(1)]
    assert Ledger(tmp_path / "ledger.jsonl").get(hang) is None


def test_processes_share_the_jobs(tmp_path: Path) -> None:
    children, shown = pool(tmp_path)
    stay = [{"do": "hang", "pid": str(tmp_path / f"pid{i}")} for i in range(2)]
    children.do([*stay, work(1)], processes=3, limit_s=3.0, until=time.monotonic() + HUNG_S)
    assert shown[0][0] == work(1)  # beside the two that hang
    assert len(shown) == 3


def test_the_child_is_imported_from_this_tree() -> None:
    from benchmarks import harness

    assert harness.ROOT == REPOSITORY


def test_triton_files_beside_runs_are_no_runs(tmp_path: Path) -> None:
    run = tmp_path / "attn-b8"
    assert runs_among([run, default_triton_directory(run)]) == [run]
