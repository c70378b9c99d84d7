"""What tests of the Python interface share."""

from __future__ import annotations

import os

import pytest

from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH


@pytest.fixture
def searched_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store for all tests of one session, in all of its processes: of programs that several tests search, the first
    is searched and the others are recalled, their proofs replayed.
    """
    root = tmp_path_factory.getbasetemp()
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv(
        STORE_VARIABLE, str((root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "searched-once")
    )
