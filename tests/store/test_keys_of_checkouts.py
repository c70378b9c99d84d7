"""The store's keys where the package is a checkout on the module search path, without metadata."""

from __future__ import annotations

import importlib.metadata

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.records.store_entry import EntryKey
from mirage_formal.run import settings
from mirage_formal.run.result_cache import keys
from mirage_formal.run.settings import Settings, make_job


def test_a_checkout_has_a_version_that_entries_can_be_read_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    monkeypatch.delenv("MIRAGE_FORMAL_NO_CACHE", raising=False)
    keys.installed_code.cache_clear()
    try:
        graph = mf.new_kernel_graph()
        x = graph.new_input((4, 8), mf.float16)
        graph.mark_output(graph.relu(x))
        key = keys.entry_key("answer", make_job(graph.freeze(), Settings()), Settings())
    finally:
        keys.installed_code.cache_clear()
    assert key is not None
    assert msgspec.json.decode(msgspec.json.encode(key), type=EntryKey) == key
    assert settings.versions()["z3-solver"] == "not installed"
