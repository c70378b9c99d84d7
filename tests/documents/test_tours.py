"""The tours run as their readers run them: examples/tour.md as a notebook, examples/tour_marimo.py as marimo's app."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import pytest

from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

TOUR = REPOSITORY / "examples" / "tour.md"
MARIMO = REPOSITORY / "examples" / "tour_marimo.py"
#: Runs the app and prints what its cells show, as a browser gets it.
SHOWN = """
import json, runpy, sys
outputs, names = runpy.run_path(sys.argv[1], run_name="tour")["app"].run()
shown = [one._repr_html_() for one in outputs if hasattr(one, "_repr_html_")]
print("SHOWN", json.dumps(shown))
"""
SPLIT = "4096 elements each, are split in 64 × 2 × 32."


@pytest.fixture
def notebook() -> Any:
    """The notebook, as jupytext makes one of the page."""
    return jupytext.read(TOUR)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the notebook's machinery; the notebook itself is another process
def test_the_tours_run_and_show_what_their_text_says(
    notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: the app finds in the store what the notebook has searched."""
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    places = [tmp_path / "notebook", tmp_path / "app"]
    for place in places:
        place.mkdir()
    run_notebook(notebook, places[0])
    run_app(places[1])
    assert all((place / "runs" / "tour.html").is_file() for place in places)


def run_notebook(notebook: Any, place: Path) -> None:
    where = {"metadata": {"path": str(place)}}
    nbclient.NotebookClient(notebook, timeout=HUNG_S, kernel_name="python3", resources=where).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    table, drawn, refuted = (output.data for output in outputs if output.output_type == "execute_result")
    assert table["text/html"].count("<tr>") == 4  # the head; two fused in two kernels, and the best with one
    assert "K x→2" in drawn["image/svg+xml"]
    assert "Different" in refuted["text/html"]
    assert SPLIT in printed
    assert "Candidates established again: 3, of which proved equivalent: 3." in printed
    assert "__global__" in printed
    assert "built\n" in printed  # with a running maximum, or there would be a remark


def run_app(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWN, str(MARIMO)], cwd=place, capture_output=True, text=True, timeout=HUNG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed, _, shown = done.stdout.partition("SHOWN ")
    assert SPLIT in printed
    html = json.loads(shown)
    assert sum("<svg" in one for one in html) == 2  # the program and the best result
    assert sum("3 results, best first" in one for one in html) == 1


def test_the_notebook_is_written_as_jupytext_writes_it(notebook: Any) -> None:
    """Whoever opens and saves it changes nothing but what they changed."""
    kept = {key: value for key, value in notebook.metadata["jupytext"].items() if key != "jupytext_version"}
    assert kept["formats"] == "ipynb,md:myst"
    body = TOUR.read_text(encoding="utf-8").partition("\n---\n")[2]
    assert jupytext.writes(notebook, fmt="md:myst").partition("\n---\n")[2] == body
