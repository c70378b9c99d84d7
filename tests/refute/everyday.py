"""False identities of the functions, extremes, constants, slices and pads of everyday programs."""

from fractions import Fraction
from itertools import pairwise

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.graph.ops import OpKind
from tests.kit.graphs.function_values import METHODS
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, of_functions, on, pair

A = 96
N = 11008


def two(a: int, n: int) -> Shapes:
    return {"X": (a, n), "Y": (a, n)}


def one_for_the_other(first: OpKind, second: OpKind, a: int = A, n: int = N) -> Pair:
    """Two functions have different values."""
    return pair({"X": (a, n)}, lambda g, x: getattr(g, first.value)(x), lambda g, x: getattr(g, second.value)(x))


FUNCTIONS_FOR_OTHERS = of_functions("everyday", one_for_the_other, list(pairwise(METHODS)), "{0}_for_{1}")


@claim(a=2, n=3)
def tanh_as_a_sigmoid_of_the_same(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.tanh(x), lambda g, x: 2 * g.sigmoid(x) - 1)


@claim(a=2, n=3)
def gelu_with_tanh_without_its_cube(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.gelu(x, approximate="tanh"),
        lambda g, x: x / 2 * (1 + g.tanh(x * Fraction("0.7978845608028654"))),
    )


@claim(a=2, n=3, positive=True)
def the_logarithm_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.log(x + y), lambda g, x, y: g.log(x) + g.log(y))


@claim(a=2, n=3)
def the_logarithm_of_a_sum_of_exps(a: int = A, n: int = 96) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.log(g.sum(g.exp(x), 1)), lambda g, x: g.sum(x, 1))


@claim(a=2, n=3, positive=True)
def the_logarithm_of_a_shifted_number(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.log(x + 1), lambda g, x: g.log(x) + 1)


@claim(a=2, n=3)
def an_absolute_value_forgotten(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: abs(x), lambda g, x: 1 * x)


@claim(a=2, n=3)
def the_absolute_value_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: abs(x + y), lambda g, x, y: abs(x) + abs(y))


@claim(a=2, n=3, positive=True)
def the_reciprocal_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: 1 / (x + y), lambda g, x, y: 1 / x + 1 / y)


@claim(a=2, n=3)
def a_constant_with_the_wrong_sign(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: 1 - x, lambda g, x: x - 1)


@claim(a=2, n=3)
def a_constant_that_is_nearly_right(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x + Fraction(1, 3), lambda g, x: x + Fraction(33, 100))


@claim(a=2, n=3)
def a_constant_not_multiplied(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: x * (y + 1), lambda g, x, y: x * y + 1)


@claim(a=2, n=3)
def the_smaller_for_the_larger(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.maximum(x, y), lambda g, x, y: g.minimum(x, y))


@claim(a=2, n=3)
def the_larger_of_sums(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.maximum(2 * x, y), lambda g, x, y: 2 * g.maximum(x, y))


@claim(a=2, n=3)
def a_negative_through_the_larger(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.maximum(-x, -y), lambda g, x, y: -g.maximum(x, y))


@claim(a=2, n=3)
def bounds_in_the_other_order(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x.clamp(1, -1), lambda g, x: x.minimum(-1).maximum(1))


@claim(a=2, n=3)
def a_mask_the_other_way_round(a: int = A, n: int = N) -> Pair:
    return pair({"M": (a, n), **two(a, n)}, lambda g, m, x, y: g.where(m, x, y), lambda g, m, x, y: g.where(m, y, x))


@claim(a=2, n=4)
def the_other_half(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x[:, : n // 2], lambda g, x: x[:, n // 2 :])


@claim(a=2, n=5)
def a_slice_one_place_off(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x[:, 1:-1][:, 1:-1], lambda g, x: x[:, 1:-3])


@claim(a=2, n=4)
def halves_in_the_other_order(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: 1 * x,
        lambda g, x: g.concat([x[:, n // 2 :], x[:, : n // 2]], 1),
    )


@claim(a=2, n=4)
def zeros_on_the_other_side(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x.pad(1, 1, 0), lambda g, x: x.pad(1, 0, 1))


@claim(a=2, n=4)
def zeros_where_there_are_ones(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: x.pad(1, 1, 1), lambda g, x: x.pad(1, 1, 1, value=1))


@claim(a=2, n=4)
def a_mean_of_what_is_padded(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.mean(x.pad(1, 1, 2), 1), lambda g, x: g.mean(x, 1))


@claim(a=2, n=4)
def the_exponential_of_zeros(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(x.pad(1, 1, 0)), lambda g, x: g.exp(x).pad(1, 1, 0))


@claim(a=4, n=3)
def a_fused_gate_of_the_other_input(a: int = A, n: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        def body(block: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
            return block.forloop_accum(block.tanh(y) * block.reciprocal(block.exp(y) + 1)), on(0)

        return kernel(g, (4,), [(x, on(0)), (y, on(0))], body)

    return pair(two(a, n), lambda g, x, y: g.tanh(x) / (1 + g.exp(y)), candidate)
