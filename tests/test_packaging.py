"""The wheel and the source archive: what they hold, what they say of themselves, and that the wheel runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

PROBE = """
import mirage_formal
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.formats.json import to_json
from mirage_formal.support.resources import data_dir
from mirage_formal.search.space import load_space, preset_names
from mirage_formal.logic.axioms import load_axioms
from mirage_formal.report.model import ReportModel
from mirage_formal.report.page.html import page
print(mirage_formal.__file__)
print(data_dir("axioms"), len(load_axioms().axioms) > 10, load_space("attention").keep > 0, load_target("h200").sms)
print("The program cannot be read" in page(ReportModel("run", "name", "", "", None)))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, made in this environment: nothing is downloaded."""
    return build(tmp_path_factory.mktemp("dist"))


def build(root: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, as a release builds them: at the time of its commit."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(root)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, check=True, cwd=REPOSITORY, timeout=HUNG_S, capture_output=True, env=environment)
    [wheel], [archive] = root.glob("*.whl"), root.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def site(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the wheel is installed, without its dependencies."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    target = tmp_path_factory.mktemp("wheel") / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(built[0])], check=True)
    return target


def metadata(built: tuple[Path, Path]) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(built[0]) as wheel:
        return message_from_string(wheel.read("mirage_formal-0.1.0.dist-info/METADATA").decode())


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
        "report/page/assets/script.js",
        "report/page/templates/report.html",
        "_data/axioms/equivalence.smt2",
        "_data/search/attention.toml",
        "_data/gpu/targets/h200.toml",
        "_data/docs/schemas/mugraph.schema.json",
        "_data/docs/schemas/run-directory.schema.json",
    } <= files
    assert not any(name.startswith("_data/") and name.endswith((".py", ".pyc")) for name in files)


def test_it_runs_from_there_with_its_own_data(site: Path) -> None:
    done = python(site, "-c", PROBE)
    assert done.stderr == ""
    where, data, shown = done.stdout.splitlines()
    assert where == str(site / "mirage_formal" / "__init__.py")
    assert data == f"{site / 'mirage_formal' / '_data' / 'axioms'} True True 132"
    assert shown == "True"


def test_the_command_is_installed(site: Path) -> None:
    done = python(site, str(site / "bin" / "mirage-formal"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "search" in done.stdout
    assert "check" in done.stdout


def test_the_index_would_take_both_and_the_readme_renders(built: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_two_builds_are_equal(built: tuple[Path, Path], tmp_path: Path) -> None:
    assert [path.read_bytes() for path in build(tmp_path)] == [path.read_bytes() for path in built]


def test_the_wheel_holds_nothing_that_wheels_should_not(built: tuple[Path, Path]) -> None:
    pytest.importorskip("check_wheel_contents", reason="check-wheel-contents is not installed")
    command = [sys.executable, "-m", "check_wheel_contents", "--no-config", str(built[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_licence_is_named_as_pep_639_says_and_is_there(built: tuple[Path, Path]) -> None:
    said = metadata(built)
    assert (said["License-Expression"], said.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert said["License"] is None
    text = (REPOSITORY / "LICENSE").read_bytes()
    assert b"Apache License\n                           Version 2.0, January 2004" in text
    assert b"END OF TERMS AND CONDITIONS" in text
    with zipfile.ZipFile(built[0]) as wheel:
        assert wheel.read("mirage_formal-0.1.0.dist-info/licenses/LICENSE") == text


def test_the_metadata_is_complete(built: tuple[Path, Path]) -> None:
    said = metadata(built)
    assert (said["Author"], said["Author-email"]) == ("mirage_formal contributors", None)
    assert said["Description-Content-Type"] == "text/markdown"
    assert said["Summary"]
    assert said["Keywords"]
    assert said.get_all("Project-URL") is None  # there is no place yet that they could name
    classifiers = said.get_all("Classifier") or []
    assert not any(one.startswith("License") for one in classifiers)  # PEP 639: the expression alone says it
    for wanted in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {wanted}" in classifiers


def test_the_source_archive_has_all_that_a_checkout_has(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    there = {"README.md", "LICENSE", "Makefile", "pyproject.toml"}
    there |= {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "uv.lock", "Dockerfile"}
    for top in ("artifact", "axioms", "benchmarks", "docs", "examples", "gpu", "mirage_formal", "search", "tests"):
        found = {
            path.relative_to(REPOSITORY).as_posix()
            for path in (REPOSITORY / top).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert found, top
        there |= found
    assert there <= held
    assert not any(name.startswith(("runs/", ".venv/", "dist/")) for name in held)


def test_a_checkout_uses_its_own_data() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=REPOSITORY, timeout=HUNG_S)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == f"{REPOSITORY / 'axioms'} True True 132"
