"""The table of ATen operators: every row has an example, which is imported and compared; docs/torch.md is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from mirage_formal.torch.op_table import LETTERS, ROWS, TorchOperatorRow, rules
from mirage_formal.torch.op_table_docs import document
from tests.kit.graphs.moves import zeros
from tests.kit.paths import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "torch.md"
NAME = re.compile(rf"(?<![\w.'])([pm]?[{''.join(LETTERS)}])(?![\w('])")


def test_the_document_is_the_table() -> None:
    """Run ``python -m mirage_formal.torch.op_table_docs > docs/torch.md`` when this fails."""
    assert DOCUMENT.read_text(encoding="utf-8") == document() + "\n"
    command = [sys.executable, "-m", "mirage_formal.torch.op_table_docs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout == DOCUMENT.read_text(encoding="utf-8")


def test_every_row_is_complete_and_there_once() -> None:
    assert len(rules()) == len(ROWS) > 140
    for row in ROWS:
        assert row.name.startswith("aten.")
        assert row.example
        assert bool(row.means) != bool(row.refused), row.name
        assert NAME.search(row.example), row.name


def tensors(row: TorchOperatorRow) -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
    found = {}
    for name in dict.fromkeys(NAME.findall(row.example)):
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        shape = LETTERS[name[-1]]
        numbers = torch.randn(shape, generator=generator)
        if len(name) == 1:
            found[name] = numbers
        elif name[0] == "p":
            found[name] = numbers.abs() + 0.5
        else:
            found[name] = torch.rand(shape, generator=generator) > 0.4
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_example_of_a_row(row: TorchOperatorRow) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
    from mirage_formal.torch import from_torch
    from tests.kit.torch.comparison import compare

    given = tensors(row)
    code = compile(row.example, row.name, "eval")

    def call(*values: Any) -> Any:
        return eval(code, {"torch": torch, **dict(zip(given, values, strict=True))})

    found = from_torch(call, tuple(given.values()))
    assert row.name in {str(node.target) for node in found.module.graph.nodes}
    if row.refused:
        left = {item.operator: item.reason for item in (*found.left, *found.ahead)}
        assert left[row.name] == row.refused
    else:
        assert found.left == ()
        assert found.graph is not None or row.free
    assert not any(zeros(region.program) for region in found.regions), "a constant is made of a tensor"
    rounded = any(name in row.example for name in ("float16",))
    if "rand_like" not in row.name:
        compare(found, call, tuple(given.values()), 2e-3 if rounded else 1e-6)
