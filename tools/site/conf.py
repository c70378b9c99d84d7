"""How Sphinx builds the documents: ``make docs``, or ``make docs OFFLINE=1`` where there is no network.

The pages are plain Markdown that is read as well where it is hosted; what Sphinx adds is in this file: the README as
the front page, links from bare names of documents, and the API from docstrings.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS.parent))

import mirage_formal  # noqa: E402

project = "mirage_formal"
author = "mirage_formal contributors"
project_copyright = author
version = release = mirage_formal.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
#: Other projects' inventories are fetched; a build that is to need no network leaves them out.
OFFLINE: Final = bool(os.environ.get("MIRAGE_DOCS_OFFLINE"))
if not OFFLINE:
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "torch": ("https://pytorch.org/docs/stable", None),
}

source_suffix = {".md": "markdown"}
exclude_patterns = ["build", "search.md"]  # search.html is Sphinx's own page; ideas/searching.md includes it
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
highlight_language = "none"  # a fence without a language is a picture in letters or a transcript
nitpicky = False

napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "mirage_formal"
html_show_copyright = False
html_copy_source = False
html_static_path: list[str] = []


#: Files outside of docs/, and the pages that include them.
_PAGES: Final = {
    "CHANGELOG.md": "docs/project/changelog.md",
    "CODE_OF_CONDUCT.md": "docs/project/governance.md",
    "CONTRIBUTING.md": "docs/project/contributing.md",
    "GOVERNANCE.md": "docs/project/governance.md",
    "SECURITY.md": "docs/project/security.md",
    "artifact/README.md": "docs/reference/artifact.md",
}


#: Pages of docs/ that have another place on the site.
_MOVED: Final = {DOCS / "search.md": DOCS / "ideas" / "searching.md"}


def moved(text: str, document: Path, parent: Path | None = None) -> str:
    """Markdown whose links lead to where pages are on the site.

    Args:
        text: What a page has.
        document: The page.
        parent: The page that includes it, if its links are to start there.
    """

    def link(found: re.Match[str]) -> str:
        target = (document.parent / found[1]).resolve()
        place = _MOVED.get(target, target)
        same = place == target and parent is None
        return f"]({found[1] if same else os.path.relpath(place, (parent or document).parent)}{found[2]})"

    return re.sub(r"\]\((?![a-z]+:)([\w./-]+)((?:#[^)]*)?)\)", link, text)


def _link(name: str, document: Path) -> str:
    """A bare name of a document as a link, or the name as it stands if there is no such page."""
    measured = DOCS / "reference" / name.removeprefix("benchmarks/")  # pages that include benchmarks/results-*.md
    for place in (DOCS.parent / name, document.parent / name, DOCS / name, measured):
        if place.is_file() and place.is_relative_to(DOCS) and place != document:
            target = os.path.relpath(place, document.parent).replace(os.sep, "/")
            return f"[{name}]({target})"
    return name


def linked(text: str, document: Path) -> str:
    """Markdown in which bare names of documents outside of code and of links have become links.

    Args:
        text: What a page has.
        document: The page.

    Returns:
        The same text with links as in ``[proof.md](proof.md)``.
    """
    parts = re.split(r"(^```.*?^```|`[^`]*`|\[[^\]]*\]\([^)]*\)|<!--.*?-->)", text, flags=re.DOTALL | re.MULTILINE)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"(?<![\w./-])((?:\w+/)*[\w-]+\.md)\b", lambda found: _link(found[1], document), parts[n])
    return "".join(parts)


def titled(text: str, name: str) -> str:
    """A page that a command wrote without a title, with one, and with headings that begin below it."""
    if re.search(r"^# ", text, flags=re.MULTILINE):
        return text
    if not re.search(r"^## ", text, flags=re.MULTILINE):
        text = re.sub(r"^#(#+ )", r"\1", text, flags=re.MULTILINE)
    return f"# Measured: {name.rsplit('/', 1)[-1]}\n\n{text}"


def _read(app: Any, name: str, content: list[str]) -> None:
    """Before a page is parsed. A line ``?name`` of a table of contents is a page that need not be there."""
    there = re.sub(
        r"^\?(\S+)\n",
        lambda found: found[1] + "\n" if (DOCS / f"{found[1]}.md").is_file() else "",
        content[0],
        flags=re.M,
    )
    content[0] = titled(moved(linked(there, DOCS / f"{name}.md"), DOCS / f"{name}.md"), name)


def _included(app: Any, path: Path, parent: str, content: list[str]) -> None:
    """Before a text that a page includes is parsed: the README and others at the top of the repository.

    Their links to each other lead to the pages that include them.
    """
    source = (DOCS / path).resolve()
    if source in _MOVED:
        content[0] = moved(linked(content[0], source), source, _MOVED[source])
        return
    if Path(path).parent.name in ("artifact", "benchmarks"):
        content[0] = linked(content[0], DOCS / "reference" / Path(path).name)
        return
    text = moved(linked(content[0], DOCS.parent / Path(path).name), DOCS.parent / Path(path).name)
    content[0] = re.sub(r"\]\(([\w/]+\.md)\)", lambda found: f"]({_PAGES.get(found[1], found[1])})", text)


#: What the theme leaves out that a keyboard and a screen reader need, as axe-core finds it.
_REACHABLE: Final = (
    (r'(<p class="caption" role="heading")>', r'\1 aria-level="2">'),
    (r'(<aside class="sidebar-drawer")>', r'\1 aria-label="All pages">'),
    (r'(<aside class="toc-drawer[^">]*")>', r'\1 aria-label="On this page">'),
    (r"<pre>", '<pre tabindex="0">'),
    (r'(<div class="table-wrapper[^">]*")>', r'\1 tabindex="0">'),
    (r'<th class="head[^"]*"><p></p></th>', "<td></td>"),
)


def reachable(page: str) -> str:
    """A page of the site for everybody: regions have names, what scrolls has the keyboard's focus, and there is an h1.

    Args:
        page: HTML as the theme writes it. A page that is given again stays as it is.
    """
    for pattern, better in _REACHABLE:
        page = re.sub(pattern, better, page)
    if "<h1" not in page:
        page = re.sub(r'(<article[^>]* id="furo-main-content"[^>]*>)', r"\1<h1>Search</h1>", page, count=1)
    return page


def _finished(app: Any, error: Exception | None) -> None:
    """After all pages are written."""
    if error is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            path.write_text(reachable(path.read_text(encoding="utf-8")), encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    connect: Callable[[str, Any], Any] = app.connect
    connect("source-read", _read)
    connect("include-read", _included)
    connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
