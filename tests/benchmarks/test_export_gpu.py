"""The script that tests exported folders on a GPU: processes without the package, and a test that has to fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import export_gpu

TEST = """
import sys, numpy
try:
    import mirage_formal
    sys.exit(5)
except ImportError:
    pass
value = numpy.load("expected/0.npy")
print("compared", sys.argv[1])
sys.exit(int({wrong}))
"""


def folder(place: Path, wrong: str) -> Path:
    (place / "expected").mkdir(parents=True)
    np.save(place / "expected" / "0.npy", np.array([1.0, -2.0, 4.0]))
    np.save(place / "expected" / "0-tolerance.npy", np.array([0.1, 0.1, np.nan]))
    (place / "test.py").write_text(TEST.format(wrong=wrong))
    return place


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("value.tolist() != [1.0, -2.0, 4.0]", 0),
        ("0", 1),  # a test that passes whatever is expected
        ("1", 1),
        ("value[2] != 4.0", 1),  # a value without a tolerance is not the one that is changed
    ],
)
def test_the_exit_code_is_0_only_if_right_passes_and_wrong_fails(
    wrong: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder(tmp_path / "a", wrong)
    assert export_gpu.main([str(place), "--ways", "cupy"]) == code
    assert "a: exit code" in capsys.readouterr().out
    assert np.load(place / "expected" / "0.npy").tolist() == [1.0, -2.0, 4.0]


def test_one_wrong_folder_is_enough(tmp_path: Path) -> None:
    right, wrong = folder(tmp_path / "a", "value.tolist() != [1.0, -2.0, 4.0]"), folder(tmp_path / "b", "1")
    assert export_gpu.main([str(right), "--ways", "cupy"]) == 0
    assert export_gpu.main([str(wrong), str(right), "--ways", "cupy"]) == 1
