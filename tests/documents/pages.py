"""Markdown as far as tests need it: fences with the comment in front of them, headings with their anchors, links.

A comment on a line of its own, directly in front of a fence, says what the fence is:

    <!-- run -->                 Python or a console transcript that tests run; ``run slow`` for those that take long
    <!-- run torch -->           Python that needs torch; ``make test-torch`` runs it, other tests leave it out
    <!-- run; before: CODE -->   the same, after CODE, which readers have in another form (their own arrays)
    <!-- output -->              what the Python before it prints
    <!-- file: NAME -->          a file that lies beside what is run
    <!-- not run: REASON -->     code that no test runs
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kit.paths import REPOSITORY

_FENCE: Final = re.compile(
    r"(?:^<!-- (?P<mark>(?:run|output|file|not run)\b[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
#: Languages whose fences are run, or say why they are not.
RUNNABLE: Final = frozenset({"python", "console", "bash", "sh"})


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block.

    Attributes:
        mark: What the comment in front of it says, or nothing.
        language: Behind the opening backquotes.
        code: What is inside.
        start: Where that begins in the page's text.
        line: Its line there, from 1.
    """

    mark: str
    language: str
    code: str
    start: int
    line: int

    @property
    def kind(self) -> str:
        """The first word of the mark: "run", "output", "file", "not" or nothing."""
        return re.split(r"[ ;:]", self.mark)[0]

    @property
    def slow(self) -> bool:
        """Whether it takes long."""
        return "slow" in self._how

    @property
    def torch(self) -> bool:
        """Whether it needs torch."""
        return "torch" in self._how

    @property
    def _how(self) -> list[str]:
        return self.mark.partition(";")[0].split() if self.kind == "run" else []

    @property
    def name(self) -> str:
        """The file's name, of one that is a file."""
        return self.mark.removeprefix("file:").strip()

    @property
    def before(self) -> str:
        """The code that is run first."""
        return self.mark.partition("before:")[2].strip()


def fences(text: str) -> Iterator[Fence]:
    """Every fence of a page, in order."""
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        yield Fence(found["mark"] or "", found["language"], found["code"], found.start("code"), line)


def prose(text: str) -> str:
    """A page without its fences, comments and code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->|`[^`]*`", "", text, flags=re.DOTALL)


def not_run(text: str) -> str:
    """A page without what tests run: whether that names what exists is seen when it runs."""
    for fence in reversed(list(fences(text))):
        if fence.kind in ("run", "output", "file"):
            text = text[: fence.start] + text[fence.start + len(fence.code) :]
    return text


def links(text: str) -> list[str]:
    """What the page's links lead to."""
    return re.findall(r"\]\(([^()\s]+)\)", prose(text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the hosts of repositories and the site make them."""
    found: set[str] = set()
    body = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#{1,6} (.+)$", body, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number, name = 0, slug
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return found


def pages() -> tuple[Path, ...]:
    """Every document that a reader of the site or of the repository's front sees."""
    patterns = ("*.md", "docs/**/*.md", "artifact/*.md")
    return tuple(sorted(path for pattern in patterns for path in REPOSITORY.glob(pattern)))
