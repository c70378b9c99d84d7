"""Measurements in processes of their own: rows of crashes and kills, continued files, and the tables made of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import mirage_formal as mf
from benchmarks import corpus, fuzz_programs, stages
from benchmarks.in_processes import Ledger, Row, Task, run_tasks
from tests.kit.graphs.corpus_programs import FILES
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

FOUND = Row(
    program="a",
    stage="search",
    ok=True,
    verdict="equivalent",
    seconds=61.0,
    operators=4,
    unfused_kernels=4,
    unfused_us=9.0,
    kernels=2,
    estimate_us=5.0,
)
MORE = Row(
    program="b",
    stage="search",
    ok=True,
    verdict="equivalent",
    unfused_kernels=3,
    unfused_us=5.0,
    kernels=2,
    estimate_us=6,
)
NOTHING = Row(program="c", stage="search", ok=False, kind="nothing", reason="input: a | b\nis read by nobody")


def python(program: str, text: str, stage: str = "search") -> Task:
    return Task(program, stage, (sys.executable, "-c", text))


def said(row: Row) -> str:
    return f"print('noise'); print({msgspec.json.encode(row).decode()!r})"


def test_rows_come_from_processes_that_answer_crash_or_hang(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "results.jsonl")
    tasks = [
        python("a", said(FOUND)),
        python("b", "raise SystemExit('no memory left')"),
        # What it started has to end with it.
        python("c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"),
        python("d", "print('no row')"),
    ]
    shown: list[tuple[int, str]] = []
    begin = time.monotonic()
    run_tasks(tasks, ledger, jobs=2, limit_s=3.0, show=lambda done, row: shown.append((done, row.program)))
    assert time.monotonic() - begin < HUNG_S / 2
    rows = {program: row for (program, _), row in ledger.rows.items()}
    assert msgspec.structs.replace(rows["a"], peak_mib=0.0) == FOUND
    assert (rows["b"].kind, rows["b"].reason) == ("crash", "exit code 1: no memory left")
    assert (rows["c"].kind, rows["c"].reason) == ("killed", "more than 3 s")
    assert rows["c"].peak_mib > 1
    assert rows["d"].kind == "crash"
    assert [done for done, _ in shown] == [1, 2, 3, 4]
    assert {program for _, program in shown} == set("abcd")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_stopped_leaves_no_process(number: int, tmp_path: Path) -> None:
    text = f"""
import sys
from pathlib import Path
from benchmarks.in_processes import Ledger, Task, run_tasks
child = "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
run_tasks([Task("a", "search", (sys.executable, "-c", child))], Ledger(Path({str(tmp_path / "rows")!r})), jobs=1,
          limit_s=1000, show=print)
"""
    parent = subprocess.Popen([sys.executable, "-c", text], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    until = time.monotonic() + HUNG_S
    while not ((tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    parent.send_signal(number)
    assert parent.wait(HUNG_S) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_later_call_does_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ledger = Ledger(path)
    ledger.append(NOTHING)
    ledger.append(FOUND)
    ledger.append(msgspec.structs.replace(NOTHING, ok=True))
    with path.open("ab") as file:
        file.write(b'{"program": "b", "stage": "sea')  # killed while it wrote
    again = Ledger(path)
    assert again.rows["c", "search"].ok
    tasks = [python(program, "") for program in "abc"]
    assert [task.program for task in again.lacks(tasks)] == ["b"]
    assert [task.program for task in again.lacks([python("a", "", "check")])] == ["a"]


def test_the_table_counts_what_was_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results.jsonl")
    failed = Row(program="a", stage="build", ok=False, kind="kernels", reason="no plan")
    more = msgspec.structs.replace(MORE, fewest_kernels=1, fewest_us=4.5)
    for row in (FOUND, more, NOTHING, failed):
        ledger.append(row)
    text = corpus.written(ledger, tmp_path)
    assert corpus.summary([FOUND, more, NOTHING]) == {
        "programs": 3,
        "found": 2,
        "equivalent": 2,
        "at or below unfused": 1,
        "at most half the kernels, the best": 1,
        "at most half the kernels, any": 2,
        "over 60 s": 1,
    }
    assert "| a | 4 | 2 | 4 | 2 | 5.0 | 9.0 | 5.0 | 61.0 | 0 | equivalent |  |" in text
    assert "input: a \\| b is read by nobody" in text
    assert "| build: good of all | 0 of 1 |" in text
    assert "| a | build | kernels | no plan |" in text
    assert (tmp_path / "corpus.md").read_text() == text
    whole = msgspec.json.decode((tmp_path / "corpus.json").read_bytes())
    assert [row["program"] for row in whole["rows"]] == ["a", "a", "b", "c"]


def test_programs_are_chosen_by_name_or_folder() -> None:
    assert len(corpus.files()) == len(FILES)
    assert [path.stem for path in corpus.files(["gpt2_mlp"])] == ["gpt2_mlp"]
    assert {path.parent.name for path in corpus.files(["norm/*"])} == {"norm"}
    assert corpus.files(["nobody"]) == []


def test_a_file_gives_its_program_at_both_sizes() -> None:
    file = FILES["t5_mlp"]
    real, small = stages.program_of(file), stages.program_of(file, small=True)
    assert isinstance(real, mf.Graph)
    assert real.freeze().inputs[0].tensor.shape == (512, 768)
    assert small.freeze().inputs[0].tensor.shape == (16, 32)


def test_failed_programs_are_written_with_their_texts(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    for name in "abc":
        (tmp_path / "programs" / f"{name}.py").write_text(f"# {name}\n")
    text = fuzz_programs.report([FOUND, MORE, NOTHING], tmp_path)
    assert text.startswith("3 programs, 2 failed")
    assert "1 search: nothing" in text
    assert "1 estimated above the program" in text
    failed = (tmp_path / "failed.md").read_text()
    assert "## c: search: nothing" in failed
    assert "# b" in failed
    assert "# a\n" not in failed


@pytest.mark.slow
def test_one_program_through_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--only", "long_matvec", "--out", str(tmp_path), "--time-limit", "3", "--check", "--build", "--emulate"]
    monkeypatch.setattr(sys, "argv", ["corpus", *options])
    assert corpus.main() == 0
    rows = Ledger(tmp_path / "results.jsonl").rows
    assert {stage for _, stage in rows} == {"search", "check", "build", "emulate"}
    assert all(row.ok for row in rows.values())
    assert rows["long_matvec", "search"].peak_mib > 20
