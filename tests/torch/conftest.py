"""What torch says of its own code is no fault of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Deprecations that torch 2.13 meets in itself: in torch.export, and where Inductor first loads torch.utils.mkldnn.
OWN = (
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let these pass; every other warning stays an error."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for one in OWN:
                item.add_marker(pytest.mark.filterwarnings(one))
