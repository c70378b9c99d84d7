"""Without torch, or with an old one, every entry says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.paths import REPOSITORY

HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize(
    "entry",
    [
        "mf.from_torch(abs, ())",
        "mirage_formal.torch.from_torch(abs, ())",
        "mf.optimize(abs, ())",
    ],
)
def test_entries_without_torch(entry: str) -> None:
    code = f"""{HIDE}
import mirage_formal as mf, mirage_formal.torch
try:
    {entry}
except mf.UnsupportedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert "expected torch, got none" in done.stdout
    assert "pip install 'torch>=" in done.stdout
    assert "<string>" in done.stdout  # the user's line


def test_an_old_torch_is_said() -> None:
    code = """
import sys, types
import mirage_formal as mf
old = types.ModuleType("torch")
old.__version__ = "2.4.1+cpu"
old.__spec__ = types.SimpleNamespace(name="torch")
sys.modules["torch"] = old
try:
    mf.from_torch(abs, ())
except mf.UnsupportedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert "expected torch 2.11 or later, got 2.4.1+cpu" in done.stdout
