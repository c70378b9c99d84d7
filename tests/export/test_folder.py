"""What an exported folder holds, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mirage_formal.device import compile as compiler
from mirage_formal.export import TARGETS
from mirage_formal.export import folder as folders
from mirage_formal.export.built_candidate import load_built_candidate
from mirage_formal.export.folder import export_candidate
from mirage_formal.kernel_build.build import build_run
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.kernel_build.triton import triton_generator
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.revalidate.evidence_replay import replay_directory
from mirage_formal.run.result_cache.stored_kernel_check import stored_kernels
from mirage_formal.support.errors import FormatError, RunError, SpaceError, UnsupportedError
from mirage_formal.support.options import Settings
from tests.kit.graphs.workloads import TINY, layers

NAMES = ("one", "two", "product", "masked")
HOST = ["CMakeLists.txt", "README.md", "example.cpp", "launch.cu", "launch.h", "launch.json"]
PYTHON = ["load_cupy.py", "load_torch.py", "test.py", "torch_operator.py"]


def copied(run: Path, place: Path) -> Path:
    return Path(shutil.copytree(run, place / run.name))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_complete(name: str, exported: Mapping[str, Path]) -> None:
    folder = exported[name]
    table = json.loads((folder / "launch.json").read_text())
    kernels = sorted({step["file"] for step in table["launches"] if "kernel" in step})
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*HOST, *PYTHON, *kernels, "expected", "include", "inputs", "proof"]
    )
    assert sorted(path.name for path in (folder / "inputs").iterdir()) == [
        f"{i}.npy" for i in range(len(table["inputs"]))
    ]
    readme = (folder / "README.md").read_text()
    for path in folder.iterdir():
        assert path.name in readme or path.name == "README.md"
    assert "\n\n\n" not in readme


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_those_that_were_built(name: str, exported: Mapping[str, Path]) -> None:
    (kernels,) = (exported[name] / "proof" / "kernels").iterdir()
    for path in kernels.glob("*.cu"):
        assert (exported[name] / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_headers_include_nothing_else(name: str, exported: Mapping[str, Path]) -> None:
    """Of what is not for the emulator."""
    folder = exported[name]
    texts = [*folder.glob("kernel*.cu"), *(folder / "include").rglob("*.cuh")]
    found = set()
    for path in texts:
        text = re.sub(r"#ifdef MF_EMULATE\n.*?#else\n", "", path.read_text(), flags=re.DOTALL)
        found |= set(re.findall(r'#include [<"]([^>"]+)[>"]', text))
    there = {str(path.relative_to(folder / "include")) for path in (folder / "include").rglob("*.cuh")}
    assert found == there == set(json.loads((folder / "launch.json").read_text())["headers"])


@pytest.mark.skipif(not compiler.available(), reason="needs NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_nvrtc_compiles_every_kernel_from_the_folder_alone(name: str, arch: str, exported: Mapping[str, Path]) -> None:
    folder = exported[name]
    headers = {
        str(path.relative_to(folder / "include")): path.read_text() for path in (folder / "include").rglob("*.cuh")
    }
    for path in folder.glob("kernel*.cu"):
        cubin, _ = compiler._nvrtc().compile(path.read_text(), headers, arch)
        assert cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize("name", NAMES)
def test_proof_and_kernels_of_a_folder_are_established_from_it_alone(name: str, exported: Mapping[str, Path]) -> None:
    proof = exported[name] / "proof"
    (candidate,), (kernels,) = (proof / "candidates").iterdir(), (proof / "kernels").iterdir()
    (shown,) = replay_directory(candidate).shown
    stored = stored_kernels(kernels)
    assert stored.bound
    assert stored.about.candidate == shown.digest
    assert load_built_candidate(proof).kernels == kernels.resolve()


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_the_conditions_of_the_proof(name: str, exported: Mapping[str, Path]) -> None:
    (candidate,) = (exported[name] / "proof" / "candidates").iterdir()
    verdict = json.loads((candidate / "verification.json").read_text())["verdict"]
    readme = (exported[name] / "README.md").read_text()
    assert all(f"  - {condition}\n" in readme.replace("\\", "") for condition in verdict["conditions"])
    assert f"mirage-formal check proof/candidates/{candidate.name}" in readme
    (kernels,) = (exported[name] / "proof" / "kernels").iterdir()
    assert ("another form" in readme) == (kernels / "stabilized.json").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_modules_of_a_folder_import_nothing_of_the_package(name: str, exported: Mapping[str, Path]) -> None:
    allowed = {"ctypes", "cupy", "hashlib", "json", "load_cupy", "load_torch", "numpy", "pathlib", "sys", "torch"}
    for path in exported[name].glob("*.py"):
        text = path.read_text()
        imported = set(re.findall(r"^\s*(?:import|from) ([a-z_]+)", text, flags=re.MULTILINE))
        assert imported <= allowed, path
        compile(text, str(path), "exec")
    for path in (exported[name]).rglob("*"):
        if path.suffix in (".h", ".cpp", ".txt") or path.name == "launch.cu":
            assert "SPDX-License-Identifier: Apache-2.0" in path.read_text()


@pytest.mark.slow
def test_a_cover_of_a_large_program_comes_with_the_proofs_of_its_parts(tmp_path: Path) -> None:
    search_or_cover(layers(), Settings(**TINY), tmp_path / "layers", name="layers")
    ((name, outcome),) = build_run(tmp_path / "layers", 1, ())
    assert outcome.startswith("built")
    made = export_candidate(tmp_path / "layers" / "covers" / name, "cuda", tmp_path / "out")
    assert made.candidate == name
    (shown,) = replay_directory(tmp_path / "out" / "proof" / "covers" / name).shown
    assert stored_kernels(tmp_path / "out" / "proof" / "kernels" / name).about.candidate == shown.digest
    assert f"mirage-formal check proof/covers/{name}" in (tmp_path / "out" / "README.md").read_text()
    assert "CMAKE_CUDA_ARCHITECTURES 90a" in (tmp_path / "out" / "CMakeLists.txt").read_text()  # of the target


def test_the_candidate_is_chosen_by_rank_and_by_its_directory(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = built_runs["attention"]
    names = sorted(path.name for path in (run / "kernels").iterdir())
    assert export_candidate(run, "cuda", tmp_path / "a").candidate == names[0]
    assert export_candidate(run, "cuda", tmp_path / "b", 2).candidate == names[1]
    assert export_candidate(run / "candidates" / names[1], "cuda", tmp_path / "c").candidate == names[1]
    assert export_candidate(run / "kernels" / names[1], "cuda", tmp_path / "d").candidate == names[1]
    assert not (tmp_path / "a" / "torch_operator.py").exists()


def test_the_folder_has_the_name_of_the_run(
    built_runs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = copied(built_runs["masked"], tmp_path).rename(tmp_path / "2nd run")
    assert export_candidate(run, "cuda").directory == "p2nd_run-export"
    assert '"name": "p2nd_run"' in (tmp_path / "p2nd_run-export" / "launch.json").read_text()


@pytest.mark.parametrize("what", ["kernels", "header of the proof"])
def test_what_was_changed_is_refused_and_nothing_is_written(
    what: str, built_runs: Mapping[str, Path], tmp_path: Path
) -> None:
    run = copied(built_runs["attention"], tmp_path)
    one = sorted((run / "kernels").iterdir())[0]
    path = one / "kernel.cu" if what == "kernels" else run / "candidates" / one.name / "proof" / "equivalence.json"
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(FormatError, match=path.name):
        export_candidate(run, "cuda", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_kernels_without_their_candidate_are_refused(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = copied(built_runs["masked"], tmp_path)
    shutil.rmtree(run / "candidates")
    with pytest.raises(RunError, match="beside their candidate"):
        export_candidate(run, "cuda", tmp_path / "out")


def test_an_unknown_target_is_refused_by_naming_those_there_are(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="cuda, torch or triton, got 'lean'"):
        export_candidate(built_runs["masked"], "lean", tmp_path / "out")
    assert TARGETS == ("cuda", "torch", "triton")


def test_a_run_that_was_not_built_says_how_to_build_it(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = copied(built_runs["masked"], tmp_path)
    shutil.rmtree(run / "kernels")
    with pytest.raises(RunError, match="mirage-formal tools build"):
        export_candidate(run, "cuda", tmp_path / "out")
    (candidate,) = (run / "candidates").iterdir()
    with pytest.raises(RunError, match=r"python -m mirage_formal\.kernel_build"):
        export_candidate(candidate, "cuda", tmp_path / "out")


def test_a_folder_with_files_is_left_alone(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    export_candidate(built_runs["masked"], "cuda", place)
    before = sorted(place.rglob("*"))
    with pytest.raises(RunError, match="new or empty folder"):
        export_candidate(built_runs["masked"], "cuda", place)
    with pytest.raises(RunError, match="got a file"):
        export_candidate(built_runs["masked"], "cuda", place / "README.md")
    assert sorted(place.rglob("*")) == before


def test_a_failure_leaves_nothing(
    built_runs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(folders, "_write_texts", full)
    with pytest.raises(RunError, match="No space left"):
        export_candidate(built_runs["masked"], "cuda", tmp_path / "below" / "out")
    assert list((tmp_path / "below").iterdir()) == []


def test_a_triton_file_comes_with_its_log_and_the_proof(built_runs: Mapping[str, Path], tmp_path: Path) -> None:
    export_candidate(built_runs["attention"], "triton", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "program.json",
        "program.py",
        "proof",
    ]
    compile((tmp_path / "out" / "program.py").read_text(), "program.py", "exec")
    assert json.loads((tmp_path / "out" / "program.json").read_text())["verdict"] == "equivalent"
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "that the text computes the candidate" in readme
    assert "CMake" not in readme


def test_a_candidate_without_a_triton_file_says_why(
    built_runs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejected(*_: object) -> None:
        raise KernelRejected("it has no Triton file: roll is not written", where="triton")

    monkeypatch.setattr(triton_generator, "triton_program", rejected)
    with pytest.raises(UnsupportedError, match="roll is not written"):
        export_candidate(built_runs["attention"], "triton", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "mirage_formal", "export", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(Path(folders.__file__).resolve().parents[2])}
        return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    return run


def test_the_command_writes_a_folder_and_says_what_to_run(
    built_runs: Mapping[str, Path], command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = command(str(built_runs["masked"]), "--to", "torch", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "python out/test.py" in done.stdout
    assert (tmp_path / "out" / "torch_operator.py").is_file()
    again = command(str(built_runs["masked"]), "--out", "other", "--json")
    assert json.loads(again.stdout)["result"]["target"] == "cuda"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "alethe"], "expected one of cuda, torch, triton, flashinfer-bench, got 'alethe'"),
        (["--to", "cuda", "--op-type", "x"], "--op-type: expected it with --to flashinfer-bench only"),
        (
            ["--to", "flashinfer-bench", "--candidate", "1"],
            "--candidate: expected it with --to cuda, torch, triton only",
        ),
    ],
)
def test_what_the_command_refuses(
    more: list[str],
    said: str,
    built_runs: Mapping[str, Path],
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = command(str(built_runs["masked"]), *more)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
