"""Formulas of examples/corpus/linear; see attention.py."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, layer_norm, relu


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
