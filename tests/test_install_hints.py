"""Commands that install what is missing name packages that exist: this package itself is on no index."""

from __future__ import annotations

import tomllib
from importlib import metadata

import pytest

from mirage_formal.support.resources import install_command
from tests.kit.paths import REPOSITORY


def test_the_packages_of_an_extra_are_named() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    names = {line.split(">")[0].split("=")[0] for line in extras["torch"]}
    assert names == {"torch"}
    assert install_command("torch").startswith("pip install 'torch>=")
    assert "cupy-cuda13x" in install_command("cuda13")
    assert "z3-solver" in install_command("")
    assert "torch" not in install_command("")


def test_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", missing)
    assert install_command("torch") == "pip install -e '.[torch]'"


def test_no_message_names_a_package_that_is_on_no_index() -> None:
    for path in (REPOSITORY / "mirage_formal").rglob("*.py"):
        assert "install mirage_formal" not in path.read_text(encoding="utf-8"), path
        assert "install 'mirage_formal" not in path.read_text(encoding="utf-8"), path
