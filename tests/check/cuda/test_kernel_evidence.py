"""Kernels of a run: what check establishes about them, what it refuses, and what it says that it cannot see."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal import records
from mirage_formal.check.__main__ import main
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda import gpu_record_check
from mirage_formal.check.cuda.cubin import resources
from mirage_formal.check.cuda.manifest import SOLVERS, check_kernels
from mirage_formal.codegen.executable import load_executable
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.device.compile import available
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.kernel_build.build import build_run
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.support.errors import FormatError, MirageError
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.small_runs import first, kernel_runs, on_device
from tests.kit.runs.tampering import copy, edit, files, flip, leaves, other, read_lines, sign_kernels, write_lines
from tests.kit.sampling import number

EDITS = number(24, 80)
#: Kinds of files that kernels have, of which every one is changed.
KINDS = ("kernel", "launch", "plan", "obligations", "numerics", "measure", "manifest", "stabilized")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with kernels for two architectures: with a running maximum, and with products by cuBLAS."""
    found = kernel_runs(tmp_path_factory.mktemp("runs"))
    for root in found.values():
        for directory in sorted((root / "kernels").iterdir()):
            on_device(directory)
    return found


@pytest.fixture
def attention(runs: dict[str, Path], tmp_path: Path) -> Path:
    return copy(runs["attention"], tmp_path / "run")


def said(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(root), "--jobs", "1"]) in (1, 2)
    output, errors = capsys.readouterr()
    assert output == ""
    assert "Traceback" not in errors
    return errors


@pytest.mark.slow
def test_kernels_are_established_with_their_candidates(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs["attention"]), "--jobs", "2"]) == 0
    output = capsys.readouterr().out
    rows = [words[0] for line in output.splitlines() if (words := line.split())[1:2] == ["rewritten"]]
    assert sorted(rows) == sorted(path.name for path in (runs["attention"] / "kernels").iterdir())
    assert "compute their µGraph over the reals" in output
    for root in runs.values():
        for directory in (root / "kernels").iterdir():
            found = derive_kernels(directory)
            # Only what has no question, or a question that is a part of the claim, rests on the analysis alone, and
            # that shared memory is written before it is read.
            assert {SOLVERS, "form"} <= set(found.again) <= {SOLVERS, "form", "enumeration", "count"}
            assert found.recorded == {}
            assert found.obligations == sum(found.again.values())
            assert found.again[SOLVERS] > 0.75 * found.obligations
            # The checker alone establishes none of them.
            alone = check_kernels(directory).about
            assert alone.again == {}
            assert sum(alone.recorded.values()) == alone.obligations == found.obligations
            assert alone.compiled == 0
            assert found.numerics is not None
            assert found.numerics.answer == "within"
            assert found.measure is not None
    products = [check_kernels(path).about.products for path in sorted((runs["rms_norm"] / "kernels").iterdir())]
    assert products == [0, 1]


def test_the_checker_expects_what_numerics_promises() -> None:
    assert (gpu_record_check.SCALES, gpu_record_check.LAMBDA) == (result_comparison.SCALES, result_comparison.LAMBDA)


@pytest.mark.skipif(not available(), reason="needs NVRTC")
def test_what_the_compiler_reported_is_in_the_plan(runs: dict[str, Path]) -> None:
    for root in runs.values():
        for directory in (root / "kernels").iterdir():
            plans = records.decode((directory / "plan.json").read_bytes(), records.PlanRecord, "")
            kernels = [x for x in load_executable(directory).launches if isinstance(x, records.KernelLaunch)]
            assert [plan.kernel for plan in plans.kernels] == [launch.name for launch in kernels]
            for plan, launch in zip(plans.kernels, kernels, strict=True):
                assert set(plan.compiled) == set(launch.cubins) == {"sm_80", "sm_90a"}
                assert plan.shared_bytes == launch.shared_bytes
                for arch, code in plan.compiled.items():
                    assert code.registers > 0
                    assert (code.spill_bytes, code.stack_bytes) == (0, 0)
                    # The machine code says the same.
                    data = (directory / launch.cubins[arch].file).read_bytes()
                    assert resources(data, launch.name).registers == code.registers
                    with pytest.raises(FormatError):
                        resources(data, "another")


@pytest.mark.slow
@pytest.mark.usefixtures("check_mostly_here")
def test_every_changed_byte_is_caught(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes of one kind of file after another, and every other time of any file."""
    rng = random.Random(1)
    for turn in range(EDITS):
        root = rng.choice(sorted(runs.values()))
        if turn % 2 and turn // 2 % len(KINDS) == KINDS.index("stabilized"):
            root = runs["attention"]  # which alone has one
        root = copy(root, tmp_path / "run")
        every = files(root / "kernels")
        alike = [path for path in every if path.name.split(".")[0].split("-")[0] == KINDS[turn // 2 % len(KINDS)]]
        path = rng.choice(alike if turn % 2 else every)
        flip(path, rng)
        errors = said(root, capsys)
        assert path.parent.name in errors, f"edit {turn} of {path}"
        assert "step: " in errors


def refused(directory: Path, expected: str) -> None:
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(directory)
    assert expected in f"{failure.value.step}: {failure.value.what}", failure.value
    assert failure.value.file.startswith(str(directory))


def set_launch(**values: Any) -> Callable[[Path], None]:
    return lambda root: edit(root / "launch.json", lambda record: record["launches"][0].update(values))


def set_plan(root: Path) -> None:
    """Fewer registers, in the plan and in the launches."""
    edit(root / "plan.json", lambda record: record["kernels"][0]["compiled"]["sm_80"].update(registers=8))
    edit(root / "launch.json", lambda record: record["launches"][0]["cubins"]["sm_80"].update(registers=8))


def drop_reset(root: Path) -> None:
    """A program that forgets a running maximum, in every file that has it."""

    def change(record: dict[str, Any]) -> None:
        graph = record.get("graph", record)
        for op in graph["ops"][0]["graph"]["ops"]:
            if op["kind"] == "accum_rescaled_sum":
                op.update(kind="accum_sum", operands=op["operands"][:1])

    edit(root / "stabilized.json", change)
    edit(root / "launch.json", change)
    edit(root / "equivalence.json", lambda record: change(record["parts"][0]["form"]))
    code = digest(from_json((root / "stabilized.json").read_bytes()))
    edit(root / "launch.json", lambda record: record.update(digest=code))
    edit(root / "manifest.json", lambda record: record.update(graph=code))


def own_form(root: Path) -> None:
    """The running-maximum form is declared to be the candidate."""
    edit(root / "manifest.json", lambda record: record.update(candidate=record["graph"]))
    (root / "stabilized.json").unlink()
    (root / "equivalence.json").unlink()


def forget(kind: str) -> Callable[[Path], None]:
    """No obligation of a kind, and no question of one."""

    def change(root: Path) -> None:
        entries = [r for r in read_lines(root / "obligations.jsonl") if r["kind"] != kind]
        write_lines(root / "obligations.jsonl", entries)
        questions(root, {r["sha256"]: r["sha256"] for r in entries if r["sha256"]})

    return change


def questions(root: Path, kept: dict[str, str], change: Callable[[str], str] = str) -> None:
    path = root / "obligations.smt2.gz"
    texts = [change(t) for t in records.unpack_texts(path.read_bytes(), "") if records.sha256(t.encode()) in kept]
    path.write_bytes(records.pack_texts(texts))


def ask(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Every question changed, with the digests that name them."""

    def edited(root: Path) -> None:
        path = root / "obligations.smt2.gz"
        texts = records.unpack_texts(path.read_bytes(), "")
        codes = {records.sha256(t.encode()): records.sha256(change(t).encode()) for t in texts}
        entries = read_lines(root / "obligations.jsonl")
        for record in entries:
            record["sha256"] = codes.get(record["sha256"])
        write_lines(root / "obligations.jsonl", entries)
        path.write_bytes(records.pack_texts(sorted(set(map(change, texts)), key=lambda t: records.sha256(t.encode()))))

    return edited


def scale(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda root: edit(root / "numerics.json", lambda record: change(record["scales"][1]["outputs"][0]))


def triton(**changes: Any) -> Callable[[Path], None]:
    """Adds a Triton file that took the place of the CUDA kernels, of which something is not as it would be."""
    variant = {"sha256": "0" * 64, "warps": 1.0, "stages": None, "us": 1.0, "answer": "within", "failed": ""}
    found = {"tried": [variant] * changes.pop("times", 1), "chosen": "0" * 64, "us": 1.0, "cuda_us": 3.0}
    found |= {"versions": "torch 2.11.0, Triton 3.6.0", "scales": [], "backend": "triton", "reason": ""}
    for key, value in changes.items():
        (variant if key in ("answer", "sha256") else found)[key] = value
    return lambda root: edit(root / "measure.json", lambda record: record.update(triton=found))


#: Edits by somebody who signs everything again, and what must be said.
FORGERIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fewer threads": (set_launch(threads=64), "plan of"),
    "another operator": (set_launch(operator=1), "one launch for every operator"),
    "another grid": (set_launch(grid=[7, 1, 1]), "grid"),
    "less shared memory": (set_launch(shared_bytes=0), "plan of"),
    "another name": (set_launch(name="kernel9"), "source of a kernel"),
    "a file outside": (set_launch(source="../../../run.json"), "launches[0].source"),
    "swapped operands": (
        lambda root: edit(root / "launch.json", lambda r: r["launches"][0]["arguments"].reverse()),
        "values",
    ),
    "no launch": (lambda root: edit(root / "launch.json", lambda r: r["launches"].pop()), "one launch for every"),
    "fewer registers": (set_plan, "registers and stack frame"),
    "a wrong form": (drop_reset, "replay the proof"),
    "a form without its proof": (own_form, ""),
    "no coverage": (forget("coverage"), "obligations of coverage"),
    "no form": (forget("structure"), "obligations of form"),
    "a satisfiable question": (ask(lambda text: text.replace("(assert (distinct", "(assert (= ")), "sha256"),
    "a question about fewer threads": (
        ask(lambda t: t.replace("(declare-const tid (_ BitVec 7))", "(declare-const tid (_ BitVec 5))")),
        "sha256",
    ),
    "a question that asks nothing": (ask(lambda text: text.replace("(check-sat)\n", "")), "sha256"),
    "an option": (ask(lambda text: "(set-option :tlimit 1)\n" + text), "sha256"),
    "a file of no use": (lambda root: (root / "notes.txt").write_text("x"), "files of kernels"),
    "an error too large": (scale(lambda o: o.update(max_ratio=1.5)), "consistent numerics"),
    "an error above every tolerance": (scale(lambda o: o.update(max_absolute_error=9.0)), "figures that agree"),
    "not a number": (scale(lambda o: o.update(relative_norm=None)), "finite figures"),
    "fewer elements": (scale(lambda o: o.update(elements=1)), "elements"),
    "a reason": (scale(lambda o: o.update(reason="but")), "a reason"),
    "a scale is missing": (lambda root: edit(root / "numerics.json", lambda r: r["scales"].pop()), "scales"),
    "another scale": (lambda root: edit(root / "numerics.json", lambda r: r["scales"][2].update(scale=1.0)), "scales"),
    "a larger tolerance": (
        lambda root: edit(root / "numerics.json", lambda r: r.update(tolerance_lambda=60.0)),
        "factor of the tolerance",
    ),
    "an answer": (lambda root: edit(root / "numerics.json", lambda r: r.update(answer="outside")), "answer"),
    "numerics of another µGraph": (
        lambda root: edit(root / "numerics.json", lambda r: r.update(candidate="0" * 64)),
        "which kernels",
    ),
    "a median below the fastest": (lambda root: edit(root / "measure.json", lambda r: r.update(us=1.0)), "times"),
    "a Triton file that nobody compared": (triton(answer=None), "Triton file"),
    "a Triton file that is wrong": (triton(answer="outside"), "Triton file"),
    "a Triton file that was not tried": (triton(chosen="1" * 64), "Triton file"),
    "a Triton file that is as fast": (triton(us=2.95), "Triton file"),
    "a Triton file without a time": (triton(us=None), "Triton file"),
    "a Triton file twice": (triton(times=2), "Triton file"),
    "a Triton file of another kind": (triton(sha256="x"), "sha256"),
    "more bytes": (lambda root: edit(root / "measure.json", lambda r: r.update(moved_bytes=1)), "moves"),
}


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused_after_signing_again(attention: Path, name: str) -> None:
    forge, expected = FORGERIES[name]
    directory = first(attention)
    forge(directory)
    sign_kernels(directory)
    if name == "a form without its proof":
        derive_kernels(directory)  # alone it is a candidate's own form; the run knows the candidate
        assert main([str(attention), "--jobs", "1"]) == 1
        return
    refused(directory, expected)


def test_a_triton_file_beside_kernels_is_the_authors_word(attention: Path) -> None:
    directory = first(attention)
    triton()(directory)
    sign_kernels(directory)
    derive_kernels(directory)


def states(path: Path) -> object:
    """What launches or plans state; of graphs, their digests."""
    record = json.loads(path.read_bytes())
    for name in ("graph", "program"):
        with suppress(MirageError):  # a map of a grid axis of extent 1 means nothing, for example
            if name in record:
                record[name] = digest(from_json(json.dumps(record[name])))
    return record


def test_edited_fields_of_launches_and_plans_are_caught_after_signing_again(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """Only what another compiler would have said is left out, by name."""
    rng = random.Random(2)
    unseen = {"compiler"} if available() else {"compiler", "spill_bytes", "shared_bytes"}
    done = 0
    while done < EDITS // 2:
        source = first(rng.choice(sorted(runs.values())))
        directory = copy(source, tmp_path / "kernels")
        path = directory / rng.choice(["launch.json", "plan.json"])
        record = json.loads(path.read_bytes())
        container, key = rng.choice([(c, k) for c, k in leaves(record, unseen) if not isinstance(c[k], dict | list)])
        container[key] = other(container[key], rng)
        path.write_text(json.dumps(record))
        if states(path) == states(source / path.name):
            continue
        sign_kernels(directory)
        done += 1
        try:
            derive_kernels(directory)
        except CheckFailed:
            continue
        pytest.fail(f"not caught: {path.name}: {key}")


@pytest.mark.usefixtures("check_here")
def test_kernels_belong_to_their_candidate(attention: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = sorted((attention / "kernels").iterdir())
    copy(two, one)
    errors = said(attention, capsys)
    assert "step: whose kernels" in errors
    assert one.name in errors


@pytest.mark.usefixtures("check_here")
def test_nothing_else_lies_beside_kernels(attention: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = attention / "kernels"
    (place / "notes.txt").write_text("x")
    assert "kernels of a reported candidate only, got notes.txt" in said(attention, capsys)
    (place / "notes.txt").unlink()
    stranger = copy(first(attention), place / "009-000000000000")
    assert "got 009-000000000000" in said(attention, capsys)
    moved = stranger.rename(tmp_path / "elsewhere")
    first(attention).joinpath("numerics.json").unlink()
    first(attention).joinpath("numerics.json").symlink_to(moved / "numerics.json")
    assert "symbolic link" in said(attention, capsys)


@pytest.mark.usefixtures("check_here")
def test_kernels_without_a_manifest_are_refused(attention: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(first(attention))]) == 2
    assert "expected a run or a candidate, got kernels" in capsys.readouterr().err
    (first(attention) / "manifest.json").unlink()
    assert "step: read the manifest of kernels" in said(attention, capsys)


def test_kernels_of_candidates_that_are_no_longer_reported_go(tmp_path: Path) -> None:
    """A resumed run that reports others keeps the kernels of those that it still reports."""
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    root = tmp_path / "run"
    program = PROGRAMS["rms_norm"]()[0]
    run_search(program, settings, root, name="x")
    build_run(root, count=1, archs=())
    kept = copy(first(root), root / "kernels" / "009-000000000000")
    run_search(program, msgspec.structs.replace(settings, resume=True), root, name="x")
    assert first(root).is_dir()
    assert not kept.exists()
