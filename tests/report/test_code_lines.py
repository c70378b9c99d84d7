"""Lines of code and the parts of the µGraph that they compute: where the text is the one that the µGraph gives."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import msgspec
import pytest

from mirage_formal.device.disassembly import AssemblyText
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import KernelManifestRecord, PlanRecord, ScheduleRecord, TargetRecord, decode
from mirage_formal.report.drawing.levels import all_nodes, levels
from mirage_formal.report.model import Code
from mirage_formal.report.page.html import page, render
from mirage_formal.report.reading import ReadLimits, kernel_reader, read_report
from mirage_formal.report.reading.kernel_reader import lines_of
from tests.kit.runs import tampering
from tests.report.test_hostile import harmless


def code_of(root: Path) -> Code:
    code = read_report(root).candidates[0].code
    assert code is not None
    return code


def test_lines_of_a_run_lie_in_their_kernels_and_name_nodes_that_are_drawn(small: Path) -> None:
    report = read_report(small)
    code, graph = report.candidates[0].code, report.candidates[0].graph
    assert code is not None
    drawn = graph if code.own else code.form
    assert drawn is not None
    names = {node.id: node.label for node in all_nodes(levels(drawn))}
    texts = dict(code.sources)
    assert any(kernel.lines for kernel in code.kernels)
    for kernel in code.kernels:
        for piece in kernel.lines:
            assert kernel.first < piece.first <= piece.last < kernel.last
            assert all(names[node] == label for node, label in piece.parts)
            text = "\n".join(texts[kernel.source].split("\n")[piece.first - 1 : piece.last])
            if "exp" in dict(piece.parts).values():
                assert "mf::exp(" in text
            assert ("copy_async" in text) == piece.does.startswith(("copies", "starts copies"))


def test_the_page_links_each_piece_and_its_table_says_the_same(small: Path) -> None:
    code = code_of(small)
    html = render("code", "code_section", code)
    pieces = [piece for kernel in code.kernels for piece in kernel.lines]
    drawn = "candidate" if code.own else "form"
    beside = re.findall(r'<span class="of">(.*?)</span><span class="l part[^"]*" data-line="(\d+)">', html)
    rows = re.findall(r"<tr><td>(\d+)–(\d+)</td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", html)
    assert len(beside) == len(rows) == len(pieces) > 5
    for piece, (shown, line), (first, last, does, _, nodes) in zip(pieces, beside, rows, strict=True):
        assert (int(line), int(first), int(last), unescape(does)) == (piece.first, piece.first, piece.last, piece.does)
        assert re.findall(r'data-goto="(.*?)"', shown) == [f"{drawn}:{node}" for node, _ in piece.parts]
        assert nodes == ", ".join(node for node, _ in piece.parts)
    marked = len(re.findall(r'class="l part part-[01]"', html))
    assert marked == sum(piece.last - piece.first + 1 for piece in pieces)
    if code.form is not None:
        assert 'data-graph="form"' in html
    assert "data-goto" not in render("code", "code_section", replace(code, own=False, form=None))


def test_nothing_is_said_about_a_text_that_the_graph_does_not_give(small: Path, tmp_path: Path) -> None:
    root = tampering.copy(small, tmp_path / "copy")
    (source, *_) = sorted(root.glob("kernels/*/kernel*.cu"))
    source.write_text(source.read_text().replace("exp(", "exp2(", 1))
    tampering.sign_kernels(source.parent)
    before, behind = code_of(small), code_of(root)
    for old, new in zip(before.kernels, behind.kernels, strict=True):
        assert new.lines == (() if new.source == source.name else old.lines)
    harmless(page(read_report(root)))


@pytest.fixture(scope="module")
def planned(small: Path) -> tuple[KernelGraph, TargetRecord, PlanRecord, dict[str, str]]:
    """What lines are found by: the µGraph, the target, the plans, the texts."""
    (directory,) = sorted((small / "kernels").iterdir())
    manifest = decode((directory / "manifest.json").read_bytes(), KernelManifestRecord, "")
    plans = decode((directory / "plan.json").read_bytes(), PlanRecord, "")
    best = read_report(small).candidates[0]
    assert best.code is not None
    graph = best.graph if best.code.own else best.code.form
    assert graph is not None
    return graph, manifest.target, plans, dict(best.code.sources)


Planned = tuple[KernelGraph, TargetRecord, PlanRecord, dict[str, str]]


def test_forged_targets_end_in_no_lines(planned: Planned) -> None:
    graph, target, plans, texts = planned
    assert lines_of(*planned)
    for limit in ("shared_bytes_per_block", "threads_per_sm", "registers_per_sm"):
        limits = msgspec.structs.replace(target.limits, **{limit: 0})
        found = lines_of(graph, msgspec.structs.replace(target, limits=limits), plans, texts)
        assert found in ({}, lines_of(*planned)), limit  # what planning does not look at changes nothing
    assert lines_of(graph, msgspec.structs.replace(target, limits=None), plans, texts) == {}


def test_plans_of_nonsense_end_in_no_lines(planned: Planned) -> None:
    graph, target, plans, texts = planned
    own = next(one for one in plans.kernels if one.schedule is not None or one.operator >= 0)
    schedule = ScheduleRecord(threads=32, stages=10**6, warps=(), registers=True, resident=True, cut=10**6)
    for operator in {one.operator for one in plans.kernels}:
        wrong = msgspec.structs.replace(own, operator=operator, schedule=schedule)
        assert lines_of(graph, target, msgspec.structs.replace(plans, kernels=(wrong,)), texts) == {}


def test_large_texts_are_left_alone(planned: Planned) -> None:
    graph, target, plans, texts = planned
    assert lines_of(graph, target, plans, {}) == {}
    assert lines_of(graph, target, plans, texts | {"more.cu": " " * (1 << 20)}) == {}


def test_lines_of_assembly_belong_to_the_operators_of_their_source(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that the graph does not give is not compiled: evidence of others may hold any text."""
    compiled: list[str] = []

    def listings(source: str, arch: str) -> tuple[AssemblyText, ...]:
        compiled.append(source)
        (at,) = [number for number, line in enumerate(source.split("\n"), 1) if "mf::exp(" in line][:1]
        return AssemblyText("ptx", "\n".join(("ex2 a;", "ex2 <b>;", "bar;")), (at, at, 1)), AssemblyText(
            "sass", "", (), "nvdisasm was not found"
        )

    monkeypatch.setattr(kernel_reader, "assembly_texts", listings)
    assert code_of(small).assembly == ()
    assert compiled == []
    asked = ReadLimits(assembly=True)
    code = read_report(small, shown=asked).candidates[0].code
    assert code is not None
    assert [text for _, text in code.sources] == compiled
    ptx, sass = code.assembly[:2]
    (piece,) = ptx.lines
    assert (piece.first, piece.last) == (1, 2)
    owners = [one for kernel in code.kernels for one in kernel.lines if one.first <= ptx.sources[0] <= one.last]
    assert (piece.parts, piece.does) == (owners[0].parts, owners[0].does)
    assert (ptx.name, sass.missing) == ("kernel.ptx" if len(code.sources) == 1 else ptx.name, "nvdisasm was not found")
    html = render("code", "code_section", code, "candidate-0")
    assert f'href="#candidate-0/{ptx.source}/{ptx.sources[0]}"' in html
    assert re.search(rf'data-line="2" data-from="{ptx.sources[1]}">[^<]*<?[^\n]*&lt;', html)
    assert "nvdisasm was not found" in html
    root = tampering.copy(small, tmp_path / "copy")
    for source in root.glob("kernels/*/kernel*.cu"):
        source.write_text(source.read_text() + '#include "/etc/passwd"\n')
        tampering.sign_kernels(source.parent)
    compiled.clear()
    read_report(root, shown=asked)
    assert compiled == []
