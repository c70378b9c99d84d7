"""Formulas of examples/corpus/positions; see attention.py."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, heads_of, layer_norm, rotate_half, silu


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
