"""Formulas of examples/corpus/norm; see attention.py."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, layer_norm, relu, rms_norm, unit


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
