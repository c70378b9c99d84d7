"""``mirage-formal tools emulate``: candidates and parts of wholes, at smaller extents and their own; no candidates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal.device import emulate as device
from mirage_formal.emulate.__main__ import main
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.records import GRAPH_FILE
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.graphs.workloads import TINY, layers
from tests.kit.paths import REPOSITORY

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((16, 256), name="x"), graph.new_input((256, 512), name="w")
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    out = tmp_path_factory.mktemp("run") / "norm"
    assert len(run_search(graph.freeze(), Settings(config="norm", workers=1, keep=2), out, name="norm").results) == 3
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "layers"
    search_or_cover(layers(), Settings(**TINY), out, name="layers")
    return out


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command: its code, and what it prints."""

    def called(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def edited(run: Path, to: Path, change: Callable[[KernelGraph], KernelGraph]) -> Path:
    """A copy of a run whose best candidate is another graph."""
    shutil.copytree(run, to)
    (file,) = to.glob(f"candidates/001-*/{GRAPH_FILE}")
    file.write_text(to_json(change(from_json(file.read_bytes(), str(file)))), encoding="utf-8")
    return to


def test_the_best_candidate_is_inside(searched: Path, say: Say) -> None:
    code, output, errors = say(searched)
    assert code == 0
    assert errors == ""
    assert "with fewer blocks and iterations" in output
    (row,) = [line for line in output.splitlines() if "001-" in line and "kernel0" in line]
    assert row.count("0.") == 3
    assert "inside" in row
    assert "extents 512 as" in output


def test_json_has_the_records(searched: Path, say: Say) -> None:
    code, output, _ = say(searched, "--candidate", 2, "--seed", 5, "--json")
    assert code == 0
    (row,) = json.loads(output)["result"]
    assert row["name"].startswith("002-")
    assert (row["inside"], row["failure"]) == (True, "")
    assert [(scale["scale"], scale["seed"]) for scale in row["numerics"]["scales"]] == [(0.1, 5), (1, 5), (8, 5)]
    assert all(output["max_ratio"] <= 1 for scale in row["numerics"]["scales"] for output in scale["outputs"])
    assert row["numerics"]["device"] == "emulator"


def test_real_extents_after_an_estimate(searched: Path, say: Say) -> None:
    code, output, errors = say(searched, "--real", "--progress", "bars")
    assert code == 0
    assert " s, by the time at smaller extents" in errors
    assert "at the program's own extents" in output
    assert "extents 512" not in output


def replaced(candidate: KernelGraph, *, grid: int, loop: int, large: bool = False) -> KernelGraph:
    """The product without its norm; or with a function of all weights, which one block would have to hold."""
    graph = mf.new_kernel_graph()
    inputs = [graph.new_input(item.tensor.shape, name=item.name) for item in candidate.inputs]
    block = mf.new_threadblock_graph((grid, 1, 1), (128, 1, 1), loop)
    x, w = block.new_input(inputs[0], (-1, -1, -1), 1), block.new_input(inputs[1], (1, -1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(x, block.exp(w) if large else w)), (1, -1, -1))
    graph.mark_output(graph.customized(inputs, block)[0])
    return graph.freeze()


def test_a_wrong_candidate_is_outside(searched: Path, tmp_path: Path, say: Say) -> None:
    code, output, _ = say(edited(searched, tmp_path / "run", partial(replaced, grid=8, loop=4)))
    assert code == 1
    assert "outside" in output
    assert "times its tolerance" in output


def test_a_candidate_without_kernels_says_why(searched: Path, tmp_path: Path, say: Say) -> None:
    code, output, _ = say(edited(searched, tmp_path / "run", partial(replaced, grid=1, loop=1, large=True)))
    assert code == 1
    assert "failed" in output
    assert "shared memory" in output


def test_a_time_limit(searched: Path, say: Say) -> None:
    code, output, errors = say(searched, "--time-limit", "0.001", "--real", "--progress", "bars")
    assert code == 1
    assert "time limit of 0.001 s" in output
    assert "time limit of 0.001 s" in errors


def test_the_parts_of_a_whole(whole: Path, say: Say) -> None:
    code, output, _ = say(whole)
    assert code == 0
    rows = [line for line in output.splitlines() if "part " in line and "kernel" in line]
    assert len(rows) >= 2
    code, one, _ = say(whole, "--candidate", 1)
    assert code == 0
    assert one.count("inside") == 2  # the row, and what the columns mean
    code, _, errors = say(whole, "--candidate", 99)
    assert code == 2
    assert "expected a part from 1 to " in errors


def test_a_whole_that_leads_elsewhere(whole: Path, tmp_path: Path, say: Say) -> None:
    there = tmp_path / "whole"
    shutil.copytree(whole, there)
    text = (there / "whole.json").read_text(encoding="utf-8")
    (there / "whole.json").write_text(text.replace('"run": "parts/', '"run": "../parts/'), encoding="utf-8")
    code, _, errors = say(there)
    assert code == 2
    assert "expected a directory of the run" in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--candidate", "99"), "expected a candidate of rank 001, 002, 003, got 99"),
        (("--candidate", "0"), "--candidate: expected a whole number from 1 up, got "),
        (("--seed", "-1"), "--seed: expected a whole number from 0 up, got "),
        (("--time-limit", "0"), "--time-limit: expected"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], text: str, searched: Path, say: Say) -> None:
    code, output, errors = say(searched, *arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("error: ")
    assert text in errors
    assert "hint: " in errors


def test_no_run(tmp_path: Path, say: Say) -> None:
    code, _, errors = say(tmp_path)
    assert code == 2
    assert "expected the directory of a run, got none" in errors


def test_no_compiler(searched: Path) -> None:
    environment = {**os.environ, "CXX": "no-such-compiler", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "mirage_formal.emulate", str(searched)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "emulator: expected a C++ compiler, got none" in done.stderr
    assert device._HINT in done.stderr
    assert "Traceback" not in done.stderr
