"""Identities of fields, exp, roots and activations, element by element."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair

A = 96
N = 11008


def two(a: int, n: int) -> Shapes:
    return {"X": (a, n), "Y": (a, n)}


def one(g: Graph, x: Tensor) -> Tensor:
    return g.exp(g.scale(x, 0))


@claim(a=2, n=3)
def exp_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.exp(x + y), lambda g, x, y: g.exp(y) * g.exp(x))


@claim(a=2, n=3)
def exp_of_a_difference(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.exp(g.sub(x, y)), lambda g, x, y: g.exp(x) / g.exp(y))


@claim(a=2, n=3)
def exp_of_a_negative(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(-x), lambda g, x: one(g, x) / g.exp(x))


@claim(a=2, n=3)
def exp_of_twice(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(g.scale(x, 2)), lambda g, x: g.square(g.exp(x)))


@claim(a=2, n=3)
def the_root_of_exp(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sqrt(g.exp(x)), lambda g, x: g.exp(g.div(x, 2)))


@claim(a=2, n=3)
def the_square_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.square(x + y),
        lambda g, x, y: g.square(x) + g.scale(x * y, 2) + g.square(y),
    )


@claim(a=2, n=3)
def a_difference_of_squares(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.sub(x * x, y * y), lambda g, x, y: (x + y) * g.sub(x, y))


@claim(a=2, n=3, positive=True)
def quotients_of_quotients(a: int = A, n: int = N) -> Pair:
    return pair({**two(a, n), "Z": (a, n)}, lambda g, x, y, z: x / (y / z), lambda g, x, y, z: (x * z) / y)


@claim(a=2, n=3, positive=True)
def a_sum_of_quotients(a: int = A, n: int = N) -> Pair:
    return pair(
        {"P": (a, n), "Q": (a, n), "R": (a, n), "S": (a, n)},
        lambda g, p, q, r, s: p / q + r / s,
        lambda g, p, q, r, s: (p * s + r * q) / (q * s),
    )


@claim(a=2, n=3, positive=True)
def a_common_denominator(a: int = A, n: int = N) -> Pair:
    return pair({**two(a, n), "Z": (a, n)}, lambda g, x, y, z: (x + y) / z, lambda g, x, y, z: x / z + y / z)


@claim(a=2, n=3, positive=True)
def a_nested_fraction(a: int = A, n: int = N) -> Pair:
    """1 / (1/x + 1/y) = x y / (x + y)."""
    return pair(
        two(a, n),
        lambda g, x, y: one(g, x) / (one(g, x) / x + one(g, x) / y),
        lambda g, x, y: (x * y) / (x + y),
    )


@claim(a=2, n=3, positive=True)
def the_square_of_a_root(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.square(g.sqrt(x)) + y, lambda g, x, y: x + y)


@claim(a=2, n=3, positive=True)
def a_number_over_its_root(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: (y * x) / g.sqrt(x), lambda g, x, y: g.sqrt(x) * y)


@claim(a=2, n=3)
def the_root_of_a_sum_of_squares_squared(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.square(g.sqrt(g.square(x) + g.square(y))),
        lambda g, x, y: g.square(x) + g.square(y),
    )


@claim(a=2, n=3)
def root_of_four_times(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.sqrt(g.scale(g.exp(x) + g.exp(y), 4)),
        lambda g, x, y: g.scale(g.sqrt(g.exp(x) + g.exp(y)), 2),
    )


@claim(a=2, n=3)
def sigmoid_of_a_negative(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sigmoid(-x), lambda g, x: g.sub(one(g, x), g.sigmoid(x)))


@claim(a=2, n=3)
def sigmoid_by_exp(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sigmoid(x), lambda g, x: g.exp(x) / (one(g, x) + g.exp(x)))


@claim(a=2, n=3)
def sigmoid_is_a_softmax_of_two(a: int = A, n: int = N) -> Pair:
    def program(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return g.sigmoid(g.sub(x, y))

    return pair(two(a, n), program, lambda g, x, y: g.exp(x) / (g.exp(x) + g.exp(y)))


@claim(a=2, n=3)
def silu_twice_over(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.silu(x) + g.silu(-x),
        lambda g, x: x * g.sub(g.scale(g.sigmoid(x), 2), one(g, x)),
    )


@claim(a=2, n=3)
def a_hyperbolic_tangent(a: int = A, n: int = N) -> Pair:
    def program(g: Graph, x: Tensor) -> Tensor:
        up, down = g.exp(x), g.exp(-x)
        return g.sub(up, down) / (up + down)

    return pair({"X": (a, n)}, program, lambda g, x: g.sub(g.scale(g.sigmoid(g.scale(x, 2)), 2), one(g, x)))


@claim(a=2, n=3)
def relu_of_a_rearranged_argument(a: int = A, n: int = N) -> Pair:
    return pair(
        {**two(a, n), "Z": (a, n)},
        lambda g, x, y, z: g.relu((x + y) * z),
        lambda g, x, y, z: g.relu(z * y + x * z),
    )


@claim(a=2, n=3)
def gelu_of_a_rearranged_argument(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.gelu(g.sub(x, y)) + x, lambda g, x, y: x + g.gelu(g.scale(y, -1) + x))


@claim(a=2, n=3)
def gelu_of_a_transpose(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.transpose(g.gelu(x), 0, 1),
        lambda g, x: g.gelu(g.transpose(x, 0, 1)),
    )


@claim(a=2, n=3)
def scales_collected(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.scale(g.scale(x, 0.1), 3) + g.div(x, 5),
        lambda g, x: g.scale(x, 0.5),
    )


@claim(a=2, n=3)
def a_telescope_of_exponentials(a: int = A, n: int = N) -> Pair:
    return pair(
        {**two(a, n), "Z": (a, n)},
        lambda g, x, y, z: g.exp(g.sub(x, y)) * g.exp(g.sub(y, z)),
        lambda g, x, y, z: g.exp(g.sub(x, z)),
    )


@claim(a=2, n=6, grid=3)
def fused_in_a_thread_graph(a: int = A, n: int = N, grid: int = 43) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
            x, y = t.forloop_accum(x), t.forloop_accum(y)
            return t.sqrt(t.exp(t.scale(x + y, 2))) * x, on(1)

        return kernel(g, (grid,), [(x, on(1)), (y, on(1))], body)

    left, right = pair(two(a, n), lambda g, x, y: x * g.exp(x) * g.exp(y), candidate)
    return left, fuse_threads(right)


@claim(a=2, n=6, grid=3)
def a_reciprocal_in_blocks(a: int = A, n: int = N, grid: int = 344) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
            return t.forloop_accum(x * t.exp(-y)), on(1)

        return kernel(g, (grid,), [(x, on(1)), (y, on(1))], body)

    return pair(two(a, n), lambda g, x, y: x / g.exp(y), candidate)


@claim(a=2, n=3)
def results_of_equal_shape_in_their_order(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: (x + y, g.sub(x, y)),
        lambda g, x, y: (y + x, g.scale(g.sub(y, x), -1)),
    )


@claim(a=2, n=3, negative=True)
def the_root_of_a_negative_multiple(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sqrt(g.scale(x, -4)), lambda g, x: g.scale(g.sqrt(g.scale(x, -1)), 2))


@claim(a=2, n=3, positive=True)
def the_root_of_a_minimum(a: int = A, n: int = N) -> Pair:
    """It is the negative of a maximum, and its root no root of that."""
    return pair(
        two(a, n),
        lambda g, x, y: y * g.sqrt(g.minimum(x, y)) * g.sqrt(g.minimum(y, x)),
        lambda g, x, y: y * g.minimum(x, y),
    )


@claim(a=2, n=3, negative=True)
def an_exponential_out_of_the_root_of_a_negative(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.sqrt(g.scale(x * g.exp(y), -1)) / g.sqrt(g.scale(x, -1)),
        lambda g, x, y: g.exp(g.scale(y, 0.5)),
    )


@claim(a=2, n=3)
def a_constant_tensor_in_a_maximum(a: int = A, n: int = N) -> Pair:
    """Whatever tensor a constant is made of, the number itself is the same operand."""
    return pair(two(a, n), lambda g, x, y: g.maximum(x, 0.5), lambda g, x, y: g.maximum(g.full_like(y, 0.5), x))


@claim(a=2, n=3)
def a_minimum_as_a_maximum_of_negatives(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.minimum(x, 0.5), lambda g, x: -g.maximum(-x, -0.5))


@claim(a=2, n=3)
def bounds_in_another_order(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.maximum(g.maximum(x, -0.5), y),
        lambda g, x, y: g.maximum(g.maximum(g.maximum(y, -0.5), x), -0.5),
    )


@claim(a=2, n=3)
def clamped_by_a_constant_tensor(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: y * g.clamp(x, -0.5, 0.5),
        lambda g, x, y: g.minimum(g.full_like(y, 0.5), g.maximum(x, -0.5)) * y,
    )


@claim(a=2, n=3)
def the_largest_element_bounded(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.max(g.maximum(x, 0.5), 1), lambda g, x: g.maximum(g.max(x, 1), 0.5))


@claim(a=2, n=4, loop=2)
def a_sum_of_bounded_elements_in_a_loop(a: int = 16, n: int = 4096, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor) -> Saved:
            return t.forloop_accum(t.minimum(t.maximum(x, -0.5), 1), "sum"), on(0)

        return kernel(g, (2,), [(x, on(0), 1)], body, loop)

    return pair({"X": (a, n)}, lambda g, x: g.reduction(g.clamp(x, -0.5, 1), 1), candidate)


@claim(a=2, n=3)
def a_quotient_by_a_bounded_size(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: x / g.maximum(g.abs(y), 0.5),
        lambda g, x, y: x * g.reciprocal(g.maximum(g.full_like(x, 0.5), g.abs(y))),
    )
