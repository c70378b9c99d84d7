"""The formulas of the programs of examples/corpus in NumPy, float64, with functions as PyTorch's manual has them.

A parameter is the input of that name, ``w`` are all inputs by name, ``sizes`` are the program's.
"""

from __future__ import annotations

from math import erf as _erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def logsumexp(x: Array) -> Array:
    """Along the last axis, which stays with extent 1."""
    most = x.max(-1, keepdims=True)
    return most + np.log(np.exp(x - most).sum(-1, keepdims=True))


def sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x / 2)) / 2


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0)


def erf(x: Array) -> Array:
    return np.vectorize(_erf, otypes=[np.float64])(x)


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def layer_norm(x: Array, weight: Array | float = 1, bias: Array | float = 0, eps: float = 0) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x: Array, weight: Array | float = 1, eps: float = 0) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, add: Array | float = 0, scale: float | None = None) -> Array:
    """softmax(Q K^T * scale + add) V of each leading index; the scale is one over the root of the head if left out."""
    scores = np.einsum("...id,...jd->...ij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return np.einsum("...ij,...jd->...id", softmax(scores + add), v)


def rotate_half(x: Array, cos: Array, sin: Array) -> Array:
    """The rotation of (x[i], x[i + n/2]) by an angle whose cosines and sines are given for both."""
    half = x.shape[-1] // 2
    out = np.empty_like(x)
    out[..., :half] = x[..., :half] * cos[..., :half] - x[..., half:] * sin[..., :half]
    out[..., half:] = x[..., half:] * cos[..., half:] + x[..., :half] * sin[..., half:]
    return out


def heads_of(x: Array, count: int) -> Array:
    """[tokens, count * head] as [count, tokens, head]."""
    head = x.shape[-1] // count
    return np.stack([x[:, i * head : (i + 1) * head] for i in range(count)])


def joined(x: Array) -> Array:
    """[count, tokens, head] as [tokens, count * head]."""
    return np.concatenate(list(x), axis=-1)


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


def softmax_by_hand(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)


def divided_last(q: Array, k: Array, v: Array) -> Array:
    return attention(q, k, v)


def attention_and_logsumexp(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    return attention(q, k, v), logsumexp(np.einsum("gid,gjd->gij", q, k) / np.sqrt(q.shape[-1]))


def combined_parts(o1: Array, o2: Array, l1: Array, l2: Array) -> Array:
    return (o1 * np.exp(l1) + o2 * np.exp(l2)) / (np.exp(l1) + np.exp(l2))


def multihead_module(x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array, sizes: dict[str, int]) -> Array:
    weights, biases = np.split(w_in, 3), np.split(b_in, 3)
    q, k, v = (heads_of(x @ w.T + b, sizes["heads"]) for w, b in zip(weights, biases, strict=True))
    return joined(attention(q, k, v)) @ w_out.T + b_out


def linear_attention_keys_first(q: Array, k: Array, v: Array) -> Array:
    return np.einsum("hid,hjd,hje->hie", relu(q), relu(k), v)


def linear_attention_queries_first(q: Array, k: Array, v: Array) -> Array:
    return np.einsum("hid,hjd,hje->hie", relu(q), relu(k), v)


def normalised_linear_attention(q: Array, k: Array, v: Array) -> Array:
    weights = np.einsum("hid,hjd->hij", sigmoid(q), sigmoid(k))
    return np.einsum("hij,hje->hie", weights / weights.sum(-1, keepdims=True), v)


def retention(q: Array, k: Array, v: Array, decay: Array) -> Array:
    return np.einsum("hid,hjd,hij,hje->hie", q, k, decay, v)


def sigmoid_attention(q: Array, k: Array, v: Array) -> Array:
    scores = np.einsum("hid,hjd->hij", q, k) / np.sqrt(q.shape[-1]) - np.round(np.log(q.shape[1]), 3)
    return np.einsum("hij,hje->hie", sigmoid(scores), v)


def differential_attention(q1: Array, q2: Array, k1: Array, k2: Array, v: Array, weight: Array) -> Array:
    return attention(q1, k1, v) - weight * attention(q2, k2, v)


def attention_sink(q: Array, k: Array, v: Array, sinks: Array) -> Array:
    e = np.exp(np.einsum("gid,gjd->gij", q, k) / np.sqrt(q.shape[-1]))
    return np.einsum("gij,gjd->gid", e / (e.sum(-1, keepdims=True) + np.exp(sinks)), v)


def cache_and_new_token(q: Array, k: Array, v: Array, k_new: Array, v_new: Array) -> Array:
    return attention(q, np.concatenate([k, k_new], 1), np.concatenate([v, v_new], 1))


def masked_where(q: Array, k: Array, v: Array, mask: Array) -> Array:
    scores = np.einsum("hid,hjd->hij", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("hij,hjd->hid", softmax(np.where(mask == 1, scores, -10000)), v)


def cross_entropy_rows(scores: Array, target: Array) -> Array:
    return logsumexp(scores) - (scores * target).sum(-1, keepdims=True)


def log_softmax_rows(scores: Array) -> Array:
    return np.log(softmax(scores))


def z_loss(scores: Array) -> tuple[Array, Array]:
    return np.log(softmax(scores)), 0.0001 * logsumexp(scores) ** 2


def distillation(teacher: Array, student: Array) -> Array:
    p, q = softmax(teacher / 2), softmax(student / 2)
    return (p * np.log(p / q)).sum(-1, keepdims=True)


def mean_pool_linear(x: Array, w: Array, b: Array) -> Array:
    return x.sum(1) / x.shape[1] @ w.T + b


def attention_pooling(x: Array, w: Array, b: Array, u: Array, c: Array) -> Array:
    weights = softmax((np.tanh(x @ w + b) @ u)[:, 0])
    return (weights @ x)[None] @ c


def squeeze_and_excitation(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    factor = sigmoid(relu(x.mean((2, 3)) @ w1.T + b1) @ w2.T + b2)
    return np.einsum("bchw,bc->bchw", x, factor)


def bert_pooler(x: Array, w: Array, b: Array, w_classes: Array, b_classes: Array) -> Array:
    return np.tanh(x[:, 0] @ w.T + b) @ w_classes.T + b_classes


def absolute_maximum(x: Array) -> tuple[Array, Array]:
    scale = np.abs(x).max(-1, keepdims=True) / 127
    return x / scale, scale


def min_max_normalisation(x: Array) -> Array:
    lowest, highest = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    return (x - lowest) / (highest - lowest + 0.001)


def expert_router(x: Array, w: Array) -> tuple[Array, ...]:
    p = softmax(x @ w)
    return p, p.max(-1, keepdims=True), p.mean(0, keepdims=True)


def dueling_network(h: Array, v: Array, c: Array, w: Array, b: Array) -> Array:
    advantages = h @ w + b
    return (h @ v)[:, 0, None] + c + advantages - advantages.mean(-1)[:, None]


def feature_interaction(dense: Array, sparse: Array) -> Array:
    rows = np.concatenate([dense, sparse], 1)
    products = np.einsum("bid,bjd->bij", rows, rows)
    return np.hstack([dense[:, 0], products.reshape(len(rows), -1)])


def leaky_critic(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    h = x @ w1 + b1
    critic = np.where(h > 0, h, 0.2 * h) @ w2 + b2
    return relu(1 - critic).mean(0, keepdims=True)


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


def lora_scaled(x: Array, w: Array, a: Array, b: Array) -> Array:
    return x @ (w + 32 / len(a) * (b @ a)).T


def lora_several(x: Array, w: Array, **given: Array) -> Array:
    return x @ (w + sum(s * (given[f"a_{r}"] @ given[f"b_{r}"]) for r, s in ((8, 2), (16, 1), (32, 0.5))))


def low_rank_linear(x: Array, u: Array, v: Array, b: Array) -> Array:
    return x @ (u @ v) + b


def kronecker_linear(x: Array, a: Array, b: Array) -> Array:
    return x @ np.kron(a, b).T


def long_dot(x: Array, y: Array) -> Array:
    return np.array([[np.vdot(x, y)]])


def long_matvec(x: Array, a: Array) -> Array:
    return (x[0][:, None] * a).sum(0)[None]


def long_norm(x: Array) -> Array:
    return np.array([[np.linalg.norm(x)]])


def vocabulary_projection(x: Array, weight: Array, bias: Array, table: Array) -> Array:
    return layer_norm(x, weight, bias, 1e-5) @ table.T


def pointwise_convolution(x: Array, w: Array, scale: Array, shift: Array) -> Array:
    return relu(np.einsum("oc,cp->op", w, x) * scale + shift)


def scaled_inputs_linear(x: Array, factors: Array, w: Array) -> Array:
    return x @ (np.diag(factors) @ w)


def weight_norm_linear(x: Array, v: Array) -> Array:
    return x @ v.T / np.linalg.norm(v, axis=1)


def grouped_scales_linear(x: Array, codes: Array, scales: Array, sizes: dict[str, int]) -> Array:
    weights = np.array([code * scales[row // sizes["group"]] for row, code in enumerate(codes)])
    return x @ weights


def shared_product(x: Array, w: Array, a: Array, b: Array) -> tuple[Array, ...]:
    return x @ w, x @ (w @ a), x @ (w @ b)


def factorization_machine(x: Array, v: Array) -> Array:
    """The sum over pairs of features, as the model is defined."""
    pairs = np.triu(v @ v.T, 1)
    return np.array([[one @ pairs @ one] for one in x])


def gpt2_mlp(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    return gelu_tanh(x @ w1 + b1) @ w2 + b2


def bert_mlp(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    return gelu(x @ w1.T + b1) @ w2.T + b2


def llama3_mlp(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    return (silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


def gemma_mlp(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    return (gelu_tanh(x @ w_gate) * (x @ w_up)) @ w_down


def t5_mlp(x: Array, w1: Array, w2: Array) -> Array:
    return relu(x @ w1) @ w2


def residual_mlp(x: Array, w1: Array, w2: Array) -> Array:
    return x + relu(x @ w1) @ w2


def squared_relu_mlp(x: Array, w1: Array, w2: Array) -> Array:
    return relu(x @ w1) ** 2 @ w2


def glu(x: Array, w: Array, v: Array) -> Array:
    return sigmoid(x @ w) * (x @ v)


def reglu(x: Array, w: Array, v: Array) -> Array:
    return relu(x @ w) * (x @ v)


def geglu(x: Array, w: Array, b: Array) -> Array:
    inner = len(b) // 2
    return (x @ w[:inner].T + b[:inner]) * gelu(x @ w[inner:].T + b[inner:])


def swiglu(x: Array, w: Array) -> Array:
    inner = w.shape[1] // 2
    return silu(x @ w[:, :inner]) * (x @ w[:, inner:])


def bilinear_unit(x: Array, w: Array, v: Array) -> Array:
    return np.einsum("ij,ik,jl,kl->il", x, x, w, v)


def two_experts(x: Array, **given: Array) -> Array:
    def expert(number: int) -> Array:
        h = silu(x @ given[f"w_gate_{number}"]) * (x @ given[f"w_up_{number}"])
        return given[f"gate_{number}"] * (h @ given[f"w_down_{number}"])

    return expert(1) + expert(2)


def mixer_tokens(x: Array, weight: Array, bias: Array, **given: Array) -> Array:
    h = np.einsum("btc,it->bic", layer_norm(x, weight, bias, 1e-6), given["w1"]) + given["b1"][:, None]
    return x + np.einsum("bic,ti->btc", gelu(h), given["w2"]) + given["b2"][:, None]


def layer_norm_linear(x: Array, weight: Array, bias: Array, w: Array, b: Array) -> Array:
    return layer_norm(x, weight, bias, 1e-5) @ w + b


def rms_norm_linear(x: Array, weight: Array, w: Array) -> Array:
    return rms_norm(x, weight, 1e-5) @ w


def three_projections(x: Array, weight: Array, w_q: Array, w_k: Array, w_v: Array) -> tuple[Array, ...]:
    h = rms_norm(x, weight, 1e-5)
    return h @ w_q, h @ w_k, h @ w_v


def group_norm_linear(x: Array, weight: Array, bias: Array, w: Array, b: Array, sizes: dict[str, int]) -> Array:
    groups = np.split(x, sizes["groups"], axis=1)
    normed = np.concatenate([(g - g.mean()) / np.sqrt(g.var() + 1e-6) for g in groups], axis=1)
    return (normed * weight + bias) @ w + b


def post_norm_residual(x: Array, h: Array, w: Array, b: Array, weight: Array, bias: Array) -> Array:
    return layer_norm(x + h @ w.T + b, weight, bias, 1e-12)


def add_and_norm(x: Array, h: Array, weight: Array) -> tuple[Array, Array]:
    return x + h, rms_norm(x + h, weight, 1e-5)


def adaptive_layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    return np.stack([layer_norm(x[i], 1 + scale[i], shift[i], 1e-6) for i in range(len(x))])


def ngpt_step(h: Array, a: Array, alpha: Array) -> Array:
    return unit(h + alpha * (unit(a) - h))


def gemma_norm_linear(x: Array, weight: Array, w: Array) -> Array:
    return rms_norm(x, 1 + weight, 1e-6) @ w


def layer_norm_by_hand(x: Array, weight: Array, bias: Array) -> Array:
    return layer_norm(x, weight, bias, 1e-12)


def layer_norm_two_moments(x: Array) -> Array:
    return layer_norm(x, eps=1e-5)


def rms_norm_by_hand(x: Array, weight: Array) -> Array:
    return rms_norm(x, weight, 1e-5)


def batch_norm_inference(x: Array, mean: Array, deviation: Array, weight: Array, bias: Array) -> Array:
    return relu(weight * (x - mean) / np.sqrt(deviation**2 + 1e-5) + bias)


def clip_logits(image: Array, text: Array, logit_scale: Array) -> Array:
    return np.exp(logit_scale) * (unit(image) @ unit(text).T)


def rotary_interleaved(x: Array, cos: Array, sin: Array) -> Array:
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * (cos + 1j * sin)
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
    return out


def rotary_half(x: Array, cos: Array, sin: Array) -> Array:
    return rotate_half(x, cos, sin)


def rotary_queries_and_keys(
    x: Array, w_q: Array, w_k: Array, cos: Array, sin: Array, sizes: dict[str, int]
) -> tuple[Array, ...]:
    found = []
    for w, count in ((w_q, sizes["queries"]), (w_k, sizes["keys"])):
        found.append(np.swapaxes(rotate_half(heads_of(x @ w, count), cos[:, 0], sin[:, 0]), 0, 1))
    return tuple(found)


def transposition(x: Array) -> Array:
    return x.T


def split_heads(x: Array, sizes: dict[str, int]) -> Array:
    return np.stack([heads_of(one, sizes["heads"]) for one in x]) / np.sqrt(sizes["head"])


def patch_embedding(image: Array, w: Array, b: Array, positions: Array, sizes: dict[str, int]) -> Array:
    n, size = sizes["patches"], sizes["size"]
    rows = [image[:, i * size : (i + 1) * size, j * size : (j + 1) * size].ravel() for i in range(n) for j in range(n)]
    return np.array(rows) @ w.T + b + positions


def patch_merging(x: Array, weight: Array, bias: Array, w: Array) -> Array:
    parts = [x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]]
    # Within a row the published order is by columns first: (0, 0), (1, 0), (0, 1), (1, 1).
    rows = np.concatenate(parts, -1).reshape(-1, 4 * x.shape[-1])
    return layer_norm(rows, weight, bias, 1e-5) @ w.T


def window_partition(x: Array, sizes: dict[str, int]) -> Array:
    n, size, shift = sizes["windows"], sizes["size"], sizes["shift"]
    x = np.roll(x, (-shift, -shift), (0, 1))
    windows = [x[i * size : (i + 1) * size, j * size : (j + 1) * size] for i in range(n) for j in range(n)]
    return np.stack([window.reshape(size * size, -1) for window in windows])


def skip_concat_linear(x: Array, skip: Array, w: Array, b: Array) -> Array:
    hidden = x.shape[1]
    return x @ w[:, :hidden].T + skip @ w[:, hidden:].T + b


def causal_convolution(x: Array, w: Array, b: Array) -> Array:
    out = np.tile(b, (len(x), 1))
    for t in range(len(x)):
        for i, taps in enumerate(w):
            if (at := t - len(w) + 1 + i) >= 0:
                out[t] += taps * x[at]
    return silu(out)


def token_shift(x: Array, mix: Array, w: Array) -> Array:
    before = np.vstack([np.zeros_like(x[:1]), x[:-1]])
    return (x * mix + before * (1 - mix)) @ w


def class_token(x: Array, token: Array, positions: Array) -> Array:
    return np.stack([np.vstack([token[0], one]) + positions[0] for one in x])
