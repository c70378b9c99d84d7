"""Faults that others reported in public: compilers, converters and kernels that compute something else.

Every row has the address of the report, what the report says, and what was left out to write it in our language.
Programs and rewritings are written anew, at extents of our own. Some have a third graph: a right form, which must be
proved.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from mirage_formal import Graph, Tensor
from mirage_formal.graph.graph import KernelGraph
from tests.kit.proofs.claims import Claim, Shapes, program

GITHUB = "https://github.com/"
EPS = Fraction(1, 100_000)


class Rewriting(NamedTuple):
    """A program, what it was rewritten to, and a right form if there is one."""

    program: KernelGraph
    wrong: KernelGraph
    right: KernelGraph | None


class Fault(NamedTuple):
    """A reported fault.

    Attributes:
        name: That of the function.
        report: The address of the report.
        said: What is computed instead of what, as reported.
        ours: What was left out or changed.
        made: Makes the graphs, at small extents unless it is given others.
    """

    name: str
    report: str
    said: str
    ours: str
    made: Callable[..., Rewriting]


FAULTS: list[Fault] = []


def fault(report: str, said: str, ours: str, **small: int) -> Callable[[Callable[..., Rewriting]], Claim]:
    """Makes a claim and a row of FAULTS of a function; the keywords are its small extents."""

    def made(build: Callable[..., Rewriting]) -> Claim:
        FAULTS.append(Fault(build.__name__, GITHUB + report, said, ours, partial(build, **small)))
        return Claim(f"public_faults.{build.__name__}", lambda **sizes: build(**sizes)[:2], small, False, False)

    return made


def rewriting(
    inputs: Shapes,
    left: Callable[..., object],
    wrong: Callable[..., object],
    right: Callable[..., object] | None = None,
) -> Rewriting:
    return Rewriting(program(inputs, left), program(inputs, wrong), None if right is None else program(inputs, right))


# --- attention -------------------------------------------------------------------------------------------------------


def qkv(m: int, d: int, n: int) -> Shapes:
    return {"Q": (m, d), "K": (d, n), "V": (n, d)}


def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return g.softmax(q @ k, -1) @ v


def attention_by_rows(g: Graph, q: Tensor, k: Tensor, v: Tensor, seen: Callable[[int], tuple[int, int]]) -> Tensor:
    """Attention whose query i sees the keys from seen(i)[0] up to, and without, seen(i)[1]."""
    rows = []
    for i in range(q.shape[0]):
        first, last = seen(i)
        rows.append(attention(g, q[i : i + 1], k[:, first:last], v[first:last]))
    return g.concat(rows, 0) if len(rows) > 1 else rows[0]


@fault(
    "pytorch/pytorch/issues/195320",
    "A fusion takes keys that are permuted to (batch, head, dim, token) for keys whose last two dims are transposed.",
    "as many heads as tokens, so that shapes agree; no scale",
    b=1,
    n=2,
    d=2,
)
def permuted_keys_taken_for_transposed_keys(b: int = 2, n: int = 8, d: int = 64) -> Rewriting:
    def heads(g: Graph, x: Tensor) -> Tensor:
        return g.permute(x, 0, 2, 1, 3)

    return rewriting(
        {"Q": (b, n, n, d), "K": (b, n, n, d), "V": (b, n, n, d)},
        lambda g, q, k, v: attention(g, heads(g, q), g.permute(k, 0, 2, 3, 1), heads(g, v)),
        lambda g, q, k, v: attention(g, heads(g, q), g.transpose(k, 2, 3), heads(g, v)),
        lambda g, q, k, v: attention(g, heads(g, q), g.transpose(heads(g, k), 2, 3), heads(g, v)),
    )


@fault(
    "pytorch/pytorch/issues/196468",
    "A fusion replaces a softmax over the first dim of the scores by one over the last.",
    "three dims, no dropout",
    b=2,
    m=2,
    d=2,
    n=3,
)
def softmax_over_another_dim_than_the_last(b: int = 2, m: int = 64, d: int = 64, n: int = 96) -> Rewriting:
    scale = Fraction(1, 128)
    return rewriting(
        {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, d)},
        lambda g, q, k, v: g.softmax(g.scale(q @ k, scale), 0) @ v,
        lambda g, q, k, v: g.softmax(g.scale(q @ k, scale), 2) @ v,
        lambda g, q, k, v: g.softmax(g.scale(q, scale) @ k, 0) @ v,
    )


@fault(
    "pytorch/pytorch/issues/174049",
    "A fusion ignores the number by which scores are divided and divides them by the root of the dim of a head.",
    "a rational number, a dim that is a square",
    m=2,
    r=2,
    n=3,
)
def scale_of_the_program_ignored(m: int = 64, r: int = 8, n: int = 96) -> Rewriting:
    def masked(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, factor: Fraction) -> Tensor:
        return g.softmax(g.scale(q @ k, factor) + mask, 1) @ v

    return rewriting(
        {**qkv(m, r * r, n), "M": (m, n)},
        lambda g, q, k, v, mask: masked(g, q, k, v, mask, Fraction(3)),
        lambda g, q, k, v, mask: masked(g, q, k, v, mask, Fraction(1, r)),
        lambda g, q, k, v, mask: g.softmax(g.scale(q, 3) @ k + mask, 1) @ v,
    )


@fault(
    "AI-Hypercomputer/maxtext/issues/1370",
    "Scores are divided by dim ** -0.5 where they should be divided by dim ** 0.5.",
    "plain attention, a dim that is a square",
    m=2,
    r=2,
    n=3,
)
def scale_reversed(m: int = 64, r: int = 8, n: int = 96) -> Rewriting:
    return rewriting(
        qkv(m, r * r, n),
        lambda g, q, k, v: attention(g, g.scale(q, Fraction(1, r)), k, v),
        lambda g, q, k, v: attention(g, g.scale(q, r), k, v),
        lambda g, q, k, v: g.softmax(g.scale(q @ k, Fraction(1, r)), 1) @ v,
    )


@fault(
    "sgl-project/sgl-kernel-xpu/pull/491",
    "A kernel drops the soft cap c tanh(s / c) of the scores s.",
    "one head, the cap 2",
    m=2,
    d=2,
    n=3,
)
def soft_cap_dropped(m: int = 64, d: int = 64, n: int = 64) -> Rewriting:
    cap = Fraction(2)
    return rewriting(
        qkv(m, d, n),
        lambda g, q, k, v: g.softmax(g.scale(g.tanh(g.scale(q @ k, 1 / cap)), cap), 1) @ v,
        attention,
        lambda g, q, k, v: g.softmax(g.scale(g.tanh(g.scale(q, 1 / cap) @ k), cap), 1) @ v,
    )


@fault(
    "tenstorrent/tt-metal/pull/56406",
    "A kernel scales scores and the mask that is added to them, where only scores are to be scaled.",
    "one head, a dim that is a square",
    m=2,
    r=2,
    n=3,
)
def mask_scaled_with_the_scores(m: int = 64, r: int = 8, n: int = 96) -> Rewriting:
    scale = Fraction(1, r)
    return rewriting(
        {**qkv(m, r * r, n), "M": (m, n)},
        lambda g, q, k, v, mask: g.softmax(g.scale(q @ k, scale) + mask, 1) @ v,
        lambda g, q, k, v, mask: g.softmax(g.scale(q @ k + mask, scale), 1) @ v,
        lambda g, q, k, v, mask: g.softmax(g.scale(q @ k + g.scale(mask, r), scale), 1) @ v,
    )


@fault(
    "emmtrix/emx-onnx-cgen/pull/731",
    "Generated code applies the soft cap to scores with their bias, where the bias belongs behind the cap.",
    "the weights of one head, the cap 2",
    m=2,
    d=2,
    n=3,
)
def soft_cap_of_scores_with_their_bias(m: int = 64, d: int = 64, n: int = 64) -> Rewriting:
    def capped(g: Graph, scores: Tensor) -> Tensor:
        return g.scale(g.tanh(g.scale(scores, Fraction(1, 2))), 2)

    return rewriting(
        {"Q": (m, d), "K": (d, n), "bias": (m, n)},
        lambda g, q, k, bias: g.softmax(capped(g, q @ k) + bias, 1),
        lambda g, q, k, bias: g.softmax(capped(g, q @ k + bias), 1),
    )


@fault(
    "NVIDIA/cutlass/issues/2336",
    "With fewer queries than keys, the causal mask is aligned with the first key, where FlashAttention takes the last.",
    "the mask as slices of keys",
    m=2,
    d=2,
    n=3,
)
def causal_mask_at_the_other_corner(m: int = 3, d: int = 64, n: int = 96) -> Rewriting:
    return rewriting(
        qkv(m, d, n),
        lambda g, q, k, v: attention_by_rows(g, q, k, v, lambda i: (0, i + 1 + n - m)),
        lambda g, q, k, v: attention_by_rows(g, q, k, v, lambda i: (0, i + 1)),
    )


@fault(
    "onnx/onnx/pull/8068",
    "The causal mask of one new query sees only the first of the cached keys.",
    "the mask as slices of keys, one query",
    d=2,
    n=3,
)
def new_query_sees_the_first_key_only(d: int = 64, n: int = 96) -> Rewriting:
    return rewriting(qkv(1, d, n), attention, lambda g, q, k, v: attention_by_rows(g, q, k, v, lambda i: (0, i + 1)))


@fault(
    "huggingface/transformers/issues/39408",
    "A window of w keys is given to a kernel that counts the keys before the query, so that w + 1 keys are seen.",
    "the mask as slices of keys, a window of two",
    n=3,
    d=2,
)
def window_of_one_key_too_many(n: int = 6, d: int = 64) -> Rewriting:
    return rewriting(
        qkv(n, d, n),
        lambda g, q, k, v: attention_by_rows(g, q, k, v, lambda i: (max(0, i - 1), i + 1)),
        lambda g, q, k, v: attention_by_rows(g, q, k, v, lambda i: (max(0, i - 2), i + 1)),
    )


@fault(
    "onnx/onnx/pull/7274",
    "Keys and values of grouped heads are repeated as 0, 1, 0, 1 where 0, 0, 1, 1 is meant.",
    "no batch, no scale",
    h=2,
    r=2,
    m=2,
    n=3,
    d=2,
)
def heads_tiled_for_interleaved(h: int = 4, r: int = 2, m: int = 64, n: int = 96, d: int = 64) -> Rewriting:
    def grouped(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return g.reshape(attention(g, g.reshape(q, h, r * m, d), k, v), h * r, m, d)

    return rewriting(
        {"Q": (h * r, m, d), "K": (h, d, n), "V": (h, n, d)},
        lambda g, q, k, v: attention(g, q, g.repeat_interleave(k, r, 0), g.repeat_interleave(v, r, 0)),
        lambda g, q, k, v: attention(g, q, g.concat([k] * r, 0), g.concat([v] * r, 0)),
        grouped,
    )


@fault(
    "apple/axlearn/pull/842",
    "Keys of grouped heads are repeated as 0, 1, 0, 1 where 0, 0, 1, 1 is meant.",
    "the repeated keys alone",
    h=2,
    n=3,
)
def keys_tiled_for_interleaved(h: int = 4, n: int = 96) -> Rewriting:
    return rewriting(
        {"K": (n, h, 2)},
        lambda g, k: g.repeat_interleave(k, 2, 1),
        lambda g, k: g.concat([k, k], 1),
        lambda g, k: g.reshape(g.concat([g.reshape(k, n, h, 1, 2)] * 2, 2), n, 2 * h, 2),
    )


# --- rotary embeddings -----------------------------------------------------------------------------------------------


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    middle = x.shape[1] // 2
    return x[:, :middle], x[:, middle:]


def rotated(g: Graph, x: Tensor, cos: tuple[Tensor, Tensor], sin: tuple[Tensor, Tensor]) -> Tensor:
    low, high = halves(x)
    return g.concat([low * cos[0] - high * sin[0], high * cos[1] + low * sin[1]], 1)


@fault(
    "Tencent/ncnn/issues/6833",
    "A fusion of a rotary embedding uses the first half of the cosines and sines for both halves of a vector.",
    "one head",
    t=2,
    d=2,
)
def second_half_of_the_angles_dropped(t: int = 64, d: int = 64) -> Rewriting:
    def turned(g: Graph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = halves(x)
        return x * cos + g.concat([-high, low], 1) * sin

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return halves(x)[0], halves(x)[0]

    return rewriting(
        {"X": (t, d), "cos": (t, d), "sin": (t, d)},
        turned,
        lambda g, x, cos, sin: rotated(g, x, twice(cos), twice(sin)),
        lambda g, x, cos, sin: rotated(g, x, halves(cos), halves(sin)),
    )


@fault(
    "hpcaitech/ColossalAI/pull/6444",
    "The second half of the rotated queries is computed from keys, the first half of the rotated keys from queries.",
    "one head of each; only this one of the defects named",
    t=2,
    d=2,
)
def queries_and_keys_crossed(t: int = 64, d: int = 64) -> Rewriting:
    def both(g: Graph, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        return [rotated(g, x, (cos, cos), (sin, sin)) for x in (q, k)]

    def crossed(g: Graph, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        mixed = [halves(q)[0] * cos - halves(q)[1] * sin, halves(k)[1] * cos + halves(k)[0] * sin]
        return [g.concat(mixed, 1), g.scale(g.concat(mixed, 1), 1)]

    return rewriting({"Q": (t, d), "K": (t, d), "cos": (t, d // 2), "sin": (t, d // 2)}, both, crossed)


# --- norms and padded lanes ------------------------------------------------------------------------------------------


def standardized(g: Graph, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (x - mean) / g.sqrt(variance + EPS)


def row_norm(g: Graph, x: Tensor) -> Tensor:
    mean = g.mean(x, 1)
    return standardized(g, x, mean, g.mean(g.square(x - mean), 1))


@fault(
    "triton-lang/triton/issues/9838",
    "A layer norm loads columns padded with 0 and subtracts the mean from them too: each adds its square to the "
    "variance.",
    "no weight, no bias",
    a=2,
    n=3,
    p=4,
)
def variance_of_padded_columns(a: int = 16, n: int = 96, p: int = 128) -> Rewriting:
    def padded(g: Graph, x: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        lanes = g.pad(x, 1, 0, p - n) - mean
        return standardized(g, x, mean, g.scale(g.sum(g.square(lanes), 1), Fraction(1, n)))

    def masked(g: Graph, x: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        lanes = g.pad(x - mean, 1, 0, p - n)
        return standardized(g, x, mean, g.scale(g.sum(g.square(lanes), 1), Fraction(1, n)))

    return rewriting({"X": (a, n)}, row_norm, padded, masked)


@fault(
    "tenstorrent/tt-metal/issues/50682",
    "A group norm takes the mean and the variance over rows that are padded with 0 to whole tiles.",
    "a group of one column",
    n=3,
    p=4,
    c=2,
)
def statistics_of_padded_rows(n: int = 200, p: int = 224, c: int = 64) -> Rewriting:
    def column_norm(g: Graph, x: Tensor) -> Tensor:
        mean = g.mean(x, 0)
        return standardized(g, x, mean, g.mean(g.square(x - mean), 0))

    def padded(g: Graph, x: Tensor) -> Tensor:
        rows = g.pad(x, 0, 0, p - n)
        mean = g.mean(rows, 0)
        return standardized(g, x, mean, g.mean(g.square(rows - mean), 0))

    def corrected(g: Graph, x: Tensor) -> Tensor:
        rows = g.pad(x, 0, 0, p - n)
        mean = g.scale(g.sum(rows, 0), Fraction(1, n))
        squares = g.sum(g.square(rows - mean), 0) - g.scale(g.square(mean), p - n)
        return standardized(g, x, mean, g.scale(squares, Fraction(1, n)))

    return rewriting({"X": (n, c)}, column_norm, padded, corrected)


@fault(
    "pytorch/pytorch/issues/178871",
    "A kernel without a mask adds a broadcast number in the lanes beyond the tensor: one for each lane up to a power "
    "of two.",
    "a sum instead of a scatter into one element",
    n=3,
    p=4,
)
def lanes_beyond_the_tensor_added(n: int = 96, p: int = 128) -> Rewriting:
    return rewriting(
        {"X": (n, 1), "bias": (1, 1)},
        lambda g, x, bias: g.sum(x + bias, 0),
        lambda g, x, bias: g.sum(g.pad(x, 0, 0, p - n) + bias, 0),
        lambda g, x, bias: g.sum(g.pad(x + bias, 0, 0, p - n), 0),
    )


@fault(
    "microsoft/onnxruntime/pull/31144",
    "A fusion takes means that have lost their dim, and so are subtracted along the other one, for a layer norm.",
    "a square matrix, so that shapes agree",
    n=3,
)
def means_along_the_other_dim_fused(n: int = 96) -> Rewriting:
    def without_dim(g: Graph, x: Tensor) -> Tensor:
        centred = x - g.transpose(g.mean(x, 1), 0, 1)
        return centred / g.sqrt(g.transpose(g.mean(g.square(centred), 1), 0, 1) + EPS)

    return rewriting({"X": (n, n)}, without_dim, row_norm)


@fault(
    "xlite-dev/LeetCUDA/issues/309",
    "A layer norm adds eps to the number of columns and not to the variance.",
    "no weight, no bias; eps is 1",
    b=2,
    n=3,
)
def eps_added_to_the_number_of_columns(b: int = 16, n: int = 32) -> Rewriting:
    def centred(g: Graph, x: Tensor) -> Tensor:
        return x - g.mean(x, 1)

    return rewriting(
        {"X": (b, n)},
        lambda g, x: centred(g, x) / g.sqrt(g.mean(g.square(centred(g, x)), 1) + 1),
        lambda g, x: centred(g, x) / g.sqrt(g.scale(g.sum(g.square(centred(g, x)), 1), Fraction(1, n + 1))),
    )


@fault(
    "tensorflow/tensorflow/pull/58863",
    "A fused layer norm does not get the eps of the program and takes its own.",
    "no weight, no bias; 1/10 and 1/1000",
    b=2,
    n=3,
)
def eps_of_the_program_ignored(b: int = 16, n: int = 32) -> Rewriting:
    return rewriting(
        {"X": (b, n)},
        lambda g, x: g.layer_norm(x, eps=Fraction(1, 10)),
        lambda g, x: g.layer_norm(x, eps=Fraction(1, 1000)),
    )


@fault(
    "linkedin/Liger-Kernel/issues/74",
    "An RMS norm multiplies by the weight where the model multiplies by 1 + weight.",
    "no eps",
    b=2,
    n=3,
)
def weight_without_its_offset(b: int = 16, n: int = 96) -> Rewriting:
    return rewriting(
        {"X": (b, n), "weight": (1, n)},
        lambda g, x, weight: g.rms_norm(x) * (1 + weight),
        lambda g, x, weight: g.rms_norm(x) * weight,
        lambda g, x, weight: g.rms_norm(x) + g.rms_norm(x) * weight,
    )


@fault(
    "vllm-project/tpu-inference/pull/3040",
    "An RMS norm multiplies by the weight before the norm and not behind it, as a review found.",
    "no eps, no offset of the weight",
    b=2,
    n=3,
)
def weight_before_the_norm(b: int = 16, n: int = 96) -> Rewriting:
    return rewriting(
        {"X": (b, n), "weight": (1, n)},
        lambda g, x, weight: g.rms_norm(x) * weight,
        lambda g, x, weight: g.rms_norm(x * weight),
    )


# --- products and what is folded into them ---------------------------------------------------------------------------


def xw(m: int, k: int, n: int) -> Shapes:
    return {"X": (m, k), "W": (k, n)}


def split_product(g: Graph, x: Tensor, w: Tensor, step: int, width: int) -> Tensor:
    """The sum of the products of ``width`` columns and rows that begin at the multiples of ``step``."""
    total = x[:, :width] @ w[:width]
    for first in range(step, x.shape[1], step):
        total = total + x[:, first : first + width] @ w[first : first + width]
    return total


def whole_parts(g: Graph, x: Tensor, w: Tensor, parts: int) -> Tensor:
    """The sum of the products of the parts of K, in one batch."""
    (m, k), n = x.shape, w.shape[1]
    batch = g.transpose(g.reshape(x, m, parts, k // parts), 0, 1)
    return g.reshape(g.sum(batch @ g.reshape(w, parts, k // parts, n), 0), m, n)


@fault(
    "ml-explore/mlx/pull/3854",
    "Split-K makes parts of K that are narrower than a tile; each part loads a whole tile and so elements of the next.",
    "no quantization; what lies beyond the last part is left out",
    m=2,
    k=4,
    n=2,
    part=1,
)
def parts_narrower_than_a_tile(m: int = 16, k: int = 64, n: int = 64, part: int = 16) -> Rewriting:
    return rewriting(
        xw(m, k, n),
        lambda g, x, w: x @ w,
        lambda g, x, w: split_product(g, x, w, part, 2 * part),
        lambda g, x, w: whole_parts(g, x, w, k // (2 * part)),
    )


@fault(
    "NVIDIA/TensorRT-LLM/pull/12686",
    "Split-K applies an epilogue such as relu to each partial sum, as an automatic review says.",
    "two parts, relu",
    m=2,
    k=2,
    n=2,
)
def epilogue_of_partial_sums(m: int = 16, k: int = 64, n: int = 64) -> Rewriting:
    def partial(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        return g.relu(x[:, : k // 2] @ w[: k // 2]) + g.relu(x[:, k // 2 :] @ w[k // 2 :])

    return rewriting(
        xw(m, k, n),
        lambda g, x, w: g.relu(x @ w),
        partial,
        lambda g, x, w: g.relu(whole_parts(g, x, w, 2)),
    )


@fault(
    "microsoft/onnxruntime/issues/32228",
    "A fusion takes an identity permutation for a transpose and transposes the first factor of a product.",
    "the identity permutation is left out",
    n=2,
)
def identity_folded_as_a_transpose(n: int = 96) -> Rewriting:
    return rewriting(
        {"A": (n, n), "B": (n, n), "C": (n, n)},
        lambda g, a, b, c: a @ b + c,
        lambda g, a, b, c: g.transpose(a, 0, 1) @ b + c,
    )


@fault(
    "apache/tvm/issues/20277",
    "A pass that reorders products takes an identity permutation of a product for a transpose.",
    "square matrices; the identity permutation is left out",
    n=2,
)
def reordered_as_if_transposed(n: int = 96) -> Rewriting:
    return rewriting(
        {"A": (n, n), "B": (n, n), "C": (n, n)},
        lambda g, a, b, c: a @ (b @ c),
        lambda g, a, b, c: (a @ g.transpose(c, 0, 1)) @ g.transpose(b, 0, 1),
        lambda g, a, b, c: (a @ b) @ c,
    )


def scaled_and_shifted(m: int, k: int, n: int) -> Shapes:
    return {**xw(m, k, n), "bias": (1, n), "scale": (1, n), "shift": (1, n)}


@fault(
    "Tencent/ncnn/issues/1339",
    "A batch norm is folded into a convolution whose bias is not multiplied by the scale of the norm.",
    "a product for the convolution; the norm as one scale and one shift",
    m=2,
    k=2,
    n=2,
)
def bias_not_scaled_by_the_norm(m: int = 16, k: int = 64, n: int = 64) -> Rewriting:
    return rewriting(
        scaled_and_shifted(m, k, n),
        lambda g, x, w, bias, scale, shift: (x @ w + bias) * scale + shift,
        lambda g, x, w, bias, scale, shift: x @ (w * scale) + (bias + shift),
        lambda g, x, w, bias, scale, shift: x @ (w * scale) + (bias * scale + shift),
    )


@fault(
    "microsoft/onnxscript/pull/3027",
    "A batch norm is folded into a Gemm whose factor beta of the bias then multiplies the folded bias.",
    "the norm as one scale and one shift; beta is 2",
    m=2,
    k=2,
    n=2,
)
def beta_of_the_folded_bias(m: int = 16, k: int = 64, n: int = 64) -> Rewriting:
    return rewriting(
        scaled_and_shifted(m, k, n),
        lambda g, x, w, bias, scale, shift: (x @ w + 2 * bias) * scale + shift,
        lambda g, x, w, bias, scale, shift: x @ (w * scale) + 2 * (bias * scale + shift),
        lambda g, x, w, bias, scale, shift: x @ (w * scale) + (2 * bias * scale + shift),
    )


@fault(
    "huggingface/peft/pull/2489",
    "Merging an adapter that has a bias scales its product but not its bias.",
    "the scale is 4",
    m=2,
    k=2,
    n=2,
    r=1,
)
def bias_of_the_adapter_not_scaled(m: int = 16, k: int = 64, n: int = 64, r: int = 8) -> Rewriting:
    return rewriting(
        {**xw(m, k, n), "A": (k, r), "B": (r, n), "bias": (1, n)},
        lambda g, x, w, a, b, bias: x @ w + 4 * ((x @ a) @ b + bias),
        lambda g, x, w, a, b, bias: x @ (w + 4 * (a @ b)) + bias,
        lambda g, x, w, a, b, bias: x @ (w + 4 * (a @ b)) + 4 * bias,
    )


@fault(
    "kohya-ss/sd-scripts/issues/586",
    "Two adapters are merged by adding their factors, which brings cross products.",
    "one layer",
    m=2,
    k=2,
    n=2,
    r=1,
)
def factors_of_two_adapters_added(m: int = 16, k: int = 64, n: int = 64, r: int = 8) -> Rewriting:
    return rewriting(
        {"X": (m, k), "A1": (k, r), "B1": (r, n), "A2": (k, r), "B2": (r, n)},
        lambda g, x, a1, b1, a2, b2: (x @ a1) @ b1 + (x @ a2) @ b2,
        lambda g, x, a1, b1, a2, b2: (x @ (a1 + a2)) @ (b1 + b2),
        lambda g, x, a1, b1, a2, b2: x @ (g.concat(a1, a2, 1) @ g.concat(b1, b2, 0)),
    )


@fault(
    "EricLBuehler/candle-lora/issues/26",
    "A layer with a merged adapter adds the adapter again.",
    "a product for the embedding",
    m=2,
    k=2,
    n=2,
    r=1,
)
def merged_adapter_added_again(m: int = 16, k: int = 64, n: int = 64, r: int = 8) -> Rewriting:
    return rewriting(
        {**xw(m, k, n), "A": (k, r), "B": (r, n)},
        lambda g, x, w, a, b: x @ w + (x @ a) @ b,
        lambda g, x, w, a, b: x @ (w + a @ b) + (x @ a) @ b,
        lambda g, x, w, a, b: x @ (w + a @ b),
    )


# --- moves, softmax and pools ----------------------------------------------------------------------------------------


@fault(
    "pytorch/pytorch/pull/99700",
    "A split and a concatenation of its parts in another order are removed as if the order were the same.",
    "two parts",
    a=2,
    n=3,
)
def parts_concatenated_in_another_order(a: int = 16, n: int = 96) -> Rewriting:
    return rewriting(
        {"X": (a, n)}, lambda g, x: g.concat(x[:, n // 2 :], x[:, : n // 2], 1), lambda g, x: g.scale(x, 1)
    )


@fault(
    "onnx/onnx/issues/2446",
    "Two transposes are fused to one whose permutation is composed in the wrong order.",
    "equal extents, so that shapes agree",
    n=2,
)
def permutations_composed_in_the_wrong_order(n: int = 32) -> Rewriting:
    return rewriting(
        {"X": (n, n, n)},
        lambda g, x: g.permute(g.permute(x, 1, 0, 2), 0, 2, 1),
        lambda g, x: g.permute(x, 2, 0, 1),
        lambda g, x: g.permute(x, 1, 2, 0),
    )


@fault(
    "alibaba/BladeDISC/pull/638",
    "A transpose is moved behind an operator: operands get its permutation where they need the inverse.",
    "an addition, equal extents",
    n=2,
)
def permutation_for_its_inverse(n: int = 32) -> Rewriting:
    def moved(g: Graph, x: Tensor, y: Tensor, *before: int) -> Tensor:
        return g.permute(g.permute(x, *before) + g.permute(y, *before), 1, 2, 0)

    return rewriting(
        {"X": (n, n, n), "Y": (n, n, n)},
        lambda g, x, y: x + y,
        lambda g, x, y: moved(g, x, y, 1, 2, 0),
        lambda g, x, y: moved(g, x, y, 2, 0, 1),
    )


@fault(
    "microsoft/onnxruntime/pull/12517",
    "A fused bias and softmax over a dim that is not the last normalizes over this dim and all behind it.",
    "three dims, a bias of the same shape",
    a=2,
    m=2,
    n=2,
)
def softmax_over_the_dims_behind(a: int = 16, m: int = 32, n: int = 32) -> Rewriting:
    def fused(g: Graph, x: Tensor, bias: Tensor) -> Tensor:
        return g.reshape(g.softmax(g.reshape(x + bias, a, m * n), 1), a, m, n)

    return rewriting(
        {"X": (a, m, n), "bias": (a, m, n)},
        lambda g, x, bias: g.softmax(x + bias, 1),
        fused,
        lambda g, x, bias: g.transpose(g.softmax(g.transpose(x + bias, 1, 2), 2), 1, 2),
    )


@fault(
    "triton-lang/triton/issues/11406",
    "A softmax over the columns that drops the reduced dim subtracts maxima, and divides by sums, of other rows.",
    "a square matrix as in the report",
    n=2,
)
def maxima_and_sums_of_other_rows(n: int = 32) -> Rewriting:
    def of_rows(g: Graph, x: Tensor) -> Tensor:
        shifted = g.exp(x - g.max(x, 1))
        return shifted / g.sum(shifted, 1)

    def dropped(g: Graph, x: Tensor) -> Tensor:
        shifted = g.exp(x - g.transpose(g.max(x, 1), 0, 1))
        return shifted / g.transpose(g.sum(shifted, 1), 0, 1)

    return rewriting({"X": (n, n)}, of_rows, dropped, lambda g, x: g.softmax(x, 1))


@fault(
    "neo-ai/tvm/issues/32",
    "An average pool that counts padded elements becomes one that does not.",
    "one dim, windows of three",
    a=2,
    n=3,
)
def padded_elements_not_counted(a: int = 16, n: int = 96) -> Rewriting:
    def sums(g: Graph, x: Tensor) -> Tensor:
        wide = g.pad(x, 1, 1, 1)
        return wide[:, :n] + wide[:, 1 : n + 1] + wide[:, 2:]

    def without_padding(g: Graph, x: Tensor) -> Tensor:
        found = sums(g, x)
        return g.concat([found[:, :1] / 2, found[:, 1 : n - 1] / 3, found[:, n - 1 :] / 2], 1)

    return rewriting({"X": (a, n)}, lambda g, x: sums(g, x) / 3, without_padding)


@fault(
    "sonos/tract/pull/2654",
    "An average pool that counts padded elements is stored as one that does not: 4 is the divisor instead of 9.",
    "one window of 3 x 3 that holds four elements",
    a=2,
)
def divisor_of_a_padded_window(a: int = 96) -> Rewriting:
    return rewriting(
        {"X": (a, 2, 2)},
        lambda g, x: g.mean(g.pad(g.pad(x, 1, 0, 1), 2, 0, 1), (1, 2)),
        lambda g, x: g.mean(x, (1, 2)),
    )


@fault(
    "microsoft/onnxruntime/issues/16203",
    "The last window of an average pool, which leaves the tensor, is divided by its whole size, other than in PyTorch.",
    "one dim, no padding, two windows of three elements",
    a=2,
)
def last_window_divided_by_the_whole_size(a: int = 96) -> Rewriting:
    return rewriting(
        {"X": (a, 4)},
        lambda g, x: g.concat(g.mean(x[:, :3], 1), g.mean(x[:, 2:], 1), 1),
        lambda g, x: g.concat(g.mean(x[:, :3], 1), g.sum(x[:, 2:], 1) / 3, 1),
    )


# --- functions of one element ----------------------------------------------------------------------------------------


@fault(
    "hidet-org/hidet/issues/97",
    "A clip loses its bounds when it is fused.",
    "a clip without bounds is the identity",
    a=2,
    n=2,
)
def bounds_of_a_clip_dropped(a: int = 16, n: int = 96) -> Rewriting:
    return rewriting({"X": (a, n)}, lambda g, x: g.clamp(x, -1, 1), lambda g, x: g.scale(x, 1))


@fault(
    "pytorch/pytorch/pull/35705",
    "A clamp to (0, 6) that is fused into a product clamped to (-1, 1) replaces its bounds, as a review found.",
    "a product for the convolution",
    m=4,
    k=6,
    n=4,
)
def bounds_of_the_second_clamp_only(m: int = 16, k: int = 64, n: int = 64) -> Rewriting:
    return rewriting(
        xw(m, k, n),
        lambda g, x, w: g.clamp(g.clamp(x @ w, -1, 1), 0, 6),
        lambda g, x, w: g.clamp(x @ w, 0, 6),
    )


@fault(
    "tensorflow/tensorflow/issues/24566",
    "A leaky relu is computed as max(x, alpha x), which is another function where alpha is above 1.",
    "alpha is 2",
    a=2,
    n=2,
)
def leaky_relu_as_a_maximum(a: int = 16, n: int = 96) -> Rewriting:
    return rewriting(
        {"X": (a, n)},
        lambda g, x: g.select(g.gt(x, 0), x, 2 * x),
        lambda g, x: g.maximum(x, 2 * x),
    )


@fault(
    "apache/tvm/pull/1218",
    "A leaky relu ignores the slope that it is given and takes 0.1.",
    "the slope 1/4",
    a=2,
    n=2,
)
def slope_of_the_program_ignored(a: int = 16, n: int = 96) -> Rewriting:
    return rewriting(
        {"X": (a, n)},
        lambda g, x: g.leaky_relu(x, Fraction(1, 4)),
        lambda g, x: g.leaky_relu(x, Fraction(1, 10)),
    )


@fault(
    "open-mmlab/mmcv/issues/2620",
    "The gradient of a scaled leaky relu looks at the sign of its result, which a negative scale turns.",
    "no bias; the scale is -1, the slope 1/5",
    a=2,
    n=2,
)
def sign_of_a_result_with_a_negative_scale(a: int = 16, n: int = 96) -> Rewriting:
    slope = Fraction(1, 5)
    return rewriting(
        {"X": (a, n), "D": (a, n)},
        lambda g, x, d: -g.select(g.gt(x, 0), d, slope * d),
        lambda g, x, d: -g.select(g.gt(-g.leaky_relu(x, slope), 0), d, slope * d),
        lambda g, x, d: g.select(g.gt(x, 0), -d, -slope * d),
    )


@fault(
    "PaddlePaddle/Paddle/pull/19833",
    "The gradient of a leaky relu asks whether its result is at least 0, which is always so where the slope is 0.",
    "the slope is 0 from the start",
    a=2,
    n=2,
)
def sign_of_a_result_with_the_slope_0(a: int = 16, n: int = 96) -> Rewriting:
    return rewriting(
        {"X": (a, n), "D": (a, n)},
        lambda g, x, d: g.select(g.ge(x, 0), d, 0),
        lambda g, x, d: g.select(g.ge(g.relu(x), 0), d, 0),
    )
