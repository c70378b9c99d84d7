"""What the formulas of the corpus share: functions of PyTorch's manual in NumPy, float64."""

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
