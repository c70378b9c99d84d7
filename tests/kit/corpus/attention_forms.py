"""Formulas of examples/corpus/attention_forms; see attention.py."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, attention, heads_of, joined, logsumexp, relu, sigmoid, softmax


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
