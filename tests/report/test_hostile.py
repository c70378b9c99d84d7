"""Evidence that lies, is cut off, or wants to be obeyed: it is shown as text, and what does not hold is named."""

from __future__ import annotations

import json
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.report.model import (
    Basis,
    CheckResult,
    EvidenceFault,
    FigureTable,
    ReportedCandidate,
    ReportedVerdict,
    ReportModel,
    report_values,
)
from mirage_formal.report.page.html import comparison_page, index, page
from mirage_formal.report.reading import read_report
from mirage_formal.report.text_report import report_text
from tests.kit.paths import REPOSITORY
from tests.kit.runs import tampering
from tests.kit.runs.tampering import TEXTS, obeyed

NAMES = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "abc\u202edef\u2066",
    "n" * 10_000,
    "]]>--><!--",
    "",
)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(html: str) -> None:
    """Only our own script runs, nothing is asked for, no attribute is a handler or a style."""
    found = Elements(html).found
    scripts = [about for tag, about in found if tag == "script" and about.get("type") != "application/octet-stream"]
    assert scripts == [{}]
    for tag, about in found:
        assert tag not in ("img", "iframe", "object", "embed", "link", "base", "form")
        assert not any(name.startswith("on") or name in ("style", "src", "srcdoc") for name in about)
        assert about.get("href", "#").startswith("#")  # type: ignore[union-attr]
    policy = next(about["content"] for tag, about in found if about.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


@given(TEXTS | st.sampled_from(NAMES))
@settings(max_examples=80)
def test_any_text_is_shown_and_not_obeyed(given_text: str) -> None:
    """In an element, in an attribute and in a text of several lines, on every kind of page."""
    text = given_text
    one = ReportedCandidate(1, text, text, text, Basis.RECORDED, None, 1, 1.0, conditions=(text,))
    report = ReportModel(
        "run", text, text, text, None, candidates=(one, one), judged=(ReportedVerdict("0", text, text),),
        tables=(FigureTable(text, text, (text,), ((text,),)),), made=((text, text),),
        checked=CheckResult(True, f"{text}\n{text}", 1.0, text), faults=(EvidenceFault(text, text),),
    )  # fmt: skip
    for made in (page(report), index(text, [(report, "#")]), comparison_page(report, report)):
        harmless(made)
        assert obeyed(Elements(made).text, several=True) == ""


def test_templates_let_nothing_pass_that_is_not_escaped() -> None:
    """Markup comes from macros and from the few functions that say so; ``safe`` is only asked for a line break."""
    texts = [path.read_text() for path in (REPOSITORY / "mirage_formal" / "report" / "page" / "templates").iterdir()]
    assert len(texts) > 5
    assert re.findall(r"\S*\s*\|\s*safe", "".join(texts)) == ['"\\n"|safe']
    assert not any("autoescape" in text for text in texts)


@pytest.mark.parametrize("name", NAMES[:5])
def test_names_of_evidence(small: Path, tmp_path: Path, name: str) -> None:
    root = tampering.copy(small, tmp_path / "copy")

    def rename(record: dict[str, Any]) -> dict[str, Any]:
        record["name"] = name[:1000]
        record["source"] = name[:1000]
        record["host"]["system"] = name[:1000]
        return record

    tampering.edit(root / "run.json", rename)
    for line in ("label", "error"):
        entries = tampering.read_lines(root / "search.jsonl")
        for entry in entries:
            if line == "label":
                entry["label"] = name[:1000]
        tampering.write_lines(root / "search.jsonl", entries)
    report = read_report(root)
    made = page(report)
    harmless(made)
    assert obeyed(report_text(report), several=True) == ""
    assert json.dumps(report_values(report), allow_nan=False)
    assert report.broken  # the digests in the summary are those of the other names


def test_one_changed_byte_is_named(small: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    for number, name in enumerate(
        ("run.json", "search.jsonl", "summary.json", "candidates/*/mugraph.json", "candidates/*/proof/equivalence.json",
         "candidates/*/manifest.json", "kernels/*/launch.json", "kernels/*/kernel*.cu", "kernels/*/measure.json")
    ):  # fmt: skip
        root = tampering.copy(small, tmp_path / str(number))
        path = sorted(root.glob(name))[0]
        tampering.flip(path, rng)
        report = read_report(root)
        assert report.broken, name
        harmless(page(report))
        file = path.relative_to(root).as_posix()
        assert any(fault.file.endswith(path.name) or fault.file in file for fault in report.broken), (
            name,
            report.broken,
        )


def test_every_file_cut_off_anywhere_gives_a_report(small: Path, tmp_path: Path) -> None:
    rng = random.Random(5)
    root = tampering.copy(small, tmp_path / "copy")
    files = [path for path in tampering.files(root) if path.suffix in (".json", ".jsonl", ".cu")]
    for path in rng.sample(files, 12):
        whole = path.read_bytes()
        path.write_bytes(whole[: rng.randrange(len(whole))])
        report = read_report(root)
        assert "Traceback" not in page(report)
        path.write_bytes(whole)
    assert read_report(root).broken == ()


def test_files_that_are_gone_are_named(small: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("summary.json", "search.jsonl", "candidates", "kernels")):
        root = tampering.copy(small, tmp_path / str(number))
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
        report = read_report(root)
        assert bool(report.broken) == (name != "kernels")
        harmless(page(report))


def test_a_forged_proof_is_refused_though_it_is_signed(small: Path, tmp_path: Path) -> None:
    """Digests can be written again; the checker's kernel replays the proof, and says where it fails."""
    root = tampering.copy(small, tmp_path / "copy")
    directory = sorted((root / "candidates").iterdir())[0]

    def other(proof: dict[str, Any]) -> dict[str, Any]:
        for step in proof["steps"]:
            if step[0] == "unary" and step[1] == "exp":
                step[1] = "square"
                return proof
        raise AssertionError("expected a step with exp")

    tampering.edit(directory / "proof" / "equivalence.json", other)
    tampering.sign_proof(directory)
    tampering.sign_candidate(directory)
    tampering.sign_run(root)
    report = read_report(root)
    assert report.candidates[0].basis is Basis.FAILS
    assert report.candidates[0].proof is None
    assert any("refuses the proof" in fault.what for fault in report.broken)
    made = page(report)
    assert "refuses the proof" in made
    assert "What was compared at the end" not in made


def test_a_link_out_of_the_directory_is_not_followed(small: Path, tmp_path: Path) -> None:
    root = tampering.copy(small, tmp_path / "copy")
    secret = tmp_path / "secret.txt"
    secret.write_text("nobody should read this")
    path = sorted((root / "candidates").iterdir())[0] / "mugraph.json"
    path.unlink()
    path.symlink_to(secret)
    report = read_report(root)
    assert any("symbolic link" in fault.what for fault in report.broken)
    assert "nobody should read this" not in page(report)


def test_a_page_has_nothing_from_elsewhere(small: Path) -> None:
    made = page(read_report(small))
    harmless(made)
    addresses = set(re.findall(r"https?://[^\s\"'<]*", made)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
