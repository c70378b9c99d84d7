"""The examples of modules on the CPU with their small sizes: they compare with the module themselves.

What optimized modules promise holds for each: torch finds nothing wrong with their operators, torch.compile has no
graph break, torch.export keeps the operators, copies and files are the same, and no kernel only copies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.graphs.moves import zeros
from tests.kit.paths import REPOSITORY

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

EXAMPLES = sorted((REPOSITORY / "examples" / "torch").glob("*.py"))
NAMED = {"attention", "llama_layer", "lora_linear", "mlp", "ngpt_layer", "norm_qkv", "qwen3_layer", "training_step"}
LIMIT_S = 300  # searches end before that; one that is cut short may find less
CASES = [(path.stem, ()) for path in EXAMPLES] + [
    ("llama_layer", ("--batch", batch, "--dtype", dtype))
    for batch, dtype in (("8", "float16"), ("1", "bfloat16"), ("8", "bfloat16"))
]


def test_there_are_examples_and_they_are_short() -> None:
    assert {path.stem for path in EXAMPLES} >= NAMED
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40, path


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES))
def test_no_program_of_an_example_makes_a_constant_of_a_tensor(name: str) -> None:
    from mirage_formal.torch import from_torch
    from tests.kit.torch.examples import taken

    regions = from_torch(*taken(name)).regions
    assert regions
    assert not any(zeros(region.program) for region in regions)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), CASES, ids=["-".join([name, *given[1::2]]) for name, given in CASES])
def test_an_example(name: str, given: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.kit.torch.examples", name, "--time-limit", str(LIMIT_S)]
    done = subprocess.run([*command, *given], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert ": equivalent, " in done.stdout
    assert "FallbackWarning" not in done.stderr
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("candidates:"))
    assert re.fullmatch(r"candidates: [1-9]\d* copies: \[\]", said), said
