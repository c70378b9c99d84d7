"""The sentences about sums, compared with texts that were written by hand from grids, loops and maps."""

from __future__ import annotations

import pytest

from mirage_formal.report.proofs.proof_replay import replay_and_explain
from tests.kit.paths import REPOSITORY
from tests.kit.reports import NAMES, example

all_in_a_tile = "each block of kernel 0 adds all of them inside a tile."
each = "4096 elements each"
keys = "The sums over dim 2 of K, over dim 2 of K = dim 1 of V, 4096 elements each, are split in"


def blocks(tile: int, loop: int) -> str:
    """What a block of the first kernel does, by the tile that its maps cut and the iterations of its loop."""
    return f"Each block of kernel 0 adds its part: {tile} inside a tile, then {loop} over the iterations of its loop."


#: Checked by hand: in attn, grid x cuts the 4096 keys in 16 slabs of 256, the loop cuts these in 2 tiles of 128.
WRITTEN = {
    "attn": f"""
        The sum over dim 2 of Q = dim 1 of K, 64 elements, is not split: {all_in_a_tile}
        {keys} 16 × 2 × 128. {blocks(128, 2)}
        Kernel 1 adds the 16 parts, one from each block along grid axis x.
    """,
    "rmsnorm": f"""
        The sums over dim 1 of X, over dim 1 of X = dim 0 of W, {each}, are split in 8 × 512. {blocks(512, 8)}
    """,
    "gated_mlp": f"""
        The sums over dim 1 of X = dim 0 of W1, over dim 1 of X = dim 0 of W2, {each}, are split in 16 × 256.
        {blocks(256, 16)}
    """,
    "decode": f"""
        The sum over dim 2 of Q = dim 1 of K, 128 elements, is not split: {all_in_a_tile}
        {keys} 32 × 128. {blocks(128, 32)}
    """,
    # Only X W and X A are split: what B multiplies has one element for each of 16 in every iteration.
    "lora": f"""
        The sums over dim 1 of X = dim 0 of W, over dim 1 of X = dim 0 of A, 256 elements each, are split in 2 × 128.
        {blocks(128, 2)}
        The sum over dim 1 of A = dim 0 of B, 16 elements, is not split: {all_in_a_tile}
    """,
    # Grid y cuts the keys in 4 slabs of 1024, the loop these in 8 tiles of 128. The sum of the exponentials keeps the
    # 128 of a tile apart in kernel 0, so that kernel 1 adds 4 × 128; their product with V does not.
    "mha": f"""
        The sum over dim 2 of Q = dim 1 of K, 64 elements, is not split: {all_in_a_tile}
        The sum over dim 2 of K, 4096 elements, is split in 4 × 8 × 128.
        Each block of kernel 0 adds its part: 8 over the iterations of its loop. Kernel 1 adds the 512 parts.
        The sum over dim 2 of K = dim 1 of V, 4096 elements, is split in 4 × 8 × 128. {blocks(128, 8)}
        Kernel 1 adds the 4 parts, one from each block along grid axis y.
    """,
    # 16 slabs of 256 along grid x, 4 tiles of 64. The loop of kernel 1 has 2 iterations of 8 slabs each.
    "mqa": f"""
        The sum over dim 2 of Q = dim 1 of K, 64 elements, is not split: {all_in_a_tile}
        {keys} 2 × 8 × 4 × 64. {blocks(64, 4)}
        Kernel 1 adds the 16 parts, one from each block along grid axis x.
    """,
    # Each block has a row of 4096. The second norm's elements depend on all three inputs.
    "ntrans": f"""
        The sums over dim 1 of H, over dim 1 of H = dim 1 of X = dim 1 of alpha, {each}, are not split: {all_in_a_tile}
    """,
    "qknorm": f"""
        The sums over dim 2 of Q, over dim 1 of K, over dim 2 of Q = dim 1 of K, 64 elements each, are not split:
        {all_in_a_tile}
        {keys} 16 × 2 × 128. {blocks(128, 2)}
        Kernel 1 adds the 16 parts, one from each block along grid axis x.
    """,
    "qknorm-qv": f"""
        The sums over dim 2 of Q, over dim 2 of V, over dim 2 of Q = dim 1 of K, 64 elements each, are not split:
        {all_in_a_tile}
        {keys} 16 × 2 × 128. {blocks(128, 2)}
        Kernel 1 adds the 16 parts, one from each block along grid axis x.
    """,
    # A product of three: the loop cuts the 512 between the first two, the 128 are whole in each iteration.
    "mla-part-1": f"""
        The sum over dim 1 of x0 = dim 0 of x1, 512 elements, is split in 4 × 128. {blocks(128, 4)}
        The sum over dim 0 of x0 = dim 1 of x2, 128 elements, is not split: {all_in_a_tile}
    """,
    # Grid x cuts the 4096 in 32 slabs, which are one tile each, while the loop cuts the 512 of the other product. The
    # sum of the exponentials is computed by kernel 1, from the input.
    "mla-part-2": f"""
        The sum over dim 1 of x0, 4096 elements, is not split: each block of kernel 1 adds all of them inside a tile.
        The sum over dim 1 of x1 = dim 0 of x2, 512 elements, is split in 4 × 128. {blocks(128, 4)}
        The sum over dim 1 of x0 = dim 0 of x1, 4096 elements, is split in 32 × 128.
        Each block of kernel 0 adds its part: 128 inside a tile.
        Kernel 1 adds the 32 parts, one from each block along grid axis x.
    """,
    # The norm and the three projections of the layer.
    "decoder_layer-part-1": f"""
        The sums over dim 1 of x0, over dim 1 of x0 = dim 1 of x1 = dim 0 of x2,
        over dim 1 of x0 = dim 1 of x1 = dim 0 of x3, over dim 1 of x0 = dim 1 of x1 = dim 0 of x4, {each},
        are split in 16 × 256. {blocks(256, 16)}
    """,
    # The rotary embedding of queries and of the new key.
    "decoder_layer-part-4": f"""
        The sums over dim 2 of x0 = dim 1 of x2, over dim 1 of x2 = dim 2 of x4, 128 elements each, are not split:
        {all_in_a_tile}
    """,
    # The new token's comparison.
    "decoder_layer-part-7": f"""
        The sum over dim 2 of x0 = dim 1 of x1, 128 elements, is not split: {all_in_a_tile}
    """,
    # Attention over the cache: 16 slabs of 256 keys along grid x, 2 tiles of 128; the new token is added by kernel 1.
    "decoder_layer-part-8": f"""
        The sum over dim 2 of x0 = dim 1 of x1, 128 elements, is not split: {all_in_a_tile}
        The sums over dim 2 of x1, over dim 2 of x1 = dim 1 of x3, {each}, are split in 16 × 2 × 128. {blocks(128, 2)}
        Kernel 1 adds the 16 parts, one from each block along grid axis x.
    """,
    "decoder_layer-part-10": f"""
        The sum over dim 1 of x0 = dim 0 of x1, 4096 elements, is split in 8 × 512. {blocks(512, 8)}
    """,
    # The second norm with the two products behind it.
    "decoder_layer-part-12": f"""
        The sums over dim 1 of x0, over dim 1 of x0 = dim 1 of x1 = dim 0 of x2,
        over dim 1 of x0 = dim 1 of x1 = dim 0 of x3, {each}, are split in 16 × 256. {blocks(256, 16)}
    """,
    "decoder_layer-part-13": f"""
        The sum over dim 1 of x0 = dim 0 of x1, 14336 elements, is split in 16 × 896. {blocks(896, 16)}
    """,
}


def told(name: str) -> tuple[str, ...]:
    found = example(name)
    (part,) = replay_and_explain(found.program, found.candidate, found.proof, formulas=False).parts
    return part.summary


def test_every_example_has_its_text() -> None:
    assert set(WRITTEN) == set(NAMES)
    stems = {path.stem for path in (REPOSITORY / "examples").glob("*.py") if not path.stem.startswith("tour")}
    assert stems == {name.partition("-")[0] for name in NAMES}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_the_sentences_are_those_that_were_written_by_hand(name: str) -> None:
    assert " ".join(told(name)) == " ".join(WRITTEN[name].split())


def test_how_the_sum_over_keys_is_split_is_answered() -> None:
    (line,) = (one for one in told("attn") if "dim 1 of V" in one)
    assert "split in 16 × 2 × 128" in line


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_told_with_extents_that_multiply(name: str) -> None:
    for line in told(name):
        if "split in" in line:
            product = 1
            for factor in line.rpartition("split in ")[2].rstrip(".").split(" × "):
                product *= int(factor)
            assert f"{product} elements" in line


def test_another_split_is_told_otherwise() -> None:
    """The sentences depend on the proof, and are no text that goes with a program."""
    assert told("attn") != told("mha")
    assert any("2 × 8 × 4 × 64" in line for line in told("mqa"))
