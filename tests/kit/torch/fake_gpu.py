"""A machine that seems to have a GPU: regions are taken to lie there, and nothing is launched."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.run.results.result import Result  # noqa: E402
from mirage_formal.torch.modules import region_search  # noqa: E402


def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that there is a GPU; return the list of devices that results are prepared for from now on."""
    monkeypatch.setattr("mirage_formal.device.runtime.device_count", lambda: 1)
    monkeypatch.setattr(region_search, "device_count", lambda: 1)
    monkeypatch.setattr(region_search, "_device", lambda piece: "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    prepared: list[int] = []
    monkeypatch.setattr(Result, "prepare", lambda self, device: prepared.append(device))
    return prepared
