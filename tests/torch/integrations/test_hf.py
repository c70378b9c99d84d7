"""Models of transformers with random weights, whose attention is computed by candidates, against eager attention."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch.nn.functional as F  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402

import mirage_formal as mf  # noqa: E402
from mirage_formal.support.errors import SpaceError  # noqa: E402
from mirage_formal.torch.integrations.attention import NAME, Attention, AttentionWarning  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:no GPU with CuPy"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
CLASSES = {"llama": "Llama", "qwen3": "Qwen3", "gemma": "Gemma"}
BUCKET = 16


def model(family: str, seed: int = 0) -> Any:
    """A model of two layers, with the same heads in every family, so that a shape is searched once."""
    name = CLASSES[family]
    torch.manual_seed(seed)
    config = getattr(import_module(f"transformers.models.{family}"), f"{name}Config")(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=2,
        vocab_size=64,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return getattr(import_module(f"transformers.models.{family}"), f"{name}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attention]:
    """What all tests share; transformers forgets it afterwards."""
    options: dict[str, Any] = {
        "workers": 1,
        "measure": 0,
        "force": True,
        "keep": 1,
        "max_states": 500,
    }  # a short search
    yield mf.hf.register(bucket=BUCKET, out=tmp_path_factory.mktemp("attention"), **options)
    AttentionInterface._global_mapping.pop(NAME)
    AttentionMaskInterface._global_mapping.pop(NAME)


def tokens(*shape: int) -> Any:
    return torch.randint(1, 64, shape, generator=torch.Generator().manual_seed(3))


def both(found: Any, call: Any) -> tuple[Any, Any]:
    """What a call of a model gives with eager attention and with candidates."""
    with torch.no_grad():
        found.set_attn_implementation("eager")
        wanted = call(found)
        found.set_attn_implementation(NAME)
        with warnings.catch_warnings():
            warnings.simplefilter("error", AttentionWarning)
            return wanted, call(found)


@pytest.mark.parametrize("family", CLASSES)
def test_a_model_computes_and_generates_what_it_does_with_eager_attention(family: str, attention: Attention) -> None:
    made = model(family)
    prompt = tokens(1, 7)
    wanted, found = both(made, lambda m: m(prompt).logits)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    wanted, found = both(made, lambda m: m.generate(prompt, max_new_tokens=12, do_sample=False))
    assert found.shape[1] == 19
    assert torch.equal(found, wanted)


def test_a_growing_cache_has_one_program_for_each_bucket(attention: Attention) -> None:
    made = model("llama", 1)
    prompt = tokens(1, 5)
    _, _ = both(made, lambda m: m.generate(prompt, max_new_tokens=2 * BUCKET, do_sample=False))
    decoded = [name for name in attention.reports if name.startswith("[1, 4, 1, 8] float32")]
    assert len(decoded) == -(-(5 + 2 * BUCKET) // BUCKET)
    for name in decoded:
        assert "equivalent" in str(attention.reports[name])
        assert "stays with torch" not in str(attention.reports[name])


def test_a_static_cache(attention: Attention) -> None:
    made = model("qwen3", 2)
    prompt = tokens(1, 6)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    wanted, found = both(made, lambda m: m.generate(prompt, **options))
    assert torch.equal(found, wanted)


def test_prompts_of_several_lengths_with_padding_on_the_left(attention: Attention) -> None:
    made = model("llama", 3)
    prompts = tokens(2, 9)
    mask = torch.ones_like(prompts)
    prompts[0, :4], mask[0, :4] = 0, 0
    wanted, found = both(made, lambda m: m(prompts, attention_mask=mask).logits)
    seen = mask.bool()
    torch.testing.assert_close(found[seen], wanted[seen], rtol=1e-4, atol=1e-5)
    assert found.isfinite().all()
    call = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    wanted, found = both(made, lambda m: m.generate(prompts, **call))
    assert torch.equal(found, wanted)


class Layer(torch.nn.Module):  # type: ignore[misc]  # torch has no types where it is not installed
    """What transformers gives as the module."""

    is_causal = True
    num_key_value_groups = 2


def given(rows: int, columns: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(rows)
    return torch.randn(1, 4, rows, 8), torch.randn(1, 2, columns, 8), torch.randn(1, 2, columns, 8)


def test_a_mask_of_numbers_and_a_scale(attention: Attention) -> None:
    q, k, v = given(1, 13)
    mask = torch.randn(1, 1, 1, 13)
    mask[..., 3] = float("-inf")
    mask[..., 4] = torch.finfo(torch.float32).min
    found, weights = attention(Layer(), q, k, v, mask, scaling=0.3)
    wanted = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert weights is None
    assert "equivalent" in str(attention)


def test_gradients_pass_through(attention: Attention) -> None:
    q, k, v = (x.requires_grad_() for x in given(1, 13))
    found, _ = attention(Layer(), q, k, v, None)
    wanted = F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
    mine = torch.autograd.grad(found.square().sum(), (q, k, v))
    theirs = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_what_no_program_has_is_computed_by_torch_and_said_once() -> None:
    q, k, v = (x.double() for x in given(3, 3))
    alone = Attention(1.0, 1.0, 0, {})
    with pytest.warns(AttentionWarning, match=r"no program has torch\.float64"):
        found, _ = alone(Layer(), q, k, v, None)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone(Layer(), q, k, v, None)
    assert alone.reports == {}


def test_when_no_time_is_left_torch_computes() -> None:
    q, k, v = given(3, 3)
    alone = Attention(1.0, 1e-9, 0, {"workers": 1, "measure": 0, "cache": False})
    alone._left_s = 0.0
    with pytest.warns(AttentionWarning, match="no time was left"):
        found, _ = alone(Layer(), q, k, v, None)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, wanted)
    assert "no time was left" in str(alone)


@pytest.mark.parametrize("wrong", [{"time_limit": 0}, {"bucket": -1}, {"bucket": 1.5}, {"total": "much"}])
def test_options_at_fault_are_named(wrong: dict[str, Any]) -> None:
    before = AttentionInterface._global_mapping.get(NAME)
    with pytest.raises(SpaceError, match=next(iter(wrong))):
        mf.hf.register(**wrong)
    assert AttentionInterface._global_mapping.get(NAME) is before
