"""Optimized modules and the store: a second process neither searches nor loads a solver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

import mirage_formal as mf  # noqa: E402
from mirage_formal.api.request import search_into_store  # noqa: E402
from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH, SearchCache  # noqa: E402
from mirage_formal.check.minimal_check import establish_equality  # noqa: E402
from mirage_formal.revalidate import evidence_replay  # noqa: E402
from mirage_formal.run.result_cache import cache_lookup  # noqa: E402
from mirage_formal.support.errors import FormatError  # noqa: E402
from mirage_formal.torch.comparison.candidate_comparison import candidate_fault  # noqa: E402
from mirage_formal.torch.modules import region_search  # noqa: E402
from tests.kit.paths import REPOSITORY  # noqa: E402
from tests.kit.torch.fake_gpu import fake_gpu  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn

#: torch's own modules import z3 where it is installed: here it is not.
FRESH = """
import sys
from importlib.abc import MetaPathFinder

SOLVERS = ("z3", "cvc5", "galois")

class Forbidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in SOLVERS:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Forbidden())
import torch
import mirage_formal as mf
from tests.torch.test_store import module

given = module()
optimized = mf.optimize(*given, time_limit=60)
(region,) = optimized.mirage_report().regions
print(region.candidate, region.evidence)
print([name for name in SOLVERS if name in sys.modules])
"""


def module() -> tuple[Any, tuple[Any, ...]]:
    """A norm and a projection, with what they are called on."""
    torch.manual_seed(0)
    return nn.Sequential(nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48)).eval(), (torch.randn(4, 32),)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    cache_lookup._replayed.clear()
    return tmp_path / "store"


def test_a_second_process_finds_what_the_first_has_searched(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = module()
    first = mf.optimize(model, given, workers=1, time_limit=60)
    (region,) = first.mirage_report().regions
    assert region.candidate is not None, region
    assert region.evidence is not None
    assert region.evidence.is_relative_to(store)
    assert region.evidence.is_dir()
    torch.testing.assert_close(first(*given), model(*given), rtol=1e-4, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]  # nothing is left about
    assert list((store / "parts").iterdir()) == []

    monkeypatch.setattr(region_search, "search_into_store", None)  # nothing is searched
    again = mf.optimize(model, given, workers=1, time_limit=60)
    assert again.mirage_report().regions[0].candidate == region.candidate

    class Renamed(nn.Module):  # type: ignore[misc,name-defined]  # the same program, whose inputs have other names
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = model

        def forward(self, features: Any) -> Any:
            return self.second(self.first(features))

    renamed = mf.optimize(Renamed(), given, workers=1, time_limit=60)
    assert renamed.mirage_report().regions[0].candidate == region.candidate

    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{region.candidate} {region.evidence}", "[]"]
    assert len(SearchCache().entries()) >= 1


def test_without_a_store_the_evidence_lies_where_that_of_a_search_does(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = module()
    found = mf.optimize(model, given, workers=1, time_limit=60, cache=False)
    (region,) = found.mirage_report().regions
    assert region.evidence is not None
    assert region.evidence.parts[0] == "runs"
    assert not store.exists()


def test_on_a_gpu_what_the_store_has_is_measured_within_the_limit(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is searched there, and kernels are built before the first call."""
    model, given = module()
    mf.optimize(model, given, workers=1, time_limit=60)
    told: list[Any] = []

    def fastest(results: Any, root: Path, wanted: Any, device: Any, place: Any = None) -> Any:
        told.append((root.is_dir(), wanted.seconds))
        return list(results)[::-1]

    def none(*_: Any) -> Any:
        raise AssertionError("a search")

    monkeypatch.setattr("mirage_formal.autotune.measured_order.order_by_measurement", fastest)
    monkeypatch.setattr("mirage_formal.partition.search_strategy._search_or_cover_uncached", none)
    monkeypatch.setattr("mirage_formal.api.request.start_workers", none)
    prepared = fake_gpu(monkeypatch)
    found = mf.optimize(model, given, workers=1, time_limit=60)
    ((there, seconds),) = told
    assert there
    assert 13 <= seconds <= 54  # the import has used some of it, and a quarter is theirs
    assert prepared == [0]
    (region,) = found.mirage_report().regions
    assert region.evidence is not None
    assert region.evidence.is_relative_to(store)
    assert list((store / "parts").iterdir()) == []


def test_only_proofs_of_candidates_that_are_tried_are_replayed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are, and the others where none of the first may replace the region."""
    model, given = module()
    first = mf.optimize(model, given, workers=1, time_limit=60).mirage_report().regions[0]
    evidence = first.evidence.parent
    count = len(list(evidence.iterdir()))
    assert count > region_search._REPLAYED
    monkeypatch.setattr(region_search, "search_into_store", None)  # nothing is searched
    replayed: list[str] = []
    establish = establish_equality

    def counted(root: Path) -> Any:
        replayed.append(root.name[4:])
        return establish(root)

    tried: list[Any] = []
    fault = candidate_fault

    def refused(piece: Any, graph: Any) -> str:
        tried.append(graph)
        return "refused" if len(tried) <= region_search._REPLAYED else fault(piece, graph)

    monkeypatch.setattr(evidence_replay, "establish_equality", counted)
    cache_lookup._replayed.clear()
    again = mf.optimize(model, given, workers=1, time_limit=60).mirage_report().regions[0]
    assert (again.candidate, again.evidence) == (first.candidate, first.evidence)
    assert len(replayed) == region_search._REPLAYED
    assert first.candidate[:12] in replayed
    cache_lookup._replayed.clear()
    monkeypatch.setattr(region_search, "candidate_fault", refused)
    other = mf.optimize(model, given, workers=1, time_limit=60).mirage_report().regions[0]
    assert other.candidate not in (None, first.candidate)
    assert len(replayed) == 2 * region_search._REPLAYED + count
    assert len(tried) == len(set(tried))  # those that were refused are not compared again
    del replayed[:], tried[:]
    mf.optimize(model, given, workers=1, time_limit=60)
    assert replayed == []  # this process has replayed all of them


def test_a_candidate_without_a_valid_proof_is_not_installed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that does not hold among those that are replayed first refuses the entry, which is searched again."""
    model, given = module()
    first = mf.optimize(model, given, workers=1, time_limit=60).mirage_report().regions[0]
    searched: list[int] = []
    search, establish = search_into_store, establish_equality

    def counted(*given: Any, **more: Any) -> Any:
        searched.append(1)
        monkeypatch.setattr(evidence_replay, "establish_equality", establish)
        return search(*given, **more)

    def fails(root: Path) -> Any:
        raise FormatError("expected a proof, got none")

    monkeypatch.setattr(region_search, "search_into_store", counted)
    monkeypatch.setattr(evidence_replay, "establish_equality", fails)
    cache_lookup._replayed.clear()
    again = mf.optimize(model, given, workers=1, time_limit=60).mirage_report().regions[0]
    assert searched
    assert again.candidate == first.candidate
