"""Search spaces: presets, candidates for grids and maps, a user's overrides, and messages for every kind of mistake."""

from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_formal.graph.ops import OpKind
from mirage_formal.search.space import divisors, load_space, parse_space, preset_names
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.resources import data_dir

TINY = (data_dir("search") / "tiny.toml").read_text()
GQA = [(2, 256, 64), (2, 64, 4096), (2, 4096, 64)]


def test_presets_are_the_promised_ones_and_all_load() -> None:
    assert preset_names() == ("attention", "default", "lora", "mlp", "norm", "paper", "tiny")
    for name in preset_names():
        space = load_space(name)
        assert space.name == name
        assert space.extents == ("paper" if name == "paper" else "free")
        assert space.max_graph_defined <= 2


def test_presets_have_what_their_workloads_need() -> None:
    attention = load_space("attention")
    assert attention.max_graph_defined == 2
    assert attention.max_block_ops >= 9
    assert {OpKind.RMS_NORM, OpKind.ACCUM_SUM_TO_DIMX, OpKind.EXP, OpKind.SCALE} <= set(attention.block_ops)
    assert load_space("lora").max_block_inputs >= 4
    assert load_space("default").keep == 16
    assert OpKind.SUB in load_space("default").block_ops


def test_paper_grids_of_attention_are_the_papers() -> None:
    space = load_space("attention").with_overrides(extents="paper")
    grids = space.grid_candidates(GQA)
    dims = {extent for shape in GQA for extent in shape}
    wanted = {(d // p, 1, 1) for d in dims for p in (8, 16, 32, 64, 128, 256) if d % p == 0}
    wanted |= {(2, d // y, 1) for d in dims for y in (8, 64, 128, 256) if d % y == 0}
    wanted |= {(2, 16, 4)}
    wanted = {grid for grid in wanted if 32 <= prod(grid) <= 4096} | {(2, 1, 1)}
    assert set(grids) == wanted
    assert len(grids) == len(wanted)
    assert grids[-1] == (2, 1, 1)
    assert space.loop_candidates([4096]) == (4, 16, 64)
    assert space.limits.min_blocks == 32
    assert space.limits.shared_bytes == 96 * 1024


def test_paper_grids_need_more_than_two_inputs_for_the_fixed_one() -> None:
    space = load_space("attention").with_overrides(extents="paper")
    assert (2, 16, 4) not in space.grid_candidates(GQA[:2])
    assert (2, 1, 1) not in space.grid_candidates([(2, 8), (2, 2, 8)])


@given(st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=2, max_size=3), min_size=1, max_size=2))
def test_free_grids_are_all_products_of_divisors(shapes: list[list[int]]) -> None:
    space = load_space("default")
    grids = space.grid_candidates([tuple(shape) for shape in shapes])
    axis = {d for shape in shapes for extent in shape for d in range(1, extent + 1) if extent % d == 0}
    wanted = {g for g in product(axis, repeat=3) if g == tuple(sorted(g, reverse=True)) and prod(g) <= 4096}
    assert set(grids) == wanted
    assert len(grids) == len(wanted)


@given(st.integers(1, 400))
def test_divisors(n: int) -> None:
    assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (4, 2, 1), (2, 2, 2)])
def test_maps_are_all_that_divide_without_splitting_a_dim_twice(grid: tuple[int, int, int]) -> None:
    space, shape = load_space("default"), (2, 4, 6)
    imaps, omaps = space.imap_candidates(grid, shape), space.omap_candidates(grid, 3)
    every = set(product((None, 0, 1, 2), repeat=3))
    distinct = {m for m in every if len({d for d in m if d is not None}) == sum(d is not None for d in m)}
    idle = {m for m in distinct if all(d is None for d, n in zip(m, grid, strict=True) if n == 1)}
    assert set(imaps) == {m for m in idle if all(d is None or shape[d] % n == 0 for d, n in zip(m, grid, strict=True))}
    assert set(omaps) == {m for m in idle if all(d is not None for d, n in zip(m, grid, strict=True) if n > 1)}


def test_listed_maps_are_filtered_by_what_fits() -> None:
    space = load_space("attention").with_overrides(extents="paper")
    assert space.imap_candidates((2, 16, 1), (2, 256, 64)) == ((0, 1, None), (0, 2, None), (None, 1, None))
    assert space.imap_candidates((2, 16, 4), (2, 64, 6)) == ((0, None, 1), (0, 1, None), (None, 1, None))
    assert space.imap_candidates((2, 3, 1), (2, 256, 64)) == ()
    assert space.imap_candidates((2, 3, 1), (2, 6, 64)) == ((0, 1, None), (None, 1, None))
    assert space.omap_candidates((2, 16, 1), 3) == ((0, 1, None), (0, 2, None))
    assert space.omap_candidates((2, 16, 1), 2) == ((0, 1, None),)


def test_loops_split_only_what_divides() -> None:
    space = load_space("default")
    assert space.fmap_candidates((2, 1, 6)) == (None, 0, 2)
    assert space.loop_candidates([]) == (1,)
    assert space.loop_candidates([4, 6]) == (2,)
    assert space.loop_candidates([12]) == (2, 3, 4, 6, 12)
    paper = space.with_overrides(extents="paper")
    assert paper.loop_candidates([32]) == (4, 16)
    assert paper.loop_candidates([3]) == ()


def test_user_lists_replace_the_spaces_own() -> None:
    space = load_space("mlp").with_overrides(
        griddims=[(3, 1, 1)],
        imaps=[(-1, -1, -1), [1, -1, -1]],
        omaps=[(1, -1, -1)],
        fmaps=[-1, 0],
        franges=[5],
        blockdims=[(256, 1, 1)],
        max_kernel_ops=1,
        max_block_ops=4,
        keep=3,
    )
    assert space.grid_candidates([(6, 10)]) == ((3, 1, 1),)
    assert space.imap_candidates((3, 1, 1), (6, 9)) == ((None, None, None), (1, None, None))
    assert space.imap_candidates((3, 1, 1), (6, 10)) == ((None, None, None),)
    assert space.imap_candidates((1, 1, 1), (6, 9)) == ((None, None, None),)
    assert space.omap_candidates((3, 1, 1), 2) == ((1, None, None),)
    assert space.fmap_candidates((6, 10)) == (None, 0)
    assert space.loop_candidates([10]) == (5,)
    assert space.block_dims == ((256, 1, 1),)
    assert (space.max_kernel_ops, space.max_block_ops, space.keep) == (1, 4, 3)
    assert load_space("mlp").grids is None


def test_overrides_of_one_kind_of_extents_leave_the_other() -> None:
    space = load_space("mlp").with_overrides(extents="paper", franges=[3])
    assert space.forloop_ranges == (3,)
    assert space.with_overrides(extents="free").forloop_ranges is None


@pytest.mark.parametrize(
    ("overrides", "where", "got"),
    [
        ({"griddims": [(0, 1, 1)]}, "griddims", "0"),
        ({"griddims": [(1, 1)]}, "griddims", "(1, 1)"),
        ({"griddims": [(True, 1, 1)]}, "griddims", "True"),
        ({"imaps": [(-2, 0, 0)]}, "imaps", "-2"),
        ({"omaps": [3]}, "omaps", "3"),
        ({"fmaps": ["a"]}, "fmaps", "'a'"),
        ({"franges": [0]}, "franges", "0"),
        ({"extents": "wild"}, "extents", "'wild'"),
        ({"max_block_ops": 0}, "max_block_ops", "0"),
    ],
)
def test_senseless_overrides_are_named(overrides: dict[str, object], where: str, got: str) -> None:
    with pytest.raises(SpaceError) as caught:
        load_space("mlp").with_overrides(**overrides)  # type: ignore[arg-type]
    assert caught.value.where == where
    assert caught.value.what.startswith("expected")
    assert f", got {got}" in caught.value.what


def test_an_override_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'kepp'"):
        load_space("mlp").with_overrides(kepp=7)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("old", "new", "key", "expected", "got"),
    [
        ("keep = 1000", "kepp = 1000", "kepp", "one of the keys", "'kepp'"),
        ('imaps = "all"', "imapz = []", "free.imapz", "one of the keys imaps", "'imapz'"),
        ("keep = 1000", "", "keep", "a value", "nothing"),
        ("keep = 1000", 'keep = "x"', "keep", "int", "'x'"),
        ("keep = 1000", "keep = true", "keep", "int", "True"),
        ("keep = 1000", "keep = 0", "keep", "int >= 1", "0"),
        ("max_graph_defined = 1", "max_graph_defined = -1", "max_graph_defined", ">= 0", "-1"),
        ('"sum_to_dimx"', '"sumto"', "block_ops[11]", "one of", "'sumto'"),
        ('"sum_to_dimx"', '"softmax"', "block_ops", "can propose at block level", "'softmax'"),
        ('"sum_to_dimx"', '"concat"', "block_ops", "can propose at block level", "'concat'"),
        ('extents = "free"', 'extents = "wild"', "extents", "one of free, paper", "'wild'"),
        ('imaps = "all"', 'imaps = "some"', "free.imaps", '"all" or a list', "'some'"),
        ('imaps = "all"', "imaps = [[1, 2]]", "free.imaps[0]", "array of length 3", "[1, 2]"),
        ('imaps = "all"', "imaps = [[1, 2, -4]]", "free.imaps[0][2]", ">= -1", "-4"),
        ("min_blocks = 1", "min_blocks = 9", "free.min_blocks", "at most max_blocks = 4", "9"),
    ],
)
def test_mistakes_in_a_file_name_file_key_expected_and_got(
    old: str, new: str, key: str, expected: str, got: str
) -> None:
    assert old in TINY
    with pytest.raises(SpaceError) as caught:
        parse_space(TINY.replace(old, new, 1), "mine", "mine.toml")
    assert caught.value.where == f"mine.toml: {key}"
    assert expected in caught.value.what
    assert caught.value.what.endswith(f"got {got}")


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(SpaceError, match="attention, default, lora, mlp, norm, paper, tiny, got 'atention'"):
        load_space("atention")


def test_files_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TINY.replace("keep = 1000", "keep = 7"))
    assert load_space(str(path)).keep == 7
    assert load_space(str(path)).name == "mine"
    for content in (b"keep = = 1", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(SpaceError, match=r"mine\.toml"):
            load_space(str(path))
    for missing in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(SpaceError, match="expected a readable TOML file"):
            load_space(str(missing))
