"""Targets: the figures that ship are complete, sourced and plausible; malformed ones are refused by field."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from mirage_formal.codegen.target import load_target, target_names
from mirage_formal.records.kernels import TargetRecord
from mirage_formal.support.errors import TargetError
from mirage_formal.support.resources import data_dir

NAMES = ("a100", "h100", "h200", "rtx4090")


def source(name: str) -> str:
    return (data_dir("gpu") / "targets" / f"{name}.toml").read_text()


def test_all_targets_ship() -> None:
    assert target_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_plausible(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.arch.startswith("sm_")
    assert 100 <= target.sms <= 160
    limits = target.limits
    assert limits.shared_bytes_per_block + limits.shared_reserved_per_block == limits.shared_bytes_per_sm
    assert limits.threads_per_block == 1024
    assert limits.grid == (2**31 - 1, 65535, 65535)
    assert 0.5 < target.model.bandwidth_efficiency < 1
    # the peak of the vector units is two operations per lane and clock, with 64 or 128 lanes an SM
    lanes = target.vector_tflops * 1e3 / (2 * target.sms * target.clock_ghz)
    assert min(abs(lanes - n) / n for n in (64, 128)) < 0.02
    assert target.tensor_tflops > 2 * target.vector_tflops or name == "rtx4090"
    assert target.model.sm_bandwidth_gbs <= 64 * target.clock_ghz


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_of_the_chip_has_a_source(name: str) -> None:
    for line in source(name).split("[model]")[0].splitlines():
        if re.match(r"^(?!name|title)\w+ =", line):
            assert "#" in line, line


@pytest.mark.parametrize("name", target_names())
def test_the_record_of_kernels_has_every_figure(name: str) -> None:
    """Programs are derived from the record again, for the target as it was."""
    target = load_target(name)
    record = msgspec.convert(msgspec.to_builtins(target), TargetRecord)
    assert msgspec.to_builtins(record) == msgspec.to_builtins(target)


def test_targets_differ() -> None:
    assert len({load_target(name) for name in NAMES}) == 4


@pytest.mark.parametrize("name", ["h300", "../targets/h200", "", "nowhere/x.toml"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(TargetError, match="h200") as error:
        load_target(name)
    assert name in error.value.what


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("sms = 132", "sms = -1", "sms"),
        ("sms = 132", "sms = 1.5", "sms"),
        ("sms = 132", "sms = true", "sms"),
        ("sms = 132", "", "sms"),
        ("sms = 132", "sms = 132\ncores = 7", "cores"),
        ("bandwidth_gbs = 4800.0", 'bandwidth_gbs = "fast"', "bandwidth_gbs"),
        ("bandwidth_gbs = 4800.0", "bandwidth_gbs = nan", "bandwidth_gbs"),
        ("tensor_tile = [64, 8, 16]", "tensor_tile = [64, 8]", "tensor_tile"),
        ("[limits]", "[limit]", "limits"),
        ("[model]\n", "[model\n", "TOML"),
        ("threads_per_sm = 2048", "threads_per_sm = 0", "threads_per_sm"),
    ],
)
def test_a_malformed_target_names_the_field(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = source("h200")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(TargetError) as error:
        load_target(str(path))
    assert named in str(error.value)
    assert "mine.toml" in str(error.value)


def test_a_target_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(source("h200").replace("sms = 132", "sms = 114").replace('name = "h200"', 'name = "mine"'))
    target = load_target(str(path))
    assert (target.name, target.sms) == ("mine", 114)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(source("h200") + "#" * (1 << 17))
    with pytest.raises(TargetError, match="bytes"):
        load_target(str(path))
