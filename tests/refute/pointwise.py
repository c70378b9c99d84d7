"""False identities of exp, roots, quotients and activations, and wrong gates."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair

A = 96
N = 11008


def two(a: int, n: int) -> Shapes:
    return {"X": (a, n), "Y": (a, n)}


def one(g: Graph, x: Tensor) -> Tensor:
    return g.exp(g.scale(x, 0))


def gated_inputs(b: int, k: int, n: int) -> Shapes:
    return {"X": (b, k), "W1": (k, n), "W2": (k, n)}


def gated(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return g.silu(x @ w1) * (x @ w2)


@claim(a=2, n=3)
def exp_of_a_sum_as_a_sum_of_exps(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.exp(x + y), lambda g, x, y: g.exp(x) + g.exp(y))


@claim(a=2, n=3)
def exp_of_a_product_as_a_product_of_exps(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.exp(x * y), lambda g, x, y: g.exp(x) * g.exp(y))


@claim(a=2, n=3)
def exp_of_a_reduction_as_a_reduction_of_exps(a: int = A, n: int = 96) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(g.reduction(x, 1)), lambda g, x: g.reduction(g.exp(x), 1))


@claim(a=2, n=3)
def twice_exp_for_exp_of_twice(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(g.scale(x, 2)), lambda g, x: g.scale(g.exp(x), 2))


@claim(a=2, n=3)
def exp_of_a_negative_as_a_negative_exp(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(-x), lambda g, x: -g.exp(x))


@claim(a=2, n=3)
def the_cube_for_the_square_of_exp(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.exp(g.scale(x, 3)), lambda g, x: g.square(g.exp(x)))


@claim(a=2, n=3)
def the_root_of_a_square_without_its_sign(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sqrt(g.square(x)), lambda g, x: g.scale(x, 1))


@claim(a=2, n=3)
def a_number_over_its_length_as_one(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sqrt(g.square(x)) / x, one)


@claim(a=2, n=3)
def the_root_of_a_fourth_power(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sqrt(g.square(g.square(x))), lambda g, x: g.scale(x, 1))


@claim(a=2, n=3)
def the_root_of_a_square_of_a_product(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.sqrt(g.square(x * y)), lambda g, x, y: x * y)


@claim(a=2, n=3, positive=True)
def the_root_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.sqrt(x + y), lambda g, x, y: g.sqrt(x) + g.sqrt(y))


@claim(a=2, n=3, positive=True)
def the_root_of_twice(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sqrt(g.scale(x, 2)), lambda g, x: g.scale(g.sqrt(x), 2))


@claim(a=2, n=3)
def the_square_of_a_sum_without_the_cross_term(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.square(x + y), lambda g, x, y: g.square(x) + g.square(y))


@claim(a=2, n=3)
def a_difference_the_other_way_round(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.sub(x, y), lambda g, x, y: g.sub(y, x))


@claim(a=2, n=3, positive=True)
def a_quotient_the_other_way_round(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: x / y, lambda g, x, y: y / x)


@claim(a=2, n=3, positive=True)
def a_sum_below_as_a_sum_of_quotients(a: int = A, n: int = N) -> Pair:
    return pair({**two(a, n), "Z": (a, n)}, lambda g, x, y, z: x / (y + z), lambda g, x, y, z: x / y + x / z)


@claim(a=2, n=3, positive=True)
def quotients_of_quotients(a: int = A, n: int = N) -> Pair:
    return pair({**two(a, n), "Z": (a, n)}, lambda g, x, y, z: x / (y / z), lambda g, x, y, z: (x / y) / z)


@claim(a=2, n=3, positive=True)
def a_mean_of_quotients(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.mean(x / y, 1),
        lambda g, x, y: g.mean(x, 1) / g.mean(y, 1),
    )


@claim(a=2, n=3)
def sigmoid_for_silu(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.silu(x), lambda g, x: g.sigmoid(x))


@claim(a=2, n=3)
def gelu_for_silu(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.silu(x), lambda g, x: g.gelu(x))


@claim(a=2, n=3)
def the_sigmoid_form_of_gelu(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.gelu(x), lambda g, x: x * g.sigmoid(g.scale(x, Fraction(1702, 1000))))


@claim(a=2, n=3)
def silu_with_the_other_sign(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.silu(x), lambda g, x: x / (one(g, x) + g.exp(x)))


@claim(a=2, n=3)
def silu_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.silu(x + y), lambda g, x, y: g.silu(x) + g.silu(y))


@claim(a=2, n=3)
def relu_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.relu(x + y), lambda g, x, y: g.relu(x) + g.relu(y))


@claim(a=2, n=3)
def relu_of_a_negative(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.relu(-x), lambda g, x: -g.relu(x))


@claim(a=2, n=3)
def relu_left_out(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.relu(x), lambda g, x: g.scale(x, 1))


@claim(a=2, n=3)
def sigmoid_of_twice(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.sigmoid(g.scale(x, 2)), lambda g, x: g.square(g.sigmoid(x)))


@claim(a=2, n=3)
def scales_added_for_scales_multiplied(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.scale(g.scale(x, 3), 2), lambda g, x: g.scale(x, 3) + g.scale(x, 2))


@claim(a=2, n=3)
def a_third_for_its_decimals(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.scale(x, Fraction(1, 3)), lambda g, x: g.scale(x, 0.33))


@claim(a=2, n=3)
def a_maximum_for_a_sum(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.reduction(x, 1), lambda g, x: g.max(x, 1))


@claim(a=2, n=3)
def a_maximum_of_a_sum(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.max(x + y, 1), lambda g, x, y: g.max(x, 1) + g.max(y, 1))


@claim(n=3)
def the_wrong_broadcast(n: int = 320) -> Pair:
    return pair({"X": (n, n), "c": (n, 1)}, lambda g, x, c: x + c, lambda g, x, c: x + g.reshape(c, 1, n))


@claim(n=3)
def the_transpose_of_the_argument(n: int = 320) -> Pair:
    return pair({"X": (n, n)}, lambda g, x: g.exp(x), lambda g, x: g.exp(g.transpose(x, 0, 1)))


@claim(n=3)
def a_reshape_for_a_transpose(n: int = 320) -> Pair:
    return pair(
        {"X": (n, 2 * n)},
        lambda g, x: g.transpose(x, 0, 1),
        lambda g, x: g.reshape(x, 2 * n, n),
    )


@claim(a=2, b=3, c=2)
def merged_dims_in_the_other_order(a: int = 16, b: int = 96, c: int = 320) -> Pair:
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.reshape(x, a * b, c),
        lambda g, x: g.reshape(g.transpose(x, 0, 1), a * b, c),
    )


@claim(n=3)
def a_sum_over_the_rows(n: int = 320) -> Pair:
    return pair({"X": (n, n)}, lambda g, x: g.reduction(x, 1), lambda g, x: g.transpose(g.reduction(x, 0), 0, 1))


@claim(a=2, n=4)
def concatenated_the_other_way_round(a: int = 96, n: int = 320) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.concat(x, y, 1), lambda g, x, y: g.concat(y, x, 1))


@claim(a=2, n=4)
def interleaved_instead_of_concatenated(a: int = 96, n: int = 320) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.concat(x, y, 1),
        lambda g, x, y: g.reshape(g.concat(g.reshape(x, a, n, 1), g.reshape(y, a, n, 1), 2), a, 2 * n),
    )


@claim(a=2, n=3)
def the_mean_of_two_unequal_parts(a: int = 96, n: int = 320) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, 2 * n)},
        lambda g, x, y: g.mean(g.concat(x, y, 1), 1),
        lambda g, x, y: g.scale(g.mean(x, 1) + g.mean(y, 1), 0.5),
    )


@claim(a=2, n=3)
def outputs_of_equal_shape_swapped(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: (x + y, x * y), lambda g, x, y: (x * y, x + y))


@claim(b=2, k=3, n=4)
def the_gate_on_the_other_branch(b: int = 8, k: int = 4096, n: int = 4096) -> Pair:
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated(g, x, v, u))


@claim(b=2, k=3, n=4)
def the_gate_added(b: int = 8, k: int = 4096, n: int = 4096) -> Pair:
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: g.silu(x @ u) + x @ v)


@claim(b=2, k=3, n=4)
def the_activation_behind_the_product(b: int = 8, k: int = 4096, n: int = 4096) -> Pair:
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: g.silu((x @ u) * (x @ v)))


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_activation_inside_the_loop(b: int = 8, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, u: BlockTensor, v: BlockTensor) -> Saved:
            return t.forloop_accum(t.silu(x @ u)) * t.forloop_accum(x @ v), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (u, on(1), 0), (v, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_gate_inside_the_loop(b: int = 8, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, u: BlockTensor, v: BlockTensor) -> Saved:
            return t.forloop_accum(t.silu(x @ u) * (x @ v)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (u, on(1), 0), (v, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=3, p=2)
def hidden_units_that_see_one_input_each(b: int = 8, k: int = 320, p: int = 96) -> Pair:
    """Hidden unit j is input j times a sum of weights."""

    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor) -> Saved:
            return t.forloop_accum(t.relu(x * t.reduction(w1, 0)) @ w2), on()

        turned = g.transpose(w1, 0, 1)
        return kernel(g, (1,), [(x, on()), (turned, on()), (w2, on())], body)

    inputs = {"X": (b, k), "W1": (k, k), "W2": (k, p)}
    return pair(inputs, lambda g, x, w1, w2: g.relu(x @ w1) @ w2, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def a_bias_added_in_every_iteration(b: int = 8, k: int = 4096, n: int = 6144, grid: int = 48, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, bias: BlockTensor) -> Saved:
            return t.gelu(t.forloop_accum(x @ w + bias)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0), (bias, on(1))], body, loop)

    return pair({"X": (b, k), "W": (k, n), "bias": (1, n)}, lambda g, x, w, c: g.gelu(x @ w + c), candidate)


@claim(a=2, n=3, negative=True)
def a_square_out_of_the_root_of_a_negative(a: int = A, n: int = N) -> Pair:
    """sqrt(y^2) is not y."""
    return pair(
        two(a, n),
        lambda g, x, y: g.sqrt(g.scale(x * g.square(y), -1)),
        lambda g, x, y: g.sqrt(g.scale(x, -1)) * y,
    )


@claim(a=2, n=3)
def a_maximum_with_another_number(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.maximum(x, 0.5), lambda g, x: g.maximum(x, 0.625))


@claim(a=2, n=3)
def a_minimum_for_a_maximum_with_a_number(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.maximum(x, 0.5), lambda g, x: g.minimum(x, 0.5))


@claim(a=2, n=3)
def a_bound_that_does_not_move_with_the_sum(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.maximum(x, 0.5) + 1, lambda g, x: g.maximum(x + 1, 0.5))


@claim(a=2, n=3)
def a_bound_that_keeps_its_sign_under_a_negative(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.minimum(x, 0.5), lambda g, x: -g.maximum(-x, 0.5))


@claim(a=2, n=3)
def bounds_exchanged(a: int = A, n: int = N) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.clamp(x, -0.5, 0.25), lambda g, x: g.clamp(x, -0.25, 0.5))


@claim(a=2, n=3)
def a_sum_bounded_for_a_sum_of_bounded_elements(a: int = A, n: int = 96) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.reduction(g.maximum(x, 0.5), 1),
        lambda g, x: g.maximum(g.reduction(x, 1), 0.5),
    )


@claim(a=2, n=4, loop=2)
def a_bound_behind_the_loop(a: int = 16, n: int = 4096, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor) -> Saved:
            return t.maximum(t.forloop_accum(x, "sum"), 0.5), on(0)

        return kernel(g, (2,), [(x, on(0), 1)], body, loop)

    return pair({"X": (a, n)}, lambda g, x: g.reduction(g.maximum(x, 0.5), 1), candidate)
