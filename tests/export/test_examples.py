"""An introduction to ``mirage_formal/export``: a candidate as a folder, and its launches as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mirage_formal.export.built_candidate import BuiltCandidate, load_built_candidate
from mirage_formal.export.folder import export_candidate
from mirage_formal.export.launch_table import launch_table
from mirage_formal.export.stored_test import stored_test


@pytest.fixture(scope="module")
def candidate(built_runs: Mapping[str, Path]) -> BuiltCandidate:
    return load_built_candidate(built_runs["attention"], 2)


def test_a_candidate_is_read_after_everything_about_it_was_checked(candidate: BuiltCandidate) -> None:
    assert candidate.name == "attention"
    assert candidate.verdict.kind == "equivalent"
    assert candidate.stored.bound
    assert candidate.architectures == ("sm_80", "sm_90a")


def test_a_launch_table_says_where_each_argument_lies(candidate: BuiltCandidate) -> None:
    table = launch_table(candidate.executable, "attention", ())
    first, second = (launch["arguments"] for launch in table.launches)
    assert [kind for kind, _, _ in first] == ["input"] * 3 + ["workspace"] * 3
    assert [kind for kind, _, _ in second] == ["workspace"] * 3 + ["output"]
    assert first[3:] == second[:3]
    assert {offset % 256 for _, _, offset in first} == {0}


def test_a_test_has_an_exact_value_and_a_tolerance_for_each_element(candidate: BuiltCandidate) -> None:
    test = stored_test(candidate.executable)
    q, k, v = (array.astype(np.float64) for array in test.inputs)
    weights = np.exp(q @ k)
    wanted = weights @ v / weights.sum(axis=2, keepdims=True)
    assert np.allclose(test.values[0], wanted.reshape(-1), rtol=1e-12)
    assert (test.tolerances[0] > 0).all()


def test_a_folder_holds_all_that_its_kernels_need(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    made = export_candidate(built_runs["attention"], "cuda", tmp_path / "out")
    assert made.remarks == ()
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert (len(files), sum(path.stat().st_size for path in files)) == (made.files, made.bytes)
