"""Products and copies whose kernels read or write the wrong part: imap, fmap, omap, loop, slab."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.graph.types import DimMap
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def square(n: int) -> Shapes:
    return {"X": (n, n), "W": (n, n)}


def product(g: Graph, x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def blocks(
    g: Graph,
    x: Tensor,
    w: Tensor,
    grid: tuple[int, int],
    loop: int,
    of_x: tuple[DimMap, int],
    of_w: tuple[DimMap, int],
    out: DimMap,
) -> Tensor:
    """A product in blocks; ``of_x`` and ``of_w`` are (imap, fmap), ``out`` is the omap."""
    return kernel(g, grid, [(x, *of_x), (w, *of_w)], lambda t, x, w: (t.forloop_accum(x @ w), out), loop)


@claim(n=4, g=2, loop=2)
def columns_and_rows_of_the_grid_swapped_in_the_result(n: int = 4096, g: int = 16, loop: int = 64) -> Pair:
    return pair(
        square(n),
        product,
        lambda k, x, w: blocks(k, x, w, (g, g), loop, (on(y=0), 1), (on(1), 0), on(0, 1)),
    )


@claim(n=4, g=2, loop=2)
def rows_cut_by_the_axis_of_the_columns(n: int = 4096, g: int = 16, loop: int = 64) -> Pair:
    return pair(
        square(n),
        product,
        lambda k, x, w: blocks(k, x, w, (g, g), loop, (on(x=0), 1), (on(y=1), 0), on(1, 0)),
    )


@claim(n=4, g=2)
def the_inner_dim_cut_by_two_different_axes(n: int = 4096, g: int = 16) -> Pair:
    """Each block multiplies part x of the columns of X with part y of the rows of W, joined as if it were an output."""

    def candidate(k: Graph, x: Tensor, w: Tensor) -> Tensor:
        parts = kernel(
            k,
            (g, g),
            [(x, on(x=1)), (w, on(y=0))],
            lambda t, x, w: (t.forloop_accum(x @ w), on(0, 1)),
        )
        return k.reduction(k.reshape(k.reduction(k.reshape(parts, g, n, g * n), 0), n, g, n), 1)

    def program(k: Graph, x: Tensor, w: Tensor) -> Tensor:
        return k.reshape(x @ w, n, 1, n)

    return pair(square(n), program, candidate)


@claim(n=4, g=2, loop=2)
def the_loop_runs_over_rows_of_the_left_factor(n: int = 4096, g: int = 16, loop: int = 2) -> Pair:
    def candidate(k: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_concat(x, 0) @ t.forloop_accum(w), on(1)

        return kernel(k, (g,), [(x, on(), 0), (w, on(1))], body, loop)

    return pair(square(n), product, candidate)


@claim(n=4, loop=2)
def a_loop_that_loads_one_operand_whole(n: int = 4096, loop: int = 64) -> Pair:
    """The other is loaded part by part: what is summed is the product, times the iterations."""

    def candidate(k: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_concat(x, 1) @ t.forloop_accum(w), on()

        return kernel(k, (1,), [(x, on(), 1), (w, on())], body, loop)

    return pair(square(n), product, candidate)


@claim(n=4, loop=2)
def an_operand_that_the_loop_does_not_split_is_summed(n: int = 4096, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return kernel(
            g,
            (1,),
            [(x, on(), 1), (y, on())],
            lambda t, x, y: (t.forloop_accum(x, "sum") + t.forloop_accum(y), on()),
            loop,
        )

    return pair({"X": (n, n), "y": (n, 1)}, lambda g, x, y: g.reduction(x, 1) + y, candidate)


@claim(n=4, loop=2)
def two_factors_looped_over_different_dims(n: int = 4096, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            # The inner dims fit, because both are cut; the rows of w should have been.
            return t.forloop_concat(t.reduction(x, 1) * t.reduction(w, 0), 1), on()

        return g.reduction(kernel(g, (1,), [(x, on(), 1), (w, on(), 1)], body, loop), 1)

    def program(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        return g.reduction(x @ w, 1)

    return pair(square(n), program, candidate)


@claim(n=4, grid=2)
def blocks_of_a_row_joined_as_rows(n: int = 96, grid: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        parts = kernel(g, (grid,), [(x, on(1))], lambda t, x: (t.square(t.forloop_accum(x)), on(0)))
        return g.reshape(parts, n, n)

    return pair({"X": (n, n)}, lambda g, x: g.square(x), candidate)


@claim(n=4, grid=2)
def two_grid_axes_of_a_copy_swapped(n: int = 6144, grid: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (grid, grid), [(x, on(0, 1))], lambda t, x: (t.exp(t.forloop_accum(x)), on(1, 0)))

    return pair({"X": (n, n)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, grid=(2, 4))
def two_grid_axes_in_one_dim_written_to_two(n: int = 6144, grid: tuple[int, int] = (12, 8)) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        wide = kernel(g, grid, [(x, on(0, 0))], lambda t, x: (t.exp(t.forloop_accum(x)), on(1, 0)))
        return g.reshape(wide, n, 1)

    return pair({"X": (n, 1)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, loop=2)
def the_loop_before_the_slab(n: int = 6144, loop: int = 8) -> Pair:
    """The loop's chunks are taken from the whole dim by reshape, the grid cuts inside them."""

    def candidate(g: Graph, x: Tensor) -> Tensor:
        turned = g.reshape(g.transpose(g.reshape(x, loop, 2, n // loop // 2), 0, 1), 1, n)
        return kernel(g, (2,), [(turned, on(1), 1)], lambda t, x: (t.forloop_concat(t.exp(x), 1), on(1)), loop)

    return pair({"X": (1, n)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, loop=4)
def iterations_appended_along_the_wrong_dim(n: int = 96, loop: int = 4) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        long = kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.forloop_concat(t.exp(x), 0), on()), loop)
        return g.reshape(long, n, n)

    return pair({"X": (n, n)}, lambda g, x: g.exp(x), candidate)


@claim(m=3, n=8, keep=2)
def a_strided_sum_taken_for_a_sum_of_neighbours(m: int = 16, n: int = 320, keep: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (1,), [(x, on())], lambda t, x: (t.forloop_accum(x, "sum_todimx"), on()), dimx=keep)

    def program(g: Graph, x: Tensor) -> Tensor:
        return g.reshape(g.reduction(g.reshape(x, m, keep, n // keep), 2), m, keep)

    return pair({"X": (m, n)}, program, candidate)


@claim(m=2, n=6, grid=3)
def every_block_writes_its_copy_and_all_are_summed(m: int = 16, n: int = 320, grid: int = 5) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        wide = kernel(g, (grid,), [(x, on())], lambda t, x: (t.forloop_accum(x, "sum"), on(1)))
        return g.reduction(wide, 1)

    return pair({"X": (m, n)}, lambda g, x: g.reduction(x, 1), candidate)


@claim(b=2, n=4)
def the_batch_split_by_the_axis_of_the_rows(b: int = 16, n: int = 32) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
            return t.forloop_accum(x @ y), on(0)

        return kernel(g, (b,), [(g.reshape(x, b, n, n), on(0)), (y, on(0))], body)

    return pair({"X": (n, b, n), "Y": (b, n, n)}, lambda g, x, y: g.transpose(x, 0, 1) @ y, candidate)


@claim(n=4, g=2)
def half_of_the_inner_dim_only(n: int = 4096, g: int = 16) -> Pair:
    """Every block contracts its own part; one part's result is kept, as if later blocks had been overwritten."""

    def candidate(k: Graph, x: Tensor, w: Tensor) -> Tensor:
        parts = kernel(k, (g,), [(x, on(1)), (w, on(0))], lambda t, x, w: (t.forloop_accum(x @ w), on(0)))
        kept = kernel(k, (g,), [(parts, on(0))], lambda t, p: (t.forloop_accum(p), on(1)))
        weights = k.scale(k.reshape(kept, n, g, n), 1)
        return k.reshape(k.max(weights, 1), n, n)

    return pair(square(n), product, candidate)


@claim(m=2, k=6, n=2, split=3)
def partial_products_averaged(m: int = 16, k: int = 11008, n: int = 96, split: int = 43) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        parts = kernel(g, (split,), [(x, on(1)), (w, on(0))], lambda t, x, w: (t.forloop_accum(x @ w), on(0)))
        return g.reshape(g.mean(g.reshape(parts, split, m, n), 0), m, n)

    return pair({"X": (m, k), "W": (k, n)}, product, candidate)


@claim(m=3, k=6, split=3)
def partial_products_summed_over_the_rows(m: int = 43, k: int = 11008, split: int = 43) -> Pair:
    """Parts joined along the rows are cut as if the part varied fastest."""

    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        parts = kernel(g, (split,), [(x, on(1)), (w, on(0))], lambda t, x, w: (t.forloop_accum(x @ w), on(0)))
        return g.reshape(g.reduction(g.reshape(parts, m, split, 2), 1), m, 2)

    return pair({"X": (m, k), "W": (k, 2)}, product, candidate)


@claim(n=4, loop=2)
def a_sum_squared_instead_of_squares_summed(n: int = 4096, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.square(t.forloop_accum(x, "sum")), on()), loop)

    return pair({"X": (2, n)}, lambda g, x: g.reduction(g.square(x), 1), candidate)


@claim(n=8, loop=2)
def the_last_iteration_only_by_a_maximum(n: int = 4096, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.forloop_accum_max(t.reduction(x, 1)), on()), loop)

    return pair({"X": (2, n)}, lambda g, x: g.reduction(x, 1), candidate)


@claim(a=4, n=3, m=5)
def the_largest_of_one_part(a: int = 16, n: int = 4096, m: int = 2048) -> Pair:
    return pair({"X": (a, n), "Y": (a, m)}, lambda g, x, y: g.max(g.concat(x, y, 1), 1), lambda g, x, y: g.max(y, 1))


@claim(a=4, n=3, m=5)
def the_largest_of_each_part_added(a: int = 16, n: int = 4096, m: int = 2048) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.concat(x, y, 1), 1),
        lambda g, x, y: g.max(x, 1) + g.max(y, 1),
    )


@claim(a=4, n=3, m=5)
def the_sign_outside_of_the_largest(a: int = 16, n: int = 4096, m: int = 2048) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.scale(g.concat(x, y, 1), -1), 1),
        lambda g, x, y: g.scale(g.max(g.concat(x, y, 1), 1), -1),
    )


@claim(a=4, n=3, m=5)
def a_sum_taken_before_the_largest(a: int = 16, n: int = 96, m: int = 48) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.reduction(g.max(g.concat(x, y, 1), 1), 0),
        lambda g, x, y: g.max(g.reduction(g.concat(x, y, 1), 0), 1),
    )


@claim(a=3, b=5)
def rows_that_no_index_regroups_as_columns(a: int = 15, b: int = 96) -> Pair:
    return pair({"X": (a, b)}, lambda g, x: g.exp(g.reshape(x, b, a)), lambda g, x: g.exp(g.transpose(x, 0, 1)))
