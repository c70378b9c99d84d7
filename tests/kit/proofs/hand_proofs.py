"""Pairs of programs with proofs written out, and those that the prover writes: what edits start from.

A prover with faults (``prover_faults``) writes false ones.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from mirage_formal import BlockBuilder, BlockTensor
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove, split_proof_obligation
from tests.kit.proofs.claims import Mask, Saved, kernel, load, on, pair
from tests.kit.proofs.proof_judge import Pair
from tests.kit.proofs.prover_faults import CASES, FAULTS, faulty


def rename(a: int, *pairs: Sequence[int]) -> list[Any]:
    return ["rename", a, [list(p) for p in pairs]]


def online(block: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
    scores = block.matmul(q, k)
    largest, moved = block.reduction_max(scores, 1)
    weights, factor = block.exp(scores - largest), block.exp(moved)
    above = block.forloop_accum_rescale(block.matmul(weights, v), factor)
    return above / block.forloop_accum_rescale(weights, factor, "sum"), on()


PAIRS = {
    # X W, and the same with rows over blocks and the contracted dim over a loop.
    "split": pair(
        {"X": (4, 6), "W": (6, 2)},
        lambda g, x, w: x @ w,
        lambda g, x, w: kernel(
            g, (2, 1, 1), [(x, on(x=0), 1), (w, on(), 0)],
            lambda b, x, w: (b.forloop_accum(b.matmul(x, w)), on(x=0)), loop=3,
        ),
    ),
    "chain": pair(
        {"X": (2, 3), "A": (3, 4), "B": (4, 5)}, lambda g, x, a, b: (x @ a) @ b, lambda g, x, a, b: x @ (a @ b)
    ),
    # sum exp(x + y) = exp(y) sum exp(x)
    "exp": pair(
        {"X": (2, 3), "Y": (2, 1)},
        lambda g, x, y: g.reduction(g.exp(x + y), 1),
        lambda g, x, y: g.exp(y) * g.reduction(g.exp(x), 1),
    ),
    "rms": pair(
        {"X": (2, 6), "W": (6, 3)},
        lambda g, x, w: g.rms_norm(x) @ w,
        lambda g, x, w: (x @ w) / g.sqrt(g.mean(g.square(x), 1)),
    ),
    "content": pair(
        {"A": (2, 3), "B": (2, 3), "C": (2, 3)},
        lambda g, a, b, c: a / (g.exp(a) * b + g.exp(a) * c),
        lambda g, a, b, c: (a / g.exp(a)) / (b + c),
    ),
    "root": pair(
        {"A": (2, 3), "B": (2, 3), "C": (2, 3)},
        lambda g, a, b, c: g.sqrt(g.exp(a) * b + g.exp(a) * c),
        lambda g, a, b, c: g.exp(g.scale(a, 0.5)) * g.sqrt(b + c),
    ),
    "concat": pair(
        {"A": (2, 3), "B": (2, 5), "C": (2, 8)},
        lambda g, a, b, c: g.concat(a, b, 1) + c,
        lambda g, a, b, c: c + g.concat(a, b, 1),
    ),
    # The concatenation is not taken apart.
    "whole": pair(
        {"A": (2, 3), "B": (2, 5), "C": (2, 8)},
        lambda g, a, b, c: g.concat(a, b, 1) * c,
        lambda g, a, b, c: c * g.concat(a, b, 1),
    ),
    "cross": pair(
        {"A": (2, 3), "B": (2, 3), "C": (2, 3)},
        lambda g, a, b, c: a / b - c,
        lambda g, a, b, c: (a - b * c) / b,
    ),
    "halves": pair(
        {"A": (2, 3)},
        lambda g, a: a / (g.exp(a) + a) + g.exp(a) / (g.exp(a) + a),
        lambda g, a: a / a,
    ),
    "largest": pair(
        {"X": (4, 6)}, lambda g, x: g.max(g.max(x, 1), 0), lambda g, x: g.max(g.max(x, 0), 1)
    ),
    "online": pair(
        {"Q": (2, 3), "K": (3, 6), "V": (6, 2)},
        lambda g, q, k, v: g.softmax(q @ k) @ v,
        lambda g, q, k, v: kernel(g, (1, 1, 1), [(q, on()), (k, on(), 1), (v, on(), 0)], online, loop=3),
    ),
    # sqrt(12) / 2 = sqrt(3)
    "square": pair(
        {"X": (2, 3)}, lambda g, x: g.scale(g.sqrt(g.scale(x, 12)), 0.5), lambda g, x: g.sqrt(g.scale(x, 3))
    ),
    # Rows of 5 as rows of 3: no digits say which element goes where.
    "atom": pair(
        {"X": (3, 5)},
        lambda g, x: g.exp(g.reshape(x, 5, 3)) * g.exp(g.reshape(x, 5, 3)),
        lambda g, x: g.exp(g.scale(g.reshape(x, 5, 3), 2)),
    ),
    "top": pair(
        {"A": (2, 3), "B": (2, 5)},
        lambda g, a, b: g.max(g.concat(a, b, 1), 1),
        lambda g, a, b: g.max(g.concat(b, a, 1), 1),
    ),
    "select": pair(
        {"M": Mask(2, 3), "A": (2, 3), "B": (2, 3)},
        lambda g, m, a, b: g.select(m, a, b),
        lambda g, m, a, b: b + g.cast(m, "float16") * (a - b),
    ),
    # What may have no value stays in its selection.
    "keep": pair(
        {"M": Mask(2, 3), "A": (2, 3), "B": (2, 3)},
        lambda g, m, a, b: g.select(m, a / b, 0),
        lambda g, m, a, b: g.select(m, a * g.reciprocal(b), 0),
    ),
    "equal": pair(
        {"A": (2, 3), "B": (2, 3)},
        lambda g, a, b: g.select(g.eq(a, b), a, 0),
        lambda g, a, b: g.select(g.eq(b, a), a, 0),
    ),
    "at most": pair(
        {"A": (2, 3), "B": (2, 3)},
        lambda g, a, b: g.select(g.le(a, b), a, 0),
        lambda g, a, b: g.select(g.logical_not(g.lt(b, a)), a, 0),
    ),
    "inverse": pair(
        {"A": (2, 3), "B": (2, 3), "C": (2, 3)},
        lambda g, a, b, c: g.div_no_nan(a, g.exp(a) * b + g.exp(a) * c),
        lambda g, a, b, c: g.div_no_nan(a / g.exp(a), b + c),
    ),
    "rounded": pair(
        {"A": (2, 3), "B": (2, 3)},
        lambda g, a, b: g.round_to(a + b, "bfloat16"),
        lambda g, a, b: g.round_to(b + a, "bfloat16"),
    ),
}  # fmt: skip

_ELEMENT = [[0, 1, 0], [0, 1, 1]]

PROOFS = {
    "split": {
        # 0 k, 1 row, 2 column, 3 k, 4 k in a chunk, 5 block, 6 row in a block, 7 loop, 8 k in a chunk, 9 row
        "digits": [6, 4, 2, 6, 2, 2, 2, 3, 2, 4],
        "factors": [
            ["in", 0, [[0, 1, 1], [0, 1, 0]]], ["in", 1, [[0, 1, 0], [0, 1, 2]]], ["sum", [0], [0, 2, 1, 2]],
            ["in", 0, [[0, 1, 1], [0, 1, 3]]], ["in", 1, [[0, 1, 3], [0, 1, 2]]],
            ["in", 0, [[0, 2, 5, 1, 6], [0, 2, 7, 1, 4]]], ["in", 1, [[0, 2, 7, 1, 4], [0, 1, 2]]],
            ["sum", [4], [5, 2, 6, 2]],
            ["in", 0, [[0, 2, 5, 1, 6], [0, 2, 7, 1, 8]]], ["in", 1, [[0, 2, 7, 1, 8], [0, 1, 2]]],
            ["in", 0, [[0, 2, 5, 1, 6], [0, 1, 0]]], ["sum", [0], [1, 2, 10, 2]],
        ],
        "lemmas": [
            ["sum", [3], [3, 2, 4, 2], [], [[2, [[0, 3]]]]],
            ["sum", [8], [8, 2, 9, 2], [], [[7, [[4, 8]]]]],
            ["sum", [7], [7, 2], [[7, 8]], [[11, [[0, 7, 8]]]]],
        ],
        "steps": [
            ["input", 0, [[1], [3]]], ["input", 1, [[3], [2]]], ["matmul", 0, 1],
            ["split", 0, 3, 7, 8], ["split", 3, 1, 5, 6], ["reshape", 4, [2, 2, 3, 2, 1, 1]],
            ["transpose", 5, [0, 4, 5, 2, 1, 3]],
            ["split", 1, 3, 7, 8], ["reshape", 7, [1, 1, 1, 3, 2, 2]],
            ["matmul", 6, 8], ["sum", 9, 3, 1], ["reshape", 10, [4, 2]], ["fold", 11, [[9, 5, 6]]],
            ["rename", 2, [[1, 9]]],
        ],
        "outputs": [[13, 12, []]],
    },
    "chain": {
        "digits": [3, 2, 4, 3, 4, 3, 5, 3, 3, 4],
        "factors": [
            ["in", 0, [[0, 1, 1], [0, 1, 0]]], ["in", 1, [[0, 1, 0], [0, 1, 2]]], ["sum", [0], [0, 2, 1, 2]],
            ["in", 0, [[0, 1, 1], [0, 1, 3]]], ["in", 1, [[0, 1, 3], [0, 1, 2]]], ["in", 2, [[0, 1, 4], [0, 1, 6]]],
            ["in", 0, [[0, 1, 1], [0, 1, 5]]], ["in", 1, [[0, 1, 5], [0, 1, 4]]], ["sum", [4, 5], [5, 2, 6, 2, 7, 2]],
            ["in", 2, [[0, 1, 2], [0, 1, 6]]], ["in", 1, [[0, 1, 8], [0, 1, 4]]], ["sum", [4], [5, 2, 10, 2]],
            ["in", 1, [[0, 1, 8], [0, 1, 2]]], ["in", 0, [[0, 1, 1], [0, 1, 8]]],
        ],
        "lemmas": [
            ["sum", [3], [3, 2, 4, 2], [], [[2, [[0, 3]]]]],
            ["sum", [2], [2, 2, 9, 2], [[2, 7]], [[8, [[4, 2], [5, 7]]]]],
            ["sum", [2], [12, 2, 9, 2], [], [[11, [[4, 2]]]]],
            ["sum", [8], [11, 2, 13, 2], [[11, 9]], [[8, [[4, 9], [5, 8]]]]],
        ],
        "steps": [
            ["input", 0, [[1], [3]]], ["input", 1, [[3], [2]]], ["input", 2, [[2], [6]]],
            ["matmul", 0, 1], ["matmul", 3, 2],
            ["input", 1, [[8], [2]]], ["matmul", 5, 2], ["input", 0, [[1], [8]]], ["matmul", 7, 6],
        ],
        "outputs": [[4, 8, []]],
    },
    "exp": {
        "digits": [3, 2, 3],
        "factors": [
            ["in", 0, [[0, 1, 1], [0, 1, 0]]], ["exp", [[1, 0, 2]]], ["sum", [0], [1, 2]],
            ["in", 0, [[0, 1, 1], [0, 1, 2]]], ["in", 1, [[0, 1, 1], [0]]], ["exp", [[1, 3, 2], [1, 4, 2]]],
            ["exp", [[1, 3, 2]]],
        ],
        "lemmas": [["sum", [2], [5, 2], [], [[2, [[0, 2]]]]], ["sum", [2], [6, 2], [], [[2, [[0, 2]]]]]],
        "steps": [
            ["input", 0, [[1], [2]]], ["input", 1, [[1], []]], ["binary", "add", 0, 1], ["unary", "exp", 2],
            ["sum", 3, 1, 1], ["unary", "exp", 1], ["unary", "exp", 0], ["sum", 6, 1, 1], ["binary", "mul", 5, 7],
        ],
        "outputs": [[4, 8, []]],
    },
    "rms": {
        "digits": [6, 2, 6, 3],
        "factors": [
            ["in", 0, [[0, 1, 1], [0, 1, 0]]], ["sum", [0], [0, 4]], ["in", 0, [[0, 1, 1], [0, 1, 2]]],
            ["in", 1, [[0, 1, 0], [0, 1, 3]]], ["sum", [0], [0, 2, 3, 2]], ["surd", 6],
            ["in", 1, [[0, 1, 2], [0, 1, 3]]],
        ],
        "lemmas": [
            ["sum", [2], [2, 4], [], [[1, [[0, 2]]]]],
            ["sum", [2], [2, 2, 1, -1, 5, 1, 6, 2], [], [[4, [[0, 2]]]]],
            ["sum", [2], [2, 2, 6, 2], [], [[4, [[0, 2]]]]],
        ],
        "steps": [
            ["input", 0, [[1], [2]]], ["input", 1, [[2], [3]]], ["unary", "square", 0], ["sum", 2, 1, 1],
            ["scale", 3, "1/6"], ["unary", "sqrt", 4], ["binary", "div", 0, 5], ["matmul", 6, 1],
            ["matmul", 0, 1], ["binary", "div", 8, 5],
        ],
        "outputs": [[7, 9, []]],
    },
    "content": {
        "digits": [2, 3],
        "factors": [["in", 0, _ELEMENT], ["exp", [[1, 0, 2]]], ["in", 1, _ELEMENT], ["in", 2, _ELEMENT]],
        "lemmas": [["content", [[1, 1, 2, 2, 2], [1, 1, 2, 3, 2]], -2, [1, 2], 1, [[1, 2, 2], [1, 3, 2]]]],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["input", 2, [[0], [1]]], ["unary", "exp", 0],
            ["binary", "mul", 3, 1], ["binary", "mul", 3, 2], ["binary", "add", 4, 5], ["binary", "div", 0, 6],
            ["binary", "div", 0, 3], ["binary", "add", 1, 2], ["binary", "div", 8, 9],
        ],
        "outputs": [[7, 10, []]],
    },
    "root": {
        "digits": [2, 3],
        "factors": [["in", 0, _ELEMENT], ["exp", [[1, 0, 2]]], ["in", 1, _ELEMENT], ["in", 2, _ELEMENT]],
        "lemmas": [["content", [[1, 1, 2, 2, 2], [1, 1, 2, 3, 2]], 1, [1, 2], 1, [[1, 2, 2], [1, 3, 2]]]],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["input", 2, [[0], [1]]], ["unary", "exp", 0],
            ["binary", "mul", 3, 1], ["binary", "mul", 3, 2], ["binary", "add", 4, 5], ["unary", "sqrt", 6],
            ["scale", 0, "1/2"], ["unary", "exp", 8], ["binary", "add", 1, 2], ["unary", "sqrt", 10],
            ["binary", "mul", 9, 11],
        ],
        "outputs": [[7, 12, []]],
    },
    "concat": {
        "digits": [2, 3, 5, 8],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [2]]], ["input", 2, [[0], [3]]],
            ["slice", 2, 1, 0, [1], [[3, [0, 1, 1]]]], ["slice", 2, 1, 3, [2], [[3, [3, 1, 2]]]],
            ["binary", "add", 0, 3], ["binary", "add", 1, 4], ["binary", "add", 3, 0], ["binary", "add", 4, 1],
        ],
        "outputs": [[5, 7, []], [6, 8, []]],
    },
    "whole": {
        "atoms": [[0, 3, 0], [0, 3], [1, 3]],
        "digits": [2, 8],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 3, [[0], [1]]], ["input", 2, [[0], [1]]], ["binary", "mul", 0, 1], ["binary", "mul", 1, 0],
        ],
        "outputs": [[2, 3, []]],
    },
    "cross": {
        "digits": [2, 3],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["input", 2, [[0], [1]]], ["binary", "div", 0, 1],
            ["binary", "sub", 3, 2], ["binary", "mul", 1, 2], ["binary", "sub", 0, 5], ["binary", "div", 6, 1],
        ],
        "outputs": [[4, 7, []]],
    },
    "halves": {
        "digits": [2, 3],
        "factors": [["in", 0, _ELEMENT], ["exp", [[1, 0, 2]]], ["pow", [[1, 1, 2], [1, 0, 2]]]],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["unary", "exp", 0], ["binary", "add", 1, 0],
            ["binary", "div", 0, 2], ["binary", "div", 1, 2], ["binary", "add", 3, 4], ["binary", "div", 0, 0],
        ],
        "outputs": [[5, 6, [2, 2]]],
    },
    "largest": {
        "digits": [6, 4, 6, 6, 4, 6, 4],
        "factors": [
            ["in", 0, [[0, 1, 1], [0, 1, 0]]], ["in", 0, [[0, 1, 1], [0, 1, 2]]], ["max", [2], [[1, 1, 2]]],
            ["in", 0, [[0, 1, 4], [0, 1, 5]]], ["max", [4, 5], [[1, 3, 2]]], ["in", 0, [[0, 1, 4], [0, 1, 0]]],
            ["max", [4], [[1, 5, 2]]],
        ],
        "lemmas": [
            ["max", [0], [[1, 0, 2]], [], 2, [[2, 0]]],
            ["max", [1], [[1, 2, 2]], [[2, 3]], 4, [[4, 1], [5, 3]]],
            ["max", [1], [[1, 0, 2]], [], 6, [[4, 1]]],
            ["max", [0], [[1, 6, 2]], [[6, 6]], 4, [[4, 6], [5, 0]]],
        ],
        "steps": [["input", 0, [[1], [0]]], ["max", 0, 1], ["max", 1, 0], ["max", 0, 0], ["max", 3, 1]],
        "outputs": [[2, 4, []]],
    },
    "online": {
        # 0 3 inner, 1 row, 2 4 key, 5 column, 6 loop, 7 9 key in a chunk, 8 10 11 12 iterations inside
        "digits": [3, 2, 6, 3, 6, 2, 3, 2, 3, 2, 3, 2, 2],
        "factors": [
            ["in", 0, [[0, 1, 1], [0, 1, 0]]], ["in", 1, [[0, 1, 0], [0, 1, 2]]], ["sum", [0], [0, 2, 1, 2]],
            ["in", 0, [[0, 1, 1], [0, 1, 3]]], ["in", 1, [[0, 1, 3], [0, 1, 2]]], ["in", 1, [[0, 1, 0], [0, 1, 4]]],
            ["sum", [0], [0, 2, 5, 2]], ["exp", [[1, 6, 2]]], ["sum", [4], [7, 2]], ["exp", [[1, 2, 2]]],
            ["in", 2, [[0, 1, 4], [0, 1, 5]]], ["sum", [4], [7, 2, 10, 2]], ["in", 2, [[0, 1, 2], [0, 1, 5]]],
            ["in", 1, [[0, 1, 0], [0, 2, 6, 1, 7]]], ["sum", [0], [0, 2, 13, 2]],
            ["in", 1, [[0, 1, 3], [0, 2, 6, 1, 7]]], ["in", 1, [[0, 1, 0], [0, 2, 8, 1, 7]]],
            ["sum", [0], [0, 2, 16, 2]], ["in", 1, [[0, 1, 0], [0, 2, 10, 1, 9]]], ["sum", [0], [0, 2, 18, 2]],
            ["pmax", [0, 1, 6], 10, [9], [[1, 19, 2]]], ["in", 2, [[0, 2, 6, 1, 9], [0, 1, 5]]],
            ["in", 1, [[0, 1, 0], [0, 2, 6, 1, 9]]], ["sum", [0], [0, 2, 22, 2]], ["exp", [[1, 23, 2]]],
            ["sum", [9], [21, 2, 24, 2]], ["exp", [[1, 14, 2], [-1, 20, 2]]],
            ["in", 2, [[0, 2, 6, 1, 7], [0, 1, 5]]], ["max", [4], [[1, 6, 2]]], ["exp", [[-1, 28, 2]]],
            ["sum", [9], [24, 2]],
        ],
        "lemmas": [
            ["sum", [3], [3, 2, 4, 2], [], [[2, [[0, 3]]]]],
            ["sum", [2], [9, 2], [], [[8, [[4, 2]]]]],
            ["sum", [2], [9, 2, 8, -2, 12, 2], [], [[11, [[4, 2]]]]],
            ["sum", [3], [3, 2, 15, 2], [], [[14, [[0, 3]]]]],
            ["pmax", [0, 1, 6], 8, [7], [[1, 17, 2]], 20, [[10, 8], [9, 7]]],
            ["sum", [7], [26, 2, 27, 2], [], [[25, [[9, 7]]]]],
            ["max", [10, 9], [[1, 19, 2]], [], 28, [[4, 10, 9]]],
            ["sum", [6], [25, 2, 29, 2], [[25, 11]], [[11, [[4, 6, 11]]]]],
            ["sum", [7], [26, 2], [], [[30, [[9, 7]]]]],
            ["sum", [6], [29, 2, 30, 2], [[30, 12]], [[8, [[4, 6, 12]]]]],
        ],
        "steps": [
            ["input", 0, [[1], [3]]], ["input", 1, [[3], [2]]], ["input", 2, [[2], [5]]], ["matmul", 0, 1],
            ["unary", "exp", 3], ["sum", 4, 1, 1], ["binary", "div", 4, 5], ["matmul", 6, 2],
            ["reshape", 0, [1, 1, 1, 1, 2, 3]],
            ["split", 1, 2, 6, 7], ["reshape", 9, [3, 3, 2, 1, 1, 1]], ["transpose", 10, [3, 4, 5, 1, 0, 2]],
            ["split", 2, 2, 6, 7], ["reshape", 12, [1, 1, 1, 3, 2, 2]],
            ["matmul", 8, 11], ["running_max", 14, 5, 8], ["carry", 14, 5, 8], ["binary", "sub", 14, 15],
            ["unary", "exp", 17], ["matmul", 18, 13], ["rescaled", 19, 16], ["sum", 18, 5, 1], ["rescaled", 21, 16],
            ["binary", "div", 20, 22], ["reshape", 23, [2, 2]],
        ],
        "outputs": [[7, 24, []]],
    },
    "square": {
        "digits": [2, 3],
        "bases": [2],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["scale", 0, 12], ["unary", "sqrt", 1], ["scale", 2, "1/2"], ["scale", 0, 3],
            ["unary", "sqrt", 4],
        ],
        "outputs": [[3, 5, []]],
    },
    "atom": {
        "atoms": [[0, 1, 0]],
        "digits": [5, 3],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 1, [[0], [1]]], ["unary", "exp", 0], ["binary", "mul", 1, 1], ["scale", 0, 2],
            ["unary", "exp", 3],
        ],
        "outputs": [[2, 4, []]],
    },
    "top": {
        "digits": [2, 3, 5],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["max", 0, 1], ["input", 1, [[0], [2]]], ["max", 2, 1],
            ["binary", "max", 1, 3], ["binary", "max", 3, 1],
        ],
        "outputs": [[4, 5, []]],
    },
    "select": {
        "digits": [2, 3],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["input", 2, [[0], [1]]], ["binary", "select", 0, 1],
            ["scale", 0, -1], ["offset", 4, 1], ["binary", "select", 5, 2], ["binary", "add", 3, 6],
            ["binary", "sub", 1, 2], ["binary", "mul", 0, 8], ["binary", "add", 2, 9],
        ],
        "outputs": [[7, 10, []]],
    },
    "keep": {
        "digits": [2, 3],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["input", 2, [[0], [1]]], ["binary", "div", 1, 2],
            ["binary", "select", 0, 3], ["scale", 2, 0], ["offset", 5, 1], ["binary", "div", 6, 2],
            ["binary", "mul", 1, 7], ["binary", "select", 0, 8],
        ],
        "outputs": [[4, 9, []]],
    },
    "equal": {
        "digits": [2, 3],
        "factors": [["in", 0, _ELEMENT], ["in", 1, _ELEMENT]],
        "lemmas": [["content", [[1, 1, 2], [-1, 0, 2]], 0, [], -1, [[1, 0, 2], [-1, 1, 2]]]],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["binary", "eq", 0, 1], ["binary", "select", 2, 0],
            ["binary", "eq", 1, 0], ["binary", "select", 4, 0],
        ],
        "outputs": [[3, 5, []]],
    },
    "at most": {
        "digits": [2, 3],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["binary", "le", 0, 1], ["binary", "select", 2, 0],
            ["binary", "lt", 1, 0], ["scale", 4, -1], ["offset", 5, 1], ["binary", "select", 6, 0],
        ],
        "outputs": [[3, 7, []]],
    },
    "inverse": {
        "digits": [2, 3],
        "factors": [["in", 0, _ELEMENT], ["exp", [[1, 0, 2]]], ["in", 1, _ELEMENT], ["in", 2, _ELEMENT]],
        "lemmas": [["content", [[1, 1, 2, 2, 2], [1, 1, 2, 3, 2]], 0, [1, 2], 1, [[1, 2, 2], [1, 3, 2]]]],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["input", 2, [[0], [1]]], ["unary", "exp", 0],
            ["binary", "mul", 3, 1], ["binary", "mul", 3, 2], ["binary", "add", 4, 5], ["binary", "div_no_nan", 0, 6],
            ["binary", "div", 0, 3], ["binary", "add", 1, 2], ["binary", "div_no_nan", 8, 9],
        ],
        "outputs": [[7, 10, []]],
    },
    "rounded": {
        "digits": [2, 3],
        "factors": [],
        "lemmas": [],
        "steps": [
            ["input", 0, [[0], [1]]], ["input", 1, [[0], [1]]], ["binary", "add", 0, 1], ["unary", "round_bfloat16", 2],
            ["binary", "add", 1, 0], ["unary", "round_bfloat16", 4],
        ],
        "outputs": [[3, 5, []]],
    },
}  # fmt: skip


def text(name: str, *edits: Sequence[Any]) -> str:
    """A proof as JSON, with edits: each a path and the value to put there, or a path and a function of the old one."""
    found = {"version": 2, "atoms": [], "bases": [], **copy.deepcopy(PROOFS[name])}
    for *path, last, new in edits:
        place: Any = found
        for key in path:
            place = place[key]
        place[last] = new(place[last]) if callable(new) else new
    return json.dumps(found)


@cache
def true_proofs(size: str = "small") -> tuple[tuple[Pair, str], ...]:
    """The pairs of tests/prove, small or at real extents, with what the prover writes; small ones also by hand.

    A proof in two halves is two, each with its own pair.
    """
    found: list[tuple[Pair, str]] = []
    for item in load("prove"):
        program, candidate = item.tiny() if size == "small" else item.real()
        verdict = prove(program, candidate)
        assert isinstance(verdict, Equivalent), item.name
        if verdict.proof.startswith(b"["):
            _, *proofs = json.loads(verdict.proof)
            for (what, mine, theirs), proof in zip(split_proof_obligation(program, candidate), proofs, strict=True):
                found.append(((f"{item.name}: {what}", mine, theirs), proof))
        else:
            found.append(((item.name, program, candidate), verdict.proof.decode()))
    if size == "small":
        found += [((name, *pair), text(name)) for name, pair in PAIRS.items()]
    return tuple(found)


@cache
def _false_proof(name: str, number: int) -> tuple[Pair, str] | None:
    label, program, candidate = CASES[number]
    with faulty(name) as proof:
        made = proof(program, candidate)
    return None if made is None else ((f"{label}, {name}", program, candidate), made.decode())


def false_proofs(of: int = 1) -> tuple[tuple[Pair, str], ...]:
    """What a prover with a seeded fault writes about pairs that are not equal: each fault about every so-manieth."""
    tried = [(name, i) for turn, name in enumerate(FAULTS) for i in range(turn % of, len(CASES), of)]
    return tuple(found for name, i in tried if (found := _false_proof(name, i)) is not None)


def false_proof(rng: random.Random) -> tuple[Pair, str]:
    """Any of them: few trials need few of them."""
    while (found := _false_proof(rng.choice(tuple(FAULTS)), rng.randrange(len(CASES)))) is None:
        pass
    return found
