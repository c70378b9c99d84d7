"""Evidence of kernels is derived again from the µGraph: whatever was replaced is named, also after signing again.

Every edit is one by somebody who recomputes all digests and seals afterwards, so only what is derived can refuse it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from mirage_formal import records
from mirage_formal.check.__main__ import main
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda.manifest import SOLVERS
from mirage_formal.check.solvers import UNSAT, SolverAnswers
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.serialization import decode_programs, encode_programs
from mirage_formal.device import compile as nvrtc
from mirage_formal.device.compile import available
from mirage_formal.kernel_build.build import discharge_obligations
from mirage_formal.logic.script import Script
from mirage_formal.revalidate import check_command, rederive
from mirage_formal.revalidate.rederive import derive_kernels
from tests.kit.runs.small_runs import first, kernel_runs
from tests.kit.runs.tampering import InProcess, copy, edit, read_lines, sign_kernels, write_lines

Edit = Callable[[Path], Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with kernels: with a running maximum, and with a predefined operator beside a product by cuBLAS."""
    return kernel_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def attention(runs: dict[str, Path], tmp_path: Path) -> Path:
    return copy(runs["attention"], tmp_path / "run")


def refusal(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What check says about a run that must be refused."""
    code = main([str(root), "--jobs", "1"])
    output, errors = capsys.readouterr()
    assert (code in (1, 2), output) == (True, ""), output
    assert "Traceback" not in errors
    return errors


def sign_sources(directory: Path) -> None:
    """Recompute the digests of sources and machine code in the launches, then those of the manifest."""

    def change(record: dict[str, Any]) -> None:
        for launch in record["launches"]:
            for entry, file in [(launch, launch.get("source")), *((c, c["file"]) for c in launch["cubins"].values())]:
                entry["sha256"] = records.sha256((directory / file).read_bytes())

    edit(directory / "launch.json", change)
    sign_kernels(directory)


def in_source(change: Callable[[str], str]) -> Edit:
    def edited(directory: Path) -> None:
        path = directory / "kernel.cu"
        text = change(path.read_text())
        assert text != path.read_text()
        path.write_text(text)

    return edited


def in_lines(change: Callable[[list[dict[str, Any]]], Any]) -> Edit:
    """Change the lines of obligations; questions that none of them names any more are left out."""

    def edited(directory: Path) -> None:
        entries = read_lines(directory / "obligations.jsonl")
        change(entries)
        write_lines(directory / "obligations.jsonl", entries)
        path = directory / "obligations.smt2.gz"
        named = {record["sha256"] for record in entries}
        texts = [t for t in records.unpack_texts(path.read_bytes(), "") if records.sha256(t.encode()) in named]
        path.write_bytes(records.pack_texts(texts))

    return edited


#: Unsatisfiable whatever the kernel does, and of the form that a question has.
TRIVIAL = "(set-logic QF_BV)\n(set-info :status unsat)\n(assert false)\n(check-sat)\n"


def trivial_question(directory: Path) -> None:
    code = records.sha256(TRIVIAL.encode())
    entries = read_lines(directory / "obligations.jsonl")
    for record in entries:
        record["sha256"] = record["sha256"] and code
    write_lines(directory / "obligations.jsonl", entries)
    (directory / "obligations.smt2.gz").write_bytes(records.pack_texts([TRIVIAL]))


def drop_one(entries: list[dict[str, Any]]) -> None:
    entries.remove(next(record for record in entries if record["kind"] == "conflict"))


def by_enumeration(entries: list[dict[str, Any]]) -> None:
    entries[next(i for i, r in enumerate(entries) if r["means"] == "solver")].update(
        means="enumeration", solvers={}, sha256=None
    )


def other_claim(entries: list[dict[str, Any]]) -> None:
    entries[-1]["claim"] = "every element is written twice"


def code_of(path: Path) -> tuple[int, int]:
    """Where the instructions of a cubin lie: offset and size of its section .text.*."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    text = data[headers[names][4] :]
    return next((h[4], h[5]) for h in headers if text[h[0] : text.index(b"\0", h[0])].startswith(b".text."))


def other_code(directory: Path) -> None:
    path = directory / "kernel-sm_80.cubin"
    at, size = code_of(path)
    data = bytearray(path.read_bytes())
    data[at + size // 2] ^= 1
    path.write_bytes(bytes(data))


def other_buffers(directory: Path) -> None:
    """The first buffer under another name and one element shorter, the last one where it was."""
    edit(directory / "plan.json", lambda r: r["kernels"][0]["buffers"][0].update(name="shared_x", elements=1))


EDITS: dict[str, tuple[Edit, str, str]] = {
    "a barrier is dropped": (
        in_source(lambda text: text.replace("  mf::barrier();\n", "", 1)),
        "kernel.cu",
        "CUDA C++",
    ),
    "an empty body": (in_source(lambda text: text[: text.index("{\n") + 2] + "}\n"), "kernel.cu", "CUDA C++"),
    "another index": (
        in_source(lambda text: re.sub(r"(mf::store\w*)\(\s*(\w+),\s*", r"\1(\2, 1 + ", text, count=1)),
        "kernel.cu",
        "CUDA C++",
    ),
    "a comment": (in_source(lambda text: text + "// another\n"), "kernel.cu", "CUDA C++"),
    "a trivial question": (trivial_question, "obligations.jsonl", "obligations"),
    "an obligation is dropped": (in_lines(drop_one), "obligations.jsonl", "obligations"),
    "settled by enumeration": (in_lines(by_enumeration), "obligations.jsonl", "obligations"),
    "another claim": (in_lines(other_claim), "obligations.jsonl", "obligations"),
    "obligations in another order": (in_lines(list.reverse), "obligations.jsonl", "obligations"),
    "other buffers": (other_buffers, "plan.json", "plan"),
    "other barriers": (
        lambda root: edit(root / "plan.json", lambda r: r["kernels"][0]["loop"].update(barriers=77)),
        "plan.json",
        "plans",
    ),
    "a smaller alignment": (
        lambda root: edit(root / "launch.json", lambda r: r["launches"][0]["arguments"][0].update(align=1)),
        "launch.json",
        "launches",
    ),
}


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", EDITS)
def test_what_is_not_derived_is_refused(attention: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change, file, step = EDITS[name]
    directory = first(attention)
    change(directory)
    sign_sources(directory)
    errors = refusal(attention, capsys)
    assert f"{directory / file}: check failed" in errors
    assert step in errors.split("step: ")[1].splitlines()[0]


@pytest.mark.skipif(not available(), reason="needs NVRTC")
def test_other_machine_code_is_refused(attention: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = first(attention)
    other_code(directory)
    sign_sources(directory)
    errors = refusal(attention, capsys)
    assert f"{directory / 'kernel-sm_80.cubin'}: check failed" in errors
    assert "machine code" in errors
    assert ".text." in errors


@pytest.mark.skipif(not available(), reason="needs NVRTC")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"registers": 8}, "registers"),
        ({"spill_bytes": 4}, "spill"),
        ({"shared_bytes": 4}, "what the compiler reports"),
    ],
)
def test_what_the_compiler_reports_is_compared(attention: Path, change: dict[str, int], what: str) -> None:
    directory = first(attention)
    edit(directory / "plan.json", lambda r: r["kernels"][0]["compiled"]["sm_80"].update(change))
    known = {key: value for key, value in change.items() if key != "shared_bytes"}
    edit(directory / "launch.json", lambda r: r["launches"][0]["cubins"]["sm_80"].update(known))
    sign_sources(directory)
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(directory)
    assert what in f"{failure.value.step} {failure.value.what}"


@pytest.mark.slow
def test_machine_code_that_is_not_compiled_again_is_said_to_be_the_authors(
    attention: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = first(attention)
    made = available()
    if made:
        other_code(directory)
    sign_sources(directory)
    with monkeypatch.context() as here:
        here.setattr(check_command, "LimitedCheck", InProcess)
        assert main([str(attention), "--jobs", "1", "--no-recompile"]) == 0
    output = capsys.readouterr().out
    assert ("files, not compiled again, as asked" in output) == made
    assert "byte for byte" not in output
    with monkeypatch.context() as other:
        other.setattr(nvrtc, "version", lambda: "9.1")
        assert all("here is 9.1" in why for why in derive_kernels(directory).written)
        other.setattr(nvrtc, "version", lambda: "")
        found = derive_kernels(directory)
    monkeypatch.setenv("MIRAGE_FORMAL_NVRTC", "/nowhere/libnvrtc.so")  # check has a process of its own
    assert main([str(attention), "--jobs", "1"]) == 0
    assert ("there is none here" in capsys.readouterr().out) == made
    assert found.compiled == 0
    assert sum(found.written.values()) == (2 if made else 0)


@pytest.mark.skipif(not available(), reason="needs NVRTC")
def test_an_author_cannot_name_another_compiler_to_be_counted(attention: Path) -> None:
    """Machine code whose author names another compiler is never counted as made again."""
    directory = first(attention)
    other_code(directory)
    edit(directory / "plan.json", lambda r: r["kernels"][0]["compiled"]["sm_80"].update(compiler="1.2.3"))
    sign_sources(directory)
    found = derive_kernels(directory)
    assert found.compiled == 1  # sm_90a
    assert found.written == {f"compiled by NVRTC 1.2.3, here is {nvrtc.version()}": 1}
    edit(directory / "plan.json", lambda r: r["kernels"][0]["compiled"]["sm_80"].update(compiler="13\nPROVED"))
    sign_sources(directory)
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(directory)
    assert failure.value.corrupt


# --- Programs --------------------------------------------------------------------------------------------------------


def programs(directory: Path) -> tuple[ir.Program, ...]:
    return decode_programs((directory / "programs.json").read_bytes())


def replace_program(directory: Path, changed: ir.Program, *, kept: Collection[str] = ()) -> None:
    """Put another Program in the place of the only one, and write everything that follows from it; but what is kept."""
    settled = discharge_obligations(changed)
    text = emit_cuda(changed)
    (directory / "programs.json").write_bytes(encode_programs([changed]))
    if "kernel.cu" not in kept:
        (directory / "kernel.cu").write_text(text)
    if "obligations" not in kept:
        (directory / "obligations.jsonl").write_bytes(b"".join(map(records.json_line, settled.records)))
        texts = [settled.texts[code] for code in sorted(settled.texts)]
        (directory / "obligations.smt2.gz").write_bytes(records.pack_texts(texts))
    cubins = json.loads((directory / "launch.json").read_bytes())["launches"][0]["cubins"]
    for arch in cubins if available() and "cubins" not in kept else ():
        (directory / f"kernel-{arch}.cubin").write_bytes(nvrtc.compile(text, arch, fresh=True).cubin)
    sign_sources(directory)


def other_constant(program: ir.Program) -> ir.Program:
    """The same kernel with another factor: as safe, with the very same obligations, and wrong."""

    def changed(node: Any) -> Any:
        if isinstance(node, ir.Real) and node.value not in (0.0, math.inf, -math.inf):
            return ir.Real(node.value * 2)
        if isinstance(node, tuple):
            return tuple(map(changed, node))
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            values = {field.name: changed(getattr(node, field.name)) for field in dataclasses.fields(node)}
            return dataclasses.replace(node, **values)
        return node

    found: ir.Program = changed(program)
    return found


@pytest.fixture
def rms_norm(runs: dict[str, Path], tmp_path: Path) -> Path:
    return copy(runs["rms_norm"], tmp_path / "run")


@pytest.mark.parametrize("kept", [set(), {"kernel.cu", "cubins"}, {"obligations"}], ids=["all", "text", "obligations"])
def test_another_program_is_refused(rms_norm: Path, capsys: pytest.CaptureFixture[str], kept: set[str]) -> None:
    """Another safe Program, with everything that follows from it: only the µGraph refuses it."""
    directory = first(rms_norm)
    (program,) = programs(directory)
    changed = other_constant(program)
    assert changed != program
    assert discharge_obligations(changed).texts == discharge_obligations(program).texts  # the obligations are the same
    replace_program(directory, changed, kept=kept)
    errors = refusal(rms_norm, capsys)
    assert f"{directory / 'programs.json'}: check failed\n  step: Programs of the µGraph" in errors
    assert ".value: expected " in errors


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_compiler_is_told_of_registers_is_no_part_of_a_program(rms_norm: Path, alone: bool) -> None:
    """Kernels of before they said so, and any that say it: sources follow from what the directory's Programs say."""
    directory = first(rms_norm)
    (program,) = programs(directory)
    replace_program(directory, dataclasses.replace(program, alone=alone), kept={"cubins"})
    assert derive_kernels(directory, recompile=False).again
    replace_program(directory, dataclasses.replace(program, alone=not alone), kept={"cubins", "kernel.cu"})
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(directory, recompile=False)
    assert "__launch_bounds__" in failure.value.what


def test_another_target_is_another_plan(attention: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the kernels are planned for is a part of what they follow from."""
    directory = first(attention)

    def smaller(record: dict[str, Any]) -> None:
        record["target"]["limits"]["shared_bytes_per_block"] = 1

    edit(directory / "manifest.json", smaller)
    sign_sources(directory)
    assert "step: derive the kernels from the µGraph" in refusal(attention, capsys)


def raw(change: Callable[[bytes], bytes]) -> Edit:
    path = "programs.json"
    return lambda root: (root / path).write_bytes(change((root / path).read_bytes()))


HOSTILE: dict[str, Edit] = {
    "no file": lambda root: (root / "programs.json").unlink(),
    "nothing": raw(lambda data: b""),
    "deep": raw(lambda data: b"[" * 2_000_000),
    "deep in a field": raw(lambda data: data.replace(b'"threads":', b'"threads":' + b"[" * 1_000_000, 1)),
    "huge": raw(lambda data: b" " * (9 << 20)),
    "a key twice": raw(lambda data: data.replace(b'"threads":', b'"threads":1,"threads":', 1)),
    "an unknown operation": raw(lambda data: data.replace(b'{"is":"barrier"}', b'{"is":"asm"}', 1)),
    "an unknown field": raw(lambda data: data.replace(b'"threads":', b'"host":"x","threads":', 1)),
    "an endless loop": raw(lambda data: re.sub(rb'"extent":\d+', b'"extent":2147483647', data, count=1)),
    "no barrier": raw(lambda data: data.replace(b'{"is":"barrier"}', b'{"is":"commit"}', 1)),
}


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_are_refused(attention: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    directory = first(attention)
    HOSTILE[name](directory)
    sign_kernels(directory)
    errors = refusal(attention, capsys)
    assert "programs.json" in errors
    if name != "no file":
        assert str(directory / "programs.json") in errors
        assert "Program" in errors.split("step: ")[1].splitlines()[0]


def test_no_solver_is_asked_about_a_text_of_a_file(
    attention: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Script] = []

    def answer(script: Script) -> SolverAnswers:
        asked.append(script)
        return SolverAnswers(UNSAT)

    monkeypatch.setattr(rederive, "query_solvers", answer)
    directory = first(attention)
    trivial_question(directory)
    sign_sources(directory)
    refusal(attention, capsys)
    assert asked == []


def test_what_solvers_leave_open_is_not_counted_unless_the_analysis_settles_it(
    attention: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = first(attention)
    entries = read_lines(directory / "obligations.jsonl")
    before = derive_kernels(directory)
    monkeypatch.setattr(rederive, "query_solvers", lambda script: SolverAnswers({"z3": "unknown", "cvc5": "unknown"}))
    found = derive_kernels(directory)
    assert SOLVERS not in found.again
    by_solver = sum(record["means"] == "solver" for record in entries)
    assert found.recorded == {"undecided now": by_solver}
    assert by_solver > 0
    assert sum(found.again.values()) == len(entries) - by_solver
    assert before.recorded == {}
    monkeypatch.setattr(rederive, "query_solvers", lambda script: SolverAnswers({"z3": "unsat", "cvc5": "sat"}))
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(directory)
    assert "expected unsat" in failure.value.what


@pytest.mark.usefixtures("check_here")
def test_conditions_of_the_running_maximum_are_kept(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = derive_kernels(first(runs["attention"]))
    assert found.stabilized
    assert found.conditions
    assert all("divisor nonzero" in condition for condition in found.conditions)
    assert main([str(runs["attention"]), "--jobs", "1"]) == 0
    assert "conditions of the proofs of rewritten forms: divisor nonzero" in capsys.readouterr().out
    assert derive_kernels(first(runs["rms_norm"])).conditions == ()


@pytest.mark.usefixtures("check_here")
def test_nothing_replaced_is_accepted(attention: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Signing again alone changes nothing."""
    sign_sources(first(attention))
    assert main([str(attention), "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    assert "compute their µGraph over the reals" in output
    assert "it is not decided" not in output
    assert "Only recorded: none" in output
    if available():
        count = len(list(attention.glob("kernels/*/*.cubin")))
        assert f"Machine code: {count} files are, byte for byte, what NVRTC" in output
