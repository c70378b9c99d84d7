"""The measured programs are the examples' programs, and the command line names a user's mistakes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.reproduce.inputs import WORKLOADS
from mirage_formal.reproduce.output.paper_tables import ARTIFACT_GRAPHS
from tests.kit.paths import REPOSITORY

ROOT = REPOSITORY


def nameless(program: KernelGraph) -> str:
    inputs = tuple(replace(source, name=f"t{i}") for i, source in enumerate(program.inputs))
    return digest(replace(program, inputs=inputs))


@pytest.mark.parametrize("batch", [1, 8])
def test_workloads_are_the_examples(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_BATCH", str(batch))
    files = ("attn", "qknorm", "rmsnorm", "lora", "gated_mlp", "ntrans")
    examples = {nameless(p) for file in files for p in load_programs(ROOT / "examples" / f"{file}.py").values()}
    assert examples == {nameless(build(batch)) for build in WORKLOADS.values()}


def test_the_artifact_s_counts_are_of_known_workloads() -> None:
    assert ARTIFACT_GRAPHS.keys() < WORKLOADS.keys()
    assert all(counts.keys() == {1, 8, 16} for counts in ARTIFACT_GRAPHS.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table5", "--ops", "5,x"], "--ops: expected positive numbers, got '5,x'"),
        (["table5", "--time-limit", "0"], "--time-limit: expected a positive finite number"),
        (["workloads", "--names", "gpt"], "--names: expected one of gqa"),
        (["oracle", "--sample", "-3"], "--sample: expected a whole number from 1 up"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mirage_formal.reproduce", *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
