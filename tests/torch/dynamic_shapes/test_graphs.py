"""torch.compile with extents that Dynamo does not know: a search for each bucket, and no compilation for a length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

import torch.nn.functional as F  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH  # noqa: E402
from mirage_formal.graph.canonical import digest  # noqa: E402
from mirage_formal.torch.dynamic_shapes.bucket_search import ShapesReport  # noqa: E402
from mirage_formal.torch.dynamic_shapes.dynamic_extents import Buckets  # noqa: E402
from mirage_formal.torch.modules import backend, region_search  # noqa: E402
from mirage_formal.torch.modules.optimize import FallbackWarning  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs that are searched."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found: list[Any] = []
    real = vars(region_search)["search_into_store"]

    def counted(graph: Any, given: Any) -> Any:
        found.append(graph)
        return real(graph, given)

    monkeypatch.setattr(region_search, "search_into_store", counted)
    yield found
    torch._dynamo.reset()


def compiled(function: Any, place: Path, **more: Any) -> Any:
    given = {"rest": "eager", "workers": 1, "time_limit": 400, "out": place, "cache": False, **more}
    return torch.compile(function, backend=backend.mirage_formal, options=given, fullgraph=True)


def varying(tensor: Any) -> Any:
    """A tensor of which Dynamo shall not know the second extent."""
    torch._dynamo.mark_dynamic(tensor, 1)
    return tensor


def step(x: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """One token, appended to a cache."""
    k, v = torch.cat([k, x], 1), torch.cat([v, torch.tanh(x)], 1)
    return F.scaled_dot_product_attention(x, k, v), k, v


def test_a_decode_loop_with_a_growing_cache(searches: list[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    mine: Any = (varying(torch.randn(1, 3, 4)), varying(torch.randn(1, 3, 4)))
    theirs = mine
    run = compiled(step, tmp_path, shapes=(1, 32, 16))
    counts = []
    with torch.no_grad():
        for _ in range(28):
            x = torch.randn(1, 1, 4)
            y, *mine = run(x, *mine)
            z, *theirs = step(x, *theirs)
            torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
            counts.append(len(searches))
    assert len(searches) == 2  # cached are 4 to 31
    assert counts == [1] * 13 + [2] * 15
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    report = backend.REPORTS[-1]
    assert isinstance(report, ShapesReport)
    assert [bucket.lengths for bucket in report.buckets if bucket.lengths] == [(16,), (32,)]
    assert {item.operator for item in report.left} == {"aten.cat.default"}


def test_a_length_outside_is_said_once(searches: list[Any], tmp_path: Path) -> None:
    run = compiled(lambda x, k: F.scaled_dot_product_attention(x, k, k), tmp_path, shapes=(1, 8, 8))
    x = torch.randn(1, 2, 4)
    with torch.no_grad():
        run(x, varying(torch.randn(1, 6, 4)))
        keys = [torch.randn(1, length, 4) for length in (9, 11)]
        with pytest.warns(FallbackWarning, match="got 9 in 1 to 8 in steps of 8") as said:
            found = [run(x, k) for k in keys]
        for mine, k in zip(found, keys, strict=True):
            torch.testing.assert_close(mine, F.scaled_dot_product_attention(x, k, k))
    assert len([item for item in said if item.category is FallbackWarning]) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_static_cache_is_one_program(searches: list[Any], tmp_path: Path) -> None:
    def write(x: Any, cache: Any, place: Any, kept: Any) -> Any:
        cache.index_copy_(1, place, x)
        return F.scaled_dot_product_attention(x, cache, cache, attn_mask=kept)

    given = {"rest": "eager", "workers": 1, "time_limit": 400, "out": tmp_path, "cache": False}
    run = torch.compile(write, backend=backend.mirage_formal, options=given, fullgraph=True)
    mine, theirs = torch.zeros(1, 24, 4), torch.zeros(1, 24, 4)
    with torch.no_grad():
        for at in range(24):
            x, place, kept = torch.randn(1, 1, 4), torch.tensor([at]), torch.arange(24)[None] <= at
            torch.testing.assert_close(run(x, mine, place, kept), write(x, theirs, place, kept), rtol=1e-4, atol=1e-5)
    assert len(searches) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_numbers_that_are_no_extents_stay_with_torch(searches: list[Any], tmp_path: Path) -> None:
    run = compiled(lambda x, n: torch.relu(x * 2) + n, tmp_path, time_limit=0.1)  # no search
    assert torch.equal(run(torch.ones(4, 4), 5), torch.full((4, 4), 7.0))
    before = len(searches)
    with pytest.warns(UserWarning, match="stays with torch"):
        assert torch.equal(run(torch.ones(4, 4), 6), torch.full((4, 4), 8.0))
    assert len(searches) == before


def test_mistakes_are_said() -> None:
    module = torch.fx.symbolic_trace(torch.nn.Linear(4, 4))
    with pytest.raises(mf.ShapeError, match="lowest <= highest"):
        backend.mirage_formal(module, [torch.zeros(1, 4)], options={"shapes": (4, 2, 1)})


@pytest.mark.slow
def test_generate_with_a_dynamic_cache(searches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 tokens of a Llama with random weights.

    Two graphs have the same small region; it is asked for by both, as the first has less time for it.
    """
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1
    )
    config.vocab_size = 64
    model = transformers.LlamaForCausalLM(config).eval()
    given = {"max_new_tokens": 64, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    prompt = torch.randint(3, 64, (1, 5))
    wanted = model.generate(prompt, **given)
    shapes = Buckets(1, 256, 32)
    run = {"rest": "eager", "workers": 1, "time_limit": 600, "shapes": shapes}
    model.forward = torch.compile(model.forward, backend=backend.mirage_formal, options=run)
    found = model.generate(prompt, **given)
    assert torch.equal(found, wanted)
    compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compilations - 1 <= 2  # a prompt, a token, a token at any length
    assert len({digest(program) for program in searches}) <= len(shapes.uppers())
    report = backend.REPORTS[-1]
    assert isinstance(report, ShapesReport)
    long = [bucket for bucket in report.buckets if bucket.lengths]
    assert [bucket.lengths for bucket in long] == [(32,), (64,), (96,)]
    assert any(region.kept == "" for bucket in long if bucket.report for region in bucket.report.regions)
    before = len(searches), compilations
    assert torch.equal(model.generate(prompt, **given), wanted)
    assert (len(searches), torch._dynamo.utils.counters["stats"]["unique_graphs"]) == before
