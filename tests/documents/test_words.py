"""Prose for strangers: a paragraph leaves at most two of this project's own words unexplained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.documents.pages import pages
from tests.kit.documents.words import HOUSE, MOST, glossary, rows, said, unsaid, used
from tests.kit.paths import REPOSITORY

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
