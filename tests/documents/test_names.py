"""Names and docstrings: modules are nouns or verbs, and docstrings say what a function returns or does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
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
#: Modules that the prover and the checker each have of their own, for the same job.
TWINS = frozenset(["fingerprint", "index_substitution"])
#: Folders whose modules bear the name of what they are about: a command, or the value that a record is of.
NAMED_AFTER_OTHERS = frozenset(["cli", "records"])
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


def repeated_names(paths: Iterable[Path]) -> dict[str, list[str]]:
    """The names that several modules of the package have, with these modules."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[path.stem].append(path.as_posix())
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_names_of_modules_are_unique() -> None:
    """A name alone says which module is meant: within a folder of the package always, between folders by default."""
    modules = [path.relative_to(PACKAGE) for path in sources() if path.stem not in {"__init__", "__main__"}]
    folders = {path.parts[0] for path in modules}
    assert len(folders) > 20
    for folder in folders:
        assert repeated_names(path for path in modules if path.parts[0] == folder) == {}
    others = [path for path in modules if path.parts[0] not in NAMED_AFTER_OTHERS]
    assert repeated_names(path for path in others if path.stem not in TWINS) == {}
    twins = [path for path in others if path.stem in TWINS]
    assert {path.stem for path in twins} == TWINS
    assert {path.parts[0] for path in twins} == {"check", "prove"}


def words_of(name: str) -> list[str]:
    """The words of a name, in small letters: ``DTypeError`` is a dtype and an error, ``split_k`` has split and k."""
    parts = re.findall(r"^[A-Z](?:[A-Z][a-z0-9]+)|[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    assert sum(map(len, parts)) == len(name.replace("_", "")), name
    return [part.lower() for part in parts]


def public_names() -> Iterator[tuple[str, str]]:
    """The names of folders and modules, of public classes and of public functions, each with its module."""
    for path in sources():
        where = path.relative_to(PACKAGE)
        yield from ((part, where.as_posix()) for part in where.with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, where.as_posix()


def test_names_use_listed_words() -> None:
    """docs/words.txt is the vocabulary: a new word is a line there, which a reviewer sees."""
    listed = (REPOSITORY / "docs" / "words.txt").read_text(encoding="utf-8").splitlines()
    assert listed == sorted(set(listed))
    names = list(public_names())
    assert len(names) > 1000
    unlisted = sorted({f"{where}: {name}" for name, where in names if not set(words_of(name)) <= set(listed)})
    assert unlisted == []
    assert set(listed) - {word for name, _ in names for word in words_of(name)} == set()


def test_names_are_split_into_words() -> None:
    assert words_of("DTypeError") == ["dtype", "error"]
    assert words_of("STensor") == ["stensor"]
    assert words_of("z3_and_CUDAError") == ["z3", "and", "cuda", "error"]
    assert words_of("GPUTarget") == ["gpu", "target"]
    assert words_of("__init__") == ["init"]


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
