"""Prose for strangers: a paragraph leaves at most two of this project's own words unexplained."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.documents.pages import pages
from tests.kit.paths import REPOSITORY

#: Words that a reader who knows Python and has heard of GPUs meets here first. Each has a row in docs/glossary.md.
HOUSE: Final = (
    "abstract expression", "accumulator", "atom", "audit", "barrier", "candidate", "canonical form", "certificate",
    "closure", "counterexample", "cover", "digest", "digit", "dimx", "discharge", "DTensor", "epoch",
    "extreme", "fibre", "fingerprint", "fmap", "fold", "footprint", "forloop_range", "fragment", "gate",
    "graph-defined", "handover", "imap", "input iterator", "journal", "lemma", "lowering", "manifest",
    "monomial", "normal form", "obligation", "omap", "oracle", "output saver", "pitch", "placement",
    "pmax", "policy", "predefined operator", "redraw", "reduction_dimx", "replay", "residue", "RTensor", "seal", "slab",
    "sought", "stable form", "STensor", "surd", "swizzle", "twin", "unfused", "vacuous", "verdict",
    "witness", "µGraph",
)  # fmt: skip
#: Words of a paragraph that may be left to the reader.
MOST: Final = 2

_FENCE: Final = re.compile(r"^```.*?^```$|<!--.*?-->", re.DOTALL | re.MULTILINE)


@cache
def _pattern(word: str) -> re.Pattern[str]:
    forms = "|".join(re.escape(one) for one in (word, f"{word}s", f"{word}es"))
    return re.compile(rf"(?<![\w.`/-])(?:{forms})(?![\w`-])", re.IGNORECASE if word.islower() else 0)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs, items of lists and rows of tables of a page, in order; code in fences is left out."""
    for block in re.split(r"\n\s*\n", _FENCE.sub("", text)):
        yield from (one for one in re.split(r"\n(?=\s*(?:[-*]|\d+\.) |\|)", block) if one.strip())


def said(paragraph: str, cells: int = 1) -> set[str]:
    """The house words that a paragraph says the meaning of, or sends to where it is said.

    That are words in italics or bold, those that a link is about, those in a heading, and those in the first cells of a
    row, with what the row says of them.

    Args:
        paragraph: The paragraph.
        cells: How many cells of a row name what it explains.
    """
    row = r"\|".join([r"([^|]+)"] * cells)
    marked = re.findall(
        rf"\*{{1,2}}([^*]+)\*{{1,2}}|\[([^\]]+)\]\(|^#+ (.+)$|^\|{row}\|", paragraph, flags=re.MULTILINE
    )
    text = " ; ".join(part for found in marked for part in found)
    return {word for word in HOUSE if _pattern(word).search(text)}


def used(paragraph: str) -> set[str]:
    """The house words in a paragraph, code left out."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|[\w/.-]+\.(?:md|py|json)", " ", paragraph)
    return {word for word in HOUSE if _pattern(word).search(prose)}


def unsaid(text: str) -> list[tuple[str, list[str]]]:
    """Paragraphs with more house words than a reader may be left with, and these words.

    A word that a page has said once is known on the rest of it. A paragraph that links the glossary is excused. Rows of
    the glossary explain the words of their first two columns.
    """
    cells = 2 if "\n| term | also written |" in text else 1
    known: set[str] = set()
    wrong = []
    for paragraph in paragraphs(text):
        known |= said(paragraph, cells)
        left = sorted(used(paragraph) - known)
        if len(left) > MOST and "glossary" not in paragraph:
            wrong.append((" ".join(paragraph.split())[:70], left))
    return wrong


#: Phrases that a plain sentence does without. "each of which" and the like are plain.
_PHRASES: Final = re.compile(
    r"\bthat which\b|\bso many\b|\bas such\b(?! (?:an?|elements)\b)"
    r"|(?<!\beach )(?<!\ball )(?<!\bnone )(?<!\bone )(?<!\bneither )(?<!\bhalf )(?<!\bothers )\bof which\b",
    re.IGNORECASE,
)
#: A sentence that is longer is hard to read: a warning, no failure.
LONGEST: Final = 25


def awkward(text: str) -> list[str]:
    """The phrases of a text, code left out, that plain sentences do without, each with what stands around it."""
    prose = " ".join(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)).split())
    return [prose[max(0, found.start() - 40) : found.end() + 40] for found in _PHRASES.finditer(prose)]


def long_sentences(text: str) -> int:
    """The number of sentences with more than ``LONGEST`` words, tables and code left out."""
    prose = (one for one in paragraphs(text) if not one.startswith("|"))
    sentences = (sentence for one in prose for sentence in re.split(r"(?<=[.:;?!])\s+", one))
    return sum(len(sentence.split()) > LONGEST for sentence in sentences)


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the package, with its module."""
    for path in sorted((REPOSITORY / "mirage_formal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield path.relative_to(REPOSITORY).as_posix(), text


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_pages_have_no_awkward_phrases(page: Path) -> None:
    assert awkward(page.read_text(encoding="utf-8")) == []


def test_docstrings_have_no_awkward_phrases() -> None:
    found = {module: phrases for module, text in docstrings() if (phrases := awkward(text))}
    assert found == {}


@pytest.mark.filterwarnings("default")
def test_long_sentences_are_counted() -> None:
    """A warning with their number, so that a reviewer sees it; many of them are lists."""
    numbers = [long_sentences(page.read_text(encoding="utf-8")) for page in pages()]
    if sum(numbers):
        warnings.warn(f"{sum(numbers)} sentences of the pages have more than {LONGEST} words", stacklevel=1)


def test_awkward_phrases_and_long_sentences_are_seen() -> None:
    assert len(awkward("That which is so many, as such, of which\none may be left.")) == 4
    assert awkward("Two tensors, each of which is read; `of which`; such as these; as such an axis.") == []
    assert long_sentences("word " * LONGEST + "\n\n| " + "cell " * 30) == 0
    assert long_sentences("word " * (LONGEST + 1)) == 1


def glossary() -> list[dict[str, str]]:
    """The rows of the glossary, by the heads of their tables."""
    found: list[dict[str, str]] = []
    heads: list[str] = []
    for line in (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif set(line) - set("|-: "):
            found.append(dict(zip(heads, cells, strict=True)))
    return found


def rows() -> set[str]:
    """The words that the glossary has rows for: in the columns of terms, of other names, and of our own words."""
    cells = [row.get(column, "") for row in glossary() for column in ("term", "also written", "word")]
    return {word for word in HOUSE for cell in cells if _pattern(word).search(cell)}


#: Tables that commands write: their pages' reader comes from one that explains the columns.
WRITTEN = ("docs/reproduction/", "docs/cli.md", "docs/corpus.md", "docs/mirage_api.md", "docs/reference/")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_a_paragraph_leaves_few_words_of_ours_unexplained(page: Path) -> None:
    if not page.relative_to(REPOSITORY).as_posix().startswith(WRITTEN):
        assert unsaid(page.read_text(encoding="utf-8")) == []


def test_every_word_of_ours_is_in_the_glossary() -> None:
    assert set(HOUSE) - rows() == set()


def test_the_glossary_gives_the_term_of_the_field_first() -> None:
    terms = [row["term"] for row in glossary() if "term" in row]
    own = [row for row in glossary() if "word" in row]
    assert len(terms) > 100
    assert [term for term in terms if not term or terms.count(term) > 1] == []
    assert 0 < len(own) <= 25
    assert [row for row in glossary() if not row.get("meaning")] == []
    assert [row["word"] for row in own if not row["why the field has no term"]] == []


def test_words_that_nobody_explains_are_seen() -> None:
    text = "An imap cuts slabs, the omap joins them.\n\nA *slab* is what a block reads.\n\nimap, slabs and omaps.\n"
    [(begin, words)] = unsaid(text)
    assert begin.startswith("An imap")
    assert words == ["imap", "omap", "slab"]
    assert len(words) > MOST
    assert unsaid("See the [glossary](glossary.md): imap, omap, slab.") == []
    assert unsaid("| *imap* | a |\n|---|---|\n| omap, slab | b |\n") == []
    assert used("`imap` and imap.py, the seal") == {"seal"}
    assert said("**Seal.** An [obligation](x.md), a *digest* and a fold.") == {"seal", "obligation", "digest"}
