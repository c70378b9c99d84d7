"""A small run with kernels and records of a device, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.run.settings import Settings
from tests.kit.runs import small_runs

#: Three operators with two outputs, which are searched in parts and as a whole.
LAYER = """
import mirage_formal as mf
graph = mf.new_kernel_graph()
x = graph.new_input(dims=(4, 16), dtype=mf.float16)
w = graph.new_input(dims=(16, 16), dtype=mf.float16)
y = graph.matmul(graph.rms_norm(x), w)
graph.mark_output(y)
graph.mark_output(graph.exp(y))
"""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of known candidates, one of them built."""
    root = tmp_path_factory.mktemp("report") / "small"
    small_runs.make(root)
    return root


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole program with covers."""
    root = tmp_path_factory.mktemp("whole")
    (root / "layer.py").write_text(LAYER)
    (layer,) = load_programs(root / "layer.py").values()
    search_or_cover(layer, Settings(workers=1, cache=False), root / "layer", name="layer")
    return root / "layer"
