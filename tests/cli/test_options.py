"""What options may be: one rule for the command line and for Python, and one text for each mistake."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.api.request import Options
from mirage_formal.cli.search.search_main import search_main
from mirage_formal.run.executors import make_executor
from mirage_formal.run.settings import make_job
from mirage_formal.run.verify.policy import Policy
from mirage_formal.search.bounds import Extents
from mirage_formal.support.errors import MirageError, SpaceError, TargetError
from mirage_formal.support.options import ENGINES, CallOptions, Overrides, Settings, options_of
from tests.kit.runs.fake_engine import program

WRONG: list[tuple[str, Any, str]] = [
    *(
        (name, value, "a whole number from 1 up")
        for name in ("workers", "keep")
        for value in (0, -1, True, 1.5, "2", [1])
    ),
    ("max_kernel_ops", 0, "a whole number from 1 up"),
    ("max_block_ops", "nine", "a whole number from 1 up"),
    *(("seed", value, "a whole number from 0 up") for value in (-1, 1.5, "1", True, None, 1 << 70)),
    *(
        (name, value, "a positive finite number")
        for name in ("time_limit", "worker_memory")
        for value in (math.nan, math.inf, -math.inf, -1, 0, "5", True, 10**400)
    ),
    ("engine", "fast", "one of guided, exhaustive"),
    ("engine", 3, "one of guided, exhaustive"),
    ("oracle", "delphi", "one of normal-form, z3"),
    ("oracle", None, "one of normal-form, z3"),
    ("accept", True, "one of equivalent, probable"),
    ("extents", "Free", "one of free, paper"),
    ("prune", 1, "True or False"),
    ("resume", "yes", "True or False"),
    ("config", 5, "a preset's name or a .toml file"),
    ("config", "", "a preset's name or a .toml file"),
    ("target", None, "a target's name or a .toml file"),
    ("cluster", 8786, "a scheduler's address"),
    *((name, 5, "a list of triples (x, y, z)") for name in ("griddims", "blockdims", "imaps", "omaps")),
    ("griddims", "2,1,1", "a list of triples (x, y, z)"),
    ("griddims", [], "a list of triples (x, y, z)"),
    *(
        ("griddims", value, "a list of triples (x, y, z) from 1 up")
        for value in ([4], [(4, 1)], [(4, True, 1)], [(4.0, 1, 1)])
    ),
    ("blockdims", [(0, 1, 1)], "a list of triples (x, y, z) from 1 up"),
    ("imaps", [("0", 1, 1)], "a list of triples (x, y, z) of dims, -1 for none"),
    ("imaps", [(-2, 1, 1)], "a list of triples (x, y, z) of dims, -1 for none"),
    ("fmaps", 1, "a list of dims"),
    ("fmaps", [1.0], "a list of dims"),
    ("franges", 4, "a list of ranges"),
    ("franges", [0], "a list of ranges"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG, ids=lambda value: repr(value)[:24])
def test_settings_refuse_what_an_option_cannot_be(name: str, value: Any, expected: str) -> None:
    with pytest.raises(SpaceError) as caught:
        make_job(program(), Settings(**{name: value}))
    assert caught.value.where == name
    assert caught.value.what.startswith(f"expected {expected}")
    assert ", got " in caught.value.what


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *((n, v, e) for n, v, e in WRONG if n not in ("worker_memory",)),
        *(("name", v, "a name of at most") for v in ("../../up", "a/b", "", ".", "..", "a\nb", "x" * 101, 5, None)),
        *(("measure", v, "a whole number from 0 up") for v in (-1, 1.5, "2", True)),
        *(("out", v, "a directory") for v in (5, "", b"out")),
        *(("watch", v, "a function") for v in (5, "bars")),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_python_says_the_same(
    name: str, value: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpaceError) as caught:
        mf.superoptimize(program(), **{name: value})
    assert caught.value.where == name
    assert caught.value.what.startswith(f"expected {expected}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        *(("--seed", value, "a whole number from 0 up") for value in ("1.5", "-1", "x", "nan", "True")),
        *(
            (name, value, "a whole number from 1 up")
            for name in ("--workers", "--keep")
            for value in ("0", "-2", "1.5", "")
        ),
        *(
            (name, value, "a positive finite number")
            for name in ("--time-limit", "--worker-memory")
            for value in ("nan", "inf", "-inf", "-1", "0", "x")
        ),
        ("--max-kernel-ops", "0", "a whole number from 1 up"),
        ("--max-block-ops", "two", "a whole number from 1 up"),
        ("--engine", "fast", "one of guided, exhaustive"),
        ("--oracle", "delphi", "one of normal-form, z3"),
        ("--accept", "all", "one of equivalent, probable"),
        ("--extents", "large", "one of free, paper"),
        ("--griddim", "1,2", "three integers X,Y,Z"),
        ("--griddim", "²,1,1", "three integers X,Y,Z"),
        ("--config", "", "a preset's name or a .toml file"),
    ],
)
def test_the_command_line_says_the_same(
    option: str,
    value: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import mirage_formal as mf\ng = mf.new_kernel_graph()\nx = g.new_input((4, 8))\ng.mark_output(g.exp(x))\n"
    )
    monkeypatch.setattr(sys, "argv", ["mirage_formal.search", "own.py", f"{option}={value}"])
    with pytest.raises(SystemExit) as ended:
        search_main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert f"{option.removeprefix('--').replace('-', '_')}: expected {expected}" in errors.replace(
        option, option.removeprefix("--").replace("-", "_")
    )
    assert "hint: " in errors
    assert not (tmp_path / "runs").exists()


def test_options_are_the_fields_that_users_may_set() -> None:
    """The types of keyword arguments, which a type checker has to read, are the one thing that is written twice."""
    described = [one.name for one in options_of(CallOptions, Settings)]
    assert set(described) == set(Options.__annotations__)
    assert set(Settings.__struct_fields__) - set(described) == {"longer", "unit_limit", "part", "bucket"}
    assert set(Overrides.__annotations__) < set(Settings.__struct_fields__)


def test_words_are_those_of_the_enumerations() -> None:
    words = {one.name: set(one.values.split("|")) for one in options_of(Settings)}
    assert words["extents"] == set(Extents)
    assert words["accept"] == set(Policy)
    assert words["engine"] == {*ENGINES, "MODULE:CLASS"}


def test_path_likes_and_integers_of_numpy_are_taken(tmp_path: Path) -> None:
    space = tmp_path / "own.toml"
    data = Path(mf.__file__).parent.parent
    space.write_text((data / "search" / "tiny.toml").read_text())
    target = tmp_path / "gpu.toml"
    target.write_text((data / "gpu" / "targets" / "a100.toml").read_text())
    settings: Any = {"config": space, "target": target, "seed": np.int64(3), "keep": np.int32(2)}
    job = make_job(program(), Settings(**settings))
    assert (job.config, job.target.sms, job.space.keep) == (str(space), 108, 2)
    assert type(job.options.seed) is int
    graph = mf.new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input((4, 8), name="x")))
    out: Any = tmp_path / "out"
    best = mf.superoptimize(graph, out=out, workers=1, **settings)[0]
    assert best.directory.is_relative_to(out)


def test_a_missing_file_is_the_usual_error(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="expected a readable TOML file"):
        make_job(program(), Settings(config=str(tmp_path / "none.toml")))
    with pytest.raises(TargetError, match="expected a known target"):
        make_job(program(), Settings(target=str(tmp_path / "none.toml")))


def test_workers_are_not_started_for_wrong_settings() -> None:
    wrong: Any = {"workers": "2"}
    with pytest.raises(SpaceError, match="expected a whole number from 1 up, got '2'"):
        make_executor(Settings(**wrong))


@pytest.mark.parametrize("seed", [1.5, -1, True, "0", None])
def test_verify_takes_seeds_by_the_same_rule(seed: Any) -> None:
    with pytest.raises(MirageError, match="expected a whole number from 0 up"):
        mf.equivalence(program(), program(), seed=seed)
