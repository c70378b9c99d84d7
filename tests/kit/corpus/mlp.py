"""Formulas of examples/corpus/mlp; see attention.py."""

from __future__ import annotations

import numpy as np

from tests.kit.corpus.numpy_kit import Array, gelu, gelu_tanh, layer_norm, relu, sigmoid, silu


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
