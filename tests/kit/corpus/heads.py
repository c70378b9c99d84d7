"""Formulas of examples/corpus/heads; see attention.py."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, logsumexp, relu, sigmoid, softmax


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
