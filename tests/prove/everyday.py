"""Functions, extremes, constants, slices and pads as programs of every day have them."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.graph.ops import OpKind
from tests.kit.graphs.function_values import METHODS
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, of_functions, on, pair

A = 96
N = 11008


def two(a: int, n: int) -> Shapes:
    return {"X": (a, n), "Y": (a, n)}


def equal_sums(kind: OpKind, a: int = A, n: int = N) -> Pair:
    """Of equal arguments every function has equal values."""
    return pair(
        two(a, n),
        lambda g, x, y: getattr(g, kind.value)(x + y) * x,
        lambda g, x, y: x * getattr(g, kind.value)(y + x),
    )


FUNCTIONS_OF_EQUAL_SUMS = of_functions("everyday", equal_sums, [(kind,) for kind in METHODS], "{0}_of_equal_sums")


@claim(a=2, n=3)
def tanh_as_a_sigmoid(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.tanh(x), lambda g, x: 2 * g.sigmoid(2 * x) - 1)


@claim(a=2, n=3)
def tanh_is_odd(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.tanh(-x), lambda g, x: -g.tanh(x))


@claim(a=2, n=3)
def gelu_with_tanh_regrouped(a: int = A, n: int = N) -> Pair:
    c = Fraction("0.7978845608028654")

    def candidate(g: Graph, x: Tensor) -> Tensor:
        half = x / 2
        return half + half * g.tanh((x**3 * Fraction("0.044715") + x) * c)

    return pair({"X": (a, n)}, lambda g, x: g.gelu(x, approximate="tanh"), candidate)


@claim(a=2, n=3)
def the_logarithm_of_exp(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.log(g.exp(x) * g.exp(y)), lambda g, x, y: x + y)


@claim(a=2, n=3)
def logsumexp_without_its_maximum(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.logsumexp(x, 1), lambda g, x: g.log(g.reduction(g.exp(x), 1)))


@claim(a=2, n=3)
def log_softmax_without_its_maximum(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.log_softmax(x), lambda g, x: x - g.log(g.reduction(g.exp(x), 1)))


@claim(a=2, n=3)
def an_absolute_value_as_a_root(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: abs(x * y), lambda g, x, y: g.sqrt(g.square(y * x)))


@claim(a=2, n=3)
def the_square_of_an_absolute_value(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: abs(x) ** 2, lambda g, x: x**2)


@claim(a=2, n=3, positive=True)
def a_reciprocal_as_a_quotient(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: x * g.reciprocal(y), lambda g, x, y: x / y)


@claim(a=2, n=3, positive=True)
def powers_of_one_number(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x**-1.5 * x**2, lambda g, x: g.sqrt(x))


@claim(a=2, n=3)
def a_constant_through_a_product(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: x * (y + Fraction(1, 3)), lambda g, x, y: x * y + x / 3)


@claim(b=2, k=4, n=3)
def a_constant_through_a_matrix_product(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: (x + 1) @ w,
        lambda g, x, w: x @ w + g.reduction(w, 0),
    )


@claim(a=2, n=3)
def the_larger_of_two_in_either_order(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.maximum(x, y), lambda g, x, y: g.maximum(y, x))


@claim(a=2, n=3)
def the_largest_of_three(a: int = A, n: int = N) -> Pair:
    return pair(
        {**two(a, n), "Z": (a, n)},
        lambda g, x, y, z: g.maximum(g.maximum(x, y), z),
        lambda g, x, y, z: g.maximum(x, g.maximum(z, y)),
    )


@claim(a=2, n=3)
def the_smaller_of_two_by_the_larger(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.minimum(x, y), lambda g, x, y: -g.maximum(-y, -x))


@claim(a=2, n=4)
def the_largest_of_two_halves(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.max(g.concat([x, y], 1), 1),
        lambda g, x, y: g.maximum(g.max(y, 1), g.max(x, 1)),
    )


@claim(a=2, n=3)
def a_choice_by_a_mask(a: int = A, n: int = N) -> Pair:
    return pair(
        {"M": (a, n), **two(a, n)},
        lambda g, m, x, y: g.where(m, x, y),
        lambda g, m, x, y: y + m * (x - y),
    )


@claim(a=2, n=3)
def leaky_relu_by_two_relus(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.leaky_relu(x, 0.25),
        lambda g, x: x / 4 + g.relu(x) * Fraction(3, 4),
    )


@claim(a=2, n=6)
def slices_put_together(a: int = A, n: int = 6144) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.exp(x),
        lambda g, x: g.concat([g.exp(x[:, : n // 3]), g.exp(x[:, n // 3 :])], 1),
    )


@claim(a=2, n=6)
def a_slice_of_a_slice(a: int = A, n: int = 6144) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x[:, 1:-1][:, 1:] + 1, lambda g, x: 1 + x[:, 2:-1])


@claim(b=2, k=4, n=6)
def a_slice_of_a_product_by_that_of_its_weight(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: (x @ w)[:, : n // 2],
        lambda g, x, w: x @ w[:, : n // 2],
    )


@claim(b=2, k=4, n=6)
def one_product_for_two(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    """A gate and its values from one product with both weights side by side."""

    def candidate(g: Graph, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        first, second = (x @ g.concat([v, w], 1)).chunk(2, dim=1)
        return g.silu(first) * second

    return pair({"X": (b, k), "V": (k, n), "W": (k, n)}, lambda g, x, v, w: g.silu(x @ v) * (x @ w), candidate)


@claim(a=2, n=4)
def a_pad_cut_off_again(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.square(x), lambda g, x: x.pad(1, 3, 2)[:, 3:-2] ** 2)


@claim(b=2, k=4, n=3)
def a_product_with_padded_operands(b: int = 16, k: int = 4095, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: x @ w,
        lambda g, x, w: x.pad(1, 0, 1) @ w.pad(0, 0, 1),
    )


@claim(a=2, n=4)
def a_sum_of_what_is_padded(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.reduction(x.pad(1, 1, 2), 1), lambda g, x: g.reduction(x, 1))


@claim(a=4, n=3)
def a_fused_gate(a: int = A, n: int = 4096) -> Pair:
    """Functions and constants inside a block, beside the same as kernels."""

    def fused(block: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
        gate = block.tanh(x) * block.reciprocal(block.exp(y) + 1)
        largest = block.minimum(block.maximum(gate, y), abs(x))
        return block.forloop_accum(largest), on(0)

    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return kernel(g, (4,), [(x, on(0)), (y, on(0))], fused)

    return pair(
        two(a, n),
        lambda g, x, y: g.minimum(g.maximum(y, g.tanh(x) / (1 + g.exp(y))), abs(x)),
        candidate,
    )
