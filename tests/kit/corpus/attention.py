"""Formulas of examples/corpus/attention; a parameter is the input of that name, ``sizes`` are the program's."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, attention, rms_norm, softmax


def gpt2_attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
    return attention(q, k, v, mask)


def bert_attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
    return attention(q, k, v, mask)


def vit_attention(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)


def clip_attention(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)


def llama3_decode(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)


def llama3_prefill(q: Array, k: Array, v: Array, mask: Array) -> Array:
    each = len(q) // len(k)
    return np.stack([attention(q[i], k[i // each], v[i // each], mask[0]) for i in range(len(q))])


def qwen3_attention(q: Array, k: Array, v: Array, q_weight: Array, k_weight: Array) -> Array:
    return attention(rms_norm(q, q_weight, 1e-6), rms_norm(k, k_weight, 1e-6), v)


def gemma2_attention(q: Array, k: Array, v: Array) -> Array:
    scores = np.einsum("gid,gjd->gij", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("gij,gjd->gid", softmax(50 * np.tanh(scores / 50)), v)


def mistral_attention(q: Array, k: Array, v: Array, window: Array) -> Array:
    return attention(q, k, v, window)


def t5_attention(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return attention(q, k, v, bias, scale=1)


def alibi_attention(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return attention(q, k, v, bias)


def deepseek_mla(q: Array, q_rotary: Array, c: Array, k_rotary: Array, sizes: dict[str, int]) -> Array:
    queries, keys = np.concatenate([q, q_rotary], -1), np.concatenate([c, k_rotary], -1)
    return attention(queries, keys, c, scale=sizes["head"] ** -0.5)


def stable_diffusion_cross_attention(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)


def phi3_attention(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)
