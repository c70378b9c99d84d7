"""The code of the documents runs and prints what they say; ``--update-golden`` writes what it prints into the pages."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import RUNNABLE, Fence, fences, pages
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_SHIM = '#!/bin/sh\nexec "{python}" {module} "$@"\n'


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def cases() -> Iterator[Any]:
    for page in pages():
        found = [fence for fence in fences(page.read_text(encoding="utf-8")) if fence.kind == "run"]
        if found:
            slow = any(fence.slow for fence in found)
            yield pytest.param(page, id=name(page), marks=[pytest.mark.slow] if slow else [])


def same(wanted: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(wanted, got, _FLAGS)


def lasting(got: str) -> str:
    """What a page says of an output: times and places of this machine are left open."""
    got = re.sub(r"\S+\.md:\d+", "...", got).replace(str(REPOSITORY), "...")
    got = re.sub(r"\b\d+\.\d+ s\b", "... s", got)
    got = re.sub(r"\d+ workers", "... workers", re.sub(r"│ +\d+\.\d{3} │", "│ ... │", got))
    return "".join(f"{line.rstrip()}\n" for line in got.splitlines())


class Session:
    """What runs the fences of one page, one after another, in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[str, Any] = {"__name__": "__page__"}
        tools = root / ".tools"
        tools.mkdir()
        for tool, module in (("mirage-formal", "-m mirage_formal"), ("python", "")):
            shim = tools / tool
            shim.write_text(_SHIM.format(python=sys.executable, module=module))
            shim.chmod(0o755)
        path = os.pathsep.join((str(tools), os.environ["PATH"]))
        places = os.pathsep.join((str(REPOSITORY), str(root)))
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": places, "COLUMNS": "80", "NO_COLOR": "1"}

    def python(self, fence: Fence, page: Path) -> str:
        """What a block of Python prints; later blocks see its names."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one says that there is no GPU
            if fence.before:
                exec(fence.before, self.names)
            # Its file and lines are the page's, where a message or a traceback names them.
            code = compile("\n" * fence.line + fence.code, str(page), "exec", dont_inherit=True)
            exec(code, self.names)
        return printed.getvalue()

    def console(self, fence: Fence) -> str:
        """A transcript as it is now: every command with what it prints."""
        lines = []
        for command in re.findall(r"^\$ (.+)$", fence.code, flags=re.MULTILINE):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.root,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=HUNG_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            lines.append(f"$ {command}\n{done.stdout}")
        assert lines, "a transcript without a command"
        return "".join(lines)


@pytest.mark.parametrize("page", list(cases()))
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    text = page.read_text(encoding="utf-8")
    torch = find_spec("torch") is not None
    if not torch and all(fence.torch for fence in fences(text) if fence.kind == "run"):
        pytest.skip("the code of this page needs torch: make test-torch runs it")
    session, printed, wrong = Session(tmp_path), "", []
    try:
        for fence in fences(text):
            got = None
            if fence.torch and not torch:
                continue
            if fence.kind == "file":
                (tmp_path / fence.name).write_text(fence.code, encoding="utf-8")
            elif fence.kind == "output":
                got = printed
            elif fence.kind == "run" and fence.language == "console":
                got = session.console(fence)
            elif fence.kind == "run":
                printed = session.python(fence, page)
            if got is not None and not same(fence.code, got):
                wrong.append((fence, lasting(got)))
    finally:
        for module in set(sys.modules) - before:
            if str(getattr(sys.modules[module], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[module]
    if request.config.getoption("update_golden"):
        for fence, got in reversed(wrong):
            text = text[: fence.start] + got + text[fence.start + len(fence.code) :]
        page.write_text(text, encoding="utf-8")
        return
    assert [f"{name(page)}:{fence.line}\n{fence.code}--- now:\n{got}" for fence, got in wrong] == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_block_of_code_is_run_or_says_why_not(page: Path) -> None:
    found = list(fences(page.read_text(encoding="utf-8")))
    assert [fence.line for fence in found if fence.language in RUNNABLE and not fence.kind] == []
    assert [fence.line for fence in found if fence.kind == "not" and not fence.mark.partition(":")[2].strip()] == []
    behind = [
        first.kind for first, second in zip([None, *found], found, strict=False) if second.kind == "output" and first
    ]
    assert set(behind) <= {"run"}, "an output follows what prints it"


def test_a_page_that_is_wrong_is_seen() -> None:
    [ran, told] = fences("<!-- run -->\n```python\nprint(1)\n```\n\n<!-- output -->\n```\n2\n```\n")
    assert (ran.kind, told.kind, ran.code) == ("run", "output", "print(1)\n")
    assert not same(told.code, "1\n")
    assert same("a ... c\n", "a b c\n")
    [slow] = fences("<!-- run torch slow; before: x = 1 -->\n```python\n```\n")
    assert (slow.before, slow.slow, slow.torch) == ("x = 1", True, True)
    assert (ran.slow, ran.torch) == (False, False)
