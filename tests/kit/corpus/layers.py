"""Formulas of examples/corpus/layers; ``w`` are the inputs by name, ``sizes`` are the program's."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import (
    Array,
    attention,
    gelu,
    gelu_tanh,
    heads_of,
    joined,
    layer_norm,
    rms_norm,
    rotate_half,
    sigmoid,
    silu,
)


def _linear(x: Array, w: dict[str, Array], name: str) -> Array:
    found = x @ w[f"w_{name}"].T
    return found + w[f"b_{name}"] if f"b_{name}" in w else found


def _norm(x: Array, w: dict[str, Array], name: str, eps: float) -> Array:
    return layer_norm(x, w[f"{name}_weight"], w[f"{name}_bias"], eps)


def gpt2_layer(sizes: dict[str, int], x: Array, **w: Array) -> Array:
    qkv = _norm(x, w, "norm1", 1e-5) @ w["w_qkv"] + w["b_qkv"]
    q, k, v = (heads_of(part, sizes["heads"]) for part in np.split(qkv, 3, 1))
    x = x + joined(attention(q, k, v, w["mask"])) @ w["w_out"] + w["b_out"]
    return x + gelu_tanh(_norm(x, w, "norm2", 1e-5) @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def bert_layer(sizes: dict[str, int], x: Array, **w: Array) -> Array:
    def one(x: Array, mask: Array) -> Array:
        q, k, v = (heads_of(_linear(x, w, name), sizes["heads"]) for name in "qkv")
        x = _norm(x + _linear(joined(attention(q, k, v, mask)), w, "out"), w, "norm1", 1e-12)
        return _norm(x + _linear(gelu(_linear(x, w, "1")), w, "2"), w, "norm2", 1e-12)

    return np.stack([one(*pair) for pair in zip(x, w["mask"], strict=True)])


def vit_layer(sizes: dict[str, int], x: Array, **w: Array) -> Array:
    qkv = np.split(_linear(_norm(x, w, "norm1", 1e-6), w, "qkv"), 3, 1)
    q, k, v = (heads_of(part, sizes["heads"]) for part in qkv)
    x = x + _linear(joined(attention(q, k, v)), w, "out")
    return x + _linear(gelu(_linear(_norm(x, w, "norm2", 1e-6), w, "1")), w, "2")


def llama3_layer(sizes: dict[str, int], x: Array, cos: Array, sin: Array, **w: Array) -> tuple[Array, ...]:
    h = rms_norm(x, w["norm1"], 1e-5)
    q = rotate_half(heads_of(h @ w["w_q"].T, sizes["heads"]), cos, sin)
    k = rotate_half(heads_of(h @ w["w_k"].T, sizes["groups"]), cos, sin)
    v = heads_of(h @ w["w_v"].T, sizes["groups"])
    each = sizes["heads"] // sizes["groups"]
    mixed = [attention(q[i], k[i // each], v[i // each], w["mask"][0]) for i in range(len(q))]
    x = x + joined(np.stack(mixed)) @ w["w_out"].T
    h = rms_norm(x, w["norm2"], 1e-5)
    return x + (silu(h @ w["w_gate"].T) * (h @ w["w_up"].T)) @ w["w_down"].T, k, v


def qwen3_layer(sizes: dict[str, int], x: Array, cos: Array, sin: Array, **w: Array) -> tuple[Array, ...]:
    h = rms_norm(x, w["norm1"], 1e-6)
    q = rms_norm(heads_of(h @ w["w_q"].T, sizes["heads"]), w["norm_q"], 1e-6)
    k = rms_norm(heads_of(h @ w["w_k"].T, sizes["groups"]), w["norm_k"], 1e-6)
    q, k = rotate_half(q, cos, sin), rotate_half(k, cos, sin)
    v = heads_of(h @ w["w_v"].T, sizes["groups"])
    keys, values = np.concatenate([w["k_cache"], k], 1), np.concatenate([w["v_cache"], v], 1)
    each = sizes["heads"] // sizes["groups"]
    mixed = [attention(q[i], keys[i // each], values[i // each]) for i in range(len(q))]
    x = x + joined(np.stack(mixed)) @ w["w_out"].T
    h = rms_norm(x, w["norm2"], 1e-6)
    return x + (silu(h @ w["w_gate"].T) * (h @ w["w_up"].T)) @ w["w_down"].T, k, v


def gemma_layer(sizes: dict[str, int], x: Array, **w: Array) -> Array:
    q = rms_norm(x, 1 + w["norm1"], 1e-6) @ w["w_q"]
    heads = np.split(q, sizes["heads"], 1)
    mixed = [np.hstack([attention(head[b : b + 1], w["k"][b], w["v"][b]) for head in heads]) for b in range(len(x))]
    x = x + np.vstack(mixed) @ w["w_out"]
    h = rms_norm(x, 1 + w["norm2"], 1e-6)
    return x + (gelu_tanh(h @ w["w_gate"]) * (h @ w["w_up"])) @ w["w_down"]


def dit_block(sizes: dict[str, int], x: Array, c: Array, **w: Array) -> Array:
    condition = _linear(silu(c), w, "condition").reshape(6, -1)
    h = layer_norm(x, 1 + condition[1], condition[0], 1e-6)
    q, k, v = (heads_of(part, sizes["heads"]) for part in np.split(_linear(h, w, "qkv"), 3, 1))
    x = x + condition[2] * _linear(joined(attention(q, k, v)), w, "out")
    h = layer_norm(x, 1 + condition[4], condition[3], 1e-6)
    return x + condition[5] * _linear(gelu_tanh(_linear(h, w, "1")), w, "2")


def parallel_layer(sizes: dict[str, int], x: Array, **w: Array) -> Array:
    h = layer_norm(x, w["weight"], w["bias"], 1e-5)
    q, k, v = (heads_of(h @ w[f"w_{name}"], sizes["heads"]) for name in "qkv")
    mixed = joined(attention(q, k, v, w["mask"])) @ w["w_out"]
    return x + mixed + gelu_tanh(h @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def lstm_cell(x: Array, h: Array, c: Array, **w: Array) -> tuple[Array, Array]:
    i, f, g, o = np.split(x @ w["w_x"].T + w["b_x"] + h @ w["w_h"].T + w["b_h"], 4, 1)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def gru_cell(x: Array, h: Array, **w: Array) -> Array:
    from_x, from_h = (np.split(a @ w[f"w_{n}"].T + w[f"b_{n}"], 3, 1) for a, n in ((x, "x"), (h, "h")))
    reset, update = sigmoid(from_x[0] + from_h[0]), sigmoid(from_x[1] + from_h[1])
    return (1 - update) * np.tanh(from_x[2] + reset * from_h[2]) + update * h
