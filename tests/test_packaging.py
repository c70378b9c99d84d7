"""The wheel: only the package lands in site-packages, with its data, and it runs from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clock import HUNG_S

REPOSITORY = Path(__file__).resolve().parent.parent

PROBE = """
import mirage_formal
from mirage_formal.gpu.target import load_target
from mirage_formal.ir.serialize import to_json
from mirage_formal.resources import data_dir
from mirage_formal.search.space import load_space, preset_names
from mirage_formal.smt.axioms import load
print(mirage_formal.__file__)
print(data_dir("axioms"), len(load().axioms) > 10, load_space("attention").keep > 0, load_target("h200").sms)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the wheel is installed, without its dependencies."""
    root = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(root), str(REPOSITORY)]
    subprocess.run(built, check=True, cwd=root, timeout=HUNG_S)
    [wheel] = root.glob("*.whl")
    target = root / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
    return target


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=site.parent, env=environment, timeout=HUNG_S
    )


def test_only_the_package_is_installed(site: Path) -> None:
    names = {path.name for path in site.iterdir()}
    assert names - {"bin"} == {"mirage_formal", "mirage_formal-0.1.0.dist-info"}
    files = {str(path.relative_to(site / "mirage_formal")) for path in (site / "mirage_formal").rglob("*.*")}
    assert {
        "py.typed",
        "_data/axioms/equivalence.smt2",
        "_data/search/attention.toml",
        "_data/gpu/targets/h200.toml",
    } <= files
    assert not any(name.startswith("_data/") and name.endswith((".py", ".pyc")) for name in files)


def test_it_runs_from_there_with_its_own_data(site: Path) -> None:
    done = python(site, "-c", PROBE)
    assert done.stderr == ""
    where, data = done.stdout.splitlines()
    assert where == str(site / "mirage_formal" / "__init__.py")
    assert data == f"{site / 'mirage_formal' / '_data' / 'axioms'} True True 132"


def test_the_command_is_installed(site: Path) -> None:
    done = python(site, str(site / "bin" / "mirage-formal"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "search" in done.stdout
    assert "check" in done.stdout


def test_a_checkout_uses_its_own_data() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=REPOSITORY, timeout=HUNG_S)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == f"{REPOSITORY / 'axioms'} True True 132"
