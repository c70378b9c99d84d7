"""Decoder layers of transformers: imported whole, equal to the module at small sizes, and imported at real ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
pytest.importorskip("transformers", reason="transformers is not installed: make test-torch installs it")

import torch

import mirage_formal as mf
from mirage_formal.graph.graph import Op
from tests.kit.torch.comparison import compare
from tests.kit.torch.random_layers import FAMILIES, REAL, Sizes, arguments, function_of, layer, layer_of

CASES = [(family, attention, past) for family in FAMILIES for attention in ("eager", "sdpa") for past in (0, 12)]


@pytest.mark.parametrize(("family", "attention", "past"), CASES)
def test_small_layers_are_what_torch_computes(family: str, attention: str, past: int) -> None:
    sizes = Sizes(batch=2 if past else 1, past=past)
    torch.manual_seed(0)
    module = layer(family, attention, sizes, torch.float32, "cpu")
    given = arguments(sizes, torch.float32, "cpu", booleans=attention == "sdpa")
    found = mf.from_torch(module, given)
    assert found.graph is not None, found.report()
    assert found.left == ()
    assert found.ahead == ()
    # transformers rounds to float32 in norms, in float64 as well.
    compare(found, module.double(), given, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_small_layers_of_narrow_types_have_no_casts(family: str, dtype: torch.dtype) -> None:
    sizes = Sizes(tokens=5, masked=False)
    torch.manual_seed(1)
    module = layer(family, "sdpa", sizes, dtype, "cpu")
    given = arguments(sizes, dtype, "cpu")
    found = mf.from_torch(module, given)
    assert found.graph is not None
    assert "cast" not in [op.kind.value for op in found.regions[0].program.ops if isinstance(op, Op)]
    assert any("the identity" in note.text for note in found.notes)
    assert "constant" in found.bindings.values()  # is_causal
    compare(found, module.double(), given, 1e-5)


@pytest.mark.parametrize(("family", "attention", "past"), CASES)
def test_layers_of_real_sizes_are_imported_whole(family: str, attention: str, past: int) -> None:
    sizes = Sizes(REAL.batch, REAL.tokens, 4096 if past else 0, REAL.heads, REAL.groups, REAL.head, REAL.inner)
    module = layer(family, attention, sizes, torch.float16, "meta")
    found = mf.from_torch(module, arguments(sizes, torch.float16, "meta"))
    assert found.graph is not None, found.report()
    imported = set(found.regions[0].nodes)
    checks = {note.node for note in found.notes if "asserts" in note.text}
    called = {node.name for node in found.module.graph.nodes if node.op == "call_function"}
    assert called == imported | checks | set(found.regions[0].views) | set(found.views)
    assert {what.split()[0] for what in found.bindings.values()} == {"parameter", "argument"}
    # Between operators, nothing is copied but for cos, sin and the heads of a prompt.
    kinds = [op.kind.value for op in found.regions[0].program.ops if isinstance(op, Op)]
    assert kinds.count("transpose") == (1 if past else 4)
    assert kinds.count("rms_norm") == (4 if family == "qwen3" else 2)
    assert "cast" not in kinds


def test_a_static_cache_leaves_only_its_update_to_torch() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, cache: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, place, k)
        return torch.nn.functional.scaled_dot_product_attention(q, cache, cache)

    given = (torch.randn(1, 4, 1, 8), torch.randn(1, 4, 1, 8), torch.randn(1, 4, 16, 8), torch.tensor([3]))
    found = mf.from_torch(attention, given)
    assert [item.operator for item in found.left] == ["aten.index_copy.default"]
    assert found.writes == ("argument 3",)
    assert len(found.regions) == 1


def test_rotary_embeddings_in_the_module_are_left_and_named() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2
    )
    config.vocab_size = 64
    module = LlamaModel(config).eval()
    found = mf.from_torch(module, (), {"inputs_embeds": torch.randn(1, 8, 32), "use_cache": False})
    left = {item.operator for item in (*found.left, *found.ahead)}
    assert {"aten.cos.default", "aten.sin.default"} <= left
    assert found.graph is not None, found.report()
    compare(found, lambda x: module.double()(inputs_embeds=x, use_cache=False)[0], (torch.randn(1, 8, 32),), 1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_random_layers(seed: int) -> None:
    """``python -m tests.kit.torch.random_layers 200`` tries more of them."""
    layer_of(seed)


@pytest.mark.parametrize("seed", range(20))
def test_random_functions(seed: int) -> None:
    function_of(seed)
