"""Every command by both names, and what --help says of it: every argument, every option, its values and its default."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mirage_formal
from mirage_formal.cli import app as cli
from mirage_formal.cli import utilities
from tests.kit.paths import REPOSITORY

#: Commands of mirage-formal, with the module that is the same command, and the arguments that it takes.
COMMANDS: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    ("search",): ("mirage_formal.search", ("FILE",)),
    ("check",): ("mirage_formal.check", ("PATH",)),
    ("verify",): ("mirage_formal.verify", ("PROGRAM", "GRAPH")),
    ("tools", "build"): ("mirage_formal.kernel_build", ("RUN_DIR",)),
    ("tune",): ("mirage_formal.cli.tune", ("RUN_DIR",)),
    ("export",): ("mirage_formal.cli.export", ("DIR",)),
    ("tools", "kernelbench"): ("mirage_formal.cli.kernelbench", ("DIR",)),
    ("report",): ("mirage_formal.cli.report", ("RUN",)),
    ("watch",): ("", ("DIR",)),
    ("tools", "emulate"): ("mirage_formal.emulate", ("RUN_DIR",)),
    ("tools", "store", "list"): ("mirage_formal.cli.store", ()),
    ("tools", "store", "import"): ("mirage_formal.cli.store", ("DIR",)),
    ("tools", "store", "verify"): ("mirage_formal.cli.store", ("[KEY]...",)),
    ("tools", "store", "clear"): ("mirage_formal.cli.store", ("[KEY]...",)),
    ("tools", "gpu", "run"): ("mirage_formal.gpu", ("RUN_DIR",)),
    ("tools", "gpu", "tune"): ("mirage_formal.gpu", ("RUN_DIR",)),
    ("tools", "gpu", "info"): ("mirage_formal.gpu", ()),
    ("axioms",): ("", ()),
    ("run",): ("", ("PATH",)),
    ("tools", "show"): ("", ("PATH",)),
    ("tools", "explain"): ("", ("PATH",)),
    ("tools", "doctor"): ("", ()),
    ("tools", "docs"): ("", ()),
    ("tools", "schema"): ("", ()),
    ("tools", "reproduce", "table5"): ("mirage_formal.reproduce", ()),
    ("tools", "reproduce", "workloads"): ("mirage_formal.reproduce", ()),
    ("tools", "reproduce", "oracle"): ("mirage_formal.reproduce", ()),
}
#: Modules that can be run and are no command: all of them, text and data of the project, what starts a cluster.
NO_COMMANDS = {
    "mirage_formal",
    "mirage_formal.check.minimal_check",  # the smallest check imports no command line
    "mirage_formal.check.trusted_code",
    "mirage_formal.cli.command_reference",
    "mirage_formal.frontend.mirage_api",
    "mirage_formal.torch.op_table_docs",
    "mirage_formal.workers.cluster_host",
    "mirage_formal.prove.identity_testing.primes",
    "mirage_formal.torch.integrations.kernelbench.problem_subprocess",  # started by ``kernelbench``, for one problem
    "mirage_formal.autotune.timing_subprocess",  # started by ``tune``, reads its jobs from standard input
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, env=environment)


def helped(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """The paragraphs of a command's help by the option or argument that they begin with."""
    monkeypatch.setattr(sys, "argv", ["mirage-formal", *command, "--help"])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    paragraphs: dict[str, list[str]] = {}
    inside: list[str] = []
    for line in text.splitlines():
        found = re.match(r"  (-h, )?([^\s,]+)", line)
        if found is not None and not line.startswith("   "):
            inside = paragraphs.setdefault(found[2], [])
        inside.append(line)
    return {name: " ".join(" ".join(lines).split()) for name, lines in paragraphs.items()}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_has_its_values_and_its_default_and_every_argument_is_there(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = helped(command, monkeypatch, capsys)
    options = {name: text for name, text in found.items() if name.startswith("--")}
    for name, text in options.items():
        if name == "--help":
            continue
        assert re.search(r"\[default: [^\]]+\]", text), text
        about = text.removeprefix(name).strip(" ,").split()
        pair = about[0] == f"--no-{name.removeprefix('--')}"
        flag = pair or "[default: off]" in text or "[default: (off)]" in text
        assert flag or re.fullmatch(r"[A-Za-z0-9].*", about[0]), text
        assert flag or about[0] not in ("TEXT", "INTEGER", "FLOAT", "PATH", "VALUE"), text
    for argument in COMMANDS[command][1]:
        assert len(found[argument].removeprefix(argument).split()) > 2, found[argument]
    assert options


def test_the_options_of_a_search_name_their_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = helped(("search",), monkeypatch, capsys)
    for option, words in (
        ("--engine", "guided|exhaustive"),
        ("--oracle", "normal-form|z3"),
        ("--extents", "free|paper"),
        ("--accept", "equivalent|probable"),
        ("--workers", "1 or more. [default: (one for each processor)]"),
        ("--out", "[default: (runs/<file>)]"),
        ("--config", "[default: (by the program)]"),
    ):
        assert words in found[option]


def plain(text: str) -> list[str]:
    """The text without the name of the program, which its first lines begin with."""
    return re.sub(r"^[Uu]sage: .*?(?=\n\n|\n  -)", "", text, flags=re.DOTALL).split()


def said(text: str) -> dict[str, str]:
    """What a help says of each option, in small letters, without marks."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if (option := re.match(r"  (?:-h, )?(--[\w-]+)", line)) is not None:
            name = option[1]
        elif not line.startswith("   "):
            name = ""
        if name:
            found[name] = f"{found.get(name, '')} {line}"
    return {name: re.sub(r"[^a-z0-9]+", "", words.lower().replace(".0]", "]")) for name, words in found.items()}


@pytest.mark.parametrize("command", [one for one in COMMANDS if COMMANDS[one][0]], ids=" ".join)
def test_both_names_run_the_same_function(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = COMMANDS[command][0]
    inner = command[1:] if command[0] != "tools" else command[2:]
    monkeypatch.setenv("COLUMNS", "100")
    assert utilities.invoke_command(cli.app, [*command, "--help"]) == 0
    whole = capsys.readouterr().out
    alone = run(module, *inner, "--help")
    assert (alone.returncode, alone.stderr) == (0, "")
    if module not in ("mirage_formal.check", "mirage_formal.gpu"):
        assert plain(whole) == plain(alone.stdout)
        return
    # They read their arguments without typer, and have no progress; check prints no JSON there.
    options, own = said(whole), said(alone.stdout)
    lacking = {"--progress", "--json"} if module == "mirage_formal.check" else {"--progress"}
    assert options.keys() - own.keys() <= lacking
    assert {name: text for name, text in options.items() if name in own and name != "--help"} == {
        name: text for name, text in own.items() if name != "--help"
    }


def test_every_module_that_can_be_run_is_a_command() -> None:
    package = REPOSITORY / "mirage_formal"
    runnable = set()
    for path in package.rglob("*.py"):
        if 'if __name__ == "__main__":' in path.read_text():
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            runnable.add(".".join(part for part in parts if part != "__main__"))
    assert {module for module, _ in COMMANDS.values() if module} == runnable - NO_COMMANDS


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["mirage-formal", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mirage_formal {mirage_formal.__version__}\n"


def texts(path: Path) -> list[str]:
    """Every text of a module but its docstrings, with the fixed parts of those that are formatted."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {
        id(first.value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for first in body
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]


def test_no_text_points_at_a_file_that_a_wheel_lacks() -> None:
    """Docs, examples, tests and benchmarks are in a checkout only; presets and targets have other places in a wheel."""
    lacking = re.compile(r"\b(docs|examples|tests|benchmarks|axioms)/|\b(search|gpu)/[\w*/]+\.|\w\.md\b")
    # The first two write schemas of the docs; the others name a document with the command that prints it.
    kept = {
        "records/schema.py",
        "records/answer.py",
        "frontend/mirage_api/table.py",
        "frontend/mirage_api/rows.py",
        "torch/op_table_docs.py",
    }
    found = [
        f"{path.relative_to(REPOSITORY)}: {text}"
        for path in sorted((REPOSITORY / "mirage_formal").rglob("*.py"))
        if path.relative_to(REPOSITORY / "mirage_formal").as_posix() not in kept
        for text in texts(path)
        if lacking.search(text)
    ]
    assert found == []
