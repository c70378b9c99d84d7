"""Which launches are dependent is derived from the µGraph, also when everything is signed again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.serialization import decode_programs, encode_programs
from mirage_formal.kernel_build.build import build_run
from mirage_formal.records import sha256
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.tampering import copy, edit, sign_kernels

Edit = Callable[[Path], Any]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with kernels, of whose candidates one takes two."""
    root = tmp_path_factory.mktemp("runs") / "attention"
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    run_search(PROGRAMS["attention"]()[0], settings, root, name="attention")
    assert [outcome for _, outcome in build_run(root, count=2)] == ["built", "built"]
    return root


def sign_sources(directory: Path) -> None:
    """Recompute the digests of the sources in the launches, then those of the manifest."""

    def change(record: dict[str, Any]) -> None:
        for launch in record["launches"]:
            launch["sha256"] = sha256((directory / launch["source"]).read_bytes())

    edit(directory / "launch.json", change)
    sign_kernels(directory)


def second(root: Path) -> Path:
    """Kernels of the candidate that takes two."""
    return next(
        place
        for place in sorted((root / "kernels").iterdir())
        if len(json.loads((place / "launch.json").read_bytes())["launches"]) == 2
    )


def launches(**changes: Any) -> Edit:
    """Both launches, with a field that differs: ``dependent=(False, False)``."""

    def change(record: dict[str, Any]) -> None:
        for number, launch in enumerate(record["launches"]):
            launch.update({name: values[number] for name, values in changes.items()})

    return lambda root: edit(root / "launch.json", change)


def in_programs(change: Callable[[tuple[ir.Stmt, ...]], tuple[ir.Stmt, ...]], *, launched: bool) -> Edit:
    """Another body of the second Program, its text and the number of its launch."""

    def edited(directory: Path) -> None:
        one, two = decode_programs((directory / "programs.json").read_bytes())
        two = dataclasses.replace(two, body=change(two.body))
        (directory / "programs.json").write_bytes(encode_programs([one, two]))
        (directory / "kernel1.cu").write_text(emit_cuda(two))
        launches(dependent=(False, launched))(directory)

    return edited


def said_given(root: Path) -> None:
    """A result of the first launch, as if no launch wrote it."""
    edit(root / "launch.json", lambda record: record["launches"][1]["arguments"][0].update(given=True))


def programmed_given(root: Path) -> None:
    """The same in the second Program, its text and its launch."""
    one, two = decode_programs((root / "programs.json").read_bytes())
    first, *others = two.params
    two = dataclasses.replace(two, params=(dataclasses.replace(first, given=True), *others))
    (root / "programs.json").write_bytes(encode_programs([one, two]))
    (root / "kernel1.cu").write_text(emit_cuda(two))
    said_given(root)


DEPENDENT: dict[str, tuple[Edit, str]] = {
    "the first launch too": (launches(dependent=(True, True)), "launch.json"),
    "none": (launches(dependent=(False, False)), "launch.json"),
    "the other": (launches(dependent=(True, False)), "launch.json"),
    "no wait in the text": (
        lambda root: (root / "kernel1.cu").write_text(
            (root / "kernel1.cu").read_text().replace("  mf::grid_wait();\n", "")
        ),
        "kernel1.cu",
    ),
    "no wait": (in_programs(lambda body: body[1:], launched=True), "programs.json"),
    "a result that is read ahead": (said_given, "launch.json"),
    "a Program that reads a result ahead": (programmed_given, "launch.json"),
    "an early launch": (lambda root: edit(root / "plan.json", lambda r: r["kernels"][0].update(early=True)), "s.json"),
    "no wait, launched in order": (in_programs(lambda body: body[1:], launched=False), "programs.json"),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_which_launches_are_dependent_is_derived(attention: Path, tmp_path: Path, name: str) -> None:
    change, file = DEPENDENT[name]
    directory = second(copy(attention, tmp_path / "run"))
    assert [x["dependent"] for x in json.loads((directory / "launch.json").read_bytes())["launches"]] == [False, True]
    assert "  mf::grid_wait();\n" in (directory / "kernel1.cu").read_text()
    derive_kernels(directory, recompile=False)
    change(directory)
    sign_sources(directory)
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(directory, recompile=False)
    assert str(failure.value.file).endswith(file), failure.value
