"""Links within the documents lead to pages and headings that are there; no site has to be built to see it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.documents.pages import anchors, links, pages
from tests.kit.paths import REPOSITORY


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in links(text):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        there = target.exists() and target.is_relative_to(REPOSITORY)
        if there and anchor and target.suffix == ".md":
            there = anchor in anchors(target.read_text(encoding="utf-8"))
        if not there:
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_every_page_of_the_site_is_in_its_table_of_contents() -> None:
    docs = REPOSITORY / "docs"
    named = {line.strip().lstrip("?") for line in (docs / "index.md").read_text(encoding="utf-8").splitlines()}
    found = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")}
    listed = {
        one for one in found if one in named or any(one.startswith(f"{n[:-1]}") for n in named if n.endswith("/*"))
    }
    assert found - listed - included(docs) - {"index"} == set()


def included(docs: Path) -> set[str]:
    """Pages of docs/ that are shown as a part of another one."""
    names = re.findall(
        r"^```\{include\} \.\./([\w/-]+)\.md$", "\n".join(p.read_text() for p in docs.rglob("*.md")), re.M
    )
    return {name for name in names if (docs / f"{name}.md").is_file()}


def test_links_lead_to_where_a_page_is_on_the_site() -> None:
    path = REPOSITORY / "tools" / "site" / "conf.py"
    conf = runpy.run_path(str(path))
    moved, docs = conf["moved"], REPOSITORY / "docs"
    text = "[a](../search.md#idea) [b](faq.md) [c](https://x.org/search.md)"
    there = "[a](../ideas/searching.md#idea) [b](faq.md) [c](https://x.org/search.md)"
    assert moved(text, docs / "start" / "faq.md") == there
    # What another page includes has its links from there.
    inside = moved("[a](proof.md) [b](ideas/mugraph.md)", docs / "search.md", docs / "ideas" / "searching.md")
    assert inside == "[a](../proof.md) [b](mugraph.md)"
    assert moved("[a](docs/search.md)", REPOSITORY / "README.md") == "[a](docs/ideas/searching.md)"


def test_no_page_has_the_place_of_one_that_sphinx_writes_itself() -> None:
    """A page docs/search.md would be written over by the page that searches the site, and no warning would say so."""
    settings = (REPOSITORY / "tools" / "site" / "conf.py").read_text(encoding="utf-8")
    left_out = re.search(r"^exclude_patterns = \[(.*?)\]", settings, flags=re.M)
    assert left_out is not None
    there = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - set(re.findall(r'"([^"]+)"', left_out[1]))
    assert there & {"search.md", "genindex.md", "py-modindex.md"} == set()


def test_a_broken_link_is_seen() -> None:
    page = REPOSITORY / "docs" / "proof.md"
    text = "[a](trust.md) [b](none.md) [c](trust.md#solvers) [d](trust.md#none) `[e](none.md)` [f](https://x.org/y)"
    assert broken(page, text) == ["none.md", "trust.md#none"]


def test_pages_are_made_for_everybody_once() -> None:
    """What axe-core asks for is put in where the theme leaves it out; tests/browser/test_site.py looks at the pages."""
    reachable = runpy.run_path(str(REPOSITORY / "tools" / "site" / "conf.py"))["reachable"]
    page = '<article role="main" id="furo-main-content"><pre>a</pre><th class="head text-right"><p></p></th></article>'
    better = reachable(page)
    assert '<pre tabindex="0">' in better
    assert "<h1>Search</h1>" in better
    assert "<p></p>" not in better
    assert reachable(better) == better
