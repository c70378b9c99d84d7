"""Names of parts of the page: each is used once, each link has its target, and files are those of the evidence."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.report.model import Basis
from mirage_formal.report.page.html import page, render
from mirage_formal.report.reading import read_report
from tests.report.test_hostile import harmless

PACKED = re.compile(r'<script type="application/octet-stream" (?:id|data-name)="([^"]*)">([^<]*)</script>')


def unpacked(text: str) -> str:
    return zlib.decompress(base64.b64decode(text), -15).decode()


class Names(HTMLParser):
    """The ids of a fragment, its links inside the page, and the names of nodes and lines below their ids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.below: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        if "id" in about:
            self.ids.append(about["id"])
        if about.get("href", "").startswith("#"):
            self.links.append(about["href"][1:])
        if tag in ("div", "details"):
            self._open.append(about.get("id", ""))
        if last := about.get("data-node") or about.get("data-line"):
            near = next(one for one in reversed(self._open) if one)
            self.below.append(f"{near}/{last}")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("div", "details"):
            self._open.pop()


@pytest.fixture(scope="module", params=["small", "whole"])
def parts(request: pytest.FixtureRequest) -> tuple[Names, dict[str, str]]:
    """The names of a page with all its candidates unpacked, and its files."""
    made = page(read_report(request.getfixturevalue(request.param)))
    harmless(made)

    def whole(html: str) -> Iterator[str]:
        yield html
        for name, text in PACKED.findall(html):
            if name.startswith("packed-"):
                yield from whole(unpacked(text))

    fragments = list(whole(made))
    files = {name: unpacked(text) for one in fragments for name, text in PACKED.findall(one) if "packed-" not in name}
    return Names("".join(fragments)), files


def test_each_name_is_used_once(parts: tuple[Names, dict[str, str]]) -> None:
    names, _ = parts
    assert [name for name, count in Counter([*names.ids, *names.below]).items() if count > 1] == []
    assert all(re.fullmatch(r"[\w./-]+", name) for name in [*names.ids, *names.below])


def test_each_link_has_its_target(parts: tuple[Names, dict[str, str]]) -> None:
    names, _ = parts
    targets = {*names.ids, *names.below}
    assert [one for one in names.links if unquote(one) not in targets] == []


def test_all_that_a_reader_points_at_has_a_name_that_lasts(small: Path) -> None:
    """Names have the digest of their candidate, and no rank, which another search may change."""
    report = read_report(small)
    best = report.best
    assert best is not None
    assert best.proof is not None
    assert best.code is not None
    assert best.graph is not None
    html = render("candidate", "candidate_section", best, report.program)
    names, name = Names(html), f"candidate-{best.digest[:12]}"
    assert name in names.ids
    assert all(one.startswith(name) for one in names.ids)
    for n in range(len(best.code.kernels)):
        assert f"{name}/kernel-{n}" in {*names.ids} & {*names.links}
    for source, _ in best.code.sources:
        assert f"{name}/{source}" in names.ids
    for step in best.proof.parts[0].steps:
        assert f"{name}/proof/t{step.number}" in {*names.ids} & {*names.links}
    for n in range(len(best.graph.ops)):
        assert f"{name}/graph/op{n}" in names.below


def test_files_are_those_of_the_evidence(small: Path) -> None:
    report = read_report(small)
    best = report.best
    assert best is not None
    assert best.code is not None
    html = render("candidate", "candidate_section", best, report.program)
    files = {name: unpacked(text) for name, text in PACKED.findall(html)}
    short, place = best.digest[:12], small / best.directory
    assert digest(from_json(files[f"{short}-mugraph.json"].encode(), "page")) == best.digest
    assert files[f"{short}-equivalence.json"].encode() == (place / "proof" / "equivalence.json").read_bytes()
    for source, _ in best.code.sources:
        kept = (small / "kernels" / place.name / source).read_text()
        assert files[f"candidate-{short}-{source}"] == kept


def test_a_digest_and_a_command_are_copied_in_full(small: Path) -> None:
    report = read_report(small)
    made = page(report)
    assert report.best is not None
    assert f'data-copy="{report.best.digest}"' in made
    assert f'data-copy="mirage-formal check {small}"' in made


def test_what_was_not_checked_is_quiet_and_says_what_the_check_would_be(small: Path) -> None:
    report = read_report(small)
    made = page(report)
    (title,) = {*re.findall(r'<span class="badge recorded" title="([^"]*)"', made)}
    assert "mirage-formal check would establish it" in title
    assert "replays the proof" in title
    first, *narrow = re.findall(r"\.badge\{([^}]*)\}", made)
    assert "color:var(--soft)" in first
    assert not any("color" in rule for rule in narrow)
    assert not re.search(r"warn|bad", first)
    assert len({one.check for one in Basis}) == len(Basis)


def test_the_proof_object_is_not_in_the_values_of_json(small: Path) -> None:
    from mirage_formal.report.model import report_values

    (proof, *_) = [one["proof"] for one in report_values(read_report(small))["candidates"]]
    assert "text" not in proof
    json.dumps(proof)
