"""An introduction to ``mirage_formal/run_directory``: files of a run are known by name, all others stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_formal.run_directory.directory_layout import RUN, clear, list_contents
from mirage_formal.support.errors import RunError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that looks like that of a run."""
    candidate = tmp_path / "candidates" / "001-0123456789ab"
    candidate.mkdir(parents=True)
    for path in (tmp_path / "run.json", candidate / "mugraph.json"):
        path.write_text("{}")
    return tmp_path


def test_files_of_a_run_are_listed_with_inner_directories_first(root: Path) -> None:
    found = list_contents(root, RUN)
    assert [path.name for path in found.files] == ["mugraph.json", "run.json"]
    assert [path.name for path in found.folders] == ["001-0123456789ab", "candidates"]
    assert found.foreign == ()


def test_a_run_is_removed_as_a_whole(root: Path) -> None:
    clear(root, RUN)
    assert list(root.iterdir()) == []


def test_nothing_is_removed_beside_a_file_of_the_user(root: Path) -> None:
    (root / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"thesis\.txt: nothing was removed"):
        clear(root, RUN)
    assert (root / "run.json").exists()
