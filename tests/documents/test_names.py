"""Names and docstrings: modules are nouns or verbs, and docstrings say what a function returns or does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.kit.paths import REPOSITORY

PACKAGE = REPOSITORY / "mirage_formal"
#: Participles, adverbs and prepositions that no module is named by.
NOT_NAMES = frozenset(
    [
        "ahead",
        "alone",
        "along",
        "apart",
        "before",
        "behind",
        "beside",
        "between",
        "carried",
        "combined",
        "composed",
        "confirmed",
        "curved",
        "dealt",
        "dependent",
        "earlier",
        "emitted",
        "explained",
        "faster",
        "fastest",
        "first",
        "foreseen",
        "found",
        "gathered",
        "grouped",
        "imported",
        "inside",
        "joined",
        "judged",
        "kept",
        "known",
        "lowest",
        "made",
        "matched",
        "measured",
        "mirrored",
        "moved",
        "normal",
        "normalised",
        "nothing",
        "of",
        "other",
        "over",
        "printed",
        "published",
        "realised",
        "recalled",
        "recorded",
        "replayed",
        "reproduced",
        "sealed",
        "second",
        "searched",
        "shifted",
        "shown",
        "single",
        "smaller",
        "solved",
        "sought",
        "stored",
        "timed",
        "together",
        "transposed",
        "tuned",
        "united",
        "whole",
        "within",
        "written",
    ]
)
#: Docstrings that still open with a question: fewer is better, more is a step back.
QUESTIONS = 10


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a file's module, classes and functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


def test_modules_are_named_by_nouns_and_verbs() -> None:
    parts = {part for path in sources() for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert parts & NOT_NAMES == set()


def test_classes_and_functions_are_named_by_nouns_and_verbs() -> None:
    """Public ones of every module; ``imported`` and others are words of modules alone."""
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in sources()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name.lower() in NOT_NAMES - {"imported"}
    ]
    assert found == []


def test_docstrings_open_with_what_is_returned_or_done() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {text.splitlines()[0]}"
        for path in sources()
        for text in docstrings(path)
        if re.match(r"(What|Whether|See (?!``Graph\.))\b", text)
    ]
    assert len(found) <= QUESTIONS, "\n".join(found)
